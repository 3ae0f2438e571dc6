"""Requests in classes: what a plan says of them, how it is checked, simulated, routed and started, and what is refused."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coralopt import Plan, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import CoraloptError, LaunchError, OptionError, ScenarioError, WorkloadError
from coralopt.plan.bill import bill_of
from coralopt.planning import PlanRequest, certify, expected_shares, get_planner, prove_bound
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.router import RouterConfig
from coralopt.runtime.router.config import router_document
from coralopt.runtime.router.haproxy import haproxy_configuration
from coralopt.runtime.router.pool import Need
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.vllm_router import vllm_router_commands
from coralopt.simulation import simulate
from coralopt.workload import Trace, poisson_for_scenario, request_classes

NAME = "llama3.1-8b-instruct"
SHORT = {"requests_s": 12.0, "input_tokens": 300, "output_tokens": 80, "most_input": 1024, "most_output": 256}
CHAT = {"requests_s": 3.0, "input_tokens": 400, "output_tokens": 500, "most_input": 1024}
LONG = {"requests_s": 4.0, "input_tokens": 4000, "output_tokens": 150}


def _document(model: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    classes = {"short": SHORT, "chat": CHAT, "long": LONG}
    demand = {"classes": classes, **(model or {}).pop("demand", {})}
    entry = {"slo": {"ttft_ms": 1000, "tpot_ms": 60, "attainment": "mean"}, "demand": demand, **(model or {})}
    return {
        "mode": "mixed",
        "models": {NAME: entry},
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 8, "1xL4": 12, "1xA10G": 12}}}},
        "pruning": {"max_nodes": 1},
        **changes,
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Three classes on instances of several GPUs."""
    return plan_scenario(scenario_from_mapping(_document()), options={"rel_gap": 0.0})


def test_instances_share_their_time_at_proven_least_cost(plan: Plan) -> None:
    """Every class is served, at no more cost than with instances of its own; the plan is checked, proven and read back."""
    assert verify_plan(plan).ok, verify_plan(plan).sentences
    assert prove_bound(plan) == ()
    assert Plan.parse(plan.to_json(), "here") == plan
    assert scenario_from_mapping(dict(plan.resolved.document)).digest == plan.resolved.digest
    assert any(len(instance.classes) > 1 for instance in plan.instances)
    assert {item.model for item in plan.demands} == {f"{NAME}.{name}" for name in ("short", "chat", "long")}
    apart = [
        plan_scenario(scenario_from_mapping(_document({"demand": {"classes": {name: only}}}))).cost_usd_h
        for name, only in (("a", SHORT), ("b", CHAT), ("c", LONG))
        for only in ({key: value for key, value in only.items() if not key.startswith("most")},)
    ]
    assert plan.cost_usd_h < sum(apart) - 1e-6
    bill = bill_of(plan)
    assert sum(model.usd_h for model in bill.models) == pytest.approx(bill.usd_h)
    assert sum(item.cost_usd_h for item in plan.demands) == pytest.approx(plan.provisioning_usd_h)


@pytest.mark.parametrize("factor", [1e-6, 1e-5, 1e-4, 1e-3])
def test_classes_that_take_next_to_no_time_need_one_node(factor: float) -> None:
    """An instance serves 1e9 times as much: the cheapest node, to a bound that says so."""
    classes = {name: {**part, "requests_s": part["requests_s"] * factor} for name, part in (("s", SHORT), ("l", LONG))}
    shape = {"layers": 6, "hidden": 2048, "heads": 16, "kv_heads": 4, "head_dim": 128, "vocab": 32000}
    model = {"model": {**shape, "intermediate": 8192}, "demand": {"classes": classes}}
    offers = {"1xL40S": {"available": 40, "price_usd_h": 1.0}, "1xL4": {"available": 8, "price_usd_h": 0.5}}
    data = _document(model, pool={"regions": {name: {"configurations": offers} for name in ("here", "there")}})
    plan = plan_scenario(scenario_from_mapping(data))
    assert verify_plan(plan).ok, verify_plan(plan).sentences
    assert prove_bound(plan) == ()
    assert plan.provisioning_usd_h == 0.5
    assert plan.lower_bound_usd_h == pytest.approx(plan.cost_usd_h, rel=1e-6)


