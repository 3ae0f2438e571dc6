"""What coverings that fit weigh at least: bounds hold against trying everything, and against an integer programme."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from operator_problems import (
    allocations_within,
    best_operated_by_enumeration,
    countable_cells,
    operated_cost,
    operated_problems,
)
from scipy.sparse import csc_array
from test_cuts import random_cuts, with_three_kinds

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    SearchLimits,
    SideConstraint,
    reduce_problem,
    solve_allocation,
)
from coralopt.allocation.bounds import fitting, regions_kernel
from coralopt.allocation.bounds.coverings import NodeLimit, WeightedColumns, available, side_adds
from coralopt.allocation.bounds.cuts import CutRows
from coralopt.allocation.bounds.decomposition import MasterState, best_prices
from coralopt.allocation.bounds.fitting import Effort, FittingPricing, FittingSearch, knows_fitting, with_fitting
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.bounds.own_prices import OwnItems, OwnPrices
from coralopt.allocation.bounds.parts import PartPrices, PartRange, RegionParts
from coralopt.allocation.bounds.pricing import Covering, Multipliers
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search.choice import ChoiceLimits, best_choice_among
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.coverings import all_near, allocation_of
from coralopt.allocation.search.decomposition import raise_bound
from coralopt.allocation.search.solve import _root_bound
from coralopt.allocation.search.strategy import _tighten
from coralopt.allocation.side_constraints import open_constraints
from coralopt.errors import InfeasibleError
from coralopt.solving import MilpMatrix, SolveOptions, get_backend, solve_matrix
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.instances import allocation_instance

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)
EVERY_STEP = AllocationSearchOptions(limits=SearchLimits(direct_columns=0))
WITHOUT_END = ChoiceLimits(np.inf, 0.0, 10**6, np.inf)
#: What the bound at prices knows whole, and rows of what coverings add up to.
LISTED = ("supply", "budget", "region", "model", "replicas", "spare", "starts", "ban", "quota", "instances", "loads")
#: The same where coverings are parts of regions.
PARTS = tuple(kind for kind in LISTED if kind not in ("replicas", "spare"))


@pytest.fixture(autouse=True)
def _look_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any prices most of a tiny problem is far above the covering knapsack's weight."""
    monkeypatch.setattr(fitting, "LAST", 20.0)


def with_losses(problem: AllocationProblem, share: float) -> AllocationProblem:
    """With so large a share of every demand left whichever instance is lost; 0 for none."""
    lost = (SideConstraint(f"{p}", "least", "tokens_s", share, (p,), one_lost=True) for p in range(problem.shape[3]))
    return replace(problem, side_constraints=tuple(lost) if share else ())


def lightest_by_integer_programme(
    problem: AllocationProblem, columns: Columns, mine: np.ndarray, weight: np.ndarray
) -> float:
    """Least weight of whole instances of a phase that serve it within the nodes, whichever is lost where any may be.

    With L the largest throughput, instances of at most L give the share that must be left, and L.
    """
    phase = columns.phase[mine[0]]
    speed, demand = problem.throughput[columns.template[mine]], float(problem.demand[phase])
    spared = float(problem.spared[phase]) * demand
    if not spared:
        return least_weight(problem, columns, mine, weight[mine], demand)
    programmes = ((mine[speed <= most], max(demand, spared + most)) for most in np.unique(speed).tolist())
    return min(least_weight(problem, columns, some, weight[some], need) for some, need in programmes)


