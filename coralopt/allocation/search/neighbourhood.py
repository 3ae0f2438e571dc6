"""The step ``neighbourhood``: large-neighbourhood search, re-optimising a few model phases at a time.

Model phases meet only in the capacity rows. So take the instances of a few phases away, hand what they and the unused
supply leave to a small integer programme over the best columns of these phases, and keep what it finds if it is cheaper.
Rounds grow by one phase when nothing improves any more. This gives upper bounds only; the proof is not its business.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.search.context import SearchContext
from coralopt.solving import SolveOptions, solve_matrix
from coralopt.types import Floats, Ints

#: Columns of least reduced cost of every model phase that take part.
NEAR = 150
#: Nodes that an integer programme of one round may take: a measure of work that does not depend on the clock.
NODES = 200
#: Model phases re-optimised at a time, at first and at most.
FIRST_PHASES, MOST_PHASES = 3, 5


def search_neighbourhoods(search: SearchContext, reduced: Floats) -> None:
    """Improve the best allocation, if there is one; deterministic unless time is up.

    Args:
        search: What is known; ends where its allocation is good enough, or after its share of the time left.
        reduced: float64 (N,), reduced costs at the relaxation's duals; they choose the columns that take part.
    """
    if search.allocation is None:
        return
    small, columns = search.small, search.columns
    deadline = time.perf_counter() + search.share_of_left()
    phases = np.flatnonzero(small.demand > 0)
    near = columns.least(reduced, NEAR)
    rng = np.random.default_rng(search.solve_options.seed)
    counts = columns.counts(search.allocation)
    size, idle = min(FIRST_PHASES, len(phases)), 0
    while size <= min(MOST_PHASES, len(phases)) and time.perf_counter() < deadline:
        if search.good_enough(search.cost, search.bound):
            break
        picked = np.sort(rng.choice(phases, size, replace=False))
        inside = np.zeros(len(columns), dtype=np.bool_)
        inside[columns.served.column[np.isin(columns.served.phase, picked)]] = True
        chosen = np.unique(np.concatenate([np.flatnonzero(inside & (counts > 0)), *(near[p] for p in picked)]))
        other = _optimised(search, chosen, np.where(inside, 0, counts), deadline)
        idle += 1
        if other is not None and (other != counts).any():
            before = search.cost
            # An answer that lives on the back end's tolerances is no answer.
            search.offer(columns.allocation(other))
            if search.cost < before * (1 - 1e-9):
                counts, idle = other, 0
        # A neighbourhood of all phases has nothing more to say the second time.
        if idle > 2 * len(phases) or size == len(phases):
            size, idle = size + 1, 0
    search.lap("neighbourhood")


def _optimised(search: SearchContext, chosen: Ints, fixed: Ints, deadline: float) -> Ints | None:
    """int64 (N,): counts of all columns after re-optimising the chosen columns beside the fixed ones."""
    # What is not re-optimised stays as a constant, so that every row sees it.
    both = np.union1d(chosen, np.flatnonzero(fixed))
    matrix = assemble(search.small, search.columns, both)
    held = np.flatnonzero(fixed[both] > 0)
    lower, upper = matrix.lower.copy(), matrix.upper.copy()
    lower[held] = upper[held] = fixed[both][held]
    seconds = deadline - time.perf_counter()
    options = SolveOptions(
        rel_gap=min(1e-4, search.solve_options.rel_gap / 2),
        node_limit=NODES,
        time_limit=None if np.isinf(seconds) else max(0.0, seconds),
        threads=search.solve_options.threads,
        seed=search.solve_options.seed,
    )
    result = solve_matrix(replace(matrix, lower=lower, upper=upper), search.backend, options)
    if result.x is None:
        return None
    counts = fixed.copy()
    counts[both] = np.rint(result.x[: len(both)]).astype(np.int64)
    return counts
