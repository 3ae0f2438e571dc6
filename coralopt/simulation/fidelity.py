"""How far two latency distributions are apart: a simulation against what servers did (paper, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coralopt.errors import CoraloptError
from coralopt.types import Floats


@dataclass(frozen=True)
class Deviation:
    """Distance of a simulated latency distribution from a real one.

    Attributes:
        latency: Mean over the percentiles 1 to 99 of abs(simulated - real) / real: how far the CDFs are apart
            sideways, relative to the real latency.
        cdf: Mean absolute difference of the two CDFs over the latencies that either has: how far apart upwards.
        bias: Mean over the percentiles 1 to 99 of (simulated - real) / real: positive when the simulator is slow.
        request: Mean over the requests of abs(simulated - real) / real, request by request.
        real_ms: Percentiles 50, 90 and 99 of the real latencies, ms.
        simulated_ms: The same of the simulated ones.
        requests: Requests that have a latency in both.
    """

    latency: float
    cdf: float
    bias: float
    request: float
    real_ms: tuple[float, float, float]
    simulated_ms: tuple[float, float, float]
    requests: int


def deviation(real_ms: Floats, simulated_ms: Floats) -> Deviation:
    """Compare two latencies a request.

    Args:
        real_ms: float64 (n,), measured, ms; NaN for requests without one.
        simulated_ms: float64 (n,), of the same requests in the same order.

    Raises:
        CoraloptError: Different lengths, fewer than two requests with both, or a measured latency that is not positive.
    """
    if real_ms.shape != simulated_ms.shape:
        raise CoraloptError(f"{real_ms.size} measured and {simulated_ms.size} simulated requests: not the same trace")
    both = np.isfinite(real_ms) & np.isfinite(simulated_ms)
    real, simulated = real_ms[both], simulated_ms[both]
    if real.size < 2:
        raise CoraloptError(f"{real.size} requests have both latencies; two at least are needed")
    if real.min() <= 0:
        raise CoraloptError(f"a measured latency is {real.min():g} ms; latencies are positive")
    levels = np.arange(1, 100)
    a, b = np.percentile(real, levels), np.percentile(simulated, levels)
    at = np.union1d(real, simulated)
    below_real = np.searchsorted(np.sort(real), at, side="right") / real.size
    below_simulated = np.searchsorted(np.sort(simulated), at, side="right") / simulated.size
    tails = [50, 90, 99]
    return Deviation(
        latency=float(np.mean(np.abs(b - a) / a)),
        cdf=float(np.mean(np.abs(below_real - below_simulated))),
        bias=float(np.mean((b - a) / a)),
        request=float(np.mean(np.abs(simulated - real) / real)),
        real_ms=tuple(float(x) for x in np.percentile(real, tails)),  # type: ignore[arg-type]
        simulated_ms=tuple(float(x) for x in np.percentile(simulated, tails)),  # type: ignore[arg-type]
        requests=int(real.size),
    )
