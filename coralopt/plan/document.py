"""The portable plan: what to rent and how to split each model over it, as versioned JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator

from coralopt.display import Tabular
from coralopt.errors import PlanError
from coralopt.plan.certificate import Certificate
from coralopt.plan.files import write_text
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.scenario.facts.facts import SharingWay
from coralopt.scenario.file.fields import NAME_FORM, Name, Word
from coralopt.solving.status import relative_gap

#: Bumped whenever a field changes its meaning.
VERSION: Literal[1] = 1
#: Whatever names an instance is put together from names, and so of their characters.
InstanceName = Annotated[str, Field(pattern=NAME_FORM, max_length=1000)]
#: Sizes no honest plan comes near; a document beyond them would cost whoever reads it hours and gigabytes.
MOST_INSTANCES, MOST_NODES, MOST_LAYERS = 1_000_000, 1000, 100_000
#: Fields that are off in a document whose first are named; pydantic takes seconds to gather a million.
MOST_MISTAKES = 200_000
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


class _Part(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)


class PlannedNode(_Part):
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


class PlannedStage(_Part):
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


class PlannedShare(_Part):
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


class PlannedClass(_Part):
    """What an instance serves of one class of its model's requests."""

    model: Name = Field(description="The class, after the name of its model.")
    tokens_s: Figure = Field(gt=0, description="Throughput of one instance that serves nothing else, tokens/s.")
    time_share: Figure = Field(gt=0, le=1, description="Share of its time that goes to this class.")


class PlannedInstance(_Part):
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


class PlannedDemand(_Part):
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


class PlannedOption(_Part):
    """One limit or rule that the scenario asks for, and where the plan stands."""

    option: str = Field(description="Its place in the scenario.")
    sense: Literal["most", "least"]
    unit: str = Field(description="USD/h, nodes, GPUs, instances, tokens/s, or of 1: a mean over requests.")
    asked: Figure
    planned: Figure
    binding: StrictBool = Field(
        description="most: not one more of the planned instances would fit; least: not one of them can go."
    )


class PlannedNodeClass(_Part):
    """Nodes of one supply class: equal nodes are taken from the cheapest class first."""

    region: Name
    configuration: Name
    node_class: str = Field(description="reserved, spot, committed or on-demand.")
    nodes: Count = Field(ge=1)
    usd_h: Figure = Field(ge=0, description="USD per node-hour, preemptions included.")


class PlannedFlow(_Part):
    """Requests of a model whose prefill runs in one region and whose decode runs in one, the same or another."""

    model: Name
    prefill_region: Name
    decode_region: Name
    requests_s: Figure = Field(ge=0, description="Requests/s that go this way.")
    gb_s: Figure = Field(ge=0, description="KV cache that they send, 1e9 bytes/s.")
    usd_h: Figure = Field(ge=0, description="What sending it costs, USD/h; 0 within a region.")


class PlannedMode(_Part):
    """How much of a model one of its ways serves, in mode auto or by variants."""

    model: Name = Field(description="Of a variant its own name, after that of the model.")
    mode: Literal["disaggregated", "mixed"]
    share: Figure = Field(
        ge=0, le=1, description="Share of the model's served requests that the router sends this way."
    )


class PlannedCase(_Part):
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


class SimulatedPhase(_Part):
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


class Simulated(_Part):
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
    rounds: Count = Field(ge=1, description="Plans that were made and played until this one was chosen.")
    phases: tuple[SimulatedPhase, ...]