def test_prefill_and_decode_have_classes_of_their_own() -> None:
    """Disaggregated, too; what serves short prompts need not serve short answers."""
    found = plan_scenario(scenario_from_mapping(_document(mode="disaggregated")))
    assert verify_plan(found).ok, verify_plan(found).sentences
    assert {instance.phase for instance in found.instances} == {"prefill", "decode"}
    simulated = simulate(found, poisson_for_scenario(found.resolved, duration_s=20.0, seed=1))
    assert {row.model for row in simulated.outcomes} == {item.model for item in found.demands}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens_s": 1e5}, "tokens/s of"),
        ({"time_share": 0.01}, "shares of its time sum to"),
        ({"model": f"{NAME}.other"}, f"{NAME}.other is no class of {NAME}"),
    ],
)
def test_figures_that_are_off_are_named(plan: Plan, change: dict[str, Any], message: str) -> None:
    """The verification believes no throughput and no share of time."""
    first = next(instance for instance in plan.instances if instance.classes)
    parts = (first.classes[0].model_copy(update=change), *first.classes[1:])
    rest = [instance for instance in plan.instances if instance is not first]
    wrong = plan.model_copy(update={"instances": (first.model_copy(update={"classes": parts}), *rest)})
    assert any(message in text for text in verify_plan(wrong).sentences), verify_plan(wrong).sentences
    none = plan.model_copy(update={"instances": (first.model_copy(update={"classes": ()}), *rest)})
    assert any("`classes` goes with models whose requests" in text for text in verify_plan(none).sentences)


def test_simulated_requests_go_by_their_lengths(plan: Plan) -> None:
    """The simulator tells classes as the router does and sends each to instances that were planned for it."""
    trace = poisson_for_scenario(plan.resolved, duration_s=30.0, seed=1)
    assert trace.models == (NAME,)
    simulated = simulate(plan, trace)
    short = (trace.input_tokens <= 1024) & (trace.output_tokens <= 256)
    chat = ~short & (trace.input_tokens <= 1024)
    expected = np.select([short, chat], [0, 1], 2)
    names = [f"{NAME}.{name}" for name in ("short", "chat", "long")]
    told = np.array([names.index(simulated.models[m]) for m in simulated.requests["model"]])
    assert (told == expected).all()
    served = [
        {part.model for item in plan.instances if item.name == name for part in item.classes}
        for name in simulated.instances["name"]
    ]
    for model, instance in zip(told.tolist(), simulated.requests["decode_instance"].tolist(), strict=True):
        assert instance < 0 or names[model] in served[instance]
    with pytest.raises(CoraloptError, match="plans for classes of requests cannot follow one another"):
        simulate([(0.0, plan), (10.0, plan)], trace)


