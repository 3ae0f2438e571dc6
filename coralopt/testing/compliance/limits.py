"""Cases about limits, gaps and options."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from coralopt.errors import LicenseLimitError, OptionError
from coralopt.solving import Capability, Limit, Reason, SolveOptions, solve_matrix
from coralopt.testing.compliance.case import best_by_enumeration, case, knapsack, market_split, matrix

#: Seconds after which a hard instance is stopped.
SHORT = 1.0


@case(Capability.MILP)
def no_time_at_all(backend: Any) -> None:
    """time_limit=0 is a limit like any other: no exception, and nothing claimed that was not found."""
    found = solve_matrix(market_split(), backend, SolveOptions(time_limit=0.0))
    assert found.termination.reason in (Reason.NO_SOLUTION_FOUND, Reason.FEASIBLE), found.termination
    assert found.termination.limit is Limit.TIME, found.termination
    assert found.gap > 0


@case(Capability.MILP)
def time_limit_keeps_the_incumbent(backend: Any) -> None:
    """The best solution so far is what a time limit is for."""
    begun = time.perf_counter()
    found = solve_matrix(market_split(), backend, SolveOptions(time_limit=SHORT, rel_gap=0.0))
    assert found.termination.reason is Reason.FEASIBLE, found.termination
    assert found.termination.limit is Limit.TIME, found.termination
    assert found.x is not None
    assert found.bound is not None
    assert found.bound < found.objective
    # Busy machines are slow; a back end that ignores the limit would need minutes.
    assert time.perf_counter() - begun < 60 * SHORT


@case(Capability.MILP)
def node_limit_is_no_error(backend: Any) -> None:
    """A node limit ends the search early; what is claimed must still hold."""
    programme = knapsack(items=16)
    truth = best_by_enumeration(programme) or 0.0
    found = solve_matrix(programme, backend, SolveOptions(node_limit=1, rel_gap=0.0))
    assert found.termination.reason in (Reason.OPTIMAL, Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND), found.termination
    if found.termination.reason is Reason.OPTIMAL:
        assert math.isclose(found.objective, truth, rel_tol=1e-6)
    assert found.bound is not None
    assert found.bound >= truth - 1e-6


@case(Capability.MILP)
def bound_never_passes_the_optimum(backend: Any) -> None:
    """In both senses, with a loose gap, the bound is on the far side of the true optimum."""
    for maximize in (False, True):
        programme = knapsack(maximize, items=15, seed=11)
        truth = best_by_enumeration(programme) or 0.0
        found = solve_matrix(programme, backend, SolveOptions(rel_gap=0.3))
        assert found.bound is not None
        off = truth - found.bound if maximize else found.bound - truth
        assert off <= 1e-6 * abs(truth), (found.bound, truth)


@case(Capability.MILP)
def gap_stop_is_labelled_by_the_gap(backend: Any) -> None:
    """Stopped at a gap of 30 %: optimal means within the gap asked for, and the true gap is reported."""
    found = solve_matrix(knapsack(items=16, seed=5), backend, SolveOptions(rel_gap=0.3))
    assert found.termination.reason is Reason.OPTIMAL, found.termination
    assert found.gap <= 0.3 + 1e-7
    assert found.bound is not None
    assert math.isclose(found.gap, abs(found.objective - found.bound) / abs(found.objective), abs_tol=1e-12)


@case(Capability.MILP)
def options_do_not_leak(backend: Any) -> None:
    """A limit of one solve must not be in force in the next; persistent interfaces of Pyomo fail here."""
    programme = knapsack(items=16)
    truth = best_by_enumeration(programme) or 0.0
    for tight in (SolveOptions(time_limit=0.0), SolveOptions(rel_gap=0.9), SolveOptions(node_limit=0)):
        solve_matrix(programme, backend, tight)
        found = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0, abs_gap=1e-7))
        assert found.termination.reason is Reason.OPTIMAL, (tight, found.termination)
        assert math.isclose(found.objective, truth, rel_tol=1e-6)


@case(Capability.MILP)
def models_do_not_leak(backend: Any) -> None:
    """Solving another model in between changes nothing."""
    first, second = knapsack(items=10), matrix([1, 1], [([1, 2], 3, 3)], (0, 3))
    values = [solve_matrix(programme, backend).objective for programme in (first, second, first)]
    assert values[0] == values[2], values


@case(Capability.MILP)
def unknown_native_option_raises(backend: Any) -> None:
    """A typo in an option must not be ignored in silence."""
    try:
        solve_matrix(knapsack(items=6), backend, SolveOptions(native={"no_such_option_at_all": 1}))
    except OptionError as error:
        said = str(error)
    else:
        said = "it was accepted"
    assert "no_such_option_at_all" in said, said


@case(Capability.MILP)
def wrongly_typed_native_option_raises(backend: Any) -> None:
    """A number given as a word must not be ignored in silence."""
    effective = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.01)).effective
    numbers = [name for name, value in effective.items() if isinstance(value, float)]
    assert numbers, f"effective options hold no number: {effective}"
    name = next((name for name in numbers if effective[name] == 0.01), numbers[0])
    try:
        solve_matrix(knapsack(items=6), backend, SolveOptions(native={name: "a word"}))
    except OptionError as error:
        said = str(error)
    else:
        said = "it took a word for a number"
    assert name in said, (name, said)


@case(Capability.MILP)
def effective_options_are_echoed(backend: Any) -> None:
    """The gap that was asked for is in force under some native name."""
    effective = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.0123)).effective
    assert 0.0123 in effective.values(), effective


@case(Capability.MILP)
def native_options_win(backend: Any) -> None:
    """A native option is stronger than the common one."""
    effective = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.0123)).effective
    name = next(name for name, value in effective.items() if value == 0.0123)
    again = solve_matrix(knapsack(items=6), backend, SolveOptions(rel_gap=0.5, native={name: 0.0321}))
    assert again.effective[name] == 0.0321, again.effective


@case(Capability.MILP, Capability.SEED)
def same_seed_same_answer(backend: Any) -> None:
    """One thread and one seed: bit for bit the same."""
    programme = market_split(rows=4)
    first, second = (
        solve_matrix(programme, backend, SolveOptions(seed=5, rel_gap=0.0, node_limit=50)) for _ in range(2)
    )
    assert first.x is not None
    assert second.x is not None
    assert (first.x == second.x).all()
    assert (first.nodes, first.iterations) == (second.nodes, second.iterations)


@case(Capability.MILP)
def threads_may_change_between_solves(backend: Any) -> None:
    """One, two, one thread in a process: HiGHS fails here when its pool is not reset."""
    programme = knapsack(items=12)
    values = [solve_matrix(programme, backend, SolveOptions(threads=n, rel_gap=0.0)).objective for n in (1, 2, 1)]
    assert len(set(values)) == 1, values


@case(Capability.MILP)
def presolve_off_same_optimum(backend: Any) -> None:
    """Presolve is a way, not an answer."""
    programme = knapsack(items=12, seed=9)
    values = {
        solve_matrix(programme, backend, SolveOptions(presolve=on, rel_gap=0.0, abs_gap=1e-7)).objective
        for on in (None, True, False)
    }
    assert len(values) == 1, values


@case(Capability.MILP)
def isolated_solve_agrees(backend: Any) -> None:
    """In a process of its own: same answer, and the deadline is hard."""
    programme = knapsack(items=12)
    here, there = (solve_matrix(programme, backend, SolveOptions(isolate=flag, rel_gap=0.0)) for flag in (False, True))
    assert here.objective == there.objective
    assert there.termination.reason is Reason.OPTIMAL, there.termination


@case(Capability.MILP, Capability.MEMORY_LIMIT)
def memory_limit_is_taken(backend: Any) -> None:
    """A generous memory limit changes nothing."""
    programme = knapsack(items=12)
    found = solve_matrix(programme, backend, SolveOptions(memory_limit=8.0))
    assert found.termination.reason is Reason.OPTIMAL, found.termination


@case(Capability.LP)
def size_limit_is_told_before_solving(backend: Any) -> None:
    """A licence that stops at a size: an error with the limit, the size and a way out."""
    limit = backend.probe().size_limit
    if limit is None:
        return
    try:
        solve_matrix(matrix(np.ones(limit[1] + 1).tolist(), bounds=(0.0, 1.0)), backend)
    except LicenseLimitError as error:
        said = str(error)
    else:
        said = "a model above the size limit was solved"
    missing = [word for word in (str(limit[1]), str(limit[1] + 1), "highs") if word not in said]
    assert not missing, (missing, said)
