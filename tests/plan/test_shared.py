"""Models that share nodes: what a plan says of them, how it is checked, simulated and started, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from coralopt import Plan, load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import CoraloptError, LaunchError, OptionError, ScenarioError
from coralopt.plan.bill import bill_of
from coralopt.planning import (
    CoralPlanner,
    PlanRequest,
    certify,
    cheapest_of_one_gpu,
    expected_shares,
    get_planner,
    prove_bound,
)
from coralopt.planning.promise.certificate import GLANCE_S, GLANCE_SEED
from coralopt.report.tables import instance_table
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.launch import PipelineLaunch
from coralopt.runtime.local.reconcile import Pace, Starts
from coralopt.runtime.targets import KubernetesAddresses, kubernetes_files, shell_files
from coralopt.simulation import simulate
from coralopt.templates import scenario_tables, shared_patterns
from coralopt.templates.patterns import WAYS
from coralopt.throughput import throughput_source
from coralopt.throughput.swapping import swap_ms, swap_steps
from coralopt.workload import Trace, poisson_for_scenario

SMALL = ("llama3.2-1b", "qwen2.5-1.5b", "smollm2-1.7b")


def _document(sharing: bool = True) -> dict[str, Any]:
    """Three small models, each far below one GPU's worth."""
    longtail = load_scenario("longtail").document
    models = {
        name: {
            **longtail["models"][name],
            "demand": {"requests_s": 0.5, "input_tokens": 500, "output_tokens": 100, "input_cv": 0.5, "output_cv": 0.5},
        }
        for name in SMALL
    }
    return {
        "mode": "mixed",
        "models": models,
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL4": 3, "1xL40S": 2}}}},
        "serving": {"reserve_gib": 2},
        "headroom": {"mixed": {"throughput": 0.3, "latency": 0.5}},
        "pruning": {"max_nodes": 1},
        **({"sharing": {"models": 3}} if sharing else {}),
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    """All three on one node."""
    return plan_scenario(scenario_from_mapping(_document()))


def test_one_node_in_place_of_three(plan: Plan) -> None:
    """Sharing saves what it should, and the plan, its bill and its tables count the node once."""
    alone = plan_scenario(scenario_from_mapping(_document(sharing=False)))
    assert plan.cost_usd_h == pytest.approx(alone.cost_usd_h / 3)
    assert [instance.shared is not None for instance in plan.instances] == [True] * 3
    assert "on 1 nodes" in repr(plan)
    bill = bill_of(plan)
    assert [line.nodes for line in bill.lines] == [1]
    assert sum(model.usd_h for model in bill.models) == pytest.approx(bill.usd_h)
    assert sum(instance.price_usd_h for instance in plan.instances) == pytest.approx(plan.provisioning_usd_h)
    assert all(str(cell).endswith("% of 1xL4 (shared1)") for cell in instance_table(plan).columns[3].cells)
    assert '"shared"' not in alone.to_json()
    assert Plan.parse(plan.to_json(), "again") == plan


def test_it_verifies_and_its_bound_is_derived_again(plan: Plan) -> None:
    """Everything that a shared node promises is computed from layer times again."""
    assert verify_plan(plan).sentences == ()
    assert prove_bound(plan) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 3}, "recomputed"),
        ({"batch": 100_000}, "none that its layer times are looked at for"),
        ({"tokens_s": 1e4}, "recomputed"),
        ({"step_ms": 1.0}, "step_ms is 1.0, recomputed"),
        ({"cycle_ms": 1.0}, "cycle_ms is 1.0, recomputed"),
        ({"memory_share": 0.01}, "do not hold its batch"),
        ({"memory_share": 0.9}, "take more memory than"),
        ({"position": 1}, "positions are not 0, 1, ... once each"),
        ({"group": "us-east-2-1xL4-shared9"}, "share it; sharing allows"),
        ({"group": None}, "is given"),
        ({"count": 2}, "differ in region or count"),
        ({"kept": 1}, "kept is 1"),
        ({"price_usd_h": 0.01}, "is priced 0.01"),
        ({"name": "x"}, "must be called"),
        ({"configuration": "1xL40S"}, "do not stand on one and the same node"),
        ({"last_layer": 3}, "does not hold all layers"),
    ],
)
def test_every_edit_of_a_shared_node_is_found(plan: Plan, change: dict[str, Any], message: str) -> None:
    """A forged share would rent too little or promise too much."""
    document = json.loads(plan.to_json())
    instance = document["instances"][0]
    stage, (name, value) = instance["stages"][0], next(iter(change.items()))
    if name == "group" and value is None:
        del instance["shared"]
    else:
        parts = (instance["shared"], *([] if name == "count" else [stage["nodes"][0]]), stage, instance)
        next(part for part in parts if name in part)[name] = value
    sentences = verify_plan(Plan.model_validate(document)).sentences
    assert any(message in sentence for sentence in sentences), sentences


