"""HiGHS behind the core: the cases in which solvers and their adapters are known to differ."""

from __future__ import annotations

import _thread
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csc_array

from coralopt.errors import OptionError
from coralopt.solving import LazyNames, Limit, MilpMatrix, Reason, SolveOptions, get_backend, solve, solve_matrix
from coralopt.testing.verification import placement_instance

INF = math.inf


def program(c, rows=(), bounds=None, integer=None, maximize=False, offset=0.0):
    """A matrix from rows (lower, coefficients, upper) and column bounds, [0, inf) by default."""
    n = len(c)
    bounds = bounds or [(0, INF)] * n
    return MilpMatrix(
        c=np.array(c, dtype=float),
        offset=offset,
        a=csc_array(np.array([row[1] for row in rows], dtype=float).reshape(len(rows), n)),
        row_lower=np.array([row[0] for row in rows], dtype=float),
        row_upper=np.array([row[2] for row in rows], dtype=float),
        lower=np.array([low for low, _ in bounds], dtype=float),
        upper=np.array([high for _, high in bounds], dtype=float),
        integer=np.array([bool(integer)] * n if not isinstance(integer, list) else integer, dtype=bool),
        maximize=maximize,
        column_names=[f"x{i}" for i in range(n)],
        row_names=[f"r{i}" for i in range(len(rows))],
    )


