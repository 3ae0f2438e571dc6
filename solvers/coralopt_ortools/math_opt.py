"""GLOP and PDLP through MathOpt: linear programmes by OR-tools' simplex and by its first-order method."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from coralopt.solving import Capability, Limit, MilpMatrix, RawResult, Reason
from coralopt.solving.job import Job
from coralopt.solving.options import OptionValue
from coralopt.solving.plugin import MatrixPlugin, lazy

mathopt = lazy("ortools.math_opt.python.mathopt")
interrupter = lazy("ortools.util.python.solve_interrupter")
model_pb2 = lazy("ortools.math_opt.model_pb2")
_LIMITS = {"TIME": Limit.TIME, "INTERRUPTED": Limit.INTERRUPTED, "ITERATION": Limit.WORK, "MEMORY": Limit.MEMORY}


class GlopBackend(MatrixPlugin):
    """GLOP (Apache-2.0), no size limit. Ctrl-C ends it."""

    name: ClassVar[str] = "glop"
    package: ClassVar[str] = "ortools"
    module: ClassVar[str] = "ortools.math_opt.python.mathopt"
    licence: ClassVar[str] = "Apache-2.0, no size limit"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[ortools]'"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.LP, Capability.LP_DUALS})
    #: Its own name for presolve, and options that are always in force.
    presolve: ClassVar[str] = "use_preprocessing"
    own: ClassVar[dict[str, OptionValue]] = {}

    def run(self, job: Job) -> RawResult:
        """One fresh model, solved once."""
        options, native = job.options, getattr(mathopt.SolveParameters(), self.name)
        parameters = mathopt.SolveParameters(
            enable_output=options.log,
            threads=options.threads or 1,
            time_limit=None if options.time_limit in (None, math.inf) else timedelta(seconds=options.time_limit or 0.0),
            **{self.name: native},
        )
        names = [field.name for field in native.DESCRIPTOR.fields]

        def put(name: str, value: OptionValue) -> None:
            *path, last = name.split(".")
            holder = native
            for part in path:
                holder = getattr(holder, part)
            setattr(holder, last, value)

        common = self.own if options.presolve is None else {**self.own, self.presolve: options.presolve}
        job.set_options(self.name.upper(), common, lambda: names, lambda name: getattr(native, name), put)
        model = mathopt.Model.from_model_proto(_proto(job.matrix))
        stop = interrupter.SolveInterrupter()
        job.stop = stop.interrupt
        results: list[Any] = []
        kind = mathopt.SolverType[self.name.upper()]
        with job.solving():
            job.in_thread(lambda: results.append(mathopt.solve(model, kind, params=parameters, interrupter=stop)))
        result = results[0]
        end, limit = result.termination.reason, result.termination.limit
        reason = Reason.NUMERICAL_ERROR if end.name == "IMPRECISE" else Reason[end.name]
        solved = result.has_primal_feasible_solution()
        duals = result.has_dual_feasible_solution() and reason is Reason.OPTIMAL
        return RawResult(
            reason,
            None if limit is None else _LIMITS.get(limit.name, Limit.OTHER),
            f"{end.name} {result.termination.detail}".strip(),
            np.array(result.variable_values(list(model.variables())), dtype=np.float64) if solved else None,
            float(result.dual_bound()),
            iterations=int(result.solve_stats.simplex_iterations or result.solve_stats.first_order_iterations),
            row_duals=np.array(result.dual_values(list(model.linear_constraints())), dtype=np.float64)
            if duals
            else None,
            objective=float(result.objective_value()) if solved else None,
        )


class PdlpBackend(GlopBackend):
    """PDLP (Apache-2.0): a first-order method for very large linear programmes; tolerances are tight by default."""

    name: ClassVar[str] = "pdlp"
    presolve: ClassVar[str] = "presolve_options.use_glop"
    own: ClassVar[dict[str, OptionValue]] = {
        "termination_criteria.simple_optimality_criteria.eps_optimal_absolute": 1e-9,
        "termination_criteria.simple_optimality_criteria.eps_optimal_relative": 1e-9,
    }


def _proto(matrix: MilpMatrix) -> Any:
    """MathOpt's own message, filled with arrays."""
    proto, by_row = model_pb2.ModelProto(), matrix.a.tocsr()
    rows, columns = matrix.shape
    proto.variables.ids.extend(range(columns))
    proto.variables.lower_bounds.extend(matrix.lower)
    proto.variables.upper_bounds.extend(matrix.upper)
    proto.variables.integers.extend([False] * columns)
    proto.objective.maximize, proto.objective.offset = matrix.maximize, matrix.offset
    used = np.flatnonzero(matrix.c)
    proto.objective.linear_coefficients.ids.extend(used)
    proto.objective.linear_coefficients.values.extend(matrix.c[used])
    proto.linear_constraints.ids.extend(range(rows))
    proto.linear_constraints.lower_bounds.extend(matrix.row_lower)
    proto.linear_constraints.upper_bounds.extend(matrix.row_upper)
    proto.linear_constraint_matrix.row_ids.extend(np.repeat(np.arange(rows), np.diff(by_row.indptr)))
    proto.linear_constraint_matrix.column_ids.extend(by_row.indices)
    proto.linear_constraint_matrix.coefficients.extend(by_row.data)
    return proto
