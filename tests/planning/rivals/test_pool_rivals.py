"""Helix and HexGen on fixed pools: against brute force, against published layouts, against the exact placement in stages."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import InfeasibleError, OptionError
from coralopt.placement import PlacementPool, load_pool, place_pool, throughput_of
from coralopt.planning.rivals.helix import HelixLayout, HelixProblem
from coralopt.planning.rivals.helix_starts import separate_layout, staged_layout, swarm_layout
from coralopt.planning.rivals.hexgen import best_pipeline, hexgen_search
from coralopt.planning.rivals.place_helix import helix_problem, place_helix
from coralopt.solving import solve

EXACT = {"rel_gap": 0.0, "abs_gap": 1e-9}
#: The layout that Helix's artifact proves optimal for its 10 nodes: first layer and layers, L4 then T4.
HELIX_10 = HelixLayout((36, 0, 18, 24, 42, 6, 54, 12, 30, 48), (6,) * 10)
CASES = Path(__file__).resolve().parents[3] / "shared" / "data" / "replay" / "helix_cases.json"


def _tiny(seed: int, most_nodes: int = 4) -> HelixProblem:
    """Falling tables in quarters, some cells impossible."""
    rng = np.random.default_rng(seed)
    layers, kinds = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    table = np.zeros((kinds, layers + 1))
    for c in range(kinds):
        most = int(rng.integers(1, layers + 1))
        table[c, 1 : most + 1] = np.sort(rng.integers(1, 30, most))[::-1] / 4.0
    return HelixProblem(table, rng.integers(0, kinds, int(rng.integers(1, most_nodes))), tuple("abc"[:kinds]))


def _brute_force(problem: HelixProblem) -> float:
    """The best flow over every way to give each node a range it can hold."""
    ranges = [
        [
            (first, held)
            for held in range(1, problem.layers + 1)
            if problem.table[c, held] > 0
            for first in range(problem.layers - held + 1)
        ]
        for c in problem.node_kind.tolist()
    ]
    best = 0.0
    for choice in itertools.product(*ranges):
        layout = HelixLayout(tuple(first for first, _ in choice), tuple(held for _, held in choice))
        best = max(best, problem.check(layout).objective)
    return best


def _pool(problem: HelixProblem) -> PlacementPool:
    return PlacementPool(
        name="tiny",
        values=np.broadcast_to(problem.table, (problem.layers, 3, *problem.table.shape)),
        counts=tuple(np.bincount(problem.node_kind, minlength=len(problem.kinds)).tolist()),
        configurations=problem.kinds,
        stage_free=True,
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_helix_programme_equals_brute_force(seed: int) -> None:
    """The MILP finds the best of all layouts, and coral's stages and HexGen's pipelines never beat it."""
    problem = _tiny(seed)
    best = _brute_force(problem)
    solution = solve(problem, "highs", None, EXACT)
    assert solution.answer is not None
    assert solution.objective == pytest.approx(best, rel=1e-6)
    assert best <= problem.compute_bound * (1 + 1e-9)
    pool = _pool(problem)
    try:
        staged = place_pool(pool)
    except InfeasibleError:
        assert best == 0
        return
    # A placement in stages is a layout: it passes at least its own throughput, more where idle nodes help.
    assert problem.check(staged_layout(problem, staged.placement)).objective >= staged.throughput * (1 - 1e-12)
    assert staged.throughput <= best * (1 + 1e-9)
    assert hexgen_search(pool.values, pool.counts, seed=0, generations=20).throughput <= best * (1 + 1e-9)


def test_helix_flow_of_published_layouts() -> None:
    """The proven layout of 10 nodes and the SWARM layout of 42 pass exactly what Helix's artifact says."""
    ten = helix_problem(load_pool("helix-10"))
    assert [ten.kinds[c] for c in ten.node_kind] == ["L4"] * 4 + ["T4"] * 6
    assert ten.check(HELIX_10).objective == pytest.approx(286.5874097546421, rel=1e-12)
    many = helix_problem(load_pool("helix-42"))
    swarm = swarm_layout(many)
    assert swarm is not None
    assert many.check(swarm).objective == pytest.approx(4892.242429600681, rel=1e-12)
    assert many.compute_bound == pytest.approx(7104.3, abs=0.1)
    assert helix_problem(load_pool("helix-24")).compute_bound == pytest.approx(2803.9, abs=0.1)


