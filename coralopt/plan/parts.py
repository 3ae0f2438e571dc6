"""Parts of a plan document: instances with their stages, and what stands beside them; checked as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from coralopt.scenario.facts.facts import SharingWay
from coralopt.scenario.file.fields import NAME_FORM, Name, Word

#: Whatever names an instance is put together from names, and so of their characters.
InstanceName = Annotated[str, Field(pattern=NAME_FORM, max_length=1000)]
#: Sizes no honest plan comes near; a document beyond them would cost whoever reads it hours and gigabytes.
MOST_INSTANCES, MOST_NODES, MOST_LAYERS = 1_000_000, 1000, 100_000
#: Instances that share a node, at most.
MOST_SHARING = 100


def _sized(value: float) -> float:
    if abs(value) > 1e18 or (isinstance(value, int) and not 0 <= value <= 1_000_000_000):
        raise ValueError("no plan has a number of this size")
    return value


#: Figures and counts of a plan: numbers, not texts that look like some, and none that no plan can have. Their limits are
#: not ``ge`` and ``le``: of two such limits of one field the wider one would win.
Figure = Annotated[float, Field(strict=True, allow_inf_nan=False), AfterValidator(_sized)]
Count = Annotated[int, Field(strict=True), AfterValidator(_sized)]


class PlanPart(BaseModel):
    """Immutable; unknown keys, NaN and Infinity are refused."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)


class PlannedNode(PlanPart):
    """Equal nodes of one stage."""

    configuration: Name = Field(description="Node configuration, for example 4xL40S.")
    instance_type: Word | None = Field(description="The cloud's instance type; null when no such instance is sold.")
    count: Count = Field(
        ge=1, le=MOST_NODES, description="How many such nodes hold this stage's layers, data parallel."
    )
    tokens_s: Figure = Field(gt=0, description="T_j(g): tokens/s one of these nodes sustains in this stage.")
    traffic_share: Figure = Field(
        gt=0, le=1, description="Share of the stage's requests that one of these nodes takes."
    )
    batch: Count = Field(ge=1, description="Sequences (prompts for prefill) in one micro-batch behind that throughput.")


class PlannedStage(PlanPart):
    """Consecutive layers and the nodes that hold them."""

    first_layer: Count = Field(ge=0, le=MOST_LAYERS, description="First layer held, from 0.")
    last_layer: Count = Field(ge=0, le=MOST_LAYERS, description="Last layer held, inclusive.")
    nodes: tuple[PlannedNode, ...] = Field(min_length=1, max_length=MOST_NODES)
    tokens_s: Figure = Field(gt=0, description="Sum of the stage's node throughputs, tokens/s.")
    latency_budget_ms: Figure | None = Field(
        default=None, gt=0, description="Longest time of a micro-batch in this stage, ms; null: SLO / number of stages."
    )

    @property
    def layers(self) -> int:
        return self.last_layer - self.first_layer + 1


class PlannedShare(PlanPart):
    """A node that several instances share, each of a model of its own; they take turns, or each has a slice."""

    group: InstanceName = Field(description="Name of the shared node: equal for all instances on it.")
    position: Count = Field(ge=0, lt=MOST_SHARING, description="Position of the instance on its node, from 0.")
    step_ms: Figure = Field(
        gt=0, description="Mean time of a step of this instance, or of its turn where weights are swapped, ms."
    )
    cycle_ms: Figure = Field(gt=0, description="Mean time until its next one begins: those of all, ms.")
    memory_share: Figure = Field(gt=0, le=1, description="Share of the GPUs' memory that its engine takes.")
    slice: str | None = Field(
        default=None, pattern=r"^[1-7]g\.[1-9][0-9]{0,2}gb$", description="MIG slice that it has."
    )
    rent_share: Figure | None = Field(
        default=None, gt=0, le=1, description="Share of the rent that its slice pays; null: step_ms over cycle_ms."
    )
    swap_ms: Figure | None = Field(
        default=None, gt=0, description="Time of its turn for weights to go and come, ms; null: they stay."
    )

    @property
    def part(self) -> Fraction:
        """Share of the node's rent that the instance pays."""
        if self.rent_share is not None:
            return Fraction(self.rent_share)
        return Fraction(self.step_ms) / Fraction(self.cycle_ms)

    @property
    def way(self) -> SharingWay:
        """How the node is shared."""
        return "slices" if self.slice is not None else "turns" if self.swap_ms is None else "swapping"


