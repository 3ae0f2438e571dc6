"""Any solver behind Pyomo's solver factories: ``pyomo:NAME``.

Pyomo has two generations of interfaces. A name that the new one knows goes there; any other goes through the old one. Of
both only what every solver has is used: a model, limits, an incumbent, a bound. What a solver does not report stays
unknown here: without a bound nothing is ever called optimal.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from coralopt.errors import CoraloptError, LicenseLimitError, OptionError, SolverError, SolverNotFoundError
from coralopt.solving import (
    Availability,
    Capability,
    Limit,
    MilpMatrix,
    RawResult,
    Reason,
    SolveOptions,
    fast_build,
    get_backend,
)
from coralopt.solving.job import Job
from coralopt.solving.options import OptionValue
from coralopt.solving.plugin import MatrixPlugin, Status, lazy, named_options, statuses, stopped
from coralopt.types import Floats
from coralopt_pyomo.model import model_of_matrix, values_of

highspy = lazy("highspy")
#: Termination conditions of both generations by name.
_STATUSES = statuses(
    {
        Reason.OPTIMAL: "convergenceCriteriaSatisfied optimal globallyOptimal",
        Reason.INFEASIBLE: "provenInfeasible infeasible",
        Reason.UNBOUNDED: "unbounded",
        Reason.INFEASIBLE_OR_UNBOUNDED: "infeasibleOrUnbounded",
        Limit.TIME: "maxTimeLimit",
        Limit.NODE: "iterationLimit maxEvaluations",
        Limit.WORK: "maxIterations",
        Limit.OTHER: "objectiveLimit resourceInterrupt",
        Limit.INTERRUPTED: "interrupted userInterrupt",
        Reason.NO_SOLUTION_FOUND: "unknown feasible noSolution",
    }
)
_HIGHS = {"rel_gap": "mip_rel_gap", "abs_gap": "mip_abs_gap", "threads": "threads", "seed": "random_seed"}
_HIGHS |= {"node_limit": "mip_max_nodes"}
_GUROBI = {"rel_gap": "MIPGap", "threads": "Threads", "seed": "Seed", "node_limit": "NodeLimit"}
_SCIP = {"rel_gap": "limits/gap", "seed": "randomization/randomseedshift"}
#: Common options by their native names, for the engines behind new interfaces.
_NEW_OPTIONS = {
    "highs": _HIGHS,
    "scip": {**_SCIP, "abs_gap": "limits/absgap", "node_limit": "limits/totalnodes"},
    "gurobi": {**_GUROBI, "abs_gap": "MIPGapAbs"},
}
#: The same for old interfaces, by the start of the solver's name.
_OLD_OPTIONS = {
    "glpk": {"rel_gap": "mipgap", "seed": "seed"},
    "cbc": {
        **{"rel_gap": "ratioGap", "abs_gap": "allowableGap", "seed": "randomCbcSeed", "threads": "threads"},
        "node_limit": "maxNodes",
    },
    "gurobi": _GUROBI,
    "cplex": {"rel_gap": "mip_tolerances_mipgap", "seed": "randomseed", "threads": "threads"},
    "scip": {**_SCIP, "node_limit": "limits/nodes"},
    "appsi_highs": _HIGHS,
    "appsi_gurobi": _NEW_OPTIONS["gurobi"],
}
#: Solvers that Pyomo runs as programs; their logs tell what it does not read.
_EXECUTABLES = ("cbc", "glpk")
_REFUSED = re.compile(r"No match for .*|.* is illegal for .*|Invalid option .*|Invalid .* '.*'")
_CBC_GAP = "Optimal solution found (within gap tolerance)"
#: Options for a second try after a crash. Where bounds alone contradict each other CBC crashes without its preprocessing,
#: which then says so and is believed so far; the integer preprocessing of GLPK 5.0 ends some of such models by an assertion.
_AFTER_CRASH: dict[str, dict[str, OptionValue]] = {"cbc": {"preprocess": "on"}, "glpk": {"nointopt": ""}}
#: Far below what CBC's tolerances hold apart.
_CBC_INCREMENT = 1e-9
#: HiGHS's presolve of parallel rows and columns.
_PARALLEL = 1 << 13
#: Where their logs tell the last bound; Pyomo reads that of CBC with the other sign for a maximum, and none of GLPK.
_BOUNDS = {
    "cbc": re.compile(r"(?:Upper|Lower) bound: +([-+.\de]+)"),
    "glpk": re.compile(r"mip = .* [<>]= +([-+.\de]+) "),
}
#: Ends of GLPK that Pyomo reads otherwise: as unbounded where nothing is feasible.
_LOG_STATUSES: dict[str, Status] = {
    "LP HAS NO PRIMAL FEASIBLE SOLUTION": (Reason.INFEASIBLE, None),
    "LP HAS NO DUAL FEASIBLE SOLUTION": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    "LP HAS UNBOUNDED PRIMAL SOLUTION": (Reason.UNBOUNDED, None),
    "TIME LIMIT EXCEEDED": stopped(Limit.TIME),
}


class PyomoBackend(MatrixPlugin):
    """One solver of Pyomo's factories, by its name there."""

    package: ClassVar[str] = "pyomo"
    hint: ClassVar[str] = "name a solver of Pyomo's factory: pyomo:cbc, pyomo:glpk, pyomo:highs, ..."
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.LP, Capability.MILP})
    #: Listed by name: what the compliance suite runs with, where it is installed.
    choices: ClassVar[tuple[str, ...]] = ("cbc", "glpk")
    unknown: ClassVar[float] = 1e20
    #: Takes the part of a solver name behind the colon.
    takes_argument: ClassVar[bool] = True

    def __init__(self, argument: str = "") -> None:
        self.solver = argument
        self.name = f"pyomo:{argument}" if argument else "pyomo"  # type: ignore[misc]
        engines = [names for engine, names in _NEW_OPTIONS.items() if engine in argument]
        if any("node_limit" in names for names in [*engines, _OLD_OPTIONS.get(_old_engine(argument), {})]):
            self.capabilities = self.capabilities | {Capability.NODE_LIMIT}  # type: ignore[misc]

    def probe(self) -> Availability:
        """Whether Pyomo finds the solver; without a name, whether Pyomo is there."""
        if not self.solver:
            return Availability(True, version("pyomo"), "BSD; each solver has its own", self.hint)
        licence = "that of the solver"
        try:
            interface, is_new = _interface(self.solver)
            available = interface.available() if is_new else interface.available(exception_flag=False)
        except SolverNotFoundError as error:
            return Availability(False, "", licence, str(error))
        except Exception as error:
            hint = f"Pyomo cannot tell whether {self.solver!r} is here: {type(error).__name__}: {error}"
            return Availability(False, "", licence, hint)
        if not available:
            hint = f"Pyomo does not find {self.solver!r} here; install its executable or Python package"
            return Availability(False, "", licence, hint)
        return Availability(True, _version(self.solver, interface), licence)

    def run(self, job: Job) -> RawResult:
        """Rebuild the matrix as a Pyomo model, hand it to the solver, read incumbent and bound."""
        if not self.solver:
            raise SolverNotFoundError("name a solver of Pyomo's factory: 'pyomo:cbc', 'pyomo:glpk', 'pyomo:highs', ...")
        interface, is_new = _interface(self.solver)
        with fast_build():
            model = model_of_matrix(job.matrix)
        try:
            return (_run_new if is_new else _run_old)(self.solver, interface, model, job)
        except CoraloptError:
            raise
        except Exception as error:
            raise self._translated(error, job.matrix, job.options.native) from error

    def _translated(self, error: Exception, matrix: MilpMatrix, native: Mapping[str, OptionValue]) -> CoraloptError:
        text = str(error)
        if "size-limited" in text or "Model too large" in text:
            return LicenseLimitError(
                f"the licence of {self.name!r} does not cover {matrix.shape[1]} columns x {matrix.shape[0]} rows; "
                "use solver 'highs' or 'scip'"
            )
        named = any(name in text for name in native) or "parameter" in text.lower()
        if native and (named or isinstance(error, (KeyError, TypeError, ValueError))):
            return OptionError(f"{self.name} does not take the options {dict(native)}: {error}")
        return SolverError(f"{self.name} failed: {type(error).__name__}: {error}")


