"""The closed-form guess of a headroom, and the search for the least that is enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt import load_scenario
from coralopt.planning.headroom import CLOSE, Trial, best_ask, next_ask, queueing_headroom


def lindley(gaps: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Waits of a single-server queue: W' = max(0, W + S - A), as a running maximum."""
    steps = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
    return steps - np.minimum.accumulate(steps)


@pytest.mark.parametrize("target", [0.9, 0.99])
@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_prefill_guess_keeps_the_wait_of_a_real_queue_short(target: float, cv: float) -> None:
    """At the headroom returned, a simulated queue with gamma service misses about as often as allowed; M/M/1 exactly."""
    phase = next(item for item in load_scenario("core").model_phases if item.key == "phi4-14b/prefill")
    headroom = queueing_headroom(phase, target, cv)
    requests_s = phase.demand_tokens_s / phase.mean_input_tokens
    mean_s = 1 / (requests_s * (1 + headroom))
    rng = np.random.default_rng(1)
    service = mean_s * rng.gamma(1 / cv**2, cv**2, 300_000)
    wait = lindley(rng.exponential(1 / requests_s, len(service)), service)
    missed = float((wait + mean_s > phase.prefill_ms / 1e3).mean())
    assert missed == pytest.approx(1 - target, rel=0.15 if cv == 1.0 else 0.4)


def test_guesses_grow_with_the_target_and_shrink_with_the_slo() -> None:
    """Stricter targets and SLOs need more."""
    for phase in load_scenario("core").model_phases:
        assert 0 <= queueing_headroom(phase, 0.9) <= queueing_headroom(phase, 0.99)
        loose = replace(phase, prefill_ms=2 * phase.prefill_ms, decode_ms=2 * phase.decode_ms)
        assert queueing_headroom(loose, 0.99) <= queueing_headroom(phase, 0.99)
        assert queueing_headroom(replace(phase, demand_tokens_s=0.0), 0.99) == 0.0


@given(st.floats(1.0, 30.0), st.floats(1.0, 1.6))
def test_the_search_closes_in_on_the_least_that_is_enough(needed: float, grain: float) -> None:
    """A phase that passes exactly when planned throughput reaches `needed`; plans give what is asked, rounded up."""
    trials: list[Trial] = []
    ask = (1.0, 0.0)
    for _ in range(40):
        planned = grain ** np.ceil(np.log(ask[0]) / np.log(grain) - 1e-9) if grain > 1 else ask[0]
        passed = planned >= needed
        short = max(0.0, 1 - planned / needed)
        trials.append(Trial(ask, float(planned), float(planned), bool(passed), min(0.8, 0.2 + short), 0.0))
        ask = next_ask(trials, 0.01)
    best = best_ask(trials)
    assert best is not None
    # One grain, or the distance at which the search stops.
    assert best[0] <= max(1.0, needed) * max(CLOSE, grain) * 1.001


def test_requests_that_miss_by_themselves_shrink_the_budget() -> None:
    """Where nothing waits, throughput stays and the latency headroom grows, up to nine tenths."""
    ask, trials = (1.0, 0.0), []
    for _ in range(15):
        trials.append(Trial(ask, 1.0, 1.0, False, 0.0, 0.3))
        ask = next_ask(trials, 0.01)
        assert ask[0] == 1.0
        assert ask[1] >= trials[-1].ask[1]
    assert 0.85 < ask[1] <= 0.9


def test_what_failed_once_is_not_the_best() -> None:
    """Phases touch each other a little: an ask that passed beside others and failed later is dropped."""
    cheap = Trial((1.2, 0.0), 1.3, 5.0, True, 0.0, 0.0)
    dear = Trial((1.5, 0.0), 1.6, 6.0, True, 0.0, 0.0)
    assert best_ask([cheap, dear]) == (1.2, 0.0)
    assert best_ask([cheap, dear, replace(cheap, passed=False)]) == (1.5, 0.0)
