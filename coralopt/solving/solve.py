"""Solving: hand over, solve, check, and say how good the answer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from coralopt.errors import OptionError, UnsupportedError, WrongAnswerError
from coralopt.solving.any_model import ModelProblem, is_model
from coralopt.solving.backend import (
    Backend,
    Basis,
    Capability,
    Listener,
    MatrixBackend,
    PickyBackend,
    Plugin,
    RawResult,
    SolveProgress,
    SteeredBackend,
    is_matrix_backend,
)
from coralopt.solving.certificate import ClaimCertificate
from coralopt.solving.compiled import Compiled, compile_problem
from coralopt.solving.conditioning import Conditioned, conditioned, crossing
from coralopt.solving.confirm import confirmed
from coralopt.solving.extras import NO_EXTRAS
from coralopt.solving.linearise import Linearised, linearised
from coralopt.solving.matrix import Lazy, LazyRow, MilpMatrix, with_lazy_rows
from coralopt.solving.options import SolveOptions
from coralopt.solving.problem import A, Formulation, Problem, RangedProblem, VariableValues
from coralopt.solving.registry import require_backend, solvers_with
from coralopt.solving.repair import repaired, tightened
from coralopt.solving.solution import MatrixResult, Solution
from coralopt.solving.status import BOUND_TOLERANCE, Limit, Proof, Reason, Termination, gap_reached
from coralopt.solving.verdict import WITHOUT_SOLUTION, ObjectiveScale, best_of, examine, proven
from coralopt.types import Floats

_Ended = TypeVar("_Ended", bound="MatrixResult | Solution[Any]")
#: Share of the largest figure by which solvers may miss a bound, tolerances and rounded figures together.
RANGE_SLACK = 1e-4


def solve(
    problem: Problem[A],
    solver: str | Backend = "highs",
    formulation: str | Formulation[Any, A] | None = None,
    options: SolveOptions | Mapping[str, object] | None = None,
    start: VariableValues | A | None = None,
    *,
    route: str = "pyomo",
    on_progress: Listener | None = None,
    confirm: str | Backend | None = None,
) -> Solution[A]:
    """Solve any problem with any solver.

    Args:
        problem: A placement or allocation problem, or any Pyomo model that is linear once Pyomo's own transformations
            have dealt with its disjunctions, logic and piecewise-linear functions. Values go into its variables, prices
            into its suffixes ``dual`` and ``rc``; the answer maps names of variables to values, and so may a start.
        solver: Name of a back end (see ``coralopt solvers``) or a back end itself.
        formulation: One of ``problem.formulations()`` by name, or a formulation itself; the problem's default when
            ``None``. Solvers that take whole problems do without.
        options: Common options.
        start: A solution to begin with: ``(variable name, index) -> value`` in the formulation's variables, complete
            or not, or an answer where the formulation has ``start(problem, answer)``. One that is not feasible does
            no harm; one that is feasible is never lost, whatever limit comes first.
        route: ``"pyomo"`` builds and compiles the formulation's model; ``"arrays"`` makes the same matrix straight from
            the problem's arrays, where the formulation can.
        on_progress: Told about incumbents and bounds while the solver runs, if it can tell. It must not solve.
        confirm: A second solver that is asked the same, and must not contradict; ``Solution.proof`` says whether it
            proves the same within the gap.

    Returns:
        A checked solution. Its objective is the exact re-evaluation of the answer, never the solver's claim.

    Raises:
        WrongAnswerError: The solver's answer fails the problem's own check, or contradicts its own bound or the second
            solver.
        UnsupportedError: The solver cannot take this kind of problem, or no start; names those that can.
        OptionError: Unknown formulation or option.
        SolverNotFoundError: Unknown or missing solver.
    """
    options = SolveOptions.of(options)
    backend = require_backend(solver)
    if not is_model(problem) and not hasattr(problem, "formulations"):
        raise UnsupportedError(f"{type(problem).__name__} is neither a problem nor a Pyomo model")
    if confirm is not None:
        # The first solver comes last: a Pyomo model keeps its values.
        second = solve(problem, confirm, formulation, options, route=route)
        first = solve(problem, backend, formulation, options, start, route=route, on_progress=on_progress)
        sense = ModelProblem(problem).sense if is_model(problem) else problem.sense
        proof = confirmed(first, second, (first.solver, second.solver), sense == "max", options)
        return first if proof is None else replace(first, grounds=proof)
    if is_model(problem):
        return _solve_model(ModelProblem(problem), backend, options, start, on_progress)
    if is_matrix_backend(backend):

        def ask(part: Problem[A], listener: Listener | None, left: SolveOptions, slack: float) -> Solution[A]:
            compiled = compile_problem(part, formulation, route)
            return solve_compiled(part, compiled, backend, left, start, listener, slack)

        return _in_range(problem, ask, options, on_progress)
    if start is not None:
        raise _unsupported(backend, "takes no start", Capability.MIP_START)
    if options.isolate:
        raise _unsupported(backend, "takes whole problems and cannot be isolated", Capability.MILP)
    if backend.kind != problem.kind:
        raise _unsupported(
            backend, f"answers {backend.kind} problems only and takes no {problem.kind} problem", Capability.MILP
        )
    raw = backend.solve_problem(problem, options)
    started = time.perf_counter()
    answer: A | None = None if raw.reason in WITHOUT_SOLUTION else raw.answer
    claim = Termination(raw.reason, raw.limit, raw.raw)
    if answer is None and claim.has_solution:
        raise WrongAnswerError(f"solver {backend.name!r} claims {raw.reason.value} but gives no answer")
    solution = _judged(problem, answer, claim, raw.bound, options, backend.name)
    if getattr(backend, "own_proof", False):
        solution = replace(solution, grounds=Proof.OWN_BOUND)
    seconds = {"build": 0.0, "handover": 0.0, "solve": raw.solve_seconds, "check": time.perf_counter() - started}
    return replace(solution, seconds=seconds, iterations=raw.iterations)


# A model has no type, and the solution's is that of the caller's problem.
def _solve_model(
    problem: ModelProblem,
    backend: Backend,
    options: SolveOptions,
    start: Any,
    on_progress: Listener | None,
) -> Solution[Any]:
    compiled = problem.compiled()
    solution = solve_compiled(problem, compiled, backend, options, start, on_progress)
    if solution.answer is not None:
        problem.load(solution.answer, compiled.matrix, solution.row_duals, solution.reduced_costs)
    return solution


def solve_compiled(
    problem: Problem[A],
    compiled: Compiled[A],
    solver: str | Backend = "highs",
    options: SolveOptions | Mapping[str, object] | None = None,
    start: VariableValues | Floats | A | None = None,
    on_progress: Listener | None = None,
    slack: float = BOUND_TOLERANCE,
) -> Solution[A]:
    """Like :func:`solve` for a problem that is compiled already; a vector of column values is a start, too.

    The checked answer may pass the solver's bound by ``slack``, relative to the larger of itself and an ordinary objective.
    """
    options = SolveOptions.of(options)
    backend = require_backend(solver)
    begin = start if start is None or isinstance(start, np.ndarray) else compiled.begin(start)
    result = solve_matrix(compiled.matrix, backend, options, start=begin, on_progress=on_progress)
    started = time.perf_counter()
    answer = None if result.x is None else compiled.read(result.x)
    if result.x is not None and answer is not None and not problem.check(answer).feasible:
        # What is whole and small for the solver may miss an exact rule: once more, with sides moved inwards.
        second = solve_matrix(tightened(compiled.matrix, result.x), backend, options)
        if second.x is not None:
            answer = compiled.read(second.x)
            result = replace(result, termination=replace(result.termination, reason=Reason.FEASIBLE))
    solution = _judged(
        problem,
        answer,
        result.termination,
        result.bound,
        options,
        backend.name,
        formulation=compiled.formulation,
        scale=ObjectiveScale(result.unit, slack),
    )
    return replace(
        solution,
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
        grounds=solution.grounds if solution.grounds is Proof.OWN_BOUND else result.grounds,
        start_accepted=result.start_accepted,
        row_duals=result.row_duals,
        reduced_costs=result.reduced_costs,
    )


def _in_range(
    problem: Problem[A],
    ask: Callable[[Problem[A], Listener | None, SolveOptions, float], Solution[A]],
    options: SolveOptions,
    on_progress: Listener | None,
) -> Solution[A]:
    """Solve a problem of any range of figures: cut to those near the best bound so far, until that is near the answer."""
    if not isinstance(problem, RangedProblem):
        return ask(problem, on_progress, options, BOUND_TOLERANCE)
    ceiling, begun, left = problem.ceiling, time.perf_counter(), options
    while (ranged := problem.within(ceiling)) is not None:
        part, unit = ranged

        def tell(event: SolveProgress, unit: float = unit) -> None:
            if on_progress is not None:
                best = None if event.objective is None else event.objective * unit
                bound = None if event.bound is None else event.bound * unit
                on_progress(replace(event, objective=best, bound=bound))

        gaps = replace(left, abs_gap=left.abs_gap / max(1.0, unit))
        inner = ask(part, None if on_progress is None else tell, gaps, RANGE_SLACK)
        bound = None if inner.bound is None else inner.bound * unit
        true = _judged(
            problem, inner.answer, inner.termination, bound, options, inner.solver, scale=ObjectiveScale(unit)
        )
        solution = replace(
            inner, objective=true.objective, bound=true.bound, gap=true.gap, termination=true.termination
        )
        lower = math.inf if bound is None else bound + RANGE_SLACK * ceiling
        # A claim of optimality far below the ceiling is one within tolerances that are as large as the answer. An answer
        # that is not proven may have been repaired by as much as these tolerances, which are less in any lower range.
        least = 1.5 if solution.termination.reason is Reason.FEASIBLE else 8.0
        if inner.answer is None or not lower < ceiling / least:
            return solution
        ceiling = lower
        if options.time_limit is not None:
            left = replace(options, time_limit=max(0.0, options.time_limit - (time.perf_counter() - begun)))
    return ask(problem, on_progress, left, BOUND_TOLERANCE)


def _unsupported(backend: Plugin, lacks: str, capability: Capability) -> UnsupportedError:
    able = ", ".join(solvers_with(capability)) or "none is registered"
    return UnsupportedError(f"solver {backend.name!r} {lacks}; these do: {able}")


def _refuse_kind(matrix: MilpMatrix, backend: MatrixBackend) -> None:
    """Refuse columns that a back end does not declare to take."""
    if Capability.MILP in backend.capabilities:
        return
    if Capability.BOXED not in backend.capabilities:
        if matrix.integer.any():
            raise _unsupported(backend, "takes no integer columns", Capability.MILP)
        return
    whole = matrix.integer & np.isfinite(matrix.lower) & np.isfinite(matrix.upper)
    if not whole.all():
        first = matrix.column_names[int(whole.argmin())]
        raise _unsupported(backend, f"takes integer columns between finite bounds only, not {first}", Capability.MILP)


def _judged(
    problem: Problem[A],
    answer: A | None,
    claim: Termination,
    bound: float | None,
    options: SolveOptions,
    solver: str,
    *,
    formulation: str = "",
    scale: ObjectiveScale = ObjectiveScale(),
) -> Solution[A]:
    """The answer after the problem's own check, with what is proven of it; seconds and counts are still to be said."""
    objective = None
    if answer is not None:
        check = problem.check(answer)
        if not check.feasible:
            raise WrongAnswerError(
                f"solver {solver!r}{f' with formulation {formulation!r}' if formulation else ''} returned a wrong "
                f"{problem.kind}: " + "; ".join(check.sentences[:5])
            )
        objective = float(check.objective)
    verdict = proven(claim, objective, bound, problem.sense == "max", options, solver, scale)
    own = False
    if objective is not None and isinstance(problem, RangedProblem):
        own = gap_reached(objective, problem.ceiling, options.rel_gap, 0.0)
    return Solution(
        answer=answer,
        termination=verdict.termination,
        objective=math.nan if objective is None else objective,
        bound=verdict.bound,
        gap=verdict.gap,
        requested_gap=options.rel_gap,
        solver=solver,
        formulation=formulation,
        seconds={},
        requested=options.to_mapping(),
        grounds=Proof.OWN_BOUND if own else Proof.SOLVER,
    )


