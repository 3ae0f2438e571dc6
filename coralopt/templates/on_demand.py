"""Templates on demand: where there are too many node sets to place each, those that pay at some prices become templates.

The prices are those of :mod:`coralopt.templates.instance_prices`, over node sets of any size. What this leaves out is not
lost to the proof: the bound of :class:`coralopt.templates.certificate.AnySizeBounds` is over all node sets.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from coralopt.catalog.types import GIB
from coralopt.scenario.facts.facts import PlacementRules
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.estimate import has_more_node_sets
from coralopt.templates.instance_prices import PricedPipeline
from coralopt.templates.library import COLUMNS, PhaseTemplates
from coralopt.templates.node_sets import (
    MOST_SMALLER,
    AffordableNodes,
    affordable_node_sets,
    parts_of_node_set,
)
from coralopt.types import Floats, Ints

#: Node sets of all model phases from which on templates are made on demand, unless the scenario says otherwise.
MOST_NODE_SETS = 20_000_000
#: Node sets of more nodes are placed as they were priced.
MOST_SWEPT = 6
#: A node set near another one costs so much of it at least and at most, and brings so many smaller ones along at most.
CHEAPER, DEARER, MOST_NEAR = 0.8, 1.05, 256


def is_on_demand(scenario: ResolvedScenario) -> bool:
    """Whether templates are made on demand: as the scenario says, or because there are too many node sets."""
    if scenario.templates is not None:
        return scenario.templates == "on-demand"
    return has_more_node_sets(scenario, MOST_NODE_SETS)


class NodeSetFamily:
    """Node sets of one model phase, with all that are smaller, as the placement sweep wants them.

    Args:
        scenario: N_max, rho and configurations.
        phase: The model phase. Every single node is in from the beginning, and what runs already.
        values: float64 (S, 3, C, L + 1), tokens/s of one node.
    """

    def __init__(self, scenario: ResolvedScenario, phase: ModelPhase, values: Floats) -> None:
        # Prices know nothing of engine limits and links; where there are some, every placement is that of the sweep.
        self._most_swept = MOST_SWEPT if scenario.placement == PlacementRules() else scenario.max_nodes
        self._values, self._large, self._width = values, dict[tuple[int, ...], PricedPipeline](), scenario.max_nodes
        names = [configuration.name for configuration in scenario.configurations]
        self._memory = np.array([configuration.memory_gib for configuration in scenario.configurations])
        self._most = scenario.max_nodes, scenario.memory_ratio * phase.model.weight_bytes / GIB
        self._sets = {tuple(row) for row in np.eye(len(names), dtype=int).tolist()}
        self._fresh: set[tuple[int, ...]] = set()
        #: Closed under taking a node away, unlike those.
        self._affordable: set[tuple[int, ...]] = set()
        self.add([entry.nodes.get(name, 0) for name in names] for entry in scenario.running if entry.key == phase.key)

    def add(self, node_sets: Iterable[Iterable[int]]) -> bool:
        """Add node sets that N_max and rho allow; whether any of them is new."""
        before = len(self._sets)
        for row in node_sets:
            nodes = np.array(list(row))
            known = tuple(nodes.tolist()) in self._sets
            if known or float(np.prod(nodes + 1.0)) > MOST_SMALLER or not self._allows(nodes):
                continue
            self._fresh.add(tuple(nodes.tolist()))
            self._sets.update(parts_of_node_set(tuple(nodes.tolist())))
        return len(self._sets) > before

    def add_pipelines(self, pipelines: Iterable[PricedPipeline]) -> bool:
        """Add node sets of pipelines, large ones placed as they are and alone; whether any is new."""
        before = len(self)
        for pipeline in pipelines:
            nodes = pipeline.node_set
            if nodes.sum() <= self._most_swept:
                self.add([nodes.tolist()])
            elif self._allows(nodes):
                best = self._large.setdefault(tuple(nodes.tolist()), pipeline)
                if pipeline.tokens_s(self._values) > best.tokens_s(self._values):
                    self._large[tuple(nodes.tolist())] = pipeline
        return len(self) > before

    def affordable(self, offer: AffordableNodes) -> npt.NDArray[np.int8] | None:
        """int8 (M, C): every node set that some region has and that costs no more; ``None`` if these are too many."""
        return affordable_node_sets(self._memory.tolist(), *self._most, offer)

    def add_affordable(self, node_sets: npt.NDArray[np.int8]) -> None:
        """Add node sets that are closed under taking a node away."""
        self._affordable = {tuple(row) for row in node_sets.tolist()}
        self._sets |= self._affordable

    def _allows(self, nodes: Ints) -> bool:
        return bool(nodes.sum() <= 1 or (nodes.sum() <= self._most[0] and nodes @ self._memory < self._most[1]))

    def large(self, key: str) -> PhaseTemplates:
        """The large pipelines as templates of the model phase of this key."""
        nodes, layers = (np.zeros((len(self._large), self._width), dtype=np.int16) for _ in range(2))
        stages = np.full_like(nodes, -1)
        nodes -= 1
        for t, pipeline in enumerate(self._large.values()):
            stage, kind = np.nonzero(pipeline.nodes)
            many = pipeline.nodes[stage, kind]
            layers[t, : len(pipeline.layers)] = pipeline.layers
            nodes[t, : many.sum()], stages[t, : many.sum()] = np.repeat(kind, many), np.repeat(stage, many)
        return PhaseTemplates(
            key=key,
            usage=np.array(list(self._large), dtype=np.int16).reshape(-1, len(self._memory)),
            throughput=np.array([pipeline.tokens_s(self._values) for pipeline in self._large.values()]),
            stage_layers=layers,
            node_configuration=nodes.astype(np.int8),
            node_stage=stages.astype(np.int8),
            examined=len(self._large),
        )

    def add_near(self, nodes: Ints, price_usd_h: Floats) -> bool:
        """Add what comes of one node more or of another kind, where it costs about as much; whether any is new.

        Args:
            nodes: int64 (C,).
            price_usd_h: float64 (C,), infinite where a node cannot be had.
        """
        kinds, kept = np.eye(len(nodes), dtype=int), np.flatnonzero(nodes)
        fewer = np.vstack([nodes, nodes - kinds[kept]])
        near = (fewer[:, None, :] + kinds[None, np.isfinite(price_usd_h)]).reshape(-1, len(nodes))
        cost = near @ np.where(np.isfinite(price_usd_h), price_usd_h, 0.0)
        own = float(nodes[kept] @ price_usd_h[kept])
        worth = (CHEAPER * own <= cost) & (cost <= DEARER * own) & (np.prod(near + 1.0, axis=1) <= MOST_NEAR)
        return self.add(near[worth].tolist())

    def __len__(self) -> int:
        return len(self._sets) + len(self._large)

    def fresh_rows(self) -> npt.NDArray[np.int8]:
        """int8 (M, C): what came since the last call, every smaller node set and every single node with it.

        Sorted by the number of nodes, then lexicographically.
        """
        several = {tuple(row) for row in np.eye(len(self._memory), dtype=int).tolist()}
        several.update(part for nodes in self._fresh for part in parts_of_node_set(nodes))
        several |= self._affordable
        self._fresh.clear()
        self._affordable.clear()
        return np.array(sorted(several, key=lambda row: (sum(row), row)), dtype=np.int8)


def with_templates(have: PhaseTemplates, other: PhaseTemplates) -> PhaseTemplates:
    """The templates, and those of another part whose node sets are new."""
    known = {row.tobytes() for row in have.usage}
    new = np.array([row.tobytes() not in known for row in other.usage], dtype=bool)
    columns = {name: np.concatenate([getattr(have, name), getattr(other, name)[new]]) for name in COLUMNS}
    return PhaseTemplates(key=have.key, examined=have.examined + int(new.sum()), **columns)
