"""Cases about limits, gaps and options."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from coralopt.errors import LicenseLimitError, OptionError
from coralopt.solving import Capability, Limit, MatrixBackend, Reason, SolveOptions, solve_matrix
from coralopt.solving.options import Focus
from coralopt.testing.compliance.case import best_by_enumeration, case, knapsack, market_split, matrix

#: Seconds after which a hard instance is stopped.
SHORT = 0.5


@case(Capability.BOXED)
def no_time_at_all(backend: MatrixBackend) -> None:
    """time_limit=0 is a limit like any other: no exception, and nothing claimed that was not found."""
    result = solve_matrix(market_split(), backend, SolveOptions(time_limit=0.0))
    assert result.termination.reason in (Reason.NO_SOLUTION_FOUND, Reason.FEASIBLE), result.termination
    assert result.termination.limit is Limit.TIME, result.termination
    assert result.gap > 0


@case(Capability.BOXED)
def endless_time_limit(backend: MatrixBackend) -> None:
    """An infinite time limit is none."""
    programme = knapsack(items=6)
    result = solve_matrix(programme, backend, SolveOptions(time_limit=math.inf))
    assert result.objective == best_by_enumeration(programme)


@case(Capability.BOXED)
def time_limit_keeps_the_incumbent(backend: MatrixBackend) -> None:
    """The best solution so far is what a time limit is for; Pyomo reads CBC's bound of a maximum with the other sign."""
    begun, split = time.perf_counter(), market_split()
    upwards = replace(split, c=-split.c, offset=100.0 - split.offset, maximize=True)
    result = solve_matrix(upwards, backend, SolveOptions(time_limit=SHORT, rel_gap=0.0))
    assert result.termination.reason is Reason.FEASIBLE, result.termination
    assert result.termination.limit is Limit.TIME, result.termination
    assert result.x is not None
    assert result.bound is not None
    assert result.bound > result.objective
    # Busy machines are slow; a back end that ignores the limit would need minutes.
    assert time.perf_counter() - begun < 60 * SHORT


@case(Capability.BOXED, Capability.NODE_LIMIT)
def node_limit_is_no_error(backend: MatrixBackend) -> None:
    """A node limit ends the search early; what is claimed must still hold."""
    programme = knapsack(items=16)
    truth = best_by_enumeration(programme) or 0.0
    result = solve_matrix(programme, backend, SolveOptions(node_limit=1, rel_gap=0.0))
    assert result.termination.reason in (Reason.OPTIMAL, Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND), result.termination
    if result.termination.reason is Reason.OPTIMAL:
        assert math.isclose(result.objective, truth, rel_tol=1e-6)
    assert result.bound is not None
    assert result.bound >= truth - 1e-6


@case(Capability.BOXED)
def bound_never_passes_the_optimum(backend: MatrixBackend) -> None:
    """In both senses, with a loose gap, the bound is on the far side of the true optimum."""
    for maximize in (False, True):
        programme = knapsack(maximize, items=15, seed=11)
        truth = best_by_enumeration(programme) or 0.0
        result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.3))
        assert result.bound is not None
        off = truth - result.bound if maximize else result.bound - truth
        assert off <= 1e-6 * abs(truth), (result.bound, truth)


@case(Capability.BOXED)
def gap_stop_is_labelled_by_the_gap(backend: MatrixBackend) -> None:
    """Stopped at a gap of 30 %: optimal means within the gap asked for, and the true gap is reported."""
    result = solve_matrix(knapsack(items=16, seed=5), backend, SolveOptions(rel_gap=0.3))
    assert result.termination.reason is Reason.OPTIMAL, result.termination
    assert result.gap <= 0.3 + 1e-7
    assert result.bound is not None
    assert math.isclose(result.gap, abs(result.objective - result.bound) / abs(result.objective), abs_tol=1e-12)


@case(Capability.BOXED)
def options_do_not_leak(backend: MatrixBackend) -> None:
    """A limit of one solve must not be in force in the next; persistent interfaces of Pyomo fail here."""
    programme = knapsack(items=16)
    truth = best_by_enumeration(programme) or 0.0
    nodes = [SolveOptions(node_limit=0)] if Capability.NODE_LIMIT in backend.capabilities else []
    for tight in (SolveOptions(time_limit=0.0), SolveOptions(rel_gap=0.9), *nodes):
        solve_matrix(programme, backend, tight)
        result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0, abs_gap=1e-7))
        assert result.termination.reason is Reason.OPTIMAL, (tight, result.termination)
        assert math.isclose(result.objective, truth, rel_tol=1e-6)


@case(Capability.BOXED)
def models_do_not_leak(backend: MatrixBackend) -> None:
    """Solving another model in between changes nothing."""
    first, second = knapsack(items=10), matrix([1, 1], [([1, 2], 3, 3)], (0, 3))
    values = [solve_matrix(programme, backend).objective for programme in (first, second, first)]
    assert values[0] == values[2], values


@case(Capability.BOXED)
def unknown_native_option_raises(backend: MatrixBackend) -> None:
    """A typo in an option must not be ignored in silence."""
    try:
        solve_matrix(knapsack(items=6), backend, SolveOptions(native={"no_such_option_at_all": 1}))
    except OptionError as error:
        words = str(error)
    else:
        words = "it was accepted"
    assert "no_such_option_at_all" in words, words


@case(Capability.BOXED)
def wrongly_typed_native_option_raises(backend: MatrixBackend) -> None:
    """A number given as a word must not be ignored in silence."""
    effective = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.01)).effective
    numbers = [name for name, value in effective.items() if isinstance(value, float)]
    assert numbers, f"effective options hold no number: {effective}"
    name = next((name for name in numbers if effective[name] == 0.01), numbers[0])
    try:
        solve_matrix(knapsack(items=6), backend, SolveOptions(native={name: "a word"}))
    except OptionError as error:
        words = str(error)
    else:
        words = "it took a word for a number"
    assert name in words, (name, words)