def least_weight(problem: AllocationProblem, columns: Columns, mine: np.ndarray, w: np.ndarray, demand: float) -> float:
    """Least weight of whole instances of these columns that give so many tokens/s within the nodes."""
    regions, kinds = problem.price.shape
    nodes = np.zeros((len(mine), regions, kinds))
    nodes[np.arange(len(mine)), columns.region[mine]] = problem.usage[columns.template[mine]]
    speed = problem.throughput[columns.template[mine]]
    a = np.vstack([nodes.reshape(len(mine), -1).T, speed])
    matrix = MilpMatrix(
        c=w,
        offset=0.0,
        a=csc_array(a),
        row_lower=np.append(np.full(regions * kinds, -np.inf), demand),
        row_upper=np.append(problem.availability.ravel().astype(float), np.inf),
        lower=np.zeros(len(mine)),
        upper=np.where(columns.kept[mine], columns.upper[mine], np.inf).astype(float),
        integer=np.ones(len(mine), dtype=np.bool_),
        maximize=False,
        column_names=[f"x{k}" for k in range(len(mine))],
        row_names=[f"row{k}" for k in range(len(a))],
    )
    result = solve_matrix(matrix, "highs", EXACT)
    return math.inf if result.x is None else float(w @ result.x)


@settings(max_examples=100, deadline=None)
@given(
    problem=allocation_problems(max_templates=4),
    seed=st.integers(0, 10**6),
    most=st.sampled_from((4, 40, 100_000)),
    share=st.sampled_from((0.0, 0.5, 1.0)),
)
def test_a_phase_weighs_what_an_integer_programme_says(
    problem: AllocationProblem, seed: int, most: int, share: float
) -> None:
    """Exactly where the search may end, and never more where it may not; where an instance may be lost, too."""
    problem = with_losses(with_three_kinds(problem, seed), share)
    columns = Columns.of(problem)
    prices = np.random.default_rng(seed).uniform(0, 2, problem.price.shape)
    root = lagrangian_bound(problem, columns, prices, grid=1000)
    assume(np.isfinite(root.bound))
    every = np.arange(len(columns))
    near, over = WeightedColumns(every, root.weight, root.least, root.whole), root.column_bounds - root.bound
    search = FittingSearch(problem, columns, every, effort=Effort(most, 1_000))
    at = search.part_prices(root.weight, np.zeros(len(open_constraints(problem))))
    for phase in np.flatnonzero(problem.demand > 0).tolist():
        mine = np.flatnonzero(columns.phase == phase)
        truth = lightest_by_integer_programme(problem, columns, mine, root.weight)
        found = search.lightest(phase, near, over, at)
        assert found.least <= truth + 1e-6
        assert found.least >= root.whole[phase]
        for covering in found.coverings:
            used = np.zeros(problem.price.shape)
            np.add.at(used, columns.region[covering], problem.usage[columns.template[covering]])
            assert (used <= problem.availability).all()
            speed = problem.throughput[columns.template[covering]]
            assert speed.sum() >= problem.demand[phase] - 1e-6
            assert share == 0 or speed.sum() - speed.max() >= share * problem.demand[phase] - 1e-6
        if most > 10**4 and np.isfinite(truth):
            assert found.least == pytest.approx(truth, abs=1e-6)
            assert root.weight[found.coverings[0]].sum() == pytest.approx(truth, abs=1e-6)


def weight_with_cuts(
    problem: AllocationProblem, columns: Columns, prices: tuple[np.ndarray, np.ndarray], covering: np.ndarray
) -> float:
    """What a covering weighs, node by node and part by part."""
    capacity, of_cuts = prices
    cost, use = 0.0, np.zeros(problem.price.shape)
    for k in covering.tolist():
        cost += columns.cost[k] + float(problem.usage[columns.template[k]] @ capacity[columns.region[k]])
        use[columns.region[k]] += problem.usage[columns.template[k]]
    for cut, price in zip(problem.side_constraints, of_cuts.tolist(), strict=True):
        (region,) = cut.regions
        total = int(sum(w * use[region, c] for c, w in zip(cut.configurations, cut.gpus, strict=True)))
        parts, over = divmod(total, cut.divisor)
        cost += price * ((cut.divisor - cut.remainder) * parts + max(0, over - cut.remainder))
    return cost


