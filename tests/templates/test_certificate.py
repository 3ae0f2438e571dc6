"""Bounds over node sets of any size, against plain enumeration and against plans from larger and larger libraries."""

from __future__ import annotations

import copy
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from coralopt_dp import sweep
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coralopt import load_scenario
from coralopt.allocation import UnmetGroup
from coralopt.errors import InfeasibleError, LibraryError
from coralopt.planning import plan_scenario
from coralopt.scenario import scenario_from_mapping
from coralopt.templates import (
    AnySizeBounds,
    DemandBlock,
    DemandColumn,
    DemandTerms,
    allocation_certificate,
    build_library,
    cheapest_token,
    phase_bounds,
    rank_templates,
    unlimited_tables,
)
from coralopt.templates import certificate_kernels as kernels
from coralopt.templates.covers import CoverRules, cheapest_cover, several_instances
from coralopt.templates.instance_prices import instance_prices, most_tokens_of_nodes, regional_prices
from coralopt.testing.placement_strategies import throughput_values
from coralopt.throughput.tables import stage_role


@settings(max_examples=80, deadline=None)
@given(
    throughput_values(max_stages=4, max_configurations=3, max_layers=6),
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_cheapest_token_equals_every_layer_split(values, prices):
    """Shortest path against trying every split and every configuration in every stage."""
    price = np.array(prices[: values.shape[2]], dtype=float)
    layers, best = values.shape[3] - 1, np.inf
    for count in range(1, min(values.shape[0], layers) + 1):
        for cuts in itertools.combinations(range(1, layers), count - 1):
            held = [b - a for a, b in itertools.pairwise((0, *cuts, layers))]
            total = 0.0
            for s, j in enumerate(held):
                speeds = values[count - 1, stage_role(s, count), :, j]
                total += min((p / t for p, t in zip(price, speeds, strict=True) if t > 0), default=np.inf)
            best = min(best, total)
    found = cheapest_token(values, price)
    if np.isfinite(found.usd_h):
        assert found.usd_h == pytest.approx(float(found.usage(values) @ price))
        assert sum(j for j, _ in found.stages) == layers
    assert found.usd_h == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=2, max_layers=5),
    st.lists(st.integers(1, 9), min_size=2, max_size=2),
    st.integers(1, 400),
)
def test_whole_nodes_are_priced_below_every_node_set(values, prices, demand):
    """No instance of real nodes, and no number of instances, may be cheaper than the bound says."""
    price = np.array(prices[: values.shape[2]], dtype=float)
    width, grid = values.shape[2], 50
    rows = [row for row in itertools.product(range(5), repeat=width) if 1 <= sum(row) <= 4]
    sets = np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int8)
    throughput = sweep(values, sets).throughput
    prices = instance_prices(values, price, float(demand), grid)
    one, every = np.minimum(prices.one, prices.every), prices.every
    for row, speed in zip(sets, throughput, strict=True):
        if speed > 0:
            steps = min(int(np.ceil(speed / (demand / grid) - 1e-9)), grid)
            assert one[steps] <= row @ price + 1e-9
    # The cheapest way to the demand with these node sets, by a plain covering over their throughputs.
    best = {0.0: 0.0}
    instances = [
        (speed, usd_h) for speed, usd_h in zip(throughput.tolist(), (sets @ price).tolist(), strict=True) if speed
    ]
    for _ in range(4):
        for had, cost in list(best.items()):
            for speed, usd_h in instances:
                total = min(had + speed, float(demand))
                best[total] = min(best.get(total, np.inf), cost + usd_h)
    if float(demand) in best:
        assert every[-1] <= best[float(demand)] + 1e-9


def scenario(available: int, max_nodes: int, **rest: Any) -> Any:
    """The smallest built-in scenario with other supply and pruning."""
    document = dict(load_scenario("tiny").document)
    regions = {}
    for name, region in document["pool"]["regions"].items():
        configurations = region["configurations"]
        names = configurations if isinstance(configurations, (list, str)) else list(configurations)
        regions[name] = {"available": available, "configurations": names}
    document["pool"] = {**document["pool"], "regions": regions}
    document["pruning"] = {"max_nodes": max_nodes, "memory_ratio": 1000.0}
    return scenario_from_mapping({**document, **rest})


