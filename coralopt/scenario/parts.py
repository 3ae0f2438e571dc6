"""What a scenario consists of once every name is looked up: plain facts, without the rules of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coralopt.catalog.types import ModelArchitecture, NodeConfiguration, RegionLink
from coralopt.routing import Routing
from coralopt.scenario.lengths import USUAL_SPREAD, LengthDistribution, LengthPair, LengthSpread
from coralopt.types import Bools, Floats, Ints

Phase = Literal["prefill", "decode", "mixed"]
Mode = Literal["disaggregated", "mixed", "auto"]
#: How models share a node.
SharingWay = Literal["turns", "slices", "swapping"]
#: How a model is served -> the phases that instances may have.
PHASES_OF: dict[Mode, tuple[Phase, ...]] = {
    "disaggregated": ("prefill", "decode"),
    "mixed": ("mixed",),
    "auto": ("prefill", "decode", "mixed"),
}


@dataclass(frozen=True)
class Serving:
    """How engines and the router work.

    Attributes:
        routing: Which instance gets a request: ``"weighted-round-robin"``, ``"least-work"`` (tokens outstanding over planned
            rate) or ``"power-of-two"`` (the less loaded of two drawn ones).
        order: Which waiting request an instance takes first: ``"fifo"``, ``"hopeless-last"`` (those too late) or
            ``"shortest-first"``.
        admission: ``"reserve"``: KV cache of the whole answer is set aside. ``"preempt"``: it grows, and where it runs out
            the youngest sequence gives way and is computed again.
        reserve_gib: Memory of a GPU besides weights and KV cache: activations, workspace, graphs, GiB.
        host_step_ms: Host time of each step (scheduling, sampling), ms.
        host_request_ms: Host time before a request's first token (HTTP, tokenising), ms.
        step_tokens: Most tokens of one step, prompts and decoded ones (vLLM's max_num_batched_tokens).
        async_scheduling: A mixed instance of one stage chooses a step while the one before it runs, so that a prompt waits
            for one more decode step; ``False``: when the one before has ended.
    """

    routing: Routing
    order: Literal["fifo", "hopeless-last", "shortest-first"]
    admission: Literal["reserve", "preempt"]
    reserve_gib: float
    host_step_ms: float
    host_request_ms: float
    step_tokens: int
    async_scheduling: bool


#: Tokens that a step of prompts may have at least, however small its micro-batch is planned.
LEAST_STEP_TOKENS = 512
#: The engines that the paper's planner assumes.
PAPER_SERVING = Serving("weighted-round-robin", "fifo", "reserve", 1.0, 0.0, 0.0, 2048, False)
#: Preset -> how engines and the router work. Of ``engine`` the reserve is aiconfigurator's least (3.5 to 3.9 GiB a GPU, its
#: 0.12.0), host times are what published closed-loop measurements of vLLM on H100 and H200 take longer than its kernels
#: (benchmarks/host_time.py), 2,048 tokens a step are vLLM's default.
SERVING_PRESETS = {
    "paper": PAPER_SERVING,
    "engine": Serving("least-work", "hopeless-last", "preempt", 3.5, 0.6, 14.0, 2048, True),
}


@dataclass(frozen=True)
class Variant:
    """One of the ways to serve a model, which requests may go.

    Attributes:
        of: Name of the model that requests ask for.
        name: Its name among the variants.
        quality: How good its answers are, inside (0, 1].
        least_share: Least share of the requests that it serves.
        least_quality: Least mean quality over all requests of the model; 0 where none is asked for.
    """

    of: str
    name: str
    quality: float
    least_share: float = 0.0
    least_quality: float = 0.0


@dataclass(frozen=True)
class RequestClass:
    """Some of a model's requests, told apart by their lengths.

    Attributes:
        of: Name of the model that requests ask for.
        name: Its name among the classes.
        most_input: Longest prompt, tokens; ``None`` for any.
        most_output: Most tokens that the answer may have; ``None`` for any.
    """

    of: str
    name: str
    most_input: float | None = None
    most_output: float | None = None

    def holds(self, input_tokens: Ints, output_tokens: Ints) -> Bools:
        """bool (n,): whether requests are within its bounds; they belong to the first class that holds them."""
        most_input, most_output = (np.inf if most is None else most for most in (self.most_input, self.most_output))
        return np.asarray((input_tokens <= most_input) & (output_tokens <= most_output))


@dataclass(frozen=True)
class ModelPhase:
    """One phase of one model with its SLO and demand; served by its own instances.

    Attributes:
        model: The architecture.
        phase: ``"prefill"``, ``"decode"`` or ``"mixed"``.
        prefill_ms: SLO on the time to first token, ms.
        decode_ms: SLO on the time per output token, ms.
        demand_tokens_s: Required throughput T_m in tokens/s: input tokens for prefill, output tokens otherwise.
        mean_input_tokens: Mean prompt length in tokens.
        mean_output_tokens: Mean answer length in tokens.
        throughput_headroom: Share of the demand planned beyond it, dimensionless; 0.2 plans 20 % more.
        latency_headroom: Share of the SLO that execution may not take, 0 up to below 1: room for queues, KV transfers and
            requests longer than the mean.
        attainment: Share of requests that must meet the SLOs, inside (0, 1); ``None`` plans for mean requests.
        input_spread: How prompt lengths vary around their mean.
        output_spread: How answer lengths vary around theirs.
        serving: How engines and the router work.
        variant: Which of the model's variants it is of; ``None`` where the model has none.
        prefix_hit: Share of every prompt whose KV cache is there already, inside [0, 1).
        request_class: Which class of the model's requests it is for; ``None`` where there are none.
    """

    model: ModelArchitecture
    phase: Phase
    prefill_ms: float
    decode_ms: float
    demand_tokens_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    throughput_headroom: float = 0.0
    latency_headroom: float = 0.0
    attainment: float | None = None
    input_spread: LengthSpread = USUAL_SPREAD
    output_spread: LengthSpread = USUAL_SPREAD
    serving: Serving = PAPER_SERVING
    variant: Variant | None = None
    prefix_hit: float = 0.0
    request_class: RequestClass | None = None

    @property
    def computed_tokens(self) -> float:
        """Tokens of a mean prompt that are computed, and whose KV cache is sent."""
        return self.mean_input_tokens * (1.0 - self.prefix_hit)

    @property
    def served(self) -> str:
        """Name of the model that requests ask for."""
        part = self.variant or self.request_class
        return self.model.name if part is None else part.of

    @property
    def requested(self) -> str:
        """Name of the requests that this phase, or another one in its place, serves: the model's, or those of a class."""
        return self.model.name if self.request_class else self.served

    @property
    def lengths(self) -> LengthPair:
        """Lengths of prompts and answers as distributions."""
        return LengthPair(
            LengthDistribution(self.mean_input_tokens, self.input_spread),
            LengthDistribution(self.mean_output_tokens, self.output_spread),
        )

    @property
    def needed_tokens_s(self) -> float:
        """Throughput that a plan must give, tokens/s: the demand and its headroom."""
        return self.demand_tokens_s * (1.0 + self.throughput_headroom)

    @property
    def request_tokens(self) -> float:
        """Tokens of a mean request that this phase counts in its demand; 1 at least, since a simulated request has one."""
        return max(self.mean_input_tokens if self.phase == "prefill" else self.mean_output_tokens, 1.0)

    @property
    def simulated_requests_s(self) -> float:
        """Requests/s whose tokens make the demand where each has one at least."""
        return self.demand_tokens_s / self.request_tokens

    @property
    def requests_s(self) -> float:
        """Requests/s behind the demand."""
        return self.demand_tokens_s / (self.mean_input_tokens if self.phase == "prefill" else self.mean_output_tokens)

    @property
    def prefill_budget_ms(self) -> float:
        """Time that the execution of a mean prompt may take, ms: the SLO less its headroom and the host's time."""
        return self.prefill_ms * (1.0 - self.latency_headroom) - self.serving.host_request_ms

    @property
    def decode_budget_ms(self) -> float:
        """Time that one decoding round of mean sequences may take, ms: the SLO less its headroom."""
        return self.decode_ms * (1.0 - self.latency_headroom)

    @property
    def budget_ms(self) -> float:
        """The budget of this phase, ms (for ``mixed`` the one per output token)."""
        return self.prefill_budget_ms if self.phase == "prefill" else self.decode_budget_ms

    @property
    def key(self) -> str:
        """``"qwen3-32b/prefill"``: unique inside a scenario, used in every file and table."""
        return f"{self.model.name}/{self.phase}"

    @property
    def slo_ms(self) -> float:
        """The SLO of this phase, ms (for ``mixed`` the one per output token)."""
        return self.prefill_ms if self.phase == "prefill" else self.decode_ms


@dataclass(frozen=True)
class RunningInstances:
    """Instances that run already: so many of one template in one region (the paper's nu').

    Attributes:
        key: Model phase key, ``"qwen3-32b/prefill"``.
        region: Region name.
        nodes: Node configuration name -> number of nodes, the template's node set.
        count: Number of running instances.
    """

    key: str
    region: str
    nodes: Mapping[str, int]
    count: int


@dataclass(frozen=True)
class PlacementRules:
    """What placements may look like; the defaults are the paper's.

    Attributes:
        engine: Name of the engine's limits, see ``coralopt.placement.ENGINES``.
        budget_units: ``None``: every one of S stages has the latency budget SLO / S. A number u: whole multiples of
            SLO / (S u) that add up to at most the SLO.
        link_network: Whether activations move at the bandwidth of the slower of sender and receiver, not the sender's.
    """

    engine: str = "any"
    budget_units: int | None = None
    link_network: bool = False


@dataclass(frozen=True)
class MeasuredTimesGrid:
    """Times of one phase of one model on one node configuration.

    Attributes:
        tokens: Prompt lengths or contexts, ascending.
        batch: Prompts or sequences, ascending.
        layer_ms: One layer, ms: a row a token count, a column a batch.
        other_ms: What is not a layer, ms, in the same shape.
    """

    tokens: tuple[float, ...]
    batch: tuple[float, ...]
    layer_ms: tuple[tuple[float, ...], ...]
    other_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class MeasuredNodeTimes:
    """Measured times of one model on one node configuration.

    Attributes:
        model: Name of the model or of its checkpoint.
        configuration: Node configuration.
        weight_format: Format of the weights that were measured.
        measured_with: Engine, versions and device.
        prefill: Whole prompts.
        decode: One token a sequence.
        kv_format: Format of the KV cache that was measured.
        mixed_factor: Layers of measured mixed steps over what prefill and decode times make of them.
    """

    model: str
    configuration: str
    weight_format: str
    measured_with: str
    prefill: MeasuredTimesGrid
    decode: MeasuredTimesGrid
    kv_format: str = "bf16"
    mixed_factor: float = 1.0


@dataclass(frozen=True)
class MeasuredSourceChoice:
    """A throughput source that needs the scenario's own measurements.

    Attributes:
        name: ``"measured"``: these and nothing else; ``"auto"``: these first, then what ``auto`` takes.
        nodes: The measurements.
        host_ms: Longest host times measured, of a step and of a request, ms; ``None`` where none was.
    """

    name: str
    nodes: tuple[MeasuredNodeTimes, ...]
    host_ms: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class RentLimits:
    """The most that may be rented.

    Attributes:
        max_nodes: Nodes, ``None`` for any number.
        max_usd_h: USD/h, ``None`` for any sum.
        max_gpus: (GPU type, GPUs) of every quota.
    """

    max_nodes: int | None = None
    max_usd_h: float | None = None
    max_gpus: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ModelRules:
    """What an operator asks for a model beyond its demand.

    Attributes:
        limits: On its nodes and their list prices.
        min_replicas: Least serving instances of each phase.
        survive_region_loss: Share of the demand that any one region's loss must leave served.
        survive_instance_loss: Share of the demand that any one instance's loss must leave served.
        forbidden: Names of node configurations of the pool that it must not use.
        unmet_usd_mtok: USD per million input and output tokens that are not served; ``None`` when all must be.
    """

    limits: RentLimits = RentLimits()
    min_replicas: int = 0
    survive_region_loss: float = 0.0
    survive_instance_loss: float = 0.0
    forbidden: tuple[str, ...] = ()
    unmet_usd_mtok: tuple[float, float] | None = None


@dataclass(frozen=True)
class NodeClass:
    """Nodes of one configuration in one region that have a price of their own; part of the availability.

    Attributes:
        name: ``"reserved"``, ``"spot"`` or ``"committed"``.
        region: Region name.
        configuration: Node configuration name.
        nodes: How many.
        usd_h: USD per node-hour, preemptions included; 0 for reserved ones; of committed ones the whole terms that the
            horizon takes, spread over it.
    """

    name: Literal["reserved", "spot", "committed"]
    region: str
    configuration: str
    nodes: int
    usd_h: float


@dataclass(frozen=True)
class StartCost:
    """What starting an instance costs: the price of its nodes until the slowest of them has loaded its weights.

    Attributes:
        load_gb_s: Rate at which one node loads weights, 1e9 bytes/s.
        boot_s: Time of a node before it loads, s.
        interval_s: Time between two plans, over which it is spread, s.
    """

    load_gb_s: float
    boot_s: float
    interval_s: float


@dataclass(frozen=True)
class DemandScenario:
    """One of several demands that may come.

    Attributes:
        name: What it is called.
        probability: Above 0; those of all cases sum to 1.
        factors: (model name, what its demand is multiplied by) of every model.
    """

    name: str
    probability: float
    factors: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Operations:
    """What operators ask for beyond SLOs, demand and pool; the defaults ask for nothing.

    Attributes:
        limits: On the whole plan; its USD/h is the budget.
        regions: Region name -> limits there, where there are any.
        models: Model name -> its rules, where there are any.
        classes: Reserved and spot nodes.
        start_first: Whether all that runs still takes its nodes while new instances start.
        start: What starting costs by template; ``None`` where one K holds for all.
        cases: Demands that may come, of which the plan leaves unmet what costs less so; none where demand is known.
    """

    limits: RentLimits = RentLimits()
    regions: tuple[tuple[str, RentLimits], ...] = ()
    models: tuple[tuple[str, ModelRules], ...] = ()
    classes: tuple[NodeClass, ...] = ()
    start_first: bool = False
    start: StartCost | None = None
    cases: tuple[DemandScenario, ...] = ()


@dataclass(frozen=True)
class KvTransfer:
    """Where the KV cache of a prompt may go from prefill to decode.

    Attributes:
        mode: ``"free"``: anywhere, for nothing; ``"region"``: within its region; ``"priced"``: anywhere that has a price.
        links: Every pair of different regions that caches may use; prices count where the mode is ``"priced"``.
    """

    mode: Literal["free", "region", "priced"] = "free"
    links: tuple[RegionLink, ...] = ()

    def link(self, source: str, target: str) -> RegionLink | None:
        """The way between two regions, ``None`` where caches may not go; within a region it is free."""
        if source == target:
            return RegionLink(source, target, 0.0)
        return next((link for link in self.links if (link.source, link.target) == (source, target)), None)


@dataclass(frozen=True)
class Sharing:
    """Whether models may share nodes, and how.

    Attributes:
        models: Most models on one node; 1 shares nothing.
        ways: How: ``"turns"`` (a step each), ``"slices"`` (MIG) or ``"swapping"`` (weights come and go).
        swap_gb_s: Rate at which weights come and go, 1e9 bytes/s; ``None`` where every model has its own seconds.
        swap_s: (model, seconds that its weights take to come and those before it to go) where that was measured.
        asleep_gib: Memory of a GPU that an engine keeps while its weights are away, GiB.
    """

    models: int = 1
    ways: tuple[SharingWay, ...] = ("turns",)
    swap_gb_s: float | None = None
    swap_s: tuple[tuple[str, float], ...] = ()
    asleep_gib: float = 1.0


@dataclass(frozen=True)
class Facts:
    """Everything the planner needs, with names replaced by facts.

    Attributes:
        name: Scenario name.
        mode: ``"disaggregated"`` (prefill and decode instances), ``"mixed"`` or ``"auto"`` (whichever is cheaper, or both);
            that of models without one of their own.
        model_phases: Model phases in file order, prefill before decode before mixed. Each has all of its model's demand,
            also where requests take only one way.
        configurations: Node configurations C in the pool, in a fixed order.
        regions: Region names R.
        availability: int64 (R, C), nodes that can be rented, A_r(c).
        price_usd_h: float64 (R, C), USD per node-hour, p_r(c); NaN where availability is 0 and no price is known.
        instance_types: R x C nested tuples of cloud instance names, ``None`` where none exists.
        templates: ``"every"``: all node sets within N_max and rho are templates; ``"on-demand"``: those that pay;
            ``None``: by their number.
        max_nodes: N_max, most nodes in one template.
        memory_ratio: rho, sets of several nodes hold less than this many times the model's weight bytes.
        throughput_source: The source of T_j(g): ``"auto"``, ``"silicon"`` or ``"roofline"``; or a name and measured times.
        initialization_penalty: K, dimensionless.
        running: Instances that run already.
        solver: Solver name for the allocation.
        solver_options: Common option name -> value.
        placement: What placements may look like.
        operations: Limits, replicas, supply classes and prices of unmet demand. Spot nodes are part of ``availability``.
        serving: How engines and the router work; every model phase has it, too.
        kv_transfer: Where KV caches may go.
        sharing: Whether models may share nodes.
    """

    name: str
    mode: Mode
    model_phases: tuple[ModelPhase, ...]
    configurations: tuple[NodeConfiguration, ...]
    regions: tuple[str, ...]
    availability: Ints
    price_usd_h: Floats
    instance_types: tuple[tuple[str | None, ...], ...]
    templates: Literal["every", "on-demand"] | None
    max_nodes: int
    memory_ratio: float
    throughput_source: str | MeasuredSourceChoice
    initialization_penalty: float
    running: tuple[RunningInstances, ...]
    solver: str
    solver_options: Mapping[str, object]
    placement: PlacementRules
    operations: Operations
    serving: Serving
    kv_transfer: KvTransfer
    sharing: Sharing

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """GPU type of every node configuration."""
        return tuple(configuration.gpu.name for configuration in self.configurations)
