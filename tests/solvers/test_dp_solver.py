"""The dynamic programme as a solver, beside the MILP route through the core."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from coralopt_dp import DynamicProgrammeSolver, sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import UnsupportedError
from coralopt.placement import PlacementProblem, best_placement, max_flow_throughput
from coralopt.solving import Limit, Reason, SolveOptions, solve
from coralopt.testing.placement_strategies import best_by_enumeration, placement_problems


@settings(max_examples=150, deadline=None)
@given(placement_problems(), st.booleans())
def test_single_problems_match_enumeration(problem, fix):
    """The optimum, the smallest optimal stage count, and INFEASIBLE exactly when nothing can be placed."""
    if fix:
        problem = replace(problem, stages=problem.values.shape[0])
    best, stages = best_by_enumeration(problem)
    solution = solve(problem, "dp")
    if best == 0:
        assert solution.termination.reason is Reason.INFEASIBLE
        assert solution.answer is None
        return
    assert solution.termination.reason is Reason.OPTIMAL
    assert solution.objective == solution.bound == best
    assert solution.gap == 0
    placement = solution.require_solution()
    assert len(placement.stages) == stages
    assert max_flow_throughput(problem.values, placement) == best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), min_size=2, max_size=3).filter(any))
def test_single_equals_sweep(seed, counts):
    """One by one or the whole family at once: the same float, the same stage count."""
    values = np.random.default_rng(seed).lognormal(2.0, 1.5, (5, 3, len(counts), 11))
    values[..., 0] = 0.0
    sets = np.array(list(np.ndindex(*(n + 1 for n in counts)))[1:], dtype=np.int8)
    swept = sweep(values, sets)
    problem = PlacementProblem(values, tuple(counts), tuple("abc"[: len(counts)]))
    solution = solve(problem, DynamicProgrammeSolver())
    assert solution.objective == swept.throughput[-1]
    assert len(solution.require_solution().stages) == swept.stages[-1]


@pytest.mark.parametrize("formulation", ["tight", "paper"])
@settings(max_examples=25, deadline=None)
@given(problem=placement_problems(max_layers=5))
def test_milp_over_all_stage_counts_agrees(formulation, problem):
    """The paper's route, a MILP a stage count, through the core: the same optimum after exact re-evaluation."""
    exact = solve(problem, "dp")
    # A floating-point solver proves a gap up to its own tolerances only: its bound lies a hair above the exact optimum.
    milp = best_placement(problem, "highs", formulation, {"rel_gap": 1e-5})
    assert milp.termination.reason is exact.termination.reason
    assert milp.formulation == formulation
    if exact.answer is None:
        assert milp.answer is None
        assert milp.bound is None
    else:
        assert exact.objective * (1 - 1.1e-5) <= milp.objective <= exact.objective
        assert problem.check(milp.require_solution()).feasible
        assert milp.bound >= milp.objective


def test_best_placement_hands_whole_problems_to_solvers_that_take_them():
    """One call for any solver."""
    problem = PlacementProblem(np.ones((2, 3, 1, 5)), (2,), ("a",))
    assert best_placement(problem).objective == best_placement(problem, "highs").objective == 2.0


def test_no_time_means_no_solution_and_no_claim():
    """Out of time before the first stage count: neither a placement nor infeasibility may be claimed."""
    problem = PlacementProblem(np.ones((2, 3, 1, 5)), (2,), ("a",))
    for solver in ("dp", "highs"):
        solution = best_placement(problem, solver, options=SolveOptions(time_limit=0.0))
        assert solution.termination.reason is Reason.NO_SOLUTION_FOUND
        assert solution.answer is None
        assert math.isinf(solution.bound) or solution.bound >= 2.0
    assert solution.termination.limit is Limit.TIME


def test_more_stages_than_nodes_is_infeasible_not_an_error():
    """A loop over stage counts must not fall over at its end."""
    problem = PlacementProblem(np.ones((3, 3, 1, 5)), (2,), ("a",), stages=3)
    for solver in ("dp", "highs"):
        assert best_placement(problem, solver).termination.reason is Reason.INFEASIBLE


def test_a_pool_too_large_to_enumerate_is_refused_in_words():
    """Better a sentence than hours without one."""
    problem = PlacementProblem(np.ones((2, 3, 12, 5)), (6,) * 12, tuple("abcdefghijkl"))
    with pytest.raises(UnsupportedError, match="best_placement"):
        solve(problem, "dp")


def test_the_solver_is_found_by_name():
    """The entry point is how users reach it."""
    solver = DynamicProgrammeSolver()
    assert solver.probe().installed
    problem = PlacementProblem(np.ones((1, 3, 1, 3)), (1,), ("a",))
    assert solve(problem, solver.name).solver == "dp"
