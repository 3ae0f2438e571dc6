"""Re-solving from the last capacity prices: the same answer, over fewer templates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    AllocationState,
    SearchLimits,
    solve_allocation,
)
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.reductions.clip import clipped
from coralopt.allocation.reductions.prices import GRID, Near, near_templates
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.synthetic import synthetic_problem

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    problem=allocation_problems(max_templates=6),
    seed=st.integers(0, 1000),
    margin=st.sampled_from((0.0, 0.1, 1.0)),
    most=st.sampled_from((1, 3, 1000)),
)
def test_keeps_the_optimum_below_its_target(problem: AllocationProblem, seed: int, margin: float, most: int) -> None:
    """At any prices: the optimum stays if it is below the target, and nothing below the target is left if it is not."""
    prices = np.random.default_rng(seed).uniform(0, 3, problem.price.shape)
    near = near_templates(problem, prices, Near(margin, most))
    truth = best_by_enumeration(problem)
    if truth is not None:
        assert near.bound <= float(truth) + 1e-9
    kept = replace(
        problem,
        usage=problem.usage[near.mask],
        throughput=problem.throughput[near.mask],
        phase=problem.phase[near.mask],
        running=None if problem.running is None else problem.running[near.mask],
    )
    left = best_by_enumeration(kept)
    if truth is not None and truth < near.target:
        assert left == truth
    elif left is not None:
        assert left >= near.target


@settings(max_examples=60, deadline=None)
@given(problem=allocation_problems(max_templates=6), seed=st.integers(0, 1000))
def test_sweep_over_templates_gives_the_bound_over_columns(problem: AllocationProblem, seed: int) -> None:
    """Two codes for one bound: the sweep clips, prices and skips by itself, kept instances included."""
    tight = clipped(problem)
    prices = np.random.default_rng(seed).uniform(0, 3, problem.price.shape)
    other = lagrangian_bound(tight, Columns.of(tight), prices, grid=GRID)
    near = near_templates(problem, prices, Near(0.1, 1000))
    if np.isfinite(near.target):
        assert near.bound == pytest.approx(other.bound, rel=1e-9, abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(problem=allocation_problems(), seed=st.integers(0, 1000))
def test_state_changes_nothing_but_time(problem: AllocationProblem, seed: int) -> None:
    """Whatever prices it begins from, good or absurd, the answer is the proven optimum, or the same refusal."""
    state = AllocationState(np.random.default_rng(seed).uniform(0, 20, problem.price.shape))
    truth = best_by_enumeration(problem)
    if truth is None:
        with pytest.raises(InfeasibleError):
            solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(state=state))
        return
    result = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(state=state))
    assert result.cost_usd_h == pytest.approx(float(truth), abs=1e-6)
    assert result.bound_usd_h == pytest.approx(float(truth), abs=1e-5)


@settings(max_examples=80, deadline=None)
@given(problem=allocation_problems(max_templates=6), most=st.sampled_from((1, 3)))
def test_libraries_looked_at_from_prices_of_zero(problem: AllocationProblem, most: int) -> None:
    """What only large libraries go through, with room for next to nothing in a pass: still the proven optimum."""
    truth = best_by_enumeration(problem)
    limits = SearchLimits(many_templates=0, direct_columns=0, near_templates=most)
    if truth is None:
        with pytest.raises(InfeasibleError):
            solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(limits=limits))
        return
    result = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(limits=limits))
    assert result.cost_usd_h == pytest.approx(float(truth), abs=1e-6)
    assert result.bound_usd_h == pytest.approx(float(truth), abs=1e-5)


def test_next_epoch_looks_at_few_templates() -> None:
    """A small change of demand with what runs: most of the library is dropped in one pass, the gap is proven."""
    problem = synthetic_problem(max_nodes=4, phases=2, configurations=5, regions=2, supply="ample", nodes=10)
    options = SolveOptions(rel_gap=5e-3)
    first = solve_allocation(problem, options=options)
    assert first.state is not None
    running = np.zeros((len(problem.throughput), 2), dtype=np.int64)
    running[first.allocation.template, first.allocation.region] = first.allocation.count
    following = replace(problem, demand=problem.demand * 1.03, running=running)
    warm = solve_allocation(following, options=options, search=AllocationSearchOptions(state=first.state))
    cold = solve_allocation(following, options=options)
    assert warm.reductions[0].name == "prices"
    assert warm.reductions[0].after < warm.reductions[0].before
    assert warm.gap <= 5e-3
    assert warm.bound_usd_h <= cold.cost_usd_h * (1 + 1e-9)
    assert cold.bound_usd_h <= warm.cost_usd_h * (1 + 1e-9)


def test_state_of_another_pool_is_left_aside() -> None:
    """Prices of another shape cannot be used; they must not be an error either, regions come and go."""
    problem = synthetic_problem(max_nodes=2, phases=2, configurations=4, regions=2, nodes=20)
    result = solve_allocation(problem, search=AllocationSearchOptions(state=AllocationState(np.zeros((3, 4)))))
    assert all(step.name != "prices" for step in result.reductions)
