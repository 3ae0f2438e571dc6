"""Where requests go between prefill and decode: allowed routes of a scenario, flows of a plan, and their verification."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from coralopt import Plan, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import InfeasibleError, ScenarioError
from coralopt.plan.flows import allowed_routes, cache_gb_s, flows_of
from coralopt.planning import PlanRequest, get_planner, prove_bound
from coralopt.report.tables import plan_summary
from coralopt.simulation import simulate
from coralopt.workload import generate_for_scenario

#: Decode of qwen3-32b needs the one H100, its prefill the node with L40S, which stand in different clouds.
BASE: dict[str, Any] = {
    "models": {
        "qwen3-32b": {
            "slo": {"ttft_ms": 1600, "tpot_ms": 100, "attainment": "mean"},
            "demand": {"requests_s": 10, "dataset": "burstgpt"},
        }
    },
    "pool": {
        "regions": {
            "us-east-2": {"configurations": {"1xL40S": 1, "1xL4": 8}},
            "us-central1": {"configurations": {"1xH100": 1}},
        }
    },
    "pruning": {"max_nodes": 3},
    "serving": {"preset": "paper"},
}


def _data(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(BASE), **changes}


def test_priced_plans_state_what_they_send_and_verify() -> None:
    """Egress is part of the cost; the catalog's price between these clouds is 0.09 USD/GB."""
    scenario = scenario_from_mapping(_data())
    assert scenario.kv_transfer.mode == "priced"
    plan = plan_scenario(scenario)
    (flow,) = plan.flows
    assert (flow.prefill_region, flow.decode_region) == ("us-east-2", "us-central1")
    assert flow.requests_s == pytest.approx(10)
    assert flow.gb_s == pytest.approx(cache_gb_s(scenario.model_phases[0]))
    assert plan.egress_usd_h == pytest.approx(flow.gb_s * 3600 * 0.09)
    assert plan.cost_usd_h == pytest.approx(plan.provisioning_usd_h + plan.initialization_usd_h + plan.egress_usd_h)
    assert verify_plan(plan).ok
    assert Plan.parse(plan.to_json(), "here") == plan
    sent = flow.model_copy(update={"decode_region": "us-east-2", "usd_h": 0.0})
    other = plan.model_copy(update={"flows": (sent,)})
    assert any("flows need" in sentence for sentence in verify_plan(other).sentences)


def test_the_bound_of_a_scaled_plan_counts_the_egress_of_what_is_served() -> None:
    """Not that of the whole demand, which no plan of this pool could pay for."""
    data = _data()
    data["models"]["qwen3-32b"]["demand"]["requests_s"] = 100
    plan = plan_scenario(scenario_from_mapping(data), on_infeasible="scale")
    assert plan.served_factor < 1
    assert plan.egress_usd_h > 0
    assert prove_bound(plan) == ()


def test_a_demand_far_beyond_the_pool_is_refused_and_scaled_like_a_smaller_one() -> None:
    """A share of 1.5e9 tokens/s in rows of shares is no coefficient that solvers drop."""
    data, factors = _data(kv_transfer="region"), []
    data["models"]["qwen3-32b"]["survive_instance_loss"] = 0.5
    data["pool"]["regions"]["us-east-2"]["configurations"] = {"1xL40S": 12}
    for requests_s in (40.0, 4e6):
        data["models"]["qwen3-32b"]["demand"]["requests_s"] = requests_s
        scenario = scenario_from_mapping(data)
        with pytest.raises(InfeasibleError, match="falls short"):
            plan_scenario(scenario)
        factors.append(plan_scenario(scenario, on_infeasible="scale").served_factor * requests_s)
    assert factors[0] == pytest.approx(factors[1], rel=1e-3)


def test_prices_of_the_scenario_win_over_the_catalog() -> None:
    """An operator with a discount must not plan at list prices; the more exact entry wins."""
    egress = {"any": {"any": {"usd_gb": 0.5}}, "us-east-2": {"us-central1": {"usd_gb": 0.01, "gbit_s": 100}}}
    scenario = scenario_from_mapping(_data(egress=egress))
    prices = {(link.source, link.target): link.usd_gb for link in scenario.kv_transfer.links}
    assert prices == {("us-east-2", "us-central1"): 0.01, ("us-central1", "us-east-2"): 0.5}
    again = scenario_from_mapping(dict(scenario.document))
    assert again.digest == scenario.digest


def test_within_a_region_is_refused_where_no_region_has_both() -> None:
    """A plan that would have to send is none."""
    with pytest.raises(InfeasibleError, match="falls short"):
        plan_scenario(scenario_from_mapping(_data(kv_transfer="region")))
    barred = {"us-east-2": {"us-central1": {"allowed": False}}}
    with pytest.raises(InfeasibleError):
        plan_scenario(scenario_from_mapping(_data(egress=barred)))


