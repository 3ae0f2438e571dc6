"""Of allocations that cost the same, one with few GPUs, where some nodes cost nothing.

Owned nodes have price 0, and at equal cost nothing keeps a search from needlessly large ones. So where an allocation uses
nodes that cost nothing, a second search prices every node by its GPUs. It may use all of those, but of the others only what
the first allocation uses, so it cannot cost more. Its answer is held against the first problem and taken only if it costs
no more there and has fewer GPUs.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from coralopt.allocation.check import unmet_demand
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.options import AllocationSearchOptions
from coralopt.allocation.search.result import AllocationResult
from coralopt.allocation.search.solve import solve_allocation
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import Backend, SolveOptions, relative_gap
from coralopt.types import Bools, Floats, Ints


def fewest_gpus(
    problem: AllocationProblem,
    result: AllocationResult,
    gpus: Ints,
    solver: Backend | str,
    options: SolveOptions,
    deadline: float = math.inf,
) -> AllocationResult:
    """The result, or one that costs no more with fewer GPUs, within the same gap of the fewest.

    Args:
        problem: What ``result`` solves.
        result: A solution.
        gpus: int64 (C,), GPUs of a node.
        solver: As in :func:`coralopt.allocation.solve_allocation`.
        options: The same.
        deadline: Value of ``time.perf_counter()`` to stop at.
    """
    free, used = _free(problem), _used(problem, result.allocation)
    left = deadline - time.perf_counter()
    if not used[free].any() or left <= 0 or result.interrupted:
        return result
    second = _by_gpus(problem, result.allocation, np.where(free, problem.segments.first, used), gpus)
    limited = options if math.isinf(left) else replace(options, time_limit=left)
    search = AllocationSearchOptions(start=result.allocation, explained=False)
    try:
        fewer = solve_allocation(second, solver, limited, search).allocation
    except (InfeasibleError, NoSolutionError):
        return result
    check = problem.check(fewer)
    if not check.feasible or check.objective > result.cost_usd_h or (_used(problem, fewer) - used).sum(0) @ gpus >= 0:
        return result
    gap = relative_gap(check.objective, min(result.bound_usd_h, check.objective))
    return replace(result, allocation=fewer, cost_usd_h=check.objective, gap=gap)


def _free(problem: AllocationProblem) -> Bools:
    """bool (R, C): nodes that cost nothing, whatever runs on them."""
    listed, penalty = np.nan_to_num(problem.price), float(problem.penalties.max(initial=problem.penalty))
    free: Bools = (problem.availability > 0) & (problem.segments.base == 0) & (penalty * listed == 0)
    return free


def _used(problem: AllocationProblem, allocation: Allocation) -> Ints:
    """int64 (R, C): nodes that an allocation uses."""
    used = np.zeros_like(problem.availability)
    nodes = problem.usage[allocation.template].astype(np.int64) * allocation.count[:, None]
    np.add.at(used, allocation.region, nodes)
    return used


def _by_gpus(problem: AllocationProblem, first: Allocation, nodes: Ints, gpus: Ints) -> AllocationProblem:
    """Serve what ``first`` serves from these nodes at a price of 1 for each GPU; limits on money are met by the nodes."""
    items = [(t, r, n) for (t, r), n in first.to_mapping().items()]
    unmet = np.array([float(share) for share in unmet_demand(problem, items)])
    demand = np.maximum(0.0, problem.demand - unmet)
    price: Floats = np.where(nodes > 0, gpus.astype(np.float64), np.nan)
    return replace(
        problem,
        demand=demand,
        # Of a model that is not served at all nothing goes by any route.
        routes=tuple(model for model in problem.routes if (demand[list(model.phases)] > 0).all()),
        availability=nodes,
        price=price,
        running=None,
        penalty=0.0,
        start_penalty=None,
        supply=(),
        side_constraints=tuple(item for item in problem.side_constraints if item.measure != "usd_h"),
        unmet_price=None,
        unmet_together=(),
    )
