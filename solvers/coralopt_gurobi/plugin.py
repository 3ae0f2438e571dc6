"""The Gurobi back end: one fresh environment and model a solve, so that nothing can leak into the next."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coralopt.errors import LicenseLimitError
from coralopt.solving import Availability, Capability, Limit, MilpMatrix, RawResult, Reason, SolveOptions
from coralopt.solving.backend import Member
from coralopt.solving.extras import is_convex
from coralopt.solving.job import Job
from coralopt.solving.options import Focus, OptionValue
from coralopt.solving.plugin import MATRIX_CAPABILITIES, MatrixPlugin, lazy, named_options, public_names, statuses
from coralopt.solving.rows import members
from coralopt.types import Floats
from coralopt_gurobi.handover import Block, basis_of, expression, pass_basis, pass_model
from coralopt_gurobi.licence import FREE_LIMIT, fresh_model, is_restricted, refuse_large

if TYPE_CHECKING:
    from gurobipy import Model

gurobipy = lazy("gurobipy")
_OPTIONS = {"rel_gap": "MIPGap", "abs_gap": "MIPGapAbs", "seed": "Seed", "threads": "Threads"}
_OPTIONS |= {"time_limit": "TimeLimit", "node_limit": "NodeLimit"}
_FOCUS: dict[Focus, dict[str, OptionValue]] = {"solutions": {"MIPFocus": 1}, "short": {"Heuristics": 0.0}}
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "OPTIMAL",
        Reason.NO_SOLUTION_FOUND: "SUBOPTIMAL",
        Reason.INFEASIBLE: "INFEASIBLE",
        Reason.UNBOUNDED: "UNBOUNDED",
        Reason.INFEASIBLE_OR_UNBOUNDED: "INF_OR_UNBD",
        Limit.TIME: "TIME_LIMIT",
        Limit.NODE: "NODE_LIMIT",
        Limit.WORK: "ITERATION_LIMIT WORK_LIMIT",
        Limit.SOLUTION: "SOLUTION_LIMIT",
        Limit.MEMORY: "MEM_LIMIT",
        Limit.INTERRUPTED: "INTERRUPTED",
        Limit.OTHER: "USER_OBJ_LIMIT",
        Reason.NUMERICAL_ERROR: "NUMERIC",
    }
)


class GurobiBackend(MatrixPlugin):
    """Gurobi (proprietary); its free licence stops at 2000 columns x 2000 rows. Ctrl-C keeps its incumbent."""

    name: ClassVar[str] = "gurobi"
    package: ClassVar[str] = "gurobipy"
    licence: ClassVar[str] = f"proprietary; free up to {FREE_LIMIT} x {FREE_LIMIT}"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[gurobi]'"
    capabilities: ClassVar[frozenset[Capability]] = MATRIX_CAPABILITIES
    unknown: ClassVar[float] = 1e99

    def probe(self) -> Availability:
        """Whether gurobipy is installed, its version, and whether the licence at hand has the size limit."""
        plain = super().probe()
        try:
            if not plain.installed or not is_restricted():
                return replace(plain, licence="proprietary; no size limit found") if plain.installed else plain
        except LicenseLimitError as error:
            return replace(plain, licence="proprietary; no valid licence", hint=str(error))
        return replace(
            plain,
            licence=f"proprietary; restricted to {FREE_LIMIT} columns x {FREE_LIMIT} rows",
            hint="larger models: solver 'highs' or 'scip', option restrict of an allocation, or a full licence",
            size_limit=(FREE_LIMIT, FREE_LIMIT),
        )

    def run(self, job: Job) -> RawResult:
        """One fresh model in an environment of its own, solved once."""
        refuse_large(job.matrix)
        options = job.options
        with fresh_model(job.options.log) as model:
            _set_options(model, job)
            columns, parts = pass_model(model, job.matrix)
            job.stop = model.terminate
            taken: list[bool] = []
            watch = partial(_watch, job, columns, taken)
            if job.start is not None:
                columns.Start = np.where(np.isnan(job.start), gurobipy.GRB.UNDEFINED, job.start)
            if job.basis is not None:
                model.update()
                pass_basis(columns, parts, job.basis)
            with job.solving():
                model.optimize(watch)
                if model.Status == gurobipy.GRB.INF_OR_UNBD:
                    model.Params.DualReductions = 0
                    model.optimize(watch)
            codes = gurobipy.GRB.Status
            words = next(name for name in public_names(codes) if getattr(codes, name) == model.Status)
            reason, limit = _STATUSES.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
            known = reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND)
            usable = known and model.SolCount > 0
            duals = basis = None
            quadratic = job.matrix.extras.quadratic
            plain = not job.is_mip and (quadratic is None or is_convex(quadratic, job.matrix.maximize))
            if usable and reason is Reason.OPTIMAL and plain:
                duals = np.zeros(job.matrix.shape[0])
                for which, rows in parts:
                    duals[which] += np.asarray(rows.Pi, dtype=np.float64)
                basis = basis_of(columns, parts, len(duals)) if quadratic is None else None
            return RawResult(
                reason,
                limit,
                words,
                np.asarray(columns.X, dtype=np.float64) if usable else None,
                float(model.ObjBound) if known and not plain else np.nan,
                nodes=int(model.NodeCount),
                iterations=int(model.IterCount),
                row_duals=duals,
                start_accepted=bool(taken),
                objective=float(model.ObjVal) if usable else None,
                basis=basis,
                pool=_pool(model, columns) if usable and job.is_mip and options.solutions > 1 else (),
            )

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[Member]:
        """Gurobi's irreducible infeasible subset."""
        with fresh_model(options.log) as model:
            columns, parts = pass_model(model, matrix)
            _set_options(model, Job(matrix, SolveOptions(time_limit=options.time_limit)))
            model.computeIIS()
            conflict = members("column", range(matrix.shape[1]), columns.IISLB, columns.IISUB)
            for which, rows in parts:
                inside, sense = np.asarray(rows.IISConstr, dtype=bool), np.asarray(rows.Sense)
                conflict += members("row", which, inside & (sense != "<"), inside & (sense != ">"))
            return conflict


