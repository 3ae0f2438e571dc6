"""How much headroom a model phase needs: a closed-form guess, and its correction by what a simulation saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coralopt.scenario.facts.phases import ModelPhase

#: A failing phase gets at least this much more throughput than the plan that failed gave it.
LEAST_STEP, MOST_STEP = 0.1, 1.0
#: Share of the budget that is left to execution when latency headroom grows by one step.
LATENCY_STEP = 0.8
#: The budget of execution never falls below this share of the SLO.
LEAST_BUDGET = 0.1
#: The search for less headroom stops when what failed and what passed are this close.
CLOSE = 1.08


def queueing_headroom(phase: ModelPhase, target: float, length_cv: float = 1.0) -> float:
    """Throughput headroom at which an M/G/1 queue would keep the wait short enough, dimensionless.

    All instances of a prefill phase are taken for one server that works off a request in s = mean length / T. The tail of
    its wait, P(W > t) = rho exp(-2 (1 - rho) t / (s (1 + cv^2))), is exact for M/M/1 and Kingman's heavy traffic else; the
    wait may exceed the SLO less s for ``1 - target`` of the requests. Lengths with a heavier tail miss more often.

    Decoding shares its rounds among all sequences, so that a queue hardly forms: square-root staffing with the n sequences
    at work as servers gives z / sqrt(n), z from P(Z > z) <= exp(-z^2 / 2) / 2.

    Args:
        phase: Demand, SLO and mean lengths.
        target: Share of requests that must meet the SLO, above 0 and below 1.
        length_cv: Coefficient of variation of the lengths.
    """
    if phase.demand_tokens_s <= 0:
        return 0.0
    if phase.phase != "prefill":
        requests_s = phase.demand_tokens_s / max(phase.mean_output_tokens, 1.0)
        at_work = requests_s * max(phase.mean_output_tokens, 1.0) * phase.decode_ms / 1e3
        z = math.sqrt(max(0.0, -2.0 * math.log(2.0 * (1.0 - target)))) if target > 0.5 else 0.0
        return z / math.sqrt(max(at_work, 1.0))
    low, high = 1e-6, 1e3
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if _tail(phase, middle, length_cv) <= 1.0 - target:
            high = middle
        else:
            low = middle
    return high


def _tail(phase: ModelPhase, headroom: float, length_cv: float) -> float:
    """P(wait + mean service > SLO) of the queue above."""
    rho = 1.0 / (1.0 + headroom)
    service_s = max(phase.mean_input_tokens, 1.0) * rho / phase.demand_tokens_s
    slack_s = phase.prefill_ms / 1e3 - service_s
    if slack_s <= 0:
        return 1.0
    return rho * math.exp(-2.0 * (1.0 - rho) * slack_s / (service_s * (1.0 + length_cv**2)))


#: (throughput wanted over the demand, latency headroom): what a round asks of the planner for one model phase.
Ask = tuple[float, float]


@dataclass(frozen=True)
class Trial:
    """What one round said about one model phase.

    Attributes:
        ask: What was asked of the planner.
        planned: Throughput of the plan over the demand.
        cost_usd_h: What the plan spends on this phase, USD/h.
        passed: Whether enough requests met the SLO.
        waiting: Share of requests that missed because they waited: more throughput helps.
        inherent: Share that missed by their own execution or transfer: a smaller latency budget helps.
    """

    ask: Ask
    planned: float
    cost_usd_h: float
    passed: bool
    waiting: float
    inherent: float


def best_ask(trials: Sequence[Trial]) -> Ask | None:
    """The ask of the cheapest trial that passed, ``None`` without any; one that also failed once does not count."""
    failed = {trial.ask for trial in trials if not trial.passed}
    passed = [trial for trial in trials if trial.passed and trial.ask not in failed]
    # Of equal ones the roomier.
    return min(passed, key=lambda trial: (trial.cost_usd_h, -trial.planned, trial.ask)).ask if passed else None


def next_ask(trials: Sequence[Trial], allowed: float) -> Ask:
    """What to ask for next of one model phase.

    Until something passed: more throughput by the share that waited, and a smaller latency budget where requests miss
    by themselves. Then less throughput, halfway (geometrically) to the largest that failed with the same budget; when
    these are close, the budgets on either side. At last, and from then on, the best.

    Args:
        trials: All trials of the phase, at least one, oldest first.
        allowed: Share of requests that may miss.
    """
    best = best_ask(trials)
    if best is None:
        last = trials[-1]
        factor, latency = max(last.ask[0], last.planned), last.ask[1]
        if last.waiting > allowed / 2:
            factor *= 1.0 + min(MOST_STEP, max(LEAST_STEP, last.waiting))
        if last.inherent > allowed or last.waiting <= allowed / 2:
            latency = _other_budget(latency, 1)
        return factor, latency
    factor, latency = best
    same = [trial for trial in trials if trial.ask[1] == latency]
    failed = max((t.planned for t in same if not t.passed and t.planned < factor), default=1.0)
    known = any(t.ask == (1.0, latency) for t in same)
    if factor > max(failed, 1.0) * CLOSE:
        return math.sqrt(max(failed, 1.0) * factor), latency
    if factor > 1.0 and failed <= 1.0 and not known:
        return 1.0, latency
    budgets = {trial.ask[1] for trial in trials}
    for steps in (-1, 1):
        other = _other_budget(latency, steps)
        if other not in budgets:
            return (factor if steps < 0 else math.sqrt(factor)), other
    return best


def _other_budget(latency: float, steps: int) -> float:
    """Latency headroom some steps from here; budgets are powers of :data:`LATENCY_STEP` of the SLO."""
    now = round(math.log(1.0 - latency) / math.log(LATENCY_STEP)) if latency > 0 else 0
    least = math.floor(math.log(LEAST_BUDGET) / math.log(LATENCY_STEP))
    return 1.0 - LATENCY_STEP ** min(max(now + steps, 0), least)