def lightest_by_enumeration(
    problem: AllocationProblem, columns: Columns, prices: tuple[np.ndarray, np.ndarray], limit: NodeLimit
) -> float:
    """Least weight of a covering of a phase within the nodes and the limit: every multiset of instances is tried."""
    mine = np.flatnonzero(columns.phase == limit.phase)
    room = problem.availability.astype(float).ravel().copy()
    room[limit.cells[0]] = min(room[limit.cells[0]], limit.most)
    rows = np.zeros((len(mine), len(room)))
    for k, column in enumerate(mine.tolist()):
        rows.reshape(len(mine), *problem.price.shape)[k, columns.region[column]] = problem.usage[
            columns.template[column]
        ]
    speed, demand = problem.throughput[columns.template[mine]], float(problem.demand[limit.phase])
    best, stack = math.inf, [(0, room, 0.0, [])]
    while stack:
        k, left, served, members = stack.pop()
        if served >= demand * (1 - 1e-9):
            best = min(best, weight_with_cuts(problem, columns, prices, np.array(members, dtype=np.int64)))
            continue
        if k == len(mine):
            continue
        copies = 0
        while (left >= 0).all() and copies <= (columns.upper[mine[k]] if columns.kept[mine[k]] else 99):
            stack.append((k + 1, left, served, [*members, *[int(mine[k])] * copies]))
            left, served, copies = left - rows[k], served + speed[k], copies + 1
            if served - speed[k] >= demand * (1 - 1e-9):
                break
    return best


@settings(max_examples=200, deadline=None)
@given(
    problem=allocation_problems(max_templates=4),
    seed=st.integers(0, 10**6),
    most=st.sampled_from((3, 30, 100_000)),
    known=st.booleans(),
)
def test_parts_of_regions_weigh_what_trying_everything_says(
    problem: AllocationProblem, seed: int, most: int, known: bool
) -> None:
    """With cuts that count whole parts, kept instances and a limit on nodes; whether a covering is known already or not."""
    problem, rng = with_three_kinds(problem, seed), np.random.default_rng(seed)
    columns, prices = Columns.of(problem), rng.uniform(0, 2, problem.price.shape)
    root = lagrangian_bound(problem, columns, prices, grid=1000)
    assume(np.isfinite(root.bound))
    problem = replace(problem, side_constraints=tuple(random_cuts(problem, seed)))
    of_cuts, every = rng.uniform(0, 2, len(problem.side_constraints)), np.arange(len(columns))
    counted = side_adds(problem, columns, every)
    weight = root.weight + counted @ of_cuts
    at = PartPrices(weight, CutRows.of(problem.side_constraints, problem.price.shape), of_cuts, counted @ of_cuts)
    for phase in np.flatnonzero(problem.demand > 0).tolist():
        cell = int(rng.integers(problem.price.size))
        limit = NodeLimit(phase, (cell,), 0, int(rng.integers(0, problem.availability.ravel()[cell] + 1)))
        truth = lightest_by_enumeration(problem, columns, (prices, of_cuts), limit)
        ceiling = truth if known else math.inf
        within = PartRange(root.least[phase][0], float(root.whole[phase]), ceiling, 1_000_000, most)
        parts = RegionParts(problem, columns, every, [limit])
        for _ in range(2):
            # The second time begins with the phase's own prices of the first.
            with mock.patch.object(regions_kernel, "put_together", wraps=regions_kernel.put_together) as looks:
                lightest = parts.lightest(phase, at, within)
            # Where nothing fits, that is seen long before all floating-point numbers have been limits.
            assert looks.call_count < 60
            assert lightest.weight <= truth * (1 + 1e-8) + 1e-8
            if most > 10**4:
                assert lightest.weight == pytest.approx(truth)
                assert bool(lightest.members) == math.isfinite(truth)
            for k, covering in enumerate(lightest.members):
                weighs = weight_with_cuts(problem, columns, (prices, of_cuts), covering)
                assert weighs == pytest.approx(lightest.weight) if k == 0 else weighs >= lightest.weight - 1e-9
                assert problem.throughput[columns.template[covering]].sum() >= problem.demand[phase] * (1 - 1e-8)
                used = np.zeros(problem.price.shape)
                np.add.at(used, columns.region[covering], problem.usage[columns.template[covering]])
                assert (used <= problem.availability).all()
                assert used.ravel()[cell] <= limit.most
                copies = np.bincount(covering, minlength=len(columns))
                assert (copies <= np.where(columns.kept, columns.upper, 99)).all()


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(max_templates=4), seed=st.integers(0, 10**6))
def test_own_prices_bound_what_fits(problem: AllocationProblem, seed: int) -> None:
    """Whatever prices a phase pays by itself; and raising them lowers nothing."""
    problem, rng = replace(with_three_kinds(problem, seed), running=None), np.random.default_rng(seed)
    columns, prices = Columns.of(problem), rng.uniform(0, 2, problem.price.shape)
    root = lagrangian_bound(problem, columns, prices, grid=1000)
    assume(np.isfinite(root.bound))
    for phase in np.flatnonzero(problem.demand > 0).tolist():
        mine = np.flatnonzero(columns.phase == phase)
        usage = problem.usage[columns.template[mine]].astype(float)
        cell = columns.region[mine][:, None] * usage.shape[1] + np.arange(usage.shape[1])
        room, speed = problem.availability.astype(float).ravel(), problem.throughput[columns.template[mine]]
        items = OwnItems(speed.astype(float), np.where(usage > 0, cell, -1), usage, room)
        own = OwnPrices(items, float(problem.demand[phase]))
        truth = lightest_by_integer_programme(problem, columns, mine, root.weight)
        before = own.cover(root.weight[mine], 5_000)
        after = own.raised(root.weight[mine], 5_000, 20)
        assert before.floor <= truth + 1e-6
        assert after.floor <= truth + 1e-6
        assert after.floor >= before.floor - 5e-3 * (1 + abs(before.floor))
        # Of partial coverings, too: a covering pays for all there is at most.
        assert (after.paid >= 0).all()
        assert after.worth >= 0


