"""Drop templates that no region can host once, or whose model phase needs nothing.

Lossless: such a template's count is 0 in every feasible allocation; one of a phase without demand is 0 in some optimal
allocation, since taking it away frees capacity and lowers the cost. Bans count as not fitting.

A model phase without demand that must have a replica gets some demand first: :func:`with_replica_demand`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Bools


def reachable(problem: AllocationProblem) -> Bools:
    """bool (T,): templates that fit into some region once, and serve a model phase with demand."""
    fits = (problem.most_instances() > 0) & ~np.isnan(problem.template_price())
    serves = problem.rates(np.flatnonzero(problem.demand > 0).tolist()) > 0
    return np.asarray(fits.any(axis=1) & serves)


def with_replica_demand(problem: AllocationProblem) -> AllocationProblem:
    """Phases without demand that must have a replica need what any single replica serves; so no step takes them for idle.

    Lossless: an allocation with a replica meets that demand, whichever template it is. Of no demand no share must survive
    the loss of a region, so such side constraints go.
    """
    demand, idle = problem.demand.copy(), set()
    for item in problem.side_constraints:
        if item.sense != "least" or item.measure != "instances" or item.bound <= 0 or len(item.phases or ()) != 1:
            continue
        phase = (item.phases or ())[0]
        if problem.demand[phase] <= 0:
            rates = problem.rates((phase,))
            demand[phase] = float(rates[rates > 0].min()) if rates.any() else 1.0
            idle.add(phase)
    if not idle:
        return problem
    rest = tuple(
        item for item in problem.side_constraints if not (item.measure == "tokens_s" and set(item.phases or ()) <= idle)
    )
    price = problem.unmet_price
    if price is not None:
        # It is met in any case, so its share of a group's price must stay nothing.
        price = np.where(np.isin(np.arange(len(price)), list(idle)) & np.isfinite(price), 0.0, price)
    return replace(problem, demand=demand, side_constraints=rest, unmet_price=price)