class PlannedClass(PlanPart):
    """What an instance serves of one class of its model's requests."""

    model: Name = Field(description="The class, after the name of its model.")
    tokens_s: Figure = Field(gt=0, description="Throughput of one instance that serves nothing else, tokens/s.")
    time_share: Figure = Field(gt=0, le=1, description="Share of its time that goes to this class.")


class PlannedInstance(PlanPart):
    """Equal serving instances: one serving template deployed ``count`` times in one region."""

    name: InstanceName = Field(description="Stable name: model phase, region and node set.")
    model: Name
    phase: Literal["prefill", "decode", "mixed"]
    region: Name
    count: Count = Field(ge=1, le=MOST_INSTANCES, description="Serving instances of this template in this region.")
    kept: Count = Field(ge=0, le=MOST_INSTANCES, description="How many of them run already.")
    stages: tuple[PlannedStage, ...] = Field(min_length=1, max_length=MOST_NODES)
    tokens_s: Figure = Field(gt=0, description="Throughput of one instance: that of its slowest stage, tokens/s.")
    price_usd_h: Figure = Field(
        ge=0, description="List price of one instance, USD/h; on a shared node its share of a cycle times the node's."
    )
    shared: PlannedShare | None = Field(
        default=None,
        description="Replica i shares its node with replica i of the others of this group; null: with none.",
    )
    classes: tuple[PlannedClass, ...] = Field(
        default=(), description="Classes of requests that it serves; its stages are stated for that in `model`."
    )

    @property
    def rents(self) -> bool:
        """Whether its nodes count: of those that share a node only the first."""
        return self.shared is None or self.shared.position == 0

    @property
    def key(self) -> str:
        """``"qwen3-32b/prefill"``, as :attr:`ModelPhase.key`."""
        return f"{self.model}/{self.phase}"

    def serves(self) -> dict[str, tuple[float, float]]:
        """Model phase -> tokens/s that one instance is planned to serve of it, and the share of its time that this takes."""
        if not self.classes:
            return {self.key: (self.tokens_s, 1.0)}
        return {f"{c.model}/{self.phase}": (c.time_share * c.tokens_s, c.time_share) for c in self.classes}

    def nodes(self) -> dict[str, int]:
        """Nodes of one instance by configuration."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            for node in stage.nodes:
                counts[node.configuration] = counts.get(node.configuration, 0) + node.count
        return counts


class PlannedDemand(PlanPart):
    """What one model phase needs and what the plan gives it."""

    model: Name
    phase: Literal["prefill", "decode", "mixed"]
    slo_ms: Figure
    demand_tokens_s: Figure = Field(description="In mode auto and of variants that of the requests that go this way.")
    planned_tokens_s: Figure
    cost_usd_h: Figure
    throughput_sources: dict[str, str] = Field(description="Configuration used -> where its figures come from.")
    unmet_tokens_s: Figure = Field(default=0.0, ge=0, description="Demand that the plan does not promise to serve.")
    prefix_hit: Figure = Field(
        default=0.0, ge=0, description="Share of the prompt tokens that the plan counts on finding in KV caches."
    )

    @property
    def key(self) -> str:
        """``"qwen3-32b/prefill"``, as :attr:`ModelPhase.key`."""
        return f"{self.model}/{self.phase}"


class PlannedOption(PlanPart):
    """One limit or rule that the scenario asks for, and where the plan stands."""

    option: str = Field(description="Its place in the scenario.")
    sense: Literal["most", "least"]
    unit: str = Field(description="USD/h, nodes, GPUs, instances, tokens/s, or of 1: a mean over requests.")
    asked: Figure
    planned: Figure
    binding: StrictBool = Field(
        description="most: not one more of the planned instances would fit; least: not one of them can go."
    )


class PlannedNodeClass(PlanPart):
    """Nodes of one supply class: equal nodes are taken from the cheapest class first."""

    region: Name
    configuration: Name
    node_class: str = Field(description="reserved, spot, committed or on-demand.")
    nodes: Count = Field(ge=1)
    usd_h: Figure = Field(ge=0, description="USD per node-hour, preemptions included.")


class PlannedFlow(PlanPart):
    """Requests of a model whose prefill runs in one region and whose decode runs in one, the same or another."""

    model: Name
    prefill_region: Name
    decode_region: Name
    requests_s: Figure = Field(ge=0, description="Requests/s that go this way.")
    gb_s: Figure = Field(ge=0, description="KV cache that they send, 1e9 bytes/s.")
    usd_h: Figure = Field(ge=0, description="What sending it costs, USD/h; 0 within a region.")


class PlannedMode(PlanPart):
    """How much of a model one of its ways serves, in mode auto or by variants."""

    model: Name = Field(description="Of a variant its own name, after that of the model.")
    mode: Literal["disaggregated", "mixed"]
    share: Figure = Field(
        ge=0, le=1, description="Share of the model's served requests that the router sends this way."
    )


class PlannedCase(PlanPart):
    """What one of several demands that may come leaves of a model unserved."""

    case: str
    probability: Figure = Field(gt=0, le=1)
    model: Name
    factor: Figure = Field(ge=0, description="The demand of the case over that of the scenario.")
    unmet_share: Figure = Field(ge=0, le=1, description="Share of the model's requests not served in this case.")
    unmet_usd_h: Figure = Field(ge=0, description="What they cost while the case lasts, USD/h.")


def share_of(modes: Sequence[PlannedMode], key: str) -> float:
    """Share of its model's served requests that go through a model phase: 1 where the model has one mode."""
    name, phase = key.rsplit("/", 1)
    shares = {item.mode: item.share for item in modes if item.model == name}
    return shares.get("mixed" if phase == "mixed" else "disaggregated", 0.0) if shares else 1.0


