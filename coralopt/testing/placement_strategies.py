"""Hypothesis strategies for placement problems and broken placements, and an oracle that tries everything.

They are public: anyone who writes a solver of placement problems can hold it against them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from coralopt.placement import Placement, PlacementProblem, Stage
from coralopt.throughput.tables import stage_role
from coralopt.types import Floats


@st.composite
def throughput_values(
    draw: st.DrawFn,
    max_stages: int = 4,
    max_configurations: int = 3,
    max_layers: int = 6,
    falling: bool | None = None,
    role_free: bool | None = None,
) -> Floats:
    """float64 (S, 3, C, L + 1) of tokens/s: multiples of 1/8, so that small sums are exact whatever their order.

    Args:
        draw: Given by Hypothesis.
        max_stages: Largest S.
        max_configurations: Largest C.
        max_layers: Largest L.
        falling: Whether tokens/s never rise with more layers; ``None`` draws it.
        role_free: Whether first, middle and last stages have equal tables; ``None`` draws it.
    """
    stages, configurations, layers = (
        draw(st.sampled_from(range(most, 0, -1))) for most in (max_stages, max_configurations, max_layers)
    )
    # The entries come from a seed: drawn one by one they would be nearly all equal, which tests nothing.
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (stages, 3, configurations, layers + 1)
    # Few levels make ties common, many make optima unique. Dividing by the layers makes long pipelines pay.
    levels = draw(st.sampled_from((4000, 40, 6)))
    values: Floats = rng.integers(1, levels + 1, shape).astype(np.float64) * 4.0
    power = draw(st.sampled_from((2, 1, 0)))
    values[...] = np.ceil(values / np.maximum(np.arange(layers + 1), 1) ** power)
    values /= 8.0
    values[rng.random(shape) < draw(st.sampled_from((0.0, 0.0, 0.1, 0.3)))] = 0.0
    if draw(st.booleans()):  # too little memory from some layer count on
        limit = rng.integers((layers + 1) // 2, layers + 2, (configurations, 1))
        values[:, :, np.arange(layers + 1) >= limit] = 0.0
    values[..., 0] = 0.0
    if draw(st.booleans()) if falling is None else falling:
        values[..., 1:] = np.sort(values[..., 1:], axis=-1)[..., ::-1]
    if draw(st.booleans()) if role_free is None else role_free:
        values[:] = values[:, :1]
    if configurations > 1 and draw(st.sampled_from((False, False, True))):  # two that differ in name only
        values[:, :, 1] = values[:, :, 0]
    return values


@st.composite
def placement_problems(
    draw: st.DrawFn,
    max_nodes: int = 4,
    max_stages: int = 4,
    max_configurations: int = 3,
    max_layers: int = 6,
    falling: bool | None = None,
    role_free: bool | None = None,
) -> PlacementProblem:
    """Placement problems of at most ``max_nodes`` nodes, over all stage counts; see :func:`throughput_values`."""
    values = draw(throughput_values(max_stages, max_configurations, max_layers, falling, role_free))
    width = values.shape[2]
    count = draw(st.sampled_from(range(max_nodes, 0, -1)))
    nodes = draw(st.lists(st.integers(0, width - 1), min_size=count, max_size=count))
    return PlacementProblem(
        values=values,
        node_set=tuple(nodes.count(c) for c in range(width)),
        configurations=tuple(f"c{c}" for c in range(width)),
    )


def every_placement(problem: PlacementProblem) -> Iterator[Placement]:
    """Every placement of the problem whose nodes can hold their layers; exponential, for tiny problems only."""
    nodes = [c for c, count in enumerate(problem.node_set) for _ in range(count)]
    width = len(problem.node_set)
    for stages in problem.stage_counts:
        groups = set()
        for to in itertools.product(range(stages), repeat=len(nodes)):
            counts = [[0] * width for _ in range(stages)]
            for configuration, stage in zip(nodes, to, strict=True):
                counts[stage][configuration] += 1
            if all(map(any, counts)):
                groups.add(tuple(map(tuple, counts)))
        for cuts in itertools.combinations(range(1, problem.layers), stages - 1):
            layers = [end - begin for begin, end in itertools.pairwise((0, *cuts, problem.layers))]
            for group in sorted(groups):
                holds = all(
                    problem.values[stages - 1, stage_role(s, stages), c, layers[s]] > 0
                    for s in range(stages)
                    for c in range(width)
                    if group[s][c]
                )
                if holds:
                    yield Placement(tuple(Stage(j, g) for j, g in zip(layers, group, strict=True)))


def best_by_enumeration(problem: PlacementProblem) -> tuple[float, int]:
    """Best throughput in tokens/s and the smallest stage count that reaches it, by trying every placement; else (0, 0).

    Exact for the tables of :func:`throughput_values`.
    """
    best, stages = 0.0, 0
    for placement in every_placement(problem):
        count = len(placement.stages)
        value = min(
            sum(
                nodes * problem.values[count - 1, stage_role(s, count), c, stage.layers]
                for c, nodes in enumerate(stage.nodes)
            )
            for s, stage in enumerate(placement.stages)
        )
        if value > best:
            best, stages = float(value), count
    return best, stages


@st.composite
def corrupted(draw: st.DrawFn, placement: Placement) -> Placement:
    """``placement`` with one thing broken, so that no checker may accept it for the same problem."""
    stages = list(placement.stages)
    s = draw(st.integers(0, len(stages) - 1))
    layers, nodes = stages[s].layers, list(stages[s].nodes)
    c = draw(st.integers(0, len(nodes) - 1))
    kind = draw(st.sampled_from(("more layers", "fewer layers", "more nodes", "fewer nodes", "no stage", "width")))
    if kind == "more layers":
        layers += draw(st.integers(1, 5))
    elif kind == "fewer layers":
        layers -= draw(st.integers(1, 5))
    elif kind == "more nodes":
        nodes[c] += draw(st.integers(1, 3))
    elif kind == "fewer nodes":
        nodes[c] -= draw(st.integers(1, 3))
    elif kind == "width":
        nodes.append(0)
    if kind == "no stage":
        del stages[s]
    else:
        stages[s] = Stage(layers, tuple(nodes))
    return Placement(tuple(stages))
