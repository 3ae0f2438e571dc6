"""The step ``branching``: branch and bound on how many nodes of a kind a model phase uses, in a region or in all.

Where supply is scarce the Lagrangian bound stays below the optimum, since its master programme splits scarce nodes
between phases in fractions. So the tree branches on just that: phase m uses at most k nodes of a configuration, or at
least k + 1, in one region or, where these are many, in all of them together; of several such pairs it takes the one
that promises to lift the bound most (module ``splitting``). A phase that is limited in one region often takes nodes of
another at nearly the same price, so limits over all regions raise bounds more. Coverings that fit hold each cell of such
a limit to it, which is a relaxation; the lists at the end of a branch hold the sum. Each node of the tree solves its own
decomposition (module ``decomposition``), a limit being one more row whose price only that phase pays, and drops the
columns that have become too dear. A node ends when its bound reaches the target, or when its near coverings (module
``coverings``) are few enough to choose from at once (module ``choice``); one that is hard to choose from is split. The
node of least bound is next, so the least bound of the open nodes is a bound on the whole. Two are looked at side by side.

Limits lose nothing: an optimal allocation whose coverings have no superfluous instance satisfies the limits of one
child or the other, and whatever replaces one of its coverings within a tree node satisfies the limits as well.

Everything is relative to a target t: nodes whose bound is at least t are not looked at further. What comes back is a bound
on every allocation that uses the given columns, at most t.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coralopt.allocation.bounds.coverings import HAIR, Coverings, NodeLimit, listable
from coralopt.allocation.bounds.decomposition import Decomposition, MasterState, best_prices
from coralopt.allocation.bounds.fitting import FittingPricing, knows_fitting
from coralopt.allocation.bounds.listing import near_coverings
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.search.best_first import Settled, best_first
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.coverings import best_choice, by_tree
from coralopt.allocation.search.splitting import Rises, Side, best_split
from coralopt.types import Floats, Ints

#: Nodes that are looked at side by side.
AHEAD = 2
#: Coverings are listed again once so large a share of the columns is left that they were too many with.
FEWER = 0.5


@dataclass(frozen=True, eq=False)
class _Node:
    limits: tuple[NodeLimit, ...]
    alive: Ints
    state: MasterState
    #: Columns whose coverings were too many to be listed.
    listed: float = np.inf
    #: The side of its parent's split that it is, and the parent's bound, USD/h.
    side: Side | None = None
    before: float = -np.inf


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
        self.rises = Rises()
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
        return partial(self._weigh, least, node, self.target(), self.rises.so_far())

    def _weigh(self, least: float, node: _Node, goal: float, rises: Rises) -> Callable[[], Settled[_Node]]:
        """A bound on what is settled in a node of bound ``least``, infinite where nothing is, and its children."""
        search = self.search
        small, columns = search.within_cuts, search.columns
        pricing: PricingProblem
        if knows_fitting(small):
            pricing = FittingPricing(small, columns, node.alive, node.limits)
            state = pricing.started(node.state)
        else:
            pricing, state = PricingProblem(small, columns, node.alive, node.limits), node.state
        master = best_prices(pricing, state, search.lp_solver, self.deadline, enough=goal)
        here = max(least, master.bound)
        if time.perf_counter() >= self.deadline:
            # Its decomposition may have been cut short; its bound holds, but there is no time to use it.
            return lambda: (np.inf, [(here, node)])
        if np.isneginf(master.bound):
            # Some phase cannot be covered within the limits: nothing is here.
            return partial(self._learn, node, goal, lambda: (np.inf, []))
        if here >= goal:
            return partial(self._learn, node, goal, lambda: (here, []))
        return partial(self._learn, node, master.bound, self._divide(here, node, master, goal, rises))

    def _learn(self, node: _Node, bound: float, settle: Callable[[], Settled[_Node]]) -> Settled[_Node]:
        """What comes of a node, whose bound is kept for later splits."""
        if node.side is not None:
            self.rises.add(node.side, bound - node.before)
        return settle()

    def _divide(
        self, here: float, node: _Node, master: Decomposition, goal: float, rises: Rises
    ) -> Callable[[], Settled[_Node]]:
        """The same of a node that the bound of its master programme, or of its parents', does not end."""
        search = self.search
        small, columns, near = search.within_cuts, search.columns, master.near(goal)
        slack, most = goal - master.bound + 1e-9 * abs(goal), search.limits.leaf_coverings
        # Where nothing seems to fit within the limits, though the bound does not show it yet, there is nothing to branch on.
        split = None if np.isinf(master.master) else best_split(small, node.limits, master, rises, slack)
        coverings, listed = None, node.listed
        if listable(small) and (split is None or len(near.chosen) <= FEWER * listed):
            listed = len(near.chosen)
            coverings = near_coverings(small, columns, near, slack, most, self.deadline, node.limits)
        if coverings is not None:
            # Lists of the children are shorter.
            listed = np.inf
        children: list[tuple[float, _Node]] = []
        for side in () if split is None else split.sides():
            limits, newest = side.within(small, node.limits)
            # Coverings that the child may still use.
            known = tuple(
                covering
                for covering in master.state.coverings
                if covering.phase != side.phase or newest.least <= newest.counted(covering.use) <= newest.most
            )
            state = replace(master.state, coverings=known)
            children.append((here, _Node(limits, near.chosen, state, listed, side, master.bound)))
        if coverings is not None:
            return partial(self._choose, coverings, master.state.row_prices(), here, goal, children)
        return lambda: (np.inf if children else here, children)

    def _choose(
        self, coverings: Coverings, price: Floats, here: float, goal: float, children: list[tuple[float, _Node]]
    ) -> Settled[_Node]:
        """The same of a node with few coverings, where a better allocation is kept; what is hard to choose from is split."""
        if time.perf_counter() >= self.deadline:
            # As when Ctrl-C came in the leaf before.
            return here, []
        nodes = self.search.limits.leaf_nodes if children else self.search.limits.choice_nodes
        bound = best_choice(self.search, coverings, price, goal, partial(by_tree, nodes=nodes))
        # Whatever is not listed costs at least the goal.
        here = max(here, min(goal, bound))
        # The best choice is a sum in another order than its allocation's cost.
        if not children or here >= self.target() * (1 - HAIR):
            return here, []
        return np.inf, [(here, child) for _, child in children]