def random_coverings(
    problem: AllocationProblem, columns: Columns, rng: np.random.Generator, many: int
) -> tuple[Covering, ...]:
    """Some of every phase, of one to three columns; what they serve may be too little, or what they use too much."""
    coverings, cells = [], problem.price.size
    adds = side_adds(problem, columns, np.arange(len(columns)))
    for phase in np.unique(columns.phase).tolist():
        mine = np.flatnonzero(columns.phase == phase)
        for _ in range(many):
            some = np.sort(rng.choice(mine, min(len(mine), int(rng.integers(1, 4))), replace=False))
            counts = rng.integers(1, 3, len(some))
            use = np.zeros(cells + adds.shape[1])
            for k, count in zip(some.tolist(), counts.tolist(), strict=True):
                nodes = np.zeros(problem.price.shape)
                nodes[columns.region[k]] = problem.usage[columns.template[k]]
                use += count * np.concatenate([nodes.ravel(), adds[k]])
            members = tuple(zip(some.tolist(), counts.tolist(), strict=True))
            coverings.append(Covering(phase, members, 0.0, use))
    return tuple(coverings)


@pytest.mark.parametrize("kinds", [LISTED, PARTS])
@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 10**6),
    cut=st.booleans(),
    last=st.sampled_from((0.03, 20.0)),
    many=st.sampled_from((0, 2, 20)),
)
def test_bounds_of_fitting_coverings_hold_for_every_allocation(
    kinds: tuple[str, ...], data: st.DataObject, seed: int, cut: bool, last: float, many: int
) -> None:
    """At any prices, of cuts too: no allocation costs less than the bound, or than that of any of its columns.

    However near the bound columns are that a search looks at: what it leaves out may be what fits. And whatever coverings
    are known, some of which miss the demand.
    """
    problem = reduce_problem(data.draw(operated_problems(kinds=kinds))).problem
    if not problem.adds_up or not knows_fitting(problem) or not len(problem.throughput):
        return
    columns, rng = Columns.of(problem), np.random.default_rng(seed)
    within = problem
    if cut:
        within = replace(problem, side_constraints=(*problem.side_constraints, *random_cuts(problem, seed)))
    prices = rng.uniform(0, 2, problem.price.shape)
    of_rows = rng.uniform(0, 2, len(open_constraints(within))) * rng.integers(0, 2)
    plain = lagrangian_bound(within, columns, prices, grid=1000, side_prices=of_rows)
    state = MasterState(prices, coverings=random_coverings(within, columns, rng, many), side_prices=of_rows)
    with mock.patch.object(fitting, "LAST", last):
        root = with_fitting(within, columns, plain, state)
    assert root.bound >= plain.bound
    place = {(t, r): k for k, (t, r) in enumerate(zip(columns.template.tolist(), columns.region.tolist(), strict=True))}
    for counts in allocations_within(problem):
        cost = operated_cost(problem, counts)
        if cost is None:
            continue
        assert root.bound <= float(cost) * (1 + 1e-9) + 1e-9
        for pair, count in counts.items():
            # Which of a template's instances are kept ones is the cost's business; new ones are never cheaper.
            if count and pair in place and problem.running is None:
                assert root.column_bounds[place[pair]] <= float(cost) * (1 + 1e-9) + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    problem=allocation_problems(),
    slack=st.sampled_from((0.0, 5.0, 50.0)),
    seed=st.integers(0, 10**6),
    many=st.sampled_from((0, 2, 20)),
)
def test_coverings_near_the_bound_hold_the_optimum(
    problem: AllocationProblem, slack: float, seed: int, many: int
) -> None:
    """Whatever coverings are known, some of which miss the demand or do not fit."""
    problem = with_three_kinds(problem, seed)
    truth, columns = best_by_enumeration(problem), Columns.of(problem)
    if truth is None or not (problem.demand > 0).any():
        return
    cuts, rng = random_cuts(problem, seed), np.random.default_rng(seed)
    within = replace(problem, side_constraints=tuple(cuts))
    prices, of_cuts = rng.uniform(0, 2, problem.price.shape), rng.uniform(0, 3, len(cuts))
    plain = lagrangian_bound(within, columns, prices, grid=1000, side_prices=of_cuts)
    known = random_coverings(within, columns, rng, many)
    root = with_fitting(within, columns, plain, MasterState(prices, coverings=known, side_prices=of_cuts))
    assert root.bound <= float(truth) * (1 + 1e-9) + 1e-9
    coverings = all_near(within, columns, root, slack, 100_000)
    assert coverings is not None
    if truth > root.bound + slack:
        return
    there = available(within)
    found = best_choice_among(coverings, there, np.append(prices.ravel(), of_cuts), WITHOUT_END, problem.segments)
    assert found.chosen is not None
    check = problem.check(allocation_of(columns, coverings, found.chosen))
    assert check.feasible
    assert check.objective == pytest.approx(float(truth), abs=1e-6)


