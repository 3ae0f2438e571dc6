"""Helix: layer ranges for the nodes of a fixed cluster, by a programme of maximum flow.

Every node i holds one range of layers [start_i, start_i + k), k >= 1; ranges may overlap in any way. A request may go from
node i to node j where j's range begins exactly where i's ends, from the source to a node whose range begins at layer 0,
and to the sink from one whose range ends at the last layer. A node passes T_k tokens/s; the throughput of the cluster is the
maximum flow (Mei et al., "Helix: Serving Large Language Models over Heterogeneous GPUs and Network via Max-Flow", ASPLOS
2025; its artifact's ``ilp_layout.py``, commit 148b733)::

    max  sum_j flow[source, j]
    s.t. sum_k hold[i, k] = 1                            one range a node
         start[i] + sum_k k hold[i, k] <= L
         sum_j flow[j, i] = sum_j flow[i, j]             every node i
         sum_j flow[j, i] <= sum_k T_k hold[i, k]        every node i
         end[i] - start[j] <= L (1 - switch[i, j])       switch[i, j] = 1 only where end_i = start_j,
         start[j] - end[i] <= L (1 - switch[i, j])       with end[source] = 0 and start[sink] = L
         flow[i, j] <= cap[i, j] switch[i, j]
         hold, switch binary; start integer; flow >= 0

``cap`` is what the link carries, at most what either of its nodes can pass. Placements in stages, as coralopt's own pool
search makes them, are layouts too; so Helix's optimum is never below theirs, where T does not depend on the number
of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Check, Formulation, Violation
from coralopt.solving.problem import VariableIndex, VariableValues
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from pyomo.core.expr.numeric_expr import NumericValue
    from pyomo.environ import ConcreteModel

SOURCE, SINK = "source", "sink"
#: A directed link: a node by its number, or the source or the sink.
Arc = tuple[int | str, int | str]


@dataclass(frozen=True)
class HelixLayout:
    """Layer ranges by node.

    Attributes:
        first: First layer a node holds, from 0.
        layers: How many it holds, 1 or more.
    """

    first: tuple[int, ...]
    layers: tuple[int, ...]

    def ends(self) -> tuple[int, ...]:
        """First layer after each range."""
        return tuple(start + held for start, held in zip(self.first, self.layers, strict=True))


@dataclass(frozen=True, eq=False)
class HelixProblem:
    """Hold layers on the nodes of a cluster so that the flow of tokens is largest.

    Attributes:
        table: float64 (C, L + 1), tokens/s of one node by kind and layers held; 0: it cannot.
        node_kind: int64 (N,), kind of each node.
        kinds: Names of the kinds, length C.

    Raises:
        SolverError: The parts do not fit together, or a node can hold no layer.
    """

    table: Floats
    node_kind: Ints
    kinds: tuple[str, ...]

    kind: ClassVar[str] = "helix"
    sense: ClassVar[Literal["min", "max"]] = "max"
    default_formulation: ClassVar[str] = "published"

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or self.table.shape[0] != len(self.kinds) or self.table.shape[1] < 2:
            raise SolverError(f"table has shape {self.table.shape}, expected ({len(self.kinds)}, L + 1) with L >= 1")
        if not (np.isfinite(self.table).all() and (self.table >= 0).all()):
            raise SolverError(
                "table holds negative or non-finite tokens/s; use 0 for a node that cannot hold the layers"
            )
        nodes = len(self.node_kind)
        if nodes < 1 or self.node_kind.min() < 0 or self.node_kind.max() >= len(self.kinds):
            raise SolverError(f"node_kind must name a kind 0..{len(self.kinds) - 1} for at least one node")
        for c in sorted(set(self.node_kind.tolist())):
            if not (self.table[c, 1:] > 0).any():
                raise SolverError(f"{self.kinds[c]} can hold no layer at all; leave it out of the pool")

    @property
    def layers(self) -> int:
        """Layers of the model, L."""
        return int(self.table.shape[1]) - 1

    @property
    def nodes(self) -> int:
        return len(self.node_kind)

    @cached_property
    def able(self) -> tuple[list[int], ...]:
        """Numbers of layers that each node can hold, 1 or more."""
        return tuple((1 + np.flatnonzero(self.table[c, 1:] > 0)).tolist() for c in self.node_kind.tolist())

    @cached_property
    def unit(self) -> float:
        """The best node's tokens/s: flows of the programme count in it, so that coefficients stay near 1."""
        return float(self.table[self.node_kind].max())

    @cached_property
    def links(self) -> list[Arc]:
        """Every arc that some layout allows."""
        nodes = range(self.nodes)
        ends: list[Arc] = [*((SOURCE, i) for i in nodes), *((i, SINK) for i in nodes)]
        return ends + [(i, j) for i in nodes for j in nodes if i != j]

    def capacity(self, origin: int | str, target: int | str) -> float:
        """tokens/s that an arc can carry at most: what either node passes at best."""
        return min(float(self.table[self.node_kind[n]].max()) for n in (origin, target) if isinstance(n, int))

    @cached_property
    def compute_bound(self) -> float:
        """Helix's own bound, tokens/s: a token takes L layers, a node gives at most max_k k T_k of them a second."""
        gives = (self.table * np.arange(self.layers + 1)).max(axis=1)
        return float(sum(gives[c] for c in self.node_kind.tolist())) / self.layers

    def arcs(self, layout: HelixLayout) -> list[Arc]:
        """Arcs that a layout allows."""
        ends = layout.ends()
        arcs: list[Arc] = []
        for i in range(self.nodes):
            if layout.first[i] == 0:
                arcs.append((SOURCE, i))
            if ends[i] == self.layers:
                arcs.append((i, SINK))
            arcs += [(i, j) for j in range(self.nodes) if i != j and ends[i] == layout.first[j]]
        return arcs

    def flow(self, layout: HelixLayout) -> tuple[Fraction, dict[Arc, Fraction]]:
        """Maximum flow of a layout in exact arithmetic: its value and what each arc carries, tokens/s."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from((SOURCE, SINK))
        for i, (c, held) in enumerate(zip(self.node_kind.tolist(), layout.layers, strict=True)):
            graph.add_edge((i, "in"), (i, "out"), capacity=Fraction(float(self.table[c, held])))
        arcs = {(o, t): (o if o == SOURCE else (o, "out"), t if t == SINK else (t, "in")) for o, t in self.arcs(layout)}
        for arc, (tail, head) in arcs.items():
            graph.add_edge(tail, head, capacity=Fraction(self.capacity(*arc)))
        value, flows = networkx.maximum_flow(
            graph, SOURCE, SINK, flow_func=networkx.algorithms.flow.shortest_augmenting_path
        )
        return Fraction(value), {arc: Fraction(flows[tail][head]) for arc, (tail, head) in arcs.items()}

    def formulations(self) -> Mapping[str, Formulation[HelixProblem, HelixLayout]]:
        """Formulations by name."""
        return {"published": HelixFormulation()}

    def check(self, answer: HelixLayout) -> Check:
        """Whether every node holds a range it can hold, and the maximum flow, by networkx in exact arithmetic."""
        if len(answer.first) != self.nodes or len(answer.layers) != self.nodes:
            return Check.no_answer(f"a range for each of {self.nodes} nodes is expected")
        wrong = []
        for i, (c, start, held) in enumerate(zip(self.node_kind.tolist(), answer.first, answer.layers, strict=True)):
            if start < 0 or held < 1 or start + held > self.layers:
                text = f"node {i} holds layers {start} to {start + held} of {self.layers}"
                wrong.append(Violation("placement", f"node {i}", text))
            elif self.table[c, held] <= 0:
                wrong.append(Violation("memory", f"node {i}", f"node {i} ({self.kinds[c]}) cannot hold {held} layers"))
        return Check(not wrong, 0.0 if wrong else float(self.flow(answer)[0]), tuple(wrong))


class HelixFormulation:
    """The programme of the module docstring."""

    name: ClassVar[str] = "published"

    def build(self, problem: HelixProblem) -> ConcreteModel:
        """Pyomo model with ``start``, ``hold``, ``flow``, ``switch``."""
        import pyomo.environ as pyo

        nodes, layers, able, unit = range(problem.nodes), problem.layers, problem.able, problem.unit
        arcs = problem.links
        model = pyo.ConcreteModel(name="helix")
        model.start = pyo.Var(nodes, domain=pyo.NonNegativeIntegers, bounds=(0, layers - 1))
        model.hold = pyo.Var([(i, k) for i in nodes for k in able[i]], domain=pyo.Binary)
        model.flow = pyo.Var(arcs, domain=pyo.NonNegativeReals)
        model.switch = pyo.Var(arcs, domain=pyo.Binary)
        into = {i: sum(model.flow[arc] for arc in arcs if arc[1] == i) for i in nodes}
        out = {i: sum(model.flow[arc] for arc in arcs if arc[0] == i) for i in nodes}

        def begin(node: int | str) -> NumericValue | int:
            return layers if node == SINK else model.start[node]

        def end(node: int | str) -> NumericValue | int:
            return 0 if isinstance(node, str) else model.start[node] + sum(k * model.hold[node, k] for k in able[node])

        model.one_range = pyo.Constraint(nodes, rule=lambda _, i: sum(model.hold[i, k] for k in able[i]) == 1)
        model.inside = pyo.Constraint(nodes, rule=lambda _, i: end(i) <= layers)
        model.conserve = pyo.Constraint(nodes, rule=lambda _, i: into[i] == out[i])
        model.passes = pyo.Constraint(
            nodes,
            rule=lambda _, i: (
                into[i] <= sum(float(problem.table[problem.node_kind[i], k]) / unit * model.hold[i, k] for k in able[i])
            ),
        )
        model.not_after = pyo.Constraint(
            arcs, rule=lambda _, i, j: end(i) - begin(j) <= layers * (1 - model.switch[i, j])
        )
        model.not_before = pyo.Constraint(
            arcs, rule=lambda _, i, j: begin(j) - end(i) <= layers * (1 - model.switch[i, j])
        )
        model.link = pyo.Constraint(
            arcs, rule=lambda _, i, j: model.flow[i, j] <= problem.capacity(i, j) / unit * model.switch[i, j]
        )
        model.objective = pyo.Objective(expr=unit * sum(model.flow[SOURCE, i] for i in nodes), sense=pyo.maximize)
        return model

    def read(self, problem: HelixProblem, value: Callable[[str, VariableIndex], float]) -> HelixLayout:
        """The ranges; the checker works out their flow by itself."""
        return HelixLayout(
            tuple(round(value("start", i)) for i in range(problem.nodes)),
            tuple(sum(k * round(value("hold", (i, k))) for k in held) for i, held in enumerate(problem.able)),
        )

    def start(self, problem: HelixProblem, answer: HelixLayout) -> VariableValues:
        """A layout with a maximum flow in the variables of this formulation."""
        values: dict[tuple[str, VariableIndex], float] = {("start", i): first for i, first in enumerate(answer.first)}
        for i, held in enumerate(problem.able):
            values |= {("hold", (i, k)): float(k == answer.layers[i]) for k in held}
        carried = problem.flow(answer)[1]
        for arc in problem.links:
            amount = float(carried.get(arc, Fraction(0))) / problem.unit
            values["flow", arc], values["switch", arc] = amount, float(amount > 0)
        return values
