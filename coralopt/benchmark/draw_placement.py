"""Placement instances: a node set drawn by seed, with the real throughput tables of a model phase."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from coralopt.catalog.types import GIB, ModelArchitecture
from coralopt.errors import BenchmarkError
from coralopt.placement import PlacementProblem
from coralopt.scenario import ResolvedScenario, load_scenario
from coralopt.throughput import build_tables, throughput_source
from coralopt.types import Ints

#: A node set holds at least this many times the model's weights, so that most of them can serve it.
LEAST_MEMORY = 1.25
#: Where rho leaves no room for so many nodes, their memory may be this many times that of as many smallest ones.
ROOM = 1.5
#: Draws before a node set with enough memory is given up.
TRIES = 10_000


@lru_cache(maxsize=4)
def scenario_of(name: str) -> ResolvedScenario:
    """The scenario of this name or file, read once."""
    return load_scenario(name)


def generator(*parts: object) -> np.random.Generator:
    """The random numbers of an instance: they depend on the parts and nothing else."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def placement_problem(scenario: str, model_phase: str, nodes: int, seed: int) -> PlacementProblem:
    """The problem of one instance.

    Nodes are drawn one by one, each uniformly among the configurations that leave room for the others below
    rho times the weights (or below ``ROOM`` times the smallest possible set, where rho leaves no room at all).
    Sets with less memory than ``LEAST_MEMORY`` times the weights are drawn again.

    Raises:
        BenchmarkError: No such model phase, or no node set with enough memory.
    """
    resolved = scenario_of(scenario)
    phase = next((item for item in resolved.model_phases if item.key == model_phase), None)
    if phase is None:
        keys = ", ".join(item.key for item in resolved.model_phases)
        raise BenchmarkError(f"scenario {scenario} has no model phase {model_phase!r}; it has: {keys}")
    chosen = _node_set(resolved, phase.model, nodes, generator("placement", scenario, model_phase, nodes, seed))
    used = [c for c, count in enumerate(chosen) if count]
    configurations = [resolved.configurations[c] for c in used]
    tables = build_tables(throughput_source(resolved.throughput_source), phase, configurations, nodes)
    return PlacementProblem(
        values=tables.values,
        node_set=tuple(int(chosen[c]) for c in used),
        configurations=tuple(configuration.name for configuration in configurations),
    )


def _node_set(resolved: ResolvedScenario, model: ModelArchitecture, nodes: int, rng: np.random.Generator) -> Ints:
    memory = np.array([configuration.memory_gib for configuration in resolved.configurations])
    weights = model.weight_bytes / GIB
    least = float(memory.min())
    most = max(resolved.memory_ratio * weights, ROOM * nodes * least)
    for _ in range(TRIES):
        counts = np.zeros(len(memory), dtype=np.int64)
        total = 0.0
        for left in range(nodes - 1, -1, -1):
            allowed = np.flatnonzero(total + memory + left * least < most)
            pick = int(rng.choice(allowed))
            counts[pick] += 1
            total += float(memory[pick])
        if total >= LEAST_MEMORY * weights:
            return counts
    raise BenchmarkError(
        f"no set of {nodes} nodes with {LEAST_MEMORY} times the weights of {model.name} was drawn; use more nodes"
    )