@pytest.mark.parametrize("available", [64, 3])
def test_no_plan_is_cheaper_than_the_certificate(available: int) -> None:
    """With ample and with scarce supply, and from ever larger libraries."""
    certificate = allocation_certificate(scenario(available, 2), grid=300)
    assert certificate.feasible
    assert certificate.fractional_usd_h <= certificate.bound_usd_h
    costs = [plan_scenario(scenario(available, n)).cost_usd_h for n in (2, 4)]
    assert costs[1] <= costs[0] * (1 + 1e-9)
    assert certificate.bound_usd_h <= costs[1] * (1 + 1e-9)
    assert certificate.bound_usd_h > 0.3 * costs[1]


def test_phase_bounds_hold_every_template() -> None:
    """The best template of a library never passes the bound; it is the same whatever N_max."""
    small, large = scenario(8, 1), scenario(8, 4)
    bounds = phase_bounds(small)
    assert bounds == phase_bounds(large)
    library = build_library(large)
    for key, most, _ in bounds:
        assert rank_templates(library, large, key, limit=1)[0].tokens_s_per_usd_h <= most


def test_no_instance_uses_more_nodes_than_its_region_has() -> None:
    """With one node of each kind an instance of two L4 is none; the bound was 5.5882 USD/h all the same."""
    for available, least in ((1, 5.8647), (2, 5.5882)):
        scarce = scenario(available, 4)
        bounds = AnySizeBounds(scarce, unlimited_tables(scarce, 4))
        priced = bounds.whole_nodes(bounds.supply.free_of_charge, 1000)
        assert priced.bound_usd_h == pytest.approx(least, abs=1e-4)
        for m, regions in enumerate(priced.instances):
            for region, pipeline in cheapest_cover(regions, CoverRules()):
                assert (pipeline.node_set <= bounds.supply.nodes[region]).all()
                assert pipeline.tokens_s(bounds.tables[m].values) >= 0.99 * bounds.demand[m]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=2, max_size=2),
    st.floats(0.3, 3.0),
    st.integers(0, 2**16),
)
def test_no_plan_of_random_scarce_pools_is_cheaper(nodes, scale, seed):
    """At any prices of capacity, against the integer programme over all sets of three nodes."""
    document = copy.deepcopy(dict(load_scenario("tiny").document))
    ((_, region),) = document["pool"]["regions"].items()
    names = list(region["configurations"])
    for model in document["models"].values():
        model["demand"]["requests_s"] *= scale
    document["pool"]["regions"] = {
        place: {"configurations": dict(zip(names, several, strict=True))}
        for place, several in zip(("us-east-2", "ap-northeast-2"), nodes, strict=True)
        if any(several)
    }
    document["pruning"] = {"max_nodes": 3, "memory_ratio": 1000.0}
    assume(document["pool"]["regions"])
    scarce = scenario_from_mapping(document)
    try:
        plan = plan_scenario(scarce, options={"rel_gap": 0.0})
    except InfeasibleError:
        assume(False)
    bounds = AnySizeBounds(scarce, unlimited_tables(scarce, 3))
    draw = np.random.default_rng(seed)
    for most in (0.0, 0.5, 5.0):
        mu = most * draw.random(bounds.supply.nodes.size) * (draw.random(bounds.supply.nodes.size) < 0.5)
        assert bounds.whole_nodes(mu, 300).bound_usd_h <= plan.cost_usd_h * (1 + 1e-9)


def test_impossible_demand_is_said() -> None:
    """A pool too small even for fractions of nodes."""
    document = scenario(1, 2).document
    models = {
        name: {**model, "demand": {**model["demand"], "requests_s": 1e6}} for name, model in document["models"].items()
    }
    assert not allocation_certificate(scenario(1, 2, models=models), grid=0).feasible


