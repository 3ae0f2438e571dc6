"""Layer times that the user measured: grids fitted by ``coralopt profile``, carried by the scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.scenario.resolved import MeasuredNodeTimes, MeasuredTimesGrid
from coralopt.throughput.grid import TimeGrid
from coralopt.throughput.layer_times import Floats, LayerTimes, LayerTimeSource


@dataclass(frozen=True, eq=False)
class MeasuredTimes:
    """Measured times of one model on one node, between the points of their grids straight lines."""

    provenance: str
    prefill: TimeGrid
    decode: TimeGrid

    @property
    def most_prompts(self) -> int:
        return int(self.prefill.batch[-1])

    @property
    def most_sequences(self) -> int:
        return int(self.decode.batch[-1])

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return self.prefill.at(prompts, tokens)

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        return self.decode.at(sequences, context)


class MeasuredSource:
    """The scenario's measurements, and another source for what they do not cover.

    Args:
        nodes: The measurements.
        rest: Asked for other pairs; ``None``: those have no figures.
    """

    name = "measured"

    def __init__(self, nodes: Sequence[MeasuredNodeTimes], rest: LayerTimeSource | None = None) -> None:
        self._nodes = {(node.model, node.configuration, node.weight_format): node for node in nodes}
        self._rest = rest

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        own = self._find(model, configuration) is not None
        return own or (self._rest is not None and self._rest.covers(model, configuration))

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        node = self._find(model, configuration)
        if node is not None:
            return MeasuredTimes(f"measured: {node.measured_with}", _grid(node.prefill), _grid(node.decode))
        assert self._rest is not None
        return self._rest.times(model, configuration)

    def _find(self, model: ModelArchitecture, configuration: NodeConfiguration) -> MeasuredNodeTimes | None:
        keys = ((name, configuration.name, model.weight_format) for name in (model.name, model.hf_id))
        return next((self._nodes[key] for key in keys if key in self._nodes), None)


def _grid(times: MeasuredTimesGrid) -> TimeGrid:
    tokens, batch, layer, other = (
        np.array(values, dtype=np.float64) for values in (times.tokens, times.batch, times.layer_ms, times.other_ms)
    )
    return TimeGrid(tokens, batch, layer, other)