def test_the_router_tells_classes_and_keeps_to_the_plan(plan: Plan) -> None:
    """By the length of the prompt and the tokens asked for; to others only where all that were planned are down."""
    launch = lower(plan, VllmEngine())
    assert all(f"--served-model-name {NAME} " in " ".join(p.head.argv) for p in launch.pipelines)
    config = RouterConfig.model_validate(router_document(launch))
    router = Router(config)
    assert router.models() == (NAME,)
    told = [router.class_of(NAME, *asked) for asked in ((1024, 256), (1024, 257), (10, float("inf")), (1025, 1))]
    assert told == ["short", "chat", "chat", "long"]
    assert router.class_of("another", 1, 1) is None
    for backend in router.backends.values():
        backend.healthy = True
    pool = router.pools(NAME)["mixed"]

    async def taken(kind: str, count: int) -> list[str]:
        async with AsyncExitStack() as stack:
            backends = [await stack.enter_async_context(pool.slot(Need(kind=kind), 1.0)) for _ in range(count)]
            return [backend.name for backend in backends]

    classes = {backend.name: backend.classes for backend in config.backends}
    for kind in ("short", "chat", "long"):
        assert all(kind in classes[name] for name in asyncio.run(taken(kind, 20)))
    for backend in router.backends.values():
        backend.healthy = "long" not in backend.config.classes
    if any(backend.healthy for backend in router.backends.values()):
        assert all("long" not in classes[name] for name in asyncio.run(taken("long", 3)))
    for refused in (vllm_router_commands, lambda config: haproxy_configuration(config, "::", 80)):
        with pytest.raises(LaunchError, match="its requests come in classes"):
            refused(config)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ({"demand": {"requests_s": 20.0}}, {}, r"requests_s is 20, those of the classes sum to 19"),
        ({"demand": {"input_tokens": 5}}, {}, "input_tokens: classes have rates and lengths of their own"),
        ({"demand": {"classes": {"a": SHORT}}}, {}, "class 'a' is the last one and takes what no other does"),
        ({"demand": {"classes": {"a": LONG, "b": LONG}}}, {}, "class 'a' holds every request, so none is left"),
        (
            {"demand": {"classes": {"a": {**SHORT, "most_input": 200}, "b": LONG}}},
            {},
            r"classes\.a\.most_input: its mean of 300 tokens is above most_input, 200",
        ),
        (
            {"demand": {"classes": {"a/b": SHORT, "c": LONG}}},
            {},
            r"classes\.a/b: the name 'a/b' must not hold '/'",
        ),
        ({"min_replicas": 2}, {}, r"min_replicas: is not planned for with classes of requests, which"),
        ({"mode": "auto"}, {}, r"mode: is not planned for with classes of requests"),
        ({"slo": {"ttft_ms": 900, "tpot_ms": 60}}, {}, r"slo\.attainment: is not planned for with classes"),
        ({}, {"placement": {"network": "link"}}, r"placement\.network: is not planned for with classes"),
    ],
)
def test_what_does_not_add_up_is_refused(model: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    """One sentence that names the place."""
    with pytest.raises(ScenarioError, match=message):
        scenario_from_mapping(_document(model, **changes))


@pytest.mark.parametrize(
    ("beside", "changes", "message"),
    [
        (
            {"slo": {"ttft_ms": 900, "tpot_ms": 60}},
            {},
            r"models\.phi4-14b\.slo\.attainment: is not planned for with classes",
        ),
        ({"mode": "auto"}, {}, r"models\.phi4-14b\.mode: is not planned for with classes"),
        (
            {"survive_instance_loss": 0.5},
            {},
            r"models\.phi4-14b\.survive_instance_loss: is not planned for with classes",
        ),
        ({"variants": {"a": {"quality": 1.0}}}, {}, r"models\.phi4-14b\.variants: is not planned for with classes"),
        (
            {"mode": "disaggregated"},
            {"pool": {"regions": {name: {"configurations": {"1xL40S": 8}} for name in ("us-east-2", "us-central1")}}},
            r"kv_transfer: is not planned for with classes of requests, which 'llama3.1-8b-instruct' has \(give kv_transfer",
        ),
    ],
)
def test_models_beside_are_in_the_same_programme(beside: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    """What another model asks for is refused by its place, too: classes would not be in its bounds."""
    document = _document(**changes)
    mean = {"ttft_ms": 2000, "tpot_ms": 100, "attainment": "mean"}
    document["models"]["phi4-14b"] = {"slo": mean, "demand": {"requests_s": 1, "dataset": "azure-conv"}, **beside}
    with pytest.raises(ScenarioError, match=message):
        scenario_from_mapping(document)


def test_what_to_expect_is_simulated_whole(plan: Plan) -> None:
    """Classes share instances: simulated alone, each would find them idle. What looks at models one by one says so."""
    expected = expected_shares(plan)
    assert set(expected) == {phase.key for phase in plan.resolved.model_phases if phase.needed_tokens_s > 0}
    assert all(0 < share <= 1 for share in expected.values())
    with pytest.raises(OptionError, match="in classes"):
        certify(plan)


def test_others_refuse_classes(plan: Plan) -> None:
    """What has no word for them says so."""
    for planner in ("homo", "melange"):
        with pytest.raises(ScenarioError, match="only planner coral lets instances share their time among classes"):
            get_planner(planner).plan(PlanRequest(plan.resolved))
    with pytest.raises(OptionError, match="which does not know classes of requests"):
        get_planner("coral").plan(PlanRequest(plan.resolved, on_infeasible="scale"))


def test_demand_that_rises_rises_in_every_class(plan: Plan) -> None:
    """A scenario with another demand has the rates that its tokens/s stand for."""
    scenario = plan.resolved
    twice = scenario.with_demand(np.array([2.0 * phase.demand_tokens_s for phase in scenario.model_phases]))
    rates = [entry["requests_s"] for entry in twice.document["models"][NAME]["demand"]["classes"].values()]
    assert rates == pytest.approx([24.0, 6.0, 8.0])


def test_a_trace_becomes_classes(run_cli: Any, tmp_path: Path) -> None:
    """One command; what it prints goes into a scenario, and its classes hold every request of the trace once."""
    rng = np.random.default_rng(1)
    trace = Trace(np.linspace(0, 99, 400), rng.integers(10, 3000, 400), rng.integers(1, 600, 400))
    path = tmp_path / "trace.csv"
    rows = zip(trace.arrival_s.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]))
    ended = run_cli("workload", "classes", str(path), "--input", "1000", "--output", "100", "--json")
    assert ended.returncode == 0, ended.stderr
    classes = json.loads(ended.stdout)["classes"]
    assert list(classes) == ["in1000-out100", "in1000", "out100", "any"]
    assert sum(entry["requests_s"] for entry in classes.values()) == pytest.approx(400 / 99, rel=1e-4)
    scenario = scenario_from_mapping(_document({"demand": {"classes": classes}}))
    parts = [phase.request_class for phase in scenario.model_phases]
    left = np.ones(400, dtype=np.bool_)
    for part, entry in zip(parts, classes.values(), strict=True):
        assert part is not None
        mine = left & part.holds(trace.input_tokens, trace.output_tokens)
        assert mine.sum() / 99 == pytest.approx(entry["requests_s"], rel=1e-4)
        left &= ~mine
    ended = run_cli("workload", "classes", str(path))
    assert ended.returncode != 0
    assert "give --input or --output" in ended.stderr
    with pytest.raises(WorkloadError, match="at least 1"):
        request_classes(trace, [0], [])
