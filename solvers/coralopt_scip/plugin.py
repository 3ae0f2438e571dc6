"""The SCIP back end: one fresh model a solve, so that nothing can leak into the next."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Capability, Limit, MilpMatrix, RawResult, Reason, SolveOptions
from coralopt.solving.backend import Member
from coralopt.solving.job import Job
from coralopt.solving.options import Focus, OptionValue
from coralopt.solving.plugin import MATRIX_CAPABILITIES, MatrixPlugin, lazy, named_options, statuses
from coralopt.solving.rows import members
from coralopt.solving.verdict import examine
from coralopt_scip.handover import pass_model, pass_start
from coralopt_scip.prices import with_singletons
from coralopt_scip.watching import listen, values, watch_lazy

if TYPE_CHECKING:
    from pyscipopt import Model

pyscipopt = lazy("pyscipopt")
_OPTIONS = {"rel_gap": "limits/gap", "abs_gap": "limits/absgap", "seed": "randomization/randomseedshift"}
_OPTIONS |= {"time_limit": "limits/time", "node_limit": "limits/totalnodes"}
_FOCUS: dict[Focus, dict[str, OptionValue]] = {
    "solutions": {"separating/maxrounds": 0},
    "short": {"separating/maxrounds": 0, "presolving/maxrestarts": 0},
}
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "optimal gaplimit",
        Reason.INFEASIBLE: "infeasible",
        Reason.UNBOUNDED: "unbounded",
        Reason.INFEASIBLE_OR_UNBOUNDED: "inforunbd",
        Limit.TIME: "timelimit",
        Limit.NODE: "nodelimit totalnodelimit stallnodelimit",
        Limit.MEMORY: "memlimit",
        Limit.SOLUTION: "sollimit bestsollimit",
        Limit.OTHER: "restartlimit",
        Limit.INTERRUPTED: "userinterrupt",
    }
)


class ScipBackend(MatrixPlugin):
    """SCIP (Apache-2.0), no size limit; branch and bound on one thread.

    Solves of several Python threads run at the same time. Ctrl-C stops SCIP and keeps its incumbent; a second one gives
    up waiting for it.
    """

    name: ClassVar[str] = "scip"
    package: ClassVar[str] = "pyscipopt"
    licence: ClassVar[str] = "Apache-2.0, no size limit"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[scip]'"
    capabilities: ClassVar[frozenset[Capability]] = (MATRIX_CAPABILITIES | {Capability.CONCURRENT}) - {
        Capability.SEMICONTINUOUS,
        Capability.LP_BASIS,
    }
    unknown: ClassVar[float] = 1e20

    def release(self) -> str:
        """SCIP's own version, not that of its package."""
        return _release()

    def run(self, job: Job) -> RawResult:
        """One fresh model, solved once; twice where presolve went wrong."""
        result = _run(job)
        if result.x is None or job.options.presolve is False or not examine(job.matrix, result.x)[1]:
            return result
        # SCIP's presolve sometimes ends with a solution of the presolved model that is none of the original one.
        job.without_presolve(job.options.node_limit)
        again = _run(job)
        return replace(again, raw=f"{again.raw}, without presolve (its solution with presolve violated the model)")

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[Member]:
        """SCIP's irreducible infeasible subset: its rows, and the column bounds that it left in place."""
        plain = SolveOptions(time_limit=options.time_limit, memory_limit=options.memory_limit, log=options.log)
        model = _model(Job(matrix, plain), duals=False)
        pass_model(model, matrix)
        part = model.generateIIS().getSubscip()
        infinity = part.infinity()
        sides = [("column", v.name, v.getLbOriginal(), v.getUbOriginal()) for v in part.getVars()]
        sides += [("row", row.name, part.getLhs(row), part.getRhs(row)) for row in part.getConss()]
        # Names are a letter and the position.
        kept = ((kind, [int(name[1:])], [low > -infinity], [high < infinity]) for kind, name, low, high in sides)
        return [member for side in kept for member in members(*side)]


@cache
def _release() -> str:
    model = pyscipopt.Model()
    return f"{model.getMajorVersion()}.{model.getMinorVersion()}.{model.getTechVersion()}"


def _run(job: Job) -> RawResult:
    """One fresh model, solved once."""
    linear = not job.is_mip and not job.matrix.extras
    model = _model(job, duals=linear)
    variables, rows = pass_model(model, job.matrix)
    accepted = None if job.start is None else pass_start(model, variables, job.start)
    if job.listener is not None:
        listen(model, variables, job)
    if job.lazy is not None:
        watch_lazy(model, variables, job)
    job.stop = model.interruptSolve
    with job.solving():
        job.in_thread(partial(_optimize, model))
    words = model.getStatus()
    reason, limit = _STATUSES.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
    usable = reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND)
    x = values(model, model.getBestSol(), variables) if usable and model.getNSols() > 0 else None
    pool = [values(model, point, variables) for point in model.getSols()] if job.options.solutions > 1 else ()
    duals = None
    if x is not None and linear and reason is Reason.OPTIMAL:
        # SCIP minimises inside: its prices of a maximisation have the opposite sign.
        sign = -1.0 if job.matrix.maximize else 1.0
        duals = with_singletons(job.matrix, x, sign * np.array([model.getDualsolLinear(row) for row in rows]))
    return RawResult(
        reason,
        limit,
        words,
        x,
        float(model.getDualbound()) if usable else math.nan,
        nodes=int(model.getNTotalNodes()),
        iterations=int(model.getNLPIterations()),
        row_duals=duals,
        start_accepted=accepted,
        pool=() if x is None else pool,
        # A quadratic objective is a column beside a row, which holds within tolerances.
        objective=None if x is None or job.matrix.extras.quadratic is not None else float(model.getPrimalbound()),
    )


def _optimize(model: Model) -> None:
    """Solve, with Python's lock left to others."""
    try:
        model.optimizeNogil()
    except Exception as error:
        # Its Python package has no type of its own for what SCIP calls an error.
        if not str(error).startswith("SCIP: "):
            raise
        raise SolverError(f"SCIP failed: {str(error).removeprefix('SCIP: ')}") from error


def _model(job: Job, duals: bool) -> Model:
    """A model with its options set; ``duals`` keeps the rows as they are, so that they can be priced."""
    model: Model = pyscipopt.Model()
    if not job.options.log:
        model.hideOutput()
    # SCIP 10.0 loses integrality when it aggregates columns into sums of others (case presolve_keeps_the_problem of
    # the compliance suite): it then calls fractional solutions optimal.
    common = {**named_options(job.options, _OPTIONS, _FOCUS), "presolving/donotmultaggr": True}
    # Its own way to catch Ctrl-C belongs to the whole process, where several solves may run.
    common["misc/catchctrlc"] = False
    if job.matrix.extras.quadratic is not None:
        # The row that holds the objective's value is missed by this much.
        common["numerics/feastol"] = 1e-9
    if job.options.memory_limit is not None:
        # SCIP counts in MB.
        common["limits/memory"] = float(job.options.memory_limit) * 1024
    off = pyscipopt.SCIP_PARAMSETTING.OFF
    if job.options.presolve is False or duals:
        # Duals of a linear programme are those of the original rows only when nothing was presolved away.
        model.setPresolve(off)
    if duals:
        model.setHeuristics(off)
        model.disablePropagation()
    job.set_options("SCIP", common, model.getParams, model.getParam, model.setParam)
    job.effective["threads"] = 1
    return model
