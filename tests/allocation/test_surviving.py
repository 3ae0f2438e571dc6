"""What serves a model phase and survives the loss of a region: bounds against enumeration of amounts and of counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_problems import best_operated_by_enumeration, operated_problems

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    SearchLimits,
    SideConstraint,
    solve_allocation,
)
from coralopt.allocation.bounds.coverings import WeightedColumns
from coralopt.allocation.bounds.decomposition import MasterState, best_prices
from coralopt.allocation.bounds.fitting import Effort, FittingSearch
from coralopt.allocation.bounds.knapsack import least_weights
from coralopt.allocation.bounds.knapsack_kernel import completed_for
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.bounds.spared import completions_of, least_spared
from coralopt.allocation.bounds.surviving import surviving_cover
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.search.coverings import all_near
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions
from coralopt.testing.instances import allocation_instance
from coralopt.testing.synthetic import synthetic_problem


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    regions=st.sampled_from((2, 3, 4)),
    edges=st.sampled_from((3, 2_000)),
    paired=st.booleans(),
    halved=st.sampled_from((2, 40)),
    limited=st.booleans(),
)
def test_least_weight_is_that_of_all_amounts(
    seed: int, regions: int, edges: int, paired: bool, halved: int, limited: bool
) -> None:
    """Over every combination of amounts; with few edges, never above it. So is what stands beside one more instance."""
    rng, grid = np.random.default_rng(seed), 12 if regions < 4 else 6
    sizes = [rng.integers(1, grid + 1, int(rng.integers(0, 4))) for _ in range(regions)]
    weights = [rng.uniform(0.0, 9.0, len(some)) for some in sizes]
    tables = [least_weights(some, own, grid) for some, own in zip(sizes, weights, strict=True)]
    if limited:
        # Of instances that run already there are so many.
        for table in tables:
            table[int(rng.integers(0, grid + 1)) + 1 :] = np.inf
    needed = rng.integers(0, grid + 1, regions) if rng.random() < 0.5 else np.full(regions, rng.integers(0, grid + 1))

    def least(amounts: np.ndarray, own: list[np.ndarray]) -> float:
        weight = sum(table[amounts[:, r]] for r, table in enumerate(own))
        total = amounts.sum(axis=1)
        fits = (total >= grid) & (total[:, None] - amounts >= needed).all(axis=1)
        return float(np.min(weight[fits], initial=np.inf))

    every = np.array(list(product(range(grid + 1), repeat=regions)))
    truth = least(every, tables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coralopt.allocation.bounds.surviving.EDGES", edges)
        patch.setattr("coralopt.allocation.bounds.surviving.STAIRS", edges)
        patch.setattr("coralopt.allocation.bounds.surviving.STEPS", min(grid, 2 * edges))
        patch.setattr("coralopt.allocation.bounds.surviving.PAIRED", 3 if paired else 1)
        patch.setattr("coralopt.allocation.bounds.surviving.HALVED", halved)
        cover = surviving_cover(tables, needed)
    assert cover.least <= truth + 1e-9
    assert np.isfinite(cover.limit) == np.isfinite(truth)
    if edges == 2_000 and np.isfinite(cover.limit) and halved == 40:
        assert cover.least == pytest.approx(truth)
    for r in range(regions):
        for size, weight in zip(sizes[r].tolist(), weights[r].tolist(), strict=True):
            forced = list(tables)
            beside = tables[r][np.maximum(np.arange(grid + 1) - size, 0)]
            forced[r] = np.where(np.isfinite(tables[r]), weight + beside, np.inf)
            bound = float(cover.with_one(r, np.array([size]), np.array([weight]))[0])
            assert bound <= least(every, forced) + 1e-9
            # One more of a limited number may be cheaper than what there is.
            assert bound >= min(cover.least, cover.limit) - 1e-9 or edges == 3 or limited


@pytest.mark.parametrize(
    ("most", "needed", "least"),
    [((11, 4), 4, 12.0), ((6, 6, 0), 6, 12.0), ((9, 3, 0, 3), 6, 12.0), ((6, 6, 6, 0), 12, 18.0)],
)
def test_regions_that_give_only_so_much_may_still_survive_together(
    most: tuple[int, ...], needed: int, least: float
) -> None:
    """Where nothing new may be started, neither equal amounts of all regions nor two of them need be there."""
    tables = [np.where(np.arange(13) <= amount, np.arange(13.0), np.inf) for amount in most]
    assert surviving_cover(tables, np.full(len(most), needed)).least == pytest.approx(least)
    assert surviving_cover(tables, np.full(len(most), sum(most) - max(most) + 1)).least == np.inf


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from((0.25, 0.5, 0.75, 1.0)))
def test_what_survives_an_instance_is_that_of_all_counts(seed: int, share: float) -> None:
    """Over every number of every item, alone and beside one more of any size."""
    rng, grid = np.random.default_rng(seed), 8
    steps = rng.integers(1, grid + 1, int(rng.integers(1, 4)))
    weight = rng.integers(1, 30, len(steps)) / 4.0
    counts = np.array(list(product(range(2 * grid + 1), repeat=len(steps))))

    def least(forced: int) -> float:
        largest = np.maximum(np.where(counts > 0, steps, 0).max(axis=1), forced)
        total = counts @ steps + forced
        fits = (total >= grid) & (total - largest >= int(share * grid))
        return float(np.min((counts @ weight)[fits]))

    cover = least_spared(steps, weight, grid, share)
    assert cover.least == pytest.approx(least(0))
    for size in range(1, grid + 1):
        assert cover.beside[size] == pytest.approx(least(size))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from((0.25, 0.5, 0.75, 1.0)))
def test_what_completes_a_partial_covering_is_that_of_all_counts(seed: int, share: float) -> None:
    """Over every number of every item, whether or not the largest one is there already."""
    rng, grid = np.random.default_rng(seed), 8
    steps = rng.integers(1, grid + 1, int(rng.integers(1, 4)))
    weight = rng.integers(1, 30, len(steps)) / 4.0
    counts = np.array(list(product(range(2 * grid + 1), repeat=len(steps))))
    completions = completions_of(steps, weight, grid, share)
    for partial in rng.permutation(counts[1:])[:20]:
        given, own = int(partial @ steps), int(np.max(steps[partial > 0], initial=0))
        total = given + counts @ steps
        largest = np.maximum(np.where(counts > 0, steps, 0).max(axis=1), own)
        truth = np.min((counts @ weight)[(total >= grid) & (total - largest >= int(share * grid))])
        missing = grid - given
        lacking = max(missing, share * grid + own - given)
        # A hair less than whole steps, which are rounded up.
        largest_share = own / grid * (1 - 1e-9)
        assert completed_for(completions, missing / grid, lacking / grid, largest_share) == pytest.approx(truth)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from((0.0, 0.5, 1.0)))
def test_what_replaces_a_covering_survives_as_well(seed: int, share: float) -> None:
    """Many instances on the same nodes: within any pool, lists and searches have the cheapest of all counts that survive."""
    rng = np.random.default_rng(seed)
    usage = rng.integers(0, 3, (4, 2))
    usage[usage.sum(axis=1) == 0, 0] = 1
    problem = replace(
        allocation_instance(0),
        usage=usage.astype(np.int16),
        throughput=(usage.sum(axis=1) * 4 + rng.integers(-2, 3, 4)).clip(1) / 4.0,
        phase=np.zeros(4, dtype=np.int32),
        demand=rng.integers(8, 25, 1) / 4.0,
        availability=rng.integers(2, 6, (1, 2)),
        price=rng.integers(1, 9, (1, 2)) / 4.0,
        running=None,
        penalty=0.0,
        phase_names=("model/decode",),
        region_names=("region",),
        configuration_names=("1xA", "1xB"),
        side_constraints=(SideConstraint("lost", "least", "tokens_s", share, (0,), one_lost=True),) if share else (),
    )
    counts = np.array(list(product(range(6), repeat=4)))
    total = counts @ problem.throughput
    largest = np.where(counts > 0, problem.throughput, 0.0).max(axis=1) if share else 0.0
    counts = counts[(total >= problem.demand[0]) & (total - largest >= share * problem.demand[0])]
    use, cost = counts @ usage, counts @ usage @ problem.price[0]
    columns = Columns.of(problem)
    root = lagrangian_bound(problem, columns, np.zeros((1, 2)), 1000)
    if not len(columns) or not (use <= problem.availability[0]).all(axis=1).any():
        return
    listed = all_near(problem, columns, root, 100.0, 10**5)
    assert listed is not None
    pools = np.array(list(product(*(range(most + 1) for most in problem.availability[0].tolist()))))
    truth = np.array([cost[(use <= pool).all(axis=1)].min(initial=np.inf) for pool in pools])
    for pool, least in zip(pools, truth.tolist(), strict=True):
        assert listed.cost[(listed.use <= pool).all(axis=1)].min(initial=np.inf) == pytest.approx(least)
    every = np.arange(len(columns))
    near, over = WeightedColumns(every, root.weight, root.least, root.whole), root.column_bounds - root.bound
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coralopt.allocation.bounds.fitting.LAST", 100.0)
        for some in rng.permutation(np.flatnonzero(np.isfinite(truth)))[:8].tolist():
            within = replace(problem, availability=pools[[some]])
            search = FittingSearch(within, columns, every, effort=Effort(20_000, 1_000_000))
            prices = search.part_prices(root.weight, np.zeros(len(problem.side_constraints)))
            assert search.lightest(0, near, over, prices).least == pytest.approx(float(truth[some]), abs=1e-6)


def test_where_nothing_fits_prices_say_so_and_stay_small() -> None:
    """Prices without end would be no beginning for the columns that make the rest fit."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=6, regions=2, supply="scarce", nodes=40)
    problem = replace(problem, availability=np.minimum(problem.availability, 1))
    columns = Columns.of(problem)
    parts = best_prices(
        PricingProblem(problem, columns, np.arange(len(columns))), MasterState(np.zeros_like(problem.price)), "highs"
    )
    pool = float((problem.availability * np.nan_to_num(problem.price)).sum())
    assert parts.bound > pool
    assert parts.state.capacity_prices.max() < 1e5 * float(columns.cost.max())


