"""A generator of hourly availability: a daily cycle plus two correlated Gaussian processes, one slow and one fast.

For each GPU type the free share is put on the scale of a standard normal by its own ranks. There it is the sum of a mean
for each hour of the day and two AR(1) processes. The slow one keeps weeks-long drifts, the fast one the hour-to-hour
noise; both are correlated between GPU types. Quantiles bring a sample back to free shares.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.files.checks import random_of
from coralopt.workload.files.documents import DocumentKind, Numbers
from coralopt.workload.series.availability import HourlyAvailability

#: Probabilities of the stored quantiles of the free share.
_PROBABILITIES = np.array([0, 0.005, 0.01, *np.arange(0.025, 0.99, 0.025), 0.99, 0.995, 1.0])
#: Lags in hours at which the autocorrelation is fitted: hours, days, weeks.
_LAGS = np.array([1, 2, 3, 4, 6, 8, 12, 18, 24, 48, 72, 96, 120, 168, 240, 336])
_PACKAGED = "gfs"
_MOST_HOURS = 10_000_000
#: Longest memory of the slow process, hours. Longer ones look like a trend inside half a year, which no stationary process
#: repeats: samples would each sit at a level of their own.
_LONGEST_MEMORY_H = 1000.0

_Shares = Annotated[Floats, Numbers(2, ge=0, le=1)]
_Weights = Annotated[Floats, Numbers(ge=0)]
_Memories = Annotated[Floats, Numbers(ge=0, lt=1)]
_Correlations = Annotated[Floats, Numbers(2, ge=-1.000001, le=1.000001)]


@dataclass(frozen=True, eq=False)
class AvailabilityModel:
    """Makes hourly tables like the one it was fitted to.

    Attributes:
        name: Short name.
        source: Where the figures come from.
        licence: Licence of the data behind them.
        gpus: G GPU types.
        capacity: float64 (G,), GPUs in all.
        probabilities: float64 (q,), rising from 0 to 1.
        quantiles: float64 (q, G), free share at these probabilities.
        daily: float64 (24, G), mean of the normal score in each hour of the day.
        slow_weight: float64 (G,), variance of the slow process; the fast one has the rest of what the day leaves.
        fast_weight: float64 (G,), variance of the fast process.
        slow_memory: float64 (G,), its correlation from one hour to the next.
        fast_memory: float64 (G,), that of the fast process.
        slow_correlation: float64 (G, G), of the slow processes between GPU types.
        fast_correlation: float64 (G, G), of the fast ones.
    """

    name: str
    source: str = ""
    licence: str = ""
    _: KW_ONLY
    gpus: Annotated[tuple[str, ...], Field(min_length=1)]
    capacity: Annotated[Floats, Numbers(gt=0)]
    probabilities: Annotated[Floats, Numbers(ge=0, le=1, least=2)]
    quantiles: _Shares
    daily: Annotated[Floats, Numbers(2)]
    slow_weight: _Weights
    fast_weight: _Weights
    slow_memory: _Memories
    fast_memory: _Memories
    slow_correlation: _Correlations
    fast_correlation: _Correlations

    def sample(self, hours: int, seed: int = 0) -> HourlyAvailability:
        """A table of ``hours`` hours that starts at midnight; equal arguments give equal tables.

        Raises:
            WorkloadError: Hours or seed out of range.
        """
        from scipy.special import ndtr

        if not 1 <= hours <= _MOST_HOURS:
            raise WorkloadError(f"the number of hours must be 1 to {_MOST_HOURS:,}, not {hours}")
        random = random_of(seed)
        score = self.daily[np.arange(hours) % 24]
        score = score + np.sqrt(self.slow_weight) * _ar1(self.slow_memory, self.slow_correlation, hours, random)
        score = score + np.sqrt(self.fast_weight) * _ar1(self.fast_memory, self.fast_correlation, hours, random)
        rank = ndtr(score)
        shares = np.column_stack(
            [np.interp(rank[:, g], self.probabilities, self.quantiles[:, g]) for g in range(len(self.gpus))]
        )
        return HourlyAvailability(self.gpus, self.capacity, shares)


def fit_availability(hourly: HourlyAvailability, name: str, source: str = "", licence: str = "") -> AvailabilityModel:
    """Fit the generator to an hourly table.

    Raises:
        WorkloadError: Less than two weeks of hours.
    """
    if len(hourly) < 336:
        raise WorkloadError(f"{len(hourly)} hours are too few to fit availability to; two weeks (336) are needed")
    scores = np.column_stack([_scores(hourly.free_share[:, g]) for g in range(len(hourly.gpus))])
    hour = np.arange(len(scores)) % 24
    daily = np.array([scores[hour == h].mean(axis=0) for h in range(24)])
    rest = scores - daily[hour]
    variance = rest.var(axis=0)
    parts = np.array([_two_memories(rest[:, g]) for g in range(rest.shape[1])])
    share, slow, fast = parts.T
    slow_weight, fast_weight = variance * share, variance * (1 - share)
    # Hour-to-hour changes are nearly all fast; what correlation they leave unexplained is slow.
    fast_correlation = _nearest(np.corrcoef(np.diff(rest, axis=0).T))
    covariance = np.cov(rest.T) - np.sqrt(np.outer(fast_weight, fast_weight)) * fast_correlation
    slow_scale = np.sqrt(np.maximum(np.outer(slow_weight, slow_weight), 1e-12))
    slow_correlation = _nearest(np.clip(covariance / slow_scale, -0.99, 0.99))
    return AvailabilityModel(
        name=name,
        source=source,
        licence=licence,
        gpus=hourly.gpus,
        capacity=hourly.capacity,
        probabilities=_PROBABILITIES,
        quantiles=np.quantile(hourly.free_share, _PROBABILITIES, axis=0),
        daily=daily,
        slow_weight=slow_weight,
        fast_weight=fast_weight,
        slow_memory=slow,
        fast_memory=fast,
        slow_correlation=slow_correlation,
        fast_correlation=fast_correlation,
    )


def load_availability_model(name: str | Path = _PACKAGED) -> AvailabilityModel:
    """The packaged model (``"gfs"``), or one from a JSON file.

    Raises:
        WorkloadError: No such file, or it lists its mistakes.
    """
    return _MODELS.load(name)


def save_availability_model(model: AvailabilityModel, path: str | Path) -> None:
    """Write an availability model as JSON, atomically."""
    _MODELS.save(model, path)


def autocorrelation(values: Floats, lags: Ints) -> Floats:
    """Correlation of a series with itself ``lags`` steps later."""
    return np.array([np.corrcoef(values[:-lag], values[lag:])[0, 1] for lag in lags])


def _scores(values: Floats) -> Floats:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    scores: Floats = ndtri((rankdata(values) - 0.5) / len(values))
    return scores


def _two_memories(values: Floats) -> tuple[float, float, float]:
    """(slow share of the variance, slow memory, fast memory) nearest to the autocorrelation by least squares."""
    seen = autocorrelation(values, _LAGS)
    best = (np.inf, 0.0, 0.0, 0.0)
    for slow_hours in np.geomspace(48, _LONGEST_MEMORY_H, 40):
        slow = np.exp(-_LAGS / slow_hours)
        for fast_hours in np.geomspace(1, 40, 40):
            fast = np.exp(-_LAGS / fast_hours)
            # Least squares in the share alone has a closed form.
            gap = slow - fast
            share = float(np.clip((gap @ (seen - fast)) / max(float(gap @ gap), 1e-12), 0.0, 1.0))
            error = float(np.sum((share * slow + (1 - share) * fast - seen) ** 2))
            if error < best[0]:
                best = (error, share, float(np.exp(-1 / slow_hours)), float(np.exp(-1 / fast_hours)))
    return best[1:]


def _ar1(memory: Floats, correlation: Floats, hours: int, random: np.random.Generator) -> Floats:
    """Stationary AR(1) processes with unit variance and this correlation between them, or the nearest possible."""
    from scipy.signal import lfilter

    own = np.sqrt(1 - memory**2)
    steps = _nearest(correlation * (1 - np.outer(memory, memory)) / np.outer(own, own))
    noise = random.standard_normal((hours, len(memory))) @ np.linalg.cholesky(steps).T * own
    noise[0] = np.linalg.cholesky(_nearest(correlation)) @ random.standard_normal(len(memory))
    return np.column_stack([lfilter([1.0], [1.0, -memory[g]], noise[:, g]) for g in range(len(memory))])


def _nearest(matrix: Floats) -> Floats:
    """A correlation matrix near this symmetric one: negative eigenvalues raised, the diagonal set to one."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    raised = (vectors * np.maximum(values, 1e-6)) @ vectors.T
    scale = np.sqrt(np.diag(raised))
    result: Floats = raised / np.outer(scale, scale)
    return result


def _checked(model: AvailabilityModel) -> tuple[AvailabilityModel, list[Mistake]]:
    """The model, and which of its arrays do not go together."""
    count, points = len(model.gpus), len(model.probabilities)
    square = (count, count)
    shapes = {"probabilities": (points,), "quantiles": (points, count), "daily": (24, count)}
    shapes |= {"slow_correlation": square, "fast_correlation": square}
    mistakes = []
    for field in fields(model)[4:]:
        shape = shapes.get(field.name, (count,))
        if getattr(model, field.name).shape != shape:
            mistakes.append(Mistake(field.name, f"must have the shape {shape} for {count} GPU types"))
    rising = model.probabilities
    if rising[0] != 0 or rising[-1] != 1 or (np.diff(rising) <= 0).any():
        mistakes.append(Mistake("probabilities", "must rise from 0 to 1"))
    if (np.diff(model.quantiles, axis=0) < 0).any():
        mistakes.append(Mistake("quantiles", "must not fall"))
    return model, mistakes


_MODELS = DocumentKind(AvailabilityModel, "availability model", "availability", _checked)