def test_free_plans_show_what_they_would_send() -> None:
    """Free transfer stays the paper's plan, but nobody shall overlook what it sends."""
    plan = plan_scenario(scenario_from_mapping(_data(kv_transfer="free")))
    assert plan.flows == ()
    assert "egress_usd_h" not in plan.to_json()
    (flow,) = flows_of(plan)
    assert flow.usd_h == pytest.approx(flow.gb_s * 3600 * 0.09)
    assert any("us-east-2 to us-central1" in str(cell) for cell in plan_summary(plan).columns[0].cells)


def test_one_region_and_mixed_instances_have_no_routes() -> None:
    """Nothing is handed over, so nothing is priced."""
    alone = _data()
    del alone["pool"]["regions"]["us-central1"]
    assert allowed_routes(scenario_from_mapping(alone)) == ()
    assert allowed_routes(scenario_from_mapping(_data(mode="mixed"))) == ()


def test_rivals_pay_for_what_their_plans_send_or_refuse() -> None:
    """A comparison in which only one planner pays for egress is none."""
    data = _data(egress={"any": {"any": {"usd_gb": 0.0001}}})
    data["pool"]["regions"] = {
        "us-east-2": {"configurations": {"1xL4": 2, "4xL40S": 2}},
        "us-central1": {"configurations": {"1xH100": 1}},
    }
    scenario = scenario_from_mapping(data)
    rival, own = get_planner("homo").plan(PlanRequest(scenario)).plan, plan_scenario(scenario)
    assert rival.egress_usd_h == pytest.approx(sum(flow.usd_h for flow in rival.flows))
    assert rival.cost_usd_h >= own.lower_bound_usd_h
    assert verify_plan(rival).ok
    with pytest.raises(InfeasibleError, match="does not know where KV caches may go"):
        get_planner("homo").plan(PlanRequest(scenario_from_mapping({**data, "egress": {}, "kv_transfer": "region"})))
    with pytest.raises(ScenarioError, match="kv_transfer: priced"):
        get_planner("hexgen").plan(PlanRequest(scenario))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"egress": {"us-east-9": {"us-central1": {"usd_gb": 1}}}},
            "egress.us-east-9.us-central1.*no region 'us-east-9'",
        ),
        ({"egress": {"us-east-2": {"us-central1": {"usd_gb": -1}}}}, "egress.us-east-2.us-central1.usd_gb"),
        ({"egress": {"us-east-2": {"us-east-2": {"usd_gb": 1}}}}, "within a region"),
        ({"egress": {"any": {"any": {"usd_gb": 1}}}, "kv_transfer": "region"}, "nothing leaves a region"),
        ({"kv_transfer": "cheap"}, "kv_transfer"),
    ],
)
def test_mistakes_name_their_place(changes: dict[str, Any], message: str) -> None:
    """One sentence with the place in the file."""
    with pytest.raises(ScenarioError, match=message):
        scenario_from_mapping(_data(**changes))


def test_simulated_requests_go_where_the_plan_sends_them() -> None:
    """Two regions with prefill and decode of their own: nothing crosses; what must cross waits for the way between them."""
    data = _data(kv_transfer="region", pruning={"max_nodes": 1})
    slo = {"ttft_ms": 900, "tpot_ms": 30, "attainment": "mean"}
    data["models"] = {"gpt-oss-20b": {"slo": slo, "demand": {"requests_s": 10, "dataset": "azure-code"}}}
    data["pool"]["regions"] = {key: {"configurations": {"1xL4": 4}} for key in ("us-east-2", "us-central1")}
    plan = plan_scenario(scenario_from_mapping(data))
    assert {(f.prefill_region, f.decode_region) for f in plan.flows} == {(r, r) for r in data["pool"]["regions"]}
    simulated = simulate(plan, generate_for_scenario(plan.resolved, 30.0, 1))
    region = np.array(simulated.instances["region"])
    done = simulated.requests["decode_instance"] >= 0
    ends = (region[simulated.requests[name][done]] for name in ("prefill_instance", "decode_instance"))
    assert done.any()
    assert (next(ends) == next(ends)).all()

    slow = {"us-east-2": {"us-central1": {"usd_gb": 0.01, "gbit_s": 0.8}}}
    plan = plan_scenario(scenario_from_mapping(_data(egress=slow)))
    simulated = simulate(plan, generate_for_scenario(plan.resolved, 10.0, 1))
    sent = np.flatnonzero(simulated.requests["transfer_ms"] > 0)
    cache = [plan.resolved.model_phases[0].model.kv_bytes(n) for n in simulated.requests["input_tokens"][sent].tolist()]
    # One H100 receives all layers at 0.1e9 bytes/s.
    assert (simulated.requests["transfer_ms"][sent] >= np.array(cache) / 0.1e9 * 1e3 * 0.999).all()