def hard(seed=7, n=40, m=4):
    """Market split with slack: whole numbers that hardly add up; finds incumbents at once, proves nothing for long."""
    a = np.random.default_rng(seed).integers(0, 100, (m, n))
    rows = []
    for i in range(m):
        coefficients = np.zeros(n + 2 * m)
        coefficients[:n] = a[i]
        coefficients[n + i], coefficients[n + m + i] = 1, -1
        rows.append((a[i].sum() // 2, coefficients, a[i].sum() // 2))
    c = np.concatenate([np.zeros(n), np.ones(2 * m)])
    return program(c, rows, [(0, 1)] * n + [(0, INF)] * 2 * m, [True] * n + [False] * 2 * m)


KNAPSACK = program([5, 4, 3], [(-INF, [2, 3, 1], 5)], [(0, 1)] * 3, integer=True, maximize=True)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize(("maximize", "objective"), [(False, 8.0), (True, 12.0)])
def test_optimum_of_both_senses(maximize, objective, integer):
    """Objective, bound and gap are in the model's own sense, with its constant."""
    row = (-INF, [1, 1], 4) if maximize else (4, [1, 1], INF)
    found = solve_matrix(program([2, 3], [row], integer=integer, maximize=maximize, offset=0.5))
    assert found.termination.reason is Reason.OPTIMAL
    assert (found.objective, found.bound, found.gap) == (objective + 0.5, objective + 0.5, 0.0)


@pytest.mark.parametrize("maximize", [False, True])
def test_duals_are_shadow_prices_for_min_and_max(maximize):
    """One sign convention: d objective / d right-hand side, verified by moving the right-hand side."""
    rows = [(-INF, [1, 1], 4), (-INF, [1, 3], 6)] if maximize else [(4, [1, 1], INF), (6, [1, 3], INF)]
    base = solve_matrix(program([2, 3], rows, maximize=maximize))
    for i in range(2):
        moved = list(rows)
        low, coefficients, high = rows[i]
        moved[i] = (low + 0.01, coefficients, high + 0.01)
        change = solve_matrix(program([2, 3], moved, maximize=maximize)).objective - base.objective
        assert base.row_duals[i] == pytest.approx(change / 0.01, abs=1e-6)
    assert base.reduced_costs == pytest.approx([2 - base.row_duals @ [1, 1], 3 - base.row_duals @ [1, 3]])


def test_integer_programmes_have_no_duals():
    """Duals of the last relaxation would be taken for prices."""
    found = solve_matrix(KNAPSACK)
    assert found.row_duals is None
    assert found.reduced_costs is None


INFEASIBLE = {
    "lp": program([1], [(3, [2], 3)], [(0, 1)]),
    "parity": program([1], [(1, [2], 1)], integer=True),
    "crossed bounds": program([1], [(0, [1], 5)], [(2, 1)]),
    "crossed row": program([1], [(3, [1], 1)]),
    "no columns": program([], [(1, [], INF)]),
    "unbounded relaxation": program([-1, 0], [(1, [0, 2], 1)], integer=True),
}


@pytest.mark.parametrize("name", INFEASIBLE)
def test_infeasible(name):
    """No solution, no bound, in every way a model can be infeasible."""
    found = solve_matrix(INFEASIBLE[name])
    assert found.termination.reason is Reason.INFEASIBLE
    assert found.x is None
    assert found.bound is None
    assert math.isnan(found.objective)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("rows", [[(0, [1, -1], INF)], []])
@pytest.mark.parametrize("maximize", [False, True])
def test_unbounded(maximize, rows, integer):
    """Told from infeasible, and never with an incumbent: solvers report 1e20 or 1e30 there."""
    found = solve_matrix(program([1, 1] if maximize else [-1, -1], rows, integer=integer, maximize=maximize))
    assert found.termination.reason is Reason.UNBOUNDED
    assert found.x is None
    assert found.bound == (INF if maximize else -INF)


def test_empty_and_rowless_models():
    """HiGHS says "unknown" to an empty model; its optimum is the constant."""
    empty = solve_matrix(program([], offset=3.0))
    assert (empty.termination.reason, empty.objective, empty.bound) == (Reason.OPTIMAL, 3.0, 3.0)
    assert solve_matrix(program([], [(-1, [], 1)])).termination.reason is Reason.OPTIMAL
    rowless = solve_matrix(program([1, -1], bounds=[(-1, INF), (0, 3)], integer=[False, True]))
    assert (rowless.objective, rowless.x.tolist()) == (-4.0, [-1.0, 3.0])


def test_column_and_row_kinds():
    """Free, fixed and binary columns; range, equality, free and duplicate-entry rows."""
    matrix = program(
        [1, 1, -2],
        [(-3, [1, 0, 0], 3), (2, [0, 1, 0], 2), (-INF, [1, 1, 1], INF), (-INF, [0, 0, 3], 2)],
        [(-INF, INF), (2, 2), (0, 1)],
        [False, False, True],
    )
    found = solve_matrix(matrix)
    assert found.x.tolist() == [-3.0, 2.0, 0.0]
    twice = csc_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    doubled = program([1], [(6, [1], INF)])
    assert solve_matrix(MilpMatrix(**{**vars(doubled), "a": twice})).objective == 2.0


@pytest.mark.parametrize("options", [{"time_limit": 0.0}, {"node_limit": 0}])
def test_limits_are_told_apart_from_infeasible(options):
    """A limit before any solution is neither infeasible nor an error, and its bound says nothing wrong."""
    n = 30
    weights = np.random.default_rng(0).integers(20, 100, (3, n))
    rows = [(-INF, weights[i], weights[i].sum() / 2) for i in range(3)]
    matrix = program(weights.sum(0) + 7, rows, [(0, 1)] * n, True, maximize=True)
    found = solve_matrix(matrix, options=options)
    best = solve_matrix(matrix, options={"rel_gap": 0.0})
    assert found.termination.limit is (Limit.TIME if "time_limit" in options else Limit.NODE)
    assert found.termination.reason in (Reason.NO_SOLUTION_FOUND, Reason.FEASIBLE)
    assert found.bound >= best.objective
    assert best.termination.reason is Reason.OPTIMAL


def test_node_limit_keeps_the_incumbent():
    """The incumbent at a limit is the answer people wait for; its gap is not called proven."""
    found = solve_matrix(hard(), options={"node_limit": 20})
    assert found.termination.reason is Reason.FEASIBLE
    assert found.termination.limit is Limit.NODE
    assert found.bound <= found.objective
    assert found.gap > 1e-4


def test_a_loose_gap_is_optimal_only_to_that_gap():
    """OPTIMAL means: within the gap asked for, and the result says how far."""
    found = solve_matrix(KNAPSACK, options={"rel_gap": 0.9})
    assert found.termination.reason is Reason.OPTIMAL
    assert found.gap <= 0.9
    assert found.bound >= found.objective


def test_options_do_not_leak():
    """Every persistent solver object keeps its options; the next solve must not see them."""
    backend = get_backend("highs")
    limited = solve_matrix(hard(n=12, m=2), backend, {"node_limit": 0, "native": {"mip_heuristic_effort": 0.0}})
    free = solve_matrix(hard(n=12, m=2), backend)
    assert limited.termination.limit is Limit.NODE
    assert free.termination.reason is Reason.OPTIMAL
    assert free.termination.limit is None
    assert "mip_max_nodes" not in free.effective


@pytest.mark.parametrize(
    ("native", "words"),
    [
        ({"mip_rel_gapp": 0.1}, "mip_rel_gap"),
        ({"passModel": 1}, "unknown HiGHS option"),
        ({"mip_max_nodes": 1.5}, "takes a int"),
        ({"mip_max_nodes": True}, "takes a int"),
        ({"presolve": False}, "takes a str"),
        ({"presolve": "maybe"}, "maybe"),
        ({"mip_heuristic_effort": 7.0}, "mip_heuristic_effort"),
    ],
)
def test_bad_native_options_raise(native, words, capfd):
    """HiGHS ignores a wrong option but for a line in its log; the user would never know."""
    with pytest.raises(OptionError, match=words):
        solve_matrix(KNAPSACK, options=SolveOptions(native=native))


def test_native_options_reach_highs_and_are_echoed():
    """A whole number is fine where HiGHS wants a float; the effective value is reported."""
    found = solve_matrix(KNAPSACK, options={"native": {"mip_heuristic_effort": 0}, "presolve": False, "seed": 3})
    assert found.effective["mip_heuristic_effort"] == 0.0
    assert found.effective["presolve"] == "off"
    assert found.effective["random_seed"] == 3


def test_native_options_that_the_interface_does_not_show(capfd):
    """HiGHS knows more options than its Python interface lists; a wrong one leaves no line of its log."""
    found = solve_matrix(KNAPSACK, options={"native": {"mip_allow_restart": False}})
    assert found.effective["mip_allow_restart"] is False
    with pytest.raises(OptionError, match="mip_allow_restarts"):
        solve_matrix(KNAPSACK, options={"native": {"mip_allow_restarts": False}})
    captured = capfd.readouterr()
    assert not captured.out
    assert not captured.err


def test_focus_on_solutions_leaves_out_cuts_at_nodes():
    """Native options are stronger; without a focus HiGHS does as it likes."""
    name = "mip_allow_cut_separation_at_nodes"
    assert name not in solve_matrix(KNAPSACK).effective
    assert solve_matrix(KNAPSACK, options={"focus": "solutions"}).effective[name] is False
    assert solve_matrix(KNAPSACK, options={"focus": "solutions", "native": {name: True}}).effective[name] is True
    short = solve_matrix(KNAPSACK, options={"focus": "short"})
    assert short.effective["mip_heuristic_run_rins"] is short.effective["mip_allow_restart"] is False
    assert short.objective == solve_matrix(KNAPSACK).objective


def test_threads_may_change_in_one_process():
    """HiGHS refuses another number of threads in a thread that has a pool; every solve has a thread of its own."""
    for threads in (1, 2, 1):
        assert solve_matrix(KNAPSACK, options={"threads": threads}).objective == 9.0


def test_several_python_threads_with_pools_of_several_sizes():
    """Pools belong to the thread that runs HiGHS: none is reset under a running solve."""

    def solved(threads: int) -> float:
        return solve_matrix(KNAPSACK, options={"threads": threads}).objective

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(solved, [1, 2, 1, 2, 1, 2, 1, 2])) == [9.0] * 8


def test_equal_seeds_give_equal_runs():
    """Nodes, iterations and solution repeat when a node limit, not the clock, ends the run."""
    options = {"node_limit": 30, "seed": 5}
    first, second = (solve_matrix(hard(), options=options) for _ in range(2))
    assert (first.nodes, first.iterations, first.objective) == (second.nodes, second.iterations, second.objective)
    assert (first.x == second.x).all()


def test_starts():
    """A complete start is taken, a partial one completed, a wrong one harmless; each is told."""
    matrix = hard()
    n = len(matrix.c)
    best = solve_matrix(matrix, options={"node_limit": 20})
    again = solve_matrix(matrix, options={"node_limit": 0}, start=best.x)
    assert again.start_accepted is True
    assert again.objective <= best.objective
    partial = best.x.copy()
    partial[~matrix.integer] = np.nan
    assert solve_matrix(matrix, options={"node_limit": 1}, start=partial).objective <= best.objective
    wrong = solve_matrix(KNAPSACK, start=np.ones(3))
    assert (wrong.objective, wrong.start_accepted) == (9.0, False)
    assert solve_matrix(KNAPSACK).start_accepted is None
    with pytest.raises(OptionError, match="shape"):
        solve_matrix(KNAPSACK, start=np.zeros(n))


def test_a_start_survives_a_limit_of_zero_seconds():
    """A known feasible solution must never be lost."""
    found = solve_matrix(KNAPSACK, options={"time_limit": 0.0}, start=np.array([0.0, 1.0, 1.0]))
    assert found.objective >= 7.0


def test_progress_reports_incumbent_and_bound():
    """Incumbents only get better, and bounds stay on their side of the final objective."""
    events = []
    found = solve_matrix(hard(), options={"node_limit": 20}, on_progress=events.append)
    objectives = [event.objective for event in events if event.objective is not None]
    assert objectives
    assert objectives[-1] == pytest.approx(found.objective)
    assert objectives == sorted(objectives, reverse=True)
    assert all(event.bound <= found.objective + 1e-6 for event in events if event.bound is not None)


def test_an_error_in_the_progress_callback_surfaces():
    """It must not cross the solver's frames (that ends the process) nor get lost."""

    def broken(event):
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        solve_matrix(hard(), options={"time_limit": 30.0}, on_progress=broken)


def test_interrupt_keeps_the_incumbent():
    """Ctrl-C ends the solve, not the answer."""
    pressed = []

    def press(event):
        if event.objective is not None and not pressed:
            pressed.append(event)
            _thread.interrupt_main()

    found = solve_matrix(hard(m=6, n=60), options={"time_limit": 60.0}, on_progress=press)
    assert found.termination.limit is Limit.INTERRUPTED
    assert found.termination.reason is Reason.FEASIBLE
    assert found.objective <= pressed[0].objective + 1e-6


def test_probe_names_version_and_licence():
    """`coralopt solvers` shows it."""
    probe = get_backend("highs").probe()
    assert probe.installed
    assert probe.version[0].isdigit()
    assert "MIT" in probe.licence


def test_large_models_with_a_limit_have_a_process_of_their_own():
    """There HiGHS looks at the clock minutes apart: 10 s became 507 s at 321,000 columns in the process of the caller.

    So they do at 60,000 integer columns with 294,000 nonzeros: an allocation of `core` under a limit of nodes, over 135 s.
    """
    from coralopt_highs.plugin import LARGE, LARGE_MIP

    backend = get_backend("highs")
    small = program([1.0], [(0, [1.0], 1)])
    large = program(np.ones(LARGE // 1000), [(0, np.ones(LARGE // 1000), 1)] * 1000)
    limited, free = SolveOptions(time_limit=5.0), SolveOptions()
    assert [backend.needs_process(m, o) for m, o in ((small, limited), (large, free), (large, limited))] == [
        False,
        False,
        True,
    ]
    middling = program(np.ones(LARGE_MIP // 100), [(0, np.ones(LARGE_MIP // 100), 1)] * 100)
    whole = replace(middling, integer=~middling.integer)
    assert not middling.is_mip
    assert [backend.needs_process(m, limited) for m in (middling, whole)] == [False, True]
    # Nothing is run where there is no time at all.
    assert not backend.needs_process(whole, SolveOptions(time_limit=0.0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_process_forked_during_a_solve_can_solve():
    """It inherits neither the thread that solves nor its pool."""
    code = (
        "import os, threading\n"
        "from coralopt.solving import solve_matrix\n"
        "from coralopt.testing.compliance.case import knapsack, market_split\n"
        "begun, options = threading.Event(), {'time_limit': 1.5, 'rel_gap': 0.0}\n"
        "solve = lambda: solve_matrix(market_split(), 'highs', options, on_progress=lambda _: begun.set())\n"
        "thread = threading.Thread(target=solve)\n"
        "thread.start()\n"
        "begun.wait()\n"
        "if os.fork() == 0:\n"
        "    print(solve_matrix(knapsack(items=6), 'highs').objective, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "thread.join()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert said.stdout.strip() == "142.0", said.stderr


def test_names_are_made_when_asked_for():
    """A million names are not worth a second where nobody reads them."""
    names = LazyNames([(2, lambda k: f"new[{k}]"), (0, str), (1, ["extra"].__getitem__)])
    assert list(names) == ["new[0]", "new[1]", "extra"]
    assert (len(names), names[-1], names[1:]) == (3, "extra", ["new[1]", "extra"])
    with pytest.raises(IndexError):
        names[3]


def test_presolve_is_not_believed_that_nothing_is_feasible() -> None:
    """HiGHS 1.15.1 presolves this placement of tiny throughputs to nothing; a found bug of ``verify-solvers``."""
    solution = solve(placement_instance(2_001_637), "highs", "tight", {"rel_gap": 1e-6, "abs_gap": 1e-6})
    assert solution.objective == pytest.approx(0.002685546875)
