"""Lengths of prompts and answers as distributions: lognormal, or through quantiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from coralopt.types import Floats

_NORMAL = NormalDist()
#: Normal scores closer than this are the same share of all requests.
_LEAST_STEP = 1e-6
#: Largest exponent of e: more is beyond any longest length.
_MOST_EXPONENT = 700.0


@dataclass(frozen=True)
class LengthSpread:
    """How lengths vary around their mean.

    Attributes:
        cv: Coefficient of variation of a lognormal distribution; of no meaning with quantiles.
        quantiles: (share, multiple of the mean), rising. Between them, and beyond the outer ones, the logarithm of the
            length is linear in the normal score, so that two of them are a lognormal distribution. The share 1 is a most.
    """

    cv: float = 1.0
    quantiles: tuple[tuple[float, float], ...] = ()


#: Lognormal with a standard deviation as large as the mean.
USUAL_SPREAD = LengthSpread()


@dataclass(frozen=True)
class LengthDistribution:
    """Lengths in tokens.

    Attributes:
        mean: Their mean.
        spread: How they vary around it.
    """

    mean: float
    spread: LengthSpread = USUAL_SPREAD

    @property
    def cv(self) -> float:
        """Coefficient of variation."""
        if not self.spread.quantiles:
            return self.spread.cv
        return math.sqrt(max(self.moment(2) / self.moment(1) ** 2 - 1.0, 0.0))

    def moment(self, power: int) -> float:
        """E[X^power], tokens^power; infinite where the tail is too heavy."""
        if not self.spread.quantiles:
            return float(self.mean**power * (1.0 + self.spread.cv**2) ** (power * (power - 1) / 2))
        return self.mean**power * _moment(self.spread.quantiles, power)

    def quantile(self, shares: Sequence[float]) -> Floats:
        """float64 (n,): the lengths that these shares of all do not exceed; shares strictly inside (0, 1)."""
        return self._at(np.array([_NORMAL.inv_cdf(share) for share in shares]))

    def sample(self, generator: np.random.Generator, count: int) -> Floats:
        """float64 (count,): independent lengths, neither rounded nor cut."""
        if not self.spread.quantiles:
            variance = math.log1p(self.spread.cv**2)
            return generator.lognormal(math.log(max(self.mean, 1.0)) - variance / 2, math.sqrt(variance), count)
        return self._at(generator.standard_normal(count))

    def _at(self, scores: Floats) -> Floats:
        if not self.spread.quantiles:
            variance = math.log1p(self.spread.cv**2)
            return np.asarray(self.mean * np.exp(math.sqrt(variance) * scores - variance / 2))
        lines, most = _lines(self.spread.quantiles)
        starts = [start for start, _, _ in lines[1:]]
        _, level, slope = np.array(lines).T
        line = np.searchsorted(starts, scores)
        return np.asarray(
            self.mean * np.minimum(np.exp(np.minimum(level[line] + slope[line] * scores, _MOST_EXPONENT)), most)
        )


@dataclass(frozen=True)
class LengthPair:
    """Lengths of a model's requests, in tokens; prompts and answers are independent."""

    input: LengthDistribution
    output: LengthDistribution


def through_quantiles(quantiles: Sequence[tuple[float, float]]) -> LengthDistribution:
    """The distribution through (share, tokens) pairs.

    Raises:
        ValueError: They do not rise, a share is there twice, or their tail has no mean.
    """
    pairs = sorted(quantiles)
    if sum(share < 1.0 for share, _ in pairs) < 2:
        raise ValueError("give at least two quantiles below 1, for example 0.5 and 0.95")
    for (low, shorter), (high, longer) in itertools.pairwise(pairs):
        if low == high or (high < 1.0 and _NORMAL.inv_cdf(high) - _NORMAL.inv_cdf(low) < _LEAST_STEP):
            raise ValueError(f"the quantile {high:g} is there twice: {shorter:g} and {longer:g} tokens")
        if longer < shorter:
            raise ValueError(f"quantiles fall: {shorter:g} tokens at {low:g}, but {longer:g} at {high:g}")
    # Planning needs three moments.
    mean, third = (_moment(pairs, power) for power in (1, 3))
    if not math.isfinite(third):
        raise ValueError("quantiles rise so steeply that lengths have no mean; add the quantile 1, the longest")
    return LengthDistribution(mean, LengthSpread(quantiles=tuple((share, tokens / mean) for share, tokens in pairs)))


def _lines(quantiles: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float, float]], float]:
    """(first score, level, slope) of each straight line of log length over score, and the longest length."""
    most = next((length for share, length in quantiles if share >= 1.0), math.inf)
    points = [(_NORMAL.inv_cdf(share), math.log(length)) for share, length in quantiles if share < 1.0]
    lines: list[tuple[float, float, float]] = []
    for (low, shorter), (high, longer) in itertools.pairwise(points):
        slope = (longer - shorter) / (high - low)
        lines.append((low if lines else -math.inf, shorter - slope * low, slope))
    return lines, most


def _moment(quantiles: Sequence[tuple[float, float]], power: int) -> float:
    """E[X^power]: of each line the moment of a lognormal between two scores; what is above the most is the most."""
    lines, most = _lines(quantiles)
    _, level, slope = lines[-1]
    if not math.isfinite(most):
        last = math.inf
    else:
        last = (math.log(most) - level) / slope if slope > 0 else math.inf
    ends = [*(start for start, _, _ in lines[1:]), max(last, lines[-1][0])]
    total = 0.0 if last == math.inf else most**power * math.exp(_log_share(ends[-1], math.inf))
    for (start, level, slope), end in zip(lines, ends, strict=True):
        # In logarithms: a steep line has a huge factor and a tiny share.
        share = _log_share(start - power * slope, end - power * slope)
        try:
            total += math.exp(power * level + (power * slope) ** 2 / 2 + share)
        except OverflowError:
            return math.inf
    return total


def _log_share(low: float, high: float) -> float:
    """Logarithm of the share of normal scores between the two, true in either tail."""
    from scipy.special import log_ndtr

    if high <= low:
        return -math.inf
    if low > 0:
        low, high = -high, -low
    above = float(log_ndtr(high))
    share = -math.expm1(float(log_ndtr(low)) - above)
    return above + math.log(share) if share > 0 else -math.inf