@case(Capability.BOXED)
def effective_options_are_echoed(backend: MatrixBackend) -> None:
    """The gap that was asked for is in force under some native name."""
    effective = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.0123)).effective
    assert 0.0123 in effective.values(), effective


@case(Capability.BOXED)
def native_options_win(backend: MatrixBackend) -> None:
    """A native option is stronger than the common one."""
    effective = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.0123)).effective
    name = next(name for name, value in effective.items() if value == 0.0123)
    again = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.5, native={name: 0.0321}))
    assert again.effective[name] == 0.0321, again.effective


@case(Capability.BOXED, Capability.SEED, Capability.NODE_LIMIT)
def same_seed_same_answer(backend: MatrixBackend) -> None:
    """One thread and one seed: bit for bit the same."""
    programme = market_split(rows=4)
    first, second = (
        solve_matrix(programme, backend, SolveOptions(seed=5, rel_gap=0.0, node_limit=50)) for _ in range(2)
    )
    assert first.x is not None
    assert second.x is not None
    assert (first.x == second.x).all()
    assert (first.nodes, first.iterations) == (second.nodes, second.iterations)


@case(Capability.BOXED)
def threads_may_change_between_solves(backend: MatrixBackend) -> None:
    """One, two, one thread in a process: HiGHS fails here when its pool is not reset."""
    programme = knapsack(items=12)
    values = [solve_matrix(programme, backend, SolveOptions(threads=n, rel_gap=0.0)).objective for n in (1, 2, 1)]
    assert len(set(values)) == 1, values


@case(Capability.BOXED)
def presolve_off_same_optimum(backend: MatrixBackend) -> None:
    """Presolve is a way, not an answer."""
    programme = knapsack(items=12, seed=9)
    values = {
        solve_matrix(programme, backend, SolveOptions(presolve=on, rel_gap=0.0, abs_gap=1e-7)).objective
        for on in (None, True, False)
    }
    assert len(values) == 1, values


@case(Capability.BOXED)
def focus_same_optimum(backend: MatrixBackend) -> None:
    """What a solver looks for first is a way, not an answer; one without such a setting ignores it."""
    focuses: list[tuple[bool, Focus]] = [(False, "solutions"), (True, "solutions"), (False, "short"), (True, "short")]
    for maximize, focus in focuses:
        programme = knapsack(maximize, items=12, seed=9)
        truth = best_by_enumeration(programme) or 0.0
        result = solve_matrix(programme, backend, SolveOptions(focus=focus, rel_gap=0.0, abs_gap=1e-7))
        assert result.termination.reason is Reason.OPTIMAL, result.termination
        assert math.isclose(result.objective, truth, rel_tol=1e-6), (result.objective, truth)


@case(Capability.BOXED)
def isolated_solve_agrees(backend: MatrixBackend) -> None:
    """In a process of its own: same answer, and the deadline is hard."""
    programme = knapsack(items=12)
    here, there = (solve_matrix(programme, backend, SolveOptions(isolate=flag, rel_gap=0.0)) for flag in (False, True))
    assert here.objective == there.objective
    assert there.termination.reason is Reason.OPTIMAL, there.termination


@case(Capability.MILP, Capability.MEMORY_LIMIT)
def memory_limit_is_taken(backend: MatrixBackend) -> None:
    """A generous memory limit changes nothing."""
    programme = knapsack(items=12)
    result = solve_matrix(programme, backend, SolveOptions(memory_limit=8.0))
    assert result.termination.reason is Reason.OPTIMAL, result.termination


@case(Capability.LP)
def size_limit_is_told_before_solving(backend: MatrixBackend) -> None:
    """A licence that stops at a size: an error with the limit, the size and a way out."""
    limit = backend.probe().size_limit
    if limit is None:
        return
    try:
        solve_matrix(matrix(np.ones(limit[1] + 1).tolist(), bounds=(0.0, 1.0)), backend)
    except LicenseLimitError as error:
        words = str(error)
    else:
        words = "a model above the size limit was solved"
    missing = [word for word in (str(limit[1]), str(limit[1] + 1), "highs") if word not in words]
    assert not missing, (missing, words)


@case(Capability.MILP, Capability.CONCURRENT)
def several_threads_at_once(backend: MatrixBackend) -> None:
    """Searches for plans solve many small programmes side by side; a solver that shares state there mixes them up."""
    programmes = [replace(knapsack(items=6 + k % 3), offset=float(k)) for k in range(12)]
    options = SolveOptions(rel_gap=0.0)
    alone = [solve_matrix(programme, backend, options) for programme in programmes]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda programme: solve_matrix(programme, backend, options), programmes))
    for before, after in zip(alone, together, strict=True):
        assert (before.objective, before.bound, before.nodes) == (after.objective, after.bound, after.nodes)
        assert before.x is not None
        assert after.x is not None
        assert np.array_equal(before.x, after.x), (before.x, after.x)


@case(Capability.MILP, Capability.CONCURRENT)
def a_limit_in_one_thread_is_not_one_in_others(backend: MatrixBackend) -> None:
    """Each solve keeps its own clock and its own end."""
    with ThreadPoolExecutor(2) as threads:
        hard = threads.submit(solve_matrix, market_split(), backend, SolveOptions(time_limit=2 * SHORT, rel_gap=0.0))
        easy = [solve_matrix(knapsack(items=6), backend) for _ in range(3)]
        assert hard.result().termination.limit is Limit.TIME, hard.result().termination
    assert {result.termination.reason for result in easy} == {Reason.OPTIMAL}, easy