def test_a_scenario_that_does_not_allow_it_refuses_the_plan(plan: Plan) -> None:
    """What may be shared is the scenario's word."""
    changed = plan.model_copy(update={"scenario": {**plan.scenario, "sharing": {"models": 2}}})
    assert any("sharing allows up to 2 models" in sentence for sentence in verify_plan(changed).sentences)


def test_what_to_expect_is_simulated_whole(plan: Plan) -> None:
    """A model alone would find a node idle that others use."""
    trace = poisson_for_scenario(plan.resolved, None, GLANCE_S, GLANCE_SEED)
    worst = min(row.attainment for row in simulate(plan, trace).outcomes if row.requests)
    assert min(expected_shares(plan).values()) == worst
    with pytest.raises(OptionError, match="share nodes"):
        certify(plan)


def test_steps_take_turns_and_slos_hold(plan: Plan) -> None:
    """Simulated with the scenario's lengths, the SLOs hold for nearly all; GPUs never do two steps at once."""
    simulated = simulate(plan, poisson_for_scenario(plan.resolved, duration_s=120.0, seed=2))
    assert simulated.attainment > 0.97
    busy = sum(float(value) for value in simulated.nodes["busy_s"])
    assert 0 < busy <= 120.0 * 1.05
    with pytest.raises(CoraloptError, match="share nodes cannot follow one another"):
        simulate([(0.0, plan), (60.0, plan)], poisson_for_scenario(plan.resolved, duration_s=120.0, seed=2))


def test_servers_of_one_gpu_start_one_after_the_other_within_their_memory(plan: Plan) -> None:
    """One script for the node, one port and one share of the memory a server."""
    launch = lower(plan, VllmEngine())
    assert not launch.refused
    assert {remark.code for verdict in launch.verdicts for remark in verdict.remarks} >= {"shared-gpu"}
    files = {name: text for name, text in shell_files(launch).items() if name.startswith("nodes/")}
    assert len(files) == 1
    words = next(iter(files.values())).split()
    shares = [float(words[k + 1]) for k, word in enumerate(words) if word == "--gpu-memory-utilization"]
    ports = [words[k + 1] for k, word in enumerate(words) if word == "--port"]
    assert len(shares) == len(set(ports)) == 3
    assert 0.89 < sum(shares) <= 0.9
    assert next(iter(files.values())).count("until curl") == 3
    with pytest.raises(LaunchError, match="3 servers share their GPUs, but a pod takes whole GPUs; use target shell"):
        kubernetes_files(lower(plan, VllmEngine(), KubernetesAddresses()))


