"""A plan of groups and designs, and the same plan over single templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem, Served, request_flows
from coralopt.placement import Placement
from coralopt.plan import PlannedInstance
from coralopt.planning.promise.capacities import Groups, Place
from coralopt.planning.promise.columns import GroupColumns
from coralopt.planning.promise.designs import Design
from coralopt.planning.promise.instances import GroupPart
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import TemplateLibrary


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """An allocation whose columns are groups and designs.

    Attributes:
        served: The allocation, and the problem that it solves.
        columns: Groups of each column of that problem.
        designs: Those whose groups may be cut in their own way.
    """

    served: Served
    columns: GroupColumns
    designs: Sequence[Design] = ()

    @property
    def cost_usd_h(self) -> float:
        """What the plan costs, USD/h."""
        return self.served.result.cost_usd_h

    @cached_property
    def chosen(self) -> list[tuple[Place, ...]]:
        """The groups of each column that the allocation has."""
        return [self.columns.groups[column] for column in self.served.result.allocation.template.tolist()]

    @cached_property
    def places(self) -> list[Place]:
        """All of these groups, each as often as the allocation has it."""
        counts = self.served.result.allocation.count.tolist()
        return [place for own, count in zip(self.chosen, counts, strict=True) for place in own * count]

    def parts_of(self, own: Sequence[Place]) -> Mapping[Place, tuple[GroupPart, ...]]:
        """How the design of a column cuts its nodes: the one that has just these groups, or, where groups of designs stand
        by themselves, one that has them."""
        having = [design for design in self.designs if set(own) <= set(design.groups)]
        return min(having, key=lambda design: len(set(design.groups))).parts if having else {}


@dataclass(frozen=True, eq=False)
class SingleTemplates:
    """Makes plans of groups plans of single templates.

    Attributes:
        scenario: What is planned.
        library: Its templates.
        groups: Groups of every model phase.
        base: The allocation problem over single templates.
    """

    scenario: ResolvedScenario
    library: TemplateLibrary
    groups: Sequence[Groups]
    base: AllocationProblem

    def instances(self, plan: GroupPlan, k: int) -> list[tuple[int, PlannedInstance]]:
        """Row in the library and instances of the k-th column of an allocation, in their region."""
        allocation, own_groups = plan.served.result.allocation, plan.chosen[k]
        region, times = int(allocation.region[k]), int(allocation.count[k])
        parts = plan.parts_of(own_groups)
        placed: list[tuple[int, PlannedInstance]] = []
        for p, j in own_groups:
            group = self.groups[p]
            own = GroupPart(int(group.template[j]), int(group.count[j]))
            for part in parts.get((p, j), (own,)):
                where = {"region": self.scenario.regions[region], "count": times * part.count}
                instance = group.oracle.instances.of(part.template, part.placement).model_copy(update=where)
                placed.append((self.library.offsets[p] + part.template, instance))
        return placed

    def placements(self, plan: GroupPlan) -> dict[int, Placement]:
        """Row in the library -> how the nodes are cut, where not as the library says."""
        return {
            self.library.offsets[p] + part.template: part.placement
            for own in plan.chosen
            for (p, j), parts in plan.parts_of(own).items()
            if (p, j) in own
            for part in parts
            if part.placement is not None
        }

    def served(self, plan: GroupPlan, least_usd_h: float) -> tuple[Served, Mapping[int, Placement]]:
        """The same plan as an allocation of single templates, checked against the problem over these; and
        :meth:`placements`.

        Args:
            plan: A plan of groups.
            least_usd_h: What no plan costs less than, USD/h.
        """
        before, counts = plan.served, dict[tuple[int, int], int]()
        for k, region in enumerate(before.result.allocation.region.tolist()):
            for row, instance in self.instances(plan, k):
                counts[row, region] = counts.get((row, region), 0) + instance.count
        single = Allocation.of(counts)
        # Requests go where the groups hold them; single templates have room for more at their mean throughput.
        items = [(t, r, n) for (t, r), n in before.result.allocation.to_mapping().items()]
        flows = request_flows(before.problem, items)
        phases = np.isin(np.arange(len(self.groups)), [p for p, _ in plan.places])
        demand = np.where(phases, np.minimum(self.base.demand, before.problem.demand), 0.0)
        problem = replace(self.base, demand=demand, routes=())
        cost = float(problem.check(single).objective) + float(sum(flow.usd_h for flow in flows))
        bound = min(least_usd_h, cost)
        result = replace(
            before.result,
            allocation=single,
            cost_usd_h=cost,
            bound_usd_h=bound,
            gap=(cost - bound) / cost if cost else 0.0,
            state=None,
        )
        return replace(before, result=result, problem=problem, flows=tuple(flows)), self.placements(plan)
