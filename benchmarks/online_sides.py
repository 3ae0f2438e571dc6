"""Side constraints on the online stage's instances, one at a time; most change the plan.

What is asked for follows from the plan without any: its rent, nodes, instances and GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem, SideConstraint, SupplyClass
from coralopt.allocation.on_infeasible import OnInfeasible
from coralopt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class FreePlan:
    """What the plan without side constraints rents.

    Attributes:
        instances: int64 (P,), of every model phase.
        nodes: int64 (R, C).
        by_phase: int64 (P, C), nodes.
        rent: float64 (R,), USD/h at list prices.
    """

    instances: Ints
    nodes: Ints
    by_phase: Ints
    rent: Floats

    @staticmethod
    def of(problem: AllocationProblem, plan: Allocation) -> FreePlan:
        """Counted from the allocation."""
        used = problem.usage[plan.template].astype(np.int64) * plan.count[:, None]
        nodes = np.zeros_like(problem.availability)
        np.add.at(nodes, plan.region, used)
        by_phase = np.zeros((len(problem.demand), len(problem.configuration_names)), dtype=np.int64)
        np.add.at(by_phase, problem.phase[plan.template], used)
        instances = np.bincount(problem.phase[plan.template], plan.count, len(problem.demand)).astype(np.int64)
        return FreePlan(instances, nodes, by_phase, np.einsum("rc,rc->r", nodes, np.nan_to_num(problem.price)))

    @property
    def region(self) -> int:
        """The region with the highest rent."""
        return int(np.argmax(self.rent))


@dataclass(frozen=True)
class Side:
    """One kind of side constraint.

    Attributes:
        name: What the table calls it.
        add: The problem with it.
        on_infeasible: What to do where demand cannot be met.
    """

    name: str
    add: Callable[[AllocationProblem, FreePlan], AllocationProblem]
    on_infeasible: OnInfeasible = "explain"


def _most(problem: AllocationProblem, measure: str, bound: float, **scope: object) -> AllocationProblem:
    row = SideConstraint("limit", "most", measure, bound, **scope)  # type: ignore[arg-type]
    return replace(problem, side_constraints=(row,))


def _budget(problem: AllocationProblem, plan: FreePlan, share: float) -> AllocationProblem:
    return _most(problem, "usd_h", share * float(plan.rent.sum()))


def _rent_of_region(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    return _most(problem, "usd_h", 0.7 * float(plan.rent[plan.region]), regions=(plan.region,))


def _nodes(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    return _most(problem, "nodes", float(int(0.9 * plan.nodes.sum())))


def _nodes_of_region(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    return _most(problem, "nodes", float(int(0.7 * plan.nodes[plan.region].sum())), regions=(plan.region,))


def _nodes_of_model(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    used = [int(plan.by_phase[list(phases)].sum()) for phases in problem.unmet_together]
    model = int(np.argmax(used))
    return _most(problem, "nodes", float(int(0.9 * used[model])), phases=problem.unmet_together[model])


def _instances(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    return _most(problem, "instances", float(plan.instances.sum() - max(1, plan.instances.sum() // 10)))


def _most_used_gpu(problem: AllocationProblem, nodes: Ints) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Configurations with the GPU type that these nodes have most of, GPUs a node, and GPUs of it in all."""
    kinds = [name.split("x", 1) for name in problem.configuration_names]
    total = {gpu: 0 for _, gpu in kinds}
    for (count, gpu), used in zip(kinds, nodes.tolist(), strict=True):
        total[gpu] += int(count) * used
    best = max(total, key=lambda gpu: total[gpu])
    hosts = tuple(c for c, (_, gpu) in enumerate(kinds) if gpu == best)
    return hosts, tuple(int(kinds[c][0]) for c in hosts), total[best]


def _quota(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    hosts, gpus, used = _most_used_gpu(problem, plan.nodes.sum(axis=0))
    return _most(problem, "gpus", float(int(0.7 * used)), configurations=hosts, gpus=gpus)


def _forbidden(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    phases = max(problem.unmet_together, key=lambda some: int(plan.by_phase[list(some)].sum()))
    hosts, _, _ = _most_used_gpu(problem, plan.by_phase[list(phases)].sum(axis=0))
    return _most(problem, "instances", 0.0, phases=phases, configurations=hosts)


def _replicas(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    rows = [
        SideConstraint(f"replicas {p}", "least", "instances", float(max(2, count + 1)), (p,))
        for p, count in enumerate(plan.instances.tolist())
    ]
    return replace(problem, side_constraints=tuple(rows))


def _region_loss(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    regions = range(len(problem.region_names))
    rows = [
        SideConstraint(
            f"phase {p} without region {lost}", "least", "tokens_s", 0.5, (p,), tuple(r for r in regions if r != lost)
        )
        for p in range(len(plan.instances))
        for lost in regions
    ]
    return replace(problem, side_constraints=tuple(rows))


def _replicas_and_region_loss(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    rows = (*_replicas(problem, plan).side_constraints, *_region_loss(problem, plan).side_constraints)
    return replace(problem, side_constraints=rows)


def _instance_loss(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    rows = [
        SideConstraint(f"any instance of phase {p}", "least", "tokens_s", 1.0, (p,), one_lost=True)
        for p in range(len(plan.instances))
    ]
    return replace(problem, side_constraints=tuple(rows))


def _classes(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    """A third of the nodes that the free plan uses is reserved, as many again and one more are spot at 45 %."""
    reserved = plan.nodes // 3
    spot = np.minimum(problem.availability - reserved, reserved + 1)
    none = np.zeros_like(problem.price)
    supply = SupplyClass("reserved", reserved, none), SupplyClass("spot", spot, 0.45 * problem.price)
    return replace(problem, supply=supply)


def _unmet(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    """Every phase's demand may go unmet at twice what it costs in the mean."""
    price = 2 * float(plan.rent.sum()) / len(problem.demand) / np.maximum(problem.demand, 1e-9)
    return replace(problem, unmet_price=price)


def _shortfall(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    return _budget(_unmet(problem, plan), plan, 0.8)


def _cases(problem: AllocationProblem, plan: FreePlan) -> AllocationProblem:
    """The demand is whole in a tenth of the time, 70 % of it in half of the time, and 40 % always."""
    tiers = ((0.3, 0.1), (0.3, 0.5), (1.0, 1.0))
    return replace(_unmet(problem, plan), unmet_tiers=(tiers,) * len(problem.demand))


#: Every kind of side constraint, and what combines them.
SIDES = (
    Side("budget", lambda problem, plan: _budget(problem, plan, 1.0005)),
    Side("rent of a region", _rent_of_region),
    Side("nodes", _nodes),
    Side("nodes of a region", _nodes_of_region),
    Side("nodes of a model", _nodes_of_model),
    Side("instances", _instances),
    Side("quota", _quota),
    Side("forbidden", _forbidden),
    Side("replicas", _replicas),
    Side("region loss", _region_loss),
    Side("replicas, region loss", _replicas_and_region_loss),
    Side("instance loss", _instance_loss),
    Side("reserved and spot", _classes),
    Side("demand cases", _cases),
    Side("shortfall", _shortfall, "shortfall"),
    Side("scale", lambda problem, plan: _budget(problem, plan, 0.8), "scale"),
)
