"""Generators: a trace boiled down to some hundred numbers that make new traces like it.

A generator holds the arrival model, the length model, the statistics of the trace it was fitted to, and its source. It is
one small JSON document. Those of public data sets are packaged, so that nothing has to be downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Floats, Ints, Progress
from coralopt.workload.files.checks import random_of
from coralopt.workload.files.documents import DocumentKind, Numbers
from coralopt.workload.generation.arrivals import ArrivalModel, ArrivalOptions
from coralopt.workload.generation.arrivals_fit import fit_arrivals
from coralopt.workload.generation.lengths import LengthModel, fit_lengths
from coralopt.workload.traces.statistics import describe
from coralopt.workload.traces.trace import UNNAMED, Trace


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
        fitted_to: Statistics of the fitted trace (:meth:`TraceStatistics.as_json`), or the published ones.
    """

    name: str
    source: str = ""
    licence: str = ""
    notes: str = ""
    rate_s: Annotated[float, Numbers(0, gt=0)] = field(kw_only=True)
    arrivals: ArrivalModel = field(kw_only=True)
    lengths: LengthModel = field(kw_only=True)
    fitted_to: Mapping[str, object] = field(default_factory=dict)

    def sample(
        self,
        rate_s: float | None = None,
        duration_s: float = 3600.0,
        seed: int = 0,
        *,
        model: str = UNNAMED,
        options: ArrivalOptions = ArrivalOptions(),
    ) -> Trace:
        """A new trace; equal arguments give equal traces.

        Args:
            rate_s: Expected requests/s; by default that of the fitted trace. Bursts shrink as the rate grows, as when
                a trace's clock is scaled (paper, section 5.1).
            duration_s: Length, s.
            seed: Any whole number from 0.
            model: Name of the model that every request asks for.
            options: Hour of the start, the log's clock, and whether the rate is exact.

        Raises:
            WorkloadError: A rate, duration or seed out of range.
        """
        rate = self.rate_s if rate_s is None else rate_s
        random = random_of(seed)
        draw = self._exactly if options.exact_rate else self.arrivals.sample
        times, states = draw(rate, duration_s, random, options)
        inputs, outputs = self.lengths.sample(states, random)
        return Trace(times, inputs, outputs, models=(model,))

    def _exactly(
        self, rate: float, duration_s: float, random: np.random.Generator, options: ArrivalOptions
    ) -> tuple[Floats, Ints]:
        """A longer or shorter trace, its clock scaled so that ``rate * duration_s`` requests (rounded) arrive."""
        wanted = round(rate * duration_s)
        seed = int(random.integers(2**62))
        length = duration_s
        for _ in range(40):
            # The same random numbers each time: a longer trace begins like the shorter one, or nearly.
            times, states = self.arrivals.sample(rate, length, np.random.default_rng(seed), options)
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
        fitted_to=describe(trace).as_json(),
    )


def packaged_generators() -> tuple[str, ...]:
    """Names of the generators that come with coralopt."""
    return _GENERATORS.packaged()


def load_generator(name: str | Path) -> Generator:
    """A packaged generator by name, or one from a JSON file.

    Raises:
        WorkloadError: Neither a packaged name nor a file; or the file lists its mistakes.
    """
    return _GENERATORS.load(name)


def save_generator(generator: Generator, path: str | Path) -> None:
    """Write a generator as JSON, atomically."""
    _GENERATORS.save(generator, path)


def generator_document(generator: Generator) -> dict[str, Any]:
    """The generator as plain JSON data."""
    return _GENERATORS.document(generator)


def _tidy(generator: Generator) -> tuple[Generator, list[Mistake]]:
    """Laws that sum to one although their stored digits are rounded, and what the types alone do not see."""
    arrivals, lengths = generator.arrivals, generator.lengths
    mistakes = [Mistake(f"arrivals.{name}", *words) for name, *words in arrivals.inconsistencies()]
    mistakes += [Mistake(f"lengths.{name}", words) for name, words in lengths.inconsistencies(arrivals.states)]
    if mistakes:
        return generator, mistakes
    shape = arrivals.shape
    return replace(
        generator,
        arrivals=replace(
            arrivals,
            transitions=arrivals.transitions / arrivals.transitions.sum(axis=1, keepdims=True),
            shape=None if shape is None else shape / shape.mean(),
        ),
        lengths=replace(lengths, copula=lengths.copula / lengths.copula.sum(axis=(1, 2), keepdims=True)),
    ), []


_GENERATORS = DocumentKind(Generator, "generator", "generator", _tidy)
