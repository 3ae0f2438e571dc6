"""Which requests to simulate: a trace file, or generated ones by seed; said once, made again anywhere."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from coralopt.errors import WorkloadError
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.workload.files.checks import random_of
from coralopt.workload.generation.for_scenario import generate_for_scenario
from coralopt.workload.generation.poisson import poisson_for_scenario
from coralopt.workload.traces.operations import scale_to_rate
from coralopt.workload.traces.read import read_trace
from coralopt.workload.traces.trace import Trace

KINDS = ("poisson", "dataset", "trace")
#: Seconds of arrivals where nothing says how many.
DURATION_S = 300.0


@dataclass(frozen=True)
class Traffic:
    """Where requests come from.

    Attributes:
        kind: ``"poisson"`` (lengths as the scenario says), ``"dataset"`` (the generator of each model's data set) or
            ``"trace"``.
        trace: The file, for ``"trace"``.
        model: Model of every request, for a trace that names none.
        rate: Requests/s of each model; ``None`` as the scenario demands, or as the trace has it.
        duration_s: Seconds of arrivals; ``None``: 300, or the whole trace.
        seed: Seed of generated requests.
        length_cv: Coefficient of variation of lognormal lengths instead of the scenario's, for ``"poisson"``.
        sort: Whether a plain trace whose times fall is sorted, rather than refused.

    Raises:
        WorkloadError: Figures out of range, or parts that do not go together.
    """

    kind: str = "poisson"
    trace: Path | None = None
    model: str | None = None
    rate: float | None = None
    duration_s: float | None = None
    seed: int = 0
    length_cv: float | None = None
    sort: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise WorkloadError(f"unknown traffic {self.kind!r}; choose {', '.join(KINDS)}")
        if (self.trace is None) == (self.kind == "trace"):
            raise WorkloadError(
                f"traffic {self.kind!r} and trace {self.trace} do not go together; a trace needs a file"
            )
        if self.model is not None and self.trace is None:
            raise WorkloadError("--model names the model of a trace's requests; give a --trace, too")
        if self.sort and self.trace is None:
            raise WorkloadError("--sort sorts a trace; give a --trace, too")
        for name, value in (("rate", self.rate), ("duration", self.duration_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise WorkloadError(f"the {name} is {value!r}; give a positive number")
        random_of(self.seed)

    @property
    def window_s(self) -> float | None:
        """Seconds of arrivals to measure; ``None``: the whole trace."""
        return self.duration_s if self.kind == "trace" else self.duration_s or DURATION_S

    @property
    def words(self) -> str:
        """One line for people."""
        at = "" if self.rate is None else f", {self.rate:g} requests/s a model"
        long = "" if self.window_s is None else f", {self.window_s:g} s"
        if self.kind == "trace":
            return f"trace {self.trace.name if self.trace else ''}{at}{long}"
        if self.kind == "poisson":
            lengths = "" if self.length_cv is None else f", lengths with cv {self.length_cv:g}"
            return f"Poisson arrivals{lengths}{at}{long}, seed {self.seed}"
        return f"generators of the data sets{at}{long}, seed {self.seed}"

    def requests(self, scenario: ResolvedScenario) -> Trace:
        """The requests.

        Raises:
            WorkloadError: The trace cannot be read, or the scenario has no demand.
        """
        if self.kind == "trace":
            assert self.trace is not None
            trace = read_trace(self.trace, sort=self.sort or None)
            if self.model is not None:
                trace = Trace(trace.arrival_s, trace.input_tokens, trace.output_tokens, models=(self.model,))
            if self.rate is None:
                return trace
            return scale_to_rate(trace, self.rate * len(trace.models), trace.last_arrival_s or None)
        seconds = self.duration_s or DURATION_S
        if self.kind == "poisson":
            return poisson_for_scenario(scenario, self.rate, seconds, self.seed, self.length_cv)
        models = len({phase.served for phase in scenario.model_phases if phase.demand_tokens_s > 0})
        rate = None if self.rate is None else self.rate * models
        return generate_for_scenario(scenario, seconds, self.seed, rate_s=rate)


def trace_digest(trace: Trace) -> str:
    """SHA-256 hex of what a trace holds; equal for equal requests, whatever the format of their file."""
    digest = hashlib.sha256("\n".join(trace.models).encode())
    for column in (trace.arrival_s, trace.input_tokens, trace.output_tokens, trace.model):
        digest.update(column.tobytes())
    return digest.hexdigest()
