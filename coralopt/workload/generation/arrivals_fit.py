"""Fit an arrival model to arrival times: a hidden Markov chain over counts, or a gamma renewal process.

The chain is fitted by expectation and maximisation (Baum-Welch) on the number of arrivals in equal windows, Poisson in
each state; the number of states is the one with the least Bayesian information criterion. Then this model and the plain
gamma renewal process both generate traces as long as the real one, and the one nearer to it in burstiness is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.types import Floats, Progress
from coralopt.workload.generation.arrivals import HOUR_S, ArrivalModel, even_hours, stationary_law
from coralopt.workload.traces.statistics import WINDOWS_S, dispersion, find_tick, interval_cv, per_window

#: Numbers of states that are tried, in this order, until the criterion has risen twice.
_STATES = (1, 2, 3, 4, 5, 6, 8, 10)
#: Windows the chain is fitted on at most; longer traces get longer windows.
_MOST_WINDOWS = 60_000
_MOST_ROUNDS = 300
#: Traces each candidate generates to be judged, and their seed.
_TRIALS = 15
_SEED = 20240601
#: A model is preferred for being simpler when its mean error is this little larger.
_TIE = 0.02
#: Fewest whole days or weeks that show a daily or a weekly shape.
_DAYS_FOR_A_DAY = 2
_DAYS_FOR_A_WEEK = 14


@dataclass(frozen=True, eq=False)
class ArrivalFit:
    """A fitted arrival model.

    Attributes:
        model: The model; its ``why`` says what was compared and what decided.
        state_weights: float64 (n, k), probability that request i arrived in state j.
    """

    model: ArrivalModel
    state_weights: Floats


def fit_arrivals(arrival_s: Floats, progress: Progress | None = None) -> ArrivalFit:
    """Fit an arrival model.

    Args:
        arrival_s: float64 (n,), never falling; at least 100 requests.
        progress: Called before each step.

    Raises:
        WorkloadError: Too few requests, or all at one instant.
    """
    report = progress or (lambda _what, _done, _total: None)
    times = arrival_s - (arrival_s[0] if len(arrival_s) else 0.0)
    if len(times) < 100 or times[-1] <= 0:
        raise WorkloadError(f"{len(times)} requests are too few to fit arrivals to; 100 or more are needed")
    rate_s = (len(times) - 1) / float(times[-1])
    shape = daily_shape(times)
    even = rate_s * HOUR_S * even_hours(shape, times / HOUR_S)
    # The last day may be cut: the rate of even time is exactly one.
    even *= (len(even) - 1) / float(even[-1])
    tick_s = find_tick(times)
    tick = tick_s * rate_s if tick_s is not None and shape is None else None
    window = tick if tick is not None else max(1.0, len(even) / _MOST_WINDOWS)
    if tick is not None:
        # Stamps a millisecond early belong to their own tick.
        even = np.round(even / tick) * tick
    counts = per_window(even, window)
    steps = len(_STATES) + 2
    report("gamma renewal", 0, steps)
    gamma = ArrivalModel(interval_cv(even), window, np.ones(1), np.ones((1, 1)), tick, shape)
    best: tuple[float, Floats, Floats] | None = None
    rises = 0
    for position, states in enumerate(_STATES):
        report(f"chain with {states} states", position + 1, steps)
        rates, transitions, likelihood = fit_chain(counts, states)
        criterion = -2 * likelihood + states * states * math.log(len(counts))
        if best is None or criterion < best[0]:
            best, rises = (criterion, rates, transitions), 0
        else:
            rises += 1
            if rises == 2:
                break
    assert best is not None
    report("comparing burstiness", steps - 1, steps)
    chain = _chain_model(gamma, best[1], best[2], even, counts)
    model = _choose(gamma, chain, times, rate_s, len(counts))
    row = np.minimum((even / window).astype(np.int64), len(counts) - 1)
    return ArrivalFit(model, _smoothed(model, counts)[row])


def daily_shape(times: Floats) -> Floats | None:
    """Rate by hour of the week (14 whole days or more) or of the day (2 or more) over the mean; hour 0 is time 0.

    Only whole days, or weeks, enter. ``None`` for shorter traces.
    """
    days = float(times[-1]) / (24 * HOUR_S)
    if days < _DAYS_FOR_A_DAY:
        return None
    period = 168 if days >= _DAYS_FOR_A_WEEK else 24
    hours = (times / HOUR_S).astype(np.int64)
    whole = int(days * 24 // period) * period
    counts = np.bincount(hours[hours < whole] % period, minlength=period).astype(np.float64)
    shape: Floats = np.maximum(counts / counts.mean(), 1e-3)
    return shape


def fit_chain(counts: Floats, states: int) -> tuple[Floats, Floats, float]:
    """Baum-Welch for counts that are Poisson in each hidden state.

    Args:
        counts: float64 (n,), arrivals in each window.
        states: Number of hidden states k.

    Returns:
        Mean counts (k,) rising, transitions (k, k), and the log likelihood of the last expectation step.
    """
    from coralopt.workload.generation.kernels import expectation

    mean = max(float(counts.mean()), 1e-9)
    # Levels of the smoothed count are where the states start; the spread keeps equal levels apart.
    width = max(1, len(counts) // 500)
    smooth = np.convolve(counts, np.full(width, 1.0 / width), "same")
    rates = np.quantile(smooth, (np.arange(states) + 0.5) / states) + 0.05 * mean * (1 + np.arange(states))
    transitions = np.full((states, states), 0.02 / max(1, states - 1))
    np.fill_diagonal(transitions, 0.98 if states > 1 else 1.0)
    start = np.full(states, 1.0 / states)
    likelihood = -math.inf
    for _ in range(_MOST_ROUNDS):
        logs = counts[:, None] * np.log(rates) - rates
        posterior, pairs, new = expectation(logs, start, transitions)
        weight = posterior.sum(axis=0)
        start = posterior[0]
        rates = np.maximum((counts @ posterior) / np.maximum(weight, 1e-12), 1e-6 * mean)
        # A whisper of a prior keeps every state reachable, so that the stationary law exists and is unique.
        pairs += 1e-3 / states
        transitions = pairs / pairs.sum(axis=1, keepdims=True)
        if new - likelihood < 1e-7 * abs(new):
            likelihood = new
            break
        likelihood = new
    order = np.argsort(rates)
    return rates[order], transitions[np.ix_(order, order)], likelihood


def _chain_model(
    plain: ArrivalModel, counts_a_window: Floats, transitions: Floats, even: Floats, counts: Floats
) -> ArrivalModel:
    """The chain with mean rate 1, and the gamma intervals of own time that explain what it leaves unexplained."""
    rates = counts_a_window / float(stationary_law(transitions) @ counts_a_window)
    model = replace(plain, interval_cv=1.0, rates=rates, transitions=transitions)
    if model.tick is not None:
        return model
    # Smoothed rates follow each trace a little too closely, which shortens long intervals; a trace of the model itself
    # with exponential intervals shows by how much.
    flat = replace(model, shape=None)
    random = np.random.default_rng(_SEED)
    own = []
    for _ in range(5):
        times, _ = flat.sample(1.0, float(even[-1]), random)
        if len(times) > 100:
            own.append(_own_cv(model, times, per_window(times, model.window)))
    measured = _own_cv(model, even, counts)
    ratio = measured / float(np.median(own)) if own else 1.0
    return replace(model, interval_cv=ratio if np.isfinite(ratio) and ratio > 0 else 1.0)


def _smoothed(model: ArrivalModel, counts: Floats) -> Floats:
    from coralopt.workload.generation.kernels import expectation

    means = np.maximum(model.rates, 1e-9) * model.window
    logs = counts[:, None] * np.log(means) - means
    posterior: Floats = expectation(logs, model.stationary, model.transitions)[0]
    return posterior


def _own_cv(model: ArrivalModel, even: Floats, counts: Floats) -> float:
    rate = np.maximum(_smoothed(model, counts) @ model.rates, 1e-9)
    edges = np.arange(len(rate) + 1) * model.window
    own = np.interp(even[even < edges[-1]], edges, np.concatenate([[0.0], np.cumsum(rate * model.window)]))
    return interval_cv(own)


def _choose(gamma: ArrivalModel, chain: ArrivalModel, times: Floats, rate_s: float, windows: int) -> ArrivalModel:
    """The one nearer to the trace in burstiness; the simpler one where they are nearly as near."""
    errors = {
        "gamma renewal": burstiness_error(gamma, times, rate_s),
        f"{chain.states}-state chain": burstiness_error(chain, times, rate_s),
    }
    first, second = errors.values()
    model, name = (gamma, "gamma renewal") if first <= second + _TIE else (chain, f"{chain.states}-state chain")
    why = (
        f"{name}: mean |ln ratio| of interval CV and of dispersion per window to the trace: "
        + ", ".join(f"{what} {error:.3f}" for what, error in errors.items())
        + f"; {chain.states} states have the least BIC over {windows:,} windows"
    )
    return replace(model, why=why)


def burstiness_error(model: ArrivalModel, times: Floats, rate_s: float) -> float:
    """Mean |ln(median of generated / real)| over interval CV and dispersion in windows of 1, 10 and 60 s.

    Windows are as long relative to the rate as they are in a trace of 2.5 requests/s, where they were chosen, when the
    trace is faster or slower by more than a factor of 10.
    """
    span = float(times[-1])
    scale = 1.0 if 0.25 <= rate_s <= 25 else 2.5 / rate_s
    windows = [w * scale for w in WINDOWS_S if span >= 20 * w * scale]

    def measure(values: Floats) -> Floats:
        return np.array([interval_cv(values), *(dispersion(per_window(values, w)) for w in windows)])

    random = np.random.default_rng(_SEED)
    drawn = [model.sample(rate_s, span, random)[0] for _ in range(_TRIALS)]
    generated = np.array([measure(values) for values in drawn if len(values) > 10])
    if len(generated) < _TRIALS // 2:
        return math.inf
    ratios = np.nanmedian(generated, axis=0) / measure(times)
    return float(np.mean(np.abs(np.log(np.maximum(ratios, 1e-9)))))
