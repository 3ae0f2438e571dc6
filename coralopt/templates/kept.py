"""Instances that run already, as the bounds over node sets of any size know them: they pay no penalty for starting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.build import build_library
from coralopt.templates.node_sets import MOST_SMALLER, parts_of_node_set
from coralopt.throughput import ThroughputTables
from coralopt.types import Ints


@dataclass(frozen=True, eq=False)
class KeptInstances:
    """Equal instances of a model phase that may stay.

    Attributes:
        region: Index of their region.
        nodes: int64 (C,), nodes of one.
        count: How many run.
        tokens_s: What one serves at most; infinite where its placement was not looked for.
    """

    region: int
    nodes: Ints
    count: int
    tokens_s: float


def kept_instances(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> list[list[KeptInstances]]:
    """What runs of every model phase, in the best placement of its nodes."""
    keys, names = [phase.key for phase in scenario.model_phases], [host.name for host in scenario.configurations]
    kept: list[list[KeptInstances]] = [[] for _ in keys]
    several = [{tuple(row) for row in np.eye(len(names), dtype=int).tolist()} for _ in keys]
    for entry in scenario.running:
        if entry.key in keys and entry.region in scenario.regions and set(entry.nodes) <= set(names):
            m, nodes = keys.index(entry.key), tuple(entry.nodes.get(name, 0) for name in names)
            region = scenario.regions.index(entry.region)
            kept[m].append(KeptInstances(region, np.array(nodes), entry.count, math.inf))
            if math.prod(n + 1 for n in nodes) <= MOST_SMALLER:
                several[m].update(parts_of_node_set(nodes))
    if not any(kept):
        return kept
    rows = [np.array(sorted(sets, key=lambda row: (sum(row), row)), dtype=np.int8) for sets in several]
    library = build_library(scenario, tables, node_sets=rows)
    for m, phase in enumerate(library.phases):
        # What was looked at and is no template serves nothing.
        speed = dict.fromkeys(several[m], 0.0)
        speed |= {tuple(row): float(s) for row, s in zip(phase.usage.tolist(), phase.throughput, strict=True)}
        kept[m] = [replace(item, tokens_s=speed.get(tuple(item.nodes.tolist()), math.inf)) for item in kept[m]]
    return kept
