"""Cells of a stage: how the throughput of stages may depend on one another, and what a placement then serves.

Throughput tables may have one more axis, the *cell* k of a stage:

* :class:`Budgets`: k is the number of latency units the stage gets, a unit being SLO / (S u). The units of all S stages
  add up to at most S u, so that the whole stays within the SLO. The paper gives u units to each.
* :class:`Links`: k is the bandwidth class of the slowest node of the *next* stage, which takes the activations. The
  paper looks at the sender alone: its plain tables are one cell, which every receiver leaves a stage in.

Cells are not part of a :class:`Placement`: given layers and nodes, the best ones follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from coralopt.placement.problem_parts import Placement
from coralopt.throughput.tables import stage_role
from coralopt.types import Floats


@dataclass(frozen=True)
class Budgets:
    """Free latency budgets.

    Attributes:
        units: u, units a stage has on average.
    """

    units: int

    def total(self, stages: int) -> int:
        """Units of all stages together."""
        return self.units * stages


@dataclass(frozen=True)
class Links:
    """Network-aware stages.

    Attributes:
        classes: Rank of the network bandwidth of each configuration, length C.
    """

    classes: tuple[int, ...]

    def slowest(self, nodes: Iterable[int]) -> int:
        """Class of the slowest of these nodes, counted by configuration; 0 where there is none."""
        return min((self.classes[c] for c, count in enumerate(nodes) if count > 0), default=0)


Coupling = Budgets | Links


def with_cells(values: Floats, coupling: Coupling | None) -> tuple[Floats, Coupling]:
    """Tables with an axis of cells, float64 (S, 3, C, K, L + 1), and what a cell is; a plain table is one cell."""
    if coupling is not None:
        return values, coupling
    return values[:, :, :, None], Links((0,) * values.shape[2])


def best_cells(values: Floats, placement: Placement, coupling: Coupling | None = None) -> tuple[float, tuple[int, ...]]:
    """Throughput of a placement with its best cells, tokens/s, and the cell of each stage; (0, ()) when there is none.

    A stage serves the sum over its nodes, taken in the order of the configurations, count times tokens/s, so that the
    same placement always gives the same float. The slowest stage decides.

    Args:
        values: float64 (S, 3, C, K, L + 1), tokens/s of one node; (S, 3, C, L + 1) without a coupling.
        placement: At most S stages of 0..L layers.
        coupling: What a cell is.
    """
    values, coupling = with_cells(values, coupling)
    count = len(placement.stages)
    speeds = _stage_speeds(values, placement)
    if isinstance(coupling, Links):
        cells = (*(coupling.slowest(stage.nodes) for stage in placement.stages[1:]), values.shape[3] - 1)
        throughput = min((float(speeds[s, k]) for s, k in zip(range(count), cells, strict=False)), default=0.0)
        return (throughput, cells) if throughput > 0 else (0.0, ())
    # The optimum is one of the speeds: the largest that every stage reaches with few enough units.
    for target in np.unique(speeds[speeds > 0])[::-1]:
        enough = speeds >= target
        if enough.any(axis=1).all():
            units = enough.argmax(axis=1)
            if units.sum() <= coupling.total(count):
                return float(target), tuple(int(unit) for unit in units)
    return 0.0, ()


def throughput_of(values: Floats, placement: Placement, coupling: Coupling | None = None) -> float:
    """Throughput of a placement with its best cells, tokens/s; arguments as of :func:`best_cells`.

    0 when a node cannot hold the layers of its stage, or a stage has no node.
    """
    return best_cells(values, placement, coupling)[0]


def _stage_speeds(values: Floats, placement: Placement) -> Floats:
    """float64 (S, K), tokens/s of every stage in every cell; 0 where one of its nodes cannot hold its layers."""
    count = len(placement.stages)
    speeds = np.zeros((count, values.shape[3]))
    for position, stage in enumerate(placement.stages):
        table = values[count - 1, stage_role(position, count), :, :, stage.layers]
        possible = np.ones(values.shape[3], dtype=bool)
        for c, nodes in enumerate(stage.nodes):
            if nodes > 0:
                speeds[position] += nodes * table[c]
                possible &= table[c] > 0
        speeds[position, ~possible] = 0.0
    return speeds


def max_flow_throughput(values: Floats, placement: Placement) -> Fraction:
    """Throughput of a placement as a maximum flow, in exact arithmetic, tokens/s; for plain tables (S, 3, C, L + 1).

    Tokens flow through one node of every stage. Each node is split into an arc of capacity T_j(g); every node of a
    stage feeds every node of the next one without limit. The value is the least stage sum, found by a route that
    knows nothing of stages, so it confirms :func:`throughput_of`.
    """
    import networkx

    count = len(placement.stages)
    graph: Any = networkx.DiGraph()  # networkx has no types
    graph.add_nodes_from(("source", "sink"))
    exits: list[tuple[object, ...] | str] = ["source"]
    for position, stage in enumerate(placement.stages):
        role = stage_role(position, count)
        here = [(position, c, copy) for c, nodes in enumerate(stage.nodes) for copy in range(nodes)]
        for node in here:
            capacity = Fraction(float(values[count - 1, role, node[1], stage.layers]))
            graph.add_edge((*node, "in"), (*node, "out"), capacity=capacity)
            for origin in exits:
                graph.add_edge(origin, (*node, "in"))
        exits = [(*node, "out") for node in here]
    for origin in exits:
        graph.add_edge(origin, "sink")
    flow = networkx.maximum_flow_value(graph, "source", "sink", flow_func=networkx.algorithms.flow.edmonds_karp)
    return Fraction(flow)
