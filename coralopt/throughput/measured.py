"""Layer times that the user measured: grids fitted by ``coralopt profile``, carried by the scenario."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.scenario.facts.measured import MeasuredNodeTimes, MeasuredTimesGrid
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.throughput.layer_times import LayerTimes, LayerTimeSource


class MeasuredSource:
    """The scenario's measurements, and another source for what they do not cover.

    Args:
        nodes: The measurements.
        rest: Asked for other pairs; ``None``: those have no figures.
        host_ms: Host times measured with them, of a step and of a request, ms; ``None`` where none was.
    """

    name = "measured"

    def __init__(
        self,
        nodes: Sequence[MeasuredNodeTimes],
        rest: LayerTimeSource | None = None,
        host_ms: tuple[float | None, float | None] = (None, None),
    ) -> None:
        self.host_ms = host_ms
        self._nodes = {(node.model, node.configuration, node.weight_format, node.kv_format): node for node in nodes}
        self._rest = rest

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        own = self._find(model, configuration) is not None
        return own or (self._rest is not None and self._rest.covers(model, configuration))

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        node = self._find(model, configuration)
        if node is not None:
            grids = _grid(node.prefill), _grid(node.decode)
            return GridTimes(f"measured: {node.measured_with}", *grids, mixed_factor=node.mixed_factor)
        assert self._rest is not None
        return self._rest.times(model, configuration)

    def _find(self, model: ModelArchitecture, configuration: NodeConfiguration) -> MeasuredNodeTimes | None:
        names = (model.name, model.hf_id, model.measured_as)
        keys = ((name, configuration.name, model.weight_format, model.kv_format) for name in names)
        return next((self._nodes[key] for key in keys if key in self._nodes), None)


def _grid(times: MeasuredTimesGrid) -> TimeGrid:
    tokens, batch, layer, other = (
        np.array(values, dtype=np.float64) for values in (times.tokens, times.batch, times.layer_ms, times.other_ms)
    )
    return TimeGrid(tokens, batch, layer, other)
