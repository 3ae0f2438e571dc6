"""The step ``branching``: branch and bound on how many nodes of a kind a model phase uses, in a region or in all.

Where supply is scarce the Lagrangian bound stays below the optimum, since its master programme splits scarce nodes
between phases in fractions. So the tree branches on just that: phase m uses at most k nodes of a configuration, or at
least k + 1, in one region or, where these are many, in all of them together; of several such pairs it takes the one
that promises to lift the bound most (module ``splitting``). A phase that is limited in one region often takes nodes of
another at nearly the same price, so limits over all regions raise bounds more. Coverings that fit hold each cell of such
a limit to it, which is a relaxation; the lists at the end of a branch hold the sum. Each node of the tree solves its own
decomposition (module ``decomposition``), a limit being one more row whose price only that phase pays, and drops the
columns that have become too dear. A node ends when its bound reaches the target, or when its near coverings (module
``coverings``) are few enough to choose from at once (module ``choice``); one that is hard to choose from is split. Where
they are too many, but columns are few, the back end settles it or raises its bound (module ``node_programme``). The
node of least bound is next, so the least bound of the open nodes is a bound on the whole. Two are looked at side by side.

A tree may run in several goes, with steps in between that lower the cost. Its nodes bring coverings that fit beside each
other, since limits keep phases off each other's nodes: after a go the best choice among all of them is looked for, too.

Limits lose nothing: an optimal allocation whose coverings have no superfluous instance satisfies the limits of one
child or the other, and whatever replaces one of its coverings within a tree node satisfies the limits as well.

Everything is relative to a target t: nodes whose bound is at least t are not looked at further. What comes back is a bound
on every allocation that uses the given columns, at most t.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coralopt.allocation.bounds.coverings import HAIR, Coverings, NodeLimit, listable
from coralopt.allocation.bounds.decomposition import Decomposition, MasterState, best_prices
from coralopt.allocation.bounds.fitting import FittingPricing, knows_fitting
from coralopt.allocation.bounds.listing import near_coverings
from coralopt.allocation.bounds.pricing import Covering, PricingProblem
from coralopt.allocation.search.best_first import OpenNodes, Settled
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.coverings import best_choice, by_backend, by_tree, choose_among
from coralopt.allocation.search.node_programme import ProgrammeAnswer, has_programme, solve_programme
from coralopt.allocation.search.splitting import Rises, Side, best_split
from coralopt.solving import Proof
from coralopt.types import Floats, Ints

#: Nodes that are looked at side by side.
AHEAD = 2
#: How many more coverings are chosen among again, and how long that takes, as a share of the tree's time.
GROWN, CHOICE = 1.5, 0.4
#: Coverings are listed again once so large a share of the columns is left that they were too many with.
FEWER = 0.5
#: The slack that the back end reaches, times that of a node where it paid, or where it did not.
FURTHER, NEARER = 1.1, 0.8
#: Share of a node's slack by which the back end must raise its bound to pay; seconds that it may take there, at least and at
#: most; share of the tree's time that it may have taken for nothing.
PAYS, LEAST_SECONDS, MOST_SECONDS, FOR_NOTHING = 0.25, 1.0, 5.0, 0.2


@dataclass(frozen=True, eq=False)
class _Learnt:
    """What nodes that are known say of others; see :class:`_Tree`."""

    rises: Rises
    reach: float
    seconds: float


@dataclass(frozen=True)
class _Tried:
    """A node of so much slack, USD/h, went to the back end, for a share of the time that one may take at most."""

    slack: float
    share: float


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


class Branching:
    """A tree below a target, which is raised until an allocation within the gap is found, in one go or several.

    Args:
        search: What is known; better allocations and bounds are kept.
        root: The bounds over all columns.
    """

    def __init__(self, search: SearchContext, root: Root) -> None:
        self.search, self.root, self.rise = search, root, search.limits.first_rise
        self.tree: _Tree | None = None
        #: Coverings of the tree that were chosen among last.
        self.chosen_among = 0

    def go(self, share: float | None = None) -> None:
        """Go on from where the last go ended.

        Args:
            share: Of the time left that the tree may take; ``None`` is that of any step.
        """
        search, lagrangian = self.search, self.root.lagrangian
        for _ in range(search.limits.doublings):
            if not search.open() or search.left() == 0:
                break
            if self.tree is None:
                guess = lagrangian.bound + self.rise * abs(lagrangian.bound)
                self.tree, self.chosen_among = _Tree(search, self.root, guess), 0
            bound = self.tree.bound(search.share_of_left() if share is None else share * search.left())
            search.raise_bound(bound, self.tree.proof)
            search.lap("branching")
            if bound < self.tree.target():
                self._choose_among_met(self.tree)
                break
            self.tree, self.rise = None, 2 * self.rise

    def _choose_among_met(self, tree: _Tree) -> None:
        """Limits of the nodes bring coverings that fit beside each other: so many make an allocation, sooner or later."""
        if self.search.open() and len(tree.met) > GROWN * self.chosen_among:
            self.chosen_among = len(tree.met)
            choosers = [partial(by, seconds=CHOICE * tree.seconds) for by in (by_tree, by_backend)]
            choose_among(self.search, list(tree.met.values()), choosers)


class _Tree:
    """One tree below a target.

    Args:
        search: What is known; better allocations are offered to it.
        root: The bounds over all columns.
        guess: Target while no allocation is known that makes a lower one, USD/h.
    """

    def __init__(self, search: SearchContext, root: Root, guess: float) -> None:
        # It must not rise: what is dropped at a target costs no more than that.
        self.search, self.highest = search, max(guess, search.bound)
        self.own_deadline, self.seconds, self.begun = math.inf, 0.0, time.perf_counter()
        self.rises = Rises()
        #: Slack, USD/h, up to which nodes go to the back end: what it settled before says how far it reaches.
        self.reach, self.for_nothing = math.inf, 0.0
        self.programmes = has_programme(search.within_cuts, search.backend)
        #: What the bound rests on.
        self.proof = Proof.OWN_BOUND
        #: Coverings of the nodes' master programmes, by phase and members.
        self.met: dict[tuple[int, tuple[tuple[int, int], ...]], Covering] = {}
        alive = np.flatnonzero(root.lagrangian.column_bounds <= self.target())
        self.open = OpenNodes.of(root.lagrangian.bound, _Node((), alive, search.best))

    @property
    def deadline(self) -> float:
        """``time.perf_counter`` at which it ends: that of its share, or of the search, which Ctrl-C sets to now."""
        return min(self.own_deadline, self.search.deadline)

    def target(self) -> float:
        """What is worth proving, USD/h; falls as better allocations are found."""
        search = self.search
        return min(search.target, search.worth_proving(), self.highest)

    def bound(self, seconds: float) -> float:
        """A bound on every allocation of the columns below the target, USD/h, after so many seconds more at most."""
        search, self.begun = self.search, time.perf_counter()
        self.own_deadline = self.begun + seconds
        with search.side_by_side(search.lanes) as lanes:
            least = self.open.search(self.look, self.goes_on, search.limits.tree_nodes, lanes, AHEAD)
        self.seconds += time.perf_counter() - self.begun
        return min(least, self.target())

    def goes_on(self, least: float) -> bool:
        """Whether there is time, and something to gain below the target."""
        return time.perf_counter() < self.deadline and least < self.target()

    def look(self, least: float, node: _Node) -> Callable[[], Callable[[], Settled[_Node]]]:
        """What to do in a node of bound ``least``, below the target as it is now."""
        learnt = _Learnt(self.rises.so_far(), self.reach, self._spare())
        return partial(self._weigh, least, node, self.target(), learnt)

    def _spare(self) -> float:
        """Seconds that the back end may take for one more node."""
        if math.isinf(self.search.deadline):
            # Its nodes limit it, so that results do not depend on the clock.
            return MOST_SECONDS
        taken = self.seconds + time.perf_counter() - self.begun
        return min(FOR_NOTHING * taken - self.for_nothing + LEAST_SECONDS, MOST_SECONDS)

    def _weigh(self, least: float, node: _Node, goal: float, learnt: _Learnt) -> Callable[[], Settled[_Node]]:
        """A bound on what is settled in a node of bound ``least``, infinite where nothing is, and its children."""
        search = self.search
        small, columns = search.within_cuts, search.columns
        pricing: PricingProblem
        if knows_fitting(small):
            pricing = FittingPricing(small, columns, node.alive, node.limits, until=self.deadline)
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
            return partial(self._learn, node, goal, (), lambda: (np.inf, []))
        met = master.state.coverings
        if here >= goal:
            return partial(self._learn, node, goal, met, lambda: (here, []))
        return partial(self._learn, node, master.bound, met, self._divide(here, node, master, goal, learnt))

    def _learn(
        self, node: _Node, bound: float, met: Sequence[Covering], settle: Callable[[], Settled[_Node]]
    ) -> Settled[_Node]:
        """What comes of a node, whose bound is kept for later splits, and its coverings to choose among."""
        self.met.update(((covering.phase, covering.members), covering) for covering in met)
        if node.side is not None:
            self.rises.add(node.side, bound - node.before)
        return settle()

    def _divide(
        self, here: float, node: _Node, master: Decomposition, goal: float, learnt: _Learnt
    ) -> Callable[[], Settled[_Node]]:
        """The same of a node that the bound of its master programme, or of its parents', does not end."""
        search = self.search
        small, columns, near = search.within_cuts, search.columns, master.near(goal)
        slack, most = goal - master.bound + 1e-9 * abs(goal), search.limits.leaf_coverings
        # Where nothing seems to fit within the limits, though the bound does not show it yet, there is nothing to branch on.
        split = None if np.isinf(master.master) else best_split(small, node.limits, master, learnt.rises, slack)
        coverings, listed = None, node.listed
        if listable(small) and (split is None or len(near.chosen) <= FEWER * listed):
            listed = len(near.chosen)
            coverings = near_coverings(small, columns, near, slack, most, self.deadline, node.limits)
        if coverings is not None:
            # Lists of the children are shorter.
            listed = np.inf
        children: list[_Node] = []
        for side in () if split is None else split.sides():
            limits, newest = side.within(small, node.limits)
            # Coverings that the child may still use.
            known = tuple(
                covering
                for covering in master.state.coverings
                if covering.phase != side.phase or newest.least <= newest.counted(covering.use) <= newest.most
            )
            state = replace(master.state, coverings=known)
            children.append(_Node(limits, near.chosen, state, listed, side, master.bound))
        if coverings is not None:
            return partial(self._choose, node, coverings, master.state.row_prices(), here, goal, children)
        few = len(near.chosen) <= search.limits.programme_columns
        if self.programmes and few and (split is None or (slack <= learnt.reach and learnt.seconds >= LEAST_SECONDS)):
            seconds = math.inf if math.isinf(search.deadline) else max(learnt.seconds, LEAST_SECONDS)
            left = min(max(self.deadline - time.perf_counter(), 0.0), seconds)
            # Presolve takes longer than it saves.
            nodes = search.limits.programme_nodes
            options = replace(search.with_gap(0.25, left), node_limit=nodes, threads=1, presolve=False)
            answer = solve_programme(search, near, node.limits, goal, options)
            tried = _Tried(slack, min(seconds / MOST_SECONDS, 1.0))
            return partial(self._take, node, answer, tried, here, goal, children)
        return lambda: self._split(node, here, children)

    def _choose(
        self,
        node: _Node,
        coverings: Coverings,
        price: Floats,
        here: float,
        goal: float,
        children: list[_Node],
    ) -> Settled[_Node]:
        """The same of a node with few coverings, where a better allocation is kept; what is hard to choose from is split."""
        if time.perf_counter() < self.deadline:
            nodes = self.search.limits.leaf_nodes if children else self.search.limits.choice_nodes
            bound = best_choice(self.search, coverings, price, goal, partial(by_tree, nodes=nodes))
            # Whatever is not listed costs at least the goal.
            here = max(here, min(goal, bound))
            # The best choice is a sum in another order than its allocation's cost.
            if here >= self.target() * (1 - HAIR):
                return here, []
        return self._split(node, here, children)

    def _take(
        self, node: _Node, answer: ProgrammeAnswer, tried: _Tried, here: float, goal: float, children: list[_Node]
    ) -> Settled[_Node]:
        """The same of a node that went to the back end."""
        self.search.heed(answer.termination)
        if answer.ended or min(goal, answer.bound) - here >= PAYS * tried.slack:
            self.reach = max(self.reach, FURTHER * tried.slack)
        else:
            # A short try says little.
            self.reach = min(self.reach, (1 - (1 - NEARER) * tried.share) * tried.slack)
            self.for_nothing += answer.seconds
        if answer.allocation is not None:
            self.search.offer(answer.allocation)
        if min(goal, answer.bound) > here:
            here, self.proof = min(goal, answer.bound), Proof.SOLVER
        if here >= self.target() * (1 - HAIR):
            return here, []
        return self._split(node, here, children)

    def _split(self, node: _Node, here: float, children: list[_Node]) -> Settled[_Node]:
        """The children of a node of bound ``here``; the node itself where time ended before all was known."""
        if children:
            return np.inf, [(here, child) for child in children]
        return (np.inf, [(here, node)]) if time.perf_counter() >= self.deadline else (here, [])
