"""Poisson arrivals with independent lengths: the traffic of closed forms, without the bursts of real traces."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.lengths import LengthDistribution, LengthSpread
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.types import Floats
from coralopt.workload.files.checks import random_of
from coralopt.workload.traces.trace import Trace

#: Requests beyond this, and their simulation, no longer fit into the memory of a usual machine.
MOST_REQUESTS = 20_000_000


def poisson_for_scenario(
    scenario: ResolvedScenario,
    rate: float | None = None,
    duration_s: float = 300.0,
    seed: int = 0,
    length_cv: float | None = None,
) -> Trace:
    """Poisson arrivals with independent lengths, distributed as the scenario says.

    Args:
        scenario: Models, mean lengths and demand.
        rate: Requests/s of every model, or class; by default the scenario's demand over its mean lengths.
        duration_s: Seconds of arrivals.
        seed: Seed.
        length_cv: Lognormal lengths of this coefficient of variation around the scenario's means instead; 0 makes all
            requests of a model equal. Lengths are rounded to whole tokens and cut at half the model's longest context.

    Raises:
        WorkloadError: A value out of range, or more than ``MOST_REQUESTS`` requests.
    """
    for name, value in (("rate", rate), ("duration", duration_s), ("length_cv", length_cv)):
        if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and name == "length_cv"))):
            raise WorkloadError(f"{name} is {value!r}; give a positive number{' or 0' if name == 'length_cv' else ''}")
    generator = random_of(seed)
    phases = _first_phases(scenario)
    expected = sum(_requests_s(phase, rate) for phase in phases.values()) * duration_s
    if expected > MOST_REQUESTS:
        raise WorkloadError(
            f"{expected:.3g} requests in {duration_s:g} s are more than the {MOST_REQUESTS:,} that are generated at once; "
            "give a lower rate or a shorter duration"
        )
    columns: list[tuple[Floats, ...]] = []
    names = list(dict.fromkeys(phase.served for phase in phases.values()))
    for phase in phases.values():
        count = int(generator.poisson(_requests_s(phase, rate) * duration_s))
        half, part = phase.model.max_position // 2, phase.request_class
        bounds = (None, None) if part is None else (part.most_input, part.most_output)
        mosts = [half if most is None else most for most in bounds]
        arrival = np.sort(generator.uniform(0.0, duration_s, count))
        lengths = [
            np.clip(np.rint(distribution.sample(generator, count)), 1, most)
            for distribution, most in zip(_distributions(phase, length_cv), mosts, strict=True)
        ]
        columns.append((arrival, *lengths, np.full(count, float(names.index(phase.served)))))
    arrival, inputs, outputs, model = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(arrival, kind="stable")
    return Trace(
        arrival[order],
        inputs[order].astype(np.int64),
        outputs[order].astype(np.int64),
        model[order].astype(np.int32),
        tuple(names),
    )


def _first_phases(scenario: ResolvedScenario) -> dict[str, ModelPhase]:
    """Model name, or class of requests -> its first phase, whose demand says how many requests there are."""
    phases: dict[str, ModelPhase] = {}
    for phase in scenario.model_phases:
        phases.setdefault(phase.requested, phase)
    return phases


def _requests_s(phase: ModelPhase, rate: float | None) -> float:
    return phase.simulated_requests_s if rate is None else rate


def _distributions(phase: ModelPhase, length_cv: float | None) -> tuple[LengthDistribution, LengthDistribution]:
    """Of prompts and of answers."""
    lengths = phase.lengths
    if length_cv is None:
        return lengths.input, lengths.output
    spread = LengthSpread(length_cv)
    return replace(lengths.input, spread=spread), replace(lengths.output, spread=spread)
