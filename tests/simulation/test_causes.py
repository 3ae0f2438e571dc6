"""Why requests miss: idle times, causes, and which requests no node could serve in time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt import Plan, plan_scenario, scenario_from_mapping
from coralopt.simulation import SimulationConfig, simulate
from coralopt.simulation.causes import BURST_S, CAUSES, WINDOW_S, bursts, decode_causes, worst_window
from coralopt.simulation.possible import possible_requests
from coralopt.workload import Trace, poisson_for_scenario


def test_a_request_alone_takes_its_idle_time(tiny_plan: Plan) -> None:
    """Requests a minute apart meet nobody: what is measured is what `idle_times` says."""
    rng = np.random.default_rng(3)
    trace = Trace(
        60.0 * np.arange(20.0),
        rng.integers(1, 4000, 20),
        rng.integers(1, 300, 20),
        np.arange(20, dtype=np.int32) % 2,
        ("gpt-oss-20b", "phi4-14b"),
    )
    requests = simulate(tiny_plan, trace).requests
    assert requests["idle_ttft_ms"] == pytest.approx(requests["ttft_ms"], rel=1e-9)
    several = requests["output_tokens"] > 1
    assert np.isnan(requests["idle_tpot_ms"][~several]).all()
    # The context is taken at its middle, and decode times bend a little.
    assert requests["idle_tpot_ms"][several] == pytest.approx(requests["tpot_ms"][several], rel=2e-3)
    assert set(requests["cause_ttft"]) | set(requests["cause_tpot"]) <= {0, CAUSES.index("length")}


def test_causes_add_up(tiny_plan: Plan) -> None:
    """Every miss has one cause, met requests none; requests that no node could serve in time never met."""
    scenario = scenario_from_mapping(tiny_plan.scenario)
    trace = poisson_for_scenario(scenario, rate=2.0, duration_s=120.0, seed=5)
    result = simulate(tiny_plan, trace, config=SimulationConfig(kv_gb_s=0.5))
    requests = result.requests
    for name, met in (("cause_ttft", "met_ttft"), ("cause_tpot", "met_tpot")):
        assert ((requests[name] == 0) == requests[met]).all()
    assert any(row.causes for row in result.outcomes)
    possible = possible_requests(scenario, trace, SimulationConfig(kv_gb_s=0.5))
    for row in result.outcomes:
        assert sum(row.causes.values()) == pytest.approx(1 - row.attainment)
        assert row.attainment_feasible >= row.attainment
        mine = requests["model"] == result.models.index(row.model)
        met = requests["met_ttft" if row.kind == "prefill" else "met_tpot"][mine]
        assert (possible[row.model, row.kind] | ~met).all()
        if row.causes:
            assert row.worst_instance in result.instances["name"]
            assert row.worst_attainment <= row.attainment
    assert result.attainment_feasible >= result.attainment


def test_long_prompts_of_a_mixed_instance_are_possible_where_they_met(tiny_plan: Plan) -> None:
    """Computed in parts of a whole step each, they are in time where one pass over all their tokens would not be."""
    pool = {"regions": {"us-east-2": {"available": 4, "configurations": ["1xL40S"]}}}
    scenario = scenario_from_mapping({**tiny_plan.scenario, "mode": "mixed", "pool": pool})
    plan = plan_scenario(scenario)
    lengths = np.arange(500, 40_000, 250)
    n = len(lengths)
    trace = Trace(np.arange(n) * 30.0, lengths, np.full(n, 2), np.zeros(n, dtype=np.int32), ("phi4-14b",))
    met = simulate(plan, trace).requests["met_ttft"]
    assert met.any()
    assert not met.all()
    assert (possible_requests(scenario, trace)["phi4-14b", "prefill"] | ~met).all()


def test_a_burst_is_told_from_a_queue(tiny_plan: Plan) -> None:
    """Two hundred prompts at one instant: those beyond ten seconds' promise are a burst, late ones before them a queue."""
    same = Trace(np.zeros(200), np.full(200, 500), np.full(200, 2), models=("phi4-14b",))
    result = simulate(tiny_plan, same)
    row = next(r for r in result.outcomes if r.model == "phi4-14b" and r.kind == "prefill")
    assert set(row.causes) == {"burst", "queue"}
    beyond = 500 * np.arange(1, 201) > BURST_S * row.promised_tokens_s
    assert (result.requests["cause_ttft"][beyond] == CAUSES.index("burst")).all()


@given(
    st.lists(st.tuples(st.floats(0, 60), st.integers(1, 5000)), min_size=1, max_size=40),
    st.floats(1, 5000),
)
def test_bursts_are_counted_right(items: list[tuple[float, int]], promised: float) -> None:
    """Against one loop over all pairs."""
    arrival = np.sort([time for time, _ in items])
    tokens = np.array([count for _, count in items])
    said = bursts(arrival, tokens, np.full(len(items), promised))
    for i, now in enumerate(arrival):
        inside = sum(int(tokens[j]) for j in range(i + 1) if arrival[j] > now - BURST_S)
        assert said[i] == (inside > promised * BURST_S)


def test_the_worst_half_minute() -> None:
    """The window with most misses beyond its share, and what was met in it."""
    arrival = np.array([1.0, 31.0, 32.0, 33.0, 70.0])
    cause = np.array([1, 2, 2, 0, 0], dtype=np.int8)
    assert worst_window(cause, arrival) == (0.0, 0.0)
    assert worst_window(np.array([0, 2, 2, 0, 0], dtype=np.int8), arrival) == (30.0, pytest.approx(1 / 3))
    # Most misses are in the crowd of the first window, which fares better than the rest.
    crowd = np.concatenate([np.zeros(100), np.full(9, 45.0)])
    assert worst_window(np.array([1] * 10 + [0] * 90 + [1] * 9, dtype=np.int8), crowd) == (30.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 300), st.booleans()), min_size=1, max_size=60))
def test_no_half_minute_stands_for_more_than_the_total(items: list[tuple[float, bool]]) -> None:
    """What is called the worst is never better than all together."""
    arrival, missed = (np.array(column) for column in zip(*sorted(items), strict=True))
    start, met = worst_window(missed.astype(np.int8), arrival)
    assert met <= (~missed).mean()
    assert ((arrival >= start) & (arrival < start + WINDOW_S)).any()


def test_slow_rounds_are_told_from_waiting() -> None:
    """What is late by its own decoding rounds is ``batch``, a late KV transfer ``transfer``, the rest waited."""
    columns = {
        "met_tpot": np.array([True, False, False, False, False]),
        "tpot_ms": np.array([40.0, 70.0, 70.0, 70.0, 70.0]),
        "idle_tpot_ms": np.full(5, 30.0),
        "output_tokens": np.full(5, 11),
        "decode_wait_ms": np.array([0.0, 0.0, 0.0, 300.0, 300.0]),
        # 60 ms a round is beyond the SLO of 50 ms, 45 ms is not: then something before the rounds was late.
        "step_ms": np.array([40.0, 60.0, 45.0, 45.0, 60.0]),
        "blocked_decode": np.zeros(5, dtype=np.int8),
        "status": np.ones(5, dtype=np.int8),
    }
    everyone, none = np.ones(5, dtype=np.bool_), np.zeros(5, dtype=np.bool_)
    causes = decode_causes(columns, everyone, 50.0, none, none)
    assert [CAUSES[c] for c in causes] == ["met", "batch", "transfer", "queue", "batch"]
