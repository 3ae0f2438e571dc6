"""The least bound of one side constraint with which everything else can be met.

With a_j what one instance of column j adds to the constraint:

    min sum_j a_j x_j   over whole x that meet every demand and all other side constraints,

over the columns of least reduced cost in the linear relaxation of that.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from coralopt.allocation.bounds.relaxation import SHORTFALL, reduced_costs, solve_relaxation
from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.solving import Backend, SolveOptions, heeded, solve_matrix

#: Most columns of the programme.
MOST_COLUMNS = 3_000
#: A bound of a side constraint beyond any pool.
AMPLE = 1e9


def least_bound(
    problem: AllocationProblem,
    item: SideConstraint,
    lp_solver: Backend,
    backend: Backend,
    options: SolveOptions,
    deadline: float,
) -> float | None:
    """The least bound of a side constraint that asks for "most" with which everything else can be met, nearly.

    Args:
        problem: The problem.
        item: One of its side constraints.
        lp_solver: A back end that gives duals.
        backend: The back end for whole instances.
        options: ``threads`` and ``seed`` count.
        deadline: Value of ``time.perf_counter()`` to stop at.

    Returns:
        ``None`` where none is known, and for measures that are no sum over instances.
    """
    if item.sense == "least" or item.is_ban or item.measure == "new_nodes" or (item.is_rent and problem.supply):
        return None
    # The row stays, so that reductions keep what it counts.
    rows = tuple(replace(row, bound=AMPLE) if row is item else row for row in problem.side_constraints)
    eased = replace(problem, side_constraints=rows).unstarted()
    reduced = reduce_problem(eased)
    small = reduced.problem
    columns = Columns.of(small).without_cost()
    columns = replace(columns, cost=item.coefficients(small, columns.template, columns.region))
    relaxation = solve_relaxation(small, columns, lp_solver)
    if time.perf_counter() > deadline or (relaxation.shortfall > SHORTFALL).any():
        return None
    prices = reduced_costs(small, columns, relaxation.demand_duals, relaxation.capacity_prices, relaxation.side_prices)
    order = np.argsort(np.round(prices, 9), kind="stable")
    chosen = np.union1d(order[:MOST_COLUMNS], np.flatnonzero(relaxation.x > 1e-9))
    limit = max(1.0, deadline - time.perf_counter())
    nearly = SolveOptions(rel_gap=1e-4, time_limit=limit, threads=options.threads, seed=options.seed)
    result = heeded(solve_matrix(assemble(small, columns, chosen), backend, nearly))
    if result.x is None:
        return None
    counts = np.rint(result.x[: len(chosen)]).astype(np.int64)
    planned = reduced.restore(columns.allocation(counts, chosen))
    if not eased.check(planned).feasible:
        return None
    return item.total(problem, planned.template, planned.region, planned.count)
