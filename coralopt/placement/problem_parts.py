"""The answer to a placement problem: stages of layers and nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Consecutive layers, held by one or more data-parallel nodes.

    Attributes:
        layers: Number of layers, 1 or more.
        nodes: Nodes of each configuration, length C.
    """

    layers: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """How one replica lies on its nodes (the paper's Psi): every node is in exactly one stage.

    Attributes:
        stages: The stages in pipeline order.
    """

    stages: tuple[Stage, ...]

    @property
    def node_set(self) -> tuple[int, ...]:
        """Nodes of each configuration over all stages."""
        return tuple(sum(counts) for counts in zip(*(stage.nodes for stage in self.stages), strict=True))

    @property
    def layers(self) -> int:
        """Layers of all stages together."""
        return sum(stage.layers for stage in self.stages)
