"""The compiled part of a choice of coverings: what is left in one node of its tree; imported only when it runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coralopt.compiling import compiled
from coralopt.types import Floats, Ints

#: Subgradient steps between two looks at what still fits.
BETWEEN = 8
#: Share of the newest direction in the next one, and of the newest choice in the mean one.
NEW_DIRECTION, NEW_CHOICE = 0.3, 0.1
#: Steps in vain after which they get shorter, and by what.
IN_VAIN, SHORTER = 4, 0.6
#: Share by which a price may differ from a surcharge and be the same.
SAME = 1e-9
#: Share by which sums of money may pass a limit, before exact arithmetic decides.
HAIR = 1e-9


class CoveringPool(NamedTuple):
    """Coverings, those of a phase side by side, and the nodes and other limits there are.

    Attributes:
        phase: int64 (n,), 0 to P - 1.
        cost: float64 (n,), USD/h.
        cell: int64 (n, w), cells and side constraints that a covering uses, then -1.
        amount: float64 (n, w), how much of each.
        available: float64 (k,), of every cell and side constraint.
        phases: P.
        dear: int64 (e,), cells of nodes above the lowest price, those of a cell in ascending order.
        nodes: float64 (e,), how many.
        surcharge: float64 (e,), USD/h above the lowest price.
    """

    phase: Ints
    cost: Floats
    cell: Ints
    amount: Floats
    available: Floats
    phases: int
    dear: Ints
    nodes: Floats
    surcharge: Floats


@compiled(nogil=True)
def _fitting(pool: CoveringPool, alive: Ints, n: int) -> int:
    """Keep those of the first ``n`` that fit beside the fewest nodes that the others use; how many, -1 for no choice."""
    cells = len(pool.available)
    while True:
        count = np.zeros(pool.phases, dtype=np.int64)
        users = np.zeros((pool.phases, cells), dtype=np.int64)
        fewest = np.full((pool.phases, cells), np.inf)
        for i in range(n):
            z = alive[i]
            p = pool.phase[z]
            count[p] += 1
            for q in range(pool.cell.shape[1]):
                c = pool.cell[z, q]
                if c < 0:
                    break
                users[p, c] += 1
                fewest[p, c] = min(fewest[p, c], pool.amount[z, q])
        room = pool.available + HAIR * (1 + pool.available)
        for p in range(pool.phases):
            if count[p] == 0:
                return -1
            for c in range(cells):
                if users[p, c] < count[p]:
                    fewest[p, c] = 0
                room[c] -= fewest[p, c]
        if room.min() < 0:
            return -1
        kept = 0
        for i in range(n):
            z = alive[i]
            p = pool.phase[z]
            fits = True
            for q in range(pool.cell.shape[1]):
                c = pool.cell[z, q]
                if c < 0:
                    break
                if pool.amount[z, q] - fewest[p, c] > room[c]:
                    fits = False
                    break
            if fits:
                alive[kept] = z
                kept += 1
        if kept == n:
            return n
        n = kept


@compiled(nogil=True)
def _worth(pool: CoveringPool, price: Floats) -> float:
    """USD/h: what all rows subtract from a Lagrangian bound."""
    total = 0.0
    for c in range(len(price)):
        total += price[c] * pool.available[c]
    for e in range(len(pool.dear)):
        total -= pool.nodes[e] * min(price[pool.dear[e]], pool.surcharge[e])
    return total


@compiled(nogil=True)
def _missing(pool: CoveringPool, price: Floats, used: Floats, over: Floats) -> tuple[float, bool]:
    """Fill ``over`` with what is used beyond what is best rented at these prices; surcharges of it, whether all fits."""
    over[:] = used - pool.available
    fits = over.max() <= 0
    for e in range(len(pool.dear)):
        over[pool.dear[e]] += pool.nodes[e]
    paid = 0.0
    left = over.copy()
    for e in range(len(pool.dear)):
        cell, nodes = pool.dear[e], pool.nodes[e]
        taken = min(max(left[cell], 0.0), nodes)
        left[cell] -= taken
        paid += taken * pool.surcharge[e]
        at = price[cell] - pool.surcharge[e]
        near = SAME * (1 + pool.surcharge[e])
        # Where the price is the surcharge, any number of these nodes is as good.
        over[cell] -= nodes if at > near else (0.0 if at < -near else taken)
    return paid, fits


@compiled(nogil=True)
def settle(
    pool: CoveringPool, alive: Ints, start: Floats, target: float, steps: int, length: float
) -> tuple[float, Floats, Ints, Floats, Ints]:
    """Raise the Lagrangian bound of a node by subgradient steps, and drop what cannot be in a choice below a target.

    Args:
        pool: All coverings.
        alive: int64 (n,), those of the node, in order of their phase.
        start: float64 (k,), prices of nodes to begin with, USD/h.
        target: Choices of this cost or more do not matter, USD/h.
        steps: How many steps at most.
        length: Length of the first step, as a share of the one that would reach the target.

    Returns:
        A bound on all choices of the node, infinite if none fits; prices of that bound; what is left alive;
        float64 (P, k), nodes used in the mean by what was cheapest; int64 (P,), what is cheapest of every phase.
    """
    cells, phases = len(pool.available), pool.phases
    alive, n = alive.copy(), len(alive)
    price, best, bound = start.copy(), start.copy(), -np.inf
    weight, least, cheapest = np.empty(n), np.empty(phases), np.full(phases, -1, dtype=np.int64)
    mean, seen = np.zeros((phases, cells)), 0.0
    used, over, direction = np.zeros(cells), np.zeros(cells), np.zeros(cells)
    hair, vain = 1e-9 * abs(target), 0
    for step in range(steps):
        if step % BETWEEN == 0:
            n = _fitting(pool, alive, n)
            if n < 0:
                return np.inf, best, alive[:0], mean, cheapest
        least[:] = np.inf
        for i in range(n):
            z = alive[i]
            value = pool.cost[z]
            for q in range(pool.cell.shape[1]):
                c = pool.cell[z, q]
                if c < 0:
                    break
                value += price[c] * pool.amount[z, q]
            weight[i] = value
            p = pool.phase[z]
            if value < least[p]:
                least[p] = value
                cheapest[p] = z
        value = least.sum() - _worth(pool, price) - hair
        if value >= target:
            return value, price, alive[:0], mean, cheapest
        kept = 0
        for i in range(n):
            # One that makes every choice cost the target or more.
            if weight[i] - least[pool.phase[alive[i]]] < target - value:
                alive[kept] = alive[i]
                kept += 1
        n = kept
        vain += 1
        if value > bound:
            if value > bound + 1e-4 * (target - value):
                vain = 0
            bound = value
            best[:] = price
        if vain >= IN_VAIN:
            length *= SHORTER
            vain = 0
            price[:] = best
        used[:] = 0.0
        cost = 0.0
        mean *= 1 - NEW_CHOICE
        seen += NEW_CHOICE * (1 - seen)
        for p in range(phases):
            z = cheapest[p]
            cost += pool.cost[z]
            for q in range(pool.cell.shape[1]):
                c = pool.cell[z, q]
                if c < 0:
                    break
                used[c] += pool.amount[z, q]
                mean[p, c] += NEW_CHOICE * pool.amount[z, q]
        paid, fits = _missing(pool, price, used, over)
        if fits and cost + paid - value <= 2 * hair:
            # What is cheapest fits, and costs the bound.
            break
        norm = 0.0
        for c in range(cells):
            direction[c] = over[c] if step == 0 else (1 - NEW_DIRECTION) * direction[c] + NEW_DIRECTION * over[c]
            if price[c] <= 0 and direction[c] < 0:
                direction[c] = 0.0
            norm += direction[c] ** 2
        if norm < 1e-12:
            break
        for c in range(cells):
            price[c] = max(0.0, price[c] + length * (target - value) / norm * direction[c])
    return bound, best, alive[:n], mean / seen, cheapest
