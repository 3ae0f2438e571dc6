"""What a trace looks like in numbers: lengths, rate and burstiness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.types import Floats, Ints
from coralopt.workload.traces.trace import Trace

#: Windows over which arrivals are counted, s.
WINDOWS_S = (1.0, 10.0, 60.0)
#: Quantiles of token lengths that are reported.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
#: A window length is reported when the trace holds at least this many of them.
_FEWEST_WINDOWS = 10
#: Most windows of a length that are counted: a second each for eight months.
_MOST_WINDOWS = 20_000_000


@dataclass(frozen=True)
class LengthStatistics:
    """Lengths of one side of the requests, in tokens.

    Attributes:
        mean: Mean.
        quantiles: Probability -> tokens, by linear interpolation between order statistics.
        smallest: Shortest.
        largest: Longest.
    """

    mean: float
    quantiles: Mapping[float, float]
    smallest: int
    largest: int


@dataclass(frozen=True)
class TraceStatistics:
    """Numbers that describe a trace.

    Attributes:
        requests: Number of requests.
        span_s: From the first to the last arrival, s.
        rate_s: Requests/s over that span; NaN when all arrive at once.
        input_tokens: Prompt lengths.
        output_tokens: Answer lengths.
        rank_correlation: Spearman's, between prompt and answer lengths.
        interval_cv: Coefficient of variation of the times between arrivals; 1 for a Poisson process.
        count_cv: Window (s) -> coefficient of variation of the number of arrivals a window.
        dispersion: Window (s) -> variance / mean of that number; 1 for a Poisson process.
        token_cv: Window (s) -> coefficient of variation of the input tokens that arrive a window.
        tick_s: The clock that arrivals are recorded with, s; ``None`` when none is visible.
    """

    requests: int
    span_s: float
    rate_s: float
    input_tokens: LengthStatistics
    output_tokens: LengthStatistics
    rank_correlation: float
    interval_cv: float
    count_cv: Mapping[float, float]
    dispersion: Mapping[float, float]
    token_cv: Mapping[float, float]
    tick_s: float | None

    def as_json(self) -> dict[str, object]:
        """The same as plain JSON data; ``null`` where there is no number."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def describe(trace: Trace) -> TraceStatistics:
    """Statistics of a trace.

    Raises:
        WorkloadError: The trace holds no request.
    """
    if len(trace) == 0:
        raise WorkloadError("an empty trace has no statistics")
    times = trace.arrival_s - trace.arrival_s[0]
    span = float(times[-1])
    windows = [w for w in WINDOWS_S if _FEWEST_WINDOWS * w <= span <= _MOST_WINDOWS * w]
    counts = {w: per_window(times, w) for w in windows}
    tokens = {w: per_window(times, w, trace.input_tokens) for w in windows}
    return TraceStatistics(
        requests=len(trace),
        span_s=span,
        rate_s=trace.rate_s,
        input_tokens=length_statistics(trace.input_tokens),
        output_tokens=length_statistics(trace.output_tokens),
        rank_correlation=rank_correlation(trace.input_tokens, trace.output_tokens),
        interval_cv=interval_cv(times),
        count_cv={w: variation(counts[w]) for w in windows},
        dispersion={w: dispersion(counts[w]) for w in windows},
        token_cv={w: variation(tokens[w]) for w in windows},
        tick_s=find_tick(times),
    )


def length_statistics(tokens: Ints) -> LengthStatistics:
    """Mean, quantiles and range of token lengths."""
    values = np.quantile(tokens, QUANTILES)
    return LengthStatistics(
        mean=float(tokens.mean()),
        quantiles={p: float(v) for p, v in zip(QUANTILES, values, strict=True)},
        smallest=int(tokens.min()),
        largest=int(tokens.max()),
    )


def per_window(times: Floats, window_s: float, weights: Ints | None = None) -> Floats:
    """Arrivals (or their summed weights) in each whole window from 0 to the last arrival: float64 (windows,)."""
    # A time that is a whole number of windows up to rounding belongs to the window it starts.
    position = np.floor(times / window_s + 1e-9).astype(np.int64)
    whole = int(np.floor(times[-1] / window_s + 1e-9)) if len(times) else 0
    return np.bincount(position, weights=weights, minlength=whole)[:whole].astype(np.float64)


def variation(values: Floats) -> float:
    """Standard deviation / mean; NaN when the mean is 0 or there is nothing."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.std()) / mean if mean > 0 else float("nan")


def dispersion(counts: Floats) -> float:
    """Variance / mean, the index of dispersion; NaN when the mean is 0 or there is nothing."""
    mean = float(counts.mean()) if len(counts) else 0.0
    return float(counts.var()) / mean if mean > 0 else float("nan")


def interval_cv(times: Floats) -> float:
    """Coefficient of variation of the times between arrivals; NaN below three arrivals or when all are equal."""
    return variation(np.diff(times)) if len(times) > 2 else float("nan")


def rank_correlation(first: Ints, second: Ints) -> float:
    """Spearman's rank correlation with average ranks for ties; NaN when one side is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    scale = float(np.sqrt((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1])))
    return float(ranks[0] @ ranks[1]) / scale if scale > 0 else float("nan")


def find_tick(times: Floats) -> float | None:
    """The clock of the log, s: several requests share most stamps and stamps are a regular step apart; else ``None``.

    Mooncake's published conversation trace, for one, has a stamp every 3 s.
    """
    stamps = np.unique(np.round(times, 6))
    if len(stamps) < 3 or len(times) < 2 * len(stamps):
        return None
    steps = np.diff(stamps)
    step = float(np.median(steps))
    off = np.abs(steps / step - np.round(steps / step)) * step
    return step if float(np.mean(off <= 0.02 * step)) >= 0.95 else None


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