def heeded(result: _Ended) -> _Ended:
    """The result, unless Ctrl-C cut the solve short: it reaches the back end first, and whoever goes on must not miss it.

    Raises:
        KeyboardInterrupt: The solve was interrupted.
    """
    if result.termination.limit is Limit.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def solve_matrix(
    matrix: MilpMatrix,
    solver: str | Backend = "highs",
    options: SolveOptions | Mapping[str, object] | None = None,
    *,
    start: Floats | Basis | None = None,
    on_progress: Listener | None = None,
    confirm: str | Backend | None = None,
    lazy: Lazy | None = None,
) -> MatrixResult:
    """Solve a bare matrix (an LP of a column generation, say); the result is checked row by row.

    Args:
        matrix: The matrix.
        solver: Name of a back end or a back end itself.
        options: Common options.
        start: float64 (n,), NaN where unknown. A complete feasible one is never lost: the result is at least as good.
            For a linear programme the basis of another result.
        on_progress: Told about incumbents and bounds while the solver runs, if it can tell. It must not solve.
        confirm: A second solver that is asked the same, and must not contradict; ``MatrixResult.proof`` says whether it
            proves the same within the gap.
        lazy: Gives rows that a point must hold, too, among them one that it violates if there is one. Asked while
            solving where the back end declares ``lazy``; else the matrix is solved again with them. Rows that are
            added stand behind the others in ``row_duals``.

    Raises:
        WrongAnswerError: The solution violates a row, a bound or integrality, has another objective than claimed, or
            passes its own bound; or a feasible start or the second solver contradicts the claim.
        UnsupportedError: The solver does not take matrices, integer columns or starts; names those that do.
        OptionError: A wrong option, or a start of the wrong length.
        SolverNotFoundError: Unknown or missing solver.
    """
    options = SolveOptions.of(options)
    backend = require_backend(solver)
    if confirm is not None:
        rival = require_backend(confirm)
        first = solve_matrix(matrix, backend, options, start=start, on_progress=on_progress, lazy=lazy)
        second = solve_matrix(matrix, rival, options, lazy=lazy)
        proof = confirmed(first, second, (backend.name, rival.name), matrix.maximize, options)
        return first if proof is None else replace(first, grounds=proof)
    if not is_matrix_backend(backend):
        raise _unsupported(backend, "does not take matrices", Capability.LP)
    begun, asked = time.perf_counter(), options
    while True:
        result = _solve_once(matrix, backend, asked, start, on_progress, lazy)
        if lazy is None or result.x is None:
            return result
        missing = [row for row in lazy(result.x) if row.is_violated(result.x)]
        if not missing:
            return result
        matrix, start = with_lazy_rows(matrix, missing), result.basis and result.basis.with_rows(len(missing))
        if options.time_limit is not None:
            asked = replace(options, time_limit=max(0.0, options.time_limit - (time.perf_counter() - begun)))
            if not asked.time_limit:
                # What the last point is worth without the rows that it violates is a bound, and no more.
                ended = Termination(Reason.NO_SOLUTION_FOUND, Limit.TIME, "time is over with lazy rows still missing")
                return replace(
                    result, x=None, termination=ended, objective=math.nan, gap=math.inf, grounds=Proof.SOLVER
                )


