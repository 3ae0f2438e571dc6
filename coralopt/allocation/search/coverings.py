"""The step ``coverings``: all that allocations near the bound may use, and the choice that is left.

A tree picks one covering for every model phase, together within the pool (:mod:`coralopt.allocation.search.choice`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings, near_coverings
from coralopt.allocation.bounds.decomposition import Covering
from coralopt.allocation.bounds.lagrangian import LagrangianBound
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.choice import ChoiceLimits, best_choice_among
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.types import Floats, Ints


def choose_near_coverings(search: SearchContext, root: Root, most: int) -> None:
    """Choose among all coverings within a slack that is doubled until nothing more can be gained by it, or there are more.

    Args:
        search: What is known; better allocations and bounds are kept.
        root: The bounds over all columns.
        most: Most coverings that are chosen among at once.
    """
    lagrangian, limits, prices = root.lagrangian, search.limits, search.capacity_prices
    assert prices is not None
    # What is proven already says which slack is done.
    slack = max(limits.first_slack * abs(lagrangian.bound), 2 * (search.bound - lagrangian.bound))
    for _ in range(limits.doublings):
        if not search.open() or search.left() == 0:
            break
        needed = search.cost * (1 - search.solve_options.rel_gap) - lagrangian.bound
        slack = min(slack, needed)
        deadline = time.perf_counter() + search.share_of_left()
        coverings = all_near(search.small, search.columns, lagrangian, slack, most, deadline)
        search.lap("coverings")
        if coverings is None:
            break
        search.survivors = int((lagrangian.column_bounds <= lagrangian.bound + slack).sum())
        target = min(lagrangian.bound + slack, search.worth_proving())
        inside = best_choice(search, coverings, prices, target)
        search.raise_bound(min(target, inside))
        search.lap("coverings")
        if slack >= needed or inside < target:
            break
        slack *= 2


def choose_among(search: SearchContext, met: Sequence[Covering]) -> None:
    """Choose among the coverings that the decomposition met: what models with routes have in place of all near ones."""
    prices = search.capacity_prices
    if not met or prices is None:
        return
    lists = [[column for column, count in covering.members for _ in range(count)] for covering in met]
    members = np.full((len(met), max(map(len, lists))), -1, dtype=np.int64)
    for k, columns in enumerate(lists):
        members[k, : len(columns)] = columns
    best_choice(
        search,
        Coverings(
            np.array([covering.phase for covering in met]),
            np.array([covering.cost for covering in met]),
            np.array([covering.use[: prices.size] for covering in met]).astype(np.int16),
            members,
            np.zeros(len(met), dtype=np.bool_),
        ),
        prices,
        search.worth_proving(),
    )
    search.lap("coverings")


def best_choice(search: SearchContext, coverings: Coverings, price: Floats, target: float) -> float:
    """The best choice of coverings is kept if it is better; a bound on all that cost less than the target, or that.

    Args:
        search: What is known.
        coverings: Of all phases; where there are none, there is no choice.
        price: float64 (R, C), prices of nodes to begin with, USD/h.
        target: What is worth finding, USD/h.
    """
    if not len(coverings):
        return math.inf
    limits = ChoiceLimits(
        target,
        0.25 * search.solve_options.rel_gap,
        search.limits.choice_nodes,
        min(search.deadline, time.perf_counter() + search.share_of_left()),
    )
    available = search.small.availability.ravel()
    choice = best_choice_among(coverings, available, price.ravel(), limits)
    if choice.chosen is not None and not search.offer(allocation_of(search.columns, coverings, choice.chosen)):
        # It misses a demand by rounding: choose again among those that surely do not.
        sure = coverings.some(~coverings.tight)
        if len(np.unique(sure.phase)) == len(np.unique(coverings.phase)):
            chosen = best_choice_among(sure, available, price.ravel(), limits).chosen
            if chosen is not None:
                search.offer(allocation_of(search.columns, sure, chosen))
    return choice.bound


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
