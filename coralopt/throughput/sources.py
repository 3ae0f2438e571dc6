"""Sources of throughput tables by name, and the tables they fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.errors import CoraloptError
from coralopt.scenario.facts.measured import MeasuredSourceChoice
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.facts.serving import SERVING_PRESETS, Serving
from coralopt.throughput.layer_times import LayerTimes, LayerTimeSource
from coralopt.throughput.measured import MeasuredSource
from coralopt.throughput.nodes import node_throughput
from coralopt.throughput.roofline import RooflineSource
from coralopt.throughput.silicon import SiliconSource
from coralopt.throughput.speculative import SpeculatingSource
from coralopt.throughput.tables import ThroughputTables
from coralopt.types import Floats


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


SOURCES: dict[str, Callable[[], LayerTimeSource]] = {
    "auto": AutoSource,
    "silicon": SiliconSource,
    "roofline": RooflineSource,
}


def throughput_source(name: str | MeasuredSourceChoice) -> LayerTimeSource:
    """The source of this name, or the one that uses a scenario's own measurements.

    Raises:
        CoraloptError: Unknown name.
    """
    if isinstance(name, MeasuredSourceChoice):
        rest = AutoSource() if name.name == "auto" else None
        return SpeculatingSource(MeasuredSource(name.nodes, rest, name.host_ms))
    if name not in SOURCES:
        raise CoraloptError(f"unknown throughput source {name!r}; choose one of: {', '.join(SOURCES)}")
    return SpeculatingSource(SOURCES[name]())


@lru_cache(maxsize=64)
def source_tables(
    name: str | MeasuredSourceChoice,
    phase: ModelPhase,
    configurations: tuple[NodeConfiguration, ...],
    max_stages: int,
    *,
    budget_units: tuple[int, int] = (1, 1),
    receiver_gb_s: float = float("inf"),
) -> ThroughputTables:
    """:func:`build_tables` of the source of this name, kept: a plan is made from the tables that its check looks up again.

    Whoever takes them must not change them.

    Raises:
        CoraloptError: As :func:`throughput_source` and :func:`build_tables`.
    """
    source = throughput_source(name)
    return build_tables(
        source, phase, configurations, max_stages, budget_units=budget_units, receiver_gb_s=receiver_gb_s
    )


def build_tables(
    source: LayerTimeSource,
    phase: ModelPhase,
    configurations: Sequence[NodeConfiguration],
    max_stages: int,
    *,
    budget_units: tuple[int, int] = (1, 1),
    receiver_gb_s: float = float("inf"),
) -> ThroughputTables:
    """T_j(g) of one model phase on every configuration for 1..``max_stages`` stages.

    Args:
        source: Layer times.
        phase: The model phase.
        configurations: Node configurations, C of them.
        max_stages: S.
        budget_units: (g, u): every stage may take g / u of the equal share SLO / S.
        receiver_gb_s: Bandwidth of the slowest node that takes the activations, 1e9 bytes/s; the slower end decides.

    Raises:
        CoraloptError: The source has no figures for some pair; names them.
    """
    missing = [c.name for c in configurations if not source.covers(phase.model, c)]
    if missing:
        raise CoraloptError(
            f"throughput source {source.name!r} has no figures for {phase.model.name} on {', '.join(missing)}; "
            "use source 'auto' or 'roofline', measure them with `coralopt profile`, or leave these configurations out"
        )
    layers = phase.model.layers
    shape = (max_stages, 3, len(configurations), layers + 1)
    values, stage_ms = np.zeros(shape), np.zeros(shape)
    batch = np.zeros(shape, dtype=np.int32)
    provenance = []
    for c, configuration in enumerate(configurations):
        times = source.times(phase.model, configuration)
        cells = node_throughput(
            phase, configuration, times, max_stages, budget_units=budget_units, receiver_gb_s=receiver_gb_s
        )
        values[:, :, c], batch[:, :, c], stage_ms[:, :, c] = cells
        provenance.append(times.provenance + _host(phase.serving, source))
    return ThroughputTables(
        key=phase.key,
        configurations=tuple(c.name for c in configurations),
        layers=layers,
        values=values,
        batch=batch,
        stage_ms=stage_ms,
        provenance=tuple(provenance),
    )


def _host(serving: Serving, source: LayerTimeSource) -> str:
    """What the host takes besides, and where that comes from; nothing where it takes nothing."""
    if not serving.host_step_ms and not serving.host_request_ms:
        return ""
    engine, host_ms = SERVING_PRESETS["engine"], (serving.host_step_ms, serving.host_request_ms)
    inner = source.inner if isinstance(source, SpeculatingSource) else source
    if isinstance(inner, MeasuredSource) and inner.host_ms == host_ms:
        origin = "measured with the layers"
    elif host_ms == (engine.host_step_ms, engine.host_request_ms):
        origin = "closed-loop measurements of vLLM"
    else:
        origin = "the scenario"
    return f"; host {serving.host_step_ms:g} ms a step, {serving.host_request_ms:g} ms a request ({origin})"


def budget_tables(
    source: LayerTimeSource,
    phase: ModelPhase,
    configurations: Sequence[NodeConfiguration],
    max_stages: int,
    units: int,
) -> Floats:
    """T_j(g) for every whole number of latency units a stage may get.

    With S stages a unit is SLO / (S u), so that the equal split is u units each, and one stage can have at most
    S u - (S - 1). A stage never takes longer than its units; units that add up to S u keep the whole within the SLO.

    Returns:
        float64 (S, 3, C, S u + 1, L + 1), tokens/s, last axes units and layers; 0 for 0 units, and rising in the units.
    """
    most = max_stages * units
    values = np.zeros((max_stages, 3, len(configurations), most + 1, phase.model.layers + 1))
    for own in range(1, most + 1):
        tables = build_tables(source, phase, configurations, max_stages, budget_units=(own, units)).values
        for stages in range(1, max_stages + 1):
            if own <= stages * units - (stages - 1):
                values[stages - 1, :, :, own] = tables[stages - 1]
    return values


def link_tables(
    source: LayerTimeSource, phase: ModelPhase, configurations: Sequence[NodeConfiguration], max_stages: int
) -> tuple[Floats, tuple[int, ...]]:
    """T_j(g) for every bandwidth of the slowest node that takes a stage's activations.

    Returns:
        float64 (S, 3, C, Q, L + 1), tokens/s, by class q of the receiver; and the class of each configuration, the rank
        of its bandwidth among the Q different ones. The last stage sends token numbers only and does not depend on q.
    """
    speeds = sorted({c.network_gb_s for c in configurations})
    tables = [build_tables(source, phase, configurations, max_stages, receiver_gb_s=speed).values for speed in speeds]
    return np.stack(tables, axis=3), tuple(speeds.index(c.network_gb_s) for c in configurations)
