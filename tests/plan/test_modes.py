"""Models that disaggregated and mixed instances may serve side by side: what a plan says of them, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import Plan, load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import InfeasibleError, LaunchError, ScenarioError
from coralopt.planning import (
    PlanRequest,
    adapt,
    demand_of_trace,
    epoch_inputs,
    expected_shares,
    get_planner,
    prove_bound,
)
from coralopt.report.tables import plan_summary
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.router import RouterConfig, vllm_router_commands
from coralopt.runtime.router.config import router_document
from coralopt.scenario import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.workload import EpochDemand, generate_for_scenario


def _scenario(**changes: Any) -> ResolvedScenario:
    return scenario_from_mapping({**copy.deepcopy(dict(load_scenario("auto").document)), **changes})


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Both modes together: neither alone is cheaper."""
    return plan_scenario(_scenario())


def test_both_modes_together_cost_less_than_either(plan: Plan) -> None:
    """The scenario that shows what the choice is worth; its shares fit the instances."""
    assert plan.cost_usd_h < 0.8 * plan_scenario(_scenario(mode="disaggregated")).cost_usd_h
    with pytest.raises(InfeasibleError):
        plan_scenario(_scenario(mode="mixed"))
    assert {item.mode: 0 < item.share < 1 for item in plan.modes} == {"disaggregated": True, "mixed": True}
    assert sum(item.share for item in plan.modes) == pytest.approx(1)
    assert {item.phase for item in plan.instances} == {"prefill", "decode", "mixed"}
    assert all(item.planned_tokens_s >= item.demand_tokens_s for item in plan.demands)
    assert verify_plan(plan).ok
    assert prove_bound(plan) == ()
    assert Plan.parse(plan.to_json(), "here") == plan
    assert any("phi4-14b, mixed" in str(cell) for cell in plan_summary(plan).columns[0].cells)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.5, 2, 4, 7]), st.booleans())
def test_auto_costs_at_most_the_cheaper_mode(l40s: int, l4: int, a10g: int, rate: float, two: bool) -> None:
    """Over pools and rates: never dearer than a pure mode, and always a plan that verifies."""
    supply = {"1xL40S": l40s, "1xL4": l4, "1xA10G": a10g}
    if not any(supply.values()):
        return
    demand = {"requests_s": rate, "dataset": "azure-conv"}
    slo = {"ttft_ms": 1200, "tpot_ms": 60, "attainment": "mean"}
    regions = {name: {"configurations": supply} for name in ("us-east-2", "us-central1")[: 1 + two]}
    common: dict[str, Any] = {
        "models": {"phi4-14b": {"slo": slo, "demand": demand}},
        "pool": {"regions": regions},
        "egress": {"any": {"any": {"usd_gb": 0.001}}} if two else {},
    }
    if two:
        for region in regions.values():
            region["configurations"] = {
                key: {"available": n, "price_usd_h": 1.0 + n} for key, n in region["configurations"].items()
            }
    costs: dict[str, float] = {}
    for mode in ("disaggregated", "mixed", "auto"):
        try:
            found = plan_scenario(_scenario(mode=mode, **common))
        except (InfeasibleError, ScenarioError):
            continue
        costs[mode] = found.cost_usd_h
        assert verify_plan(found).ok, verify_plan(found).sentences
    pure = [costs[mode] for mode in ("disaggregated", "mixed") if mode in costs]
    assert "auto" in costs or not pure
    assert all(costs["auto"] <= cost * (1 + 1e-6) for cost in pure)


def test_simulated_requests_are_split_as_planned(plan: Plan) -> None:
    """Every request takes one of both ways, in the plan's proportion, and is judged on that way."""
    trace = generate_for_scenario(plan.resolved, 60.0, 1)
    simulated = simulate(plan, trace)
    mixed = simulated.requests["mixed"]
    share = next(item.share for item in plan.modes if item.mode == "mixed")
    assert abs(mixed.sum() - share * len(trace)) <= 2
    phase = np.array(simulated.instances["phase"])
    served = simulated.requests["prefill_instance"] >= 0
    assert served.mean() > 0.9
    assert (phase[simulated.requests["prefill_instance"][served]] == np.where(mixed, "mixed", "prefill")[served]).all()
    offered = {(row.key, row.kind): row.offered_tokens_s for row in simulated.outcomes}
    assert set(offered) == {
        *(("phi4-14b/mixed", kind) for kind in ("prefill", "decode")),
        ("phi4-14b/prefill", "prefill"),
        ("phi4-14b/decode", "decode"),
    }
    tokens = trace.input_tokens[~mixed].sum() / simulated.window_s
    assert offered["phi4-14b/prefill", "prefill"] == pytest.approx(tokens)
    expected = expected_shares(plan)
    assert set(expected) == {"phi4-14b/prefill", "phi4-14b/decode", "phi4-14b/mixed"}
    assert all(0 < share < 1 for share in expected.values())
    alone = plan_scenario(_scenario(mode="disaggregated"))
    assert {row.phase for row in simulate(alone, trace).outcomes} == {"prefill", "decode"}


