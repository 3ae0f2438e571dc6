"""The HiGHS back end: one fresh solver object a solve, so that nothing can leak into the next."""

from __future__ import annotations

import _thread
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import OptionError, SolverError, SolverNotFoundError
from coralopt.solving import (
    Availability,
    Capability,
    Limit,
    MilpMatrix,
    RawResult,
    Reason,
    SolveOptions,
    SolveProgress,
    checked_native,
)
from coralopt.types import Floats

#: HiGHS keeps one pool of threads a process; changing its size needs a reset, which must not overlap a solve.
_SCHEDULER = threading.Lock()
#: HiGHS's iis_strategy: look at the linear programme (2), make the subset irreducible (4).
IRREDUCIBLE_FROM_LP = 6


class HighsBackend:
    """HiGHS (MIT licence), no size limit.

    Solves of several Python threads wait for one another, since HiGHS shares one thread pool in a process.
    """

    name: ClassVar[str] = "highs"
    kind: ClassVar[str] = "matrix"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.LP,
            Capability.MILP,
            Capability.MIP_START,
            Capability.LP_DUALS,
            Capability.PROGRESS,
            Capability.SEED,
            Capability.INTERRUPT,
            Capability.CONFLICT,
        }
    )

    def probe(self) -> Availability:
        """Whether highspy is installed, and which version; does not import it."""
        try:
            return Availability(True, version("highspy"), "MIT, no size limit")
        except PackageNotFoundError:
            return Availability(False, "", "MIT, no size limit", "install the package highspy")

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
    ) -> RawResult:
        """Solve one matrix. Ctrl-C stops HiGHS and keeps its incumbent; a second one gives up waiting for it.

        Raises:
            OptionError: A native option HiGHS does not know or does not take with this value.
            SolverError: HiGHS refuses the matrix.
            SolverNotFoundError: highspy is not installed.
        """
        try:
            import highspy
        except ImportError as error:
            raise SolverNotFoundError("solver 'highs' needs the package highspy; install it") from error
        begun = time.perf_counter()
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        effective = _set_options(highspy, solver, options)
        if matrix.shape[1] == 0:
            return _without_columns(matrix, effective)
        _pass_model(highspy, solver, matrix)
        is_mip = bool(matrix.integer.any())
        accepted: list[bool] | None = None
        if start is not None and is_mip:
            accepted = _pass_start(highspy, solver, start, options.log)
        handed = time.perf_counter()
        interrupted = _Run(solver, on_progress, handed).wait(highspy, solver)
        solved = time.perf_counter()
        result = _result(highspy, solver, matrix, options, interrupted)
        result = replace(
            result,
            effective=effective,
            handover_seconds=handed - begun,
            solve_seconds=solved - handed,
            start_accepted=None if accepted is None else bool(accepted),
        )
        if result.reason is Reason.INFEASIBLE_OR_UNBOUNDED:
            return self._decided(matrix, options, result)
        return result

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[tuple[str, int, str]]:
        """HiGHS's irreducible infeasible subset of the linear relaxation; empty when that is feasible."""
        import highspy

        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", options.log)
        solver.setOptionValue("iis_strategy", IRREDUCIBLE_FROM_LP)
        if options.time_limit is not None:
            solver.setOptionValue("time_limit", float(options.time_limit))
        _pass_model(highspy, solver, matrix)
        with _SCHEDULER:
            highspy.Highs.resetGlobalScheduler(True)
            status, found = solver.getIis()
        if status == highspy.HighsStatus.kError:
            return []
        bound = highspy.IisBoundStatus
        sides = {
            int(bound.kIisBoundStatusLower): ("lower",),
            int(bound.kIisBoundStatusUpper): ("upper",),
            int(bound.kIisBoundStatusBoxed): ("lower", "upper"),
        }
        return [
            (kind, int(position), side)
            for kind, index, kinds in (
                ("column", found.col_index_, found.col_bound_),
                ("row", found.row_index_, found.row_bound_),
            )
            for position, which in zip(index, kinds, strict=True)
            for side in sides.get(int(which), ())
        ]

    def _decided(self, matrix: MilpMatrix, options: SolveOptions, result: RawResult) -> RawResult:
        """Presolve often stops at "infeasible or unbounded": the same rows without an objective tell which."""
        left = None if options.time_limit is None else max(0.0, options.time_limit - result.solve_seconds)
        plain = replace(matrix, c=np.zeros_like(matrix.c), offset=0.0)
        second = self.solve(plain, replace(options, time_limit=left))
        seconds = result.solve_seconds + second.solve_seconds
        if second.x is not None:
            raw = f"{result.raw}; feasible without the objective"
            return replace(result, reason=Reason.UNBOUNDED, raw=raw, solve_seconds=seconds)
        if second.reason is Reason.INFEASIBLE:
            raw = f"{result.raw}; infeasible without the objective"
            return replace(result, reason=Reason.INFEASIBLE, raw=raw, solve_seconds=seconds)
        return replace(result, limit=second.limit, solve_seconds=seconds)


