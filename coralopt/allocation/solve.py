"""The online stage: reductions, bound, a small integer programme for any back end, and a proven gap.

The steps, each exact:

1. ``reductions`` make the problem smaller without changing its optimum.
2. ``relaxation`` solves the linear relaxation over all columns; its optimum is a lower bound.
3. ``lagrangian`` gives a second bound at the relaxation's capacity prices; the larger of the two counts.
4. The integer programme over the columns of least reduced cost gives an allocation, an upper bound U.
5. Fixing: a column whose forced cost is above U (1 - gap) is 0 in every allocation cheaper than that. With S the columns
   that survive, any allocation either costs at least U (1 - gap) or uses S only; so min(U (1 - gap), bound of the
   integer programme over S) is a lower bound on the whole problem. While S is larger than one wants to solve, step 4
   runs again on more columns, to lower U.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.explain import Explanation, explain
from coralopt.allocation.lagrangian import lagrangian_bound
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import Reduction, reduce_problem
from coralopt.allocation.relaxation import Columns, reduced_costs, solve_relaxation
from coralopt.errors import InfeasibleError, NoSolutionError, WrongAnswerError
from coralopt.solving import (
    Capability,
    Reason,
    Solution,
    SolveOptions,
    get_backend,
    relative_gap,
    require_backend,
    solve,
)

#: Templates in the first integer programme; each later one may hold as many more.
FIRST_COLUMNS = 600
#: Most (template, region) columns that are handed to a back end at once.
MOST_COLUMNS = 6_000


@dataclass(frozen=True, eq=False)
class AllocationResult:
    """A checked allocation and how good it is.

    Attributes:
        allocation: In terms of the problem's templates.
        cost_usd_h: Exact re-evaluation, USD/h.
        bound_usd_h: Proven lower bound on every allocation, USD/h.
        gap: (cost - bound) / cost.
        formulation: Formulation the back end solved.
        solver: Back end.
        reductions: What each exact reduction did.
        seconds: Seconds by step: ``reductions``, ``relaxation``, ``lagrangian``, ``solver``, ``check``.
        columns: All columns after the reductions.
        survivors: Columns left after fixing, of which the last integer programme was made.
        relaxation_usd_h: Optimum of the linear relaxation, USD/h.
        lagrangian_usd_h: Lagrangian bound, USD/h.
        solutions: What the back end said each time.
    """

    allocation: Allocation
    cost_usd_h: float
    bound_usd_h: float
    gap: float
    formulation: str
    solver: str
    reductions: tuple[Reduction, ...]
    seconds: Mapping[str, float]
    columns: int
    survivors: int
    relaxation_usd_h: float
    lagrangian_usd_h: float
    solutions: tuple[Solution[Allocation], ...]


def solve_allocation(
    problem: AllocationProblem,
    solver: Any = "highs",
    options: SolveOptions | None = None,
    formulation: str = "split",
    reductions: bool = True,
) -> AllocationResult:
    """Allocate at least cost, with a proven bound (paper section 4.3).

    Args:
        problem: The allocation problem.
        solver: Name of a MILP back end or a back end itself.
        options: Common options; ``rel_gap`` decides when the proof is good enough, ``time_limit`` is for the whole call.
        formulation: ``"split"`` or ``"paper"``.
        reductions: ``False`` hands the full model to the back end, for comparison.

    Raises:
        InfeasibleError: No allocation meets every demand; carries an :class:`Explanation`.
        NoSolutionError: A limit passed before any allocation was found.
        SolverError: Unknown solver, formulation or option, or a wrong answer.
    """
    asked = options or SolveOptions()
    backend = require_backend(solver)
    lp_solver = backend if Capability.LP_DUALS in backend.capabilities else get_backend("highs")
    if not reductions:
        return _full_model(problem, backend, lp_solver, asked, formulation)
    deadline = math.inf if asked.time_limit is None else time.perf_counter() + asked.time_limit
    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[name] = seconds.get(name, 0.0) + now - clock
        clock = now

    reduced = reduce_problem(problem)
    lap("reductions")
    small = reduced.problem
    columns = Columns.of(small)
    if not (small.demand > 0).any():
        nothing = Allocation.of({})
        return AllocationResult(
            nothing, 0.0, 0.0, 0.0, formulation, backend.name, reduced.reductions, seconds, 0, 0, 0.0, 0.0, ()
        )
    relaxation = solve_relaxation(small, columns, lp_solver)
    lap("relaxation")
    if (relaxation.shortfall > 1e-6 * np.maximum(1.0, small.demand)).any():
        raise _infeasible(problem, backend, asked)
    lagrangian = lagrangian_bound(small, columns, relaxation.capacity_prices)
    prices = reduced_costs(small, columns, relaxation.demand_duals, relaxation.capacity_prices)
    # A dual solution's own value, not the restricted programme's objective: valid whatever the last round did.
    dual_value = (
        float(relaxation.demand_duals @ small.demand)
        - float((relaxation.capacity_prices * small.availability).sum())
        + float((np.minimum(prices, 0.0) * columns.upper).sum())
    )
    dual_value -= 1e-9 * max(1.0, abs(dual_value))
    root = max(dual_value, lagrangian.bound, 0.0)
    forced = np.maximum(lagrangian.forced, dual_value + np.maximum(prices, 0.0))
    lap("lagrangian")

    best: Allocation | None = None
    cost, bound = math.inf, root
    solutions: list[Solution[Allocation]] = []
    wanted = FIRST_COLUMNS
    survivors = len(columns)
    complete = False
    while True:
        target = cost * (1 - asked.rel_gap)
        alive = forced <= target if math.isfinite(target) else np.isfinite(forced)
        alive |= columns.kept
        if best is not None:
            alive |= _columns_of(columns, best)
        survivors = int(alive.sum())
        ranked = np.flatnonzero(alive)
        complete = survivors <= wanted
        if not complete:
            rank = np.lexsort((ranked, forced[ranked]))
            ranked = ranked[rank[:wanted]]
            ranked = np.union1d(ranked, np.flatnonzero(columns.kept | (relaxation.x > 1e-9)))
            if best is not None:
                ranked = np.union1d(ranked, np.flatnonzero(_columns_of(columns, best)))
        left = deadline - time.perf_counter()
        if left <= 0 and best is not None:
            break
        step = replace(
            asked,
            time_limit=None if math.isinf(left) else max(0.0, left),
            rel_gap=asked.rel_gap if complete else max(asked.rel_gap / 2, 1e-9),
        )
        part, pairs = _sub_problem(small, columns, ranked)
        found = solve(part, backend, formulation, step)
        solutions.append(found)
        if found.answer is not None:
            answer = _restore(found.answer, pairs)
            if found.objective < cost:
                best, cost = answer, found.objective
        lap("solver")
        proven = found.bound if found.bound is not None else math.inf
        if complete:
            # Outside the survivors nothing is cheaper than `target`; inside them nothing is cheaper than `proven`.
            bound = max(bound, min(proven, target, cost))
        if best is None and complete and found.termination.reason is Reason.INFEASIBLE:
            raise _infeasible(problem, backend, asked)
        if best is not None and relative_gap(cost, bound) <= asked.rel_gap:
            break
        if time.perf_counter() >= deadline or (found.termination.limit is not None and found.answer is None):
            break
        if complete and (found.termination.limit is not None or survivors == len(columns)):
            break
        if complete and best is not None and not (forced <= cost * (1 - asked.rel_gap)).sum() < survivors:
            break
        wanted = min(max(2 * wanted, wanted + 1), max(MOST_COLUMNS, 1)) if not complete else wanted
        if not complete and wanted >= MOST_COLUMNS and len(solutions) > 6:
            break
    if best is None:
        last = solutions[-1]
        raise NoSolutionError(
            f"solver {backend.name!r} found no allocation within its limits "
            f"({last.termination.reason.value}: {last.termination.raw}); raise time_limit",
            last,
        )
    allocation = reduced.restore(best)
    check = problem.check(allocation)
    if not check.feasible:
        raise WrongAnswerError("the allocation fails its check: " + "; ".join(check.violations[:5]))
    bound = min(bound, check.objective)
    lap("check")
    return AllocationResult(
        allocation=allocation,
        cost_usd_h=check.objective,
        bound_usd_h=bound,
        gap=relative_gap(check.objective, bound),
        formulation=formulation,
        solver=backend.name,
        reductions=reduced.reductions,
        seconds=seconds,
        columns=len(columns),
        survivors=survivors,
        relaxation_usd_h=relaxation.objective,
        lagrangian_usd_h=lagrangian.bound,
        solutions=tuple(solutions),
    )


def _full_model(
    problem: AllocationProblem, backend: Any, lp_solver: Any, asked: SolveOptions, formulation: str
) -> AllocationResult:
    started = time.perf_counter()
    found = solve(problem, backend, formulation, asked)
    if found.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
        raise _infeasible(problem, backend, asked)
    allocation = found.require_solution()
    bound = found.bound if found.bound is not None else 0.0
    return AllocationResult(
        allocation=allocation,
        cost_usd_h=found.objective,
        bound_usd_h=max(0.0, bound),
        gap=relative_gap(found.objective, max(0.0, bound)),
        formulation=formulation,
        solver=backend.name,
        reductions=(),
        seconds={"solver": time.perf_counter() - started},
        columns=found.shape[1] if found.shape else 0,
        survivors=found.shape[1] if found.shape else 0,
        relaxation_usd_h=math.nan,
        lagrangian_usd_h=math.nan,
        solutions=(found,),
    )


def _infeasible(problem: AllocationProblem, backend: Any, asked: SolveOptions) -> InfeasibleError:
    explanation: Explanation = explain(problem, backend, asked)
    return InfeasibleError(str(explanation), explanation)


def _columns_of(columns: Columns, allocation: Allocation) -> npt.NDArray[np.bool_]:
    used = allocation.to_mapping()
    mask = np.zeros(len(columns), dtype=np.bool_)
    for t, r in used:
        mask |= (columns.template == t) & (columns.region == r)
    return mask


def _sub_problem(
    problem: AllocationProblem, columns: Columns, chosen: npt.NDArray[np.int64]
) -> tuple[AllocationProblem, npt.NDArray[np.int64]]:
    """The problem over the templates of the chosen columns, and their numbers.

    A template chosen for one region comes along for the others: more columns never make the answer worse, and a bound
    over more columns is only lower.
    """
    templates = np.unique(columns.template[chosen])
    return (
        replace(
            problem,
            usage=problem.usage[templates],
            throughput=problem.throughput[templates],
            phase=problem.phase[templates],
            running=None if problem.running is None else problem.running[templates],
        ),
        templates,
    )


def _restore(answer: Allocation, templates: npt.NDArray[np.int64]) -> Allocation:
    return Allocation(templates[answer.template], answer.region, answer.count)