def _solve_once(
    matrix: MilpMatrix,
    backend: MatrixBackend,
    options: SolveOptions,
    start: Floats | Basis | None,
    on_progress: Listener | None,
    lazy: Lazy | None,
) -> MatrixResult:
    """The matrix and no further rows but those that the back end itself asks for."""
    begun = time.time()
    whole = linearised(matrix, backend.capabilities, partial(_unsupported, backend))
    _refuse_kind(whole.matrix, backend)
    if options.node_limit is not None and Capability.NODE_LIMIT not in backend.capabilities:
        raise _unsupported(backend, "has no node limit", Capability.NODE_LIMIT)
    if options.solutions > 1 and Capability.POOL not in backend.capabilities:
        raise _unsupported(backend, "gives one solution only", Capability.POOL)
    basis = start if isinstance(start, Basis) else None
    if basis is not None:
        if Capability.LP_BASIS not in backend.capabilities:
            raise _unsupported(backend, "takes no basis", Capability.LP_BASIS)
        if (len(basis.rows), len(basis.columns)) != matrix.shape:
            raise OptionError(f"the basis is of {len(basis.rows)} x {len(basis.columns)}, the matrix {matrix.shape}")
        start = None
    elif start is not None:
        if Capability.MIP_START not in backend.capabilities:
            raise _unsupported(backend, "takes no start", Capability.MIP_START)
        start = np.asarray(start, dtype=np.float64)
        if start.shape != matrix.c.shape:
            raise OptionError(f"start has shape {start.shape}; this matrix needs ({len(matrix.c)},), NaN where unknown")
    inside = conditioned(whole.matrix)
    asked, begin = inside.options(options), inside.start(whole.start(start))
    beside = crossing(inside.matrix)
    if beside:
        raw = RawResult(Reason.INFEASIBLE, None, beside, None, math.nan)
    else:
        watched = _inside(lazy, whole, inside) if lazy and Capability.LAZY in backend.capabilities else None
        listener = inside.listener(on_progress)
        raw = _ask(inside.matrix, backend, asked, begin if basis is None else basis, listener, watched, begun=begun)
        raw = repaired(inside.matrix, raw, lambda changed: _ask(changed, backend, asked, None, None))
    returned = time.perf_counter()
    x, objective = best_of(inside.matrix, raw, begin, backend.name)
    answer = None if x is None else whole.original(x * inside.columns)
    if answer is not None and matrix.extras and (wrong := examine(matrix, answer)[1]):
        raise WrongAnswerError(f"solver {backend.name!r} returned a wrong solution: {wrong}")
    claim = Termination(raw.reason, raw.limit, raw.raw)
    verdict = proven(claim, None if x is None else objective, raw.bound, matrix.maximize, asked, backend.name)
    duals = inside.duals(raw.row_duals)
    return MatrixResult(
        x=answer,
        termination=verdict.termination,
        objective=objective / inside.objective,
        bound=None if verdict.bound is None else verdict.bound / inside.objective,
        gap=verdict.gap,
        row_duals=duals,
        reduced_costs=raw.reduced_costs
        if inside.rows is None or duals is None or answer is None
        else matrix.gradient(answer) - matrix.a.T @ duals,
        nodes=raw.nodes,
        iterations=raw.iterations,
        effective=raw.effective,
        handover_seconds=raw.handover_seconds,
        solve_seconds=raw.solve_seconds,
        start_accepted=raw.start_accepted,
        check_seconds=time.perf_counter() - returned,
        unit=1.0 / inside.objective,
        basis=raw.basis if x is not None else None,
        pool=_pool(matrix, whole, inside, raw, answer)[: options.solutions],
        grounds=Proof.FARKAS if beside else _grounds(inside.matrix, backend, asked, raw, objective),
    )