def test_what_has_no_word_for_it_says_so(plan: Plan) -> None:
    """Rivals would be compared unfairly, and a common share of demand is not searched for."""
    with pytest.raises(ScenarioError, match="only planner coral lets models share nodes"):
        get_planner("homo").plan(PlanRequest(plan.resolved))
    with pytest.raises(OptionError, match="does not know shared nodes"):
        get_planner("coral").plan(PlanRequest(plan.resolved, on_infeasible="scale"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sharing": {"models": 1}}, "sharing.models"),
        ({"sharing": {"models": 5}}, "sharing.models"),
        ({"sharing": {"model": 2}}, "sharing"),
    ],
)
def test_bad_sections_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each mistake names its place."""
    with pytest.raises(ScenarioError, match=message):
        scenario_from_mapping({**_document(), **changes})


def test_servers_of_one_node_start_in_turn(plan: Plan) -> None:
    """Each looks at how much memory is free when it starts; those of other nodes start meanwhile."""
    at_work: list[str] = []
    most: dict[str, int] = {}

    class Cluster:
        running: Mapping[str, object] = MappingProxyType({})

        def admit(self, launch: PipelineLaunch, definition: str) -> str:
            return launch.name

        async def start(self, pipeline: str, launch: PipelineLaunch, timeout_s: float) -> None:
            (machine,) = launch.machines
            at_work.append(machine)
            await asyncio.sleep(0.01)
            most[machine] = max(most.get(machine, 0), at_work.count(machine))
            most["all"] = max(most.get("all", 0), len(at_work))
            at_work.remove(machine)

    twice = [item.model_copy(update={"count": 2}) for item in plan.instances]
    double = plan.model_copy(update={"instances": tuple(twice)})
    starts = Starts(double, VllmEngine(), Cluster(), Pace(needs_gpus=False))  # type: ignore[arg-type]
    assert len(asyncio.run(starts.start(list(starts.definitions)))) == 6
    assert {name: count for name, count in most.items() if name != "all"} == dict.fromkeys(set(most) - {"all"}, 1)
    assert most["all"] == 2


def test_one_model_or_a_share_of_requests_cannot_share() -> None:
    """Sharing plans for mean requests, and needs somebody to share with."""
    document = _document()
    one = {**document, "models": {SMALL[0]: document["models"][SMALL[0]]}}
    with pytest.raises(ScenarioError, match="there is one model only, so none to share a node with"):
        scenario_from_mapping(one)
    entry = document["models"][SMALL[0]]
    document["models"][SMALL[0]] = {**entry, "slo": {"ttft_ms": 2000, "tpot_ms": 100}}
    with pytest.raises(ScenarioError, match=r"planned for mean requests, not for 0\.99 of them"):
        scenario_from_mapping(document)


def _other(way: str) -> dict[str, Any]:
    """The three models on slices of an H100, or each in its turn on one L4."""
    document = _document()
    document["sharing"] = {"models": 3, "ways": [way]} | ({"swap_gb_s": 12} if way == "swapping" else {})
    supply = {"1xH100": {"available": 2, "price_usd_h": 1.0}} if way == "slices" else {"1xL4": 3}
    document["pool"] = {"regions": {"us-east-2": {"configurations": {**supply, "1xL40S": 2}}}}
    if way == "swapping":
        for model in document["models"].values():
            model["slo"] = {"ttft_ms": 60_000, "tpot_ms": 200, "attainment": "mean"}
    return document


@pytest.fixture(scope="module")
def sliced_plan() -> Plan:
    """All three on slices of one GPU."""
    return plan_scenario(scenario_from_mapping(_other("slices")))


@pytest.fixture(scope="module")
def swapped_plan() -> Plan:
    """All three in turns on one GPU."""
    return plan_scenario(scenario_from_mapping(_other("swapping")))


def test_slices_are_planned_checked_simulated_and_started(sliced_plan: Plan) -> None:
    """One GPU in slices: smaller GPUs to the simulator, devices by UUID or resources of their own to the launcher."""
    parts = [instance.shared for instance in sliced_plan.instances]
    assert len(parts) == 3
    assert all(part is not None and part.slice is not None for part in parts)
    assert sum(part.part for part in parts if part is not None) == pytest.approx(1)
    assert sum(instance.price_usd_h for instance in sliced_plan.instances) == pytest.approx(1.0)
    assert verify_plan(sliced_plan).sentences == ()
    assert prove_bound(sliced_plan) == ()
    assert Plan.parse(sliced_plan.to_json(), "again") == sliced_plan
    assert all("gb of 1xH100 (shared1)" in str(cell) for cell in instance_table(sliced_plan).columns[3].cells)
    simulated = simulate(sliced_plan, poisson_for_scenario(sliced_plan.resolved, duration_s=60.0, seed=2))
    assert simulated.attainment > 0.97
    launch = lower(sliced_plan, VllmEngine())
    assert {remark.code for verdict in launch.verdicts for remark in verdict.remarks} >= {"mig-slice"}
    (script,) = (text for name, text in shell_files(launch).items() if name.startswith("nodes/"))
    assert script.count('CUDA_VISIBLE_DEVICES="$(slice ') == 3
    assert "nvidia-smi mig -cgi $slices -C" in script
    pods = kubernetes_files(lower(sliced_plan, VllmEngine(), KubernetesAddresses()))
    assert sum("nvidia.com/mig-" in text for text in pods.values()) == 3


def test_the_bill_compares_slices_with_gpus_that_have_none() -> None:
    """One GPU type is what others are taken out of the pool for, also those that MIG divides."""
    request = PlanRequest(scenario_from_mapping(_other("slices")))
    outcome = CoralPlanner().plan(request)
    compared = cheapest_of_one_gpu(request, outcome)
    assert compared is not None
    assert compared.gpu == "H100"
    assert compared.itself


def test_swapped_weights_are_planned_checked_and_started(swapped_plan: Plan) -> None:
    """One GPU in turns: what a turn and a cycle take, and servers that sleep and wake."""
    parts = [instance.shared for instance in swapped_plan.instances]
    assert [part.way for part in parts if part is not None] == ["swapping"] * 3
    assert len({part.cycle_ms for part in parts if part is not None}) == 1
    assert verify_plan(swapped_plan).sentences == ()
    assert prove_bound(swapped_plan) == ()
    launch = lower(swapped_plan, VllmEngine())
    assert {remark.code for verdict in launch.verdicts for remark in verdict.remarks} >= {"swapped-weights"}
    (script,) = (text for name, text in shell_files(launch).items() if name.startswith("nodes/"))
    assert script.count("--enable-sleep-mode") == script.count("VLLM_SERVER_DEV_MODE=1") == 3
    assert script.count("/sleep?level=1&mode=wait") == 4
    assert script.count("wake_up") == 1
    with pytest.raises(LaunchError, match="3 servers share GPUs in ways that launch start does not set up"):
        launch.require_no_help("launch start")
    with pytest.raises(LaunchError, match="share their GPUs"):
        kubernetes_files(lower(swapped_plan, VllmEngine(), KubernetesAddresses()))


def test_turns_take_what_the_plan_says(swapped_plan: Plan) -> None:
    """At the planned rate a request waits half a cycle of the least batches on average, and the SLOs are kept."""
    scenario = swapped_plan.resolved
    patterns = shared_patterns(scenario, scenario_tables(scenario))
    (node,) = {name for item in swapped_plan.instances for name in item.nodes()}
    (configuration,) = (item for item in scenario.configurations if item.name == node)
    everyone = (np.sort(patterns.phase, axis=1) == np.arange(3)).all(axis=1)
    here = everyone & (patterns.configuration == scenario.configurations.index(configuration))
    (row,) = np.flatnonzero(here & (patterns.way == WAYS.index("swapping")))
    source = throughput_source(scenario.throughput_source)
    phases = [scenario.model_phases[p] for p in patterns.phase[row].tolist()]
    turns = [
        swap_steps(item, configuration, source.times(item.model, configuration), scenario.sharing) for item in phases
    ]
    cycle = sum(turn.ms_of(batch) for turn, batch in zip(turns, patterns.batch[row].tolist(), strict=True))
    assert {item.shared.cycle_ms >= cycle for item in swapped_plan.instances if item.shared is not None} == {True}
    trace = poisson_for_scenario(swapped_plan.resolved, 1.3 * 0.5, 900.0, 5)
    simulated = simulate(swapped_plan, trace)
    assert simulated.attainment > 0.99
    assert float(np.mean(simulated.requests["prefill_wait_ms"])) == pytest.approx(cycle / 2, rel=0.15)
    assert all(row.waited["turn"] > 0.9 for row in simulated.outcomes)


def test_a_request_alone_waits_for_the_turns_before_its_own(swapped_plan: Plan) -> None:
    """On a node where nobody is, weights come one model after the other, then go on from there."""
    names = [item.model for item in swapped_plan.instances]
    swaps = [item.shared.swap_ms or 0.0 for item in swapped_plan.instances if item.shared is not None]
    # The third model, then, long after, the first one, and one of the third that comes during its turn.
    trace = Trace(
        arrival_s=np.array([0.0, 100.0, 100.0 + swaps[0] / 1e3 + 0.1]),
        input_tokens=np.array([100, 100, 100]),
        output_tokens=np.array([50, 50, 50]),
        model=np.array([2, 0, 2], dtype=np.int32),
        models=tuple(names),
    )
    requests = simulate(swapped_plan, trace).requests
    wait = requests["prefill_wait_ms"]
    assert wait[0] == pytest.approx(sum(swaps))
    assert wait[1] == pytest.approx(swaps[0])
    rest = requests["e2e_ms"][1] - swaps[0] - 100.0 - swapped_plan.resolved.serving.host_request_ms
    assert wait[2] == pytest.approx(rest + swaps[1] + swaps[2])


@pytest.mark.parametrize(
    ("way", "change", "message"),
    [
        ("slices", {"slice": "2g.35gb"}, "has no slices 2g.35gb"),
        ("slices", {"slice": "4g.40gb"}, "no GPU has room for these slices"),
        ("slices", {"slice": None}, "is shared by slices and turns"),
        ("slices", {"rent_share": 0.01}, "rent_share is 0.01, recomputed"),
        ("slices", {"memory_share": 0.01}, "memory_share is 0.01, recomputed"),
        ("slices", {"step_ms": 1.0}, "step_ms is 1.0, recomputed"),
        ("slices", {"tokens_s": 1e4}, "recomputed"),
        ("slices", {"batch": 100_000}, "none that its layer times are looked at for"),
        ("swapping", {"swap_ms": 1.0}, "swap_ms is 1.0, recomputed"),
        ("swapping", {"swap_ms": None}, "is shared by swapping and turns"),
        ("swapping", {"cycle_ms": 1.0}, "cycle_ms is 1.0, recomputed"),
        ("swapping", {"memory_share": 0.1}, "memory_share is 0.1, recomputed"),
        ("swapping", {"batch": 2}, "recomputed"),
    ],
)
def test_every_edit_of_a_slice_or_turn_is_found(
    sliced_plan: Plan, swapped_plan: Plan, way: str, change: dict[str, Any], message: str
) -> None:
    """A forged slice would be larger than it is, a forged turn shorter."""
    document = json.loads((sliced_plan if way == "slices" else swapped_plan).to_json())
    instance = document["instances"][0]
    name, value = next(iter(change.items()))
    parts = (instance["shared"], instance["stages"][0]["nodes"][0], instance)
    holder = next(part for part in parts if name in part)
    if change == {"slice": "4g.40gb"}:
        instance["shared"][name] = document["instances"][1]["shared"][name] = value
    elif value is None:
        del holder[name]
    else:
        holder[name] = value
    sentences = verify_plan(Plan.model_validate(document)).sentences
    assert any(message in sentence for sentence in sentences), sentences


@pytest.mark.parametrize(
    ("way", "change", "message"),
    [
        ("swapping", {"sharing": {"models": 3, "ways": ["swapping"]}}, "how long weights of 'llama3.2-1b' take"),
        ("swapping", {"sharing": {"ways": ["swapping"], "swap_gb_s": 9, "swap_s": {"x": 1.0}}}, "unknown model 'x'"),
        ("swapping", {"mode": "disaggregated", "headroom": None}, "weights are swapped between mixed instances only"),
        (
            "slices",
            {"pool": {"regions": {"us-east-2": {"configurations": {"1xL4": 3}}}}},
            "no node of the pool has one GPU",
        ),
        ("slices", {"sharing": {"ways": ["mps"]}}, r"sharing\.ways"),
        ("slices", {"sharing": {"ways": []}}, r"sharing\.ways"),
    ],
)
def test_bad_ways_to_share_are_refused(way: str, change: dict[str, Any], message: str) -> None:
    """Each mistake names its place."""
    with pytest.raises(ScenarioError, match=message):
        scenario_from_mapping({**_other(way), **change})


def test_measured_seconds_go_before_the_rate() -> None:
    """A model's own swap time; and a scenario says the same after a round trip."""
    document = _other("swapping")
    document["sharing"]["swap_s"] = {SMALL[0]: 2.5}
    scenario = scenario_from_mapping(document)
    times = [swap_ms(phase, scenario.sharing) for phase in scenario.model_phases]
    assert times[0] == 2500.0
    assert times[1] == pytest.approx(2 * scenario.model_phases[1].model.weight_bytes / 12e6)
    assert scenario_from_mapping(dict(scenario.document)).digest == scenario.digest
