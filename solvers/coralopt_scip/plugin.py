"""The SCIP back end: one fresh model a solve, so that nothing can leak into the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import OptionError, SolverNotFoundError
from coralopt.solving import (
    Availability,
    Capability,
    Limit,
    MilpMatrix,
    RawResult,
    Reason,
    SolveOptions,
    SolveProgress,
    checked_native,
)
from coralopt.types import Floats

_REASONS = {
    "optimal": (Reason.OPTIMAL, None),
    "gaplimit": (Reason.OPTIMAL, None),
    "infeasible": (Reason.INFEASIBLE, None),
    "unbounded": (Reason.UNBOUNDED, None),
    "inforunbd": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    "timelimit": (Reason.NO_SOLUTION_FOUND, Limit.TIME),
    "nodelimit": (Reason.NO_SOLUTION_FOUND, Limit.NODE),
    "totalnodelimit": (Reason.NO_SOLUTION_FOUND, Limit.NODE),
    "stallnodelimit": (Reason.NO_SOLUTION_FOUND, Limit.NODE),
    "memlimit": (Reason.NO_SOLUTION_FOUND, Limit.MEMORY),
    "sollimit": (Reason.NO_SOLUTION_FOUND, Limit.SOLUTION),
    "bestsollimit": (Reason.NO_SOLUTION_FOUND, Limit.SOLUTION),
    "restartlimit": (Reason.NO_SOLUTION_FOUND, Limit.OTHER),
    "userinterrupt": (Reason.NO_SOLUTION_FOUND, Limit.INTERRUPTED),
}


class ScipBackend:
    """SCIP (Apache-2.0), no size limit; branch and bound on one thread."""

    name: ClassVar[str] = "scip"
    kind: ClassVar[str] = "matrix"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.LP,
            Capability.MILP,
            Capability.MIP_START,
            Capability.LP_DUALS,
            Capability.PROGRESS,
            Capability.SEED,
            Capability.INTERRUPT,
            Capability.MEMORY_LIMIT,
            Capability.CONFLICT,
        }
    )

    def probe(self) -> Availability:
        """Whether PySCIPOpt is installed, and which version; does not import it."""
        licence = "Apache-2.0, no size limit"
        try:
            return Availability(True, version("pyscipopt"), licence)
        except PackageNotFoundError:
            return Availability(False, "", licence, "install the extra: pip install 'coralopt[scip]'")

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
    ) -> RawResult:
        """Solve one matrix. Ctrl-C stops SCIP, which keeps its incumbent.

        Raises:
            OptionError: A native option SCIP does not know or does not take with this value.
            SolverNotFoundError: PySCIPOpt is not installed.
        """
        try:
            import pyscipopt
        except ImportError as error:
            raise SolverNotFoundError(
                "solver 'scip' is not installed; install the extra: pip install 'coralopt[scip]'"
            ) from error
        result = _run(pyscipopt, matrix, options, start, on_progress)
        if result.x is None or options.presolve is False or _holds(matrix, result.x):
            return result
        # SCIP's presolve sometimes ends with a solution of the presolved model that is none of the original one.
        left = None if options.time_limit is None else max(0.0, options.time_limit - result.solve_seconds)
        again = _run(pyscipopt, matrix, replace(options, presolve=False, time_limit=left), start, on_progress)
        raw = f"{again.raw}, without presolve (its solution with presolve violated the model)"
        return replace(again, raw=raw, solve_seconds=result.solve_seconds + again.solve_seconds)

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[tuple[str, int, str]]:
        """SCIP's irreducible infeasible subset: its rows, and the column bounds that it left in place."""
        import pyscipopt

        model = pyscipopt.Model()
        if not options.log:
            model.hideOutput()
        plain = SolveOptions(time_limit=options.time_limit, memory_limit=options.memory_limit)
        _set_options(pyscipopt, model, plain, plain=False)
        _pass_model(pyscipopt, model, matrix)
        part = model.generateIIS().getSubscip()
        found: list[tuple[str, int, str]] = []
        for variable in part.getVars():
            j = int(variable.name[1:])
            found += [("column", j, "lower")] if variable.getLbOriginal() > -part.infinity() else []
            found += [("column", j, "upper")] if variable.getUbOriginal() < part.infinity() else []
        for row in part.getConss():
            i = int(row.name[1:])
            found += [("row", i, "lower")] if part.getLhs(row) > -part.infinity() else []
            found += [("row", i, "upper")] if part.getRhs(row) < part.infinity() else []
        return found