def test_reserved_and_spot_nodes_lower_the_bound() -> None:
    """The bound lies below a plan that uses nodes cheaper than their list price."""
    document = copy.deepcopy(dict(load_scenario("tiny").document))
    for name, held in document["pool"]["regions"]["us-east-2"]["configurations"].items():
        count = held["available"] if isinstance(held, dict) else held
        reserved = {"available": count, "reserved": count}
        document["pool"]["regions"]["us-east-2"]["configurations"][name] = reserved
    scenario = scenario_from_mapping(document)
    plan = plan_scenario(scenario)
    certificate = allocation_certificate(scenario, unlimited_tables(scenario))
    assert certificate.bound_usd_h <= plan.cost_usd_h * (1 + 1e-9)


def test_the_master_by_hand() -> None:
    """Two models of two phases, eight nodes of each of four kinds: a cheap way of one phase needs 16 of a kind, half of it
    is taken; a way that needs 80 is taken for a tenth, and the rest of both phases of its model goes unmet."""
    bounds = AnySizeBounds(scenario(8, 1), unlimited_tables(scenario(8, 1)))
    assert bounds.ways == (((0, 1),), ((2, 3),))

    def column(phase: int, kind: int, nodes: float, usd_h: float) -> DemandColumn:
        usage = np.zeros((1, 4))
        usage[0, kind] = nodes
        return DemandColumn(phase, usage, usd_h)

    others = [column(1, 2, 1.0, 10.0), column(2, 2, 1.0, 20.0)]
    cheap, dear = column(0, 0, 16.0, 1.0), column(0, 1, 4.0, 3.0)
    mix = bounds.programme.solve([*others, cheap, dear, column(3, 3, 2.0, 40.0)])
    assert mix.usd_h == pytest.approx(0.5 * 1.0 + 0.5 * 3.0 + 10.0 + 20.0 + 40.0)
    # Another node of kind 0 moves a sixteenth of the phase from the dear way to the cheap one.
    assert mix.duals == pytest.approx(np.array([(3.0 - 1.0) / 16.0, 0.0, 0.0, 0.0]))
    assert mix.short == pytest.approx(0.0)
    assert bounds.programme.solve([*others, cheap, dear, column(3, 3, 80.0, 40.0)]).short == pytest.approx(0.9)


def test_the_master_mixes_blocks_by_hand() -> None:
    """A model of which some may go unmet at 100 USD/h for all: its blocks serve all with 16 nodes of 8, or none."""
    scarce = scenario(8, 1)
    group = UnmetGroup((0, 1), ((100.0, 1.0),))
    needed = np.array([phase.needed_tokens_s for phase in scarce.model_phases])
    bounds = AnySizeBounds(scarce, unlimited_tables(scarce), DemandTerms(needed, (group,)))
    (together,) = bounds.groups_unmet

    def column(phase: int, kind: int, nodes: float, usd_h: float) -> DemandColumn:
        usage = np.zeros((1, 4))
        usage[0, kind] = nodes
        return DemandColumn(phase, usage, usd_h)

    others = [column(2, 2, 1.0, 20.0), column(3, 3, 2.0, 40.0)]
    whole = DemandBlock(together, Fraction(0), (column(0, 0, 16.0, 6.0), column(1, 1, 1.0, 4.0)), 0.0)
    mix = bounds.programme.solve(others, [whole, DemandBlock(together, Fraction(1), (), 100.0)])
    assert mix.blocks == pytest.approx(np.array([0.5, 0.5]))
    assert mix.usd_h == pytest.approx(0.5 * 10.0 + 0.5 * 100.0 + 60.0)
    assert mix.duals == pytest.approx(np.array([(100.0 - 10.0) / 16.0, 0.0, 0.0, 0.0]))
    assert bounds.programme.solve(others, [whole]).short == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=3, max_layers=5),
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 9.0, np.inf]), min_size=3, max_size=3),
)
def test_no_node_set_serves_more_than_its_nodes_do(values, prices):
    """Whatever the prices at which the tokens of a node are computed."""
    width = values.shape[2]
    most = most_tokens_of_nodes(values, np.array(prices[:width]))
    rows = [row for row in itertools.product(range(4), repeat=width) if 1 <= sum(row) <= 4]
    sets = np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int8)
    sold = ~sets[:, np.isinf(prices[:width])].any(axis=1)
    with np.errstate(invalid="ignore"):
        limit = (sets[sold] * np.where(sets[sold] > 0, most, 0.0)).sum(axis=1)
    assert (sweep(values, sets).throughput[sold] <= limit * (1 + 1e-9)).all()


