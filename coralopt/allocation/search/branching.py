"""Branch and bound on how many nodes of a kind a model phase uses.

Where supply is scarce the Lagrangian bound stays below the optimum, since its master programme splits scarce nodes
between phases in fractions. So the tree branches on just that: phase m uses at most k nodes of a configuration in a
region, or at least k + 1. Each node of the tree solves its own decomposition (module ``decomposition``),
a limit being one more row whose price only that phase pays, and drops the columns that have become too dear. A node ends
when its bound reaches the target, or when its near coverings (module ``coverings``) are few enough to
hand over to the back end at once. The node of least bound is next, so the least bound of the open nodes is a bound on
the whole.

Limits lose nothing: an optimal allocation whose coverings have no superfluous instance satisfies the limits of one
child or the other, and whatever replaces one of its coverings within a tree node satisfies the limits as well.

Everything is relative to a target t: nodes whose bound is at least t are not looked at further. What comes back is a bound
on every allocation that uses the given columns, at most t.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings, near_coverings
from coralopt.allocation.bounds.decomposition import Covering, Decomposition, Limit, best_prices
from coralopt.allocation.bounds.relaxation import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Floats, Ints

#: Least distance from a whole number of nodes that counts as split.
SPLIT = 1e-4


@dataclass(frozen=True, eq=False)
class _Node:
    limits: tuple[Limit, ...]
    alive: Ints
    prices: Floats
    limit_prices: Mapping[tuple[int, int], float]
    known: tuple[Covering, ...]


def branch_and_bound(
    problem: AllocationProblem,
    columns: Columns,
    alive: Ints,
    prices: Floats,
    bound: float,
    target: Callable[[], float],
    choose: Callable[[Coverings], float],
    solver: Any,
    deadline: float,
    most_nodes: int,
    leaf_coverings: int,
) -> tuple[float, int]:
    """A bound on every allocation of the given columns, and the tree nodes it took.

    Args:
        problem: The problem.
        columns: Its columns.
        alive: int64 (k,), columns that an allocation below the target may use.
        prices: float64 (R, C), capacity prices to begin with.
        bound: A bound on them, USD/h.
        target: What is worth proving, USD/h; may fall as better allocations are found.
        choose: Offers the best choice of some coverings to the caller; a bound on all of them.
        solver: A back end with LP duals.
        deadline: Value of ``time.perf_counter()`` to stop at.
        most_nodes: Tree nodes to look at.
        leaf_coverings: Most coverings of a tree node that go to the back end at once.
    """
    heap: list[tuple[float, int, _Node]] = [(bound, 0, _Node((), alive, prices, {}, ()))]
    born, looked, closed = 1, 0, np.inf
    while heap and looked < most_nodes and time.perf_counter() < deadline:
        if heap[0][0] >= target():
            break
        least, _, node = heapq.heappop(heap)
        looked += 1
        found = best_prices(
            problem,
            columns,
            node.alive,
            node.prices,
            solver,
            deadline,
            node.limits,
            node.limit_prices,
            node.known,
            enough=target(),
        )
        if time.perf_counter() >= deadline:
            # Its decomposition may have been cut short; its bound holds, but there is no time to use it.
            heapq.heappush(heap, (max(least, found.bound), born, node))
            break
        if np.isneginf(found.bound):
            # Some phase cannot be covered within the limits: nothing is here.
            continue
        here = max(least, found.bound)
        goal = target()
        if here >= goal:
            closed = min(closed, here)
            continue
        stays = found.forced <= goal
        coverings = _few(problem, columns, node, found, stays, goal, deadline, leaf_coverings)
        if coverings is not None:
            inside = choose(coverings) if len(coverings) else np.inf
            # Whatever is not listed costs at least the goal.
            closed = min(closed, max(here, min(goal, inside)))
            continue
        if np.isinf(found.master):
            # Nothing seems to fit within the limits, though the bound does not show it yet: nothing to branch on.
            closed = min(closed, here)
            continue
        split = _split(problem, node, found)
        if split is None:
            closed = min(closed, here)
            continue
        phase, cell, value = split
        # Coverings that the children may still use.
        for limits in _children(problem, node.limits, phase, cell, value):
            newest = next(limit for limit in limits if limit.phase == phase and limit.cell == cell)
            known = tuple(
                covering
                for covering in found.coverings
                if covering.phase != phase or newest.least <= covering.use[cell] <= newest.most
            )
            child = _Node(limits, node.alive[stays], found.capacity_prices, found.limit_prices, known)
            heapq.heappush(heap, (here, born, child))
            born += 1
    remaining = min((entry[0] for entry in heap), default=np.inf)
    return min(closed, remaining, target()), looked


def _few(
    problem: AllocationProblem,
    columns: Columns,
    node: _Node,
    found: Decomposition,
    stays: Any,
    goal: float,
    deadline: float,
    most: int,
) -> Coverings | None:
    """All coverings that an allocation of this tree node below the goal may use; ``None`` when they are too many."""
    slack = goal - found.bound
    alive, weight = node.alive[stays], found.weight[stays]
    phase_of = problem.phase[columns.template[alive]]
    parts, count = [], 0
    for p in np.flatnonzero(problem.demand > 0).tolist():
        mine = np.flatnonzero(phase_of == p)
        limits = [limit for limit in node.limits if limit.phase == p]
        room = problem.availability.ravel().copy()
        for limit in limits:
            room[limit.cell] = min(room[limit.cell], limit.most)
        part = near_coverings(
            problem,
            columns,
            alive[mine],
            weight[mine],
            p,
            float(found.least[p][-1]) + slack + 1e-9 * abs(goal),
            found.least[p],
            4 * most,
            deadline,
            room,
            [(limit.cell, limit.least) for limit in limits if limit.least > 0],
        )
        if part is None or count + len(part) > most:
            return None
        count += len(part)
        parts.append(part)
    if any(not len(part) for part in parts):
        return parts[0].some(np.zeros(0, dtype=np.int64))
    return Coverings.union(parts)


def _split(problem: AllocationProblem, node: _Node, found: Decomposition) -> tuple[int, int, float] | None:
    """The phase and cell whose nodes are split most, by what they are worth, and how many it uses."""
    part = found.mean_use - np.floor(found.mean_use)
    worth = np.nan_to_num(problem.price).ravel() + found.capacity_prices.ravel()
    # Where a limit holds only within rounding there is nothing to split.
    for limit in node.limits:
        value = found.mean_use[limit.phase, limit.cell]
        if limit.least == limit.most or not limit.least <= value <= limit.most:
            part[limit.phase, limit.cell] = 0.0
    score = np.where((part > SPLIT) & (part < 1 - SPLIT), np.minimum(part, 1 - part) * worth, 0.0)
    phase, cell = np.unravel_index(int(np.argmax(score)), score.shape)
    if score[phase, cell] <= 0:
        return None
    return int(phase), int(cell), float(found.mean_use[phase, cell])


def _children(
    problem: AllocationProblem, limits: tuple[Limit, ...], phase: int, cell: int, value: float
) -> list[tuple[Limit, ...]]:
    """The limits of the two children."""
    old = next((limit for limit in limits if limit.phase == phase and limit.cell == cell), None)
    least, most = (0, int(problem.availability.ravel()[cell])) if old is None else (old.least, old.most)
    rest = tuple(limit for limit in limits if limit is not old)
    low = int(np.floor(value))
    return [(*rest, Limit(phase, cell, least, low)), (*rest, Limit(phase, cell, low + 1, most))]
