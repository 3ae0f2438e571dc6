"""Choose one covering for every model phase, together within the pool: a depth-first tree with Lagrangian bounds.

A node of the tree is a set of coverings. Subgradient steps raise its bound and drop coverings that cost too much at any
of the prices met, or that no longer fit beside what the other phases use at least; this leaves few of thousands soon. Where
a phase has few coverings left, each of them is a child; otherwise the coverings of one phase are split by how many nodes
they use of one cell. A node takes a tenth of a millisecond, so trees of 100,000 nodes end where a general back end
with its linear programmes has seen a thousand.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coralopt.allocation.bounds.coverings import HAIR, Coverings
from coralopt.allocation.supply import Segments
from coralopt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.search.choice_kernel import CoveringPool

#: Subgradient steps in the first node and in the others, and length of their first.
FIRST_STEPS, STEPS = (400, 0.6), (24, 0.4)
#: A phase with so few coverings left has each of them as a child.
FEW = 12


@dataclass(frozen=True, eq=False)
class Choice:
    """The best choice of coverings below a target.

    Attributes:
        chosen: int64 (P,), the coverings, or ``None`` where none costs less than the target, or was met.
        bound: USD/h; no choice below the target costs less; the target itself where the tree is done without any.
    """

    chosen: Ints | None
    bound: float


@dataclass(frozen=True)
class ChoiceLimits:
    """When a choice ends.

    Attributes:
        target: Choices of this cost or more do not matter, USD/h.
        gap: Share of the cost by which the answer may miss the best choice.
        nodes: Nodes of the tree.
        deadline: Value of ``time.perf_counter()``.
    """

    target: float
    gap: float
    nodes: int
    deadline: float


@dataclass(frozen=True, eq=False)
class _ChoiceNode:
    bound: float
    alive: Ints
    price: Floats


def best_choice_among(
    coverings: Coverings, available: Floats, price: Floats, limits: ChoiceLimits, pieces: Segments
) -> Choice:
    """One covering a phase at least cost.

    Args:
        coverings: At least one, all phases that need any.
        available: float64 (R * C + S,), nodes of every cell, then bounds of side constraints.
        price: float64 (R * C + S,), USD/h, their prices to begin with.
        limits: When to end.
        pieces: What nodes above the lowest price cost.
    """
    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.allocation.search.choice_kernel import settle

    use = coverings.rows()
    for phase in np.unique(coverings.phase).tolist():
        # One of each is taken: where they earn something, as replicas do, what counts is how much less than the most.
        mine = coverings.phase == phase
        earned = np.minimum(use[mine].min(axis=0), 0.0)
        use[mine] -= earned
        available = available - earned
    pool, enough = _pool_of(coverings, use, available, pieces), available + HAIR * (1 + available)
    cells = pieces.first.size
    # Steps need a target to go to: more than any choice costs, if there is no other.
    most = np.zeros(pool.phases)
    np.maximum.at(most, pool.phase, pool.cost)
    dearest = float(pieces.surcharge @ pieces.nodes)
    target, chosen = min(limits.target, 1.0 + 2.0 * float(most.sum()) + dearest), None
    stack = [_ChoiceNode(-np.inf, np.arange(len(coverings)), price)]
    for number in range(limits.nodes):
        if not stack or time.perf_counter() >= limits.deadline:
            break
        node = stack.pop()
        if node.bound >= target:
            continue
        steps, length = STEPS if number else FIRST_STEPS
        bound, best, alive, mean, cheapest = settle(pool, node.alive, node.price, target, steps, length)
        bound = max(bound, node.bound)
        if bound >= target or not len(alive):
            continue
        used = use[cheapest].sum(axis=0)
        cost = float(pool.cost[cheapest].sum()) + pieces.surcharges(used[:cells])
        if cost < target and (used <= enough).all():
            chosen, target = cheapest, cost * (1 - limits.gap)
        stack += _children(pool, use, _ChoiceNode(bound, alive, best), mean, cheapest)
    # Whatever the steps went to: where there is no choice at all, none costs less than what was asked for.
    end = limits.target if chosen is None else target
    return Choice(chosen, min([end, *(node.bound for node in stack)]))


def _pool_of(coverings: Coverings, use: Floats, available: Floats, pieces: Segments) -> CoveringPool:
    from coralopt.allocation.search.choice_kernel import CoveringPool

    phases, phase = np.unique(coverings.phase, return_inverse=True)
    width = max(1, int((use > 0).sum(axis=1).max()))
    cell = np.argsort(use <= 0, axis=1, kind="stable")[:, :width]
    amount = np.take_along_axis(use, cell, axis=1)
    cell = np.where(amount > 0, cell, -1)
    dear = pieces.cell, pieces.nodes.astype(np.float64), pieces.surcharge
    return CoveringPool(phase.astype(np.int64), coverings.cost, cell, amount, available, len(phases), *dear)


def _children(pool: CoveringPool, use: Floats, node: _ChoiceNode, mean: Floats, cheapest: Ints) -> list[_ChoiceNode]:
    """What a node splits into, the most promising last; nothing where there is no choice left."""
    alive, price = node.alive, node.price
    phase, cell = pool.phase[alive], pool.cell[alive]
    weight = pool.cost[alive] + (np.where(cell >= 0, price[cell], 0.0) * pool.amount[alive]).sum(axis=1)
    count = np.bincount(phase, minlength=pool.phases)
    if count.max() == 1:
        return []
    least = np.full(pool.phases, np.inf)
    np.minimum.at(least, phase, weight)
    fewest = int(np.where(count > 1, count, len(alive) + 1).argmin())
    if count[fewest] <= FEW:
        others, mine = phase != fewest, np.flatnonzero(phase == fewest)
        mine = mine[np.argsort(-weight[mine], kind="stable")]
        children = []
        for k in mine.tolist():
            own = others.copy()
            own[k] = True
            children.append(_ChoiceNode(node.bound + float(weight[k] - least[fewest]), alive[own], price))
        return children
    p, low = _split(use[alive], phase, price, mean, fewest)
    first = low[np.flatnonzero(alive == cheapest[p])].any()
    sides = []
    for side in (low, (phase == p) & ~low) if not first else ((phase == p) & ~low, low):
        bound = node.bound + float(weight[side].min() - least[p])
        sides.append(_ChoiceNode(bound, alive[(phase != p) | side], price))
    return sides


def _split(use: Floats, phase: Ints, price: Floats, mean: Floats, fewest: int) -> tuple[int, Bools]:
    """A phase, and those of its coverings that use at most so many nodes of a cell, where the mean lies between."""
    part = mean - np.floor(mean)
    score = np.minimum(part, 1 - part) * (price + price.mean() + 1e-9)
    for place in np.argsort(-score, axis=None, kind="stable")[:20].tolist():
        p, cell = divmod(place, use.shape[1])
        mine = phase == p
        low = mine & (use[:, cell] <= np.floor(mean[p, cell]))
        if low.any() and (mine & ~low).any():
            return p, low
    # The mean says nothing: the cell that halves the coverings of the phase with the fewest best.
    mine = phase == fewest
    own = use[mine]
    above = own > own.min(axis=0)
    cell = int(np.minimum(above.sum(axis=0), (~above).sum(axis=0)).argmax())
    low = mine & (use[:, cell] <= own[:, cell].min())
    if (mine & ~low).any():
        return fewest, low
    # All on the same nodes: the first against the rest.
    low = np.zeros_like(mine)
    low[np.flatnonzero(mine)[0]] = True
    return fewest, low
