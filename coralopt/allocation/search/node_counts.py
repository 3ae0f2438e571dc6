"""The step ``node counts``: branch and bound on how many nodes of a kind an allocation uses in a region.

Where templates serve several model phases at once, the allocation is a bin packing: few nodes, each with one of very many
sets of phases, nearly all of them at the price of one node. Its linear relaxation rents half a node of one kind and half
of another, and no single column says so. So the tree branches on the sums: at most k nodes of a configuration in a region,
the capacity row with another right-hand side, or at least k + 1, a side constraint. In every tree node the relaxation over
all columns gives a safe dual bound. Where all sums are whole, the columns whose reduced cost the target leaves room for go
to the back end; the node of least bound is next, so the least bound of the open nodes is one on the whole.

Literature: branching on aggregated variables, as in branch and price for cutting stock with several stock lengths
(F. Vanderbeck, "Computational study of a column generation algorithm for bin packing and cutting stock problems",
Mathematical Programming 86, 1999).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coralopt.allocation.bounds.relaxation import SHORTFALL, dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.search.best_first import OpenNodes, Settled
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.fixing import solve_part
from coralopt.allocation.search.splitting import SPLIT
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.solving import Proof, Reason
from coralopt.threads import Lanes
from coralopt.types import Floats

#: Columns of least reduced cost with which the relaxation of a child begins.
WARM_COLUMNS = 2_000


@dataclass(frozen=True, eq=False)
class _CountNode:
    """A node of the tree, its relaxation solved.

    Attributes:
        problem: The problem within the node's limits.
        bound: USD/h, what every allocation within them costs at least.
        reduced_costs: float64 (N,), USD/h, at the relaxation's duals.
        used: float64 (R, C), nodes in use in the relaxation.
    """

    problem: AllocationProblem
    bound: float
    reduced_costs: Floats
    used: Floats

    def split(self) -> tuple[int, int] | None:
        """Region and configuration whose nodes are split most, by what they are worth; ``None`` if all are whole."""
        part = self.used - np.floor(self.used)
        part[(part < SPLIT) | (part > 1 - SPLIT)] = 0.0
        worth = np.minimum(part, 1 - part) * np.nan_to_num(self.problem.price)
        if not part.any():
            return None
        # Free nodes are split as well.
        place = int(np.argmax(worth if worth.any() else part))
        region, configuration = divmod(place, self.used.shape[1])
        return region, configuration

    def children(self, region: int, configuration: int) -> tuple[AllocationProblem, AllocationProblem]:
        """At most as many nodes as the whole part of what is in use, or at least one more."""
        low = math.floor(self.used[region, configuration])
        availability = self.problem.availability.copy()
        availability[region, configuration] = low
        name = f"used nodes[{region},{configuration}]"
        least = SideConstraint(name, "least", "used_nodes", low + 1.0, None, (region,), (configuration,))
        others = tuple(item for item in self.problem.side_constraints if item.name != name)
        return replace(self.problem, availability=availability), replace(
            self.problem, side_constraints=(*others, least)
        )


def branch_on_node_counts(search: SearchContext, root: Root) -> None:
    """The tree, until the gap is proven, or half of the time left or the limit of tree nodes is used up."""
    small, deadline = search.small, time.perf_counter() + search.share_of_left()
    if small.supply:
        # What nodes of several classes cost together is not one row.
        return

    def goes_on(least: float) -> bool:
        # After Ctrl-C nothing is left, whatever the tree's own share was.
        return least < search.worth_proving() and time.perf_counter() < deadline and search.left() > 0

    def look(_: float, node: _CountNode) -> Settled[_CountNode]:
        place = node.split()
        if place is None:
            return _solve_leaf(search, node), []
        relaxed = (_relaxed(search, problem, node) for problem in node.children(*place))
        return math.inf, [(child.bound, child) for child in relaxed if child is not None]

    first = _counted(search, small, search.bound, root.reduced_costs, root.relaxation.x)

    def one_by_one(least: float, node: _CountNode) -> Callable[[], Callable[[], Settled[_CountNode]]]:
        # Leaves are the back end's, and what it says is kept.
        return lambda: partial(look, least, node)

    with Lanes(1) as lanes:
        least = OpenNodes.of(first.bound, first).search(one_by_one, goes_on, search.limits.tree_nodes, lanes)
    # The leaves are the back end's.
    search.raise_bound(min(least, search.worth_proving()), Proof.SOLVER)
    search.lap("node counts")


def _relaxed(search: SearchContext, problem: AllocationProblem, parent: _CountNode) -> _CountNode | None:
    """The node of this problem, ``None`` where nothing is within its limits."""
    columns = search.columns
    active = np.zeros(len(columns), dtype=np.bool_)
    active[np.argsort(parent.reduced_costs, kind="stable")[:WARM_COLUMNS]] = True
    relaxation = solve_relaxation(problem, columns, search.lp_solver, active)
    if (relaxation.shortfall > SHORTFALL).any():
        return None
    prices = reduced_costs(
        problem, columns, relaxation.demand_duals, relaxation.capacity_prices, relaxation.side_prices
    )
    bound = max(parent.bound, dual_bound(problem, columns, relaxation, prices))
    return _counted(search, problem, bound, prices, relaxation.x)


def _counted(search: SearchContext, problem: AllocationProblem, bound: float, prices: Floats, x: Floats) -> _CountNode:
    columns = search.columns
    used = np.zeros(problem.price.shape)
    some = np.flatnonzero(x)
    np.add.at(used, columns.region[some], x[some, None] * problem.usage[columns.template[some]])
    return _CountNode(problem, bound, prices, used)


def _solve_leaf(search: SearchContext, node: _CountNode) -> float:
    """A bound on what is in a node of whole counts, USD/h; a better allocation is kept."""
    columns, goal = search.columns, search.worth_proving()
    bounds = node.bound + np.maximum(node.reduced_costs, 0.0)
    alive = np.flatnonzero(columns.kept | (bounds <= goal))
    most = search.limits.most_joint_columns
    ranked = alive[np.argsort(bounds[alive], kind="stable")[:most]]
    templates = np.unique(columns.template[ranked])
    options = search.with_gap(1.0, search.share_of_left())
    solution = solve_part(search, node.problem, templates, options, [node.bound, 0.0])
    if len(ranked) < len(alive):
        return node.bound
    # What was left out costs at least the goal.
    nothing = solution.termination.reason is Reason.INFEASIBLE
    return max(node.bound, min(goal, math.inf if nothing else solution.bound or 0.0))
