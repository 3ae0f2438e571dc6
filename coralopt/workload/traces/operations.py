"""Operations on traces: rate, epochs, thinning, repetition, mixing over models, demand.

Every operation returns a new trace; those that draw take a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.workload.files.checks import positive
from coralopt.workload.series.epochs import EpochDemand, Peak
from coralopt.workload.traces.trace import Trace

#: Length of one epoch in the paper's experiments, s (section 5.1).
EPOCH_S = 360.0
#: Share of the requests that the heavy third of the models receives (paper, section 5.5).
HEAVY_SHARE = 0.8
IMBALANCES = ("balanced", "large-heavy", "small-heavy")
_MOST_EPOCHS = 1_000_000


def scale_time(trace: Trace, factor: float) -> Trace:
    """Every arrival time multiplied by ``factor`` (above 0): 0.5 doubles the rate."""
    positive("factor", factor)
    return replace(trace, arrival_s=trace.arrival_s * factor)


def scale_to_rate(trace: Trace, rate_s: float, duration_s: float | None = None) -> Trace:
    """The same requests on a clock scaled so that they arrive at ``rate_s`` requests/s (paper, section 5.1).

    Args:
        trace: At least two requests at two instants.
        rate_s: Wanted requests/s.
        duration_s: How long the trace is, s, where that is known; else the span between first and last arrival counts.

    Raises:
        WorkloadError: The rate is not positive, or the trace has none.
    """
    positive("rate", rate_s)
    if duration_s is None:
        rate = trace.rate_s
    else:
        positive("duration", duration_s)
        rate = len(trace) / duration_s
    if not (math.isfinite(rate) and rate > 0):
        raise WorkloadError("the trace has no rate: it needs requests at two instants at least")
    return scale_time(trace, rate / rate_s)


def cut(trace: Trace, start_s: float, end_s: float) -> Trace:
    """Requests that arrive in [``start_s``, ``end_s``), with time 0 at ``start_s``."""
    if not 0 <= start_s < end_s:
        raise WorkloadError(f"cut from {start_s:g} s to {end_s:g} s: 0 <= start < end is needed")
    first, last = np.searchsorted(trace.arrival_s, [start_s, end_s])
    return trace.take(slice(int(first), int(last)), start_s)


def cut_epochs(trace: Trace, epoch_s: float = EPOCH_S, epochs: int | None = None) -> tuple[Trace, ...]:
    """The trace in epochs of ``epoch_s`` seconds, each with its own time 0.

    Args:
        trace: Any trace.
        epoch_s: Length of one epoch, s.
        epochs: How many; by default as many as hold every request. Later requests are left out, and epochs beyond the
            trace are empty.
    """
    count = _epoch_count(trace, epoch_s, epochs)
    borders = np.searchsorted(trace.arrival_s, np.arange(count + 1) * epoch_s)
    return tuple(
        trace.take(slice(int(first), int(last)), i * epoch_s) for i, (first, last) in enumerate(pairwise(borders))
    )


def thin(trace: Trace, keep: float, seed: int = 0) -> Trace:
    """Each request kept with probability ``keep``, independently; times stay as they are.

    The rate falls by ``keep`` and burstiness falls too, unlike with :func:`scale_to_rate`.
    """
    if not 0 < keep <= 1:
        raise WorkloadError(f"keep must be a share above 0 and at most 1, not {keep:g}")
    return trace.take(np.random.default_rng(seed).random(len(trace)) < keep)


def repeat(trace: Trace, times: int, duration_s: float | None = None) -> Trace:
    """The trace ``times`` times over, one after the other.

    Args:
        trace: Any trace.
        times: How often, 1 or more.
        duration_s: Length of one round, s, at least the last arrival. By default the span plus one mean interval, so
            that the rate stays what it was.
    """
    if times < 1:
        raise WorkloadError(f"a trace can be repeated 1 or more times, not {times}")
    if len(trace) == 0:
        return trace
    if duration_s is None:
        span = trace.last_arrival_s - float(trace.arrival_s[0])
        duration_s = trace.last_arrival_s + (span / (len(trace) - 1) if len(trace) > 1 else 0.0)
    if duration_s < trace.last_arrival_s:
        raise WorkloadError(
            f"one round of {duration_s:g} s would end before its last arrival at {trace.last_arrival_s:g} s"
        )
    offsets = np.repeat(np.arange(times) * duration_s, len(trace))
    return Trace.in_order(
        np.tile(trace.arrival_s, times) + offsets,
        np.tile(trace.input_tokens, times),
        np.tile(trace.output_tokens, times),
        np.tile(trace.model, times),
        trace.models,
    )


def mix(traces: Mapping[str, Trace]) -> Trace:
    """One trace in which the requests of each given trace ask for the model it is given under.

    Args:
        traces: Model name -> its requests, all on one clock. A trace's own model names are replaced.

    Raises:
        WorkloadError: No trace at all.
    """
    if not traces:
        raise WorkloadError("nothing to mix: give at least one model and its trace")
    parts = list(traces.values())
    return Trace.in_order(
        np.concatenate([part.arrival_s for part in parts]),
        np.concatenate([part.input_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
        np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts]),
        tuple(traces),
    )


def assign_models(trace: Trace, shares: Mapping[str, float], seed: int = 0) -> Trace:
    """The same requests, each given a model at random in proportion to ``shares``; own model names are replaced.

    Raises:
        WorkloadError: Shares that are negative, or all 0.
    """
    values = np.array(list(shares.values()), dtype=np.float64)
    if len(values) == 0 or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise WorkloadError(f"shares must be at least 0 and not all 0: {dict(shares)}")
    borders = np.cumsum(values / values.sum())[:-1]
    model = np.searchsorted(borders, np.random.default_rng(seed).random(len(trace)), side="right").astype(np.int32)
    return replace(trace, model=model, models=tuple(shares))


def only_model(trace: Trace, name: str) -> Trace:
    """The requests of one model, on the same clock.

    Raises:
        WorkloadError: The trace does not name this model.
    """
    if name not in trace.models:
        named = ", ".join(repr(model) for model in trace.models) if trace.is_named else "no model at all"
        raise WorkloadError(f"the trace has no requests for model {name!r}; it names {named}")
    kept = trace.model == trace.models.index(name)
    return Trace(trace.arrival_s[kept], trace.input_tokens[kept], trace.output_tokens[kept], models=(name,))


def request_shares(sizes: Mapping[str, float], imbalance: str = "balanced") -> dict[str, float]:
    """Each model's share of all requests (paper, section 5.5).

    ``large-heavy``: the third of the models that is largest receives 80 %, split equally, the others the rest, split
    equally. ``small-heavy``: the smallest third does. ``balanced``: all the same. The paper does not say how the rest is
    split; equally is this project's reading.

    Args:
        sizes: Model name -> size, for instance its parameters; only the order counts. Equal sizes keep their order.
        imbalance: One of ``IMBALANCES``.

    Returns:
        Model name -> share; shares sum to 1. A single model receives everything.

    Raises:
        WorkloadError: No model, or an unknown imbalance.
    """
    if imbalance not in IMBALANCES:
        raise WorkloadError(f"unknown imbalance {imbalance!r}; choose {', '.join(IMBALANCES)}")
    count = len(sizes)
    if count == 0:
        raise WorkloadError("no models to share requests among")
    heavy_count = max(1, round(count / 3))
    if imbalance == "balanced" or heavy_count == count:
        return dict.fromkeys(sizes, 1 / count)
    order = sorted(sizes, key=lambda name: sizes[name], reverse=imbalance == "large-heavy")
    heavy = set(order[:heavy_count])
    light_share = (1 - HEAVY_SHARE) / (count - heavy_count)
    return {name: HEAVY_SHARE / heavy_count if name in heavy else light_share for name in sizes}


def epoch_demand(
    trace: Trace,
    epoch_s: float = EPOCH_S,
    *,
    epochs: int | None = None,
    mixed: bool = False,
    models: Sequence[str] | None = None,
    peak: Peak | None = None,
) -> EpochDemand:
    """Tokens/s that arrive for each model phase in each epoch, the paper's T_m.

    Args:
        trace: A trace that names its models, or ``models`` with one name for one that does not.
        epoch_s: Length of one epoch, s.
        epochs: How many; by default as many as hold every request. The last one may be cut short by the trace's end.
        mixed: Whether instances serve both phases: one demand of output tokens instead of prefill (input tokens) and
            decode (output tokens).
        models: Models of the table, in order; by default those of the trace. Without requests their demand is 0.
        peak: Take the demand of short windows that begin in the epoch, up to the last arrival, and of these a quantile.

    Raises:
        WorkloadError: The trace names no model, or one that ``models`` lacks; windows are longer than epochs.
    """
    count = _epoch_count(trace, epoch_s, epochs)
    if peak is not None:
        if peak.window_s > epoch_s:
            raise WorkloadError(f"windows of {peak.window_s:g} s are longer than epochs of {epoch_s:g} s")
        windows = epoch_demand(trace, peak.window_s, mixed=mixed, models=models)
        first = np.ceil(np.arange(count + 1) * epoch_s / peak.window_s - 1e-9).astype(np.int64)
        none = np.zeros((1, len(windows.keys)))
        of_epoch = [windows.tokens_s[start:end] for start, end in pairwise(first.tolist())]
        tokens_s = [np.quantile(own if len(own) else none, peak.quantile, axis=0, method="higher") for own in of_epoch]
        return EpochDemand(windows.keys, np.stack(tokens_s))
    names = tuple(models) if models is not None else trace.models
    own = names if not trace.is_named and len(names) == 1 else trace.models
    if own == ("",):
        raise WorkloadError("the trace names no model; say which one it is for (--model), or mix it over several")
    foreign = [name for name in own if name not in names]
    if foreign:
        raise WorkloadError(f"the trace asks for {', '.join(foreign)}, which is not among {', '.join(names)}")
    phases = ("mixed",) if mixed else ("prefill", "decode")
    epoch = np.searchsorted(np.arange(count + 1) * epoch_s, trace.arrival_s, side="right") - 1
    inside = epoch < count
    position = np.array([names.index(name) for name in own], dtype=np.int64)[trace.model[inside]]
    tokens = np.zeros((count, len(names), len(phases)))
    for column, phase in enumerate(phases):
        lengths = trace.input_tokens if phase == "prefill" else trace.output_tokens
        np.add.at(tokens[:, :, column], (epoch[inside], position), lengths[inside])
    keys = tuple(f"{name}/{phase}" for name in names for phase in phases)
    return EpochDemand(keys, tokens.reshape(count, -1) / epoch_s)


def scenario_demand(trace: Trace, duration_s: float | None = None) -> dict[str, dict[str, float]]:
    """Rate and mean lengths of each model, in the form of a scenario's ``models.<name>.demand``.

    Args:
        trace: Any trace; a model without requests is left out.
        duration_s: Time over which the rate is taken, s; by default until the last arrival.

    Returns:
        Model name -> ``{"requests_s": ..., "input_tokens": ..., "output_tokens": ...}``.
    """
    duration = duration_s if duration_s is not None else trace.last_arrival_s
    positive("duration", duration)
    demand = {}
    for position, name in enumerate(trace.models):
        own = trace.model == position
        requests = int(np.count_nonzero(own))
        if requests:
            demand[name] = {
                "requests_s": requests / duration,
                "input_tokens": float(trace.input_tokens[own].mean()),
                "output_tokens": float(trace.output_tokens[own].mean()),
            }
    return demand


def _epoch_count(trace: Trace, epoch_s: float, epochs: int | None) -> int:
    positive("epoch length", epoch_s)
    if epochs is not None:
        if not 1 <= epochs <= _MOST_EPOCHS:
            raise WorkloadError(f"the number of epochs must be 1 to {_MOST_EPOCHS:,}, not {epochs}")
        return epochs
    needed = trace.last_arrival_s / epoch_s
    if needed >= _MOST_EPOCHS:
        raise WorkloadError(f"{trace.last_arrival_s:g} s are more than {_MOST_EPOCHS:,} epochs of {epoch_s:g} s")
    count = max(1, math.floor(needed) + 1)
    return count + 1 if trace.last_arrival_s >= count * epoch_s else count
