"""Drop templates that no region can host once, or whose model phase needs nothing.

Lossless: such a template's count is 0 in every feasible allocation; one of a phase without demand is 0 in some optimal
allocation, since taking it away frees capacity and lowers the cost. Bans count as not fitting.

A model phase that must have a replica has demand first: :func:`demand_with_replicas`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem


def reachable(problem: AllocationProblem) -> npt.NDArray[np.bool_]:
    """bool (T,): templates that fit into some region once, and serve a model phase with demand."""
    fits = (problem.most_instances() > 0) & ~np.isnan(problem.template_price())
    return np.asarray(fits.any(axis=1) & (problem.demand[problem.phase] > 0) & (problem.throughput > 0))


def demand_with_replicas(problem: AllocationProblem) -> npt.NDArray[np.float64]:
    """float64 (P,): the demand, at least what any single replica serves where the side rows ask for one, tokens/s.

    Lossless: an allocation with a replica meets it, whichever template that is; and every step that looks at demand sees
    that the phase is not idle.
    """
    demand = problem.demand
    for row in problem.rows:
        if row.sense == "least" and row.measure == "instances" and row.bound > 0 and row.phases is not None:
            if len(row.phases) > 1:
                continue
            mine = problem.throughput[(problem.phase == row.phases[0]) & (problem.throughput > 0)]
            least = float(mine.min()) if len(mine) else 1.0
            if demand[row.phases[0]] < least:
                demand = demand.copy()
                demand[row.phases[0]] = least
    return demand
