"""Throughput tables T_j(g): the interface between measured GPUs and the placement floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coralopt.types import Floats

#: Roles of a stage: the first one holds the embedding, the last one the output head. A pipeline of one
#: stage has both and uses ``FIRST``; a builder of tables charges both ends in ``values[0, FIRST]``.
FIRST, MIDDLE, LAST = 0, 1, 2


def stage_role(stage: int, stages: int) -> int:
    """Role of stage ``stage`` (from 0) in a pipeline of ``stages``."""
    if stage == 0:
        return FIRST
    return LAST if stage == stages - 1 else MIDDLE


@dataclass(frozen=True)
class ThroughputTables:
    """T_j(g) of one model phase for every stage count, stage role and node configuration.

    ``values[s - 1, role, c, j]`` is the largest number of tokens/s that one node of configuration ``c`` sustains
    when it holds ``j`` layers as a stage of that role in a pipeline of ``s`` stages, each with the latency budget
    SLO / s (paper section 4.2). 0 means that it cannot: too little memory or too slow. ``j = 0`` is always 0.

    Attributes:
        key: Model phase key.
        configurations: Node configuration names, length C.
        layers: L.
        values: float64 (S, 3, C, L + 1), tokens/s.
        batch: int32 (S, 3, C, L + 1): sequences (decode, mixed) or prompts (prefill) a micro-batch.
        stage_ms: float64 (S, 3, C, L + 1): time of one micro-batch in the stage, ms, transfer included; 0 where T is 0.
        provenance: One line a configuration: where its figures come from (source, engine version).
    """

    key: str
    configurations: tuple[str, ...]
    layers: int
    values: Floats
    batch: npt.NDArray[np.int32]
    stage_ms: Floats
    provenance: tuple[str, ...]

    def of(self, configurations: Sequence[str]) -> ThroughputTables:
        """The same figures of some of the configurations, in the order given."""
        rows = [self.configurations.index(name) for name in configurations]
        return replace(
            self,
            configurations=tuple(configurations),
            values=self.values[:, :, rows],
            batch=self.batch[:, :, rows],
            stage_ms=self.stage_ms[:, :, rows],
            provenance=tuple(self.provenance[row] for row in rows),
        )

    @property
    def max_stages(self) -> int:
        return int(self.values.shape[0])
