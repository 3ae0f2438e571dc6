"""Stage times for compiled code: any layer times, sampled until straight lines between the samples are good enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.errors import CoraloptError
from coralopt.throughput import LayerTimes, LayerTimeSource
from coralopt.throughput.layer_times import mixed_factor
from coralopt.types import Floats

#: What a user may give: a source of layer times, or a function from model and node to layer times.
TimesOf = LayerTimeSource | Callable[[ModelArchitecture, NodeConfiguration], LayerTimes]

#: Largest relative error of a line between two samples, measured in their middle.
TOLERANCE = 5e-4
#: Sampling stops here even if the tolerance is not met.
MOST_POINTS = 1500


@dataclass(frozen=True)
class FunctionTimes:
    """Layer times from two functions of (batch, tokens a sequence), each giving (one layer, the rest) in ms.

    Attributes:
        prefill: Batch of prompts and their length in tokens -> ms of one layer and of what is not a layer.
        decode: Sequences and their context in tokens -> the same for one token of each.
        most_prompts: Largest batch of prompts.
        most_sequences: Largest decode batch.
        provenance: Where the figures come from.
    """

    prefill: Callable[[Floats, float], tuple[Floats, Floats]]
    decode: Callable[[Floats, float], tuple[Floats, Floats]]
    most_prompts: int = 8
    most_sequences: int = 512
    provenance: str = "functions of the user"

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return self.prefill(prompts, tokens)

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        return self.decode(sequences, context)


#: One table: batches 1..``batches`` on ``points`` token counts; offsets into the flat arrays of :class:`TimeTables`.
TABLE = np.dtype([("batches", "i8"), ("points", "i8"), ("tokens_at", "i8"), ("values_at", "i8")], align=True)


@dataclass
class TimeTables:
    """Sampled layer times of every (model, node configuration) a simulation meets.

    Attributes:
        longest: Most tokens a table must reach: the longest prompt and answer together.
        tables: Records of :data:`TABLE`.
        tokens: float64, the token counts of all tables one after another.
        values: float64 (n, 2): ms of one layer and of what is not a layer; a table is (batches, points) row by row.
    """

    longest: int
    tables: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, dtype=TABLE))
    tokens: Floats = field(default_factory=lambda: np.zeros(0))
    values: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    _known: dict[tuple[str, str], tuple[int, int, float]] = field(default_factory=dict)

    def index(
        self, model: ModelArchitecture, configuration: NodeConfiguration, source: TimesOf
    ) -> tuple[int, int, float]:
        """Numbers of the prefill and the decode table of this pair, sampled on first use, and its mixed factor.

        Raises:
            CoraloptError: The source has no figures for the pair, or gives one that is not a positive number.
        """
        key = (model.name, configuration.name)
        if key not in self._known:
            times = _times(source, model, configuration)
            where = f"layer times of {model.name} on {configuration.name}"
            prefill = self._add(times.prefill_ms, times.most_prompts, f"prefill {where}")
            decode = self._add(times.decode_ms, times.most_sequences, f"decode {where}")
            self._known[key] = (prefill, decode, mixed_factor(times))
        return self._known[key]

    def most(self, table: int) -> int:
        """Largest batch of a table."""
        return int(self.tables["batches"][table])

    def _add(self, times: Callable[[Floats, float], tuple[Floats, Floats]], batches: int, where: str) -> int:
        batch = np.arange(1, batches + 1, dtype=np.float64)

        def column(tokens: float) -> Floats:
            pair = np.empty((batches, 2))
            pair[:, 0], pair[:, 1] = times(batch, tokens)
            return pair

        with np.errstate(invalid="ignore"):  # What is not a number is refused here.
            tokens, columns = sample(column, self.longest)
        wrong = ~(np.isfinite(columns) & (columns >= 0)).all(axis=(1, 2))
        if wrong.any():
            raise CoraloptError(f"{where}: {tokens[wrong][0]:g} tokens give a time that is negative or not a number")
        record = np.zeros(1, dtype=TABLE)
        record[0] = (batches, len(tokens), len(self.tokens), len(self.values))
        self.tables = np.concatenate([self.tables, record])
        self.tokens = np.concatenate([self.tokens, tokens])
        # (points, batches, 2) -> rows by batch, so that neighbours in tokens lie side by side.
        self.values = np.concatenate([self.values, columns.transpose(1, 0, 2).reshape(-1, 2)])
        return len(self.tables) - 1


def sample(column: Callable[[float], Floats], longest: int) -> tuple[Floats, Floats]:
    """Token counts from 1 to ``longest`` and ``column`` at each, dense where it bends.

    Intervals are halved until the line across their middle is within :data:`TOLERANCE` for every batch.
    """
    ends = np.unique(np.rint(np.geomspace(1, max(longest, 2), 24)))
    known = {float(n): column(float(n)) for n in ends}
    pending = list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
    while pending and len(known) < MOST_POINTS:
        refined: list[tuple[float, float]] = []
        for low, high in pending:
            middle = float((low + high) // 2)
            if middle in (low, high):
                continue
            value = column(middle)
            share = (middle - low) / (high - low)
            line = (1 - share) * known[low] + share * known[high]
            known[middle] = value
            if (np.abs(line - value) > TOLERANCE * np.maximum(value.sum(axis=-1, keepdims=True), 1e-300)).any():
                refined += [(low, middle), (middle, high)]
        pending = refined
    tokens = np.array(sorted(known))
    return tokens, np.stack([known[n] for n in tokens.tolist()])


def _times(source: TimesOf, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
    if isinstance(source, Callable):  # type: ignore[arg-type]
        return source(model, configuration)  # type: ignore[operator]
    assert not callable(source)
    if not source.covers(model, configuration):
        raise CoraloptError(f"{source.name!r} has no layer times for {model.name} on {configuration.name}")
    return source.times(model, configuration)
