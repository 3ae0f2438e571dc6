"""Any solver behind Pyomo's solver factories: ``pyomo:NAME``.

Pyomo has two generations of interfaces. A name that the new one knows goes there; any other goes through the old one. Of
both only what every solver has is used: a model, limits, an incumbent, a bound. What a solver does not report stays
unknown here: without a bound nothing is ever called optimal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import LicenseLimitError, OptionError, SolverError, SolverNotFoundError, UnsupportedError
from coralopt.solving import (
    Availability,
    Capability,
    Limit,
    MilpMatrix,
    RawResult,
    Reason,
    SolveOptions,
    SolveProgress,
    fast_build,
)
from coralopt.types import Floats
from coralopt_pyomo.model import model_of_matrix, values_of

_NEW = {
    "convergenceCriteriaSatisfied": (Reason.OPTIMAL, None),
    "maxTimeLimit": (Reason.NO_SOLUTION_FOUND, Limit.TIME),
    "iterationLimit": (Reason.NO_SOLUTION_FOUND, Limit.NODE),
    "objectiveLimit": (Reason.NO_SOLUTION_FOUND, Limit.OTHER),
    "unbounded": (Reason.UNBOUNDED, None),
    "provenInfeasible": (Reason.INFEASIBLE, None),
    "infeasibleOrUnbounded": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    "interrupted": (Reason.NO_SOLUTION_FOUND, Limit.INTERRUPTED),
    "unknown": (Reason.NO_SOLUTION_FOUND, None),
}
_OLD = {
    "optimal": (Reason.OPTIMAL, None),
    "globallyOptimal": (Reason.OPTIMAL, None),
    "feasible": (Reason.NO_SOLUTION_FOUND, None),
    "maxTimeLimit": (Reason.NO_SOLUTION_FOUND, Limit.TIME),
    "maxIterations": (Reason.NO_SOLUTION_FOUND, Limit.WORK),
    "maxEvaluations": (Reason.NO_SOLUTION_FOUND, Limit.NODE),
    "unbounded": (Reason.UNBOUNDED, None),
    "infeasible": (Reason.INFEASIBLE, None),
    "infeasibleOrUnbounded": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    "userInterrupt": (Reason.NO_SOLUTION_FOUND, Limit.INTERRUPTED),
    "resourceInterrupt": (Reason.NO_SOLUTION_FOUND, Limit.OTHER),
    "noSolution": (Reason.NO_SOLUTION_FOUND, None),
    "unknown": (Reason.NO_SOLUTION_FOUND, None),
}
#: Common options by their native names, for the engines behind new interfaces.
_NATIVE = {
    "highs": {
        "rel_gap": "mip_rel_gap",
        "abs_gap": "mip_abs_gap",
        "threads": "threads",
        "seed": "random_seed",
        "node_limit": "mip_max_nodes",
    },
    "scip": {
        "rel_gap": "limits/gap",
        "abs_gap": "limits/absgap",
        "seed": "randomization/randomseedshift",
        "node_limit": "limits/totalnodes",
    },
    "gurobi": {
        "rel_gap": "MIPGap",
        "abs_gap": "MIPGapAbs",
        "threads": "Threads",
        "seed": "Seed",
        "node_limit": "NodeLimit",
    },
}
#: Without this SCIP 10.0 calls fractional solutions optimal; see the back end `scip`.
_SAFE = {"scip": {"presolving/donotmultaggr": True}}
#: Options of old interfaces by the start of the solver's name: relative gap, seed, threads, node limit.
_OLD_OPTIONS: dict[str, dict[str, str]] = {
    "glpk": {"rel_gap": "mipgap", "seed": "seed"},
    "cbc": {"rel_gap": "ratioGap", "seed": "randomCbcSeed", "threads": "threads", "node_limit": "maxNodes"},
    "gurobi": {"rel_gap": "MIPGap", "seed": "Seed", "threads": "Threads", "node_limit": "NodeLimit"},
    "cplex": {"rel_gap": "mip_tolerances_mipgap", "seed": "randomseed", "threads": "threads"},
    "scip": {"rel_gap": "limits/gap", "seed": "randomization/randomseedshift", "node_limit": "limits/nodes"},
    "appsi_highs": _NATIVE["highs"],
    "appsi_gurobi": _NATIVE["gurobi"],
}


class PyomoBackend:
    """One solver of Pyomo's factories, by its name there."""

    kind: ClassVar[str] = "matrix"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.LP, Capability.MILP})
    #: Takes the part of a solver name behind the colon.
    takes_argument: ClassVar[bool] = True

    def __init__(self, argument: str = "") -> None:
        self.solver = argument
        self.name = f"pyomo:{argument}" if argument else "pyomo"

    def probe(self) -> Availability:
        """Whether Pyomo finds the solver; without a name, whether Pyomo is there."""
        from importlib.metadata import version

        if not self.solver:
            hint = "name a solver of Pyomo's factory: pyomo:cbc, pyomo:glpk, pyomo:highs, ..."
            return Availability(True, version("pyomo"), "BSD; each solver has its own", hint)
        try:
            found = _Interface.of(self.solver)
        except SolverNotFoundError as error:
            return Availability(False, "", "that of the solver", str(error))
        if not found.available():
            hint = f"Pyomo does not find {self.solver!r} here; install its executable or Python package"
            return Availability(False, "", "that of the solver", hint)
        return Availability(True, found.version(), "that of the solver")

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
    ) -> RawResult:
        """Rebuild the matrix as a Pyomo model, hand it to the solver, read incumbent and bound.

        Raises:
            SolverNotFoundError: No name given, or Pyomo does not know or find the solver.
            OptionError: A native option that the solver refuses.
            LicenseLimitError: The solver's licence does not cover the matrix.
            SolverError: Anything else that the interface raises.
        """
        if not self.solver:
            raise SolverNotFoundError("name a solver of Pyomo's factory: 'pyomo:cbc', 'pyomo:glpk', 'pyomo:highs', ...")
        interface = _Interface.of(self.solver)
        if not matrix.shape[1]:
            return _without_columns(matrix)
        begun = time.perf_counter()
        with fast_build():
            model = model_of_matrix(matrix)
        built = time.perf_counter()
        try:
            result = interface.run(model, matrix, options)
        except (LicenseLimitError, OptionError, UnsupportedError):
            raise
        except Exception as error:
            if "size-limited" in str(error) or "Model too large" in str(error):
                raise LicenseLimitError(
                    f"the licence of {self.name!r} does not cover {matrix.shape[1]} columns x {matrix.shape[0]} rows; "
                    "use solver 'highs' or 'scip'"
                ) from error
            named = any(name in str(error) for name in options.native) or "parameter" in str(error).lower()
            if options.native and (named or isinstance(error, (KeyError, TypeError, ValueError))):
                raise OptionError(f"{self.name} does not take the options {dict(options.native)}: {error}") from error
            raise SolverError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        reason, limit, raw, bound, effective = result
        weak = math.inf if matrix.maximize else -math.inf
        x = values_of(model) if reason in (Reason.OPTIMAL, Reason.FEASIBLE) else None
        if reason is Reason.UNBOUNDED and matrix.integer.any():
            # A ray of the relaxation alone does not show that any whole-number solution exists.
            reason = Reason.INFEASIBLE_OR_UNBOUNDED
        return RawResult(
            reason=reason,
            limit=limit,
            raw=raw,
            x=x,
            bound=bound if bound is not None and abs(bound) < 1e20 else weak,
            effective=effective,
            handover_seconds=built - begun,
            solve_seconds=time.perf_counter() - built,
        )