@settings(max_examples=40, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=2, max_layers=5),
    st.lists(st.integers(1, 9), min_size=2, max_size=2),
    st.integers(1, 400),
)
def test_node_sets_that_pay_reach_their_price(values, prices, demand):
    """Each one costs a price of the table, and serves all but a step for every node of what that price is for."""
    price, grid = np.array(prices[: values.shape[2]], dtype=float), 50
    found = instance_prices(values, price, float(demand), grid)
    pipelines = found.pipelines()
    sets = np.unique([pipeline.node_set for pipeline in pipelines], axis=0) if pipelines else []
    assert np.isfinite(found.every[-1]) == (len(sets) > 0)
    for row in sets:
        at = np.flatnonzero(np.isclose(found.one, row @ price))
        assert len(at)
        if row.sum() <= 6:
            parts = [part for part in itertools.product(*(range(n + 1) for n in row)) if sum(part)]
            below = np.array(sorted(parts, key=lambda part: (sum(part), part)), dtype=np.int8)
            speed = sweep(values, below).throughput[-1]
            assert speed / (demand / grid) > at.min() - 1 - row.sum()


@pytest.mark.parametrize(("scarcity", "replicas"), [(0.0, 0), (0.7, 0), (0.7, 2), (0.3, 7)])
def test_covers_cost_what_the_bound_says(scarcity: float, replicas: int) -> None:
    """At any prices of capacity; those of their master prove a bound as well, below what a plan costs."""
    scarce = scenario(3, 2).with_limits(min_replicas=replicas)
    bounds = AnySizeBounds(scarce, unlimited_tables(scarce))
    mu = scarcity * np.random.default_rng(0).random(bounds.supply.nodes.size)
    priced = bounds.whole_nodes(mu, 300)
    covers = bounds.covers(priced)
    assert {cover.phase for cover in covers} == set(range(len(scarce.model_phases)))
    total = sum(cover.usd_h + float(mu @ cover.usage.ravel()) for cover in covers)
    assert total - bounds.supply.worth(mu) == pytest.approx(priced.bound_usd_h, rel=1e-6)
    again = bounds.whole_nodes(bounds.programme.solve(covers).duals, 300).bound_usd_h
    if replicas <= 2:
        assert again <= plan_scenario(scenario(3, 4).with_limits(min_replicas=replicas)).cost_usd_h * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=3, max_layers=5),
    st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.5, 7.0, math.inf]), min_size=3, max_size=3), min_size=1),
    st.integers(1, 400),
)
def test_regions_left_out_together_are_dearer(values, prices, demand):
    """Most regions are never priced alone: bounds only get better by it, and stay below what node sets really cost."""
    rows = np.array(prices)[:, : values.shape[2]]
    some = regional_prices(values, rows, float(demand), 50)
    each = [instance_prices(values, row, float(demand), 50) for row in rows]
    both = [np.min([np.minimum(price.one, price.every) for price in prices], axis=0) for prices in (some, each)]
    covered = [np.zeros(51), np.zeros(51)]
    for one, every in zip(both, covered, strict=True):
        kernels.cover_demand(one, every)
    assert (covered[0] >= covered[1] * (1 - 1e-12)).all()
    assert len(some) <= len(each)
    sets = [row for row in itertools.product(range(4), repeat=values.shape[2]) if 1 <= sum(row) <= 3]
    sets = np.array(sorted(sets, key=lambda row: (sum(row), row)), dtype=np.int8)
    for nodes, speed in zip(sets, sweep(values, sets).throughput, strict=True):
        if speed > 0:
            steps = min(int(np.ceil(speed / (demand / 50) - 1e-9)), 50)
            costs = [nodes[nodes > 0] @ row[nodes > 0] for row in rows]
            assert covered[0][steps] <= min(costs) + 1e-9


