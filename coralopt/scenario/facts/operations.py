"""What operators ask for beyond SLOs, demand and pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