# Pyomo has no types: interfaces, models and results are Any below.
def _interface(name: str) -> tuple[Any, bool]:
    """Pyomo's interface of this name, and whether it is one of the new generation."""
    # Only importing it registers the solvers.
    import pyomo.environ as pyo
    from pyomo.contrib.solver.common.factory import SolverFactory as NewFactory
    from pyomo.opt import UnknownSolver

    if name in list(NewFactory):
        return NewFactory(name), True
    try:
        solver = pyo.SolverFactory(name)
    except Exception as error:
        # Some old interfaces raise when their executable is missing, instead of saying so.
        raise SolverNotFoundError(f"Pyomo cannot make its solver {name!r}: {error}") from error
    if solver is None or isinstance(solver, UnknownSolver):
        raise SolverNotFoundError(f"Pyomo knows no solver {name!r}; `pyomo help --solvers` lists them")
    return solver, False


def _version(name: str, interface: Any) -> str:
    try:
        if name in ("scip_direct", "scip_persistent"):
            # Pyomo names the version of the package.
            return get_backend("scip").probe().version
        parts = interface.version()
    except Exception:
        return ""
    return ".".join(str(part) for part in parts) if parts else ""


def _native(name: str, names: Mapping[str, str], options: SolveOptions) -> dict[str, OptionValue]:
    """Common options under the solver's own names, overridden by the native ones."""
    # Without this SCIP 10.0 calls fractional solutions optimal; see the back end `scip`.
    safe: dict[str, OptionValue] = {"presolving/donotmultaggr": True} if "scip" in name else {}
    if name == "glpk":
        # Its presolve takes x = 0 where a row asks for x >= 1.9e-6, and calls that optimal.
        safe["nopresol"] = ""
    elif name == "cbc":
        # With it CBC 2.10.8 calls 176.5625 optimal where 98.125 is: three columns, a case of the compliance suite.
        safe["preprocess"] = "off"
        # A better solution counts for CBC only if it is better by this; by 1e-5 where nobody says so.
        safe["increment"] = _CBC_INCREMENT
    elif names is _HIGHS:
        # With it HiGHS 1.15.1 calls worse solutions optimal; see the back end `highs`.
        safe["presolve_rule_off"] = _PARALLEL
    native = {**named_options(options, names), **safe, **options.native}
    if names is _HIGHS:
        # Unknown options, which Pyomo passes on and HiGHS ignores, become errors; its pool of threads starts anew.
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        for option, value in native.items():
            if solver.setOptionValue(option, value) != highspy.HighsStatus.kOk:
                raise OptionError(f"HiGHS does not know option {option!r}, or does not take {value!r} for it")
        highspy.Highs.resetGlobalScheduler(True)
    return native


