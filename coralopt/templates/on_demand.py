"""Templates on demand: where there are too many node sets to place each, those that pay at some prices become templates.

The prices are those of :mod:`coralopt.templates.instance_prices`, over node sets of any size. What this leaves out is not
lost to the proof: the bound of :class:`coralopt.templates.certificate.AnySizeBounds` is over all node sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from coralopt.catalog.types import GIB
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario
from coralopt.templates.estimate import has_more_node_sets
from coralopt.types import Ints

#: Node sets of all model phases from which on templates are made on demand, unless the scenario says otherwise.
MOST_NODE_SETS = 20_000_000
#: A node set brings every smaller one along; one that has more than this many is left out.
MOST_SMALLER = 4096


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
    """

    def __init__(self, scenario: ResolvedScenario, phase: ModelPhase) -> None:
        names = [configuration.name for configuration in scenario.configurations]
        self._memory = np.array([configuration.memory_gib for configuration in scenario.configurations])
        self._most = scenario.max_nodes, scenario.memory_ratio * phase.model.weight_bytes / GIB
        self._sets = {tuple(row) for row in np.eye(len(names), dtype=int).tolist()}
        self.add([entry.nodes.get(name, 0) for name in names] for entry in scenario.running if entry.key == phase.key)

    def add(self, node_sets: Iterable[Iterable[int]]) -> bool:
        """Add node sets that N_max and rho allow; whether any of them is new."""
        before = len(self._sets)
        for row in node_sets:
            nodes = np.array(list(row))
            memory, smaller = float(nodes @ self._memory), float(np.prod(nodes + 1.0))
            if tuple(nodes.tolist()) in self._sets or smaller > MOST_SMALLER:
                continue
            if nodes.sum() > 1 and (nodes.sum() > self._most[0] or memory >= self._most[1]):
                continue
            kinds = np.flatnonzero(nodes)
            for counts in itertools.product(*(range(n + 1) for n in nodes[kinds].tolist())):
                part = np.zeros(len(nodes), dtype=int)
                part[kinds] = counts
                self._sets.add(tuple(part.tolist()))
        self._sets.discard((0,) * len(self._memory))
        return len(self._sets) > before

    def add_near(self, nodes: Ints) -> bool:
        """Add what comes of one node more or less, or of another kind, in every way; whether any is new."""
        kinds = np.eye(len(nodes), dtype=int)
        fewer = [nodes, *(nodes - kinds[c] for c in np.flatnonzero(nodes))]
        return self.add(row for less in fewer for row in (less + kinds).tolist())

    def rows(self) -> npt.NDArray[np.int8]:
        """int8 (M, C), sorted by the number of nodes, then lexicographically."""
        rows: Ints = np.array(sorted(self._sets, key=lambda row: (sum(row), row)))
        return rows.astype(np.int8)
