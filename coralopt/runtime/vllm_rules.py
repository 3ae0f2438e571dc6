"""Which planned instances stock vLLM executes, and how: the rules of docs/runtime.md.

Checked against vLLM 0.32.0; a rule names what vLLM checks itself where it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coralopt.catalog.mig import sliced
from coralopt.catalog.types import GIB, NO_BF16, NodeConfiguration
from coralopt.errors import PlanError
from coralopt.plan import Plan, PlannedInstance, PlannedNode, PlannedShare
from coralopt.runtime.launch import EngineReason, EngineVerdict, Pipeline, Slice
from coralopt.runtime.unzip import unzip
from coralopt.scenario.facts.phases import ModelPhase, Phase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput import heads_fit, stage_role
from coralopt.throughput.nodes import MEMORY_SHARE, cache_bytes, free_bytes

#: Connectors by the names of the option, as vLLM's registry calls them.
CONNECTORS = {
    "nixl": "NixlConnector",
    "nixl-push": "NixlPushConnector",
    "mooncake": "MooncakeConnector",
    "lmcache": "LMCacheMPConnector",
    "example": "ExampleConnector",
}
#: Connectors whose rules are read from vLLM's code, with no transfer seen to work here.
UNSEEN = {
    "mooncake": "no transfer over Mooncake was seen to work here: its engine needs a GPU; rules from vLLM 0.32's code",
    "lmcache": "needs an LMCache server on every node, with storage that they share; coralopt starts none",
}
#: The other side of a transfer.
OTHER: Mapping[Phase, Phase] = {"prefill": "decode", "decode": "prefill"}

Configurations = Mapping[str, NodeConfiguration]


@dataclass(frozen=True)
class Rules:
    """The choices that the rules depend on; see :class:`coralopt.runtime.VllmEngine`."""

    connector: str
    virtual_nodes: bool
    memory_share: float
    checkpoints: Container[str]


def judge(plan: Plan, scenario: ResolvedScenario, rules: Rules) -> tuple[EngineVerdict, ...]:
    """A verdict for every instance of the plan, in its order."""
    phases = {phase.key: phase for phase in scenario.model_phases}
    configurations = {configuration.name: configuration for configuration in scenario.configurations}
    verdicts: list[EngineVerdict] = []
    for instance in plan.instances:
        phase = phases.get(instance.key)
        unknown = sorted(set(instance.nodes()) - set(configurations))
        if phase is None or unknown:
            what = f"model phase {instance.key}" if phase is None else f"configuration {unknown[0]}"
            raise PlanError(f"{instance.name}: the plan's scenario has no {what}; make the plan again")
        held = [layer for stage in instance.stages for layer in (stage.first_layer, stage.last_layer + 1)]
        if [0, *held[1::2]] != [*held[0::2], phase.model.layers] or any(stage.layers < 1 for stage in instance.stages):
            text = f"{instance.name}: its stages do not hold the {phase.model.layers} layers of {phase.model.name} in order"
            raise PlanError(f"{text}; make the plan again")
        verdicts.append(_judge_alone(instance, phase, configurations, rules))
    vendors = _vendors(plan, configurations)
    pairs = list(zip(plan.instances, verdicts, strict=True))
    verdicts = [
        _connected(instance, verdict, [pair for pair in pairs if pair[0].model == instance.model], rules)
        for instance, verdict in pairs
    ]
    verdicts = [
        _verdict(v.instance, [*v.reasons, *_one_vendor(i, vendors)], list(v.remarks), v.pipelines)
        for i, v in zip(plan.instances, verdicts, strict=True)
    ]
    running = {(i.model, i.phase) for i, verdict in zip(plan.instances, verdicts, strict=True) if verdict.runs}
    return tuple(
        _with_other_half(instance, verdict, running) for instance, verdict in zip(plan.instances, verdicts, strict=True)
    )


def _vendors(plan: Plan, configurations: Configurations) -> dict[str, set[str]]:
    """Model -> vendors of the GPUs of its prefill and decode instances."""
    vendors: dict[str, set[str]] = {}
    for instance in plan.instances:
        if instance.phase in OTHER:
            vendors.setdefault(instance.model, set()).update(configurations[n].gpu.vendor for n in instance.nodes())
    return vendors


def _one_vendor(instance: PlannedInstance, vendors: Mapping[str, set[str]]) -> Iterator[EngineReason]:
    """Each prefill instance may hand its caches to any decode instance of its model."""
    both = sorted(vendors.get(instance.model, ()))
    if instance.phase in OTHER and len(both) > 1:
        text = f"prefill and decode instances of {instance.model} have GPUs of {_list(both)}"
        yield EngineReason("kv-vendors", f"{text}; KV caches do not pass between them")


def _judge_alone(
    instance: PlannedInstance, phase: ModelPhase, configurations: Configurations, rules: Rules
) -> EngineVerdict:
    reasons: list[EngineReason] = []
    remarks: list[EngineReason] = []
    pipelines: list[Pipeline] = []

    def gpus(node: PlannedNode) -> int:
        return configurations[node.configuration].count

    part = instance.shared
    if part is not None and part.slice is not None:
        configurations = {name: sliced(configurations[name], part.slice) for name in instance.nodes()}
    kinds = [configurations[name].gpu for name in instance.nodes()]
    old = {gpu.name for gpu in kinds if gpu.architecture in NO_BF16}
    # All checkpoints here compute in BF16.
    unfit = [EngineReason("no-bf16", f"{_list(sorted(old))} has no BF16, which vLLM refuses there")] if old else []
    model = phase.model
    # vLLM makes FP8 weights out of 16-bit ones while it loads them, and no other format.
    loads = model.published_format is None or (model.published_format, model.weight_format) == ("bf16", "fp8")
    if not loads and model.name not in rules.checkpoints:
        text = f"{model.hf_id} has {model.published_format} weights; name a checkpoint in {model.weight_format} (hf_id)"
        unfit.append(EngineReason("no-checkpoint", text))
    columns = unzip(instance, gpus) or (unzip(instance) if rules.virtual_nodes else None)
    if columns is None:
        return EngineVerdict(instance.name, (_no_columns(instance, gpus), *unfit))
    for nodes in columns:
        degrees = [gpus(node) for node in nodes]
        degree, ragged = math.gcd(*degrees), len(set(degrees)) > 1
        if ragged and not rules.virtual_nodes:
            reasons.append(_ragged(degrees))
            continue
        slices = _slices(instance, nodes, degree, configurations)
        if slices is None:
            text = f"a node of {max(degrees)} GPUs in parts of {degree} leaves a part no layer"
            reasons.append(EngineReason("stage-too-thin", text))
            continue
        if ragged:
            text = (
                f"nodes with {_list(sorted(set(degrees)))} GPUs run as parts of {degree} GPU(s), one after the other "
            )
            text += "in the pipeline; the plan's tokens/s are for tensor parallelism over whole nodes"
            remarks.append(EngineReason("virtual-nodes", text))
        pipeline = _pipeline(slices, nodes, phase)
        if part is not None:
            pipeline, remark = _shared(pipeline, part, rules)
            remarks.append(remark)
        reasons += _heads(degree, phase)
        reasons += _memory(pipeline, phase, configurations, rules)
        if len(slices) > 1 and len({node.batch for node in nodes}) > 1:
            text = f"the stages are planned with micro-batches of {_list(node.batch for node in nodes)} sequences; "
            remarks.append(EngineReason("common-batch", text + "vLLM sends one micro-batch through all stages"))
        pipelines.append(pipeline)
    reasons += unfit
    if len(columns) > 1 and not reasons:
        remarks.append(EngineReason("unzipped", f"runs as {len(columns)} pipelines side by side, without loss"))
    if len(vendors := sorted({gpu.vendor for gpu in kinds})) > 1:
        reasons.append(
            EngineReason("mixed-vendors", f"GPUs of {_list(vendors)} in one pipeline cannot talk to each other")
        )
    elif len(names := sorted({gpu.name for gpu in kinds})) > 1:
        text = (
            f"{_list(names)} in one pipeline works but is outside vLLM's own tests; use one image, one driver and one "
        )
        remarks.append(EngineReason("mixed-gpus", text + "NCCL everywhere"))
    if phase.model.adapters is not None:
        text = f"holds {len(phase.model.adapters.modules)} LoRA adapters; their step time is what the scenario says"
        if phase.phase != "mixed":
            text += ", and whether KV caches of adapters are passed on was not tried"
        remarks.append(EngineReason("lora", text))
    unsold = {node.configuration for stage in instance.stages for node in stage.nodes if node.instance_type is None}
    if unsold:
        remarks.append(EngineReason("not-for-sale", f"no instance type is known for {_list(sorted(unsold))}"))
    return _verdict(instance.name, reasons, remarks, pipelines)


def _shared(pipeline: Pipeline, part: PlannedShare, rules: Rules) -> tuple[Pipeline, EngineReason]:
    """The pipeline beside others on its GPUs, and what that takes."""
    if part.slice is not None:
        text = f"has a MIG slice {part.slice} of its GPU, which somebody must divide before: the node's script says how"
        return pipeline, EngineReason("mig-slice", text)
    share = part.memory_share * rules.memory_share / MEMORY_SHARE
    pipeline = replace(pipeline, memory_share=share, swapped=part.swap_ms is not None)
    if pipeline.swapped:
        text = "its weights leave the GPUs for those of other engines: the node's script wakes one after the other "
        text += "(vLLM's sleep mode), whose host memory must hold all of them; no GPU was here to try it on"
        return pipeline, EngineReason("swapped-weights", text)
    text = f"shares its GPUs with other engines and takes {share:.1%} of their memory; "
    text += "such servers start one after the other, and the driver, not vLLM, lets their steps take turns"
    return pipeline, EngineReason("shared-gpu", text)


def _verdict(
    name: str, reasons: list[EngineReason], remarks: list[EngineReason], pipelines: Iterable[Pipeline]
) -> EngineVerdict:
    """Each reason and remark once; pipelines where there is no reason against them."""
    return EngineVerdict(
        name, tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(remarks)), () if reasons else tuple(pipelines)
    )


def _no_columns(instance: PlannedInstance, gpus: Callable[[PlannedNode], int]) -> EngineReason:
    counts = [sum(node.count for node in stage.nodes) for stage in instance.stages]
    if max(counts) == 1:
        return _ragged([gpus(stage.nodes[0]) for stage in instance.stages])
    what = (
        f"its stages have {_list(counts)} nodes"
        if len(set(counts)) > 1
        else f"its {counts[0]} nodes a stage cannot be matched into {counts[0]} pipelines of equal TP without loss"
    )
    text = f"{what}; vLLM has no data parallelism inside a stage. It needs a runtime like the paper's"
    return EngineReason("intra-stage-dp", text)


def _ragged(degrees: list[int]) -> EngineReason:
    text = f"its stages have {_list(degrees)} GPUs; vLLM wants one tensor-parallel degree for all stages "
    return EngineReason("ragged-tp", text + "(virtual nodes run it at another throughput than planned)")


def _slices(
    instance: PlannedInstance, nodes: tuple[PlannedNode, ...], degree: int, configurations: Configurations
) -> tuple[Slice, ...] | None:
    """Every node cut into parts of ``degree`` GPUs, its layers spread evenly over them."""
    slices: list[Slice] = []
    for machine, (stage, node) in enumerate(zip(instance.stages, nodes, strict=True)):
        parts = configurations[node.configuration].count // degree
        first = stage.first_layer
        for part in range(parts):
            layers = stage.layers // parts + (part < stage.layers % parts)
            if layers == 0:
                return None
            devices = tuple(range(part * degree, (part + 1) * degree))
            last = first + layers - 1
            slices.append(Slice(first, last, node.configuration, node.instance_type, machine, devices))
            first = last + 1
    return tuple(slices)


def _pipeline(slices: tuple[Slice, ...], nodes: tuple[PlannedNode, ...], phase: ModelPhase) -> Pipeline:
    """With the sequences inside at planned throughput (rate times the longest stay, Little's law) and their tokens."""
    tokens_s, batch = min(node.tokens_s for node in nodes), min(node.batch for node in nodes)
    prompt, _ = _lengths(phase)
    resident = nodes[0].batch
    if len(nodes) > 1:
        each = prompt if phase.phase == "prefill" else 1.0
        resident = max(1, math.ceil(tokens_s / each * phase.slo_ms / 1e3 * (1 - 1e-9)))
    tokens = {"prefill": math.ceil(batch * prompt), "decode": batch, "mixed": phase.serving.step_tokens}[phase.phase]
    return Pipeline(slices, tokens_s, resident, tokens)


def _lengths(phase: ModelPhase) -> tuple[float, float]:
    """Mean tokens of prompts and answers, at least one."""
    return max(phase.mean_input_tokens, 1.0), max(phase.mean_output_tokens, 1.0)


def _heads(degree: int, phase: ModelPhase) -> Iterator[EngineReason]:
    model = phase.model
    if not heads_fit(model, degree):
        text = f"{model.heads} query and {model.kv_heads} KV heads cannot be dealt out to {degree} GPUs"
        yield EngineReason("tp-heads", text)


def _memory(
    pipeline: Pipeline, phase: ModelPhase, configurations: Configurations, rules: Rules
) -> Iterator[EngineReason]:
    """vLLM gives every stage as many KV blocks as the stage with the least room has (kv_cache_utils)."""
    model, needed = phase.model, pipeline.resident
    prompt, answer = _lengths(phase)
    context = prompt if phase.phase == "prefill" else prompt + answer / 2
    count = len(pipeline.slices)
    rooms = []
    for position, part in enumerate(pipeline.slices):
        whole = configurations[part.configuration]
        node = replace(whole, name=f"{len(part.gpus)}x{whole.gpu.name}", count=len(part.gpus))
        room = float(free_bytes(phase, node, stage_role(position, count), count)[part.layers])
        share = rules.memory_share if pipeline.memory_share is None else pipeline.memory_share
        room += (share - MEMORY_SHARE) * node.memory_gib * GIB
        rooms.append(room / (cache_bytes(model, node, context) * part.layers))
    fewest = min(rooms)
    if fewest < needed * (1 - 1e-6) and math.floor(fewest + 1e-6) < needed:
        worst = rooms.index(fewest)
        part = pipeline.slices[worst]
        yield EngineReason(
            "kv-min-stage",
            f"stage {worst + 1} ({part.configuration}, {part.layers} layers) has KV room for {max(fewest, 0):.1f} "
            f"sequences, the planned throughput keeps {needed}; vLLM gives every stage the room of the worst one",
        )


def _with_other_half(
    instance: PlannedInstance, verdict: EngineVerdict, running: set[tuple[str, Phase]]
) -> EngineVerdict:
    """A prefill instance serves nobody when no decode instance of its model runs, and the other way round."""
    other = OTHER.get(instance.phase)
    if not verdict.runs or other is None or (instance.model, other) in running:
        return verdict
    remark = EngineReason("half-missing", f"no {other} instance of {instance.model} runs, so it serves no request")
    return replace(verdict, remarks=(*verdict.remarks, remark))


def _connected(
    instance: PlannedInstance,
    verdict: EngineVerdict,
    members: list[tuple[PlannedInstance, EngineVerdict]],
    rules: Rules,
) -> EngineVerdict:
    """With the one connector for both sides of a model, and the limits it sets on pipelines.

    Args:
        instance: The instance.
        verdict: On it alone.
        members: All instances of its model, with the verdicts on each alone.
        rules: Choices.
    """
    if instance.phase not in OTHER:
        return verdict
    chosen = rules.connector
    if chosen == "auto":
        prefills = [pipeline for item, v in members if item.phase == "prefill" for pipeline in v.pipelines]
        chosen = "nixl-push" if any(len(pipeline.slices) > 1 for pipeline in prefills) else "nixl"
    regions = {phase: sorted({item.region for item, _ in members if item.phase == phase}) for phase in OTHER}
    others = [pipeline for item, v in members if item.phase == OTHER[instance.phase] for pipeline in v.pipelines]
    reasons = [*verdict.reasons, *_meets(chosen, rules, instance, verdict)]
    reasons += _layouts(chosen, instance.phase, verdict.pipelines, others)
    remarks = list(verdict.remarks)
    if not reasons:
        if chosen in UNSEEN:
            remarks.append(EngineReason(f"{chosen}-unseen", UNSEEN[chosen]))
        if all(regions.values()) and regions["prefill"] != regions["decode"]:
            text = f"prefill runs in {_list(regions['prefill'])} and decode in {_list(regions['decode'])}; "
            remarks.append(EngineReason("cross-region-kv", text + "KV caches cross regions"))
        if chosen == "nixl-push":
            text = "a pipelined prefill side pushes KV caches; new in vLLM, validated narrowly"
            remarks.append(EngineReason("push-experimental", text))
    pipelines = [replace(pipeline, connector=CONNECTORS[chosen]) for pipeline in verdict.pipelines]
    return _verdict(instance.name, reasons, remarks, pipelines)


def _meets(chosen: str, rules: Rules, instance: PlannedInstance, verdict: EngineVerdict) -> Iterator[EngineReason]:
    """What a connector asks of one side of a transfer."""
    # An instance refused already has no pipelines; its stages still show what its connector would meet.
    slices = max((len(p.slices) for p in verdict.pipelines), default=len(instance.stages))
    degree = max((len(part.gpus) for p in verdict.pipelines for part in p.slices), default=1)
    if chosen.startswith("nixl") and instance.phase == "decode" and slices > 1:
        yield EngineReason(
            "decode-pp-with-nixl",
            f"{slices} pipeline stages on the decode side; NIXL delivers KV caches to one stage only. "
            "Plan this model in mode `mixed`, or with decode instances of one node",
        )
    if rules.connector == "nixl" and instance.phase == "prefill" and slices > 1:
        yield EngineReason(
            "prefill-pp-with-nixl-pull",
            f"{slices} pipeline stages on the prefill side; NixlConnector reads from one stage only. "
            "Use the connector nixl-push",
        )
    if chosen == "example" and degree > 1:
        text = f"ExampleConnector keeps one file a layer; {degree} GPUs would collide"
        yield EngineReason("example-connector-tp", text)


def _layouts(chosen: str, phase: str, mine: Sequence[Pipeline], others: Sequence[Pipeline]) -> Iterator[EngineReason]:
    """What a connector asks of both sides of a transfer together."""
    if chosen == "mooncake" and phase == "decode":
        for pipeline in mine:
            counts = pipeline.layer_counts
            if len(counts) > 1 and any(other.layer_counts != counts for other in others):
                yield EngineReason(
                    "mooncake-split",
                    f"decode stages hold {_list(counts)} layers and prefill stages others; Mooncake pairs stages of equal "
                    "pipelines only, or delivers to one stage",
                )
                return
    if chosen == "lmcache":
        layouts = {(len(p.slices), len(p.slices[0].gpus), p.layer_counts) for p in (*mine, *others)}
        if len(layouts) > 1:
            yield EngineReason(
                "lmcache-layout",
                "LMCache keeps caches by parallel layout; prefill and decode instances must have equal stages and GPUs",
            )


def _list(items: Iterable[object]) -> str:
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
