"""Which planned instances stock vLLM executes, and how: the rules of docs/concepts/runtime.md, one function a rule.

Checked against vLLM 0.32.0; a rule names what vLLM checks itself where it does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coralopt.catalog.types import GIB, NodeConfiguration
from coralopt.errors import PlanError
from coralopt.plan import Plan, PlannedInstance, PlannedNode
from coralopt.runtime.launch import Pipeline, Reason, Slice, Verdict
from coralopt.runtime.unzip import unzip
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario
from coralopt.throughput import NO_BF16, heads_fit, stage_role
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


@dataclass(frozen=True)
class Rules:
    """The choices that the rules depend on; see :class:`coralopt.runtime.VllmEngine`."""

    connector: str
    virtual_nodes: bool
    memory_share: float


def judge(plan: Plan, scenario: ResolvedScenario, rules: Rules) -> tuple[Verdict, ...]:
    """A verdict for every instance of the plan, in its order."""
    phases = {phase.key: phase for phase in scenario.model_phases}
    configurations = {configuration.name: configuration for configuration in scenario.configurations}
    verdicts: list[Verdict] = []
    for instance in plan.instances:
        phase = phases.get(f"{instance.model}/{instance.phase}")
        unknown = sorted(set(instance.nodes()) - set(configurations))
        if phase is None or unknown:
            what = f"model phase {instance.model}/{instance.phase}" if phase is None else f"configuration {unknown[0]}"
            raise PlanError(f"{instance.name}: the plan's scenario has no {what}; make the plan again")
        verdicts.append(_judge_alone(instance, phase, configurations, rules))
    for model in dict.fromkeys(instance.model for instance in plan.instances):
        members = [n for n, instance in enumerate(plan.instances) if instance.model == model]
        if any(plan.instances[n].phase != "mixed" for n in members):
            for n, verdict in _connect(plan, members, verdicts, rules):
                verdicts[n] = verdict
    for n, verdict in list(_halves(plan, verdicts)):
        verdicts[n] = verdict
    return tuple(verdicts)


def _judge_alone(
    instance: PlannedInstance, phase: ModelPhase, configurations: dict[str, NodeConfiguration], rules: Rules
) -> Verdict:
    reasons: list[Reason] = []
    remarks: list[Reason] = []

    def gpus(node: PlannedNode) -> int:
        return configurations[node.configuration].count

    columns = unzip(instance, gpus) or (unzip(instance) if rules.virtual_nodes else None)
    if columns is None:
        reasons.append(_no_columns(instance, gpus))
        return Verdict(instance.name, (*reasons, *_numbers(instance, configurations)), ())
    pipelines = []
    for nodes in columns:
        degrees = [gpus(node) for node in nodes]
        degree = degrees[0] if len(set(degrees)) == 1 else math.gcd(*degrees)
        if len(set(degrees)) > 1 and not rules.virtual_nodes:
            reasons.append(_ragged(instance, nodes, degrees))
            continue
        slices = _slices(instance, nodes, degree, configurations)
        if slices is None:
            reasons.append(
                Reason("stage-too-thin", f"a node of {max(degrees)} GPUs in parts of {degree} leaves a part no layer")
            )
            continue
        if len(set(degrees)) > 1:
            remarks.append(
                Reason(
                    "virtual-nodes",
                    f"nodes with {_list(sorted(set(degrees)))} GPUs run as parts of {degree} GPU(s), one after the "
                    f"other in the pipeline; the plan's tokens/s are for tensor parallelism over whole nodes",
                )
            )
        tokens_s = min(node.tokens_s for node in nodes)
        resident = _resident(instance, nodes, tokens_s, phase)
        batch = min(node.batch for node in nodes)
        pipeline = Pipeline(slices, tokens_s, resident, _batched_tokens(phase, batch))
        reasons += _heads(degree, phase)
        reasons += _memory(pipeline, phase, configurations, rules, needed=resident)
        if len(slices) > 1 and len({node.batch for node in nodes}) > 1:
            remarks.append(
                Reason(
                    "common-batch",
                    f"the stages are planned with micro-batches of {_list(node.batch for node in nodes)} sequences; "
                    f"vLLM sends one micro-batch through all stages",
                )
            )
        pipelines.append(pipeline)
    reasons += _numbers(instance, configurations)
    if len(columns) > 1 and not reasons:
        remarks.append(Reason("unzipped", f"runs as {len(columns)} pipelines side by side, without loss"))
    kinds = {configurations[name].gpu.name for name in instance.nodes()}
    if len(kinds) > 1:
        remarks.append(
            Reason(
                "mixed-gpus",
                f"{_list(sorted(kinds))} in one pipeline works but is outside vLLM's own tests; use one image, "
                "one driver and one NCCL everywhere",
            )
        )
    if any(node.instance_type is None for stage in instance.stages for node in stage.nodes):
        sold = {n.configuration for stage in instance.stages for n in stage.nodes if n.instance_type is None}
        remarks.append(Reason("not-for-sale", f"no instance type is known for {_list(sorted(sold))}"))
    return Verdict(
        instance.name, tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(remarks)), () if reasons else tuple(pipelines)
    )


def _no_columns(instance: PlannedInstance, gpus: object) -> Reason:
    counts = [sum(node.count for node in stage.nodes) for stage in instance.stages]
    if max(counts) == 1:
        assert callable(gpus)
        nodes = [stage.nodes[0] for stage in instance.stages]
        return _ragged(instance, tuple(nodes), [gpus(node) for node in nodes])
    what = (
        f"its stages have {_list(counts)} nodes"
        if len(set(counts)) > 1
        else f"its {counts[0]} nodes a stage cannot be matched into {counts[0]} pipelines of equal TP without loss"
    )
    return Reason(
        "intra-stage-dp",
        f"{what}; vLLM has no data parallelism inside a stage. It needs a runtime like the paper's",
    )


def _ragged(instance: PlannedInstance, nodes: tuple[PlannedNode, ...], degrees: list[int]) -> Reason:
    return Reason(
        "ragged-tp",
        f"its stages have {_list(degrees)} GPUs; vLLM wants one tensor-parallel degree for all stages "
        "(virtual nodes run it at another throughput than planned)",
    )


def _slices(
    instance: PlannedInstance,
    nodes: tuple[PlannedNode, ...],
    degree: int,
    configurations: dict[str, NodeConfiguration],
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


def _resident(instance: PlannedInstance, nodes: tuple[PlannedNode, ...], tokens_s: float, phase: ModelPhase) -> int:
    """Sequences inside the pipeline at planned throughput: rate times the longest stay (Little's law)."""
    if len(nodes) == 1:
        return nodes[0].batch
    each = max(phase.mean_input_tokens, 1.0) if phase.phase == "prefill" else 1.0
    return max(1, math.ceil(tokens_s / each * phase.slo_ms / 1e3 * (1 - 1e-9)))


def _batched_tokens(phase: ModelPhase, batch: int) -> int:
    if phase.phase == "decode":
        return batch
    lengths = (max(phase.mean_input_tokens, 1.0), max(phase.mean_output_tokens, 1.0))
    each = lengths[0] if phase.phase == "prefill" else 1 + lengths[0] / lengths[1]
    return math.ceil(batch * each)


def _heads(degree: int, phase: ModelPhase) -> Iterator[Reason]:
    model = phase.model
    if not heads_fit(model, degree):
        yield Reason(
            "tp-heads",
            f"{model.heads} query and {model.kv_heads} KV heads cannot be dealt out to {degree} GPUs",
        )


def _memory(
    pipeline: Pipeline, phase: ModelPhase, configurations: dict[str, NodeConfiguration], rules: Rules, needed: int
) -> Iterator[Reason]:
    """vLLM gives every stage as many KV blocks as the stage with the least room has (kv_cache_utils)."""
    model = phase.model
    lengths = max(phase.mean_input_tokens, 1.0), max(phase.mean_output_tokens, 1.0)
    context = lengths[0] if phase.phase == "prefill" else lengths[0] + lengths[1] / 2
    count = len(pipeline.slices)
    worst, fewest = 0, math.inf
    for position, part in enumerate(pipeline.slices):
        whole = configurations[part.configuration]
        node = dataclasses.replace(whole, name=f"{len(part.gpus)}x{whole.gpu.name}", count=len(part.gpus))
        room = float(free_bytes(model, node, stage_role(position, count), count)[part.layers])
        room += (rules.memory_share - MEMORY_SHARE) * node.memory_gib * GIB
        sequences = room / (cache_bytes(model, node, context) * part.layers)
        if sequences < fewest:
            worst, fewest = position, sequences
    if fewest < needed * (1 - 1e-6) and math.floor(fewest + 1e-6) < needed:
        part = pipeline.slices[worst]
        yield Reason(
            "kv-min-stage",
            f"stage {worst + 1} ({part.configuration}, {part.layers} layers) has KV room for {max(fewest, 0):.1f} "
            f"sequences, the planned throughput keeps {needed}; vLLM gives every stage the room of the worst one",
        )


def _halves(plan: Plan, verdicts: list[Verdict]) -> Iterator[tuple[int, Verdict]]:
    """A prefill instance serves nobody when no decode instance of its model runs, and the other way round."""
    alive = {(i.model, i.phase) for i, verdict in zip(plan.instances, verdicts, strict=True) if verdict.runs}
    for n, (instance, verdict) in enumerate(zip(plan.instances, verdicts, strict=True)):
        other = {"prefill": "decode", "decode": "prefill"}.get(instance.phase)
        if verdict.runs and other and (instance.model, other) not in alive:
            remark = Reason("half-missing", f"no {other} instance of {instance.model} runs, so it serves no request")
            yield n, dataclasses.replace(verdict, remarks=(*verdict.remarks, remark))


def _numbers(instance: PlannedInstance, configurations: dict[str, NodeConfiguration]) -> Iterator[Reason]:
    """All checkpoints here compute in BF16."""
    old = sorted(
        {c.gpu.name for c in map(configurations.__getitem__, instance.nodes()) if c.gpu.architecture in NO_BF16}
    )
    if old:
        yield Reason("no-bf16", f"{_list(old)} has no BF16, which vLLM refuses there")


def _connect(plan: Plan, members: list[int], verdicts: list[Verdict], rules: Rules) -> Iterator[tuple[int, Verdict]]:
    """One connector for both sides of a model, and the limits it sets on pipelines."""
    long_prefill = any(
        plan.instances[n].phase == "prefill" and any(len(p.slices) > 1 for p in verdicts[n].pipelines) for n in members
    )
    chosen = rules.connector
    if chosen == "auto":
        chosen = "nixl-push" if long_prefill else "nixl"
    regions = {
        phase: {plan.instances[n].region for n in members if plan.instances[n].phase == phase}
        for phase in ("prefill", "decode")
    }
    for n in members:
        instance, verdict = plan.instances[n], verdicts[n]
        if instance.phase == "mixed":
            continue
        reasons, remarks = list(verdict.reasons), list(verdict.remarks)
        # An instance refused already has no pipelines; its stages still show what its connector would meet.
        slices = max((len(p.slices) for p in verdict.pipelines), default=len(instance.stages))
        degree = max((len(part.gpus) for p in verdict.pipelines for part in p.slices), default=1)
        if chosen.startswith("nixl") and instance.phase == "decode" and slices > 1:
            reasons.append(
                Reason(
                    "decode-pp-with-nixl",
                    f"{slices} pipeline stages on the decode side; NIXL delivers KV caches to one stage only. "
                    "Plan this model in mode `mixed`, or with decode instances of one node",
                )
            )
        if rules.connector == "nixl" and instance.phase == "prefill" and slices > 1:
            reasons.append(
                Reason(
                    "prefill-pp-with-nixl-pull",
                    f"{slices} pipeline stages on the prefill side; NixlConnector reads from one stage only. "
                    "Use the connector nixl-push",
                )
            )
        if chosen == "example" and degree > 1:
            reasons.append(
                Reason("example-connector-tp", f"ExampleConnector keeps one file a layer; {degree} GPUs would collide")
            )
        others = [
            pipeline
            for m in members
            if plan.instances[m].phase in ("prefill", "decode") and plan.instances[m].phase != instance.phase
            for pipeline in verdicts[m].pipelines
        ]
        reasons += _layouts(chosen, instance.phase, verdict.pipelines, others)
        if chosen in UNSEEN and not reasons:
            remarks.append(Reason(f"{chosen}-unseen", UNSEEN[chosen]))
        if all(regions.values()) and regions["prefill"] != regions["decode"] and not reasons:
            remarks.append(
                Reason(
                    "cross-region-kv",
                    f"prefill runs in {_list(sorted(regions['prefill']))} and decode in "
                    f"{_list(sorted(regions['decode']))}; KV caches cross regions",
                )
            )
        if chosen == "nixl-push" and not reasons:
            remarks.append(
                Reason(
                    "push-experimental", "a pipelined prefill side pushes KV caches; new in vLLM, validated narrowly"
                )
            )
        pipelines = (
            ()
            if reasons
            else tuple(dataclasses.replace(pipeline, connector=CONNECTORS[chosen]) for pipeline in verdict.pipelines)
        )
        yield n, dataclasses.replace(verdict, reasons=tuple(reasons), remarks=tuple(remarks), pipelines=pipelines)


def _layouts(chosen: str, phase: str, mine: Sequence[Pipeline], others: Sequence[Pipeline]) -> Iterator[Reason]:
    """What a connector asks of both sides of a transfer together."""
    if chosen == "mooncake" and phase == "decode":
        for pipeline in mine:
            counts = pipeline.layer_counts
            if len(counts) > 1 and any(other.layer_counts != counts for other in others):
                yield Reason(
                    "mooncake-split",
                    f"decode stages hold {_list(counts)} layers and prefill stages others; Mooncake pairs stages of equal "
                    "pipelines only, or delivers to one stage",
                )
                return
    if chosen == "lmcache":
        layouts = {(len(p.slices), len(p.slices[0].gpus), p.layer_counts) for p in (*mine, *others)}
        if len(layouts) > 1:
            yield Reason(
                "lmcache-layout",
                "LMCache keeps caches by parallel layout; prefill and decode instances must have equal stages and GPUs",
            )


def _list(items: object) -> str:
    assert hasattr(items, "__iter__")
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
