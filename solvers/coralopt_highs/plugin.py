"""The HiGHS back end: one fresh solver object a solve, so that nothing can leak into the next."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coralopt.errors import SolverError, SolverNotFoundError
from coralopt.solving import Availability, Basis, Capability, Limit, MilpMatrix, RawResult, Reason, SolveOptions
from coralopt.solving.options import OptionValue
from coralopt.solving.plugin import MATRIX_CAPABILITIES, Job, MatrixPlugin, Status, lazy, named_options, stopped
from coralopt.types import Floats

if TYPE_CHECKING:
    from highspy import Highs

highspy = lazy("highspy")
#: Nonzeros from which a solve with a time limit has a process of its own, of linear and of integer programmes: HiGHS looks
#: at the clock between steps that last minutes there.
LARGE, LARGE_MIP = 1_000_000, 100_000


class _Pool:
    """HiGHS keeps one pool of threads a process; changing its size needs a reset, which must not overlap a solve.

    A process that is forked while another thread solves has the lock and the pool, but not the threads behind them.
    """

    lock = threading.Lock()
    lost = False

    @classmethod
    def forked(cls) -> None:
        if cls.lock.locked():
            cls.lock, cls.lost = threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Pool.forked)
#: HiGHS's iis_strategy: look at the linear programme (2), make the subset irreducible (4).
IRREDUCIBLE_FROM_LP = 6
_OPTIONS = {"log": "output_flag", "rel_gap": "mip_rel_gap", "abs_gap": "mip_abs_gap", "seed": "random_seed"}
_OPTIONS |= {"threads": "threads", "time_limit": "time_limit", "node_limit": "mip_max_nodes"}
#: Model statuses by name; any other says nothing.
_STATUSES: dict[str, Status] = {
    **dict.fromkeys(("kOptimal", "kModelEmpty"), (Reason.OPTIMAL, None)),
    "kInfeasible": (Reason.INFEASIBLE, None),
    "kUnbounded": (Reason.UNBOUNDED, None),
    "kUnboundedOrInfeasible": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    **dict.fromkeys(("kTimeLimit", "kNotset"), stopped(Limit.TIME)),
    "kIterationLimit": stopped(Limit.WORK),
    "kSolutionLimit": stopped(Limit.SOLUTION),
    "kMemoryLimit": stopped(Limit.MEMORY),
    **dict.fromkeys(("kObjectiveBound", "kObjectiveTarget"), stopped(Limit.OTHER)),
    **dict.fromkeys(("kInterrupt", "kHighsInterrupt"), stopped(Limit.INTERRUPTED)),
    **dict.fromkeys(("kUnknown", "kSolveError", "kPresolveError", "kPostsolveError"), (Reason.NUMERICAL_ERROR, None)),
    **dict.fromkeys(("kLoadError", "kModelError"), (Reason.OTHER_ERROR, None)),
}
#: Nodes without presolve that an integer programme gets which presolve calls infeasible.
INFEASIBLE_NODES = 200


class HighsBackend(MatrixPlugin):
    """HiGHS (MIT licence), no size limit.

    Solves of several Python threads wait for one another, since HiGHS shares one thread pool in a process. Ctrl-C stops
    HiGHS and keeps its incumbent; a second one gives up waiting for it.
    """

    name: ClassVar[str] = "highs"
    package: ClassVar[str] = "highspy"
    licence: ClassVar[str] = "MIT, no size limit"
    hint: ClassVar[str] = "install the package highspy"
    capabilities: ClassVar[frozenset[Capability]] = MATRIX_CAPABILITIES - {
        *(Capability.MEMORY_LIMIT, Capability.MIQP, Capability.SOS, Capability.INDICATOR, Capability.SEMICONTINUOUS),
        *(Capability.LAZY, Capability.POOL),
    }
    takes_argument: ClassVar[bool] = True
    #: Methods for linear programmes behind the colon; ``hipo`` needs the package highspy-extras.
    choices: ClassVar[tuple[str, ...]] = ("ipx", "hipo")

    def __init__(self, argument: str = "") -> None:
        self.method = argument
        if argument and argument not in self.choices:
            known = ", ".join(self.choices)
            raise SolverNotFoundError(f"HiGHS has no method {argument!r} behind the colon; choose from: {known}")
        if argument:
            self.name = f"highs:{argument}"  # type: ignore[misc]
            self.capabilities = frozenset({Capability.LP, Capability.LP_DUALS})  # type: ignore[misc]

    def probe(self) -> Availability:
        """As any other, and whether the library of ``hipo`` is there."""
        plain = super().probe()
        if self.method != "hipo" or not plain.installed or find_spec("highspy_extras") is not None:
            return plain
        return replace(plain, installed=False, hint="install the package highspy-extras: pip install 'highspy[extras]'")

    def needs_process(self, matrix: MilpMatrix, options: SolveOptions) -> bool:
        """Large models with a time limit, too: there the process is ended when its time is over."""
        # Without any time nothing is run that would have to be ended.
        large = bool(options.time_limit) and matrix.a.nnz >= (LARGE_MIP if matrix.is_mip else LARGE)
        return large or _Pool.lost or super().needs_process(matrix, options)

    def run(self, job: Job) -> RawResult:
        """One fresh solver, run once; again where presolve alone says that an integer programme has no solution."""
        result = self._run_once(job)
        presolved = result.reason is Reason.INFEASIBLE and job.is_mip and result.nodes == 0
        if not presolved or job.options.presolve is False:
            return result
        # HiGHS 1.15.1 presolves some feasible programmes of tiny figures to nothing. A few nodes without it tell.
        own = job.options
        job.options = replace(own, presolve=False, time_limit=job.time_left, node_limit=INFEASIBLE_NODES)
        if self._run_once(job).x is None:
            return result
        job.options = replace(own, presolve=False, time_limit=job.time_left)
        again = self._run_once(job)
        return replace(again, raw=f"{again.raw}, without presolve (with presolve: infeasible, which is wrong)")

    def _run_once(self, job: Job) -> RawResult:
        solver = _new(job, self.method)
        _pass_model(solver, job.matrix)
        if job.basis is not None:
            _pass_basis(solver, job.basis)
        accepted = [] if job.start is None else _pass_start(solver, job.start, job.options.log)
        interrupted = _run(solver, job)
        status, info = solver.getModelStatus(), solver.getInfo()
        reason, limit = _STATUSES.get(status.name, stopped(None))
        if limit is Limit.SOLUTION and job.options.node_limit is not None:
            limit = Limit.NODE
        if interrupted and reason in (Reason.NO_SOLUTION_FOUND, Reason.OTHER_ERROR):
            limit = Limit.INTERRUPTED
        x = duals = basis = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            solution = solver.getSolution()
            x = np.array(solution.col_value, dtype=np.float64)
            duals = None if job.is_mip else np.array(solution.row_dual, dtype=np.float64)
            basis = None if job.is_mip or job.matrix.extras else _basis(solver)
        return RawResult(
            reason,
            limit,
            solver.modelStatusToString(status),
            x,
            float(info.mip_dual_bound) if job.is_mip and info.valid else math.nan,
            nodes=max(0, int(info.mip_node_count)),
            iterations=max(0, int(info.simplex_iteration_count)),
            row_duals=duals,
            start_accepted=bool(accepted),
            objective=float(info.objective_function_value),
            basis=basis,
        )

    def read_file(self, path: Path) -> MilpMatrix:
        """A file as HiGHS's own reader takes it; see :mod:`coralopt_highs.reader`."""
        from coralopt_highs.reader import read_file

        return read_file(path)

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[tuple[str, int, str]]:
        """HiGHS's irreducible infeasible subset of the linear relaxation; empty when that is feasible."""
        solver = _new(Job(matrix, SolveOptions(time_limit=options.time_limit, log=options.log)))
        solver.setOptionValue("iis_strategy", IRREDUCIBLE_FROM_LP)
        _pass_model(solver, matrix)
        with _Pool.lock:
            highspy.Highs.resetGlobalScheduler(True)
            status, subset = solver.getIis()
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
                ("column", subset.col_index_, subset.col_bound_),
                ("row", subset.row_index_, subset.row_bound_),
            )
            for position, which in zip(index, kinds, strict=True)
            for side in sides.get(int(which), ())
        ]


