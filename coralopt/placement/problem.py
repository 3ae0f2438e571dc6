"""The placement problem of one replica: which nodes hold how many layers (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.placement.cells import Budgets, Coupling, Links, with_cells
from coralopt.placement.limits import NO_LIMITS, EngineLimits
from coralopt.placement.problem_parts import Placement
from coralopt.solving import AttachedProblem, Formulation
from coralopt.types import Floats

#: Tokens/s that solvers take as they are, and the smallest share of the largest figure beside it.
ORDINARY = (2.0**-10, 2.0**27)
SPREAD = 1e-6


@dataclass(frozen=True, eq=False)
class PlacementProblem(AttachedProblem[Placement]):
    """Place one replica of a model on a node set so that its throughput in tokens/s is largest (paper section 4.2).

    Every node sits in exactly one stage and can hold the layers of its stage; the nodes of a stage add up; the
    slowest stage decides.

    Attributes:
        values: float64 (S, 3, C, L + 1), tokens/s: ``values[s - 1, role, c, j]`` of one node of configuration c with
            j layers in a pipeline of s stages; 0 says it cannot. See ``ThroughputTables.values``. With a coupling
            (S, 3, C, K, L + 1), by the cell of the stage; never falling in k for links.
        node_set: Nodes of each configuration, length C, at least one node in all.
        configurations: Names of the configurations, length C.
        stages: Number of stages, or ``None`` for the best of 1 to S.
        limits: What the engine can run; nothing is forbidden by default.
        gpus: GPUs in one node of each configuration, length C; needed for ``limits.same_tp`` only.
        coupling: What a cell is; ``None``: stages do not depend on one another.

    Raises:
        SolverError: The parts do not fit together; says which value, where.
    """

    values: Floats
    node_set: tuple[int, ...]
    configurations: tuple[str, ...]
    stages: int | None = None
    limits: EngineLimits = NO_LIMITS
    gpus: tuple[int, ...] = ()
    coupling: Coupling | None = None

    kind: ClassVar[str] = "placement"
    sense: ClassVar[Literal["min", "max"]] = "max"
    default_formulation: ClassVar[str] = "tight"

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float64)
        axes, wanted = (4, "(S, 3, C, L + 1)") if self.coupling is None else (5, "(S, 3, C, K, L + 1)")
        if values.ndim != axes or values.shape[0] < 1 or values.shape[1] != 3 or values.shape[-1] < 2:
            raise SolverError(f"values has shape {values.shape}; it must be {wanted} with S >= 1 and L >= 1")
        bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))
        if len(bad):
            place = tuple(int(n) for n in bad[0])
            raise SolverError(
                f"values{list(place)} is {values[place]}; tokens/s must be finite and not negative (0: cannot hold)"
            )
        if len(self.node_set) != values.shape[2] or len(self.configurations) != values.shape[2]:
            raise SolverError(
                f"node_set has {len(self.node_set)} and configurations {len(self.configurations)} entries, but "
                f"values knows {values.shape[2]} configurations; give one entry a configuration"
            )
        if any(count < 0 for count in self.node_set) or sum(self.node_set) < 1:
            raise SolverError(f"node_set is {self.node_set}; counts must not be negative and at least one positive")
        if self.stages is not None and not 1 <= self.stages <= values.shape[0]:
            raise SolverError(f"stages is {self.stages}; values covers 1 to {values.shape[0]} stages")
        if self.limits.same_tp and len(self.gpus) != values.shape[2]:
            raise SolverError(f"gpus has {len(self.gpus)} entries; same_tp needs one for each of {values.shape[2]}")
        if isinstance(self.coupling, Budgets) and values.shape[0] * self.coupling.units >= values.shape[3]:
            raise SolverError(f"values has {values.shape[3]} cells; {self.coupling.units} units a stage need more")
        if isinstance(self.coupling, Links):
            if len(self.coupling.classes) != values.shape[2]:
                raise SolverError("classes needs one entry a configuration")
            if (np.diff(values, axis=3) < 0).any():
                raise SolverError(
                    "values falls somewhere in the bandwidth class; a faster receiver cannot slow a node down"
                )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "node_set", tuple(int(count) for count in self.node_set))

    @property
    def layers(self) -> int:
        """Layers of the model, L."""
        return int(self.values.shape[-1]) - 1

    @property
    def nodes(self) -> int:
        """Number of nodes, the paper's |G'|."""
        return sum(self.node_set)

    @property
    def cells(self) -> tuple[Floats, Coupling]:
        """The tables with an axis of cells, float64 (S, 3, C, K, L + 1), and what a cell is."""
        return with_cells(self.values, self.coupling)

    @property
    def stage_counts(self) -> tuple[int, ...]:
        """Stage counts that leave every stage a node and a layer; empty when there is none, or the engine forbids all."""
        if not self.limits.node_set_allowed(self.node_set, self.gpus):
            return ()
        most = min(self.values.shape[0], self.nodes, self.layers)
        wanted = range(1, most + 1) if self.stages is None else (self.stages,)
        return tuple(count for count in wanted if count <= most)

    @property
    def ceiling(self) -> float:
        """Tokens/s that no placement exceeds: all nodes in one stage, each at its best."""
        best = self.values.max(axis=tuple(axis for axis in range(self.values.ndim) if axis != 2))
        return float(best @ np.array(self.node_set))

    def within(self, ceiling: float) -> tuple[PlacementProblem, float] | None:
        """The problem in units near its ceiling, figures between it and a millionth of it; ``None`` where they are already.

        A node above the ceiling is as good as one at it, and one far below is taken for a millionth: never worse than it is.
        """
        used = self.values[self.values > 0]
        largest = float(used.max(initial=0.0))
        if not len(used) or (ORDINARY[0] <= largest <= ORDINARY[1] and float(used.min()) >= largest * SPREAD):
            return None
        top = min(largest, ceiling)
        unit = float(2.0 ** np.floor(np.log2(top)))
        values = np.where(self.values > 0, np.clip(self.values, top * SPREAD, top) / unit, 0.0)
        return replace(self, values=values), unit

    # Any: as in the base class, whose formulations take this very class.
    def formulations(self) -> Mapping[str, Formulation[Any, Placement]]:
        """The formulations of this problem by name; the paper's knows no cells."""
        every = super().formulations()
        return every if self.coupling is None else {self.default_formulation: every[self.default_formulation]}

    def __repr__(self) -> str:
        named = {name: count for name, count in zip(self.configurations, self.node_set, strict=True) if count}
        cells = "" if self.coupling is None else f", {type(self.coupling).__name__.lower()}"
        return f"PlacementProblem({named}, layers={self.layers}, stages={self.stages}{cells})"
