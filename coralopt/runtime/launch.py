"""What a plan becomes: launches, plain data that every target renders and the local launcher starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coralopt.errors import LaunchError
from coralopt.routing import Routing
from coralopt.scenario.facts.phases import Phase, RequestClass
from coralopt.types import JsonObject


@dataclass(frozen=True)
class EngineReason:
    """Why an engine cannot run an instance, or what is worth knowing about how it runs it.

    Attributes:
        code: Short and stable, for example ``"intra-stage-dp"``; docs/runtime.md lists them.
        text: The same in a sentence, with the values found and what to do.
    """

    code: str
    text: str


@dataclass(frozen=True)
class Slice:
    """GPUs of one node that hold consecutive layers: one rank group of a pipeline, started by one process.

    Attributes:
        first_layer: First layer held, from 0.
        last_layer: Last layer held, inclusive.
        configuration: The node's configuration, ``"4xL40S"``.
        instance_type: The cloud's instance type, or ``None``.
        machine: Which node of the pipeline this is, from 0; slices of one node share it.
        gpus: Device indices on that node.
    """

    first_layer: int
    last_layer: int
    configuration: str
    instance_type: str | None
    machine: int
    gpus: tuple[int, ...]

    @property
    def layers(self) -> int:
        return self.last_layer - self.first_layer + 1


@dataclass(frozen=True)
class Pipeline:
    """One engine-level server: slices in pipeline order, together holding every layer once.

    Attributes:
        slices: In pipeline order.
        tokens_s: Its share of T(tau) in tokens/s, the router's weight.
        resident: Requests that are inside it at once when it runs at that throughput.
        batched_tokens: Tokens of one micro-batch behind that throughput.
        connector: How KV caches move from prefill to decode; ``None`` for mixed serving.
        memory_share: Share of the GPUs' memory for this engine where others run on them, too; else ``None``.
        swapped: Whether its weights leave the GPUs for those of others and come back.
    """

    slices: tuple[Slice, ...]
    tokens_s: float
    resident: int
    batched_tokens: int
    connector: str | None = None
    memory_share: float | None = None
    swapped: bool = False

    @property
    def machines(self) -> int:
        return max(part.machine for part in self.slices) + 1

    @property
    def layer_counts(self) -> tuple[int, ...]:
        return tuple(part.layers for part in self.slices)


@dataclass(frozen=True)
class EngineVerdict:
    """Whether an engine runs a planned instance as planned.

    Attributes:
        instance: Name of the planned instance.
        reasons: Why not; empty when it runs.
        remarks: What is worth knowing when it does.
        pipelines: What one serving instance becomes; several when equal data-parallel stages were unzipped.
    """

    instance: str
    reasons: tuple[EngineReason, ...] = ()
    remarks: tuple[EngineReason, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()

    @property
    def runs(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class NodeLaunch:
    """One process to start on one node.

    Attributes:
        name: Unique and stable over re-plans; a DNS label.
        machine: Name of the node it runs on; shared by the slices of one node.
        host: Address under which the others reach it.
        region: Region name.
        configuration: Node configuration, ``"4xL40S"``.
        instance_type: The cloud's instance type, or ``None``.
        gpu: GPU type, ``"L40S"``.
        vendor: Whose drivers that needs.
        gpus: Device indices on the node.
        rank: Position in the pipeline; 0 is the head, the only one that serves HTTP.
        first_layer: First layer held, from 0.
        last_layer: Last layer held, inclusive.
        argv: Program and arguments, never a shell string.
        env: Environment variables beside the inherited ones.
        own_address: Variables that must hold this node's own IP address; the target fills them in.
        ports: Every TCP port it listens on, by use.
        mig: MIG profile where the GPU is a slice of that type; empty otherwise.
    """

    name: str
    machine: str
    host: str
    region: str
    configuration: str
    instance_type: str | None
    gpu: str
    vendor: Literal["nvidia", "amd"]
    gpus: tuple[int, ...]
    rank: int
    first_layer: int
    last_layer: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    own_address: tuple[str, ...]
    ports: Mapping[str, int]
    mig: str = ""


@dataclass(frozen=True)
class PipelineLaunch:
    """The processes of one pipeline, head first.

    Attributes:
        name: Unique and stable over re-plans; a DNS label of at most 48 characters.
        instance: Name of the planned instance it belongs to.
        model: Model name that requests use, or that of a variant.
        phase: ``"prefill"``, ``"decode"`` or ``"mixed"``.
        region: Region name.
        tokens_s: Router weight, tokens/s.
        max_in_flight: Requests the router hands it at once.
        connector: How KV caches move, see :class:`Pipeline`.
        health_path: Path that answers 200 when it serves.
        drain_s: Seconds that requests in flight are given when it stops.
        nodes: The processes.
        decode_regions: Where its KV caches may go; ``None`` where the plan does not say.
        classes: Class of requests -> tokens/s that are planned of it; empty where there are none.
        sharing: How it shares the GPUs of its only node, where more than the driver is needed for that.
    """

    name: str
    instance: str
    model: str
    phase: Phase
    region: str
    tokens_s: float
    max_in_flight: int
    connector: str | None
    health_path: str
    drain_s: int
    nodes: tuple[NodeLaunch, ...]
    decode_regions: tuple[str, ...] | None = None
    classes: Mapping[str, float] = field(default_factory=dict)
    sharing: Literal["slices", "swapping"] | None = None

    @property
    def head(self) -> NodeLaunch:
        return self.nodes[0]

    @property
    def machines(self) -> dict[str, list[NodeLaunch]]:
        """The processes by the name of their machine."""
        return {
            name: [node for node in self.nodes if node.machine == name]
            for name in dict.fromkeys(node.machine for node in self.nodes)
        }

    @property
    def url(self) -> str:
        """Base URL of its OpenAI API, without a trailing slash."""
        return self._at("http")

    @property
    def kv_url(self) -> str | None:
        """Base URL under which the head says where its KV caches are; ``None`` for connectors that need none."""
        return self._at("kv") if self.connector == "MooncakeConnector" and self.phase == "prefill" else None

    def _at(self, use: str) -> str:
        host = f"[{self.head.host}]" if ":" in self.head.host else self.head.host
        return f"http://{host}:{self.head.ports[use]}"


@dataclass(frozen=True)
class Launch:
    """Everything to start for one plan.

    Attributes:
        engine: Name of the engine.
        pipelines: In the order of the plan.
        verdicts: One an instance of the plan, in its order; instances that do not run have no pipelines here.
        routing: How the router chooses an instance.
        mixed_share: Model or variant in mode auto -> share of its requests that goes to its mixed instances.
        variants: Model, as requests say it -> model of its pipelines -> share of the requests.
        prefix_hits: Whether the plan counts on prompts found in KV caches, so that those that begin alike go together.
        classes: Model, as requests say it -> the classes of its requests; empty where it has none.
        adapters: LoRA adapter, as requests say it -> model whose servers hold it.
    """

    engine: str
    pipelines: tuple[PipelineLaunch, ...]
    verdicts: tuple[EngineVerdict, ...] = field(default=())
    routing: Routing = "weighted-round-robin"
    mixed_share: Mapping[str, float] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    prefix_hits: bool = False
    classes: Mapping[str, tuple[RequestClass, ...]] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[NodeLaunch, ...]:
        return tuple(node for pipeline in self.pipelines for node in pipeline.nodes)

    @property
    def machines(self) -> dict[str, list[PipelineLaunch]]:
        """The pipelines by the name of a machine that they run on."""
        by_machine: dict[str, list[PipelineLaunch]] = {}
        for pipeline in self.pipelines:
            for name in pipeline.machines:
                by_machine.setdefault(name, []).append(pipeline)
        return by_machine

    def require_own_machines(self, what: str) -> None:
        """Stop where servers of several models share a machine.

        Args:
            what: Why that cannot be: the end of a sentence about each.

        Raises:
            LaunchError: Names each server that does, and those it shares with.
        """
        lines = [
            f"  - {pipeline.name}: shares {name} with {', '.join(other.name for other in sharing if other is not pipeline)}"
            for name, sharing in self.machines.items()
            for pipeline in sharing
            if len(sharing) > 1
        ]
        if lines:
            raise LaunchError(
                "\n".join([f"{len(lines)} servers share their GPUs, but {what}; use target shell:", *lines])
            )

    def require_no_help(self, what: str) -> None:
        """Stop where GPUs have to be divided, or weights taken to and fro, for servers that share them.

        Raises:
            LaunchError: Names each such server, with ``what`` does not do it.
        """
        wrong = [f"  - {pipeline.name}: {pipeline.sharing}" for pipeline in self.pipelines if pipeline.sharing]
        if wrong:
            text = f"{len(wrong)} servers share GPUs in ways that {what} does not set up; use launch render --target shell:"
            raise LaunchError("\n".join([text, *wrong]))

    @property
    def refused(self) -> tuple[EngineVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if not verdict.runs)

    def require_runnable(self, partial: bool, hint: str = "") -> None:
        """Stop where the engine does not run the plan.

        Args:
            partial: Whether it is enough that something of it runs.
            hint: End of the message.

        Raises:
            LaunchError: It runs not every instance, or with ``partial`` not one; names each with its reasons.
        """
        if self.refused and not (partial and self.pipelines):
            lines = [f"  - {v.instance}: {reason.code}: {reason.text}" for v in self.refused for reason in v.reasons]
            count = f"{len(self.refused)} of {len(self.verdicts)}"
            raise LaunchError("\n".join([f"{self.engine} cannot run {count} instances of this plan:", *lines]) + hint)

    def to_document(self) -> JsonObject:
        """The launch as plain JSON data."""
        return {
            "format": "coralopt-launch",
            "version": 1,
            "engine": self.engine,
            "pipelines": [{**_facts(pipeline), "url": pipeline.url} for pipeline in self.pipelines],
            "instances": [
                {
                    "instance": verdict.instance,
                    "runs": verdict.runs,
                    "reasons": [vars(reason) for reason in verdict.reasons],
                    "remarks": [vars(remark) for remark in verdict.remarks],
                }
                for verdict in self.verdicts
            ],
        }


def _facts(pipeline: PipelineLaunch) -> JsonObject:
    """All of a pipeline; classes of requests, and how it shares its GPUs, where there is any of that."""
    rare = ("classes", "sharing")
    return {name: value for name, value in dataclasses.asdict(pipeline).items() if name not in rare or value}
