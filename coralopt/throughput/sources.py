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
            times = self._silicon.times(model, configuration)
            if times.measured:
                return times
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
