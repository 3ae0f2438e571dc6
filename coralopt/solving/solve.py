"""Solving: hand over, solve, check, and say how good the answer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coralopt.errors import OptionError, UnsupportedError, WrongAnswerError
from coralopt.solving.backend import Capability, Progress, RawResult
from coralopt.solving.bridge import fast_build, matrix_from_pyomo
from coralopt.solving.matrix import Floats, MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.registry import require_backend, solvers_with
from coralopt.solving.solution import MatrixResult, Solution
from coralopt.solving.status import Reason, Termination, gap_reached, relative_gap

#: Largest distance from a whole number that a solver's integer column may have.
INTEGRALITY_TOLERANCE = 1e-4
#: Largest violation of a row, relative to the size of its terms, that counts as rounding of the solver.
ROW_TOLERANCE = 1e-6


def solve(
    problem: Any,
    solver: Any = "highs",
    formulation: str | None = None,
    options: SolveOptions | Mapping[str, Any] | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution[Any]:
    """Solve any problem with any solver.

    Args:
        problem: A placement or allocation problem.
        solver: Name of a back end (see ``coralopt solvers``) or a back end itself.
        formulation: One of ``problem.formulations()``; the problem's default when ``None``.
        options: Common options.
        on_progress: Told about incumbents and bounds while the solver runs.

    Returns:
        A checked solution. Its objective is the exact re-evaluation of the answer, never the solver's claim.

    Raises:
        WrongAnswerError: The solver's answer fails the problem's own check, or contradicts its own bound.
        UnsupportedError: The solver cannot take this kind of problem; names those that can.
        OptionError: Unknown formulation or option.
        SolverNotFoundError: Unknown or missing solver.
    """
    asked = options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})
    backend = require_backend(solver)
    if backend.kind != "matrix":
        return _solve_whole(problem, backend, asked)
    chosen = formulation or problem.default_formulation
    known = problem.formulations()
    if chosen not in known:
        raise OptionError(f"unknown formulation {chosen!r} of a {problem.kind} problem; known: {', '.join(known)}")
    started = time.perf_counter()
    with fast_build():
        model = known[chosen].build(problem)
        matrix, columns = matrix_from_pyomo(model)
    build = time.perf_counter() - started
    result = solve_matrix(matrix, backend, asked, on_progress=on_progress)
    started = time.perf_counter()
    answer, objective = None, math.nan
    if result.x is not None:
        values = {id(column): float(value) for column, value in zip(columns, result.x, strict=True)}

        def value(name: str, index: Any) -> float:
            component = getattr(model, name)
            return values.get(id(component if index is None else component[index]), 0.0)

        answer = known[chosen].read(problem, value)
        objective = _checked(problem, answer, backend.name, chosen)
    return _solution(
        problem,
        answer,
        objective,
        result.bound,
        result.termination,
        asked,
        solver=backend.name,
        formulation=chosen,
        seconds={
            "build": build,
            "handover": result.handover_seconds,
            "solve": result.solve_seconds,
            "check": time.perf_counter() - started,
        },
        nodes=result.nodes,
        iterations=result.iterations,
        effective=result.effective,
        shape=matrix.shape,
        start_accepted=result.start_accepted,
    )


def _solve_whole(problem: Any, backend: Any, asked: SolveOptions) -> Solution[Any]:
    if backend.kind != problem.kind:
        able = [*solvers_with(Capability.MILP)]
        raise UnsupportedError(
            f"solver {backend.name!r} answers {backend.kind} problems only, this is a {problem.kind} problem; "
            f"use one of: {', '.join(able)}"
        )
    raw = backend.solve_problem(problem, asked)
    started = time.perf_counter()
    objective = math.nan if raw.answer is None else _checked(problem, raw.answer, backend.name, "")
    return _solution(
        problem,
        raw.answer,
        objective,
        raw.bound,
        Termination(raw.reason, None, raw.raw),
        asked,
        solver=backend.name,
        formulation="",
        seconds={
            "build": 0.0,
            "handover": 0.0,
            "solve": raw.solve_seconds,
            "check": time.perf_counter() - started,
        },
        iterations=raw.iterations,
    )


def _checked(problem: Any, answer: Any, solver: str, formulation: str) -> float:
    check = problem.check(answer)
    if not check.feasible:
        raise WrongAnswerError(
            f"solver {solver!r}{f' with formulation {formulation!r}' if formulation else ''} returned a wrong "
            f"{problem.kind}: " + "; ".join(check.violations[:5])
        )
    return float(check.objective)


def _solution(
    problem: Any,
    answer: Any,
    objective: float,
    bound: float | None,
    termination: Termination,
    asked: SolveOptions,
    **rest: Any,
) -> Solution[Any]:
    gap = math.inf
    if answer is not None:
        weak = -math.inf if problem.sense == "min" else math.inf
        bound = weak if bound is None else bound
        slack = 1e-6 * max(1.0, abs(objective))
        beyond = bound - objective if problem.sense == "min" else objective - bound
        if beyond > slack:
            raise WrongAnswerError(
                f"solver {rest['solver']!r} claims the bound {bound!r}, but its own checked answer has {objective!r}"
            )
        # Inside the solver's tolerances an exact re-evaluation may pass the bound by a hair; a bound never can.
        bound = min(bound, objective) if problem.sense == "min" else max(bound, objective)
        gap = relative_gap(objective, bound)
        within = gap_reached(objective, bound, asked.rel_gap, asked.abs_gap)
        # The re-evaluation of an answer differs from the solver's own objective by its tolerances.
        within = within or (termination.reason is Reason.OPTIMAL and gap <= asked.rel_gap + 1e-7)
        termination = Termination(Reason.OPTIMAL if within else Reason.FEASIBLE, termination.limit, termination.raw)
    elif termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
        bound = None
    return Solution(
        answer=answer,
        termination=termination,
        objective=objective,
        bound=bound,
        gap=gap,
        requested_gap=asked.rel_gap,
        requested=asked.to_mapping(),
        **rest,
    )


def solve_matrix(
    matrix: MilpMatrix,
    solver: Any = "highs",
    options: SolveOptions | Mapping[str, Any] | None = None,
    *,
    start: Floats | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> MatrixResult:
    """Solve a bare matrix (an LP of a column generation, say); the result is checked row by row.

    Raises:
        WrongAnswerError: The solution violates a row, a bound or integrality, or passes its own bound.
        UnsupportedError: The solver does not take matrices.
    """
    asked = options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})
    backend = require_backend(solver)
    if backend.kind != "matrix":
        raise UnsupportedError(
            f"solver {backend.name!r} does not take matrices; use one of: {', '.join(solvers_with(Capability.MILP))}"
        )
    if start is not None and Capability.MIP_START not in backend.capabilities:
        raise UnsupportedError(
            f"solver {backend.name!r} takes no MIP start; these do: {', '.join(solvers_with(Capability.MIP_START))}"
        )
    raw: RawResult = backend.solve(matrix, asked, start=start, on_progress=on_progress)
    weak = math.inf if matrix.maximize else -math.inf
    bound = weak if raw.bound is None or math.isnan(raw.bound) else float(raw.bound)
    if raw.reason in (Reason.INFEASIBLE, Reason.UNBOUNDED, Reason.INFEASIBLE_OR_UNBOUNDED) or raw.x is None:
        reason = raw.reason
        if reason in (Reason.OPTIMAL, Reason.FEASIBLE):
            raise WrongAnswerError(f"solver {backend.name!r} claims {reason.value} but gives no solution")
        return _matrix_result(raw, None, Termination(reason, raw.limit, raw.raw), math.nan, bound, math.inf, weak)
    x = _rounded(matrix, np.asarray(raw.x, dtype=np.float64), backend.name)
    objective = float(matrix.c @ x) + matrix.offset
    beyond = objective - bound if matrix.maximize else bound - objective
    if beyond > 1e-6 * max(1.0, abs(objective)):
        raise WrongAnswerError(
            f"solver {backend.name!r} claims the bound {bound!r}, but its own solution has objective {objective!r}"
        )
    bound = max(bound, objective) if matrix.maximize else min(bound, objective)
    within = gap_reached(objective, bound, asked.rel_gap, max(asked.abs_gap, 1e-9))
    reason = Reason.OPTIMAL if within else Reason.FEASIBLE
    termination = Termination(reason, raw.limit, raw.raw)
    return _matrix_result(raw, x, termination, objective, bound, relative_gap(objective, bound), weak)


def _matrix_result(
    raw: RawResult,
    x: Floats | None,
    termination: Termination,
    objective: float,
    bound: float,
    gap: float,
    weak: float,
) -> MatrixResult:
    proven: float | None = bound
    if termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
        proven = None
    elif termination.reason is Reason.UNBOUNDED:
        proven = weak
    return MatrixResult(
        x=x,
        termination=termination,
        objective=objective,
        bound=proven,
        gap=gap,
        row_duals=raw.row_duals,
        reduced_costs=raw.reduced_costs,
        nodes=raw.nodes,
        iterations=raw.iterations,
        effective=raw.effective,
        handover_seconds=raw.handover_seconds,
        solve_seconds=raw.solve_seconds,
        start_accepted=raw.start_accepted,
    )


def _rounded(matrix: MilpMatrix, x: Floats, solver: str) -> Floats:
    """``x`` with whole integer columns, after checking bounds, integrality and rows."""
    if x.shape != matrix.c.shape or not np.isfinite(x).all():
        raise WrongAnswerError(f"solver {solver!r} returned {x.shape} values, some maybe not finite")
    whole = np.where(matrix.integer, np.rint(x), x)
    off = np.abs(whole - x)
    if len(x) and off.max() > INTEGRALITY_TOLERANCE:
        worst = int(off.argmax())
        raise WrongAnswerError(f"solver {solver!r}: integer column {matrix.column_names[worst]} has value {x[worst]!r}")
    slack = ROW_TOLERANCE * np.maximum(1.0, np.abs(whole))
    beyond = np.maximum(matrix.lower - whole - slack, whole - matrix.upper - slack)
    if len(x) and beyond.max() > 0:
        worst = int(beyond.argmax())
        raise WrongAnswerError(
            f"solver {solver!r}: column {matrix.column_names[worst]} = {x[worst]!r} is out of bounds"
        )
    if len(matrix.row_lower):
        activity = matrix.a @ whole
        size = np.maximum(1.0, abs(matrix.a) @ np.abs(whole))
        # Rounding integer columns moves a row by at most the integrality tolerance of each of its columns.
        slack = ROW_TOLERANCE * size
        beyond = np.maximum(matrix.row_lower - activity - slack, activity - matrix.row_upper - slack)
        if beyond.max() > 0:
            worst = int(beyond.argmax())
            raise WrongAnswerError(
                f"solver {solver!r}: row {matrix.row_names[worst]} has activity {activity[worst]!r}, "
                f"allowed is {matrix.row_lower[worst]!r} to {matrix.row_upper[worst]!r}"
            )
    return whole


__all__ = ["solve", "solve_matrix"]
