"""What an allocation uses of every side row, and which rows bind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.side_constraints import SideRow
from coralopt.allocation.supply import rent_by_region


@dataclass(frozen=True)
class RowUse:
    """One side row and an allocation.

    Attributes:
        row: The row.
        limit: Its right-hand side.
        value: What the allocation adds up to.
        binding: Of a "most" row: no other instance like one of the planned ones in its scope fits. Of a "least" row: no
            planned instance in its scope can go. A ban never binds in this sense.
    """

    row: SideRow
    limit: float
    value: float
    binding: bool


def row_uses(problem: AllocationProblem, allocation: Allocation) -> tuple[RowUse, ...]:
    """One entry for every side row, bans too."""
    used = np.zeros(problem.price.shape, dtype=np.int64)
    np.add.at(used, allocation.region, problem.usage[allocation.template].astype(np.int64) * allocation.count[:, None])
    rent = rent_by_region(problem, [[int(n) for n in row] for row in used])
    found = []
    for row in problem.rows:
        each = row.coefficients(problem, allocation.template, allocation.region)
        value, limit = float(each @ allocation.count), row.limit(problem)
        if row.is_rent:
            value = float(sum(rent[r] for r in (range(len(rent)) if row.regions is None else row.regions)))
        smallest = float(each[each > 0].min(initial=np.inf))
        room = limit - value if row.sense == "most" else value - limit
        found.append(RowUse(row, limit, value, bool(np.isfinite(smallest) and room < smallest * (1 - 1e-9))))
    return tuple(found)
