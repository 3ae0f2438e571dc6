"""Certificates of models with few requests: what these confirm, and what is said where they confirm nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import InfeasibleError
from coralopt.plan.certificate import interval
from coralopt.plan.verify import verify_plan
from coralopt.planning import (
    CoralPlanner,
    PlanRequest,
    certify_again,
    cheapest_that_holds,
    expected_shares,
    plan_scenario,
)
from coralopt.planning.promise.certificate import refused_by_now
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.simulation import simulate
from coralopt.workload import poisson_for_scenario


def test_intervals_of_few_requests() -> None:
    """Without a miss all n requests are met with probability p^n: at 95 % shared by two p is 0.025^(1/n) at least. With one
    miss of 20 the limits of Clopper and Pearson are tabled."""
    assert interval([1.0] * 9, 12, 0.95, 2) == pytest.approx((0.025 ** (1 / 12), 1.0))
    assert interval([0.0] * 9, 12, 0.95, 2) == pytest.approx((0.0, 1 - 0.025 ** (1 / 12)))
    low, high = interval([1.0] * 19 + [0.0], 20, 0.95, 2)
    assert low == pytest.approx(min(0.7513, 0.95 - 2.093024 * 0.05), abs=1e-4)
    assert high == 1.0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 3, 20]), st.floats(0.8, 0.999))
def test_few_requests_seldom_confirm_what_is_missed(seed: int, requests: float, share: float) -> None:
    """Windows of few independent requests that are met with just the share asked for, or a little less: no more than the
    error are confirmed, although most windows have no miss."""
    rng, runs, wrong = np.random.default_rng(seed), 300, 0
    for _ in range(runs):
        counts = rng.poisson(requests, 20)
        met = rng.binomial(counts, share)[counts > 0] / counts[counts > 0]
        wrong += interval(met.tolist(), requests * len(met), 0.95, 1)[0] > share
    assert wrong <= 0.05 * runs + 4 * math.sqrt(0.05 * runs)


def test_a_refusal_names_what_the_tables_leave_out() -> None:
    """Two nodes serve 99.9 % of these short answers, some of which wait for memory; the tables of a share let none wait."""
    document: dict[str, Any] = {
        "name": "waiting",
        "mode": "mixed",
        "models": {
            "phi4-14b": {
                "slo": {"ttft_ms": 10000, "tpot_ms": 200, "attainment": 0.999},
                "demand": {"requests_s": 1, "input_tokens": 2000, "output_tokens": 2},
            }
        },
        "pool": {"regions": {"us-central1": {"configurations": {"1xA100": 2}}}},
        "serving": {"order": "fifo", "admission": "reserve"},
    }
    with pytest.raises(InfeasibleError, match="`plan --simulate` may find a plan whose requests wait for memory"):
        plan_scenario(scenario_from_mapping(document))
    document["models"]["phi4-14b"]["slo"]["attainment"] = "mean"
    document["models"]["phi4-14b"]["min_replicas"] = 2
    plan = plan_scenario(scenario_from_mapping(document))
    assert sum(plan.rented_nodes().values()) == 2
    requests = poisson_for_scenario(plan.resolved, None, 20_000, 1)
    assert min(row.attainment for row in simulate(plan, requests).outcomes) > 0.9995
    with pytest.raises(InfeasibleError) as refused:
        plan_scenario(scenario_from_mapping(document).with_demand(np.array([1e4])))
    assert "wait for memory" not in str(refused.value)


def few_requests(requests_s: float) -> ResolvedScenario:
    """One small model and next to no requests."""
    return scenario_from_mapping(
        {
            "name": "few",
            "mode": "mixed",
            "models": {
                "llama3.1-8b-instruct": {
                    "slo": {"ttft_ms": 2000, "tpot_ms": 100, "attainment": 0.9},
                    "demand": {"requests_s": requests_s, "input_tokens": 300, "output_tokens": 50},
                }
            },
            "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 2}}}},
        }
    )


def test_next_to_no_requests() -> None:
    """Windows without requests say nothing, and a few requests confirm nothing: no attempt follows where none missed."""
    plan = plan_scenario(few_requests(0.002))
    mark = plan.certificate
    assert mark is not None
    assert mark.holds
    for phase in mark.phases:
        assert set(phase.shares) == {1.0}
        assert len(phase.shares) not in mark.looks
    assert verify_plan(plan).ok
    assert certify_again(plan) == ()

    outcome = CoralPlanner().plan(PlanRequest(few_requests(1e-7)))
    mark = outcome.plan.certificate
    assert mark is not None
    assert [(phase.kind, phase.shares, phase.verdict) for phase in mark.phases] == [
        ("prefill", (), "open"),
        ("decode", (), "open"),
    ]
    assert outcome.notes == (
        "no request missed, but there are too few to confirm the share asked for: llama3.1-8b-instruct",
    )
    assert mark.failed == refused_by_now(outcome.plan) == ()
    assert verify_plan(outcome.plan).ok
    assert certify_again(outcome.plan) == ()
    assert expected_shares(outcome.plan) == {}
    assert cheapest_that_holds(PlanRequest(few_requests(1e-7)), outcome, {}) is None
