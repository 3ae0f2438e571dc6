"""CP-SAT: integer programmes between finite bounds, scaled exactly to the 64-bit integers that it computes with."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coralopt.solving import Capability, Limit, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.plugin import MatrixPlugin, lazy, named_options, statuses
from coralopt_ortools.scaling import MOST, whole_bounds, whole_objective, whole_rows

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver, IntVar

cp_model = lazy("ortools.sat.python.cp_model")
_OPTIONS = {"log": "log_search_progress", "rel_gap": "relative_gap_limit", "seed": "random_seed"}
_OPTIONS |= {"threads": "num_workers", "time_limit": "max_time_in_seconds", "presolve": "cp_model_presolve"}
_STATUSES = statuses({Reason.OPTIMAL: "OPTIMAL", Limit.TIME: "FEASIBLE UNKNOWN", Reason.INFEASIBLE: "INFEASIBLE"})


class CpSatBackend(MatrixPlugin):
    """CP-SAT (Apache-2.0): whole numbers only, no size limit. Ctrl-C keeps its incumbent."""

    name: ClassVar[str] = "cp-sat"
    package: ClassVar[str] = "ortools"
    module: ClassVar[str] = "ortools.sat.python.cp_model"
    licence: ClassVar[str] = "Apache-2.0, no size limit"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[ortools]'"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.BOXED, Capability.MIP_START, Capability.PROGRESS, Capability.SEED, Capability.INTERRUPT}
    )

    def run(self, job: Job) -> RawResult:
        """One fresh model and solver, run once."""
        matrix, solver = job.matrix, cp_model.CpSolver()
        low, high = whole_bounds(matrix)
        empty = abs(matrix.a).sum(axis=1) == 0
        if (low > high).any() or (empty & ((matrix.row_lower > 0) | (matrix.row_upper < 0))).any():
            return RawResult(Reason.INFEASIBLE, None, "crossed bounds, or an empty row", None, math.nan)
        largest = [int(value) for value in np.maximum(np.abs(low), np.abs(high))]
        model = cp_model.CpModel()
        variables = [model.new_int_var(int(a), int(b), "") for a, b in zip(low, high, strict=True)]
        for columns, weights, least, greatest in whole_rows(matrix, largest):
            terms = cp_model.LinearExpr.weighted_sum([variables[j] for j in columns], weights)
            model.add_linear_expression_in_domain(terms, cp_model.Domain(least, greatest))
        weights, scale, error = whole_objective(matrix, largest)
        shift = round(Fraction(matrix.offset) * scale)
        expression = cp_model.LinearExpr.weighted_sum(variables, weights) + shift
        (model.maximize if matrix.maximize else model.minimize)(expression)
        for j, value in zip(*job.known_start, strict=True):
            model.add_hint(variables[j], round(float(value)))
        _set_options(solver, job, float(scale))

        def unscaled(value: float) -> float:
            return (value - shift) / float(scale) + matrix.offset

        listener = None if job.listener is None else _listener(job, variables, unscaled)
        job.stop = solver.stop_search
        with job.solving():
            statuses: list[Any] = []
            interrupted = job.in_thread(lambda: statuses.append(solver.solve(model, listener)))
        words = solver.status_name(statuses[0])
        reason, limit = _STATUSES.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
        if interrupted and limit is Limit.TIME:
            limit = Limit.INTERRUPTED
        x = None
        if words in ("OPTIMAL", "FEASIBLE"):
            x = np.array([solver.value(variable) for variable in variables], dtype=np.float64)
        bound = solver.best_objective_bound
        known = abs(bound) < MOST and words != "INFEASIBLE"
        return RawResult(
            reason,
            limit,
            words,
            x,
            unscaled(bound) + (error if matrix.maximize else -error) if known else math.nan,
            nodes=int(solver.num_branches),
            objective=None if x is None else float(matrix.c @ x) + matrix.offset,
        )


def _listener(job: Job, variables: list[IntVar], unscaled: Any) -> Any:
    """A callback of CP-SAT's own class, which exists only when OR-tools is imported."""

    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]
        def on_solution_callback(self) -> None:
            x = np.array([self.value(variable) for variable in variables], dtype=np.float64)
            job.tell(unscaled(self.objective_value), unscaled(self.best_objective_bound), lambda: x)

    return Listener()


def _set_options(solver: CpSolver, job: Job, scale: float) -> None:
    parameters = solver.parameters
    common = named_options(job.options, _OPTIONS)
    common |= {"absolute_gap_limit": float(job.options.abs_gap) * scale, "catch_sigint_signal": False}

    def known() -> list[str]:
        names = (name for name in dir(parameters) if name[0].islower())
        return [name for name in names if isinstance(getattr(parameters, name), (bool, int, float, str))]

    def put(name: str, value: object) -> None:
        setattr(parameters, name, value)

    job.set_options("CP-SAT", common, known, lambda name: getattr(parameters, name), put)