def _run_new(name: str, interface: Any, model: Any, job: Job) -> RawResult:
    options = job.options
    names = next((names for engine, names in _NEW_OPTIONS.items() if engine in name), {})
    common: dict[str, Any] = {} if names else {"rel_gap": options.rel_gap, "abs_gap": options.abs_gap}
    common |= named_options(options, {"time_limit": "time_limit"})
    native = _native(name, names, options)
    job.effective = {**common, **native}
    how: dict[str, Any] = {"load_solutions": False, "raise_exception_on_nonoptimal_result": False}
    with job.solving():
        result = interface.solve(model, **common, solver_options=native, tee=options.log, **how)
    condition, status = result.termination_condition.name, result.solution_status.name
    incumbent = status in ("feasible", "optimal") and _may_come_with_solution(condition)
    if incumbent:
        result.solution_loader.load_vars()
    bound = math.nan if result.objective_bound is None else float(result.objective_bound)
    return _result(condition, f"{condition}/{status}", values_of(model) if incumbent else None, bound)


def _run_old(name: str, interface: Any, model: Any, job: Job) -> RawResult:
    from pyomo.common.errors import ApplicationError
    from pyomo.common.log import LoggingIntercept

    prefix = _old_engine(name)
    native = _native(name, _OLD_OPTIONS.get(prefix, {}), job.options)
    # Executables take whole seconds, at least one.
    seconds = job.options.time_limit
    how: dict[str, Any] = {} if seconds in (None, math.inf) else {"timelimit": max(1, math.ceil(seconds or 0.0))}
    job.effective = {**native, **how}
    with tempfile.TemporaryDirectory(prefix="coralopt-") as folder, LoggingIntercept(module="pyomo") as said:
        log = Path(folder) / "log"
        if prefix in _EXECUTABLES:
            how["logfile"] = str(log)
        try:
            with job.solving():
                result = interface.solve(model, tee=job.options.log, load_solutions=False, options=native, **how)
        except ApplicationError:
            other = _AFTER_CRASH.get(prefix, {})
            if all(native.get(option) == value for option, value in other.items()):
                raise
            with job.solving():
                result = interface.solve(model, load_solutions=False, options={**native, **other}, **how)
            if prefix == "cbc" and str(result.solver.termination_condition) != "infeasible":
                raise
        finally:
            text = said.getvalue() + (log.read_text(errors="replace") if log.exists() else "")
            if refused := _REFUSED.search(text):
                raise OptionError(f"pyomo:{name} does not take the options {dict(job.options.native)}: {refused[0]}")
        condition = str(result.solver.termination_condition)
        incumbent = bool(len(result.solution)) and _may_come_with_solution(condition)
        if incumbent:
            model.solutions.load_from(result)
    bound = result.problem.upper_bound if job.matrix.maximize else result.problem.lower_bound
    bound = float(bound) if isinstance(bound, (int, float)) else math.nan
    if prefix in _BOUNDS:
        shown = _BOUNDS[prefix].findall(text)
        unknown = prefix == "cbc" and condition != "optimal"
        bound = float(shown[-1]) if shown else math.nan if unknown else bound
    if prefix == "cbc" and condition == "optimal" and incumbent and job.is_mip:
        # Pyomo reads the bound of the first relaxation; what CBC calls optimal is so within what it was asked for.
        value, upwards = job.matrix.objective(values_of(model)), 1.0 if job.matrix.maximize else -1.0
        gap = max(float(native["allowableGap"]), float(native["ratioGap"]) * abs(value)) if _CBC_GAP in text else 0.0
        increment = float(native["increment"])
        bound = value + upwards * max(gap, increment if increment > _CBC_INCREMENT else 0.0)
    plain = _result(condition, f"{condition}/{result.solver.status}", values_of(model) if incumbent else None, bound)
    told = next((status for words, status in _LOG_STATUSES.items() if words in text), None)
    return replace(plain, reason=told[0], limit=told[1]) if told else plain


def _old_engine(name: str) -> str:
    return next((key for key in sorted(_OLD_OPTIONS, key=len, reverse=True) if name.startswith(key)), "")


def _may_come_with_solution(condition: str) -> bool:
    return condition in _STATUSES and _STATUSES[condition][0] in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND)


def _result(condition: str, words: str, x: Floats | None, bound: float) -> RawResult:
    reason, limit = _STATUSES.get(condition, (Reason.OTHER_ERROR, None))
    return RawResult(reason, limit, words, x, bound)
