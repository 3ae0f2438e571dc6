"""Solving: hand over, solve, check, and say how good the answer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coralopt.errors import OptionError, UnsupportedError, WrongAnswerError
from coralopt.solving.backend import Capability, Progress, RawResult
from coralopt.solving.compiled import Compiled, compile_problem
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.registry import require_backend, solvers_with
from coralopt.solving.solution import MatrixResult, Solution
from coralopt.solving.status import Limit, Reason, Termination
from coralopt.solving.verdict import WITHOUT_SOLUTION, best_of, proven, weak_bound
from coralopt.types import Floats


def solve(
    problem: Any,
    solver: Any = "highs",
    formulation: str | None = None,
    options: SolveOptions | Mapping[str, Any] | None = None,
    start: Any = None,
    *,
    route: str = "pyomo",
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution[Any]:
    """Solve any problem with any solver.

    Args:
        problem: A placement or allocation problem.
        solver: Name of a back end (see ``coralopt solvers``) or a back end itself.
        formulation: One of ``problem.formulations()``; the problem's default when ``None``. Solvers that take whole
            problems do without.
        options: Common options.
        start: A solution to begin with: ``(variable name, index) -> value`` in the formulation's variables, complete
            or not, or an answer where the formulation has ``start(problem, answer)``. One that is not feasible does
            no harm; one that is feasible is never lost, whatever limit comes first.
        route: ``"pyomo"`` builds and compiles the formulation's model; ``"arrays"`` makes the same matrix straight from
            the problem's arrays, where the formulation can.
        on_progress: Told about incumbents and bounds while the solver runs, if it can tell. It must not solve.

    Returns:
        A checked solution. Its objective is the exact re-evaluation of the answer, never the solver's claim.

    Raises:
        WrongAnswerError: The solver's answer fails the problem's own check, or contradicts its own bound.
        UnsupportedError: The solver cannot take this kind of problem, or no start; names those that can.
        OptionError: Unknown formulation or option.
        SolverNotFoundError: Unknown or missing solver.
    """
    asked = options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})
    backend = require_backend(solver)
    if backend.kind != "matrix":
        if start is not None:
            raise _unsupported(backend, "takes no start", Capability.MIP_START)
        if asked.isolate:
            raise _unsupported(backend, "takes whole problems and cannot be isolated", Capability.MILP)
        return _solve_whole(problem, backend, asked)
    return solve_compiled(problem, compile_problem(problem, formulation, route), backend, asked, start, on_progress)


def solve_compiled(
    problem: Any,
    compiled: Compiled,
    solver: Any = "highs",
    options: SolveOptions | Mapping[str, Any] | None = None,
    start: Any = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution[Any]:
    """Like :func:`solve` for a problem that is compiled already; a vector of column values is a start, too."""
    asked = options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})
    backend = require_backend(solver)
    begin = start if start is None or isinstance(start, np.ndarray) else compiled.begin(start)
    result = solve_matrix(compiled.matrix, backend, asked, start=begin, on_progress=on_progress)
    started = time.perf_counter()
    answer, objective = None, math.nan
    if result.x is not None:
        answer = compiled.read(result.x)
        objective = _checked(problem, answer, backend.name, compiled.formulation)
    return _solution(
        problem,
        answer,
        objective,
        result.bound,
        result.termination,
        asked,
        solver=backend.name,
        formulation=compiled.formulation,
        seconds={
            "build": compiled.seconds,
            "handover": result.handover_seconds,
            "solve": result.solve_seconds,
            "check": result.check_seconds + time.perf_counter() - started,
        },
        nodes=result.nodes,
        iterations=result.iterations,
        effective=result.effective,
        shape=compiled.matrix.shape,
        start_accepted=result.start_accepted,
    )


def _unsupported(backend: Any, lacks: str, capability: Capability) -> UnsupportedError:
    able = ", ".join(solvers_with(capability)) or "none is registered"
    return UnsupportedError(f"solver {backend.name!r} {lacks}; these do: {able}")


def _solve_whole(problem: Any, backend: Any, asked: SolveOptions) -> Solution[Any]:
    if backend.kind != problem.kind:
        raise _unsupported(
            backend, f"answers {backend.kind} problems only and takes no {problem.kind} problem", Capability.MILP
        )
    raw = backend.solve_problem(problem, asked)
    started = time.perf_counter()
    answer = None if raw.reason in WITHOUT_SOLUTION else raw.answer
    if answer is None and raw.reason in (Reason.OPTIMAL, Reason.FEASIBLE):
        raise WrongAnswerError(f"solver {backend.name!r} claims {raw.reason.value} but gives no answer")
    objective = math.nan if answer is None else _checked(problem, answer, backend.name, "")
    return _solution(
        problem,
        answer,
        objective,
        raw.bound,
        Termination(raw.reason, raw.limit, raw.raw),
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
            f"{problem.kind}: " + "; ".join(check.sentences[:5])
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
    maximize = problem.sense == "max"
    gap = math.inf
    if answer is not None:
        bound, gap, reason = proven(objective, bound, maximize, termination.reason, asked, rest["solver"])
        termination = replace(termination, reason=reason)
    elif termination.reason is Reason.INFEASIBLE:
        bound = None
    elif bound is None or math.isnan(bound) or termination.reason in WITHOUT_SOLUTION:
        bound = weak_bound(maximize)
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


def heeded(result: MatrixResult) -> MatrixResult:
    """The result, unless Ctrl-C cut the solve short: it reaches the back end first, and whoever goes on must not miss it.

    Raises:
        KeyboardInterrupt: The solve was interrupted.
    """
    if result.termination.limit is Limit.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def solve_matrix(
    matrix: MilpMatrix,
    solver: Any = "highs",
    options: SolveOptions | Mapping[str, Any] | None = None,
    *,
    start: Floats | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> MatrixResult:
    """Solve a bare matrix (an LP of a column generation, say); the result is checked row by row.

    Args:
        matrix: The matrix.
        solver: Name of a back end or a back end itself.
        options: Common options.
        start: float64 (n,), NaN where unknown. A complete feasible one is never lost: the result is at least as good.
        on_progress: Told about incumbents and bounds while the solver runs, if it can tell. It must not solve.

    Raises:
        WrongAnswerError: The solution violates a row, a bound or integrality, has another objective than claimed, or
            passes its own bound; or a feasible start contradicts the claim.
        UnsupportedError: The solver does not take matrices, integer columns or starts; names those that do.
        OptionError: A wrong option, or a start of the wrong length.
        SolverNotFoundError: Unknown or missing solver.
    """
    asked = options if isinstance(options, SolveOptions) else SolveOptions.from_mapping(options or {})
    backend = require_backend(solver)
    if backend.kind != "matrix":
        raise _unsupported(backend, "does not take matrices", Capability.LP)
    if matrix.integer.any() and Capability.MILP not in backend.capabilities:
        raise _unsupported(backend, "takes no integer columns", Capability.MILP)
    if start is not None:
        if Capability.MIP_START not in backend.capabilities:
            raise _unsupported(backend, "takes no start", Capability.MIP_START)
        start = np.asarray(start, dtype=np.float64)
        if start.shape != matrix.c.shape:
            raise OptionError(f"start has shape {start.shape}; this matrix needs ({len(matrix.c)},), NaN where unknown")
    raw = _run(matrix, backend, asked, start, on_progress)
    returned = time.perf_counter()
    x, objective = best_of(matrix, raw, start, backend.name)
    bound: float | None
    reason: Reason
    if x is None:
        if raw.reason in (Reason.OPTIMAL, Reason.FEASIBLE):
            raise WrongAnswerError(f"solver {backend.name!r} claims {raw.reason.value} but gives no solution")
        reason, gap = raw.reason, math.inf
        bound = raw.bound
        if reason is Reason.INFEASIBLE:
            bound = None
        elif bound is None or math.isnan(bound) or reason in WITHOUT_SOLUTION:
            bound = weak_bound(matrix.maximize)
    else:
        bound, gap, reason = proven(objective, raw.bound, matrix.maximize, raw.reason, asked, backend.name)
    return MatrixResult(
        x=x,
        termination=Termination(reason, raw.limit, raw.raw),
        objective=objective,
        bound=bound,
        gap=gap,
        row_duals=raw.row_duals,
        reduced_costs=raw.reduced_costs,
        nodes=raw.nodes,
        iterations=raw.iterations,
        effective=raw.effective,
        handover_seconds=raw.handover_seconds,
        solve_seconds=raw.solve_seconds,
        start_accepted=raw.start_accepted,
        check_seconds=time.perf_counter() - returned,
    )


def _run(
    matrix: MilpMatrix,
    backend: Any,
    asked: SolveOptions,
    start: Floats | None,
    on_progress: Callable[[Progress], None] | None,
) -> RawResult:
    """The back end itself, here or in a process of its own."""
    if asked.isolate:
        from coralopt.solving.isolation import solve_isolated

        return solve_isolated(matrix, backend, asked, start, on_progress)
    if asked.memory_limit is not None and Capability.MEMORY_LIMIT not in backend.capabilities:
        able = ", ".join(solvers_with(Capability.MEMORY_LIMIT)) or "none is registered"
        raise UnsupportedError(
            f"solver {backend.name!r} has no memory limit of its own; set isolate=True to have one, or use: {able}"
        )
    raw: RawResult = backend.solve(matrix, asked, start=start, on_progress=on_progress)
    return raw
