"""A fixed pool of nodes for one model: the problem Helix solves, stage by stage, with nodes of a kind interchangeable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from coralopt.errors import SolverError
from coralopt.placement.cells import throughput_of
from coralopt.placement.pool_serving import PoolServing
from coralopt.placement.problem_parts import Placement
from coralopt.solving.problem import Check, Violation
from coralopt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class PlacementPool:
    """Place one replica of a model on some or all nodes of a pool so that its throughput in tokens/s is largest.

    Unlike a :class:`PlacementProblem`, nodes may stay idle, and the pool may be far too large to enumerate.

    Attributes:
        name: What it is called.
        values: float64 (S, 3, C, L + 1), tokens/s, as in :class:`PlacementProblem`.
        counts: Nodes of each configuration, length C.
        configurations: Names of the configurations, length C.
        stage_free: Whether ``values`` is the same for every stage count.
        cache_tokens: int64 (C, L + 1), tokens whose KV entries fit on a node with j layers, or ``None``.
        stage_ms: float64 (S, 3, C, L + 1), ms of one micro-batch in a stage, or ``None``.
        source: Where the figures come from.
        serving: Step times, links and lengths of requests, for what the pool serves, or ``None``.

    Raises:
        SolverError: The parts do not fit together.
    """

    name: str
    values: Floats
    counts: tuple[int, ...]
    configurations: tuple[str, ...]
    stage_free: bool = False
    cache_tokens: Ints | None = None
    stage_ms: Floats | None = None
    source: str = ""
    serving: PoolServing | None = None

    def __post_init__(self) -> None:
        shape = self.values.shape
        if len(shape) != 4 or shape[0] < 1 or shape[1] != 3 or shape[3] < 2:
            raise SolverError(f"values has shape {shape}; it must be (S, 3, C, L + 1) with S >= 1 and L >= 1")
        if len(self.counts) != shape[2] or len(self.configurations) != shape[2]:
            raise SolverError(
                f"counts has {len(self.counts)} and configurations {len(self.configurations)} entries, but values "
                f"knows {shape[2]} configurations"
            )
        if min(self.counts, default=0) < 0 or sum(self.counts) < 1:
            raise SolverError(f"counts is {self.counts}; counts must not be negative and at least one positive")
        if not (np.isfinite(self.values).all() and (self.values >= 0).all()):
            raise SolverError(
                "values holds negative or non-finite tokens/s; use 0 for a node that cannot hold the layers"
            )

    def served_by(self) -> tuple[PoolServing, Ints]:
        """How its nodes serve, and ``cache_tokens``: what estimates, simulations and files for others need.

        Raises:
            SolverError: The pool has no step times or no KV caches.
        """
        if self.serving is None or self.cache_tokens is None:
            raise SolverError(
                f"pool {self.name} does not say how its nodes serve; add prompt_ms, decode_ms and cache_tokens to every "
                "node, and a section serving"
            )
        return self.serving, self.cache_tokens

    @property
    def layers(self) -> int:
        """Layers of the model, L."""
        return int(self.values.shape[3]) - 1

    @property
    def max_stages(self) -> int:
        """Most stages that the tables, the nodes and the layers allow."""
        return min(int(self.values.shape[0]), sum(self.counts), self.layers)

    def check(self, placement: Placement) -> Check:
        """Every rule that ``placement`` breaks, in words, and its throughput in tokens/s; shares nothing with a search."""
        wrong: list[Violation] = []
        broken = partial(Violation, "placement", "stages")
        stages = placement.stages
        if not 1 <= len(stages) <= self.values.shape[0]:
            wrong.append(broken(f"{len(stages)} stages, outside 1..{self.values.shape[0]}"))
        if placement.layers != self.layers:
            wrong.append(broken(f"the stages hold {placement.layers} layers instead of {self.layers}"))
        for position, stage in enumerate(stages):
            if len(stage.nodes) != len(self.counts) or min(stage.nodes) < 0 or sum(stage.nodes) < 1:
                wrong.append(broken(f"stage {position + 1} has node counts {stage.nodes}"))
            if not 1 <= stage.layers <= self.layers:
                wrong.append(broken(f"stage {position + 1} holds {stage.layers} layers, outside 1..{self.layers}"))
        if not wrong:
            wrong += [
                Violation("capacity", name, f"{used} nodes of {name} are placed, the pool has {have}")
                for name, used, have in zip(self.configurations, placement.node_set, self.counts, strict=True)
                if used > have
            ]
        objective = 0.0 if wrong else throughput_of(self.values, placement)
        if not wrong and objective <= 0:
            wrong.append(Violation("memory", "stages", "a node cannot hold the layers of its stage"))
        return Check(feasible=not wrong, objective=objective, violations=tuple(wrong))

    def latency_ms(self, placement: Placement) -> float | None:
        """Time of one micro-batch through all stages, ms: the sum over the stages of the slowest node; or ``None``."""
        if self.stage_ms is None:
            return None
        count, total = len(placement.stages), 0.0
        for position, stage in enumerate(placement.stages):
            role = 0 if position == 0 else 2 if position == count - 1 else 1
            total += max(
                float(self.stage_ms[count - 1, role, c, stage.layers]) for c, n in enumerate(stage.nodes) if n > 0
            )
        return total

    def cache_of(self, placement: Placement) -> int | None:
        """Tokens whose KV entries the pipeline can hold: the least over its stages of the sum of its nodes; or ``None``."""
        if self.cache_tokens is None:
            return None
        return min(
            sum(n * int(self.cache_tokens[c, stage.layers]) for c, n in enumerate(stage.nodes))
            for stage in placement.stages
        )
