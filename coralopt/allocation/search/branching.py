"""The step ``branching``: branch and bound on how many nodes of a kind a model phase uses, in a region or in all.

Where supply is scarce the Lagrangian bound stays below the optimum, since its master programme splits scarce nodes
between phases in fractions. So the tree branches on just that: phase m uses at most k nodes of a configuration, or at
least k + 1, in one region or, where these are many, in all of them together; of several such pairs it takes the one
whose master programmes cost most. A phase that is limited in one region often takes nodes of another at nearly the
same price, so limits over all regions raise bounds more. Coverings that fit hold each cell of such a limit to it,
which is a relaxation; the lists at the end of a branch hold the sum. Each node of the tree solves its own
decomposition (module ``decomposition``), a limit being one more row whose price only that phase pays, and drops the
columns that have become too dear. A node ends when its bound reaches the target, or when its near coverings (module
``coverings``) are few enough to hand over to the back end at once. The node of least bound is next, so the least
bound of the open nodes is a bound on the whole. Two are looked at side by side.

Limits lose nothing: an optimal allocation whose coverings have no superfluous instance satisfies the limits of one
child or the other, and whatever replaces one of its coverings within a tree node satisfies the limits as well.

Everything is relative to a target t: nodes whose bound is at least t are not looked at further. What comes back is a bound
on every allocation that uses the given columns, at most t.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings, NodeLimit, listable
from coralopt.allocation.bounds.decomposition import Decomposition, MasterState, best_prices
from coralopt.allocation.bounds.fitting import FittingPricing, knows_fitting
from coralopt.allocation.bounds.listing import near_coverings
from coralopt.allocation.bounds.mix import KnownMaster
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.search.best_first import Settled, best_first
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.coverings import best_choice, by_tree
from coralopt.types import Floats, Ints

#: Nodes that are looked at side by side.
AHEAD = 2
#: Least distance from a whole number of nodes that counts as split.
SPLIT = 1e-4
#: Limits of each kind that are tried before one is branched on.
CANDIDATES = 8
#: From so many regions on nodes are counted over all of them, too. In fewer, limits of one region say more: coverings that
#: fit hold each cell to what it may be, the sum of several only in prices.
MANY_REGIONS = 4
#: Coverings are listed again once so large a share of the columns is left that they were too many with.
FEWER = 0.8


@dataclass(frozen=True, eq=False)
class _Node:
    limits: tuple[NodeLimit, ...]
    alive: Ints
    state: MasterState
    #: Columns whose coverings were too many to be listed.
    listed: float = np.inf


def branch(search: SearchContext, root: Root, share: float | None = None) -> None:
    """A tree below a target, which is raised until an allocation within the gap is found.

    Args:
        search: What is known; better allocations and bounds are kept.
        root: The bounds over all columns.
        share: Of the time left that a tree may take; ``None`` is that of any step.
    """
    lagrangian, rise = root.lagrangian, search.limits.first_rise
    for _ in range(search.limits.doublings):
        if not search.open() or search.left() == 0:
            break
        seconds = search.share_of_left() if share is None else share * search.left()
        tree = _Tree(search, root, lagrangian.bound + rise * abs(lagrangian.bound), seconds)
        bound = tree.bound()
        search.raise_bound(bound)
        search.lap("branching")
        if bound < tree.target():
            break
        rise *= 2


class _Tree:
    """One tree below a target.

    Args:
        search: What is known; better allocations are offered to it.
        root: The bounds over all columns.
        guess: Target while no allocation is known that makes a lower one, USD/h.
        seconds: How long it may take.
    """

    def __init__(self, search: SearchContext, root: Root, guess: float, seconds: float) -> None:
        self.search, self.guess = search, guess
        self.own_deadline = time.perf_counter() + seconds
        alive = np.flatnonzero(root.lagrangian.column_bounds <= self.target())
        self.first, self.first_bound = _Node((), alive, search.best), root.lagrangian.bound

    @property
    def deadline(self) -> float:
        """``time.perf_counter`` at which it ends: that of its share, or of the search, which Ctrl-C sets to now."""
        return min(self.own_deadline, self.search.deadline)

    def target(self) -> float:
        """What is worth proving, USD/h; falls as better allocations are found."""
        search = self.search
        return min(search.target, search.worth_proving(), max(self.guess, search.bound))

    def bound(self) -> float:
        """A bound on every allocation of the columns below the target, USD/h."""
        search = self.search
        with search.side_by_side(search.lanes) as lanes:
            most = search.limits.tree_nodes
            least = best_first(self.first_bound, self.first, self.look, self.goes_on, most, lanes, AHEAD)
        return min(least, self.target())

    def goes_on(self, least: float) -> bool:
        """Whether there is time, and something to gain below the target."""
        return time.perf_counter() < self.deadline and least < self.target()

    def look(self, least: float, node: _Node) -> Callable[[], Callable[[], Settled[_Node]]]:
        """What to do in a node of bound ``least``, below the target as it is now."""
        return partial(self._weigh, least, node, self.target())

    def _weigh(self, least: float, node: _Node, goal: float) -> Callable[[], Settled[_Node]]:
        """A bound on what is settled in a node of bound ``least``, infinite where nothing is, and its children."""
        search = self.search
        small, columns = search.within_cuts, search.columns
        pricing, state = PricingProblem(small, columns, node.alive, node.limits), node.state
        if knows_fitting(small):
            pricing = FittingPricing(small, columns, node.alive, node.limits)
            state = pricing.started(state)
        master = best_prices(pricing, state, search.lp_solver, self.deadline, enough=goal)
        here = max(least, master.bound)
        if time.perf_counter() >= self.deadline:
            # Its decomposition may have been cut short; its bound holds, but there is no time to use it.
            return lambda: (np.inf, [(here, node)])
        if np.isneginf(master.bound):
            # Some phase cannot be covered within the limits: nothing is here.
            return lambda: (np.inf, [])
        if here >= goal:
            return lambda: (here, [])
        near = master.near(goal)
        slack, most = goal - master.bound + 1e-9 * abs(goal), search.limits.leaf_coverings
        # Where nothing seems to fit within the limits, though the bound does not show it yet, there is nothing to branch on.
        split = None if np.isinf(master.master) else _split(small, node, master)
        coverings, listed = None, node.listed
        if listable(small) and (split is None or len(near.chosen) <= FEWER * listed):
            listed = len(near.chosen)
            coverings = near_coverings(small, columns, near, slack, most, self.deadline, node.limits)
        if coverings is not None:
            return partial(self._choose, coverings, master.state.row_prices(), here, goal)
        if split is None:
            return lambda: (here, [])
        phase, cells, value = split
        children = []
        for limits, newest in _children(small, node.limits, phase, cells, value):
            # Coverings that the child may still use.
            known = tuple(
                covering
                for covering in master.state.coverings
                if covering.phase != phase or newest.least <= newest.counted(covering.use) <= newest.most
            )
            state = replace(master.state, coverings=known)
            children.append((here, _Node(limits, near.chosen, state, listed)))
        return lambda: (np.inf, children)

    def _choose(self, coverings: Coverings, price: Floats, here: float, goal: float) -> Settled[_Node]:
        """The same of a node with few coverings, where a better allocation is kept."""
        if time.perf_counter() >= self.deadline:
            # As when Ctrl-C came in the leaf before.
            return here, []
        # Whatever is not listed costs at least the goal.
        return max(here, min(goal, best_choice(self.search, coverings, price, goal, by_tree))), []


def _split(problem: AllocationProblem, node: _Node, master: Decomposition) -> tuple[int, tuple[int, ...], float] | None:
    """The phase and cells to branch on, and how many nodes it uses.

    Of those whose nodes are split most, by what they are worth, the one whose children cost most over the coverings that the
    master knows (strong branching): the product of what they cost more.
    """
    mean = master.mean_use[:, : problem.price.size]
    worth = np.nan_to_num(problem.price).ravel() + master.state.capacity_prices.ravel()
    settled = {
        (limit.phase, limit.cells)
        for limit in node.limits
        # Where a limit holds only within rounding there is nothing to split.
        if limit.least == limit.most or not limit.least <= float(limit.counted(mean[limit.phase])) <= limit.most
    }
    known = KnownMaster.of(problem, node.limits, master.state.coverings, master.state.capacity_prices)
    best: tuple[float, tuple[int, tuple[int, ...], float]] | None = None
    for kind in _countable(problem):
        value = np.stack([mean[:, list(cells)].sum(axis=1) for cells in kind])
        part = value - np.floor(value)
        split = (part > SPLIT) & (part < 1 - SPLIT)
        for k, phase in np.argwhere(split).tolist():
            split[k, phase] = (phase, kind[k]) not in settled
        least = np.array([worth[list(cells)].min() for cells in kind])
        score = np.where(split, np.minimum(part, 1 - part) * least[:, None], 0.0)
        most = np.argsort(-score, axis=None, kind="stable")[:CANDIDATES]
        for place in most[score.ravel()[most] > 0].tolist():
            k, phase = divmod(place, score.shape[1])
            cells, nodes = kind[k], int(np.floor(value[k, phase]))
            rises = known.at_most(phase, cells, nodes), known.at_least(phase, cells, nodes + 1)
            # One that gains nothing must not make the other one worthless.
            gain = math.prod(max(rise / abs(known.mix.value), 1e-7) for rise in rises)
            if best is None or gain > best[0]:
                best = gain, (phase, cells, float(value[k, phase]))
    return None if best is None else best[1]


def _countable(problem: AllocationProblem) -> list[list[tuple[int, ...]]]:
    """What a phase may use many or few of, by kind: nodes of a configuration in one region, and in all of them."""
    regions, configurations = problem.price.shape
    cells = np.arange(problem.price.size).reshape(regions, configurations)
    kinds: list[list[tuple[int, ...]]] = [[(cell,) for cell in cells.ravel().tolist()]]
    if regions >= MANY_REGIONS:
        kinds.append([tuple(everywhere) for everywhere in cells.T.tolist()])
    return kinds


def _children(
    problem: AllocationProblem, limits: tuple[NodeLimit, ...], phase: int, cells: tuple[int, ...], value: float
) -> list[tuple[tuple[NodeLimit, ...], NodeLimit]]:
    """The limits of the two children, and which of these is the new one."""
    old = next((limit for limit in limits if limit.phase == phase and limit.cells == cells), None)
    least, most = (0, int(problem.availability.ravel()[list(cells)].sum())) if old is None else (old.least, old.most)
    low, place = int(np.floor(value)), len(limits) if old is None else limits.index(old)
    both = NodeLimit(phase, cells, least, low), NodeLimit(phase, cells, low + 1, most)
    return [((*limits[:place], new, *limits[place + 1 :]), new) for new in both]
