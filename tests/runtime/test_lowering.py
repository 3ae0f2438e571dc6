"""From plan to processes: verdicts by rule, and properties that every launch must have."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import MODEL, golden_plan, instance, plan

from coralopt import catalog
from coralopt.errors import LaunchError, PlanError
from coralopt.plan import Plan, PlannedInstance
from coralopt.runtime import EngineVerdict, Launch, VllmEngine, check, lower
from coralopt.runtime.naming import LONGEST, dns_label
from coralopt.throughput.engines import graph_sizes

L4 = {"1xL4": (1, 900.0)}
L40S = {"1xL40S": (1, 900.0)}
LAYERS = MODEL["layers"]
GOLDEN = Path(__file__).parent / "golden"


def verdict(document: Plan, **options: object) -> EngineVerdict:
    return check(document, VllmEngine(**options)).verdicts[0]  # type: ignore[arg-type]


def codes(found: EngineVerdict) -> list[str]:
    return [reason.code for reason in found.reasons]


@pytest.mark.parametrize(
    ("planned", "options", "expected"),
    [
        (instance("mixed", (8, L4)), {}, []),
        (instance("mixed", (3, L4), (5, L40S)), {}, []),
        (instance("mixed", (3, {"1xL4": (2, 450.0)}), (5, L40S)), {}, ["intra-stage-dp"]),
        (instance("mixed", (3, {"1xL4": (2, 450.0)}), (5, {"1xL40S": (2, 450.0)})), {}, []),
        (instance("mixed", (3, {"2xL4": (1, 900.0)}), (5, L40S)), {}, ["ragged-tp"]),
        (instance("mixed", (3, {"2xL4": (1, 900.0)}), (5, L40S)), {"virtual_nodes": True}, []),
        (instance("mixed", (1, {"4xL4": (1, 900.0)}), (7, L40S)), {"virtual_nodes": True}, ["stage-too-thin"]),
        (instance("decode", (3, L4), (5, L40S)), {}, ["decode-pp-with-nixl"]),
        (instance("prefill", (3, L4), (5, L40S)), {}, []),
        (instance("prefill", (3, L4), (5, L40S)), {"connector": "nixl"}, ["prefill-pp-with-nixl-pull"]),
        (
            instance("decode", (3, L4), (5, L40S)),
            {"connector": "example", "kv_directory": "/kv"},
            [],
        ),
        (
            instance("decode", (8, {"2xL4": (1, 9.0)})),
            {"connector": "example", "kv_directory": "/kv"},
            ["example-connector-tp"],
        ),
        (instance("mixed", (8, {"8xL4": (1, 900.0)})), {}, []),
    ],
)
def test_rules(planned: PlannedInstance, options: dict[str, object], expected: list[str]) -> None:
    """Each rule of docs/runtime.md, on the smallest instance that meets or breaks it."""
    assert codes(verdict(plan(planned), **options)) == expected


def test_weights_that_the_checkpoint_does_not_have() -> None:
    """FP8 is made while loading; another format needs a checkpoint, by name or by option."""
    one = instance("mixed", (8, L40S))

    def words(document: Plan) -> list[str]:
        return list(lower(document, VllmEngine()).pipelines[0].nodes[0].argv)

    made = words(plan(one, entry={"weight_format": "fp8", "kv_format": "fp8"}))
    assert made[made.index("--quantization") + 1] == "fp8"
    assert made[made.index("--kv-cache-dtype") + 1] == "fp8"
    assert not {"--quantization", "--kv-cache-dtype"} & set(words(plan(one)))
    assert codes(verdict(plan(one, entry={"weight_format": "int4"}))) == ["no-checkpoint"]
    assert codes(verdict(plan(one, entry={"weight_format": "int4"}), model_paths={"tiny": "us/awq"})) == []
    own = words(plan(one, entry={"weight_format": "int4", "hf_id": "us/awq"}))
    assert own[own.index("serve") + 1] == "us/awq"
    assert "--quantization" not in own


def test_heads_that_cannot_be_dealt_out() -> None:
    """Phi-4 has 40 query and 10 KV heads: two GPUs share them, four and eight cannot."""
    shape = {**MODEL, "heads": 40, "kv_heads": 10}
    expected = {"1xL4": [], "2xL4": [], "4xL4": ["tp-heads"], "8xL4": ["tp-heads"]}
    found = {name: codes(verdict(plan(instance("mixed", (8, {name: (1, 9.0)})), model=shape))) for name in expected}
    assert found == expected


def test_worst_stage_decides_kv_room() -> None:
    """vLLM gives every stage the KV blocks of the worst one; a plan that counts on more is refused."""
    large = {**MODEL, "layers": 64, "hidden": 5120, "heads": 64, "kv_heads": 8, "head_dim": 128, "intermediate": 25600}
    # 42 layers of about 0.91 GiB leave 1.1 GiB of an L40S: about 70 sequences of 110 tokens.
    few = plan(instance("mixed", (22, {"1xA100": (1, 300.0)}), (42, {"1xL40S": (1, 300.0)})), model=large)
    many = plan(instance("mixed", (22, {"1xA100": (1, 3000.0)}), (42, {"1xL40S": (1, 3000.0)})), model=large)
    assert codes(verdict(few)) == []
    refused = verdict(many)
    assert codes(refused) == ["kv-min-stage"]
    assert "stage 2 (1xL40S, 42 layers)" in refused.reasons[0].text


@pytest.mark.parametrize(
    ("layers", "position", "ends"), [((12,), 0, 2), ((8, 2, 2), 0, 1), ((2, 8, 2), 1, 0), ((2, 2, 8), 2, 1)]
)
def test_kv_room_counts_the_embedding_at_the_ends(layers: tuple[int, ...], position: int, ends: int) -> None:
    """The first stage holds the embedding, the last one the head, the only one both: by hand, in bytes."""
    shape = {**MODEL, "layers": 12, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}
    shape |= {"intermediate": 8192, "vocab": 256_000}
    stages = [(count, {"1xL40S": (1, 1e6)}) for count in layers]
    text = verdict(plan(instance("mixed", *stages, batch=100_000), model=shape)).reasons[0].text
    gib, held = 2**30, layers[position]
    projections = 4096 * (32 * 128) * 2 + 4096 * (8 * 128) * 2
    weights = held * 2.0 * (projections + 3 * 4096 * 8192)
    room = 0.9 * catalog.gpus()["L40S"].memory_gib * gib - gib - weights - ends * 256_000 * 4096 * 2.0
    sequences = room / (held * 110 * 2 * 8 * 128 * 2.0)
    assert text.startswith(f"stage {position + 1} (1xL40S, {held} layers) has KV room for ")
    told = float(text.partition("room for ")[2].split()[0])
    assert told == pytest.approx(sequences, rel=1e-3)
    # One half of the embedding more or less would show.
    assert 256_000 * 4096 * 2.0 / room > 0.01


def test_the_smallest_planned_micro_batch_goes_through_all_stages() -> None:
    """Stages planned with 20 and 60 prompts of 100 tokens: vLLM is told to take 2000 tokens a step, and a remark says so."""
    planned = instance("prefill", (3, L4), (5, L40S), batch=20)
    first, second = planned.stages
    larger = second.model_copy(update={"nodes": (second.nodes[0].model_copy(update={"batch": 60}),)})
    for stages in ((first, larger), (larger, first)):
        slices = ((0, 2), (3, 7)) if stages[0] is first else ((0, 4), (5, 7))
        cut = tuple(
            stage.model_copy(update={"first_layer": a, "last_layer": b})
            for stage, (a, b) in zip(stages, slices, strict=True)
        )
        halves = plan(planned.model_copy(update={"stages": cut}), instance("decode", (8, L40S)))
        prefill = lower(halves, VllmEngine()).pipelines[0]
        assert {value_of(node.argv, "--max-num-batched-tokens") for node in prefill.nodes} == {"2000"}
        assert "common-batch" in [remark.code for remark in check(halves, VllmEngine()).verdicts[0].remarks]


def test_mixed_servers_get_the_token_budget_of_the_plan() -> None:
    """What throughput tables and simulator count on, whatever the planned batch; vLLM wants a token a sequence at least."""
    for batch, expected in ((20, "2048"), (3000, "3000")):
        launch = lower(plan(instance("mixed", (8, L4), batch=batch)), VllmEngine())
        assert value_of(launch.pipelines[0].nodes[0].argv, "--max-num-batched-tokens") == expected


@given(st.integers(1, 20_000))
def test_steps_of_any_size_run_as_cuda_graphs_with_little_padding(most: int) -> None:
    """Sizes ascend to the largest step, there are few of them, and a step is padded by an eighth at most."""
    sizes = graph_sizes(most)
    assert sizes[-1] == most
    assert len(sizes) <= 140
    assert all(low < high for low, high in itertools.pairwise(sizes))
    assert all(high - low - 1 <= max(7, low / 8) for low, high in itertools.pairwise(sizes))


def test_servers_that_compute_prompts_capture_graphs_for_them() -> None:
    """Up to the tokens of a step; decode servers keep vLLM's sizes, and so do users who choose their own."""

    def largest(engine: VllmEngine) -> dict[str, int]:
        launch = lower(plan(instance("prefill", (8, L4)), instance("decode", (8, L40S))), engine)
        heads = {pipeline.phase: pipeline.nodes[0].argv for pipeline in launch.pipelines}
        flag = "--compilation-config"
        return {
            phase: json.loads(value_of(argv, flag))["cudagraph_capture_sizes"][-1]
            for phase, argv in heads.items()
            if flag in argv
        }

    assert largest(VllmEngine()) == {"prefill": 512}
    for option in ("--enforce-eager", "--max-cudagraph-capture-size=1024"):
        assert largest(VllmEngine(extra=(option,))) == {}


