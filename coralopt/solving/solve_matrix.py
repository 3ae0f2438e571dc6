"""A matrix handed to a back end, and what it answers: conditioned, started, repaired, examined."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from coralopt.errors import OptionError, WrongAnswerError
from coralopt.solving.backend import (
    Backend,
    Basis,
    Capability,
    Listener,
    MatrixBackend,
    PickyBackend,
    RawResult,
    SteeredBackend,
    is_matrix_backend,
)
from coralopt.solving.certificate import ClaimCertificate
from coralopt.solving.conditioning import Conditioned, conditioned, crossing
from coralopt.solving.confirm import confirmed
from coralopt.solving.extras import NO_EXTRAS
from coralopt.solving.linearise import Linearised, linearised
from coralopt.solving.matrix import Lazy, LazyRow, MilpMatrix, with_lazy_rows
from coralopt.solving.options import SolveOptions
from coralopt.solving.refusal import refuse_kind, unsupported
from coralopt.solving.registry import require_backend
from coralopt.solving.repair import repaired
from coralopt.solving.solution import MatrixResult, Solution
from coralopt.solving.status import Limit, Proof, Reason, Termination
from coralopt.solving.verdict import best_of, examine, proven
from coralopt.types import Floats

_Ended = TypeVar("_Ended", bound="MatrixResult | Solution[Any]")


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
        raise unsupported(backend, "does not take matrices", Capability.LP)
    begun, remaining = time.perf_counter(), options
    while True:
        result = _solve_once(matrix, backend, remaining, start, on_progress, lazy)
        if lazy is None or result.x is None:
            return result
        missing = [row for row in lazy(result.x) if row.is_violated(result.x)]
        if not missing:
            return result
        matrix, start = with_lazy_rows(matrix, missing), result.basis and result.basis.with_rows(len(missing))
        if options.time_limit is not None:
            remaining = replace(options, time_limit=max(0.0, options.time_limit - (time.perf_counter() - begun)))
            if not remaining.time_limit:
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
    whole = linearised(matrix, backend.capabilities, partial(unsupported, backend))
    refuse_kind(whole.matrix, backend)
    if options.node_limit is not None and Capability.NODE_LIMIT not in backend.capabilities:
        raise unsupported(backend, "has no node limit", Capability.NODE_LIMIT)
    if options.solutions > 1 and Capability.POOL not in backend.capabilities:
        raise unsupported(backend, "gives one solution only", Capability.POOL)
    basis = start if isinstance(start, Basis) else None
    if basis is not None:
        if Capability.LP_BASIS not in backend.capabilities:
            raise unsupported(backend, "takes no basis", Capability.LP_BASIS)
        if (len(basis.rows), len(basis.columns)) != matrix.shape:
            raise OptionError(f"the basis is of {len(basis.rows)} x {len(basis.columns)}, the matrix {matrix.shape}")
        start = None
    elif start is not None:
        if Capability.MIP_START not in backend.capabilities:
            raise unsupported(backend, "takes no start", Capability.MIP_START)
        start = np.asarray(start, dtype=np.float64)
        if start.shape != matrix.c.shape:
            raise OptionError(f"start has shape {start.shape}; this matrix needs ({len(matrix.c)},), NaN where unknown")
    inside = conditioned(whole.matrix)
    scaled, begin = inside.options(options), inside.start(whole.start(start))
    beside = crossing(inside.matrix)
    if beside:
        raw = RawResult(Reason.INFEASIBLE, None, beside, None, math.nan)
    else:
        watched = _inside(lazy, whole, inside) if lazy and Capability.LAZY in backend.capabilities else None
        listener = inside.listener(on_progress)
        raw = _ask(inside.matrix, backend, scaled, begin if basis is None else basis, listener, watched, begun=begun)
        raw = repaired(inside.matrix, raw, lambda changed: _ask(changed, backend, scaled, None, None))
    returned = time.perf_counter()
    x, objective = best_of(inside.matrix, raw, begin, backend.name)
    answer = None if x is None else whole.original(x * inside.columns)
    if answer is not None and matrix.extras and (wrong := examine(matrix, answer)[1]):
        raise WrongAnswerError(f"solver {backend.name!r} returned a wrong solution: {wrong}")
    claim = Termination(raw.reason, raw.limit, raw.raw)
    verdict = proven(claim, None if x is None else objective, raw.bound, matrix.maximize, scaled, backend.name)
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
        grounds=Proof.FARKAS if beside else _grounds(inside.matrix, backend, scaled, raw, objective),
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
        raise unsupported(backend, lacks, Capability.MEMORY_LIMIT)
    if lazy is None and not isinstance(start, Basis):
        return backend.solve(matrix, options, start=start, on_progress=listener)
    return cast("SteeredBackend", backend).solve(matrix, options, start=start, on_progress=listener, lazy=lazy)