def plain_prices(values, price, demand, grid):
    """Least prices of one instance and of several, by plain loops."""
    step, (most, _, kinds, width) = demand / grid, values.shape
    one = np.full(grid + 1, np.inf)
    for count in range(1, min(most, width - 1) + 1):
        steps = np.minimum(np.ceil(values[count - 1] / step * (1 - 1e-12)), grid).astype(int)
        stage = np.full((3, width, grid + 1), np.inf)
        stage[:, :, 0] = 0.0
        for role, j, t in itertools.product(range(3), range(1, width), range(1, grid + 1)):
            usable = [c for c in range(kinds) if steps[role, c, j] > 0 and np.isfinite(price[c])]
            costs = [price[c] + stage[role, j, max(t - steps[role, c, j], 0)] for c in usable]
            stage[role, j, t] = min(costs, default=np.inf)
        for cuts in itertools.combinations(range(1, width - 1), count - 1):
            held = [b - a for a, b in itertools.pairwise((0, *cuts, width - 1))]
            one = np.minimum(one, sum(stage[stage_role(s, count), j] for s, j in enumerate(held)))
    one = np.minimum.accumulate(one[::-1])[::-1]
    every = np.zeros(grid + 1)
    for t in range(1, grid + 1):
        every[t] = min(one[a] + every[max(t - a, 0)] for a in range(1, grid + 1))
    return one, every


@settings(max_examples=40, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=2, max_layers=4),
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.5, 7.0]), min_size=2, max_size=2),
    st.integers(1, 400),
)
def test_prices_are_those_of_plain_loops_or_more(values, prices, demand):
    """What is left out by lines below prices never lowers one; what it raises costs more in fractions of nodes anyway."""
    price, grid = np.array(prices[: values.shape[2]]), 16
    found = instance_prices(values, price, float(demand), grid)
    one, every = plain_prices(values, price, float(demand), grid)
    assert (found.every >= every * (1 - 1e-9)).all()
    token = cheapest_token(values, price).usd_h
    fractions = np.array([token * demand / grid * max(t - 1, 0) if t > 1 else 0.0 for t in range(grid + 1)])
    if not (one < fractions * (1 + 1e-9)).any():
        np.testing.assert_allclose(found.every, every, rtol=1e-9)
    assert np.isfinite(found.every[-1]) == np.isfinite(every[-1])


def plain_scarce_prices(values, price, most, demand, grid):
    """Least price of one instance within room, by plain loops over what every stage uses of scarce nodes."""
    step, (longest, _, kinds, width) = demand / grid, values.shape
    one = np.full(grid + 1, np.inf)
    others = [c for c in range(kinds) if c not in most and np.isfinite(price[c])]
    spent = list(itertools.product(*(range(n + 1) for n in most.values())))
    for count in range(1, min(longest, width - 1) + 1):
        steps = np.minimum(np.ceil(values[count - 1] / step * (1 - 1e-12)), grid).astype(int)

        def stage(role, j, used, t, steps=steps):
            """A stage with just these scarce nodes."""
            cost = sum(n * price[c] for c, n in zip(most, used, strict=True) if n)
            missing = max(t - sum(n * steps[role, c, j] for c, n in zip(most, used, strict=True)), 0)
            table = [0.0]
            for s in range(1, missing + 1):
                several = [price[c] + table[max(s - steps[role, c, j], 0)] for c in others if steps[role, c, j] > 0]
                table.append(min(several, default=np.inf))
            return cost + table[missing]

        for t, cuts in itertools.product(range(1, grid + 1), itertools.combinations(range(1, width - 1), count - 1)):
            best = {tuple(0 for _ in most): 0.0}
            for s, (a, b) in enumerate(itertools.pairwise((0, *cuts, width - 1))):
                longer = {}
                for (had, cost), used in itertools.product(best.items(), spent):
                    total = tuple(h + u for h, u in zip(had, used, strict=True))
                    if all(n <= room for n, room in zip(total, most.values(), strict=True)):
                        here = cost + stage(stage_role(s, count), b - a, used, t)
                        longer[total] = min(longer.get(total, np.inf), here)
                best = longer
            one[t] = min(one[t], *best.values())
    return np.minimum.accumulate(one[::-1])[::-1]


