"""Models served by variants: what a plan mixes, what it says of them, how requests are shared out, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from coralopt import Plan, load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import LaunchError, ScenarioError
from coralopt.plan.flows import variant_shares
from coralopt.planning import (
    PlanRequest,
    adapt,
    demand_of_trace,
    epoch_inputs,
    expected_shares,
    get_planner,
    prove_bound,
)
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.router import RouterConfig, vllm_router_commands
from coralopt.runtime.router.config import router_document
from coralopt.runtime.router.router import Router
from coralopt.scenario import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.workload import EpochDemand, Trace, generate_for_scenario

NAME = "phi4-14b"


def _scenario(
    demand: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **changes: Any
) -> ResolvedScenario:
    data = {**copy.deepcopy(dict(load_scenario("variants").document)), **changes}
    entry = data["models"][NAME]
    data["models"] = {NAME: {**entry, "demand": {**entry["demand"], **(demand or {})}, **(model or {})}}
    return scenario_from_mapping(data)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A mix of variants: no single one of them is as cheap at that quality."""
    return plan_scenario(_scenario())


@pytest.fixture(scope="module")
def runnable() -> Plan:
    """A mix on instances of one node, which engines run."""
    return plan_scenario(_scenario(pruning={"max_nodes": 1}))


def test_a_single_variant_has_no_mean_to_reach_whatever_the_routes() -> None:
    """Caches within a region make a route of every region; the one variant serves them all, and no option says so."""
    everything = {name: {"available": 8, "price_usd_h": price} for name, price in (("1xL40S", 1.8), ("2xL40S", 3.5))}
    two = {"pool": {"regions": {"east": {"configurations": everything}, "west": {"configurations": everything}}}}
    single = {"variants": {"bf16": {"quality": 1.0}}}
    alone = plan_scenario(_scenario(demand={"min_shares": {"bf16": 0.5}}, model=single, kv_transfer="region", **two))
    assert alone.options == ()
    assert verify_plan(alone).ok
    in_two_modes = plan_scenario(_scenario(model=single, mode="auto", **two))
    assert in_two_modes.modes
    assert in_two_modes.options == ()
    assert verify_plan(in_two_modes).ok
    mixed = plan_scenario(_scenario(demand={"min_shares": {"fp8": 0.5}}, kv_transfer="region", **two))
    assert len(mixed.options) == 2
    assert verify_plan(mixed).ok
    assert prove_bound(mixed) == ()


def test_a_mix_costs_less_than_any_variant_good_enough(plan: Plan) -> None:
    """The scenario shows what a choice is worth; quality is a mean over requests, exactly reached or passed."""
    shares = variant_shares(plan)[NAME]
    qualities = {phase.model.name: phase.variant.quality for phase in plan.resolved.model_phases if phase.variant}
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(0 < share < 1 for share in shares.values()) >= 2
    mean = sum(share * qualities[name] for name, share in shares.items())
    (option,) = plan.options
    assert (option.option, option.asked) == (f"models.{NAME}.demand.min_quality", 0.993)
    assert option.planned == pytest.approx(mean)
    assert mean >= 0.993 - 1e-12
    assert verify_plan(plan).ok
    assert prove_bound(plan) == ()
    assert Plan.parse(plan.to_json(), "here") == plan
    assert scenario_from_mapping(dict(plan.resolved.document)).digest == plan.resolved.digest
    variants = plan.resolved.document["models"][NAME]["variants"]
    for name, entry in variants.items():
        if entry["quality"] >= 0.993:
            alone = plan_scenario(_scenario(model={"variants": {name: {**entry, "base": None}}}))
            assert not alone.modes
            assert plan.cost_usd_h < alone.cost_usd_h


def test_cost_rises_with_the_quality_asked_for() -> None:
    """A front: never cheaper at a higher floor, and cheapest without one."""
    costs = [plan_scenario(_scenario({"min_quality": floor})).cost_usd_h for floor in (None, 0.985, 0.99, 1.0)]
    assert costs == sorted(costs)
    assert costs[0] < 0.7 * costs[-1]


def test_least_shares_are_kept_in_both_modes_and_two_regions() -> None:
    """Shares, modes and egress in one programme; what simulates is what was planned."""
    supply = {"configurations": {"1xL40S": 4, "1xL4": 6}}
    scenario = _scenario(
        {"requests_s": 6, "min_quality": 0.98, "min_shares": {"int4": 0.25}},
        {"mode": "auto", "variants": {"bf16": {"quality": 1.0}, "int4": {"weight_format": "int4", "quality": 0.95}}},
        pool={"regions": {"us-east-2": supply, "us-central1": {"configurations": {"1xL4": 6}}}},
    )
    found = plan_scenario(scenario)
    assert verify_plan(found).ok, verify_plan(found).sentences
    shares = variant_shares(found)[NAME]
    assert shares[f"{NAME}.int4"] >= 0.25 - 1e-9
    assert shares[f"{NAME}.bf16"] >= 0.6 - 1e-9
    assert {option.option.rpartition("demand.")[2] for option in found.options} == {"min_quality", "min_shares.int4"}
    document = RouterConfig.model_validate(router_document(lower(found, VllmEngine())))
    for name, share in shares.items():
        mixed = next((item.share for item in found.modes if (item.model, item.mode) == (name, "mixed")), 0.0)
        assert document.mixed_share[name] * share == pytest.approx(mixed)