def _run(
    pyscipopt: Any,
    matrix: MilpMatrix,
    options: SolveOptions,
    start: Floats | None,
    on_progress: Callable[[SolveProgress], None] | None,
) -> RawResult:
    """One fresh model, solved once."""
    begun = time.perf_counter()
    model = pyscipopt.Model()
    if not options.log:
        model.hideOutput()
    is_mip = bool(matrix.integer.any())
    effective = _set_options(pyscipopt, model, options, plain=not is_mip)
    variables, rows = _pass_model(pyscipopt, model, matrix)
    accepted = None
    if start is not None and is_mip:
        accepted = _pass_start(model, variables, start)
    handed = time.perf_counter()
    failure: list[BaseException] = []
    if on_progress is not None:
        model.includeEventhdlr(
            _progress_handler(pyscipopt, on_progress, variables, handed, failure), "coralopt", "incumbents and bounds"
        )
    # The call that leaves Python's lock alone lets SCIP itself take Ctrl-C and keep its incumbent.
    model.optimizeNogil()
    solved = time.perf_counter()
    if failure:
        raise failure[0]
    return _result(model, matrix, variables, rows, is_mip, accepted, effective, handed - begun, solved - handed)


def _holds(matrix: MilpMatrix, x: Floats) -> bool:
    """Whether a solution is one of the original model, within ten times SCIP's own tolerance."""
    whole = np.where(matrix.integer, np.rint(x), x)
    size = np.maximum(1.0, abs(matrix.a) @ np.abs(whole))
    activity = matrix.a @ whole
    off = np.maximum(matrix.row_lower - activity, activity - matrix.row_upper) / size
    return bool(np.abs(whole - x).max(initial=0.0) <= 1e-5 and off.max(initial=0.0) <= 1e-6)


def _set_options(pyscipopt: Any, model: Any, options: SolveOptions, plain: bool) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "limits/gap": float(options.rel_gap),
        "limits/absgap": float(options.abs_gap),
        "randomization/randomseedshift": options.seed,
        # SCIP 10.0 loses integrality when it aggregates columns into sums of others (case presolve_keeps_the_problem of
        # the compliance suite): it then calls fractional solutions optimal.
        "presolving/donotmultaggr": True,
    }
    if options.time_limit is not None:
        wanted["limits/time"] = float(min(options.time_limit, 1e20))
    if options.node_limit is not None:
        wanted["limits/totalnodes"] = options.node_limit
    if options.memory_limit is not None:
        # SCIP counts in MB.
        wanted["limits/memory"] = float(options.memory_limit) * 1024
    if options.presolve is False or plain:
        # Duals of a linear programme are those of the original rows only when nothing was presolved away.
        model.setPresolve(pyscipopt.SCIP_PARAMSETTING.OFF)
    if plain:
        model.setHeuristics(pyscipopt.SCIP_PARAMSETTING.OFF)
        model.disablePropagation()
    known = model.getParams()
    wanted.update(checked_native("SCIP", options.native, known, known.__getitem__))
    for name, value in wanted.items():
        try:
            model.setParam(name, value)
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"SCIP does not take {value!r} for its option {name!r}") from error
    return {**wanted, "threads": 1}


def _pass_model(pyscipopt: Any, model: Any, matrix: MilpMatrix) -> tuple[list[Any], list[Any]]:
    from pyscipopt.scip import Expr, ExprCons

    infinity = model.infinity()
    variables = [
        model.addVar(
            name=f"c{j}",
            vtype="I" if matrix.integer[j] else "C",
            lb=None if lower == -math.inf else float(lower),
            ub=None if upper == math.inf else float(upper),
            obj=float(cost),
        )
        for j, (lower, upper, cost) in enumerate(zip(matrix.lower, matrix.upper, matrix.c, strict=True))
    ]
    if matrix.maximize:
        model.setMaximize()
    if matrix.offset:
        model.addObjoffset(float(matrix.offset))
    by_row = matrix.a.tocsr()
    rows = []
    for i, (low, high) in enumerate(zip(matrix.row_lower, matrix.row_upper, strict=True)):
        row = model.addCons(
            ExprCons(Expr({}), lhs=max(float(low), -infinity), rhs=min(float(high), infinity)), name=f"r{i}"
        )
        # Adding coefficients one by one is linear in the row's length; summing expressions is quadratic.
        for k in range(by_row.indptr[i], by_row.indptr[i + 1]):
            model.addCoefLinear(row, variables[by_row.indices[k]], float(by_row.data[k]))
        rows.append(row)
    return variables, rows


def _pass_start(model: Any, variables: list[Any], start: Floats) -> bool | None:
    """Hand over a start, complete or with NaN where unknown; whether SCIP finds it feasible, ``None`` for a partial."""
    partial = bool(np.isnan(start).any())
    solution = model.createPartialSol() if partial else model.createSol()
    for variable, value in zip(variables, start, strict=True):
        if not math.isnan(value):
            model.setSolVal(solution, variable, float(value))
    if partial:
        model.addSol(solution)
        return None
    feasible = bool(model.checkSol(solution, printreason=False, original=True))
    model.addSol(solution)
    return feasible


