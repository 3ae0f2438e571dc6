"""Dantzig-Wolfe prices, coverings and their choice say the same as trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    SearchLimits,
    reduce_problem,
    solve_allocation,
)
from coralopt.allocation.bounds.decomposition import MasterState, best_prices
from coralopt.allocation.bounds.kernels import instance_weights
from coralopt.allocation.bounds.knapsack import CoveringTable, least_weights, raise_to_line
from coralopt.allocation.bounds.knapsack_kernel import BLOCK
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search.choice import ChoiceLimits, best_choice_among
from coralopt.allocation.search.coverings import all_near, allocation_of
from coralopt.allocation.supply import Segments
from coralopt.solving import SolveOptions
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.synthetic import synthetic_problem

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)
WITHOUT_END = ChoiceLimits(np.inf, 0.0, 10**6, np.inf)
#: Small problems go to the back end at once; this keeps them from it.
EVERY_STEP = AllocationSearchOptions(limits=SearchLimits(direct_columns=0))


@settings(max_examples=80, deadline=None)
@given(problem=allocation_problems())
def test_bound_at_the_best_prices_is_below_the_optimum(problem: AllocationProblem) -> None:
    """Prices from the decomposition are only as good as the bound made from them, which must hold, kept ones included."""
    small = reduce_problem(problem).problem
    columns = Columns.of(small)
    truth = best_by_enumeration(problem)
    if truth is None or not len(columns):
        return
    every = np.arange(len(columns))
    found = best_prices(PricingProblem(small, columns, every), MasterState(np.zeros(small.price.shape)), "highs")
    bound = lagrangian_bound(small, columns, found.state.capacity_prices).bound
    assert (found.state.capacity_prices >= 0).all()
    assert bound <= float(truth) + 1e-9
    assert found.bound <= float(truth) * (1 + 1e-9) + 1e-9
    # The coarse grid loses a little to the fine one, never the other way round.
    assert found.bound <= bound + 1e-6 * abs(bound)
    # A new instance forced in never lowers the bound, and of every phase some instance does not raise it: one of the
    # covering behind the bound. (A kept one may lower it: beside it all running copies count as left.)
    slack = 1e-6 * (1 + abs(found.bound))
    assert (found.column_bounds[~columns.kept] >= found.bound - slack).all()
    for phase in np.unique(columns.phase):
        assert found.column_bounds[columns.phase == phase].min() <= found.bound + slack


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(), slack=st.sampled_from((0.0, 1.0, 5.0, 50.0)), seed=st.integers(0, 1000))
def test_near_coverings_hold_every_cheap_enough_allocation(problem: AllocationProblem, slack: float, seed: int) -> None:
    """The claim behind the proof: the best choice of coverings is the optimum, or the optimum costs more than L + g."""
    small = reduce_problem(problem).problem
    columns = Columns.of(small)
    truth = best_by_enumeration(problem)
    if truth is None or not (small.demand > 0).any():
        return
    prices = np.random.default_rng(seed).uniform(0, 2, small.price.shape)
    root = lagrangian_bound(small, columns, prices, grid=1000)
    coverings = all_near(small, columns, root, slack, 100_000)
    assert coverings is not None
    if truth > root.bound + slack:
        return
    nodes = small.availability.ravel().astype(float)
    found = best_choice_among(coverings, nodes, prices.ravel(), WITHOUT_END, small.segments)
    assert found.chosen is not None
    check = small.check(allocation_of(columns, coverings, found.chosen))
    assert check.feasible
    assert check.objective == pytest.approx(float(truth), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(problem=allocation_problems(max_templates=3, max_phases=1), seed=st.integers(0, 1000))
def test_near_coverings_are_those_of_brute_force(problem: AllocationProblem, seed: int) -> None:
    """Every covering that fits and is light enough is listed, or one that needs no more of anything and costs no more."""
    small = reduce_problem(problem).problem
    columns = Columns.of(small)
    if len(columns) == 0 or len(columns) > 4 or not (small.demand > 0).any():
        return
    prices = np.random.default_rng(seed).uniform(0, 2, small.price.shape)
    root = lagrangian_bound(small, columns, prices, grid=1000)
    slack = 5.0
    coverings = all_near(small, columns, root, slack, 100_000)
    assert coverings is not None
    for counts in product(range(4), repeat=len(columns)):
        n = np.array(counts)
        use = np.zeros(small.price.shape)
        np.add.at(use, columns.region, small.usage[columns.template] * n[:, None])
        speed = float(small.throughput[columns.template] @ n)
        weight = float(root.weight @ n)
        if (n > columns.upper).any() or (use > small.availability).any() or speed < small.demand[0]:
            continue
        if weight <= root.whole[0] + slack:
            cost = float(columns.cost @ n)
            assert ((coverings.use <= use.ravel()).all(axis=1) & (coverings.cost <= cost + 1e-9)).any()


def test_a_demand_met_but_for_rounding_is_chosen_again() -> None:
    """3 x 0.1 misses the demand by two billionths, which solvers do not see; the covering may bound, not answer."""
    problem = AllocationProblem(
        usage=np.array([[1], [2]]),
        throughput=np.array([0.1, 0.15]),
        phase=np.array([0, 0]),
        demand=np.array([0.3 * (1 + 2e-9)]),
        availability=np.array([[6]]),
        price=np.array([[1.0]]),
        running=None,
        penalty=0.0,
        phase_names=("m/decode",),
        region_names=("r",),
        configuration_names=("c",),
    )
    result = solve_allocation(problem, options=EXACT, search=EVERY_STEP)
    assert result.cost_usd_h == 4.0
    assert result.bound_usd_h <= 4.0


@settings(max_examples=60, deadline=None)
@given(problem=allocation_problems())
def test_whole_chain_with_coverings_is_exact(problem: AllocationProblem) -> None:
    """Small problems go to the back end at once; forced through the coverings they must end at the same optimum."""
    truth = best_by_enumeration(problem)
    if truth is None:
        return
    result = solve_allocation(problem, options=EXACT, search=EVERY_STEP)
    assert result.cost_usd_h == pytest.approx(float(truth), abs=1e-6)
    assert result.bound_usd_h == pytest.approx(float(truth), abs=1e-5)


def test_scarce_supply_is_proven() -> None:
    """What the linear bound alone leaves open for minutes closes at once."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=6, regions=2, supply="scarce", nodes=20, seed=3)
    problem = replace(problem, availability=problem.availability + 1)
    result = solve_allocation(problem, options=SolveOptions(rel_gap=1e-3))
    assert result.gap <= 1e-3
    assert "coverings" in result.seconds
    assert result.bound_usd_h > result.lagrangian_usd_h