def _new(job: Job, method: str = "") -> Highs:
    """A solver with its options set."""
    solver: Highs = highspy.Highs()
    common = {**named_options(job.options, _OPTIONS), **({"solver": method} if method else {})}
    if job.options.presolve is not None:
        common["presolve"] = "on" if job.options.presolve else "off"

    def known() -> list[str]:
        options = solver.getOptions()
        return [name for name in dir(options) if name[0] != "_" and not callable(getattr(options, name))]

    def put(name: str, value: OptionValue) -> None:
        # HiGHS itself ignores a wrong option but for a line in its log.
        if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError

    job.set_options("HiGHS", common, known, lambda name: solver.getOptionValue(name)[1], put)
    return solver


def _pass_model(solver: Highs, matrix: MilpMatrix) -> None:
    (rows, columns), a = matrix.shape, matrix.a
    status = solver.passModel(
        columns,
        rows,
        int(a.nnz),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMaximize if matrix.maximize else highspy.ObjSense.kMinimize),
        float(matrix.offset),
        np.ascontiguousarray(matrix.c, dtype=np.float64),
        matrix.lower,
        matrix.upper,
        matrix.row_lower,
        matrix.row_upper,
        a.indptr.astype(np.int32, copy=False),
        a.indices.astype(np.int32, copy=False),
        a.data.astype(np.float64, copy=False),
        matrix.integer.astype(np.int32),
    )
    # A warning (small coefficients dropped) is no error; the answer is checked against the matrix anyway.
    if status == highspy.HighsStatus.kError:
        largest = float(np.abs(a.data).max(initial=0.0))
        raise SolverError(
            f"HiGHS refuses a matrix of {rows} rows and {columns} columns; its largest coefficient is {largest:g}, "
            "HiGHS takes less than 1e15: choose other units"
        )
    if (quadratic := matrix.extras.quadratic) is not None:
        from scipy.sparse import tril

        half, triangular = tril(quadratic).tocsc(), highspy.HessianFormat.kTriangular
        starts, places = half.indptr.astype(np.int32), half.indices.astype(np.int32)
        solver.passHessian(columns, int(half.nnz), int(triangular), starts, places, half.data)


