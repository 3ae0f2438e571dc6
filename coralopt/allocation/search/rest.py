"""What is left of a problem once some instances are settled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.supply import left_over
from coralopt.solving.tolerance import TOLERANCE
from coralopt.types import Ints


def rest_of(problem: AllocationProblem, columns: Columns, counts: Ints) -> AllocationProblem | None:
    """The demand and the supply that settled instances leave; ``None`` where they do not fit, or some may be lost.

    Args:
        problem: A problem without routes of which ``adds_up`` holds.
        columns: Its columns.
        counts: int64 (N,), settled instances.
    """
    if problem.spared.any() or problem.surviving.any():
        # What one instance or region may be lost from is the whole, not what is left.
        return None
    used = np.flatnonzero(counts)
    template, region, count = columns.template[used], columns.region[used], counts[used]
    nodes = np.zeros_like(problem.availability)
    np.add.at(nodes, region, problem.usage[template].astype(np.int64) * count[:, None])
    served = np.bincount(
        columns.phase[used], weights=problem.throughput[template] * count, minlength=len(problem.demand)
    )
    running = problem.running
    if running is not None:
        running = running.copy()
        np.subtract.at(running, (template, region), np.where(columns.kept[used], count, 0))
    if (nodes > problem.availability).any() or (running is not None and (running < 0).any()):
        return None
    # What is left by rounding only is met, as the exact check says.
    left = problem.demand - served
    demand = np.where(left > TOLERANCE * problem.demand, left, 0.0)
    sides = []
    for item in problem.side_constraints:
        room = item.bound - float(item.coefficients(problem, template, region, columns.kept[used]) @ count)
        if room < -TOLERANCE * item.bound:
            return None
        sides.append(replace(item, bound=max(0.0, room)))
    return replace(
        problem,
        demand=demand,
        availability=problem.availability - nodes,
        supply=left_over(problem, nodes),
        running=running,
        side_constraints=tuple(sides),
    )
