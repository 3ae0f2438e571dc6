"""The compliance suite is only worth something if it catches back ends that are wrong."""

from __future__ import annotations

import math
import os
import signal
import threading
import time

import pytest

from coralopt.errors import OptionError, UnsupportedError
from coralopt.solving import Limit, Reason, SolveOptions, SolveProgress, solve_matrix
from coralopt.solving.transfer import read_request, write_request
from coralopt.testing import compliance
from coralopt.testing.compliance.case import knapsack, market_split, trivial_start
from coralopt.testing.wrong_backends import LIARS, Crashes, Hangs, Hoards, Honest


@pytest.mark.parametrize("liar", LIARS, ids=[liar.__name__ for liar in LIARS])
def test_every_liar_is_caught(liar: type[Honest]) -> None:
    """Each of these lies has been told by a real solver or interface at some time."""
    outcomes = compliance.run(liar(), only=LIARS[liar])
    assert any(outcome.status == "failed" for outcome in outcomes), outcomes


def test_the_honest_one_passes_the_same_cases() -> None:
    """Otherwise the liars might be caught for something that is wrong with all of them."""
    names = {name for cases in LIARS.values() for name in cases}
    for outcome in compliance.run(Honest(), only=names):
        assert outcome.status == "passed", outcome


@pytest.mark.parametrize(
    ("backend", "limit", "options"),
    [
        (Hangs, Limit.TIME, {"time_limit": 0.5}),
        (Crashes, Limit.OTHER, {}),
        (Hoards, Limit.MEMORY, {"memory_limit": 0.5}),
    ],
)
def test_an_incumbent_outlives_its_solver(backend: type[Honest], limit: Limit, options: dict[str, float]) -> None:
    """A deadline, a crash and a memory limit all leave the best solution seen, checked like any other."""
    programme = market_split()
    start = trivial_start(programme)
    found = solve_matrix(programme, backend(), {"isolate": True, **options}, start=start)
    assert found.termination.reason is Reason.FEASIBLE, found.termination
    assert found.termination.limit is limit, found.termination
    assert found.objective == pytest.approx(float(programme.c @ start))
    assert found.bound == 0.0


def test_a_solver_past_its_limit_has_one_second_of_grace() -> None:
    """Enough to stop by itself, as docs/solvers.md promises; no less."""
    result = solve_matrix(knapsack(), Hangs(), {"isolate": True, "time_limit": 0.5})
    assert result.termination.limit is Limit.TIME
    assert result.termination.raw == "killed 1 s after its time limit of 0.5 s"
    assert result.solve_seconds >= 1.5


def test_a_crash_without_an_incumbent_is_no_exception() -> None:
    """A dead solver is a result with its own words, so that a loop over solvers goes on."""
    found = solve_matrix(knapsack(), Crashes(), {"isolate": True})
    assert found.termination.reason is Reason.OTHER_ERROR
    assert found.termination.raw == "the solver's process ended by signal SIGABRT"


def test_errors_cross_the_process_border() -> None:
    """A wrong option is the same error with and without isolation."""
    with pytest.raises(OptionError, match="no_such_option"):
        solve_matrix(knapsack(), "highs", SolveOptions(isolate=True, native={"no_such_option": 1}))


def test_all_before_a_solver_counts_up_to_three_fifths_of_its_limit(tmp_path) -> None:
    """Where nobody asked for a process, its start and the matrix's way there are within the limit; some is left to solve."""
    for begun, left in ((time.time() - 1000.0, 4.0), (math.inf, 10.0)):
        write_request(tmp_path, knapsack(), "highs", SolveOptions(time_limit=10.0), None, begun)
        matrix, _, options, _ = read_request(tmp_path)
        assert options.time_limit == pytest.approx(left)
        assert (matrix.column_names[0], len(matrix.row_names)) == ("c0", knapsack().shape[0])


def test_what_cannot_be_isolated_says_so() -> None:
    """A class inside a function is out of another process's reach."""

    class Local(Honest):
        name = "local"

    with pytest.raises(UnsupportedError, match="importable"):
        solve_matrix(knapsack(), Local(), {"isolate": True})


@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
@pytest.mark.parametrize("solver", ["highs", "scip", "gurobi"])
def test_ctrl_c_of_an_isolated_solve_keeps_the_incumbent(solver: str) -> None:
    """The signal reaches the child in order, and its incumbent comes back."""
    pytest.importorskip({"highs": "highspy", "scip": "pyscipopt", "gurobi": "gurobipy"}[solver])
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

    def begin(event: SolveProgress) -> None:
        """From the first incumbent on, however long the process takes to have one."""
        if event.objective is not None and timer.ident is None:
            timer.start()

    options = {"isolate": True, "time_limit": 300.0, "rel_gap": 0.0}
    try:
        found = solve_matrix(market_split(), solver, options, on_progress=begin)
    finally:
        timer.cancel()
    assert found.termination.limit is Limit.INTERRUPTED, found.termination
    assert found.termination.reason is Reason.FEASIBLE, found.termination


def test_memory_limit_without_isolation_needs_the_capability() -> None:
    """HiGHS has no memory limit; pretending would be worse than refusing."""
    with pytest.raises(UnsupportedError, match="isolate"):
        solve_matrix(knapsack(), "highs", {"memory_limit": 1.0})