@pytest.mark.parametrize("kinds", [LISTED, PARTS])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_bound_at_the_best_prices_is_below_the_optimum(kinds: tuple[str, ...], data: st.DataObject) -> None:
    """The whole step, after cuts, with everything whose coverings can be listed."""
    problem = data.draw(operated_problems(kinds=kinds))
    search = SearchContext(problem, get_backend("highs"), EVERY_STEP, EXACT, math.inf)
    search.reduce(None)
    if not (search.small.demand > 0).any() or not search.small.adds_up or not knows_fitting(search.small):
        return
    search.columns = Columns.of(search.small)
    truth = best_operated_by_enumeration(problem)
    try:
        loose = raise_bound(search, _root_bound(search), None)
        before = search.bound
        found = _tighten(search, loose)
    except InfeasibleError:
        assert truth is None
        return
    assert search.bound >= before
    if truth is not None:
        assert search.bound <= float(truth) * (1 + 1e-9) + 1e-9
        assert found.root.lagrangian.bound <= float(truth) * (1 + 1e-9) + 1e-9


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(), seed=st.integers(0, 1000), share=st.sampled_from((0.0, 0.5, 1.0)))
def test_limits_on_nodes_only_cut_what_they_say(problem: AllocationProblem, seed: int, share: float) -> None:
    """The least bound of what a phase may use at most, and of what it must use at least, bounds the whole."""
    problem = with_losses(replace(problem, demand=problem.demand / 2), share)
    small = reduce_problem(problem).problem
    columns = Columns.of(small)
    truth = best_operated_by_enumeration(problem)
    if truth is None or not len(columns):
        return
    rng = np.random.default_rng(seed)
    phase = int(rng.integers(len(small.demand)))
    cells = countable_cells(small, rng)
    most = int(small.availability.ravel()[list(cells)].sum())
    cut, every, bounds = int(rng.integers(0, most + 1)), np.arange(len(columns)), []
    for limit in (NodeLimit(phase, cells, 0, cut), NodeLimit(phase, cells, cut + 1, most)):
        pricing = FittingPricing(small, columns, every, [limit])
        start = MasterState(np.zeros(small.price.shape), side_prices=np.zeros(len(small.side_constraints)))
        bounds.append(best_prices(pricing, pricing.started(start), "highs").bound)
        # At any prices of the limit, too.
        prices = np.concatenate([rng.uniform(0, 2, small.price.size), np.zeros(len(small.side_constraints))])
        answer = pricing.coverings(Multipliers(prices, rng.uniform(-1, 1, 1)))
        bounds[-1] = max(bounds[-1], -np.inf if answer is None else answer.bound)
    assert min(bounds) <= float(truth) * (1 + 1e-9) + 1e-9


