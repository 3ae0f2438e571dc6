"""What a scenario consists of once every name is looked up: plain facts, without the rules of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coralopt.catalog.types import NodeConfiguration, RegionLink
from coralopt.scenario.facts.measured import MeasuredSourceChoice
from coralopt.scenario.facts.operations import Operations
from coralopt.scenario.facts.phases import Mode, ModelPhase
from coralopt.scenario.facts.serving import Serving
from coralopt.types import Floats, Ints

#: How models share a node.
SharingWay = Literal["turns", "slices", "swapping"]


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
