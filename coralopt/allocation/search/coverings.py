"""The step ``coverings``: all that allocations near the bound may use, and the integer programme that is left.

It picks one covering for every model phase, together within the pool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings, near_coverings
from coralopt.allocation.bounds.decomposition import Covering
from coralopt.allocation.bounds.lagrangian import LagrangianBound
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.solving import Backend, MatrixResult, MilpMatrix, SolveOptions, solve_matrix


def choose_near_coverings(search: SearchContext, root: Root) -> None:
    """Choose among the coverings within a slack that is doubled until nothing more can be gained by it."""
    lagrangian, limits = root.lagrangian, search.limits
    slack = limits.first_slack * abs(lagrangian.bound)
    for _ in range(limits.doublings):
        if not search.open() or search.left() == 0:
            break
        needed = search.cost * (1 - search.solve_options.rel_gap) - lagrangian.bound
        # Far from what is needed a step more costs little and says much.
        slack = needed if needed <= 1.5 * slack else slack
        deadline = time.perf_counter() + search.share_of_left()
        coverings = all_near(search.small, search.columns, lagrangian, slack, limits.most_coverings, deadline)
        search.lap("coverings")
        if coverings is None:
            break
        search.survivors = int((lagrangian.column_bounds <= lagrangian.bound + slack).sum())
        inside = best_choice(search, coverings)
        search.raise_bound(min(lagrangian.bound + slack, inside))
        search.lap("coverings")
        if slack >= needed or inside < lagrangian.bound + slack:
            break
        slack *= 2


def choose_among(search: SearchContext, met: Sequence[Covering]) -> None:
    """Choose among the coverings that the decomposition met: what models with routes have in place of all near ones."""
    if not met:
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
            np.array([covering.use for covering in met]).astype(np.int16),
            members,
            np.zeros(len(met), dtype=np.bool_),
        ),
    )
    search.lap("coverings")


def best_choice(search: SearchContext, coverings: Coverings) -> float:
    """The best choice of coverings is kept if it is better; a bound on all of them, infinite if none fits."""
    if not len(coverings):
        return math.inf
    options = replace(
        search.with_gap(0.25, search.share_of_left()),
        node_limit=search.limits.covering_nodes,
        # Its presolve compares coverings with one another, which is done already.
        presolve=False,
    )
    choice = choose(search.small, search.columns, coverings, search.backend, options)
    search.heed(choice.result.termination)
    if choice.allocation is not None and not search.offer(choice.allocation) and coverings.tight.any():
        # It misses a demand by rounding: choose again among those that surely do not.
        sure = choose(search.small, search.columns, coverings.some(~coverings.tight), search.backend, options)
        if sure.allocation is not None:
            search.offer(sure.allocation)
    return math.inf if choice.result.bound is None else choice.result.bound


@dataclass(frozen=True, eq=False)
class Choice:
    """The best choice of coverings.

    Attributes:
        allocation: It, or ``None`` when none was found; not checked exactly.
        result: What the back end said; its bound holds for all allocations of these coverings.
    """

    allocation: Allocation | None
    result: MatrixResult


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


def choose(
    problem: AllocationProblem,
    columns: Columns,
    coverings: Coverings,
    backend: Backend | str,
    options: SolveOptions,
) -> Choice:
    """One covering a phase at least cost, by any MILP back end."""
    from scipy.sparse import csc_array, vstack

    count, cells = len(coverings), problem.price.size
    phases = problem.leading_phases()
    rows = np.searchsorted(phases, coverings.phase)
    pick = csc_array((np.ones(count), (rows, np.arange(count))), shape=(len(phases), count))
    use = csc_array(coverings.use.T.astype(np.float64))
    matrix = MilpMatrix(
        c=coverings.cost,
        offset=0.0,
        a=vstack([use, pick]).tocsc(),
        row_lower=np.concatenate([np.full(cells, -np.inf), np.ones(len(phases))]),
        row_upper=np.concatenate([problem.availability.ravel().astype(np.float64), np.ones(len(phases))]),
        lower=np.zeros(count),
        upper=np.ones(count),
        integer=np.ones(count, dtype=np.bool_),
        maximize=False,
        column_names=[f"covering[{k}]" for k in range(count)],
        row_names=[f"capacity[{k}]" for k in range(cells)] + [f"phase[{p}]" for p in phases],
    )
    result = solve_matrix(matrix, backend, options)
    if result.x is None:
        return Choice(None, result)
    members = coverings.members[result.x > 0.5]
    return Choice(columns.allocation(np.bincount(members[members >= 0], minlength=len(columns))), result)
