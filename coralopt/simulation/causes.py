"""Why a request missed its SLO: one cause each, the first of a fixed order that explains it.

=========== ==========================================================================================================
cause       meaning
=========== ==========================================================================================================
``length``  alone on an idle cluster, on the very nodes it was given, it would miss, too: too long a prompt, too short an
            answer for its KV transfer, or no instance could ever hold it
``instance`` no instance served
``startup`` it waited while instances of the plan in force were still starting
``memory``  without the wait for KV memory it would have met
``burst``   it waited for others, and in the last :data:`BURST_S` seconds more tokens arrived than the plan promises
``queue``   it waited for others though no more tokens arrived than promised: arrivals and lengths are random
``batch``   its decoding rounds themselves were too slow: larger batches or longer contexts than planned for
``transfer`` its KV transfer waited for others' transfers
=========== ==========================================================================================================
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.simulation.state import NO_INSTANCE, NO_MEMORY, Columns
from coralopt.types import Bools, Floats, Ints

MET = "met"
CAUSES = (MET, "length", "instance", "startup", "memory", "burst", "queue", "batch", "transfer")
#: Seconds over which arrivals are compared with the promise.
BURST_S = 10.0
#: Seconds of the windows among which the worst one is looked for.
WINDOW_S = 30.0


def bursts(arrival_s: Floats, tokens: Ints, promised_tokens_s: Floats) -> Bools:
    """Whether more tokens arrived in the :data:`BURST_S` seconds up to each request than are promised.

    Args:
        arrival_s: float64 (n,), never falling.
        tokens: int64 (n,).
        promised_tokens_s: float64 (n,), tokens/s in force at each arrival.
    """
    arrived = np.concatenate([[0], np.cumsum(tokens)])
    first = np.searchsorted(arrival_s, arrival_s - BURST_S, side="right")
    return np.asarray(arrived[1:] - arrived[first] > promised_tokens_s * BURST_S)


def serving_tokens_s(moments_s: Floats, ready_s: Floats, gone_s: Floats, tokens_s: Floats) -> Floats:
    """Throughput of the instances that serve at each moment, tokens/s.

    Args:
        moments_s: float64 (n,), never falling.
        ready_s: float64 (i,), when each instance begins to serve; NaN: never.
        gone_s: float64 (i,), when it is gone; NaN: never.
        tokens_s: float64 (i,).
    """
    total = np.zeros(len(moments_s))
    for ready, gone, tokens in zip(ready_s, gone_s, tokens_s, strict=True):
        with np.errstate(invalid="ignore"):
            total[(moments_s >= ready) & ~(moments_s >= gone)] += tokens
    return total


def prefill_causes(
    requests: Columns, rows: Bools, slo_ms: float, burst: Bools, starting: Bools
) -> npt.NDArray[np.int8]:
    """Position in :data:`CAUSES` for the time to first token of the chosen requests; int8 (n,)."""
    ttft, wait = requests["ttft_ms"][rows], requests["prefill_wait_ms"][rows]
    blocked = requests["blocked_prefill"][rows]
    with np.errstate(invalid="ignore"):
        unserved = np.isnan(ttft) | (blocked == NO_INSTANCE)
        waited = np.where(burst, CAUSES.index("burst"), CAUSES.index("queue"))
        return np.select(
            [
                requests["met_ttft"][rows],
                (requests["idle_ttft_ms"][rows] > slo_ms) | (requests["status"][rows] == 2),
                unserved,
                starting,
                (blocked == NO_MEMORY) & (ttft - wait <= slo_ms),
            ],
            [CAUSES.index(name) for name in (MET, "length", "instance", "startup", "memory")],
            waited,
        ).astype(np.int8)


def decode_causes(requests: Columns, rows: Bools, slo_ms: float, burst: Bools, starting: Bools) -> npt.NDArray[np.int8]:
    """Position in :data:`CAUSES` for the time per output token of the chosen requests; int8 (n,)."""
    tpot, steps = requests["tpot_ms"][rows], np.maximum(requests["output_tokens"][rows] - 1, 1)
    blocked, rejected = requests["blocked_decode"][rows], requests["status"][rows] == 2
    with np.errstate(invalid="ignore"):
        unserved = (requests["status"][rows] == 0) | (blocked == NO_INSTANCE)
        quick = tpot - requests["decode_wait_ms"][rows] / steps <= slo_ms
        waited = np.where(burst, CAUSES.index("burst"), CAUSES.index("queue"))
        return np.select(
            [
                requests["met_tpot"][rows],
                (requests["idle_tpot_ms"][rows] > slo_ms) | rejected,
                unserved,
                starting,
                (blocked == NO_MEMORY) & quick,
                requests["step_ms"][rows] > slo_ms,
                ~quick,
            ],
            [CAUSES.index(name) for name in (MET, "length", "instance", "startup", "memory", "batch", "transfer")],
            waited,
        ).astype(np.int8)


def shares(cause: npt.NDArray[np.int8]) -> dict[str, float]:
    """Cause -> share of all requests that missed for it; only causes that occur."""
    count = np.bincount(cause, minlength=len(CAUSES))
    return {name: float(count[c] / len(cause)) for c, name in enumerate(CAUSES) if c and count[c]}


def worst_instance(cause: npt.NDArray[np.int8], instance: Ints) -> tuple[int, float]:
    """The instance with most misses and its share of them; (-1, 0) where none has any."""
    missed = instance[(cause > 0) & (instance >= 0)]
    if not len(missed):
        return -1, 0.0
    count = np.bincount(missed)
    return int(count.argmax()), float(count.max() / (cause > 0).sum())


def worst_window(cause: npt.NDArray[np.int8], arrival_s: Floats) -> tuple[float, float]:
    """(start in s, attainment) of the :data:`WINDOW_S` seconds of arrivals with most misses beyond its share of them.

    Its share is what as many requests miss on average; so no crowd counts as worst that fares better than the total.
    NaN without requests.
    """
    if not len(cause):
        return float("nan"), float("nan")
    window = (arrival_s // WINDOW_S).astype(np.int64)
    missed, count = np.bincount(window, weights=cause > 0), np.bincount(window)
    # Times the number of requests, in whole numbers: rounding must not choose.
    excess = missed * len(cause) - count * missed.sum()
    worst = int(np.where(count > 0, excess, -np.inf).argmax())
    return worst * WINDOW_S, float((count[worst] - missed[worst]) / count[worst])
