"""Generators: a trace boiled down to some hundred numbers that make new traces like it.

A generator holds the arrival model, the length model, the statistics of the trace it was fitted to, and its source. It is
one small JSON document. Those of public data sets are packaged, so that nothing has to be downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Floats, Ints, Progress
from coralopt.workload.generation.arrivals import ArrivalModel
from coralopt.workload.generation.arrivals_fit import fit_arrivals
from coralopt.workload.generation.lengths import LengthModel, fit_lengths
from coralopt.workload.traces.files import open_text, parse_json, refuse, write_json
from coralopt.workload.traces.statistics import describe
from coralopt.workload.traces.trace import UNNAMED, Trace

FORMAT = "coralopt-generator"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Generator:
    """Makes traces like the one it was fitted to.

    Attributes:
        name: Short name.
        source: Where the figures come from.
        licence: Licence of the data behind them.
        notes: What is known to be missing or assumed; may be empty.
        rate_s: Requests/s of the fitted trace.
        arrivals: Arrival model.
        lengths: Length model.
        why: How the arrival model was chosen.
        fitted_to: Statistics of the fitted trace (:meth:`TraceStatistics.as_json`), or the published ones.
    """

    name: str
    source: str
    licence: str
    notes: str
    rate_s: float
    arrivals: ArrivalModel
    lengths: LengthModel
    why: str = ""
    fitted_to: Mapping[str, Any] = field(default_factory=dict)

    def sample(
        self,
        rate_s: float | None = None,
        duration_s: float = 3600.0,
        seed: int = 0,
        *,
        model: str = UNNAMED,
        start_hour: float = 0.0,
        keep_tick: bool = True,
        exact_rate: bool = False,
    ) -> Trace:
        """A new trace; equal arguments give equal traces.

        Args:
            rate_s: Expected requests/s; by default that of the fitted trace. Bursts shrink as the rate grows, as when
                a trace's clock is scaled (paper, section 5.1).
            duration_s: Length, s.
            seed: Any whole number from 0.
            model: Name of the model that every request asks for.
            start_hour: Hour of the day (or week) at time 0, for generators with a daily (weekly) shape.
            keep_tick: Whether arrivals keep to the clock of the fitted log, if it has one.
            exact_rate: Generate a trace that is longer or shorter, and scale its clock, so that exactly
                ``rate_s * duration_s`` requests (rounded) arrive: the rate of one bursty trace is otherwise random.

        Raises:
            WorkloadError: A rate, duration or seed out of range.
        """
        rate = self.rate_s if rate_s is None else rate_s
        if seed < 0:
            raise WorkloadError(f"the seed must be a whole number from 0, not {seed}")
        random = np.random.default_rng(seed)
        if exact_rate:
            times, states = self._exactly(rate, duration_s, random, start_hour, keep_tick)
        else:
            times, states = self.arrivals.sample(rate, duration_s, random, start_hour=start_hour, keep_tick=keep_tick)
        given, made = self.lengths.sample(states, random)
        return Trace(times, given, made, np.zeros(len(times), dtype=np.int32), (model,))

    def _exactly(
        self, rate: float, duration_s: float, random: np.random.Generator, start_hour: float, keep_tick: bool
    ) -> tuple[Floats, Ints]:
        wanted = round(rate * duration_s)
        seed = int(random.integers(2**62))
        length = duration_s
        for _ in range(40):
            # The same random numbers each time: a longer trace begins like the shorter one, or nearly.
            times, states = self.arrivals.sample(
                rate, length, np.random.default_rng(seed), start_hour=start_hour, keep_tick=keep_tick
            )
            if len(times) > wanted:
                return times[:wanted] * (duration_s / float(times[wanted])), states[:wanted]
            length *= 1.3
        raise WorkloadError(f"no trace of {wanted:,} requests came out; try another seed")

    def with_mean_lengths(self, input_tokens: float, output_tokens: float) -> Generator:
        """The same generator with lengths stretched to these means in tokens; the shapes stay.

        Raises:
            WorkloadError: A mean below 1.
        """
        lengths = self.lengths.scaled(input_tokens, output_tokens)
        return replace(self, name=f"{self.name} (lengths scaled)", lengths=lengths)


def fit_generator(
    trace: Trace,
    name: str,
    *,
    source: str = "",
    licence: str = "",
    notes: str = "",
    progress: Progress | None = None,
) -> Generator:
    """Fit a generator to a trace; models are not told apart.

    Args:
        trace: At least 100 requests.
        name: Name of the generator.
        source: Where the trace comes from.
        licence: Its licence.
        notes: Anything a user should know.
        progress: Called before each step of the arrival fit.

    Raises:
        WorkloadError: The trace is too short.
    """
    arrivals = fit_arrivals(trace.arrival_s, progress)
    lengths = fit_lengths(trace.input_tokens, trace.output_tokens, arrivals.state_weights)
    return Generator(
        name=name,
        source=source,
        licence=licence,
        notes=notes,
        rate_s=trace.rate_s,
        arrivals=arrivals.model,
        lengths=lengths,
        why=arrivals.why,
        fitted_to=describe(trace).as_json(),
    )


def packaged_generators() -> tuple[str, ...]:
    """Names of the generators that come with coralopt."""
    folder = files("coralopt.workload").joinpath("data")
    return tuple(
        sorted(
            entry.name.removesuffix(".generator.json")
            for entry in folder.iterdir()
            if entry.name.endswith(".generator.json")
        )
    )


def load_generator(name: str | Path) -> Generator:
    """A packaged generator by name, or one from a JSON file.

    Raises:
        WorkloadError: Neither a packaged name nor a file; or the file lists its mistakes.
    """
    if isinstance(name, str) and name in packaged_generators():
        return _packaged(name)
    path = Path(name)
    if not path.is_file():
        raise WorkloadError(f"{name}: neither a packaged generator ({', '.join(packaged_generators())}) nor a file")
    with open_text(path) as text:
        content = text.read()
    return _from_json(content, str(path))


def save_generator(generator: Generator, path: str | Path) -> None:
    """Write a generator as JSON, atomically."""
    write_json(Path(path), generator_document(generator))


def generator_document(generator: Generator) -> dict[str, Any]:
    """The generator as plain JSON data."""
    arrivals, lengths = generator.arrivals, generator.lengths
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": generator.name,
        "source": generator.source,
        "licence": generator.licence,
        "notes": generator.notes,
        "rate_s": _short(generator.rate_s),
        "arrivals": {
            "interval_cv": _short(arrivals.interval_cv),
            "window": _short(arrivals.window),
            "rates": _short(arrivals.rates),
            "transitions": _short(arrivals.transitions),
            "tick": None if arrivals.tick is None else _short(arrivals.tick),
            "shape": None if arrivals.shape is None else _short(arrivals.shape),
            "why": generator.why,
        },
        "lengths": {
            "probabilities": _short(lengths.probabilities),
            "input_tokens": _short(lengths.input_tokens),
            "output_tokens": _short(lengths.output_tokens),
            "copula": _short(lengths.copula),
        },
        "fitted_to": dict(generator.fitted_to),
    }


@cache
def _packaged(name: str) -> Generator:
    text = files("coralopt.workload").joinpath("data", f"{name}.generator.json").read_text(encoding="utf-8")
    return _from_json(text, name)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


_Positive = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Tokens = Annotated[float, Field(ge=1)]


class _Arrivals(_Strict):
    interval_cv: _Positive
    window: _Positive
    rates: list[Annotated[float, Field(ge=0)]] = Field(min_length=1, max_length=64)
    transitions: list[list[_Share]] = Field(min_length=1, max_length=64)
    tick: _Positive | None = None
    shape: list[Annotated[float, Field(ge=0)]] | None = None
    why: str = ""


class _Lengths(_Strict):
    probabilities: list[_Share] = Field(min_length=2)
    input_tokens: list[_Tokens]
    output_tokens: list[_Tokens]
    copula: list[list[list[_Share]]] = Field(min_length=1)


class _Document(_Strict):
    format: Literal["coralopt-generator"]
    version: Literal[1]
    name: str
    source: str = ""
    licence: str = ""
    notes: str = ""
    rate_s: _Positive
    arrivals: _Arrivals
    lengths: _Lengths
    fitted_to: dict[str, Any] = Field(default_factory=dict)


def _from_json(content: str, source: str) -> Generator:
    document = parse_json(_Document, "generator", content, source)
    refuse(source, list(_inconsistencies(document)))
    arrivals, lengths = document.arrivals, document.lengths
    transitions = np.asarray(arrivals.transitions)
    copula = np.asarray(lengths.copula)
    shape = None if arrivals.shape is None else np.asarray(arrivals.shape)
    return Generator(
        name=document.name,
        source=document.source,
        licence=document.licence,
        notes=document.notes,
        rate_s=document.rate_s,
        arrivals=ArrivalModel(
            interval_cv=arrivals.interval_cv,
            window=arrivals.window,
            rates=np.asarray(arrivals.rates),
            # Stored digits are rounded; probabilities must still sum to one.
            transitions=transitions / transitions.sum(axis=1, keepdims=True),
            tick=arrivals.tick,
            shape=None if shape is None else shape / shape.mean(),
        ),
        lengths=LengthModel(
            probabilities=np.asarray(lengths.probabilities),
            input_tokens=np.asarray(lengths.input_tokens),
            output_tokens=np.asarray(lengths.output_tokens),
            copula=copula / copula.sum(axis=(1, 2), keepdims=True),
        ),
        why=arrivals.why,
        fitted_to=document.fitted_to,
    )


def _inconsistencies(document: _Document) -> list[Mistake]:
    """What the types alone do not see."""
    found = []
    arrivals, lengths = document.arrivals, document.lengths
    states = len(arrivals.rates)
    if [len(row) for row in arrivals.transitions] != [states] * states:
        found.append(Mistake("arrivals.transitions", f"must be {states} rows of {states}, one a state"))
    elif any(abs(sum(row) - 1) > 1e-3 for row in arrivals.transitions):
        found.append(Mistake("arrivals.transitions", "every row must sum to 1"))
    elif max(arrivals.rates) <= 0:
        found.append(Mistake("arrivals.rates", "one of them must be positive"))
    if arrivals.shape is not None and (len(arrivals.shape) not in (24, 168) or max(arrivals.shape) <= 0):
        found.append(Mistake("arrivals.shape", "must be 24 or 168 rates, not all 0", "one an hour of the day or week"))
    points = lengths.probabilities
    if points[0] != 0 or points[-1] != 1 or any(b <= a for a, b in pairwise(points)):
        found.append(Mistake("lengths.probabilities", "must rise from 0 to 1"))
    for name in ("input_tokens", "output_tokens"):
        values = getattr(lengths, name)
        if len(values) != len(points):
            found.append(Mistake(f"lengths.{name}", f"{len(values)} quantiles for {len(points)} probabilities"))
        elif any(b < a for a, b in pairwise(values)):
            found.append(Mistake(f"lengths.{name}", "quantiles must not fall"))
    cells = len(lengths.copula[0])
    if len(lengths.copula) != states or any(
        len(grid) != cells or any(len(row) != cells for row in grid) for grid in lengths.copula
    ):
        found.append(Mistake("lengths.copula", f"must be {states} square grids of one size, one a state"))
    elif cells == 0 or any(abs(sum(map(sum, grid)) - 1) > 1e-2 for grid in lengths.copula):
        found.append(Mistake("lengths.copula", "every grid must sum to 1"))
    return found


def _short(values: Any) -> Any:
    """Numbers with seven digits, enough for probabilities and short to store."""
    if isinstance(values, (list, tuple, np.ndarray)):
        return [_short(value) for value in values]
    number = float(f"{float(values):.7g}")
    return int(number) if number.is_integer() else number
