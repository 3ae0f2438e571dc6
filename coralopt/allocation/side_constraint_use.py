"""What an allocation uses of every side constraint, and which of them bind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.allocation.supply import rent_by_region


@dataclass(frozen=True)
class SideConstraintUse:
    """One side constraint and an allocation.

    Attributes:
        constraint: The side constraint.
        limit: Its right-hand side.
        value: What the allocation adds up to.
        binding: Of "most": no other instance like one of the planned ones in its scope fits. Of "least": no
            planned instance in its scope can go. A ban never binds in this sense.
    """

    constraint: SideConstraint
    limit: float
    value: float
    binding: bool


def side_constraint_uses(problem: AllocationProblem, allocation: Allocation) -> tuple[SideConstraintUse, ...]:
    """One entry for every side constraint, bans too."""
    used = np.zeros(problem.price.shape, dtype=np.int64)
    np.add.at(used, allocation.region, problem.usage[allocation.template].astype(np.int64) * allocation.count[:, None])
    rent = rent_by_region(problem, [[int(count) for count in row] for row in used])
    uses = []
    for item in problem.side_constraints:
        each = item.coefficients(problem, allocation.template, allocation.region)
        value, limit = (
            item.total(problem, allocation.template, allocation.region, allocation.count),
            item.limit(problem),
        )
        if item.is_rent:
            value = float(sum(rent[r] for r in (range(len(rent)) if item.regions is None else item.regions)))
        smallest = float(each[each > 0].min(initial=np.inf))
        room = limit - value if item.sense == "most" else value - limit
        uses.append(SideConstraintUse(item, limit, value, bool(np.isfinite(smallest) and room < smallest * (1 - 1e-9))))
    return tuple(uses)
