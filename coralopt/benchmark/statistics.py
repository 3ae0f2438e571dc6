"""The figures by which solvers are compared; each has a closed form and shares no state with anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coralopt.types import Bools, Floats

#: Seconds below which two times count as equal in a ratio: the clock of a busy machine knows no better.
SHORTEST = 0.01


def shifted_geometric_mean(seconds: Sequence[float] | Floats, shift: float) -> float:
    """exp(mean(ln(max(1, v + shift)))) - shift, as in Mittelmann's benchmarks; NaN without values.

    Args:
        seconds: Times, those of unsolved runs at the limit.
        shift: Seconds; tames the weight of very short runs. 10 s is customary, 1 s says more about sub-second models.
    """
    values = np.asarray(seconds, dtype=np.float64)
    if not len(values):
        return math.nan
    return float(np.exp(np.mean(np.log(np.maximum(1.0, values + shift)))) - shift)


def mean_ratio_interval(
    first: Sequence[float], second: Sequence[float], groups: Sequence[str], shift: float
) -> tuple[float, float]:
    """95 % interval of SGM(second) / SGM(first) by a paired bootstrap; NaN with fewer than two groups.

    Groups are drawn with repetition, each with all its pairs: the seeds of one instance are not independent. Two thousand
    draws, always the same ones; the interval is between their 2.5 % and 97.5 % quantiles (Efron and Tibshirani 1993, 13).

    Args:
        first, second: Seconds of two arms, pair by pair.
        groups: The instance of every pair.
        shift: Of the means, seconds.
    """
    names, group = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    if len(names) < 2:
        return math.nan, math.nan
    logs = np.log(np.maximum(1.0, np.array([first, second], dtype=np.float64) + shift))
    sums = np.stack([np.bincount(group, weights=values, minlength=len(names)) for values in logs])
    counts = np.bincount(group, minlength=len(names))
    draws = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), size=2000)
    means = np.exp((draws @ sums.T) / (draws @ counts)[:, None]) - shift
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = means[:, 1] / means[:, 0]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


def par10(seconds: Sequence[float] | Floats, solved: Sequence[bool] | Bools, limit: float) -> float:
    """Mean seconds with every unsolved run at ten times the limit; NaN without runs."""
    values = np.where(np.asarray(solved, dtype=np.bool_), np.asarray(seconds, dtype=np.float64), 10 * limit)
    return float(values.mean()) if len(values) else math.nan


def performance_ratios(seconds: Floats, solved: Bools) -> Floats:
    """How many times longer than the fastest arm (Dolan and More 2002).

    Args:
        seconds: float64 (A, N), arms by runs.
        solved: bool (A, N).

    Returns:
        float64 (A, N), at least 1; infinite where the arm did not solve the run. Times below ``SHORTEST`` count as it.
    """
    times = np.where(solved, np.maximum(seconds, SHORTEST), np.inf)
    best = times.min(axis=0, initial=np.inf)
    with np.errstate(invalid="ignore"):
        ratios: Floats = np.where(np.isfinite(times), times / best, np.inf)
    return ratios


def profile(ratios: Floats, factors: Sequence[float] | Floats) -> Floats:
    """float64 (A, F): share of the runs that each arm solves within each factor of the fastest; the profile itself."""
    count = ratios.shape[1]
    if not count:
        return np.full((len(ratios), len(factors)), np.nan)
    return np.stack([(ratios <= factor * (1 + 1e-12)).sum(axis=1) / count for factor in factors], axis=1)


def primal_gap(objective: float | None, best: float) -> float:
    """|x - best| / max(|x|, |best|) within 0..1; 1 without a solution or with another sign (Berthold 2013)."""
    if objective is None or not math.isfinite(objective):
        return 1.0
    if objective == best:
        return 0.0
    if objective * best < 0:
        return 1.0
    return min(1.0, abs(objective - best) / max(abs(objective), abs(best)))


def gap_steps(events: Sequence[Sequence[float]], best: float, sense: str) -> list[tuple[float, float]]:
    """(second, primal gap) at every improvement, from (0, 1) on; an event that is no improvement is skipped.

    Args:
        events: (second, objective), in order of time.
        best: Best objective known; a claim beyond it counts as it.
        sense: ``"min"`` or ``"max"``.
    """
    steps = [(0.0, 1.0)]
    for second, objective in sorted(events, key=lambda event: event[0]):
        beyond = objective > best if sense == "max" else objective < best
        gap = 0.0 if beyond else primal_gap(objective, best)
        if gap < steps[-1][1]:
            steps.append((float(second), gap))
    return steps


def primal_integral(steps: Sequence[tuple[float, float]], limit: float) -> float:
    """Integral of the primal gap over 0..limit, seconds: 0 is a solver that knew the best answer at once."""
    total = 0.0
    for (second, gap), following in zip(steps, [*(s for s, _ in steps[1:]), limit], strict=True):
        total += gap * max(0.0, min(following, limit) - min(second, limit))
    return total


def gap_at(steps: Sequence[tuple[float, float]], second: float) -> float:
    """Primal gap at a second."""
    return next((gap for start, gap in reversed(steps) if start <= second), 1.0)


def gap_reached_at(steps: Sequence[tuple[float, float]], gap: float, limit: float) -> float:
    """First second at which the primal gap is no larger than ``gap``; the limit where that is never or later."""
    return min([limit, *(second for second, reached in steps if reached <= gap)])