class SimulatedPhase(PlanPart):
    """What became of one model phase's requests."""

    model: str
    phase: Literal["prefill", "decode", "mixed"]
    kind: Literal["prefill", "decode"] = Field(
        description="prefill: time to first token; decode: time per output token."
    )
    requests: Count = Field(ge=1, description="Requests that went this way; the shares are shares of these.")
    attainment: Figure = Field(ge=0, le=1, description="Share of all requests that met the SLO.")
    attainment_feasible: Figure | None = Field(description="Share of those that would meet it on an idle cluster.")
    p99_ms: Figure | None = Field(description="99th percentile of the latency, ms.")
    causes: dict[str, Figure] = Field(description="Cause -> share of all requests that missed the SLO for it.")

    @property
    def key(self) -> str:
        """``"qwen3-32b/prefill"``, as :attr:`ModelPhase.key`."""
        return f"{self.model}/{self.phase}"


class Simulated(PlanPart):
    """The requests that the plan was simulated with, and what came of it; enough to repeat it."""

    kind: Literal["poisson", "dataset", "trace"] = Field(description="Generated by seed, or a trace file.")
    trace: str | None = Field(description="Name of the trace file.")
    model: str | None = Field(description="Model of every request of the trace.")
    rate: Figure | None = Field(description="Requests/s of each model; null: as demanded, or the trace's own.")
    duration_s: Figure | None = Field(description="Seconds of arrivals; null: 300, or the whole trace.")
    seed: int = Field(strict=True, ge=0)
    length_cv: Figure | None = Field(
        description="Coefficient of variation of lognormal lengths in place of the scenario's, for poisson."
    )
    requests: Count
    requests_digest: str = Field(description="SHA-256 of the requests themselves.")
    target: Figure = Field(
        gt=0, le=1, description="Share of the requests of each model phase that had to meet the SLO."
    )
    over: Literal["all", "possible"] = Field(description="Of all requests, or of those some node could serve in time.")
    passed: StrictBool
    rounds: Count = Field(ge=1, description="Plans that were made and simulated until this one was chosen.")
    phases: tuple[SimulatedPhase, ...]