def _set_options(model: Model, job: Job) -> None:
    options = job.options
    common = named_options(options, _OPTIONS, _FOCUS, presolve=("Presolve", -1, 0))
    if options.memory_limit is not None:
        # Gurobi counts in GB of 1e9 bytes; the soft limit keeps the incumbent.
        common["SoftMemLimit"] = float(options.memory_limit) * 1024**3 / 1e9
    if job.lazy is not None:
        common["LazyConstraints"] = 1
    if options.solutions > 1:
        # The best ones, not those that happen to be met.
        common |= {"PoolSolutions": options.solutions, "PoolSearchMode": 2}
    known = partial(public_names, gurobipy.GRB.Param)
    job.set_options("Gurobi", common, known, lambda name: model.getParamInfo(name)[2], model.setParam)


def _pool(model: Model, columns: Block) -> tuple[Floats, ...]:
    """Every solution that Gurobi holds."""
    points = []
    for k in range(model.SolCount):
        model.Params.SolutionNumber = k
        points.append(np.asarray(columns.Xn, dtype=np.float64))
    return tuple(points)


def _watch(job: Job, columns: Block, taken: list[bool], model: Model, where: int) -> None:
    """Callback: incumbents and bounds while solving; ``taken`` gets an entry when a start is taken."""
    codes, get = gurobipy.GRB.Callback, model.cbGet

    def solution() -> Floats:
        return np.asarray(model.cbGetSolution(columns), dtype=np.float64)

    if where == codes.MESSAGE:
        text = get(codes.MSG_STRING)
        if "Loaded user MIP start" in text or "User MIP start produced solution" in text:
            taken.append(True)
    elif where == codes.MIP:
        job.tell(get(codes.MIP_OBJBST), get(codes.MIP_OBJBND))
    elif where == codes.MIPSOL and job.lazy is not None and (rows := job.missing(solution())):
        for row in rows:
            for sense, side in row.sides:
                model.cbLazy(expression(columns, row.terms, row.terms.values()), sense, side)
    elif where == codes.MIPSOL:
        new, best, bound = get(codes.MIPSOL_OBJ), get(codes.MIPSOL_OBJBST), get(codes.MIPSOL_OBJBND)
        if job.known(best) is None or (new >= best if job.matrix.maximize else new <= best):
            job.tell(new, bound, solution)
        else:
            job.tell(best, bound)