def _progress_handler(
    pyscipopt: Any,
    on_progress: Callable[[SolveProgress], None],
    variables: list[Any],
    since: float,
    failure: list[BaseException],
) -> Any:
    watched = pyscipopt.SCIP_EVENTTYPE.BESTSOLFOUND | pyscipopt.SCIP_EVENTTYPE.NODESOLVED

    class Watch(pyscipopt.Eventhdlr):  # type: ignore[misc]
        """Tells about incumbents and solved nodes."""

        def eventinit(self) -> None:
            self.model.catchEvent(watched, self)

        def eventexit(self) -> None:
            self.model.dropEvent(watched, self)

        def eventexec(self, event: Any) -> None:
            try:
                if not failure:
                    # The primal bound lags behind while an incumbent is being announced.
                    best = self.model.getBestSol() if self.model.getNSols() > 0 else None
                    objective = None if best is None else float(self.model.getSolObjVal(best))
                    bound = float(self.model.getDualbound())
                    known = bound if abs(bound) < self.model.infinity() else None
                    new = event.getType() == pyscipopt.SCIP_EVENTTYPE.BESTSOLFOUND
                    seconds = time.perf_counter() - since
                    on_progress(SolveProgress(objective, known, seconds, self._incumbent if new else None))
            except BaseException as error:
                # An exception must not cross the solver's own frames; it surfaces once SCIP has stopped.
                failure.append(error)
                self.model.interruptSolve()

        def _incumbent(self) -> Floats:
            best = self.model.getBestSol()
            return np.array([self.model.getSolVal(best, variable) for variable in variables], dtype=np.float64)

    return Watch()


def _result(
    model: Any,
    matrix: MilpMatrix,
    variables: list[Any],
    rows: list[Any],
    is_mip: bool,
    accepted: bool | None,
    effective: Mapping[str, Any],
    handover: float,
    seconds: float,
) -> RawResult:
    words = model.getStatus()
    reason, limit = _REASONS.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
    weak = math.inf if matrix.maximize else -math.inf
    x, bound, duals, reduced = None, weak, None, None
    if reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND):
        bound = float(model.getDualbound())
        bound = bound if abs(bound) < model.infinity() else weak
        if model.getNSols() > 0:
            best = model.getBestSol()
            x = np.array([model.getSolVal(best, variable) for variable in variables], dtype=np.float64)
            reason = Reason.OPTIMAL if reason is Reason.OPTIMAL else Reason.FEASIBLE
    if x is not None and not is_mip and reason is Reason.OPTIMAL:
        # SCIP minimises inside: its prices of a maximisation have the opposite sign.
        sign = -1.0 if matrix.maximize else 1.0
        duals = sign * np.array([model.getDualsolLinear(row) for row in rows], dtype=np.float64)
        duals = _with_singletons(matrix, x, duals)
        reduced = matrix.c - matrix.a.T @ duals
    return RawResult(
        reason=reason,
        limit=limit,
        raw=words,
        x=x,
        bound=bound,
        nodes=int(model.getNTotalNodes()),
        iterations=int(model.getNLPIterations()),
        row_duals=duals,
        reduced_costs=reduced,
        effective=dict(effective),
        handover_seconds=handover,
        solve_seconds=seconds,
        start_accepted=accepted,
        objective=None if x is None else float(model.getPrimalbound()),
    )


def _with_singletons(matrix: MilpMatrix, x: Floats, duals: Floats) -> Floats:
    """Duals with those of rows of one column, which SCIP turns into bounds and prices at 0.

    Such a row earns the reduced cost of its column where the row, not the column's own bound, is what holds it back.
    """
    by_row = matrix.a.tocsr()
    duals = duals.copy()
    sign = -1.0 if matrix.maximize else 1.0
    reduced = matrix.c - matrix.a.T @ duals
    for i in np.flatnonzero(np.diff(by_row.indptr) == 1):
        j, entry = by_row.indices[by_row.indptr[i]], by_row.data[by_row.indptr[i]]
        price = sign * reduced[j]
        near = 1e-6 * max(1.0, abs(x[j]))
        if abs(price) <= 1e-9 or entry == 0:
            continue
        # A positive price of a minimisation pushes the column down.
        own = matrix.lower[j] if price > 0 else matrix.upper[j]
        side = matrix.row_lower[i] if (price > 0) == (entry > 0) else matrix.row_upper[i]
        if abs(x[j] - own) > near and abs(x[j] - side / entry) <= near:
            duals[i] += reduced[j] / entry
            reduced[j] = 0.0
    return duals
