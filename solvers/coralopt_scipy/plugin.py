"""The SciPy back end: ``milp`` for integer programmes, ``linprog`` for linear ones, which have prices."""

from __future__ import annotations

import importlib
import math
from typing import Any, ClassVar

import numpy as np

from coralopt.solving import Capability, Limit, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.options import OptionValue
from coralopt.solving.plugin import MatrixPlugin, Status, lazy, named_options, stopped
from coralopt.solving.rows import by_sense
from coralopt.types import Floats

optimize = lazy("scipy.optimize")
#: SciPy's statuses; 1 is a limit, of time or nodes.
_STATUSES: dict[int, Status] = {
    0: (Reason.OPTIMAL, None),
    1: stopped(Limit.NODE),
    2: (Reason.INFEASIBLE, None),
    3: (Reason.UNBOUNDED, None),
    4: (Reason.INFEASIBLE_OR_UNBOUNDED, None),
}
_OPTIONS = {"log": "disp", "rel_gap": "mip_rel_gap", "time_limit": "time_limit", "node_limit": "node_limit"}
_OPTIONS |= {"presolve": "presolve"}
#: One value an option, which tells its type.
_EXAMPLES = {"disp": True, "mip_rel_gap": 0.1, "time_limit": 1.0, "node_limit": 1, "presolve": True}


class ScipyBackend(MatrixPlugin):
    """HiGHS as SciPy wraps it: no starts, no progress."""

    name: ClassVar[str] = "scipy"
    package: ClassVar[str] = "scipy"
    module: ClassVar[str] = "scipy.optimize"
    licence: ClassVar[str] = "BSD, no size limit"
    hint: ClassVar[str] = "install the package scipy"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.LP, Capability.MILP, Capability.LP_DUALS, Capability.NODE_LIMIT}
    )

    def release(self) -> str:
        """SciPy's version, and that of its HiGHS where it tells."""
        try:
            core = importlib.import_module("scipy.optimize._highspy._core")
            parts = [getattr(core, f"HIGHS_VERSION_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
        except (ImportError, AttributeError):
            return super().release()
        return f"{super().release()} (HiGHS {'.'.join(map(str, parts))})"

    def run(self, job: Job) -> RawResult:
        """From scratch every time, so that nothing leaks into the next solve."""
        matrix = job.matrix
        wanted: dict[str, OptionValue] = {}
        # The presolve of its HiGHS errs on whole columns that a continuous one tells apart; see the back end `highs`.
        safe: dict[str, OptionValue] = {"presolve": False} if job.is_mip else {}
        common = safe | named_options(job.options, _OPTIONS)
        job.set_options("SciPy", common, lambda: _EXAMPLES, _EXAMPLES.__getitem__, wanted.__setitem__)
        # SciPy only minimises.
        sign = -1.0 if matrix.maximize else 1.0
        result, duals = (_integer if job.is_mip else _linear)(job, sign, wanted)
        reason, limit = _STATUSES.get(result.status, (Reason.OTHER_ERROR, None))
        if limit is not None and job.time_left == 0:
            limit = Limit.TIME
        bound = getattr(result, "mip_dual_bound", None)
        return RawResult(
            reason,
            limit,
            result.message,
            result.x,
            math.nan if bound is None else sign * bound + matrix.offset,
            nodes=int(getattr(result, "mip_node_count", None) or 0),
            iterations=int(getattr(result, "nit", None) or 0),
            row_duals=duals,
            objective=None if result.x is None else sign * result.fun + matrix.offset,
        )


# SciPy has no types: its results are Any.
def _integer(job: Job, sign: float, wanted: dict[str, OptionValue]) -> tuple[Any, None]:
    matrix = job.matrix
    rows = optimize.LinearConstraint(matrix.a, matrix.row_lower, matrix.row_upper) if matrix.shape[0] else ()
    bounds = optimize.Bounds(matrix.lower, matrix.upper)
    with job.solving():
        kinds = matrix.integer.astype(int)
        return optimize.milp(sign * matrix.c, integrality=kinds, bounds=bounds, constraints=rows, options=wanted), None


def _linear(job: Job, sign: float, wanted: dict[str, OptionValue]) -> tuple[Any, Floats | None]:
    """linprog knows equations and upper sides only: a row goes in by each of its sides, and its prices add up."""
    matrix, by_row = job.matrix, job.matrix.a.tocsr()
    (_, equal, right), (_, below, least), (_, above, most) = by_sense(matrix)
    sides = by_row[np.concatenate([above, below])].multiply(
        np.repeat([[1.0], [-1.0]], [len(above), len(below)], axis=0)
    )
    own = {name: value for name, value in wanted.items() if name in ("disp", "time_limit", "presolve")}
    with job.solving():
        result = optimize.linprog(
            sign * matrix.c,
            A_ub=sides.tocsr(),
            b_ub=np.concatenate([most, -least]),
            A_eq=by_row[equal],
            b_eq=right,
            bounds=np.column_stack([matrix.lower, matrix.upper]),
            method="highs",
            options=own,
        )
    if result.status != 0:
        return result, None
    duals = np.zeros(matrix.shape[0])
    prices = result.ineqlin.marginals
    duals[equal] = sign * result.eqlin.marginals
    duals[above] += sign * prices[: len(above)]
    duals[below] -= sign * prices[len(above) :]
    return result, duals
