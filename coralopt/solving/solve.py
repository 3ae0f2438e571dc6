"""Solving: hand over, solve, check, and say how good the answer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coralopt.errors import UnsupportedError, WrongAnswerError
from coralopt.solving.any_model import ModelProblem, is_model
from coralopt.solving.backend import Backend, Capability, Listener, SolveProgress, is_matrix_backend
from coralopt.solving.compiled import Compiled, compile_problem
from coralopt.solving.confirm import confirmed
from coralopt.solving.options import SolveOptions
from coralopt.solving.problem import A, Formulation, Problem, RangedProblem, VariableValues
from coralopt.solving.refusal import unsupported
from coralopt.solving.registry import require_backend
from coralopt.solving.repair import tightened
from coralopt.solving.solution import Solution
from coralopt.solving.solve_matrix import solve_matrix
from coralopt.solving.status import BOUND_TOLERANCE, Proof, Reason, Termination, gap_reached
from coralopt.solving.verdict import WITHOUT_SOLUTION, ObjectiveScale, proven
from coralopt.types import Floats

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
        raise unsupported(backend, "takes no start", Capability.MIP_START)
    if options.isolate:
        raise unsupported(backend, "takes whole problems and cannot be isolated", Capability.MILP)
    if backend.kind != problem.kind:
        raise unsupported(
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