#: Reason, limit, the solver's words, bound, options in force; the model holds the incumbent afterwards.
_Outcome = tuple[Reason, Limit | None, str, float | None, dict[str, Any]]


class _Interface:
    """One of Pyomo's two generations of interfaces."""

    def __init__(self, name: str, solver: Any) -> None:
        self.name, self.solver = name, solver

    @staticmethod
    def of(name: str) -> _Interface:
        # Only importing it registers the solvers.
        import pyomo.environ as pyo
        from pyomo.contrib.solver.common.factory import SolverFactory as NewFactory
        from pyomo.opt import UnknownSolver

        if name in list(NewFactory):
            return _New(name, NewFactory(name))
        try:
            solver = pyo.SolverFactory(name)
        except Exception as error:
            # Some old interfaces raise when their executable is missing, instead of saying so.
            raise SolverNotFoundError(f"Pyomo cannot make its solver {name!r}: {error}") from error
        if solver is None or isinstance(solver, UnknownSolver):
            raise SolverNotFoundError(f"Pyomo knows no solver {name!r}; `pyomo help --solvers` lists them")
        return _Old(name, solver)

    def available(self) -> bool:
        raise NotImplementedError

    def version(self) -> str:
        try:
            found = self.solver.version()
        except Exception:
            return ""
        return ".".join(str(part) for part in found) if found else ""

    def run(self, model: Any, matrix: MilpMatrix, options: SolveOptions) -> _Outcome:
        raise NotImplementedError


