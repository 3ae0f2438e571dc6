"""Layer times on a rectangle of token counts and batches, interpolated."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coralopt.types import Floats


@dataclass(frozen=True, eq=False)
class TimeGrid:
    """Times on a rectangle of (tokens, batch).

    Attributes:
        tokens: float64 (n,), ascending.
        batch: float64 (m,), ascending.
        per_layer: float64 (n, m), ms of one layer.
        nonlayer: float64 (n, m), ms of what is not a layer.
    """

    tokens: Floats
    batch: Floats
    per_layer: Floats
    nonlayer: Floats

    def at(self, batch: Floats, tokens: float) -> tuple[Floats, Floats]:
        """Bilinear in tokens and batch; outside the rectangle the edge's slope in tokens goes on, batch is not asked."""
        if len(self.tokens) > 1:
            low = int(np.clip(np.searchsorted(self.tokens, tokens) - 1, 0, len(self.tokens) - 2))
            weight = (tokens - self.tokens[low]) / (self.tokens[low + 1] - self.tokens[low])
            # Below the smallest length the time would tend to a negative number for steep rows: stay on the edge.
            weight = max(weight, 0.0)
        else:
            low, weight = 0, 0.0
        result = []
        for table in (self.per_layer, self.nonlayer):
            row = table[low] if len(self.tokens) == 1 else (1 - weight) * table[low] + weight * table[low + 1]
            result.append(np.interp(batch, self.batch, row))
        return result[0], result[1]


@dataclass(frozen=True, eq=False)
class GridTimes:
    """Measured times of one model on one node, between the points of their grids straight lines.

    Attributes:
        provenance: Where the figures come from.
        prefill: Whole prompts.
        decode: One token a sequence.
        mixed_factor: Layers of measured mixed steps over what prefill and decode times make of them.
    """

    provenance: str
    prefill: TimeGrid
    decode: TimeGrid
    mixed_factor: float = field(default=1.0, kw_only=True)

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