@pytest.mark.skipif(not CASES.exists(), reason="the published layouts are not part of the repository")
def test_helix_flow_of_every_published_layout() -> None:
    """All four layouts of the artifact, node by node, to the last digit."""
    pools = {
        "quality10_30b": "helix-10",
        "single24_70b": "helix-24",
        "hetero42_70b": "helix-42",
        "hetero42_70b_swarm": "helix-42",
    }
    for case, item in json.loads(CASES.read_text()).items():
        pool = load_pool(pools[case])
        kinds = np.array([pool.configurations.index(name) for name in item["types"]])
        problem = HelixProblem(helix_problem(pool).table, kinds, pool.configurations)
        ranges = [item["layout"][str(i)] for i in range(len(kinds))]
        layout = HelixLayout(tuple(a for a, _ in ranges), tuple(b - a for a, b in ranges))
        assert problem.check(layout).objective == pytest.approx(item["static_flow"], rel=1e-12)


def test_helix_keeps_its_start_and_reports_an_honest_gap() -> None:
    """With no time at all the start is the answer, and the bound is one that holds."""
    pool = load_pool("helix-10")
    found = place_helix(pool, start="pool", time_limit=0.1)
    assert found.throughput == pytest.approx(286.5874097546421, rel=1e-12)
    assert found.bound <= 364.51
    assert found.gap == pytest.approx((found.bound - found.throughput) / found.throughput, rel=1e-9)
    assert not found.proven
    assert found.hops == (10, 10, 10.0)


def test_separate_layout_keeps_kinds_apart() -> None:
    """Each kind that can hold the model serves it alone; the flows add up."""
    problem = HelixProblem(np.array([[0.0, 9.0, 4.0], [0.0, 6.0, 3.0]]), np.array([0, 0, 1, 1]), ("a", "b"))
    layout = separate_layout(problem)
    assert layout is not None
    assert problem.check(layout).objective == 9.0 + 6.0


def test_helix_needs_one_table() -> None:
    """A pool whose tables depend on the number of stages is refused until one number is chosen."""
    free = load_pool("helix-10")
    values = np.array(free.values)
    values[1] *= 0.5
    pool = PlacementPool("p", values, free.counts, free.configurations)
    with pytest.raises(OptionError, match="give --stages"):
        place_helix(pool)
    with pytest.raises(OptionError, match="heuristics, pool, none"):
        place_helix(free, start="warm")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_hexgen_pipeline_is_the_best_one(seed: int) -> None:
    """The dynamic programme equals trying every order of the nodes and every split of the layers."""
    rng = np.random.default_rng(seed)
    kinds, layers, nodes = 2, int(rng.integers(2, 6)), rng.integers(0, 3, 2)
    nodes[0] += nodes.sum() == 0
    values = rng.integers(0, 12, (4, 3, kinds, layers + 1)) / 4.0
    values[..., 0] = 0
    stages = int(nodes.sum())
    best = 0.0
    order = [c for c in range(kinds) for _ in range(nodes[c])]
    for turn in set(itertools.permutations(order)):
        for split in itertools.product(range(1, layers + 1), repeat=stages):
            if sum(split) == layers and stages <= values.shape[0]:
                roles = [0, *[1] * (stages - 2), 2] if stages > 1 else [0]
                slowest = min(values[stages - 1, role, c, j] for role, c, j in zip(roles, turn, split, strict=True))
                best = max(best, float(slowest))
    value, placement = best_pipeline(values, tuple(nodes.tolist()))
    assert value == best
    if placement is not None:
        assert throughput_of(values, placement) == value
        assert placement.node_set == tuple(nodes.tolist())


def test_hexgen_on_helix_pools() -> None:
    """One seed, one answer; nodes are used once; more generations never make it worse."""
    pool = load_pool("helix-24")
    short, long = (hexgen_search(pool.values, pool.counts, seed=1, generations=n) for n in (5, 60))
    again = hexgen_search(pool.values, pool.counts, seed=1, generations=60)
    assert long.pipelines == again.pipelines
    assert short.throughput <= long.throughput
    used = np.sum([placement.node_set for placement in long.pipelines], axis=0)
    assert (used <= np.array(pool.counts)).all()
    assert long.throughputs == tuple(throughput_of(pool.values, p) for p in long.pipelines)
    # In the class of placements in stages nothing beats 2045.641 tokens/s here, and HexGen's pipelines reach it.
    assert long.throughput <= place_pool(pool).bound * (1 + 1e-12)
