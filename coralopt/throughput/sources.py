"""Sources of throughput tables by name, and the tables they fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.errors import CoraloptError
from coralopt.scenario.resolved import ModelPhase
from coralopt.throughput.layer_times import LayerTimes, LayerTimeSource
from coralopt.throughput.nodes import node_throughput
from coralopt.throughput.roofline import RooflineSource
from coralopt.throughput.silicon import SiliconSource
from coralopt.throughput.tables import ThroughputTables


class AutoSource:
    """Measured where there are measurements, modelled elsewhere; each configuration says which."""

    name = "auto"

    def __init__(self) -> None:
        self._silicon, self._roofline = SiliconSource(), RooflineSource()

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        return True

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        if self._silicon.covers(model, configuration):
            return self._silicon.times(model, configuration)
        return self._roofline.times(model, configuration)


SOURCES: dict[str, Any] = {"auto": AutoSource, "silicon": SiliconSource, "roofline": RooflineSource}


def throughput_source(name: str) -> LayerTimeSource:
    """The source of this name.

    Raises:
        CoraloptError: Unknown name.
    """
    if name not in SOURCES:
        raise CoraloptError(f"unknown throughput source {name!r}; choose one of: {', '.join(SOURCES)}")
    source: LayerTimeSource = SOURCES[name]()
    return source


def build_tables(
    source: LayerTimeSource, phase: ModelPhase, configurations: Sequence[NodeConfiguration], max_stages: int
) -> ThroughputTables:
    """T_j(g) of one model phase on every configuration for 1..``max_stages`` stages.

    Raises:
        CoraloptError: The source has no figures for some pair; names them.
    """
    missing = [c.name for c in configurations if not source.covers(phase.model, c)]
    if missing:
        raise CoraloptError(
            f"throughput source {source.name!r} has no figures for {phase.model.name} on {', '.join(missing)}; "
            "use source 'auto' or 'roofline', or leave these configurations out"
        )
    layers = phase.model.layers
    shape = (max_stages, 3, len(configurations), layers + 1)
    values, stage_ms = np.zeros(shape), np.zeros(shape)
    batch = np.zeros(shape, dtype=np.int32)
    provenance = []
    for c, configuration in enumerate(configurations):
        times = source.times(phase.model, configuration)
        cells = node_throughput(phase, configuration, times, max_stages)
        values[:, :, c], batch[:, :, c], stage_ms[:, :, c] = cells
        provenance.append(times.provenance)
    return ThroughputTables(
        key=phase.key,
        configurations=tuple(c.name for c in configurations),
        layers=layers,
        values=values,
        batch=batch,
        stage_ms=stage_ms,
        provenance=tuple(provenance),
    )


def explain_infeasible(phase: ModelPhase, configurations: Sequence[NodeConfiguration], source_name: str) -> str:
    """What a pool without any feasible stage could do at best, in words."""
    from dataclasses import replace

    source = throughput_source(source_name)
    loose = replace(phase, prefill_ms=1e9, decode_ms=1e9)
    best: tuple[float, str] | None = None
    for configuration in configurations:
        _, _, stage_ms = node_throughput(
            loose, configuration, source.times(phase.model, configuration), 6, smallest=True
        )
        for stages in range(1, stage_ms.shape[0] + 1):
            layers = -(-phase.model.layers // stages)
            middle = min(
                (float(ms) for ms in stage_ms[stages - 1, :, layers] if ms > 0),
                default=0.0,
            )
            if middle > 0 and (best is None or stages * middle < best[0]):
                best = (stages * middle, f"{stages} stage{'s' if stages > 1 else ''} of {configuration.name}")
    if best is None:
        return "no node of the pool has the memory for a sixth of the model; offer larger nodes"
    return f"the fastest found is about {best[0]:.1f} ms on {best[1]}; raise the SLO or offer faster nodes"