@settings(max_examples=40, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=3, max_layers=4),
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.5, 7.0]), min_size=3, max_size=3),
    st.dictionaries(st.integers(0, 2), st.integers(0, 3), max_size=2),
    st.integers(1, 400),
)
def test_scarce_nodes_are_priced_as_by_plain_loops(values, prices, most, demand):
    """At most as dear as one instance within room and, where several do not do as well, no cheaper; what is traced fits."""
    price, grid = np.array(prices[: values.shape[2]]), 8
    most = {c: n for c, n in most.items() if c < len(price)}
    found = instance_prices(values, price, float(demand), grid, most=most)
    one = plain_scarce_prices(values, price, most, float(demand), grid)
    every = np.zeros(grid + 1)
    kernels.cover_demand(np.append(0.0, one[1:]), every)
    assert (found.every >= every * (1 - 1e-9)).all()
    assert (np.minimum(found.one, found.every)[1:] <= one[1:] * (1 + 1e-9)).all()
    for pipeline in found.pipelines():
        assert all(pipeline.node_set[c] <= n for c, n in most.items())
        assert np.isclose(found.one, pipeline.node_set @ price).any()
    token = cheapest_token(values, price).usd_h
    fractions = np.array([token * demand / grid * max(t - 1, 0) if t > 1 else 0.0 for t in range(grid + 1)])
    if not (one < fractions * (1 + 1e-9)).any():
        np.testing.assert_allclose(found.every, every, rtol=1e-9)


def test_what_serves_more_serves_less_too():
    """Beside a region where 15 of 16 steps cost 3 and all 4 USD/h, a node of 16 steps for 3.50 pays for the last step only,
    and is known to serve fewer all the same."""
    known = np.array([0.0, *[3.0] * 15, 4.0])
    found = instance_prices(np.full((1, 3, 1, 2), 16.0) * [0.0, 1.0], np.array([3.5]), 16.0, 16, known)
    assert found.one.tolist() == [0.0, *[3.5] * 16]
    assert found.every.tolist() == [0.0, *[3.0] * 15, 3.5]
    assert [pipeline.nodes.tolist() for pipeline in found.pipelines()] == [[[1]]]


@settings(max_examples=40, deadline=None)
@given(
    throughput_values(max_stages=4, max_configurations=3, max_layers=6),
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_lines_lie_below_the_price_of_a_token(values, prices):
    """At every stage count the quick bound is at most the exact shortest path."""
    price = np.array(prices[: values.shape[2]], dtype=float)
    least = np.empty(len(values))
    kernels.least_tokens(values, price, least)
    for count in range(1, len(values) + 1):
        exact = kernels.token_price(values[:count], price)
        assert least[count - 1] <= exact * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1.0, 1.5, 2.0, 3.0, 5.0, math.inf])), min_size=1))
def test_covers_of_whole_nodes_equal_a_plain_programme(nodes):
    """Nodes that cheaper ones replace together are dropped on the way, and no price rises by it."""
    steps, price = np.array([s for s, _ in nodes]), np.array([p for _, p in nodes])
    out = np.empty(41)
    kernels.cover_costs(steps, price, np.argsort(price), 40, out)
    plain = [0.0]
    for t in range(1, 41):
        plain.append(min([p + plain[max(t - s, 0)] for s, p in nodes if s > 0], default=math.inf))
    assert out.tolist() == plain


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0, 4.5, 7.0]), min_size=1, max_size=6), st.integers(0, 9))
def test_prices_of_several_instances_equal_an_enumeration(prices, least):
    """The cheapest multiset of so many instances or more, all of them listed; beyond the last table each adds the least."""
    one = np.array([0.0, *prices])
    grid = len(prices)
    tables = several_instances(one, least)
    further = least + 1 - len(tables)
    for t in range(1, grid + 1):
        listed = (
            itertools.combinations_with_replacement(range(1, grid + 1), count)
            for count in range(max(least, 1), max(least, 1) + grid)
        )
        best = min(
            sum(prices[size - 1] for size in sizes) for several in listed for sizes in several if sum(sizes) >= t
        )
        assert tables[-1][t] + further * min(prices) == pytest.approx(best)