def _without_columns(matrix: MilpMatrix, effective: Mapping[str, Any]) -> RawResult:
    """A model without columns: feasible iff every row admits 0. HiGHS has a status of its own for it."""
    if bool((matrix.row_lower <= 0).all() and (matrix.row_upper >= 0).all()):
        return RawResult(Reason.OPTIMAL, None, "no columns", np.zeros(0), matrix.offset, effective=effective)
    return RawResult(Reason.INFEASIBLE, None, "no columns", None, math.nan, effective=effective)


def _set_options(highspy: Any, solver: Any, options: SolveOptions) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "output_flag": options.log,
        "mip_rel_gap": float(options.rel_gap),
        "mip_abs_gap": float(options.abs_gap),
        "random_seed": options.seed,
        "threads": options.threads or 1,
    }
    if options.time_limit is not None:
        wanted["time_limit"] = float(options.time_limit)
    if options.node_limit is not None:
        wanted["mip_max_nodes"] = options.node_limit
    if options.presolve is not None:
        wanted["presolve"] = "on" if options.presolve else "off"
    wanted.update(_native(solver, options.native))
    for name, value in wanted.items():
        if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise OptionError(f"HiGHS does not take {value!r} for its option {name!r}")
    return wanted


def _native(solver: Any, native: Mapping[str, Any]) -> dict[str, Any]:
    """HiGHS itself ignores a wrong option but for a line in its log."""
    if not native:
        return {}
    defaults = solver.getOptions()
    known = [name for name in dir(defaults) if not name.startswith("_") and not callable(getattr(defaults, name))]
    return checked_native("HiGHS", native, known, lambda name: solver.getOptionValue(name)[1])


def _pass_model(highspy: Any, solver: Any, matrix: MilpMatrix) -> None:
    rows, columns = matrix.shape
    a = matrix.a
    infinity = solver.inf
    status = solver.passModel(
        columns,
        rows,
        int(a.nnz),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMaximize if matrix.maximize else highspy.ObjSense.kMinimize),
        float(matrix.offset),
        np.ascontiguousarray(matrix.c, dtype=np.float64),
        np.maximum(matrix.lower, -infinity),
        np.minimum(matrix.upper, infinity),
        np.maximum(matrix.row_lower, -infinity),
        np.minimum(matrix.row_upper, infinity),
        a.indptr.astype(np.int32),
        a.indices.astype(np.int32),
        a.data.astype(np.float64),
        matrix.integer.astype(np.int32),
    )
    # A warning (small coefficients dropped) is no error; the answer is checked against the matrix anyway.
    if status == highspy.HighsStatus.kError:
        largest = float(np.abs(a.data).max(initial=0.0))
        raise SolverError(
            f"HiGHS refuses a matrix of {rows} rows and {columns} columns; its largest coefficient is {largest:g}, "
            "HiGHS takes less than 1e15: choose other units"
        )


def _pass_start(highspy: Any, solver: Any, start: Floats, log: bool) -> list[bool]:
    """Hand over a start, complete or with NaN where unknown; the list gets an entry when HiGHS takes it."""
    known = np.flatnonzero(~np.isnan(start))
    solver.setSolution(len(known), known.astype(np.int32), np.asarray(start[known], dtype=np.float64))
    # Only its log tells whether HiGHS took the start.
    solver.setOptionValue("log_to_console", log)
    solver.setOptionValue("output_flag", True)
    taken: list[bool] = []

    def read(event: Any) -> None:
        if "MIP start solution is feasible" in event.message:
            taken.append(True)

    solver.cbLogging += read
    return taken


