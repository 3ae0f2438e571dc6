"""A node of the branching tree as an integer programme, with what its Lagrangian bound knows of every model phase as rows.

Where the columns that are left are few, but their coverings too many to be listed, the back end settles the node or raises
its bound. At the prices of the node let w_i be what column i weighs, and W_m what coverings of phase m weigh at least that
fit in it. Every allocation in the node that costs less than the target t satisfies::

    the rows of the problem, cuts included
    least_k <= sum n_ik x_i <= most_k         every limit k of the node
    sum over i of phase m of w_i x_i >= W_m   every phase m
    c x <= t

The third kind says that coverings are whole, which linear programmes do not see otherwise. Times the prices, the others add
up with these to the Lagrangian bound (its dual function), so the linear relaxation is at least that; cutting planes and
branches begin from there. Without these rows HiGHS begins 1 to 3 USD/h lower in the cases of the benchmark, and rarely ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.bounds.coverings import HAIR, NodeLimit, WeightedColumns
from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.context import SearchContext
from coralopt.solving import Backend, Reason, SolveOptions, Termination, solve_matrix
from coralopt.types import Floats

#: USD/h; solvers drop coefficients that are far below others.
SMALLEST = 1e-6


@dataclass(frozen=True, eq=False)
class ProgrammeAnswer:
    """What the back end says of a node.

    Attributes:
        bound: USD/h, on what costs less than the target within the node; infinite where there is nothing.
        allocation: The best one that it met, within its tolerances.
        ended: Whether it came to its end.
        termination: Its own words.
        seconds: What it took.
    """

    bound: float
    allocation: Allocation | None
    ended: bool
    termination: Termination
    seconds: float


def has_programme(problem: AllocationProblem, backend: Backend) -> bool:
    """Whether every phase is covered by itself, by instances of its own, and the back end takes programmes of any size."""
    alone = not (problem.unmet_groups() or problem.routes or len(problem.joint))
    return alone and backend.probe().size_limit is None


def solve_programme(
    search: SearchContext, near: WeightedColumns, limits: Sequence[NodeLimit], target: float, options: SolveOptions
) -> ProgrammeAnswer:
    """Settle a node, or raise its bound; changes nothing that is known.

    Args:
        search: The problem, its columns and the back end.
        near: The columns of the node that an allocation below the target may use, at the node's prices.
        limits: Those of the node.
        target: USD/h; what costs more is of no interest. Infinite where nothing is known.
        options: For the back end.
    """
    begin = time.perf_counter()
    problem, columns, chosen = search.within_cuts, search.columns, near.chosen
    if not len(chosen) and (problem.demand > 0).any():
        return ProgrammeAnswer(math.inf, None, True, Termination(Reason.INFEASIBLE, None, "no columns"), 0.0)
    matrix = assemble(problem, columns, chosen)
    # Its first rows are what columns use of every cell.
    use, phase = matrix.a[: problem.price.size, : len(chosen)].toarray().T, columns.phase[chosen]
    others = np.zeros(matrix.a.shape[1] - len(chosen))

    def row(values: Floats) -> Floats:
        return np.concatenate([values, others])

    rows = [row(np.where(phase == limit.phase, limit.counted(use), 0.0)) for limit in limits]
    least, most = [float(limit.least) for limit in limits], [float(limit.most) for limit in limits]
    # Raised at most, so what holds of the weights holds of these.
    tiny = np.abs(near.weight) < SMALLEST
    weight = np.where(tiny, np.where(near.weight > 0, SMALLEST, 0.0), near.weight)
    for p, whole in enumerate(near.whole.tolist()):
        rows.append(row(np.where(phase == p, weight, 0.0)))
        # What is a hair lighter, by rounding, must not be lost.
        least.append(whole - HAIR * abs(whole))
        most.append(math.inf)
    rows.append(matrix.c)
    least.append(-math.inf)
    most.append(target + HAIR * abs(target) - matrix.offset)
    from scipy.sparse import csc_array, vstack

    within = replace(
        matrix,
        a=vstack([matrix.a, csc_array(np.array(rows))]).tocsc(),
        row_lower=np.concatenate([matrix.row_lower, least]),
        row_upper=np.concatenate([matrix.row_upper, most]),
        row_names=range(len(matrix.row_lower) + len(rows)),  # type: ignore[arg-type]
    )
    result = solve_matrix(within, search.backend, options)
    reason, allocation, bound = result.termination.reason, None, -math.inf
    if result.x is not None:
        allocation = columns.allocation(np.round(result.x[: len(chosen)]).astype(np.int64), chosen)
    if reason is Reason.INFEASIBLE:
        bound = math.inf
    elif result.bound is not None:
        bound = result.bound
    ended = reason in (Reason.OPTIMAL, Reason.INFEASIBLE)
    return ProgrammeAnswer(bound, allocation, ended, result.termination, time.perf_counter() - begin)