@pytest.mark.parametrize(("demand", "replicas"), [(1.0, 2), (1.0, 3), (0.0, 1), (0.0, 3), (4.0, 2), (1.0, 8)])
def test_replicas_are_counted(demand: float, replicas: int) -> None:
    """With ample supply the bound is what the cheapest of all multisets of templates costs, rounding apart.

    One cheap instance served the demand, and the bound was its price however many were asked for.
    """
    document = dict(scenario(64, 3).document)
    name, model = next(iter(document["models"].items()))
    model = {**model, "min_replicas": replicas}
    model["demand"] = {**model["demand"], "requests_s": model["demand"]["requests_s"] * demand}
    asked = scenario_from_mapping({**document, "models": {name: model}})
    library = build_library(asked)
    least = 0.0
    for m, phase in enumerate(asked.model_phases):
        usage, speed = library.phases[m].usage, library.phases[m].throughput
        factor = 1 + asked.initialization_penalty
        price = (usage @ np.where(np.isfinite(asked.price_usd_h), asked.price_usd_h, 1e9).T).min(axis=1) * factor
        # float64 by the number of instances: the most tokens/s for money that cheaper ones do not give, by listing.
        front = [(0.0, 0.0)]
        best = math.inf
        for count in range(1, replicas + 4):
            sums = sorted(
                (cost + float(p), had + float(s)) for cost, had in front for p, s in zip(price, speed, strict=True)
            )
            front, most = [], -1.0
            for cost, had in sums:
                if had > most:
                    front.append((cost, had))
                    most = had
            if count >= replicas:
                best = min(best, min((cost for cost, had in front if had >= phase.needed_tokens_s), default=math.inf))
        least += best
    bounds = AnySizeBounds(asked, unlimited_tables(asked, 3))
    bound = bounds.whole_nodes(bounds.supply.free_of_charge, 4000).bound_usd_h
    assert bound <= least * (1 + 1e-9)
    assert bound > 0.9 * least
    plan = plan_scenario(scenario_from_mapping({**asked.document, "templates": "on-demand"}))
    assert plan.lower_bound_usd_h <= plan.cost_usd_h * (1 + 1e-12)
    assert plan.cost_usd_h <= least * (1 + 1e-4)
    assert plan.gap < 1e-3


@pytest.mark.parametrize("mode", ["auto", "mixed"])
def test_each_way_of_a_model_counts_once(mode: str) -> None:
    """In mode auto the bound added the cost of every way that a request might take: 8.52 where a plan costs 2.93 USD/h."""
    document = {**load_scenario("tiny").document, "mode": mode}
    scenario = scenario_from_mapping(document)
    plan, certificate = plan_scenario(scenario), allocation_certificate(scenario)
    assert certificate.bound_usd_h <= plan.cost_usd_h * (1 + 1e-9)
    assert certificate.bound_usd_h > 0.9 * plan.cost_usd_h


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"placement": {"latency_budgets": "free"}}, "budgets of SLO / S"),
        ({"sharing": {"models": 2}, "mode": "mixed"}, "share nodes"),
        (
            {"demand_cases": {"a": {"probability": 0.5, "factor": 1.0}, "b": {"probability": 0.5, "factor": 2.0}}},
            "cases",
        ),
    ],
)
def test_what_the_bound_does_not_count_is_refused(change: dict[str, Any], words: str) -> None:
    scenario = scenario_from_mapping({**load_scenario("tiny").document, **change})
    with pytest.raises(LibraryError, match=words):
        allocation_certificate(scenario)