def test_a_half_without_its_other_half_is_pointed_out() -> None:
    """Prefill alone serves nobody; a user should learn that before renting it."""
    document = plan(instance("prefill", (8, L4)), instance("decode", (3, L4), (5, L40S)))
    prefill, decode = check(document, VllmEngine()).verdicts
    assert prefill.runs
    assert not decode.runs
    assert "half-missing" in [remark.code for remark in prefill.remarks]


def test_connector_follows_the_prefill_side() -> None:
    """NIXL reads from unpipelined prefill servers and is pushed to by pipelined ones; both sides must agree."""
    for stages, expected in ((((8, L4),), "NixlConnector"), (((3, L4), (5, L40S)), "NixlPushConnector")):
        launch = lower(plan(instance("prefill", *stages), instance("decode", (8, L40S))), VllmEngine())
        roles = {}
        for pipeline in launch.pipelines:
            for node in pipeline.nodes:
                config = json.loads(node.argv[node.argv.index("--kv-transfer-config") + 1])
                assert config["kv_connector"] == pipeline.connector == expected
                roles[pipeline.phase] = config["kv_role"]
        assert roles == {"prefill": "kv_producer", "decode": "kv_consumer"}


def value_of(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of up to three instances, most of them executable, in one or several copies."""
    names = ("1xL4", "2xL4", "1xL40S", "2xL40S", "4xL4", "1xA100")
    items, seen = [], set()
    mode = draw(st.sampled_from([("mixed",), ("prefill", "decode")]))
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 3))
        cuts = sorted(draw(st.sets(st.integers(1, LAYERS - 1), min_size=count - 1, max_size=count - 1)))
        layers = [b - a for a, b in zip([0, *cuts], [*cuts, LAYERS], strict=True)]
        copies = draw(st.integers(1, 2))
        parts = [(j, {draw(st.sampled_from(names)): (copies, draw(st.sampled_from([5.0, 7.0])))}) for j in layers]
        item = instance(
            draw(st.sampled_from(mode)), *parts, count=draw(st.integers(1, 2)), model=draw(st.sampled_from(["a", "b"]))
        )
        if item.name not in seen:
            seen.add(item.name)
            items.append(item)
    return plan(*items)


@settings(max_examples=120, deadline=None)
@given(document=plans(), virtual=st.booleans(), one_machine=st.booleans())
def test_every_launch_is_sound(document: Plan, virtual: bool, one_machine: bool) -> None:
    """Layers once and in order, one rendezvous a pipeline, ranks complete, names, ports and GPUs unique."""
    from coralopt.runtime.local import LocalAddresses

    addresses = LocalAddresses() if one_machine else None
    launch = lower(document, VllmEngine(virtual_nodes=virtual), addresses)
    if addresses is not None:
        addresses.release()
    assert len(launch.verdicts) == len(document.instances)
    names = [node.name for node in launch.nodes] + [pipeline.name for pipeline in launch.pipelines]
    assert len(set(names)) == len(names)
    listening = [(node.host, port) for node in launch.nodes for port in node.ports.values()]
    assert len(set(listening)) == len(listening)
    devices = [("here" if one_machine else node.machine, gpu) for node in launch.nodes for gpu in node.gpus]
    assert len(set(devices)) == len(devices)
    for planned, found in zip(document.instances, launch.verdicts, strict=True):
        mine = [pipeline for pipeline in launch.pipelines if pipeline.instance == planned.name]
        assert bool(mine) == found.runs
        if found.runs:
            assert sum(p.tokens_s for p in mine) == pytest.approx(planned.count * planned.tokens_s)
            rented = Counter({name: n * planned.count for name, n in planned.nodes().items()})
            machines = {node.machine: node.configuration for pipeline in mine for node in pipeline.nodes}
            assert Counter(machines.values()) == rented
    for pipeline in launch.pipelines:
        _check_pipeline(pipeline.nodes)
        assert dns_label(pipeline.name) == pipeline.name
        assert len(pipeline.name) <= LONGEST


def _check_pipeline(nodes: tuple) -> None:  # type: ignore[type-arg]
    held = [layer for node in nodes for layer in range(node.first_layer, node.last_layer + 1)]
    assert held == list(range(LAYERS))
    assert [node.rank for node in nodes] == list(range(len(nodes)))
    degrees = {value_of(node.argv, "--tensor-parallel-size") for node in nodes}
    assert degrees == {str(len(node.gpus)) for node in nodes}
    assert len(degrees) == 1
    if len(nodes) > 1:
        split = {node.env["VLLM_PP_LAYER_PARTITION"] for node in nodes}
        assert split == {",".join(str(n.last_layer - n.first_layer + 1) for n in nodes)}
        meeting = {(value_of(n.argv, "--master-addr"), value_of(n.argv, "--master-port")) for n in nodes}
        assert meeting == {(nodes[0].host, str(nodes[0].ports["rendezvous"]))}
        assert {value_of(node.argv, "--nnodes") for node in nodes} == {str(len(nodes))}
        assert [value_of(node.argv, "--node-rank") for node in nodes] == [str(k) for k in range(len(nodes))]
    assert ["--headless" in node.argv for node in nodes] == [node.rank > 0 for node in nodes]
    assert ["--port" in node.argv for node in nodes] == [node.rank == 0 for node in nodes]


@settings(max_examples=60, deadline=None)
@given(document=plans(), data=st.data())
def test_a_new_plan_changes_only_what_changed(document: Plan, data: st.DataObject) -> None:
    """Instances that two plans share have launches that are equal byte for byte, in any order and company."""
    modes = {item.phase for item in document.instances}
    kept = data.draw(st.permutations(document.instances))[: data.draw(st.integers(1, len(document.instances)))]
    smaller = document.model_copy(update={"instances": tuple(kept)})
    # The connector is a choice for a whole model, so it is fixed here; with `auto` it may follow a change.
    engine = VllmEngine(connector="auto" if modes == {"mixed"} else "nixl-push")
    before = {pipeline.name: pipeline for pipeline in lower(document, engine).pipelines}
    after = {pipeline.name: pipeline for pipeline in lower(smaller, engine).pipelines}
    assert all(before[name] == pipeline for name, pipeline in after.items())


def test_fewer_copies_keep_the_first_ones() -> None:
    """Scaling down takes the last copies away and leaves the others as they are."""
    three = lower(plan(instance("mixed", (8, L4), count=3)), VllmEngine())
    two = lower(plan(instance("mixed", (8, L4), count=2)), VllmEngine())
    assert two.pipelines == three.pipelines[:2]


@given(st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=3))
def test_names_are_dns_labels(parts: list[str]) -> None:
    """Kubernetes and DNS refuse anything else, whatever a user calls a model."""
    label = dns_label(*parts)
    assert 1 <= len(label) <= LONGEST
    assert label[0].isalpha()
    assert label[-1].isalnum()
    assert all(c.isascii() and (c.isdigit() or c.islower() or c == "-") for c in label)
    assert dns_label(*parts) == label


def test_names_that_fold_together_stay_apart() -> None:
    """`a.b` and `a-b` are two models."""
    assert dns_label("a.b") != dns_label("a-b")
    assert dns_label("x" * 60 + "1") != dns_label("x" * 60 + "2")


def test_bad_choices_are_refused() -> None:
    """An unknown connector, one without its directory, and a plan whose parts do not fit."""
    with pytest.raises(LaunchError, match="nixl-push"):
        VllmEngine(connector="nixle")
    with pytest.raises(LaunchError, match="directory"):
        VllmEngine(connector="example")
    document = plan(instance("mixed", (8, L4)))
    stranger = instance("mixed", (8, {"1xB200": (1, 9.0)}))
    with pytest.raises(PlanError, match="1xB200"):
        lower(document.model_copy(update={"instances": (stranger,)}), VllmEngine())
    with pytest.raises(PlanError, match="prefill"):
        lower(document.model_copy(update={"instances": (instance("prefill", (8, L4)),)}), VllmEngine())


def test_mooncake_and_lmcache() -> None:
    """Mooncake decodes in a pipeline only opposite an equal split; LMCache wants equal layouts on both sides."""
    two = [(3, L4), (5, L4)]
    shapes = {
        "equal": (instance("prefill", *two), instance("decode", *two)),
        "other split": (instance("prefill", *two), instance("decode", (5, L4), (3, L4))),
        "one decode stage": (instance("prefill", *two), instance("decode", (8, L4))),
    }
    found = {}
    for connector in ("mooncake", "lmcache"):
        for name, halves in shapes.items():
            engine = VllmEngine(connector=connector, kv_server="10.0.0.1:6000")
            launch = lower(plan(*halves), engine)
            found[connector, name] = sorted({r.code for v in launch.verdicts for r in v.reasons})
            backwards = check(plan(*reversed(halves)), engine).verdicts
            assert {v.instance: v.reasons for v in backwards} == {v.instance: v.reasons for v in launch.verdicts}
            if launch.refused:
                continue
            prefill, decode = launch.pipelines
            transfer = json.loads(value_of(decode.head.argv, "--kv-transfer-config"))
            assert transfer["kv_role"] == "kv_consumer"
            if connector == "mooncake":
                ports = {node.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] for node in prefill.nodes}
                assert prefill.kv_url == f"http://{prefill.head.host}:{ports.pop()}"
                assert not ports
                assert decode.kv_url is None
                assert all("VLLM_MOONCAKE_BOOTSTRAP_PORT" not in node.env for node in decode.nodes)
            else:
                extra = {"lmcache.mp.host": "tcp://10.0.0.1", "lmcache.mp.port": 6000}
                assert transfer["kv_connector_extra_config"] == extra
    assert found == {
        ("mooncake", "equal"): [],
        ("mooncake", "other split"): ["mooncake-split"],
        ("mooncake", "one decode stage"): [],
        ("lmcache", "equal"): [],
        ("lmcache", "other split"): ["lmcache-layout"],
        ("lmcache", "one decode stage"): ["lmcache-layout"],
    }
    with pytest.raises(LaunchError, match="HOST:PORT"):
        VllmEngine(connector="lmcache", kv_server="nowhere")


def golden_launch() -> Launch:
    engine = VllmEngine(virtual_nodes=True, interface="eth0", model_paths={"tiny": "/models/tiny"})
    return lower(golden_plan(), engine)


def test_golden_launch() -> None:
    """The whole launch as one file, so that any change of a flag shows in review (regenerate: see the file's name)."""
    text = json.dumps(golden_launch().to_document(), indent=1) + "\n"
    assert text == (GOLDEN / "launch.json").read_text()