def test_a_part_of_a_step_costs_less_than_a_step() -> None:
    """Three instances of a third each: beside one of them 667 of 1,000 steps cost more than the two others do."""
    plain = allocation_instance(0)
    problem = replace(
        plain,
        usage=np.ones((1, 1), dtype=np.int16),
        throughput=np.array([0.25]),
        phase=np.zeros(1, dtype=np.int32),
        demand=np.array([0.75]),
        availability=np.array([[3]]),
        price=np.array([[3.5]]),
        running=None,
        penalty=0.0,
        phase_names=("model/decode",),
        region_names=("region",),
        configuration_names=("1xGPU",),
    )
    columns = Columns.of(problem)
    root = lagrangian_bound(problem, columns, np.zeros((1, 1)), grid=1000)
    coverings = all_near(problem, columns, root, 1e-4, 100)
    assert coverings is not None
    assert coverings.cost.tolist() == [10.5]
    free = MasterState(np.zeros((1, 1)))
    assert with_fitting(problem, columns, root, free).bound == pytest.approx(10.5, abs=1e-6)


def test_a_column_far_from_the_bound_may_be_in_the_lightest_covering_that_fits() -> None:
    """One cheap instance is there; three a tenth dearer, each near the bound, cost more than one that is not near."""
    plain = allocation_instance(0)
    problem = replace(
        plain,
        usage=np.eye(3, dtype=np.int16),
        throughput=np.array([1.0, 1.0, 3.0]),
        phase=np.zeros(3, dtype=np.int32),
        demand=np.array([4.0]),
        availability=np.array([[1, 3, 1]]),
        price=np.array([[1.0, 1.1, 3.2]]),
        running=None,
        penalty=0.0,
        phase_names=("model/decode",),
        region_names=("region",),
        configuration_names=("1xA", "1xB", "1xC"),
    )
    columns = Columns.of(problem)
    root = lagrangian_bound(problem, columns, np.zeros((1, 3)), grid=1000)
    with mock.patch.object(fitting, "LAST", 0.03):
        within = with_fitting(problem, columns, root, MasterState(np.zeros((1, 3))))
    assert within.bound == pytest.approx(4.2, abs=1e-6)


