"""The integer programme that is left: one covering for every model phase, together within the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coralopt.allocation.bounds.coverings import Coverings, near_coverings
from coralopt.allocation.bounds.lagrangian import LagrangianBound
from coralopt.allocation.bounds.relaxation import Columns
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.solving import MatrixResult, MilpMatrix, SolveOptions, solve_matrix


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
    bound: LagrangianBound,
    slack: float,
    most: int,
    deadline: float = np.inf,
) -> Coverings | None:
    """Every covering that an allocation of cost at most ``bound.bound + slack`` may use, but for replaceable ones.

    Returns:
        ``None`` when there are more than ``most``, or time is up.
    """
    # A little more than asked: sums in another order must not lose a covering.
    limit = bound.bound + slack + 1e-9 * abs(bound.bound)
    alive = np.flatnonzero(bound.forced <= limit)
    phase_of = problem.phase[columns.template[alive]]
    weight = bound.weight[alive]
    parts, count = [], 0
    for p in np.flatnonzero(problem.demand > 0).tolist():
        mine = np.flatnonzero(phase_of == p)
        found = near_coverings(
            problem,
            columns,
            alive[mine],
            weight[mine],
            p,
            float(bound.least[p][-1]) + slack + 1e-9 * abs(bound.bound),
            bound.least[p],
            4 * most,
            deadline,
        )
        if found is None or count + len(found) > most:
            return None
        count += len(found)
        parts.append(found)
    return Coverings.union(parts)


def choose(
    problem: AllocationProblem, columns: Columns, coverings: Coverings, backend: Any, options: SolveOptions
) -> Choice:
    """One covering a phase at least cost, by any MILP back end."""
    from scipy.sparse import csc_array, vstack

    count, cells = len(coverings), problem.price.size
    phases = np.flatnonzero(problem.demand > 0)
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
    total: dict[tuple[int, int], int] = {}
    for k in coverings.members[np.flatnonzero(result.x > 0.5)].ravel().tolist():
        if k >= 0:
            place = (int(columns.template[k]), int(columns.region[k]))
            total[place] = total.get(place, 0) + 1
    return Choice(Allocation.of(total), result)
