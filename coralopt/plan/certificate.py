"""What windows of fresh requests said about a plan: the part of its document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from coralopt.plan.parts import Count, Figure, PlannedInstance, PlannedMode, PlanPart

#: Numbers of windows after which it is looked whether more are needed; further ones for models of few requests, whose
#: windows say little each.
LOOKS, FURTHER_LOOKS = (20, 40, 80, 160, 320, 640), (1280, 2560)
#: Seeds from one attempt's first window to the next one's: more than windows.
SEEDS_APART = 10_000


class CertifiedPhase(PlanPart):
    """One SLO of one model over all windows."""

    model: str
    kind: Literal["prefill", "decode"] = Field(
        description="prefill: time to first token; decode: time per output token."
    )
    target: Figure | None = Field(description="Share of requests that must meet it; null: planned for mean requests.")
    shares: tuple[Figure, ...] = Field(description="Share of requests that met it, by window that had any.")
    low: Figure = Field(description="Lower end of the interval of the mean share.")
    high: Figure = Field(description="Upper end of it.")
    verdict: Literal["confirmed", "refuted", "open", "not asked"]
    attempt: Count = Field(default=1, ge=1, description="The attempt at a plan that its windows are of.")

    @property
    def mean(self) -> float:
        """Mean share over the windows; NaN where none had requests."""
        return float(np.mean(self.shares)) if self.shares else math.nan


class RefusedInstances(PlanPart):
    """Instances of one model that an earlier attempt had, and that their windows did not confirm."""

    first_seed: Count = Field(description="Seed of its first window; each following one is one higher.")
    instances: tuple[PlannedInstance, ...] = Field(min_length=1)
    modes: tuple[PlannedMode, ...] = Field(description="How models were served in that attempt.")
    phases: tuple[CertifiedPhase, ...] = Field(min_length=1)

    @property
    def model(self) -> str:
        """Its name."""
        return self.instances[0].model

    @property
    def attempt(self) -> int:
        """Which attempt."""
        return self.phases[0].attempt

    @property
    def is_refuted(self) -> bool:
        """Whether they surely miss an SLO; else the windows did not tell."""
        return any(phase.verdict == "refuted" for phase in self.phases)


class Certificate(PlanPart):
    """Windows of requests with seeds that no search used, and what came of them; enough to simulate them again.

    Where windows do not confirm the instances of a model, the plan with others in their place is the next attempt. Their
    windows are fresh, too, and all attempts share the error.
    """

    first_seed: Count = Field(
        description="Seed of the first window; each following one is one higher, that of the next attempt's first window "
        f"{SEEDS_APART:,} higher."
    )
    window_s: Figure = Field(
        gt=0, description="Seconds of Poisson arrivals with the scenario's lengths in each window."
    )
    confidence: Figure = Field(gt=0, lt=1, description="Of all that is confirmed together.")
    looks: tuple[Count, ...] = Field(
        min_length=1, description="Windows after which it was looked whether more are needed."
    )
    errors: tuple[Figure, ...] = Field(
        default=(1.0,),
        min_length=1,
        description="Share of the error, 1 - confidence, that each attempt so far may have.",
    )
    phases: tuple[CertifiedPhase, ...]
    refused: tuple[RefusedInstances, ...] = Field(
        default=(), description="Instances of earlier attempts, each of one model; no window confirmed them."
    )

    def seed(self, attempt: int) -> int:
        """Seed of the first window of an attempt."""
        return self.first_seed + (attempt - 1) * SEEDS_APART

    @property
    def holds(self) -> bool:
        """Whether every SLO that asks for a share of requests is confirmed."""
        return all(phase.verdict in ("confirmed", "not asked") for phase in self.phases)

    @property
    def failed(self) -> tuple[str, ...]:
        """Models that other instances may serve better: an SLO is refuted, or open and missed by some request. Where it is
        open and no request missed it, there are too few to tell."""
        missed = (
            phase.model
            for phase in self.phases
            if phase.verdict == "refuted" or (phase.verdict == "open" and min(phase.shares, default=1.0) < 1.0)
        )
        return tuple(dict.fromkeys(missed))


def interval(shares: Sequence[float], requests: float, confidence: float, sharing: float) -> tuple[float, float]:
    """One-sided limits of the mean share of independent windows, each wrong with probability (1 - confidence) / sharing.

    The wider ones of Student's t over the windows (the requests of one window depend on each other, windows do not) and of
    Clopper and Pearson for as many independent requests: windows without a miss do not vary, and a few requests say little.

    Args:
        shares: Share of each window.
        requests: How many requests all of them are expected to have.
        confidence: Of all limits together.
        sharing: Limits and looks that share the error (Bonferroni).
    """
    from scipy.special import betaincinv

    if len(shares) < 2:
        return 0.0, 1.0
    mean, error = float(np.mean(shares)), error_of_mean(shares, confidence, sharing)
    met, missed, wrong = requests * mean, requests * (1.0 - mean), (1.0 - confidence) / sharing
    low = float(betaincinv(met, missed + 1.0, wrong)) if met > 0 else 0.0
    high = float(betaincinv(met + 1.0, missed, 1.0 - wrong)) if missed > 0 else 1.0
    return max(0.0, min(low, mean - error)), min(1.0, max(high, mean + error))


def error_of_mean(figures: Sequence[float], confidence: float, sharing: float) -> float:
    """What the mean of two or more independent figures misses with probability (1 - confidence) / sharing to either side."""
    spread = float(np.std(figures, ddof=1)) / math.sqrt(len(figures))
    return quantile(len(figures) - 1, confidence, sharing) * spread


def quantile(freedom: int, confidence: float, sharing: float) -> float:
    """Of Student's t with so many degrees of freedom: exceeded with probability (1 - confidence) / sharing."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1.0 - (1.0 - confidence) / sharing))