def test_a_known_covering_that_misses_the_demand_rules_out_nothing() -> None:
    """Three of the cheapest are too many, two serve too little: the lightest that fits has a dearer one."""
    problem = AllocationProblem(
        usage=np.array([[1, 0], [0, 1]], dtype=np.int16),
        throughput=np.array([10.0, 10.0]),
        phase=np.array([0, 0], dtype=np.int32),
        demand=np.array([30.0]),
        availability=np.array([[2, 5]]),
        price=np.array([[1.0, 2.0]]),
        running=None,
        penalty=0.0,
        phase_names=("decode",),
        region_names=("here",),
        configuration_names=("cheap", "dear"),
    )
    columns, prices = Columns.of(problem), np.zeros((1, 2))
    cheap = int(np.flatnonzero(columns.template == 0)[0])
    known = Covering(0, ((cheap, 2),), 2.0, np.array([2.0, 0.0]))
    plain = lagrangian_bound(problem, columns, prices)
    assert plain.bound == pytest.approx(3.0)
    root = with_fitting(problem, columns, plain, MasterState(prices, coverings=(known,)))
    assert root.bound == pytest.approx(4.0)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), many=st.sampled_from((0, 2, 20)), cut=st.booleans())
def test_bounds_hold_where_a_phase_needs_most_of_what_there_is(seed: int, many: int, cut: bool) -> None:
    """The lightest covering rarely fits; known ones miss the demand, do not fit, or do both; cuts count whole coverings."""
    rng = np.random.default_rng(seed)
    regions, kinds, phases = int(rng.integers(1, 3)), int(rng.integers(2, 4)), int(rng.integers(1, 3))
    templates = int(rng.integers(2, 6)) * phases
    usage = rng.integers(0, 3, (templates, kinds))
    usage[usage.sum(axis=1) == 0, 0] = 1
    phase = np.arange(templates) % phases
    throughput = np.rint(usage @ rng.uniform(5, 15, kinds) * rng.uniform(0.7, 1.3, templates)) / 4
    there = rng.integers(1, 5, (regions, kinds))
    # Of what the nodes would serve at the mean rate.
    rate = throughput.sum() / usage.sum()
    problem = AllocationProblem(
        usage=usage.astype(np.int16),
        throughput=throughput,
        phase=phase.astype(np.int32),
        demand=there.sum() * rate / phases * rng.uniform(0.3, 0.8, phases),
        availability=there,
        price=np.rint(rng.uniform(4, 20, (regions, kinds))) / 4,
        running=None,
        penalty=0.0,
        phase_names=tuple(f"phase {p}" for p in range(phases)),
        region_names=tuple(f"region {r}" for r in range(regions)),
        configuration_names=tuple(f"kind {c}" for c in range(kinds)),
    )
    columns = Columns.of(problem)
    try:
        truth = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(reductions=False)).cost_usd_h
    except InfeasibleError:
        return
    sides = tuple(random_cuts(problem, seed)) if cut else ()
    within = replace(problem, side_constraints=sides)
    prices, of_cuts = rng.uniform(0, 2, problem.price.shape) * rng.integers(0, 2), rng.uniform(0, 3, len(sides))
    plain = lagrangian_bound(within, columns, prices, grid=1000, side_prices=of_cuts)
    known = random_coverings(within, columns, rng, many)
    state, roots = MasterState(prices, coverings=known, side_prices=of_cuts), []
    for threads in (1, 4):
        with mock.patch("coralopt.allocation.bounds.fitting.cores", return_value=threads):
            roots.append(with_fitting(within, columns, plain, state))
    root, other = roots
    assert plain.bound <= root.bound <= truth * (1 + 1e-9) + 1e-9
    assert root.bound == other.bound
    assert (root.column_bounds == other.column_bounds).all()