def _pass_basis(solver: Highs, basis: Basis) -> None:
    kinds, start = highspy.HighsBasisStatus, highspy.HighsBasis()
    names = {Basis.LOWER: kinds.kLower, Basis.BASIC: kinds.kBasic, Basis.UPPER: kinds.kUpper, Basis.FREE: kinds.kZero}
    start.col_status = [names[status] for status in basis.columns.tolist()]
    start.row_status = [names[status] for status in basis.rows.tolist()]
    start.valid = True
    # One that does not fit is refused, and the solve begins from nothing.
    solver.setBasis(start)


def _basis(solver: Highs) -> Basis | None:
    basis, kinds = solver.getBasis(), highspy.HighsBasisStatus
    if not basis.valid:
        return None
    numbers = {kinds.kLower: Basis.LOWER, kinds.kBasic: Basis.BASIC, kinds.kUpper: Basis.UPPER}
    numbers |= {kinds.kZero: Basis.FREE, kinds.kNonbasic: Basis.FREE}
    columns, rows = (
        np.array([numbers[s] for s in part], dtype=np.int8) for part in (basis.col_status, basis.row_status)
    )
    return Basis(columns, rows)


def _pass_start(solver: Highs, start: Floats, log: bool) -> list[bool]:
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


def _run(solver: Highs, job: Job) -> bool:
    """Run to the end; whether Ctrl-C cut it short."""
    stop = threading.Event()
    job.stop = stop.set

    # No callback refers to the solver: a cycle would keep its memory.
    def interrupt(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def incumbent(event: Any) -> None:
        data = event.data_out
        job.tell(data.objective_function_value, data.mip_dual_bound, lambda: np.array(data.mip_solution))

    for callback in (solver.cbMipInterrupt, solver.cbSimplexInterrupt, solver.cbIpmInterrupt):
        callback.subscribe(interrupt)
    if job.listener is not None:
        solver.cbMipImprovingSolution.subscribe(incumbent)
        solver.cbMipLogging.subscribe(lambda e: job.tell(e.data_out.mip_primal_bound, e.data_out.mip_dual_bound))

    begun: list[bool] = []

    def work() -> None:
        begun.append(True)
        try:
            # Without any time HiGHS would still copy the model and look at its start, which the core keeps anyway.
            if not stop.is_set() and job.time_left != 0:
                solver.resetGlobalScheduler(True)
                solver.run()
        finally:
            lock.release()

    # Waiting for the solves of other threads is no time of this one. The worker gives the lock back: a run that its
    # caller gave up on still keeps the others out.
    lock = _Pool.lock
    lock.acquire()
    try:
        with job.solving():
            return job.in_thread(work)
    finally:
        if not begun:
            lock.release()
