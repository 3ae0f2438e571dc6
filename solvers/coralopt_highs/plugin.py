"""The HiGHS back end: one fresh solver object a solve, so that nothing can leak into the next."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coralopt.errors import SolverNotFoundError
from coralopt.solving import Availability, Capability, Limit, MilpMatrix, RawResult, Reason, SolveOptions
from coralopt.solving.backend import Member
from coralopt.solving.job import Job
from coralopt.solving.options import Focus, OptionValue
from coralopt.solving.plugin import (
    MATRIX_CAPABILITIES,
    MatrixPlugin,
    lazy,
    named_options,
    public_names,
    statuses,
    stopped,
)
from coralopt.solving.rows import members
from coralopt_highs.handover import basis_of, pass_basis, pass_model, pass_start
from coralopt_highs.running import run

if TYPE_CHECKING:
    from highspy import Highs

highspy = lazy("highspy")
#: Nonzeros from which a solve with a time limit has a process of its own, of linear and of integer programmes: HiGHS looks
#: at the clock between steps that last minutes there.
LARGE, LARGE_MIP = 1_000_000, 100_000
#: HiGHS's iis_strategy: look at the linear programme (2), make the subset irreducible (4).
IRREDUCIBLE_FROM_LP = 6
#: Without cuts below the root, nodes take a fraction of the time, and the solutions of more of them are seen. HiGHS has the
#: option from this version on.
CUTS_AT_NODES, WITH_CUTS_AT_NODES = "mip_allow_cut_separation_at_nodes", (1, 13)
_OPTIONS = {"log": "output_flag", "rel_gap": "mip_rel_gap", "abs_gap": "mip_abs_gap", "seed": "random_seed"}
_OPTIONS |= {"threads": "threads", "time_limit": "time_limit", "node_limit": "mip_max_nodes"}
_FOCUS: dict[Focus, dict[str, OptionValue]] = {"solutions": {CUTS_AT_NODES: False}}
#: Restarts, and heuristics that solve programmes of their own, take most of the time of a small programme.
_FOCUS["short"] = {CUTS_AT_NODES: False, "mip_allow_restart": False}
_FOCUS["short"] |= {f"mip_heuristic_run_{name}": False for name in ("feasibility_jump", "rens", "rins")}
#: Model statuses by name; any other says nothing.
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "kOptimal kModelEmpty",
        Reason.INFEASIBLE: "kInfeasible",
        Reason.UNBOUNDED: "kUnbounded",
        Reason.INFEASIBLE_OR_UNBOUNDED: "kUnboundedOrInfeasible",
        Limit.TIME: "kTimeLimit kNotset",
        Limit.WORK: "kIterationLimit",
        Limit.SOLUTION: "kSolutionLimit",
        Limit.MEMORY: "kMemoryLimit",
        Limit.OTHER: "kObjectiveBound kObjectiveTarget",
        Limit.INTERRUPTED: "kInterrupt kHighsInterrupt",
        Reason.NUMERICAL_ERROR: "kUnknown kSolveError kPresolveError kPostsolveError",
        Reason.OTHER_ERROR: "kLoadError kModelError",
    }
)
#: HiGHS's presolve_rule_off for integer programmes: parallel rows and columns. HiGHS 1.15.1 merges rows of whole columns
#: that differ by a continuous one in a wrong way, and calls what is left infeasible, or a worse solution optimal.
PARALLEL = 1 << 13
#: Nodes without presolve that an integer programme gets which presolve calls infeasible.
INFEASIBLE_NODES = 200


class HighsBackend(MatrixPlugin):
    """HiGHS (MIT licence), no size limit.

    Solves of several Python threads run at the same time. Ctrl-C stops HiGHS and keeps its incumbent; a second one gives
    up waiting for it.
    """

    name: ClassVar[str] = "highs"
    package: ClassVar[str] = "highspy"
    licence: ClassVar[str] = "MIT, no size limit"
    hint: ClassVar[str] = "install the package highspy"
    capabilities: ClassVar[frozenset[Capability]] = (MATRIX_CAPABILITIES | {Capability.CONCURRENT}) - {
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
        return large or super().needs_process(matrix, options)

    def run(self, job: Job) -> RawResult:
        """One fresh solver, run once; again where presolve alone says that an integer programme has no solution."""
        result = self._run_once(job)
        presolved = result.reason is Reason.INFEASIBLE and job.is_mip and result.nodes == 0
        if not presolved or job.options.presolve is False:
            return result
        # HiGHS 1.15.1 presolves some feasible programmes of tiny figures to nothing. A few nodes without it tell.
        node_limit = job.options.node_limit
        job.without_presolve(INFEASIBLE_NODES)
        if self._run_once(job).x is None:
            return result
        job.without_presolve(node_limit)
        again = self._run_once(job)
        return replace(again, raw=f"{again.raw}, without presolve (with presolve: infeasible, which is wrong)")

    def _run_once(self, job: Job) -> RawResult:
        solver = _new(job, self.method)
        pass_model(solver, job.matrix)
        if job.basis is not None:
            pass_basis(solver, job.basis)
        accepted = [] if job.start is None else pass_start(solver, job)
        interrupted = run(solver, job)
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
            basis = None if job.is_mip or job.matrix.extras else basis_of(solver)
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

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[Member]:
        """HiGHS's irreducible infeasible subset of the linear relaxation; empty when that is feasible."""
        solver = _new(Job(matrix, SolveOptions(time_limit=options.time_limit, log=options.log)))
        solver.setOptionValue("iis_strategy", IRREDUCIBLE_FROM_LP)
        pass_model(solver, matrix)
        # The pool of this thread may have another size.
        highspy.Highs.resetGlobalScheduler(True)
        status, subset = solver.getIis()
        if status == highspy.HighsStatus.kError:
            return []
        held = highspy.IisBoundStatus
        lower, upper, both = (
            int(side) for side in (held.kIisBoundStatusLower, held.kIisBoundStatusUpper, held.kIisBoundStatusBoxed)
        )
        parts = (("column", subset.col_index_, subset.col_bound_), ("row", subset.row_index_, subset.row_bound_))
        return [
            member
            for kind, positions, sides in parts
            for member in members(kind, positions, np.isin(sides, (lower, both)), np.isin(sides, (upper, both)))
        ]


def _new(job: Job, method: str = "") -> Highs:
    """A solver with its options set."""
    solver: Highs = highspy.Highs()
    common = named_options(job.options, _OPTIONS, _FOCUS, presolve=("presolve", "on", "off"))
    if (solver.versionMajor(), solver.versionMinor()) < WITH_CUTS_AT_NODES:
        common.pop(CUTS_AT_NODES, None)
    common |= {"solver": method} if method else {}
    common |= {"presolve_rule_off": PARALLEL} if job.is_mip else {}

    def known() -> list[str]:
        options = solver.getOptions()
        shown = [name for name in public_names(options) if not callable(getattr(options, name))]
        # The interface does not show every option that HiGHS has, and HiGHS complains about others in its log.
        solver.setOptionValue("output_flag", False)
        return shown + [name for name in job.options.native if solver.getOptionType(name)[0] == highspy.HighsStatus.kOk]

    def put(name: str, value: OptionValue) -> None:
        # HiGHS itself ignores a wrong option but for a line in its log.
        if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError

    job.set_options("HiGHS", common, known, lambda name: solver.getOptionValue(name)[1], put)
    return solver
