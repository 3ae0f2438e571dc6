"""Layouts that Helix's search begins with: simple heuristics of earlier systems, as its artifact has them."""

from __future__ import annotations

import math

import numpy as np

from coralopt.placement import Placement
from coralopt.planning.rivals.helix import HelixLayout, HelixProblem


def swarm_layout(problem: HelixProblem, stages: int | None = None) -> HelixLayout | None:
    """Equal stages that even the smallest node can hold, nodes spread so that the weakest stage is strong (SWARM).

    Nodes go one by one, the fastest first, to the stage that has least throughput so far.

    Args:
        problem: The cluster.
        stages: Number of stages; the fewest that every node can hold one of when ``None``.

    Returns:
        The layout, or ``None`` where there are fewer nodes than stages or a node cannot hold a stage.
    """
    able = [int(np.flatnonzero(problem.table[c])[-1]) for c in problem.node_kind.tolist()]
    count = math.ceil(problem.layers / min(able)) if stages is None else stages
    if not 1 <= count <= min(problem.nodes, problem.layers):
        return None
    sizes = [problem.layers // count + (s < problem.layers % count) for s in range(count)]
    firsts = np.cumsum([0, *sizes]).tolist()
    totals = [0.0] * count
    first, layers = [0] * problem.nodes, [0] * problem.nodes
    order = sorted(range(problem.nodes), key=lambda i: (-problem.table[problem.node_kind[i], sizes[0]], i))
    for i in order:
        speeds = [float(problem.table[problem.node_kind[i], size]) for size in sizes]
        if min(speeds) <= 0:
            return None
        stage = min(range(count), key=lambda s: (totals[s], s))
        totals[stage] += speeds[stage]
        first[i], layers[i] = firsts[stage], sizes[stage]
    return HelixLayout(tuple(first), tuple(layers))


def separate_layout(problem: HelixProblem) -> HelixLayout | None:
    """A pipeline of its own for every kind of node, each with the stage count of most throughput; leftovers hold layer 0."""
    first, layers = [0] * problem.nodes, [1] * problem.nodes
    alone = False
    for c in range(len(problem.kinds)):
        nodes = np.flatnonzero(problem.node_kind == c)
        if not len(nodes):
            continue
        part = HelixProblem(problem.table, problem.node_kind[nodes], problem.kinds)
        best: tuple[float, HelixLayout] | None = None
        for count in range(1, min(len(nodes), problem.layers) + 1):
            layout = swarm_layout(part, count)
            if layout is not None:
                value = float(part.flow(layout)[0])
                best = (value, layout) if best is None or value > best[0] else best
        able = int(np.flatnonzero(problem.table[c])[0])
        for position, i in enumerate(nodes.tolist()):
            first[i], layers[i] = (0, able) if best is None else (best[1].first[position], best[1].layers[position])
        alone = alone or best is not None
    return HelixLayout(tuple(first), tuple(layers)) if alone else None


def staged_layout(problem: HelixProblem, placement: Placement) -> HelixLayout:
    """A placement in stages as a layout; idle nodes hold as few layers as they can, from layer 0 on.

    Args:
        problem: The cluster.
        placement: Stages with node counts by kind; no more nodes than there are.
    """
    free = {c: np.flatnonzero(problem.node_kind == c).tolist() for c in range(len(problem.kinds))}
    first, layers = [0] * problem.nodes, [0] * problem.nodes
    begin = 0
    for stage in placement.stages:
        for c, count in enumerate(stage.nodes):
            for _ in range(count):
                i = free[c].pop(0)
                first[i], layers[i] = begin, stage.layers
        begin += stage.layers
    for c, idle in free.items():
        for i in idle:
            layers[i] = int(np.flatnonzero(problem.table[c])[0])
    return HelixLayout(tuple(first), tuple(layers))