def test_simulated_requests_are_shared_out_as_planned(plan: Plan) -> None:
    """Each request takes one variant, evenly spread, and is judged as one of that variant."""
    trace = generate_for_scenario(plan.resolved, 30.0, 1)
    simulated = simulate(plan, trace)
    shares = variant_shares(plan)[NAME]
    for name, share in shares.items():
        if share > 0:
            rows = simulated.requests["model"] == simulated.models.index(name)
            assert abs(rows.sum() - share * len(trace)) <= len(shares)
    assert {row.model for row in simulated.outcomes} == {name for name, share in shares.items() if share > 0}
    assert len(simulated.requests["status"]) == len(trace)
    unnamed = Trace(trace.arrival_s, trace.input_tokens, trace.output_tokens)
    assert np.array_equal(simulate(plan, unnamed).requests["ttft_ms"], simulated.requests["ttft_ms"], equal_nan=True)
    assert {key.rpartition("/")[0] for key in expected_shares(plan)} == {row.model for row in simulated.outcomes}


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.5, 0.5), "at least 0.993 is asked for"),
        ((0.25, 0.5), "sum to 0.75"),
        ((1.0,), "does not say once for each mode"),
        ((1.0, 0.0), "the plan gives"),
    ],
)
def test_shares_that_are_off_are_named(plan: Plan, shares: tuple[float, ...], message: str) -> None:
    """The verification believes no share and no quality."""
    order = (f"{NAME}.fp8-kv8" if message.startswith("at least") else f"{NAME}.ngram", f"{NAME}.fp8")
    stated = dict(zip(order, shares, strict=False))
    modes = [item.model_copy(update={"share": stated.get(item.model, 0.0)}) for item in plan.modes]
    if len(shares) == 1:
        modes = modes[:1]
    assert any(message in text for text in verify_plan(plan.model_copy(update={"modes": tuple(modes)})).sentences)
    wrong = plan.options[0].model_copy(update={"planned": 1.0})
    assert "min_quality is stated as 1.0" in str(verify_plan(plan.model_copy(update={"options": (wrong,)})).sentences)


def test_the_launcher_serves_every_variant_under_one_name(runnable: Plan) -> None:
    """Engines load each variant's checkpoint and answer to the model's name; speculation is told to decode servers."""
    launch = lower(runnable, VllmEngine())
    words = {pipeline.name: " ".join(pipeline.head.argv) for pipeline in launch.pipelines}
    assert all(f"--served-model-name {NAME} " in text for text in words.values())
    speculating = {name for name, text in words.items() if '--speculative-config {"method":"ngram"' in text}
    assert speculating == {p.name for p in launch.pipelines if (p.model, p.phase) == (f"{NAME}.ngram", "decode")}
    config = RouterConfig.model_validate(router_document(launch))
    assert config.variants == variant_shares(runnable)
    with pytest.raises(LaunchError, match="is served by variants, each with its share"):
        vllm_router_commands(config)


def test_the_router_keeps_to_the_shares_and_goes_around_what_is_down(runnable: Plan) -> None:
    """Clients know one model; its requests go to variants in the plan's proportion, and to those that are up."""
    router = Router(RouterConfig.model_validate(router_document(lower(runnable, VllmEngine()))))
    assert router.models() == (NAME,)
    assert not router.serves(NAME)
    for backend in router.backends.values():
        backend.healthy = True
    shares = variant_shares(runnable)[NAME]
    assert sum(0 < share < 1 for share in shares.values()) >= 2
    taken = [router.way_of(NAME, frozenset()) for _ in range(200)]
    for name, share in shares.items():
        assert abs(sum(way == (name, False) for way in taken) - 200 * share) <= 2
    router.admit(NAME)
    down = max(shares, key=lambda name: shares[name])
    for backend in router.backends.values():
        backend.healthy = backend.config.model != down
    assert router.serves(NAME)
    assert {name for name, _ in (router.way_of(NAME, frozenset()) for _ in range(50))} == {
        name for name, share in shares.items() if share > 0 and name != down
    }


@pytest.mark.parametrize("planner", ["homo", "melange", "cauchy"])
def test_rivals_refuse_variants(planner: str) -> None:
    """A rival that served every variant in full would be compared unfairly."""
    with pytest.raises(ScenarioError, match="only planner coral chooses between variants of a model"):
        get_planner(planner).plan(PlanRequest(_scenario()))


def test_speculation_is_for_decode_instances() -> None:
    """Mixed steps with proposed tokens are not known to the tables."""
    with pytest.raises(ScenarioError, match=r"ngram\.speculative: times of speculative decoding are known for decode"):
        _scenario(mode="mixed")


def test_epochs_keep_variants_that_run() -> None:
    """Over a trace every epoch has the model's demand for every variant, and keeps what serves."""
    scenario = _scenario({"requests_s": 4})
    trace = generate_for_scenario(scenario, 1200.0, 1)
    demand = demand_of_trace(trace, scenario, 600.0).demand
    inputs = epoch_inputs(scenario, demand=EpochDemand(demand.keys, demand.tokens_s[[0, 0]]))
    epochs = [epoch.summary for epoch in adapt(PlanRequest(scenario), inputs)]
    assert [epoch.served_share for epoch in epochs] == [1.0, 1.0]
    assert (epochs[1].start, epochs[1].stop, epochs[1].keep) == (0, 0, epochs[0].instances)
