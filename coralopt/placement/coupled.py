"""Placement beyond the paper: stages whose throughput depends on one another, by shared latency or by their links.

The tables get one more axis, the *cell* k of a stage:

* :class:`Budgets`: k is the number of latency units the stage gets, a unit being SLO / (S u). The units of all S stages
  add up to at most S u, so that the whole stays within the SLO. The paper gives u units to each.
* :class:`Links`: k is the bandwidth class of the slowest node of the *next* stage, which takes the activations. The
  paper (and the plain tables) look at the sender alone.

Cells are not part of a :class:`Placement`: given layers and nodes, the best ones follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.placement.limits import NO_LIMITS, EngineLimits
from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement
from coralopt.solving.problem import Check, Formulation, Violation
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

    def slowest(self, nodes: tuple[int, ...]) -> int:
        """Class of the slowest of these nodes."""
        return min(self.classes[c] for c, count in enumerate(nodes) if count > 0)


@dataclass(frozen=True, eq=False)
class CoupledPlacementProblem:
    """Place one replica when the throughput of a stage depends on its cell.

    Attributes:
        values: float64 (S, 3, C, K, L + 1), tokens/s of one node, never falling in k; 0 says it cannot.
        node_set: Nodes of each configuration, length C.
        configurations: Names, length C.
        coupling: What a cell is.
        stages: Number of stages, or ``None`` for the best.
        limits: What the engine can run.
        gpus: GPUs in one node of each configuration; for ``limits.same_tp``.

    Raises:
        SolverError: The parts do not fit together.
    """

    values: Floats
    node_set: tuple[int, ...]
    configurations: tuple[str, ...]
    coupling: Budgets | Links
    stages: int | None = None
    limits: EngineLimits = NO_LIMITS
    gpus: tuple[int, ...] = ()
    plain: PlacementProblem = field(init=False, repr=False)

    kind: ClassVar[str] = "placement"
    sense: ClassVar[Literal["min", "max"]] = "max"
    default_formulation: ClassVar[str] = "tight"

    def __post_init__(self) -> None:
        if self.values.ndim != 5:
            raise SolverError(f"values has shape {self.values.shape}; it must be (S, 3, C, K, L + 1)")
        if (np.diff(self.values, axis=3) < 0).any() and isinstance(self.coupling, Links):
            raise SolverError(
                "values falls somewhere in the bandwidth class; a faster receiver cannot slow a node down"
            )
        most = self.values.shape[3]
        if isinstance(self.coupling, Budgets) and self.values.shape[0] * self.coupling.units >= most:
            raise SolverError(f"values has {most} cells; {self.coupling.units} units a stage need more")
        if isinstance(self.coupling, Links) and len(self.coupling.classes) != self.values.shape[2]:
            raise SolverError("classes needs one entry a configuration")
        # Structure (nodes, layers, limits) is that of the plain problem; its tables say what is possible at best.
        plain = PlacementProblem(
            self.values.max(axis=3), self.node_set, self.configurations, self.stages, self.limits, self.gpus
        )
        object.__setattr__(self, "plain", plain)

    @property
    def layers(self) -> int:
        """Layers of the model, L."""
        return self.plain.layers

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.plain.nodes

    @property
    def stage_counts(self) -> tuple[int, ...]:
        """Stage counts that leave every stage a node and a layer."""
        return self.plain.stage_counts

    def formulations(self) -> Mapping[str, Formulation[Any, Placement]]:
        """Formulations by name."""
        from coralopt.placement.formulations.coupled import COUPLED_FORMULATIONS

        return COUPLED_FORMULATIONS

    def check(self, answer: Placement) -> Check:
        """Feasibility and throughput of ``answer`` with its best cells, from first principles."""
        plain = self.plain.check(answer)
        if not plain.feasible:
            return plain
        throughput = coupled_throughput(self.values, answer, self.coupling)[0]
        if throughput <= 0:
            return Check(False, 0.0, (Violation("memory", "stages", "no cells let every node hold its layers"),))
        return Check(True, throughput, ())

    def __repr__(self) -> str:
        return f"Coupled{self.plain!r}"


def stage_speeds(values: Floats, placement: Placement) -> Floats:
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


def coupled_throughput(
    values: Floats, placement: Placement, coupling: Budgets | Links
) -> tuple[float, tuple[int, ...]]:
    """Throughput of a placement with its best cells, tokens/s, and the cell of each stage; (0, ()) when there is none.

    Args:
        values: float64 (S, 3, C, K, L + 1).
        placement: Stages of layers and nodes.
        coupling: What a cell is.
    """
    speeds = stage_speeds(values, placement)
    count = len(speeds)
    if isinstance(coupling, Links):
        cells = [coupling.slowest(stage.nodes) for stage in placement.stages[1:]] + [values.shape[3] - 1]
        throughput = float(min(speeds[s, k] for s, k in enumerate(cells)))
        return (throughput, tuple(cells)) if throughput > 0 else (0.0, ())
    # The slowest stage decides, so the optimum is one of the speeds: the largest that few enough units reach.
    total = coupling.total(count)
    for target in np.unique(speeds[speeds > 0])[::-1]:
        enough = speeds >= target
        if enough.any(axis=1).all():
            units = enough.argmax(axis=1)
            if units.sum() <= total:
                return float(target), tuple(int(unit) for unit in units)
    return 0.0, ()


def budget_units_of(values: Floats, placement: Placement, coupling: Budgets) -> tuple[int, ...]:
    """Latency units of every stage behind the throughput of ``placement``; what is left over goes to nobody."""
    return coupled_throughput(values, placement, coupling)[1]


def problem_of(
    values: Floats,
    node_set: tuple[int, ...],
    configurations: tuple[str, ...],
    coupling: Budgets | Links | None,
    limits: EngineLimits,
    gpus: tuple[int, ...],
) -> Any:
    """The placement problem with or without a coupling; ``values`` has five axes with one and four without."""
    if coupling is None:
        return PlacementProblem(values, node_set, configurations, limits=limits, gpus=gpus)
    return CoupledPlacementProblem(values, node_set, configurations, coupling, limits=limits, gpus=gpus)