def test_models_may_have_modes_of_their_own() -> None:
    """One model free, another not, under a scenario whose mode is neither."""
    data = dict(load_scenario("tiny").document)
    models = copy.deepcopy(data["models"])
    models["phi4-14b"]["mode"] = "auto"
    scenario = scenario_from_mapping({**data, "models": models, "mode": "mixed"})
    assert [phase.key for phase in scenario.model_phases] == [
        "gpt-oss-20b/mixed",
        *(f"phi4-14b/{phase}" for phase in ("prefill", "decode", "mixed")),
    ]
    assert scenario.models_in_auto == ("phi4-14b",)
    assert scenario_from_mapping(dict(scenario.document)).digest == scenario.digest
    found = plan_scenario(scenario)
    assert {item.model for item in found.modes} == {"phi4-14b"}
    assert verify_plan(found).ok


def test_less_than_the_demand_is_served_in_both_modes() -> None:
    """Scaled demand: the shares are of what is served."""
    models = copy.deepcopy(dict(load_scenario("auto").document)["models"])
    models["phi4-14b"]["demand"]["requests_s"] = 9
    request = PlanRequest(_scenario(models=models), on_infeasible="scale")
    found = get_planner("coral").plan(request).plan
    assert 0 < found.served_factor < 1
    assert sum(item.share for item in found.modes) == pytest.approx(1)
    assert verify_plan(found).ok, verify_plan(found).sentences
    assert prove_bound(found) == ()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"disaggregated": 0.5, "mixed": 0.4}, "sum to 0.9"),
        ({"disaggregated": 1.0}, "does not say once for each mode"),
        ({"disaggregated": 0.1, "mixed": 0.9}, "phi4-14b/mixed: the plan gives"),
        ({}, "is in mode auto"),
    ],
)
def test_shares_that_are_off_are_named(plan: Plan, tiny_plan: Plan, shares: dict[str, float], message: str) -> None:
    """The verification believes no share."""
    item = plan.modes[0]
    modes = tuple(item.model_copy(update={"mode": mode, "share": share}) for mode, share in shares.items())
    assert any(message in text for text in verify_plan(plan.model_copy(update={"modes": modes})).sentences)
    assert any(
        "not in mode auto" in text for text in verify_plan(tiny_plan.model_copy(update={"modes": (item,)})).sentences
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"min_replicas": 1}, "min_replicas: is said of every phase"),
        ({"unmet": {"output_usd_mtok": 1.0}}, "unmet: is said of every phase"),
        ({"mode": "both"}, "mode: .*choose from disaggregated, mixed, auto"),
        (
            {"demand": {"prefill_tokens_s": 10.0, "decode_tokens_s": 0.0, "input_tokens": 5.0, "output_tokens": 5.0}},
            "demand: mode auto splits requests",
        ),
    ],
)
def test_what_mode_auto_cannot_is_said_at_its_place(entry: dict[str, Any], message: str) -> None:
    """One sentence with the place in the file."""
    models = copy.deepcopy(dict(load_scenario("auto").document)["models"])
    models["phi4-14b"] |= entry
    with pytest.raises(ScenarioError, match=message):
        _scenario(models=models)


@pytest.mark.parametrize("planner", ["homo", "single-best", "random", "melange", "cauchy", "hexgen"])
def test_rivals_refuse_models_in_mode_auto(planner: str) -> None:
    """A rival that served every phase in full would be compared unfairly."""
    with pytest.raises(ScenarioError, match=r"mode|mixed instances"):
        get_planner(planner).plan(PlanRequest(_scenario()))


def test_epochs_of_both_modes_keep_what_runs() -> None:
    """A walk over a trace: every epoch has demand for every phase, is served in full, and keeps instances of both modes."""
    scenario = _scenario()
    trace = generate_for_scenario(scenario, 1200.0, 1)
    demand = demand_of_trace(trace, scenario, 600.0).demand
    assert demand.keys == tuple(phase.key for phase in scenario.model_phases)
    assert np.array_equal(demand.tokens_s[:, 1], demand.tokens_s[:, 2])
    inputs = epoch_inputs(scenario, demand=EpochDemand(demand.keys, demand.tokens_s[[0, 0]]))
    epochs = [epoch.summary for epoch in adapt(PlanRequest(scenario), inputs)]
    assert [epoch.served_share for epoch in epochs] == [1.0, 1.0]
    assert (epochs[1].start, epochs[1].stop, epochs[1].keep) == (0, 0, epochs[0].instances)


def test_the_router_is_told_the_split(plan: Plan) -> None:
    """What the launcher starts serves both modes, and vLLM's own router is refused."""
    launch = lower(plan, VllmEngine())
    config = RouterConfig.model_validate(router_document(launch))
    assert config.mixed_share == {"phi4-14b": next(item.share for item in plan.modes if item.mode == "mixed")}
    assert {backend.phase for backend in config.backends} == {"prefill", "decode", "mixed"}
    with pytest.raises(LaunchError, match="has disaggregated and mixed instances"):
        vllm_router_commands(config)
