"""The HiGHS back end: one fresh solver object a solve, so that nothing can leak into the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import OptionError, SolverNotFoundError
from coralopt.solving import (
    Availability,
    Capability,
    Limit,
    MilpMatrix,
    Progress,
    RawResult,
    Reason,
    SolveOptions,
    unknown_option,
)
from coralopt.solving.matrix import Floats

#: HiGHS keeps one pool of threads a process; changing its size needs a reset, which must not overlap a solve.
_SCHEDULER = threading.Lock()


class HighsBackend:
    """HiGHS (MIT licence), no size limit."""

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
        on_progress: Callable[[Progress], None] | None = None,
    ) -> RawResult:
        """Solve one matrix.

        Raises:
            OptionError: A native option HiGHS does not know or does not take with this value.
            SolverNotFoundError: highspy is not installed.
        """
        try:
            import highspy
        except ImportError as error:
            raise SolverNotFoundError("solver 'highs' needs the package highspy; install it") from error
        if matrix.shape[1] == 0:
            return _without_columns(matrix)
        begun = time.perf_counter()
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        effective = _set_options(highspy, solver, options)
        _pass_model(highspy, solver, matrix)
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = list(np.asarray(start, dtype=np.float64))
            solver.setSolution(solution)
        handed = time.perf_counter()
        if on_progress is not None:
            _report_progress(solver, on_progress, handed)
        interrupted = _run(highspy, solver)
        solved = time.perf_counter()
        return _result(highspy, solver, matrix, options, interrupted, effective, handed - begun, solved - handed)


def _without_columns(matrix: MilpMatrix) -> RawResult:
    """A model without columns: feasible iff every row admits 0. HiGHS has a status of its own for it."""
    feasible = bool((matrix.row_lower <= 0).all() and (matrix.row_upper >= 0).all())
    if feasible:
        return RawResult(Reason.OPTIMAL, None, "no columns", np.zeros(0), matrix.offset)
    return RawResult(Reason.INFEASIBLE, None, "no columns", None, np.inf)


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
    wanted.update(_native(highspy, solver, options.native))
    for name, value in wanted.items():
        if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise OptionError(f"HiGHS does not take {value!r} for its option {name!r}")
    return wanted


def _native(highspy: Any, solver: Any, native: Mapping[str, Any]) -> dict[str, Any]:
    """Native options with their types checked: HiGHS itself ignores a wrong one but for a line in its log."""
    known = [name for name in dir(solver.getOptions()) if not name.startswith("_")]
    checked: dict[str, Any] = {}
    for name, value in native.items():
        if name not in known:
            raise OptionError(unknown_option("HiGHS option", name, known))
        status, current = solver.getOptionValue(name)
        expected = type(current)
        if expected is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if status != highspy.HighsStatus.kOk or type(value) is not expected:
            raise OptionError(f"HiGHS option {name!r} takes a {expected.__name__}, not {value!r}")
        checked[name] = value
    return checked


def _pass_model(highspy: Any, solver: Any, matrix: MilpMatrix) -> None:
    rows, columns = matrix.shape
    a = matrix.a.tocsc()
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
        raise OptionError("HiGHS refused the model: a bound or coefficient is not a number")


def _report_progress(solver: Any, on_progress: Callable[[Progress], None], since: float) -> None:
    def event(data: Any) -> None:
        out = data.data_out
        on_progress(Progress(float(out.mip_primal_bound), float(out.mip_dual_bound), time.perf_counter() - since))

    solver.cbMipImprovingSolution += event
    solver.cbMipLogging += event


def _run(highspy: Any, solver: Any) -> bool:
    """Run in a thread of its own, so that Ctrl-C reaches us and the incumbent survives; whether it was pressed."""
    with _SCHEDULER:
        highspy.Highs.resetGlobalScheduler(True)
        stop = threading.Event()

        def interrupt(event: Any) -> None:
            if stop.is_set():
                event.interrupt()

        solver.cbMipInterrupt += interrupt
        solver.cbSimplexInterrupt += interrupt
        worker = threading.Thread(target=solver.run, daemon=True)
        worker.start()
        while worker.is_alive():
            try:
                worker.join(0.1)
            except KeyboardInterrupt:
                stop.set()
        return stop.is_set()


def _result(
    highspy: Any,
    solver: Any,
    matrix: MilpMatrix,
    options: SolveOptions,
    interrupted: bool,
    effective: Mapping[str, Any],
    handover: float,
    seconds: float,
) -> RawResult:
    status = solver.getModelStatus()
    kind = highspy.HighsModelStatus
    info = solver.getInfo()
    words = solver.modelStatusToString(status)
    weak = np.inf if matrix.maximize else -np.inf
    limits = {
        kind.kTimeLimit: Limit.TIME,
        kind.kIterationLimit: Limit.OTHER,
        kind.kSolutionLimit: Limit.NODE if options.node_limit is not None else Limit.SOLUTION,
        kind.kInterrupt: Limit.INTERRUPTED,
        kind.kMemoryLimit: Limit.MEMORY,
    }
    limit = Limit.INTERRUPTED if interrupted else limits.get(status)
    is_mip = bool(matrix.integer.any())
    x, bound = None, float(weak)
    reason = {
        kind.kInfeasible: Reason.INFEASIBLE,
        kind.kUnbounded: Reason.UNBOUNDED,
        kind.kUnboundedOrInfeasible: Reason.INFEASIBLE_OR_UNBOUNDED,
        kind.kSolveError: Reason.NUMERICAL_ERROR,
        kind.kPresolveError: Reason.NUMERICAL_ERROR,
        kind.kPostsolveError: Reason.NUMERICAL_ERROR,
        kind.kModelError: Reason.OTHER_ERROR,
    }.get(status, Reason.NO_SOLUTION_FOUND)
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if status == kind.kOptimal or (reason is Reason.NO_SOLUTION_FOUND and feasible):
        x = np.array(solver.getSolution().col_value, dtype=np.float64)
        reason = Reason.OPTIMAL if status == kind.kOptimal else Reason.FEASIBLE
    if is_mip and reason in (Reason.OPTIMAL, Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND):
        bound = float(info.mip_dual_bound)
    elif status == kind.kOptimal:
        # An optimal basis of an LP proves its own objective.
        bound = float(info.objective_function_value)
    duals = reduced = None
    if not is_mip and status == kind.kOptimal:
        solution = solver.getSolution()
        duals = np.array(solution.row_dual, dtype=np.float64)
        reduced = np.array(solution.col_dual, dtype=np.float64)
    return RawResult(
        reason=reason,
        limit=limit,
        raw=words,
        x=x,
        bound=bound if abs(bound) < solver.inf else float(weak),
        nodes=max(0, int(info.mip_node_count)),
        iterations=max(0, int(info.simplex_iteration_count)),
        row_duals=duals,
        reduced_costs=reduced,
        effective=dict(effective),
        handover_seconds=handover,
        solve_seconds=seconds,
    )
