"""A better allocation by re-optimising a few model phases at a time (large neighbourhood search).

Model phases meet only in the capacity rows. So take the instances of a few phases away, hand what they and the unused
supply leave to a small integer programme over the best columns of these phases, and keep what it finds if it is cheaper.
Rounds grow by one phase when nothing improves any more. This gives upper bounds only; the proof is not its business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coralopt.allocation.bounds.relaxation import Columns, restricted_matrix
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.solving import SolveOptions, solve_matrix
from coralopt.types import Floats, Ints

#: Columns of least reduced cost of every model phase that take part.
NEAR = 150
#: Nodes that an integer programme of one round may take: a measure of work that does not depend on the clock.
NODES = 200
#: Model phases re-optimised at a time, at first and at most.
FIRST_PHASES, MOST_PHASES = 3, 5


def improved(
    problem: AllocationProblem,
    columns: Columns,
    reduced: Floats,
    start: Allocation,
    backend: Any,
    asked: SolveOptions,
    good_enough: Callable[[float], bool],
    deadline: float,
) -> Allocation:
    """The best allocation found from ``start``; deterministic unless the deadline cuts it short.

    Args:
        problem: The problem.
        columns: Its columns.
        reduced: float64 (N,), reduced costs at the relaxation's duals; they choose the columns that take part.
        start: A feasible allocation.
        backend: A MILP back end.
        asked: ``seed`` and ``threads`` count.
        good_enough: Told the cost in USD/h of every better allocation; ``True`` ends the search.
        deadline: Value of ``time.perf_counter()`` to stop at.
    """
    phases = np.flatnonzero(problem.demand > 0)
    phase_of = problem.phase[columns.template]
    near = [_least(np.flatnonzero(phase_of == p), reduced, NEAR) for p in range(len(problem.demand))]
    rng = np.random.default_rng(asked.seed)
    best, counts = start, _counts(problem, columns, start)
    cost = problem.check(start).objective
    size, idle = min(FIRST_PHASES, len(phases)), 0
    while size <= min(MOST_PHASES, len(phases)) and time.perf_counter() < deadline and not good_enough(cost):
        picked = np.sort(rng.choice(phases, size, replace=False))
        open_columns = np.isin(phase_of, picked)
        own = np.flatnonzero(open_columns & (counts > 0))
        chosen = np.unique(np.concatenate([own, *(near[p] for p in picked)]))
        fixed = np.where(open_columns, 0, counts)
        found = _round(problem, columns, chosen, fixed, backend, asked, deadline)
        idle += 1
        if found is not None and (found != counts).any():
            answer = _allocation(columns, found)
            check = problem.check(answer)
            # An answer that lives on the back end's tolerances is no answer.
            if check.feasible and check.objective < cost * (1 - 1e-9):
                best, counts, cost, idle = answer, found, check.objective, 0
        # A neighbourhood of all phases has nothing more to say the second time.
        if idle > 2 * len(phases) or size == len(phases):
            size, idle = size + 1, 0
    return best


def _round(
    problem: AllocationProblem,
    columns: Columns,
    chosen: Ints,
    fixed: Ints,
    backend: Any,
    asked: SolveOptions,
    deadline: float,
) -> Ints | None:
    """Counts of all columns after re-optimising the picked phases over the chosen columns."""
    # What is not re-optimised stays as a constant, so that every row sees it.
    both = np.union1d(chosen, np.flatnonzero(fixed))
    matrix = restricted_matrix(problem, columns, both, None, integer=True)
    held = np.flatnonzero(fixed[both] > 0)
    lower, upper = matrix.lower.copy(), matrix.upper.copy()
    lower[held] = upper[held] = fixed[both][held]
    matrix = replace(matrix, lower=lower, upper=upper)
    seconds = deadline - time.perf_counter()
    options = SolveOptions(
        rel_gap=min(1e-4, asked.rel_gap / 2),
        node_limit=NODES,
        time_limit=None if np.isinf(seconds) else max(0.0, seconds),
        threads=asked.threads,
        seed=asked.seed,
    )
    result = solve_matrix(matrix, backend, options)
    if result.x is None:
        return None
    counts = fixed.copy()
    counts[both] = np.rint(result.x[: len(both)]).astype(np.int64)
    return counts


def _least(rows: Ints, values: Floats, most: int) -> Ints:
    return rows[np.argsort(values[rows], kind="stable")[:most]]


def _counts(problem: AllocationProblem, columns: Columns, allocation: Allocation) -> Ints:
    """Counts by column: kept ones first, as far as instances run."""
    counts = np.zeros(len(columns), dtype=np.int64)
    for (t, r), count in allocation.to_mapping().items():
        for k in np.flatnonzero((columns.template == t) & (columns.region == r) & columns.kept).tolist():
            counts[k] = min(count, int(columns.upper[k]))
            count -= int(counts[k])
        for k in np.flatnonzero((columns.template == t) & (columns.region == r) & ~columns.kept).tolist():
            counts[k] = count
    return counts


def _allocation(columns: Columns, counts: Ints) -> Allocation:
    total: dict[tuple[int, int], int] = {}
    for k in np.flatnonzero(counts).tolist():
        place = (int(columns.template[k]), int(columns.region[k]))
        total[place] = total.get(place, 0) + int(counts[k])
    return Allocation.of(total)
