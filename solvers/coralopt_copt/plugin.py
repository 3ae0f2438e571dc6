"""The COPT back end: one fresh model a solve."""

from __future__ import annotations

import ctypes
import math
import os
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coralopt.solving import Limit, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.options import Focus, OptionValue
from coralopt.solving.plugin import SizeLimited, lazy, named_options, public_names, statuses

if TYPE_CHECKING:
    from coptpy import Envr, Model

coptpy = lazy("coptpy")
_OPTIONS = {"rel_gap": "RelGap", "abs_gap": "AbsGap", "threads": "Threads"}
_OPTIONS |= {"time_limit": "TimeLimit", "node_limit": "NodeLimit"}
_FOCUS: dict[Focus, dict[str, OptionValue]] = {"solutions": {"HeurLevel": 3}, "short": {"HeurLevel": 0}}
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "OPTIMAL",
        Reason.INFEASIBLE: "INFEASIBLE",
        Reason.UNBOUNDED: "UNBOUNDED",
        Reason.INFEASIBLE_OR_UNBOUNDED: "INF_OR_UNB",
        Limit.TIME: "TIMEOUT",
        Limit.NODE: "NODELIMIT",
        Limit.WORK: "ITERLIMIT",
        Limit.INTERRUPTED: "INTERRUPTED",
        Reason.NO_SOLUTION_FOUND: "UNFINISHED",
        Reason.NUMERICAL_ERROR: "NUMERICAL IMPRECISE",
    }
)


class CoptBackend(SizeLimited):
    """COPT (proprietary); without a licence it stops at 2000 columns x 2000 rows. COPT takes Ctrl-C itself."""

    name: ClassVar[str] = "copt"
    package: ClassVar[str] = "coptpy"
    licence: ClassVar[str] = "proprietary; non-commercial use up to 2000 x 2000"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[copt]'"
    free_limit: ClassVar[tuple[int, int]] = (2000, 2000)
    refusal: ClassVar[str] = "(?i)license|size"
    unknown: ClassVar[float] = 1e30

    def run(self, job: Job) -> RawResult:
        """One fresh model, solved once."""
        matrix = job.matrix
        model = _environment().createModel("matrix")
        _set_options(model, job)
        codes = coptpy.COPT
        kinds = [codes.INTEGER if whole else codes.CONTINUOUS for whole in matrix.integer]
        model.loadMatrix(
            matrix.c,
            matrix.a,
            matrix.row_lower,
            matrix.row_upper,
            matrix.lower,
            matrix.upper,
            kinds if job.is_mip else None,
        )
        model.setObjSense(codes.MAXIMIZE if matrix.maximize else codes.MINIMIZE)
        model.setObjConst(float(matrix.offset))
        if job.start is not None:
            (positions, values), columns = job.known_start, model.getVars()
            model.setMipStart([columns[j] for j in positions.tolist()], values.tolist())
            model.loadMipStart()
        with self.failures(job, "COPT", coptpy.CoptError), job.solving():
            model.solve()
        words = next(name for name in (*_STATUSES, "UNSTARTED") if getattr(codes, name) == model.status)
        reason, limit = _STATUSES.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
        has = bool(model.hasmipsol if job.is_mip else model.haslpsol)
        duals = has and reason is Reason.OPTIMAL and not job.is_mip
        return RawResult(
            reason,
            limit,
            words,
            np.array(model.getValues(), dtype=np.float64) if has else None,
            float(model.bestbnd) if job.is_mip else math.nan,
            nodes=int(model.nodecnt) if job.is_mip else 0,
            iterations=int(model.simplexiter),
            row_duals=np.array(model.getDuals(), dtype=np.float64) if duals else None,
            objective=float(model.objval) if has else None,
        )


@cache
def _environment() -> Envr:
    """One a process: when it is made, COPT prints about its licence, past Python's standard output."""
    config = coptpy.EnvrConfig()
    config.set("nobanner", "1")
    kept = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            return coptpy.Envr(config)
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)


def _set_options(model: Model, job: Job) -> None:
    common = named_options(job.options, _OPTIONS, _FOCUS, log=("Logging", 1, 0))
    if job.options.presolve is not None or job.is_mip:
        # With whole columns only where it is asked for: COPT 8.0's presolve calls 42.1875 optimal where 39.5 is.
        common["Presolve"] = -1 if job.options.presolve else 0
    known = partial(public_names, coptpy.COPT.Param)
    job.set_options("COPT", common, known, model.getParam, model.setParam)
