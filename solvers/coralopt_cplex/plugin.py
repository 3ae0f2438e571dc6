"""The CPLEX back end: one fresh model a solve."""

from __future__ import annotations

import math
import sys
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coralopt.solving import Capability, Limit, MilpMatrix, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.options import Focus, OptionValue
from coralopt.solving.plugin import SizeLimited, lazy, named_options, statuses
from coralopt.solving.rows import kinds_of_rows, with_infinity

if TYPE_CHECKING:
    from cplex import Cplex

cplex = lazy("cplex")
_OPTIONS = {"rel_gap": "mip.tolerances.mipgap", "abs_gap": "mip.tolerances.absmipgap", "seed": "randomseed"}
_OPTIONS |= {"threads": "threads", "time_limit": "timelimit", "node_limit": "mip.limits.nodes"}
_FOCUS: dict[Focus, dict[str, OptionValue]] = {
    "solutions": {"emphasis.mip": 1},
    "short": {"mip.strategy.heuristicfreq": -1},
}
#: The beginning of the name of a status.
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "optimal MIP_optimal",
        Reason.INFEASIBLE_OR_UNBOUNDED: "infeasible_or_unbounded MIP_infeasible_or_unbounded",
        Reason.INFEASIBLE: "infeasible MIP_infeasible",
        Reason.UNBOUNDED: "unbounded MIP_unbounded relaxation_unbounded",
        Limit.TIME: "MIP_time_limit abort_time_limit",
        Limit.NODE: "node_limit",
        Limit.MEMORY: "mem_limit",
        Limit.INTERRUPTED: "MIP_abort abort_user",
        Reason.NUMERICAL_ERROR: "num_best fail optimal_infeasible",
    }
)


class CplexBackend(SizeLimited):
    """CPLEX (proprietary); its free edition stops at 1000 columns x 1000 rows. Ctrl-C keeps its incumbent."""

    name: ClassVar[str] = "cplex"
    package: ClassVar[str] = "cplex"
    licence: ClassVar[str] = "proprietary; community edition, up to 1000 x 1000"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[cplex]'"
    free_limit: ClassVar[tuple[int, int]] = (1000, 1000)
    refusal: ClassVar[str] = "^CPLEX Error +1016:"
    capabilities: ClassVar[frozenset[Capability]] = SizeLimited.capabilities | {Capability.SEED, Capability.INTERRUPT}
    unknown: ClassVar[float] = 1e20

    def run(self, job: Job) -> RawResult:
        """One fresh model, solved once."""
        with cplex.Cplex() as model:
            for attach in (model.set_log_stream, model.set_results_stream):
                attach(sys.stdout if job.options.log else None)
            for attach in (model.set_error_stream, model.set_warning_stream):
                attach(None)
            _set_options(model, job)
            _pass_model(model, job.matrix)
            if job.start is not None:
                (positions, values), starts = job.known_start, model.MIP_starts
                starts.add(cplex.SparsePair(positions.tolist(), values.tolist()), starts.effort_level.auto)
            job.stop = model.use_aborter(cplex.Aborter()).abort
            with self.failures(job, "CPLEX", cplex.exceptions.CplexSolverError), job.solving():
                job.in_thread(model.solve)
            solution = model.solution
            words = str(solution.status[solution.get_status()])
            fits = (name for name in sorted(_STATUSES, key=len, reverse=True) if words.startswith(name))
            reason, limit = _STATUSES.get(next(fits, ""), (Reason.OTHER_ERROR, Limit.OTHER))
            has = bool(solution.is_primal_feasible())
            usable = reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND)
            duals = has and reason is Reason.OPTIMAL and not job.is_mip
            objective = float(solution.get_objective_value()) if has else None
            bound = float(solution.MIP.get_best_objective()) if usable and job.is_mip else math.nan
            if words == "MIP_optimal" and objective is not None:
                # No node is left, but where presolving again ended the search CPLEX still names an older bound.
                bound = objective
            return RawResult(
                reason,
                limit,
                words,
                np.array(solution.get_values(), dtype=np.float64) if has else None,
                bound,
                nodes=int(solution.progress.get_num_nodes_processed()),
                iterations=int(solution.progress.get_num_iterations()),
                row_duals=np.array(solution.get_dual_values(), dtype=np.float64) if duals else None,
                objective=objective,
            )


def _set_options(model: Cplex, job: Job) -> None:
    common = named_options(job.options, _OPTIONS, _FOCUS, presolve=("preprocessing.presolve", 1, 0))

    def parameter(name: str) -> Any:
        return reduce(getattr, name.split("."), model.parameters)

    names = (str(item).removeprefix("parameters.") for item, _ in model.parameters.get_all())
    job.set_options(
        "CPLEX", common, lambda: names, lambda name: parameter(name).get(), lambda n, v: parameter(n).set(v)
    )


def _pass_model(model: Cplex, matrix: MilpMatrix) -> None:
    matrix = with_infinity(matrix, cplex.infinity)
    types = "".join(np.where(matrix.integer, "I", "C")) if matrix.integer.any() else ""
    model.variables.add(obj=matrix.c.tolist(), types=types, lb=matrix.lower.tolist(), ub=matrix.upper.tolist())
    sense = model.objective.sense
    model.objective.set_sense(sense.maximize if matrix.maximize else sense.minimize)
    model.objective.set_offset(float(matrix.offset))
    kinds, low, high = kinds_of_rows(matrix, cplex.infinity), matrix.row_lower, matrix.row_upper
    model.linear_constraints.add(
        # CPLEX has no free rows: here they have no lower side but its infinity.
        senses="".join(np.where(kinds == "N", "G", kinds)),
        rhs=np.where(kinds == "L", high, low).tolist(),
        range_values=np.where(kinds == "R", high - low, 0.0).tolist(),
    )
    entries = matrix.a.tocoo()
    if entries.nnz:
        triples = zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True)
        model.linear_constraints.set_coefficients(list(triples))