class Plan(_Part, Tabular):
    """A plan. Money is USD/h, throughput tokens/s, time ms. Holds no wall times: equal input gives equal bytes."""

    format: Literal["coralopt-plan"] = "coralopt-plan"
    version: Literal[1] = VERSION
    planner: str
    coralopt_version: str
    solver: str
    solver_version: str
    formulation: str
    status: Literal["optimal", "feasible"] = Field(
        description="optimal (gap within the one asked for, and no unconfirmed models) or feasible."
    )
    cost_usd_h: Figure = Field(description="Provisioning, initialization, unmet demand and egress, the objective.")
    provisioning_usd_h: Figure
    initialization_usd_h: Figure
    lower_bound_usd_h: Figure = Field(description="No allocation of this library can cost less.")
    gap: Figure = Field(
        description="The larger of (cost - lower bound) / cost and, where demand was scaled, (served_factor_bound - "
        "served_factor) / served_factor_bound."
    )
    requested_gap: Figure = Field(ge=0, lt=1)
    on_infeasible: Literal["met", "scale", "shortfall"] = Field(
        default="met", description="met: all demand is; else what was done since the pool cannot meet it."
    )
    served_factor: Figure = Field(default=1.0, ge=0, le=1, description="scale: this share of every demand is served.")
    served_factor_bound: Figure = Field(default=1.0, ge=0, le=1, description="scale: no larger share can be, proven.")
    unmet_usd_h: Figure = Field(
        default=0.0, ge=0, description="Price of unmet demand, expected over cases; part of the cost."
    )
    egress_usd_h: Figure = Field(default=0.0, ge=0, description="KV caches sent between regions, part of the cost.")
    scenario_digest: str
    library_digest: str
    demands: tuple[PlannedDemand, ...]
    instances: tuple[PlannedInstance, ...]
    options: tuple[PlannedOption, ...] = ()
    node_classes: tuple[PlannedNodeClass, ...] = Field(
        default=(), description="Nodes by supply class; empty when all are on demand."
    )
    flows: tuple[PlannedFlow, ...] = Field(
        default=(), description="Where requests go from prefill to decode; empty where transfers are free."
    )
    modes: tuple[PlannedMode, ...] = Field(
        default=(), description="How models in mode auto or with variants are served; empty where all go one way."
    )
    cases: tuple[PlannedCase, ...] = Field(
        default=(), description="Demands that may come, and what each leaves unserved; empty where demand is known."
    )
    simulated: Simulated | None = Field(default=None, description="Played against requests, and how that ended.")
    certificate: Certificate | None = Field(
        default=None, description="Whether the SLOs hold for the share of requests asked for, on fresh requests."
    )
    unconfirmed: tuple[Name, ...] = Field(
        default=(),
        description="Models whose instances were not seen to serve the share of requests asked for together when the search "
        "ended; empty where all were, and for mean requests.",
    )
    scenario: dict[str, Any] = Field(description="The validated scenario, so that the plan can be checked anywhere.")

    @field_validator("scenario")
    @classmethod
    def _finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        """NaN and infinity are no JSON, so no document has them."""
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise ValueError("NaN and infinity are no values of a scenario") from error
        return value

    @cached_property
    def resolved(self) -> ResolvedScenario:
        """The scenario that the plan carries, checked and with every name looked up; made once.

        Raises:
            ScenarioError: It is not one.
        """
        return scenario_from_mapping(self.scenario, source="the plan's scenario")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Plan:
        """A copy with other fields; another scenario is looked up anew."""
        copied = super().model_copy(update=update, deep=deep)
        if update and "scenario" in update:
            copied.__dict__.pop("resolved", None)
        return copied

    def with_certificate(self, certificate: Certificate) -> Plan:
        """The plan with this certificate; what it confirms is not open any more."""
        unconfirmed = () if certificate.holds else self.unconfirmed
        optimal = self.gap <= self.requested_gap and not unconfirmed
        status = "optimal" if optimal else "feasible"
        return self.model_copy(update={"certificate": certificate, "unconfirmed": unconfirmed, "status": status})

    def rented_nodes(self) -> Counter[tuple[str, str]]:
        """(region, node configuration) -> nodes; those that several instances share count once."""
        nodes: Counter[tuple[str, str]] = Counter()
        for instance in self.instances:
            for configuration, count in instance.nodes().items() if instance.rents else ():
                nodes[instance.region, configuration] += instance.count * count
        return nodes

    def __repr__(self) -> str:
        count = sum(item.count for item in self.instances)
        nodes = self.rented_nodes().total()
        return (
            f"<Plan {self.scenario.get('name', '')}: {self.cost_usd_h:,.4f} USD/h, proven gap {self.gap * 100:.4f} %, "
            f"{count:,} instances on {nodes:,} nodes>"
        )

    __str__ = __repr__

    def to_json(self) -> str:
        """The document as text; equal plans give equal bytes."""
        data = self.model_dump(mode="json")
        # A plan that was not played says nothing about it.
        for name in ("simulated", "certificate"):
            if data[name] is None:
                del data[name]
        if not self.flows:
            # Nor does one whose transfers are free say where they go.
            del data["flows"], data["egress_usd_h"]
        for name in ("modes", "cases", "unconfirmed"):
            if not data[name]:
                del data[name]
        for demand in data["demands"]:
            if not demand["prefix_hit"]:
                del demand["prefix_hit"]
        for item in data["instances"]:
            if item["shared"] is None:
                del item["shared"]
            else:
                # Steps that take turns say nothing of slices and swapping.
                item["shared"] = {name: value for name, value in item["shared"].items() if value is not None}
            if not item["classes"]:
                del item["classes"]
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the plan to ``path``, first beside it, then renamed.

        Raises:
            PlanError: The file cannot be written.
        """
        write_text(path, self.to_json(), "the plan")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan.

        Raises:
            PlanError: No such file, not JSON, or not a plan; names every field that is off.
        """
        source = Path(path)
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
            raise PlanError(f"{source}: the plan cannot be read: {reason}") from error
        return Plan.parse(text, str(source))

    @staticmethod
    def parse(text: str, source: str) -> Plan:
        """A plan from its text.

        Raises:
            PlanError: Not JSON, or not a plan; names ``source`` and every field that is off.
        """
        try:
            plan = Plan.model_validate_json(text)
        except ValidationError as error:
            lines = [f"  - {error.error_count():,} fields are off, too many to name"]
            if error.error_count() <= MOST_MISTAKES:
                named = error.errors(include_url=False, include_context=False, include_input=False)[:20]
                lines = [f"  - {'.'.join(map(str, item['loc'])) or 'the document'}: {item['msg']}" for item in named]
                if any(item["loc"] == ("version",) and item["type"] == "literal_error" for item in named):
                    lines = ["  - another version of coralopt wrote it: plan anew, or use that version"]
            raise PlanError("\n".join([f"{source}: not a coralopt plan of version {VERSION}:", *lines])) from error
        try:
            json.loads(text, object_pairs_hook=_without_twins)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{source}: the plan cannot be read: {error}") from error
        return plan


def headline_gap(cost: float, bound: float, factor: float, factor_bound: float) -> float:
    """The gap that a plan is judged by: that of its cost, or that of the share of demand it serves, whichever is larger.

    Args:
        cost: USD/h.
        bound: Proven lower bound on the cost of serving as much, USD/h.
        factor: Share of every demand that is served; 1 where demand was not scaled.
        factor_bound: No larger share can be served, proven.
    """
    unserved = (factor_bound - factor) / factor_bound if factor_bound > 0 else 0.0
    return max(relative_gap(cost, bound), unserved)


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one place, so programs may read it differently")
    return dict(pairs)


def plan_schema() -> dict[str, Any]:
    """JSON schema of the plan document."""
    return Plan.model_json_schema()