@settings(max_examples=100, deadline=None)
@given(
    problem=operated_problems(("survive", "spare", "replicas", "budget", "region", "starts"))
    | operated_problems(("shortfall", "cases", "replicas", "budget", "supply")),
    seed=st.integers(0, 1000),
    gap=st.sampled_from((0.0, 0.05)),
)
def test_bounds_and_answers_are_those_of_enumeration(problem: AllocationProblem, seed: int, gap: float) -> None:
    """At any prices no bound, and no bound of a column of the best allocation, is above its cost; the search finds it."""
    hold_against_enumeration(problem, seed, gap)


@settings(max_examples=60, deadline=None)
@given(
    problem=operated_problems(("survive", "replicas", "budget", "region")),
    seed=st.integers(0, 1000),
    gap=st.sampled_from((0.0, 0.05)),
)
def test_so_are_those_for_many_regions(problem: AllocationProblem, seed: int, gap: float) -> None:
    """Two and three regions by what holds for any number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coralopt.allocation.bounds.surviving.PAIRED", 1)
        # Nothing is remembered from before.
        hold_against_enumeration(replace(problem), seed, gap)


def hold_against_enumeration(problem: AllocationProblem, seed: int, gap: float) -> None:
    """The same of one problem, with a loss of its own where nothing asks for any."""
    asked = problem.unmet_price is not None or any(row.measure == "tokens_s" for row in problem.side_constraints)
    if len(problem.region_names) > 1 and not asked:
        lost = SideConstraint("lost", "least", "tokens_s", 0.5, (0,), tuple(range(1, len(problem.region_names))))
        problem = replace(problem, side_constraints=(*problem.side_constraints, lost))
    truth = best_operated_by_enumeration(problem)
    limits = AllocationSearchOptions(limits=SearchLimits(direct_columns=0, many_instances=0))
    options = SolveOptions(rel_gap=gap, abs_gap=1e-7, time_limit=30.0)
    if truth is None:
        with pytest.raises(InfeasibleError):
            solve_allocation(problem, options=options, search=limits)
        return
    result = solve_allocation(problem, options=options, search=limits)
    limit = float(truth) * (1 + 1e-9) + 1e-9
    assert result.bound_usd_h <= limit
    assert float(truth) - 1e-6 <= result.cost_usd_h <= float(truth) * (1 + gap) / (1 - gap) + 1e-6
    small = reduce_problem(problem).problem
    if not (small.demand > 0).any():
        return
    columns = Columns.of(small)
    prices = np.random.default_rng(seed).uniform(0, 3, small.price.shape)
    root = lagrangian_bound(small, columns, prices, 1000)
    assert root.bound <= limit
    counts = columns.counts(solve_allocation(small, options=SolveOptions(rel_gap=0.0, abs_gap=1e-9)).allocation)
    assert (root.column_bounds[counts > 0] <= limit).all()
    if small.adds_up:
        parts = best_prices(PricingProblem(small, columns, np.arange(len(columns))), MasterState(prices), "highs")
        assert parts.bound <= limit
        assert (parts.column_bounds[counts > 0] <= limit).all()


@pytest.mark.parametrize(("regions", "seed"), [(4, 0), (4, 1), (5, 2), (6, 3)])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_loss_of_one_of_many_regions(regions: int, seed: int, share: float) -> None:
    """Held against the whole integer programme; few columns are not handed over, so coverings prove it."""
    problem = synthetic_problem(
        max_nodes=3, phases=2, configurations=4, regions=regions, supply="ample", nodes=20, seed=seed
    )
    phases, every = range(len(problem.demand)), range(regions)
    rows = tuple(
        SideConstraint(f"{p} without {lost}", "least", "tokens_s", share / (1 + p), (p,), tuple(set(every) - {lost}))
        for p in phases
        for lost in every
    )
    problem = replace(problem, side_constraints=rows)
    assert problem.adds_up
    options = SolveOptions(rel_gap=1e-3, time_limit=60.0)
    limits = AllocationSearchOptions(limits=SearchLimits(direct_columns=0, loss_columns=0))
    result = solve_allocation(problem, options=options, search=limits)
    truth = solve_allocation(problem, options=options, search=AllocationSearchOptions(reductions=False))
    assert result.gap <= 1e-3
    assert result.bound_usd_h <= truth.cost_usd_h * (1 + 1e-9)
    assert truth.bound_usd_h <= result.cost_usd_h * (1 + 1e-9)