@settings(max_examples=100, deadline=None)
@given(
    items=st.lists(
        st.tuples(st.integers(1, 12) | st.integers(BLOCK - 1, 3 * BLOCK), st.integers(0, 40)), min_size=1, max_size=8
    ),
    grid=st.integers(3 * BLOCK, 20 * BLOCK),
)
def test_covering_table_against_the_plain_recursion(items: list[tuple[int, int]], grid: int) -> None:
    """Blocks and items that fall out on the way change nothing; what is taken last leads to a covering of that weight."""
    steps, weight = np.array([size for size, _ in items]), np.array([float(cost) / 4 for _, cost in items])
    table = CoveringTable.of(steps, weight, grid)
    plain = [0.0]
    for amount in range(1, grid + 1):
        plain.append(min(cost + plain[max(0, amount - size)] for size, cost in zip(steps, weight, strict=True)))
    assert table.least.tolist() == plain == least_weights(steps, weight, grid).tolist()
    for amount in (0, 1, grid // 2, grid):
        members = table.members(amount)
        assert steps[members].sum() >= amount
        assert weight[members].sum() == plain[amount]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=12), seed=st.integers(0, 99)
)
def test_weights_of_instances_are_those_of_their_nodes(rows: list[list[int]], seed: int) -> None:
    """In any order of the rows, with rows that serve nothing between them, and numbers of nodes that no region has."""
    rng, usage = np.random.default_rng(seed), np.array(rows, dtype=np.int16)
    nodes = np.where(rng.random((4, 4, 2)) < 0.8, rng.integers(0, 50, (4, 4, 2)), np.inf)
    serves, weight = rng.random(len(rows)) < 0.8, np.zeros((len(rows), 2))
    instance_weights(usage, serves, nodes, weight)
    for row, own, served in zip(rows, weight, serves, strict=True):
        plain = sum((nodes[c, count] for c, count in enumerate(row) if count), np.zeros(2))
        assert own.tolist() == (plain if served else np.full(2, np.inf)).tolist()


def test_no_amount_is_cheaper_than_its_share() -> None:
    """The line ends at what the whole costs in fractions, by hand; it lifts nothing above that."""
    table = np.array([0.0, 1.0, 9.0, 9.0, 9.0])
    raise_to_line(table, 8.0)
    np.testing.assert_allclose(table, [0.0, 2.0, 9.0, 9.0, 9.0])
    short = np.zeros(5)
    raise_to_line(short, 8.0)
    np.testing.assert_allclose(short, [0.0, 2.0, 4.0, 6.0, 8.0])
    assert short[-1] <= 8.0


def test_worth_of_dearer_nodes_by_hand() -> None:
    """Two nodes at the lowest price, three at 0.5 USD/h more: worth 2 x 0.8 and 3 x 0.3 at a capacity price of 0.8."""
    pieces = Segments(np.array([[1.0]]), np.array([[2]]), np.array([0]), np.array([3]), np.array([0.5]))
    assert pieces.worth(np.array([[0.8]]), np.ones(1)) == pytest.approx(2.5)
    assert pieces.worth(np.array([[0.4]]), np.ones(1)) == pytest.approx(0.8)
