"""The step ``rest``: some instances are settled, what is left of the problem is searched."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.options import AllocationSearchOptions
from coralopt.allocation.supply import left_over
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving.tolerance import TOLERANCE
from coralopt.types import Floats, Ints

#: Share that a rest has of the time of a step that proves nothing; each one more has this share of that.
REST = 0.25


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
    nodes = columns.nodes(problem, counts)
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


def settle_most(search: SearchContext, values: Floats, rests: int, share: float = 1.0) -> None:
    """Whole instances of a fractional allocation stay, what they leave is a problem of its own.

    Only within a time limit, since no other measure bounds the work.

    Args:
        search: What is known.
        values: float64 (N,), instances of every column in fractions.
        rests: How many rests are searched, each leaving one instance more of every column open.
        share: Of what a step may take of the time left.
    """
    small, columns, search_rest = search.small, search.columns, search.search_rest
    for spare in range(0 if math.isinf(search.left()) else rests):
        counts = np.maximum(np.floor(values + 1e-9).astype(np.int64) - spare, 0)
        rest = rest_of(small, columns, counts)
        if search_rest is None or rest is None or not counts.any() or search.done() or search.left() == 0:
            break
        paid = columns.usd_h(small, counts)
        # Half of the gap is the rest's.
        gap = min(0.05, 0.5 * search.solve_options.rel_gap * search.bound / max(search.bound - paid, 1e-9))
        # Without a good allocation, most other steps have nothing to begin with.
        limit = share * search.share_of_left() * REST ** (spare + (not search.far()))
        options = replace(search.solve_options, rel_gap=gap, time_limit=limit)
        inner = AllocationSearchOptions(explained=False, limits=replace(search.limits, rests=0, repairs=0))
        with contextlib.suppress(InfeasibleError, NoSolutionError):
            allocation, interrupted = search_rest(rest, search.backend, options, inner)
            search.offer(Allocation.sum_of(columns.allocation(counts), allocation))
            if interrupted:
                search.interrupt()
    search.lap("rest")