def _engine(name: str) -> str:
    return next((engine for engine in ("highs", "scip", "gurobi") if engine in name), name)


class _New(_Interface):
    def available(self) -> bool:
        return bool(self.solver.available())

    def run(self, model: Any, matrix: MilpMatrix, options: SolveOptions) -> _Outcome:
        engine = _engine(self.name)
        names = _NATIVE.get(engine, {})
        native = _native_options(self.name, names, options)
        common: dict[str, Any] = {} if names else {"rel_gap": options.rel_gap, "abs_gap": options.abs_gap}
        if options.time_limit is not None:
            common["time_limit"] = float(options.time_limit)
        if engine == "highs":
            _prepare_highs(native)
        result = self.solver.solve(
            model,
            **common,
            solver_options=native,
            tee=options.log,
            load_solutions=False,
            raise_exception_on_nonoptimal_result=False,
        )
        words = f"{result.termination_condition.name}/{result.solution_status.name}"
        reason, limit = _NEW.get(result.termination_condition.name, (Reason.OTHER_ERROR, None))
        found = result.solution_status.name in ("feasible", "optimal")
        if reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND) and found:
            result.solution_loader.load_vars()
            reason = Reason.OPTIMAL if reason is Reason.OPTIMAL else Reason.FEASIBLE
        bound = None if result.objective_bound is None else float(result.objective_bound)
        return reason, limit, words, bound, {**common, **native}


def _native_options(name: str, names: Mapping[str, str], options: SolveOptions) -> dict[str, Any]:
    """Common options under the solver's own names, overridden by the native ones."""
    if options.node_limit is not None and "node_limit" not in names:
        raise UnsupportedError(f"pyomo:{name} has no node limit that coralopt knows; use native options")
    values: dict[str, Any] = {
        "rel_gap": float(options.rel_gap),
        "abs_gap": float(options.abs_gap),
        "threads": options.threads or 1,
        "seed": options.seed,
        "node_limit": options.node_limit,
    }
    known = {names[key]: value for key, value in values.items() if key in names and value is not None}
    return {**known, **_SAFE.get(_engine(name), {}), **options.native}


def _prepare_highs(native: Mapping[str, Any]) -> None:
    """Unknown options, which Pyomo passes on and HiGHS ignores, become errors; its pool of threads starts anew."""
    import highspy

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    for name, value in native.items():
        if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise OptionError(f"HiGHS does not know option {name!r}, or does not take {value!r} for it")
    highspy.Highs.resetGlobalScheduler(True)


class _Old(_Interface):
    def available(self) -> bool:
        try:
            return bool(self.solver.available(exception_flag=False))
        except Exception:
            return False

    def run(self, model: Any, matrix: MilpMatrix, options: SolveOptions) -> _Outcome:
        prefix = next((key for key in sorted(_OLD_OPTIONS, key=len, reverse=True) if self.name.startswith(key)), "")
        native = _native_options(self.name, _OLD_OPTIONS.get(prefix, {}), options)
        if prefix == "appsi_highs":
            _prepare_highs(native)
        keywords: dict[str, Any] = {"tee": options.log, "load_solutions": False, "options": native}
        if options.time_limit is not None:
            # Executables take whole seconds, at least one.
            keywords["timelimit"] = max(1, math.ceil(options.time_limit))
        result = self.solver.solve(model, **keywords)
        words = f"{result.solver.termination_condition}/{result.solver.status}"
        reason, limit = _OLD.get(str(result.solver.termination_condition), (Reason.OTHER_ERROR, None))
        if reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND) and len(result.solution):
            model.solutions.load_from(result)
            reason = Reason.OPTIMAL if reason is Reason.OPTIMAL else Reason.FEASIBLE
        bound = result.problem.upper_bound if matrix.maximize else result.problem.lower_bound
        known = isinstance(bound, (int, float)) and math.isfinite(bound)
        effective = {**native, **({"timelimit": keywords["timelimit"]} if "timelimit" in keywords else {})}
        return reason, limit, words, float(bound) if known else None, effective


def _without_columns(matrix: MilpMatrix) -> RawResult:
    """A model without columns: feasible iff every row admits 0."""
    if bool((matrix.row_lower <= 0).all() and (matrix.row_upper >= 0).all()):
        return RawResult(Reason.OPTIMAL, None, "no columns", np.zeros(0), matrix.offset)
    return RawResult(Reason.INFEASIBLE, None, "no columns", None, math.nan)
