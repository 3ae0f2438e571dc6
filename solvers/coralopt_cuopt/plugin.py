"""The cuOpt back end: one fresh data model a solve. Written after cuOpt's documentation; not yet seen on a GPU."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Capability, Limit, MilpMatrix, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.options import OptionValue
from coralopt.solving.plugin import MatrixPlugin, lazy, named_options, statuses, stopped

cuopt = lazy("cuopt.linear_programming")
parameters = lazy("cuopt.linear_programming.solver.solver_parameters")
_OPTIONS = {"log": "log_to_console", "rel_gap": "mip_relative_gap", "abs_gap": "mip_absolute_gap"}
_OPTIONS |= {"time_limit": "time_limit", "threads": "num_cpu_threads"}
#: cuOpt's own tolerances are 1e-4. Dual simplex and PDLP run at once; crossover makes a vertex of what PDLP ends with.
_OWN: dict[str, OptionValue] = {
    **{f"{kind}_{what}_tolerance": 1e-8 for kind in ("absolute", "relative") for what in ("primal", "dual", "gap")},
    **{"mip_absolute_tolerance": 1e-7, "mip_relative_tolerance": 1e-9, "mip_integrality_tolerance": 1e-7},
    **{"crossover": True, "infeasibility_detection": True},
}
#: Termination statuses of linear and of mixed-integer programmes by name; any other says nothing.
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "Optimal",
        Reason.INFEASIBLE: "PrimalInfeasible Infeasible",
        Reason.INFEASIBLE_OR_UNBOUNDED: "DualInfeasible UnboundedOrInfeasible",
        Reason.UNBOUNDED: "Unbounded",
        Limit.TIME: "TimeLimit",
        Limit.WORK: "IterationLimit WorkLimit",
        Limit.OTHER: "FeasibleFound PrimalFeasible",
        Reason.NUMERICAL_ERROR: "NumericalError",
    }
)


class CuoptBackend(MatrixPlugin):
    """cuOpt (Apache-2.0), no size limit; needs an NVIDIA GPU. It cannot be stopped before its time limit."""

    name: ClassVar[str] = "cuopt"
    package: ClassVar[str] = "cuopt-cu12"
    module: ClassVar[str] = "cuopt.linear_programming"
    licence: ClassVar[str] = "Apache-2.0, no size limit; needs an NVIDIA GPU"
    hint: ClassVar[str] = "install the package cuopt-cu12 on a machine with an NVIDIA GPU"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.LP, Capability.MILP, Capability.LP_DUALS, Capability.MIP_START}
    )

    def run(self, job: Job) -> RawResult:
        """One fresh data model, solved once."""
        settings = cuopt.SolverSettings()
        common = {**_OWN, **named_options(job.options, _OPTIONS, presolve=("presolve", 1, 0))}
        known = list(parameters.solver_params)
        job.set_options("cuOpt", common, lambda: known, settings.get_parameter, settings.set_parameter)
        model = _model(job.matrix)
        if job.start is not None and not np.isnan(job.start).any():
            # It takes whole starts only.
            model.set_initial_primal_solution(np.asarray(job.start, dtype=np.float64))
        with job.solving():
            solution = cuopt.Solve(model, settings)
        if int(solution.get_error_status()):
            raise SolverError(f"cuOpt failed: {solution.get_error_message()}")
        end = str(solution.get_termination_reason())
        reason, limit = _STATUSES.get(end, stopped(None))
        x = np.array(solution.get_primal_solution(), dtype=np.float64)
        solved = end in ("Optimal", "FeasibleFound", "PrimalFeasible") or (limit is not None and x.size > 0)
        statistics = solution.get_milp_stats() if job.is_mip else solution.get_lp_stats()
        duals = not job.is_mip and reason is Reason.OPTIMAL
        return RawResult(
            reason,
            limit,
            end,
            x if solved and np.isfinite(x).all() else None,
            float(statistics["solution_bound"]) if job.is_mip else math.nan,
            nodes=int(statistics.get("num_nodes", 0)),
            iterations=int(statistics.get("num_simplex_iterations", statistics.get("nb_iterations", 0))),
            row_duals=np.array(solution.get_dual_solution(), dtype=np.float64) if duals else None,
            objective=float(solution.get_primal_objective()) if solved else None,
        )


def _model(matrix: MilpMatrix) -> Any:  # Any: cuOpt has no types
    model, by_row = cuopt.DataModel(), matrix.a.tocsr()
    model.set_maximize(matrix.maximize)
    model.set_csr_constraint_matrix(
        by_row.data.astype(np.float64), by_row.indices.astype(np.int32), by_row.indptr.astype(np.int32)
    )
    model.set_objective_coefficients(matrix.c)
    model.set_objective_offset(float(matrix.offset))
    model.set_constraint_lower_bounds(matrix.row_lower)
    model.set_constraint_upper_bounds(matrix.row_upper)
    model.set_variable_lower_bounds(matrix.lower)
    model.set_variable_upper_bounds(matrix.upper)
    model.set_variable_types(np.where(matrix.integer, "I", "C"))
    return model
