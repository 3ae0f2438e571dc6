"""The Xpress back end: one fresh problem a solve."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coralopt.solving import Capability, Limit, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.options import Focus, OptionValue
from coralopt.solving.plugin import SizeLimited, lazy, named_options, public_names, statuses, stopped
from coralopt.solving.rows import kinds_of_rows, with_infinity

if TYPE_CHECKING:
    from xpress import problem

xpress = lazy("xpress")
_OPTIONS = {"rel_gap": "miprelstop", "abs_gap": "mipabsstop", "seed": "randomseed", "threads": "threads"}
_OPTIONS |= {"time_limit": "timelimit", "node_limit": "maxnode"}
_FOCUS: dict[Focus, dict[str, OptionValue]] = {"solutions": {"heuremphasis": 1}, "short": {"heuremphasis": 0}}
#: By the solution's status; the reason for stopping tells the limit.
_STATUSES = statuses(
    {Reason.OPTIMAL: "OPTIMAL", Reason.INFEASIBLE: "INFEASIBLE", Reason.UNBOUNDED: "UNBOUNDED"},
)
_LIMITS = {"TIMELIMIT": Limit.TIME, "NODELIMIT": Limit.NODE, "ITERLIMIT": Limit.WORK, "WORKLIMIT": Limit.WORK}
_LIMITS |= {"SOLLIMIT": Limit.SOLUTION, "MEMORYERROR": Limit.MEMORY, "CTRLC": Limit.INTERRUPTED}
_LIMITS |= {"USER": Limit.INTERRUPTED}


class XpressBackend(SizeLimited):
    """Xpress (proprietary); its community licence stops at 5000 rows and columns together. It takes Ctrl-C itself."""

    name: ClassVar[str] = "xpress"
    package: ClassVar[str] = "xpress"
    licence: ClassVar[str] = "proprietary; community licence, rows + columns up to 5000"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[xpress]'"
    free_limit: ClassVar[tuple[int, int]] = (5000, 5000)
    refusal: ClassVar[str] = "too many rows"
    capabilities: ClassVar[frozenset[Capability]] = SizeLimited.capabilities | {Capability.SEED}
    unknown: ClassVar[float] = 1e20

    def release(self) -> str:
        """The optimizer's own version, and that of the suite it comes with."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return f"{xpress.getVersion()} (Xpress {super().release()})"

    def run(self, job: Job) -> RawResult:
        """One fresh problem, solved once."""
        errors = (xpress.SolverError, xpress.ModelError, xpress.InterfaceError)
        with self.failures(job, "Xpress", *errors):
            with warnings.catch_warnings():
                # It says in a warning that the licence is the free one, which `probe` tells.
                warnings.simplefilter("ignore")
                model = xpress.problem()
            _set_options(model, job)
            _pass_model(model, job)
            if job.start is not None:
                positions, values = job.known_start
                model.addMipSol(values.tolist(), positions.tolist())
            with job.solving():
                model.optimize()
        attributes = model.attributes
        words, end = attributes.solstatus.name, xpress.StopType(attributes.stopstatus).name
        reason, limit = _STATUSES.get(words, stopped(_LIMITS.get(end)))
        has = words in ("OPTIMAL", "FEASIBLE")
        # Without rows it has no prices to give.
        duals = words == "OPTIMAL" and not job.is_mip and job.matrix.shape[0] > 0
        return RawResult(
            reason,
            limit,
            f"{words}, {end}",
            np.array(model.getSolution(), dtype=np.float64) if has else None,
            float(attributes.bestbound) if job.is_mip else math.nan,
            nodes=int(attributes.nodes),
            iterations=int(attributes.simplexiter),
            row_duals=np.array(model.getDuals(), dtype=np.float64) if duals else None,
            objective=float(attributes.objval) if has else None,
        )


def _set_options(model: problem, job: Job) -> None:
    controls = model.controls
    common = named_options(job.options, _OPTIONS, _FOCUS, log=("outputlog", 1, 0), presolve=("presolve", 1, 0))
    # Else it cuts off what is less than 1e-5, or a share of 1e-4, better than its incumbent, and its bound stays behind.
    common |= {"mipaddcutoff": 0.0, "miprelcutoff": 0.0}
    if job.is_mip:
        # Its own 1e-6 lets a solution pass the bound by more than that after its presolve is undone.
        common["feastol"] = 1e-9
    known = partial(public_names, controls)
    job.set_options("Xpress", common, known, partial(getattr, controls), partial(setattr, controls))


def _pass_model(model: problem, job: Job) -> None:
    matrix = with_infinity(job.matrix, xpress.infinity)
    kinds, low, high = kinds_of_rows(matrix, xpress.infinity), matrix.row_lower, matrix.row_upper
    rows = {
        "rowtype": kinds.tolist(),
        "rhs": np.where(kinds == "N", 0.0, np.where(kinds == "G", low, high)).tolist(),
        "rng": np.where(kinds == "R", high - low, 0.0).tolist(),
    }
    columns = {
        "objcoef": matrix.c.tolist(),
        "start": matrix.a.indptr.tolist(),
        "rowind": matrix.a.indices.tolist(),
        "rowcoef": matrix.a.data.tolist(),
        "lb": matrix.lower.tolist(),
        "ub": matrix.upper.tolist(),
    }
    whole = np.flatnonzero(matrix.integer).tolist()
    model.loadMIP(**rows, **columns, coltype=["I"] * len(whole), entind=whole)
    model.chgObjSense(xpress.maximize if matrix.maximize else xpress.minimize)
    # Xpress keeps the constant of the objective with the opposite sign.
    model.chgObj([-1], [-float(matrix.offset)])
