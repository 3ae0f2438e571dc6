"""The best placement over all stage counts with any solver (the paper's loop over S, section 4.2)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement
from coralopt.solving import (
    Backend,
    Formulation,
    Limit,
    Reason,
    Solution,
    SolveOptions,
    Termination,
    formulation_name,
    gap_reached,
    relative_gap,
    require_backend,
    solve,
)


def best_placement(
    problem: PlacementProblem,
    solver: str | Backend = "dp",
    formulation: str | Formulation[PlacementProblem, Placement] | None = None,
    options: SolveOptions | Mapping[str, object] | None = None,
) -> Solution[Placement]:
    """Solve a placement problem over all its stage counts, one model a stage count where the solver takes matrices.

    Args:
        problem: With ``stages`` ``None``, or fixed, which leaves one model.
        solver: Any solver; ``"dp"`` answers the whole problem at once.
        formulation: ``"tight"`` (default) or ``"paper"``; ignored by solvers that take whole problems.
        options: As in :func:`coralopt.solving.solve`; ``time_limit`` is for all stage counts together.

    Returns:
        The best solution, with the fewest stages among equals; its bound is the largest over the stage counts, its
        seconds and nodes are sums. INFEASIBLE when no stage count has a placement.

    Raises:
        SolverError: As :func:`coralopt.solving.solve`.
    """
    wanted = options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})
    backend = require_backend(solver)
    if backend.kind != "matrix":
        return solve(problem, backend, formulation, wanted)
    deadline = math.inf if wanted.time_limit is None else time.perf_counter() + wanted.time_limit
    parts: list[Solution[Placement]] = []
    for stages in problem.stage_counts:
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        limited = wanted if wanted.time_limit is None else replace(wanted, time_limit=left)
        parts.append(solve(replace(problem, stages=stages), backend, formulation, limited))
    return _combined(problem, parts, len(parts) == len(problem.stage_counts), backend.name, formulation, wanted)


def _combined(
    problem: PlacementProblem,
    parts: list[Solution[Placement]],
    complete: bool,
    solver: str,
    formulation: str | Formulation[PlacementProblem, Placement] | None,
    wanted: SolveOptions,
) -> Solution[Placement]:
    """One solution out of those of the single stage counts."""
    hopeless = (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED)  # throughput is bounded by its stages
    open_parts = [part for part in parts if part.termination.reason not in hopeless]
    # A stage count never tried may hold anything.
    bounds = [math.inf if part.bound is None else part.bound for part in open_parts] + [math.inf] * (not complete)
    limit = next((part.termination.limit for part in parts if part.termination.limit), None if complete else Limit.TIME)
    words = "; ".join(
        f"{n} stages: {part.termination.raw}" for n, part in zip(problem.stage_counts, parts, strict=False)
    )
    best = max((part for part in parts if part.answer is not None), key=lambda part: part.objective, default=None)
    bound: float | None = max(bounds, default=None)
    objective, gap = math.nan, math.inf
    if best is not None and bound is not None:
        objective, gap = best.objective, relative_gap(best.objective, bound)
        # Proven one by one, the exact re-evaluations still differ from the solver's objectives by its tolerances.
        proven = all(part.termination.reason is Reason.OPTIMAL for part in open_parts) and complete
        optimal = gap_reached(objective, bound, wanted.rel_gap, wanted.abs_gap) or (
            proven and gap <= wanted.rel_gap + 1e-7
        )
        reason = Reason.OPTIMAL if optimal else Reason.FEASIBLE
    elif not bounds:
        reason = Reason.INFEASIBLE
    else:
        failed = [p.termination.reason for p in open_parts if p.termination.reason is not Reason.NO_SOLUTION_FOUND]
        reason = failed[0] if failed else Reason.NO_SOLUTION_FOUND
    steps = ("build", "handover", "solve", "check")
    return Solution(
        answer=None if best is None else best.answer,
        termination=Termination(reason, limit, words or "no stage count leaves every stage a node and a layer"),
        objective=objective,
        bound=bound,
        gap=gap,
        requested_gap=wanted.rel_gap,
        solver=solver,
        formulation=formulation_name(formulation) or problem.default_formulation,
        seconds={step: sum(part.seconds.get(step, 0.0) for part in parts) for step in steps},
        nodes=sum(part.nodes for part in parts),
        iterations=sum(part.iterations for part in parts),
        requested=wanted.to_mapping(),
        effective=parts[0].effective if parts else {},
        shape=best.shape if best is not None else None,
    )