class _Run:
    """One run in a thread of its own, so that Ctrl-C reaches Python and the incumbent survives it."""

    def __init__(self, solver: Any, on_progress: Callable[[SolveProgress], None] | None, since: float) -> None:
        # No reference to the solver, whose callbacks refer to this object: a cycle would keep its memory.
        self._on_progress = on_progress
        self._since = since
        self._stop = threading.Event()
        self._done = threading.Event()
        self._error: BaseException | None = None
        for callback in ("cbMipInterrupt", "cbSimplexInterrupt", "cbIpmInterrupt"):
            getattr(solver, callback).subscribe(self._interrupt)
        if on_progress is not None:
            solver.cbMipImprovingSolution.subscribe(self._incumbent)
            solver.cbMipLogging.subscribe(self._bounds)

    def wait(self, highspy: Any, solver: Any) -> bool:
        """Run to the end; whether it was interrupted."""
        begun, interrupted = None, False
        # Neither Thread.start nor Thread.join: Ctrl-C that lands inside them loses track of the running thread.
        while begun is None or not self._done.is_set():
            try:
                if begun is None:
                    begun = _thread.start_new_thread(self._work, (highspy, solver))
                self._done.wait(0.2)
            except KeyboardInterrupt:
                self._stop.set()
                if interrupted or begun is None:
                    raise
                interrupted = True
        if self._error is not None:
            raise self._error
        return interrupted

    def _work(self, highspy: Any, solver: Any) -> None:
        # The worker itself holds the lock: a run that its caller gave up on still keeps the others out.
        try:
            with _SCHEDULER:
                if not self._stop.is_set():
                    highspy.Highs.resetGlobalScheduler(True)
                    solver.run()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def _interrupt(self, event: Any) -> None:
        if self._stop.is_set():
            event.interrupt()

    def _incumbent(self, event: Any) -> None:
        data = event.data_out
        self._tell(
            data.objective_function_value, data.mip_dual_bound, lambda: np.array(data.mip_solution, dtype=np.float64)
        )

    def _bounds(self, event: Any) -> None:
        self._tell(event.data_out.mip_primal_bound, event.data_out.mip_dual_bound)

    def _tell(self, objective: float, bound: float, solution: Callable[[], Floats] | None = None) -> None:
        if self._on_progress is None or self._error is not None:
            return
        try:
            seconds = time.perf_counter() - self._since
            self._on_progress(SolveProgress(_finite(objective), _finite(bound), seconds, solution))
        except BaseException as error:
            # An exception must not cross the solver's own frames; it surfaces once HiGHS has stopped.
            self._error = error
            self._stop.set()


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _result(highspy: Any, solver: Any, matrix: MilpMatrix, options: SolveOptions, interrupted: bool) -> RawResult:
    status = solver.getModelStatus()
    kind = highspy.HighsModelStatus
    info = solver.getInfo()
    limits = {
        kind.kTimeLimit: Limit.TIME,
        kind.kIterationLimit: Limit.WORK,
        kind.kSolutionLimit: Limit.NODE if options.node_limit is not None else Limit.SOLUTION,
        kind.kObjectiveBound: Limit.OTHER,
        kind.kObjectiveTarget: Limit.OTHER,
        kind.kInterrupt: Limit.INTERRUPTED,
        kind.kHighsInterrupt: Limit.INTERRUPTED,
        kind.kMemoryLimit: Limit.MEMORY,
    }
    limit = limits.get(status)
    reason = {
        kind.kOptimal: Reason.OPTIMAL,
        kind.kInfeasible: Reason.INFEASIBLE,
        kind.kUnbounded: Reason.UNBOUNDED,
        kind.kUnboundedOrInfeasible: Reason.INFEASIBLE_OR_UNBOUNDED,
        kind.kModelEmpty: Reason.OPTIMAL,
        kind.kUnknown: Reason.NUMERICAL_ERROR,
        kind.kSolveError: Reason.NUMERICAL_ERROR,
        kind.kPresolveError: Reason.NUMERICAL_ERROR,
        kind.kPostsolveError: Reason.NUMERICAL_ERROR,
        kind.kLoadError: Reason.OTHER_ERROR,
        kind.kModelError: Reason.OTHER_ERROR,
    }.get(status, Reason.NO_SOLUTION_FOUND)
    if interrupted and reason in (Reason.NO_SOLUTION_FOUND, Reason.OTHER_ERROR):
        limit = Limit.INTERRUPTED
    is_mip = bool(matrix.integer.any())
    if is_mip and reason is Reason.UNBOUNDED:
        # A ray of the relaxation alone does not show that any whole-number solution exists.
        reason = Reason.INFEASIBLE_OR_UNBOUNDED
    x = objective = duals = reduced = None
    bound = math.nan
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    # After an error HiGHS may still hold a solution; the core checks it like any other.
    if feasible and reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND, Reason.NUMERICAL_ERROR):
        solution = solver.getSolution()
        x = np.array(solution.col_value, dtype=np.float64)
        objective = float(info.objective_function_value)
        reason = Reason.OPTIMAL if reason is Reason.OPTIMAL else Reason.FEASIBLE
        if reason is Reason.OPTIMAL and not is_mip:
            # An optimal basis of an LP proves its own objective.
            bound = objective
            duals = np.array(solution.row_dual, dtype=np.float64)
            reduced = np.array(solution.col_dual, dtype=np.float64)
    if is_mip and reason in (Reason.OPTIMAL, Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND):
        bound = float(info.mip_dual_bound)
    if not abs(bound) < solver.inf:
        bound = math.inf if matrix.maximize else -math.inf
    return RawResult(
        reason=reason,
        limit=limit,
        raw=solver.modelStatusToString(status),
        x=x,
        bound=bound,
        objective=objective,
        nodes=max(0, int(info.mip_node_count)),
        iterations=max(0, int(info.simplex_iteration_count)),
        row_duals=duals,
        reduced_costs=reduced,
    )
