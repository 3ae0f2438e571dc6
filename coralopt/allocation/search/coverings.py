"""The step ``coverings``: all that allocations near the bound may use, and the choice that is left.

One covering for every model phase, together within the pool: a MILP back end chooses where these are few, a compiled tree
(:mod:`coralopt.allocation.search.choice`) where they are many.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings, available
from coralopt.allocation.bounds.lagrangian import LagrangianBound
from coralopt.allocation.bounds.listing import near_coverings
from coralopt.allocation.bounds.pricing import Covering
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.choice import Choice, ChoiceLimits, best_choice_among
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.solving import MilpMatrix, Proof, solve_matrix
from coralopt.types import Floats, Ints

Chooser = Callable[[SearchContext, Coverings, Floats, float], Choice]

#: Among more coverings than this a back end finds little in tens of seconds.
MANY = 5_000


def choose_near_coverings(search: SearchContext, root: Root, most: int, chooser: Chooser) -> None:
    """Choose among all coverings within a slack that is doubled until nothing more can be gained by it, or there are more.

    Args:
        search: What is known; better allocations and bounds are kept.
        root: The bounds over all columns.
        most: Most coverings that are chosen among at once.
        chooser: Who chooses; the compiled tree where they are many.
    """
    lagrangian, limits, prices = root.lagrangian, search.limits, search.row_prices()
    # What is proven already says which slack is done.
    slack = max(limits.first_slack * abs(lagrangian.bound), 2 * (search.bound - lagrangian.bound))
    for _ in range(limits.doublings):
        if not search.open() or search.left() == 0:
            break
        wanted = search.worth_proving()
        needed = wanted - lagrangian.bound
        slack = min(slack, needed)
        deadline = time.perf_counter() + search.share_of_left()
        coverings = all_near(search.within_cuts, search.columns, lagrangian, slack, most, deadline)
        search.lap("coverings")
        if coverings is None:
            break
        search.survivors = int((lagrangian.column_bounds <= lagrangian.bound + slack).sum())
        # In floating point, bound + (wanted - bound) may be a hair below what is wanted.
        target = wanted if slack >= needed else lagrangian.bound + slack
        if len(coverings) > MANY:
            chooser = by_tree
        inside = best_choice(search, coverings, prices, target, chooser)
        # Above the target the back end ruled out what is below; it is taken at its word then, too.
        search.raise_bound(min(target, inside), Proof.SOLVER if chooser is by_backend else Proof.OWN_BOUND)
        search.lap("coverings")
        if slack >= needed or inside < target:
            break
        slack *= 2


def choose_among(search: SearchContext, met: Sequence[Covering], choosers: Sequence[Chooser]) -> None:
    """Choose among coverings that steps met: what models with routes have in place of all near ones.

    Args:
        search: What is known; better allocations are kept.
        met: The coverings.
        choosers: Who chooses, side by side; the best choice is kept.
    """
    prices = search.capacity_prices
    if not met or prices is None:
        return
    coverings, cost, price = _listed(met, prices.size), search.worth_proving(), search.row_prices()
    work = (partial(choose, search, coverings, price, cost) for choose in choosers)
    with search.side_by_side(search.lanes) as lanes:
        for choice in lanes.results(work, len(choosers)):
            if choice.chosen is not None:
                search.offer(allocation_of(search.columns, coverings, choice.chosen))
    search.lap("coverings")


def _listed(met: Sequence[Covering], cells: int) -> Coverings:
    """Coverings as they are listed."""
    lists = [[column for column, count in covering.members for _ in range(count)] for covering in met]
    members = np.full((len(met), max(map(len, lists))), -1, dtype=np.int64)
    for k, columns in enumerate(lists):
        members[k, : len(columns)] = columns
    use = np.array([covering.use for covering in met])
    return Coverings(
        phase=np.array([covering.phase for covering in met]),
        cost=np.array([covering.cost for covering in met]),
        use=use[:, :cells].astype(np.int16),
        members=members,
        tight=np.zeros(len(met), dtype=np.bool_),
        adds=use[:, cells:],
    )


def best_choice(search: SearchContext, coverings: Coverings, price: Floats, target: float, chooser: Chooser) -> float:
    """The best choice of coverings is kept if it is better; a bound on all that cost less than the target, or that.

    Args:
        search: What is known.
        coverings: Of all phases; where there are none, there is no choice.
        price: float64 (R * C + S,), prices of nodes and side constraints to begin with, USD/h.
        target: What is worth finding, USD/h.
        chooser: Who chooses.
    """
    if not len(coverings):
        return math.inf
    choice = chooser(search, coverings, price, target)
    missed = choice.chosen is not None and not search.offer(allocation_of(search.columns, coverings, choice.chosen))
    if missed and coverings.tight.any():
        # It misses a demand by rounding: choose again among those that surely do not.
        sure = coverings.some(~coverings.tight)
        if len(np.unique(sure.phase)) == len(np.unique(coverings.phase)):
            chosen = chooser(search, sure, price, target).chosen
            if chosen is not None:
                search.offer(allocation_of(search.columns, sure, chosen))
    return choice.bound


def by_tree(
    search: SearchContext,
    coverings: Coverings,
    price: Floats,
    target: float,
    nodes: int | None = None,
    seconds: float = math.inf,
) -> Choice:
    """The compiled tree chooses, in so many nodes and seconds at most: best where coverings are many."""
    limits = ChoiceLimits(
        target,
        0.25 * search.solve_options.rel_gap,
        search.limits.choice_nodes if nodes is None else nodes,
        min(search.deadline, time.perf_counter() + min(seconds, search.share_of_left())),
    )
    return best_choice_among(coverings, available(search.within_cuts), price, limits, search.small.segments)


def by_backend(
    search: SearchContext, coverings: Coverings, price: Floats, target: float, seconds: float = math.inf
) -> Choice:
    """The MILP back end chooses in so many seconds at most, whatever the target: it finds good choices sooner."""
    from scipy.sparse import csc_array, hstack, vstack

    there, use, pieces = available(search.within_cuts), coverings.rows(), search.small.segments
    count, cells, dearer = len(coverings), len(there), len(pieces.cell)
    # What is there at the lowest price; dearer nodes are columns.
    np.subtract.at(there, pieces.cell, pieces.nodes)
    extra = csc_array((-np.ones(dearer), (pieces.cell, np.arange(dearer))), shape=(cells, dearer))
    phases, rows = np.unique(coverings.phase, return_inverse=True)
    pick = csc_array((np.ones(count), (rows, np.arange(count))), shape=(len(phases), count))
    matrix = MilpMatrix(
        c=np.concatenate([coverings.cost, pieces.surcharge]),
        offset=0.0,
        a=hstack([vstack([csc_array(use.T), pick]), vstack([extra, csc_array((len(phases), dearer))])]).tocsc(),
        row_lower=np.concatenate([np.full(cells, -np.inf), np.ones(len(phases))]),
        row_upper=np.concatenate([there, np.ones(len(phases))]),
        lower=np.zeros(count + dearer),
        upper=np.concatenate([np.ones(count), pieces.nodes.astype(np.float64)]),
        integer=np.arange(count + dearer) < count,
        maximize=False,
        column_names=[f"covering[{k}]" for k in range(count)] + [f"extra[{k}]" for k in range(dearer)],
        row_names=[f"capacity[{k}]" for k in range(cells)] + [f"phase[{p}]" for p in phases],
    )
    options = replace(
        search.with_gap(0.25, min(seconds, search.share_of_left())),
        node_limit=search.limits.covering_nodes,
        # Its presolve compares coverings with one another, which is done already.
        presolve=False,
    )
    result = solve_matrix(matrix, search.backend, options)
    search.heed(result.termination)
    chosen = None if result.x is None else np.flatnonzero(result.x[:count] > 0.5)
    return Choice(chosen, math.inf if result.bound is None else result.bound)


def allocation_of(columns: Columns, coverings: Coverings, chosen: Ints) -> Allocation:
    """The instances of some coverings."""
    members = coverings.members[chosen]
    return columns.allocation(np.bincount(members[members >= 0], minlength=len(columns)))


def all_near(
    problem: AllocationProblem,
    columns: Columns,
    lagrangian: LagrangianBound,
    slack: float,
    most: int,
    deadline: float = np.inf,
) -> Coverings | None:
    """Every covering that an allocation of cost at most ``bound + slack`` may use, but for replaceable ones.

    Returns:
        ``None`` when there are more than ``most``, or time is up.
    """
    # A little more than asked: sums in another order must not lose a covering.
    slack += 1e-9 * abs(lagrangian.bound)
    return near_coverings(problem, columns, lagrangian.near(lagrangian.bound + slack), slack, most, deadline)