def _inside(lazy: Lazy, whole: Linearised, inside: Conditioned) -> Lazy:
    """Lazy rows in the terms of what is handed over."""

    def rows(x: Floats) -> list[LazyRow]:
        point, units = whole.original(x * inside.columns), inside.columns
        missing = [row for row in lazy(point) if row.is_violated(point)]
        return [replace(row, terms={j: value * units[j] for j, value in row.terms.items()}) for row in missing]

    return rows


def _pool(
    matrix: MilpMatrix, whole: Linearised, inside: Conditioned, raw: RawResult, answer: Floats | None
) -> tuple[Floats, ...]:
    """The answer and the further solutions of the back end that hold, best first, none twice."""
    if answer is None or not raw.pool:
        return () if answer is None else (answer,)
    points = {answer.tobytes(): answer}
    for x in raw.pool:
        point, wrong = examine(matrix, whole.original(x * inside.columns))
        if not wrong:
            points.setdefault(point.tobytes(), point)
    return tuple(sorted(points.values(), key=matrix.objective, reverse=matrix.maximize))


def _grounds(
    matrix: MilpMatrix, backend: MatrixBackend, options: SolveOptions, raw: RawResult, objective: float
) -> Proof | ClaimCertificate:
    """What it takes to prove the claim."""
    if raw.reason is Reason.INFEASIBLE and not matrix.extras:
        return ClaimCertificate(matrix, backend, options)
    if raw.x is None or raw.row_duals is None or matrix.extras.discrete:
        return Proof.SOLVER
    if matrix.extras:
        # A convex objective is nowhere below its tangent at the answer, which is linear.
        slope = matrix.gradient(raw.x)
        matrix = replace(matrix, c=slope, offset=objective - float(slope @ raw.x), extras=NO_EXTRAS)
    return ClaimCertificate(matrix, backend, options, raw.row_duals, objective)


def _ask(
    matrix: MilpMatrix,
    backend: MatrixBackend,
    options: SolveOptions,
    start: Floats | Basis | None,
    listener: Listener | None,
    lazy: Lazy | None = None,
    begun: float = math.inf,
) -> RawResult:
    """What the back end says, from this process or another one, where nobody can be asked for lazy rows.

    In a process that nobody asked for, time counts from ``begun``, seconds of ``time.time``.
    """
    if options.isolate or (isinstance(backend, PickyBackend) and backend.needs_process(matrix, options)):
        from coralopt.solving.isolation import solve_isolated

        return solve_isolated(matrix, backend, options, start, listener, begun)
    if options.memory_limit is not None and Capability.MEMORY_LIMIT not in backend.capabilities:
        lacks = "has no memory limit of its own; set isolate=True to have one"
        raise _unsupported(backend, lacks, Capability.MEMORY_LIMIT)
    if lazy is None and not isinstance(start, Basis):
        return backend.solve(matrix, options, start=start, on_progress=listener)
    return cast("SteeredBackend", backend).solve(matrix, options, start=start, on_progress=listener, lazy=lazy)
