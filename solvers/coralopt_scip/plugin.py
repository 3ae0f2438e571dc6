"""The SCIP back end: one fresh model a solve, so that nothing can leak into the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Capability, Limit, MilpMatrix, RawResult, Reason, SolveOptions
from coralopt.solving.matrix import LazyRow
from coralopt.solving.plugin import MATRIX_CAPABILITIES, Job, MatrixPlugin, Status, lazy, named_options, stopped
from coralopt.solving.verdict import examine
from coralopt.types import Floats

if TYPE_CHECKING:
    from pyscipopt import Constraint, Model, Variable

pyscipopt = lazy("pyscipopt")
#: What SCIP hands to its callbacks, of which its hints say nothing.
Untyped: TypeAlias = Any
_OPTIONS = {"rel_gap": "limits/gap", "abs_gap": "limits/absgap", "seed": "randomization/randomseedshift"}
_OPTIONS |= {"time_limit": "limits/time", "node_limit": "limits/totalnodes"}
_STATUSES: dict[str, Status] = {
    **dict.fromkeys(("optimal", "gaplimit"), (Reason.OPTIMAL, None)),
    "infeasible": (Reason.INFEASIBLE, None),
    "unbounded": (Reason.UNBOUNDED, None),
    "inforunbd": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    "timelimit": stopped(Limit.TIME),
    **dict.fromkeys(("nodelimit", "totalnodelimit", "stallnodelimit"), stopped(Limit.NODE)),
    "memlimit": stopped(Limit.MEMORY),
    **dict.fromkeys(("sollimit", "bestsollimit"), stopped(Limit.SOLUTION)),
    "restartlimit": stopped(Limit.OTHER),
    "userinterrupt": stopped(Limit.INTERRUPTED),
}


class ScipBackend(MatrixPlugin):
    """SCIP (Apache-2.0), no size limit; branch and bound on one thread. Ctrl-C stops SCIP, which keeps its incumbent."""

    name: ClassVar[str] = "scip"
    package: ClassVar[str] = "pyscipopt"
    licence: ClassVar[str] = "Apache-2.0, no size limit"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[scip]'"
    capabilities: ClassVar[frozenset[Capability]] = MATRIX_CAPABILITIES - {
        Capability.SEMICONTINUOUS,
        Capability.LP_BASIS,
    }
    unknown: ClassVar[float] = 1e20

    def release(self) -> str:
        """SCIP's own version, not that of its package."""
        return _release()

    def run(self, job: Job) -> RawResult:
        """One fresh model, solved once; twice where presolve went wrong."""
        result = _run(job)
        if result.x is None or job.options.presolve is False or not examine(job.matrix, result.x)[1]:
            return result
        # SCIP's presolve sometimes ends with a solution of the presolved model that is none of the original one.
        job.options = replace(job.options, presolve=False, time_limit=job.time_left)
        again = _run(job)
        return replace(again, raw=f"{again.raw}, without presolve (its solution with presolve violated the model)")

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[tuple[str, int, str]]:
        """SCIP's irreducible infeasible subset: its rows, and the column bounds that it left in place."""
        plain = SolveOptions(time_limit=options.time_limit, memory_limit=options.memory_limit, log=options.log)
        model = _model(Job(matrix, plain), duals=False)
        _pass_model(model, matrix)
        part = model.generateIIS().getSubscip()
        infinity = part.infinity()
        sides = [("column", v.name, v.getLbOriginal(), v.getUbOriginal()) for v in part.getVars()]
        sides += [("row", row.name, part.getLhs(row), part.getRhs(row)) for row in part.getConss()]
        # Names are a letter and the position.
        members = [(kind, int(name[1:]), "lower") for kind, name, low, _ in sides if low > -infinity]
        return members + [(kind, int(name[1:]), "upper") for kind, name, _, high in sides if high < infinity]


@cache
def _release() -> str:
    model = pyscipopt.Model()
    return f"{model.getMajorVersion()}.{model.getMinorVersion()}.{model.getTechVersion()}"


def _run(job: Job) -> RawResult:
    """One fresh model, solved once."""
    linear = not job.is_mip and not job.matrix.extras
    model = _model(job, duals=linear)
    variables, rows = _pass_model(model, job.matrix)
    accepted = None if job.start is None else _pass_start(model, variables, job.start)
    if job.listener is not None:
        _listen(model, variables, job)
    if job.lazy is not None:
        _watch_lazy(model, variables, job)
    with job.solving():
        # The call that leaves Python's lock alone lets SCIP itself take Ctrl-C and keep its incumbent.
        try:
            model.optimizeNogil()
        except Exception as error:
            # Its Python package has no type of its own for what SCIP calls an error.
            if not str(error).startswith("SCIP: "):
                raise
            raise SolverError(f"SCIP failed: {str(error).removeprefix('SCIP: ')}") from error
    words = model.getStatus()
    reason, limit = _STATUSES.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
    usable = reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND)
    x = _incumbent(model, variables) if usable and model.getNSols() > 0 else None
    duals = None
    if x is not None and linear and reason is Reason.OPTIMAL:
        # SCIP minimises inside: its prices of a maximisation have the opposite sign.
        sign = -1.0 if job.matrix.maximize else 1.0
        duals = _with_singletons(job.matrix, x, sign * np.array([model.getDualsolLinear(row) for row in rows]))
    return RawResult(
        reason,
        limit,
        words,
        x,
        float(model.getDualbound()) if usable else math.nan,
        nodes=int(model.getNTotalNodes()),
        iterations=int(model.getNLPIterations()),
        row_duals=duals,
        start_accepted=accepted,
        # A quadratic objective is a column beside a row, which holds within tolerances.
        pool=_pool(model, variables) if x is not None and job.options.solutions > 1 else (),
        objective=None if x is None or job.matrix.extras.quadratic is not None else float(model.getPrimalbound()),
    )


def _pool(model: Model, variables: list[Variable]) -> tuple[Floats, ...]:
    """Every solution that SCIP met and kept."""
    return tuple(np.array([model.getSolVal(point, v) for v in variables]) for point in model.getSols())


def _watch_lazy(model: Model, variables: list[Variable], job: Job) -> None:
    """A constraint of SCIP's kind that asks for the lazy rows of every solution; it may hold any column back."""
    results = pyscipopt.SCIP_RESULT

    class Watch(pyscipopt.Conshdlr):  # type: ignore[name-defined,misc]
        def rows(self, solution: Untyped = None) -> Sequence[LazyRow]:
            job.stop = self.model.interruptSolve
            return job.missing(np.array([self.model.getSolVal(solution, v) for v in variables]))

        def conscheck(self, constraints: Untyped, solution: Untyped, *_: Untyped) -> dict[str, Any]:
            return {"result": results.INFEASIBLE if self.rows(solution) else results.FEASIBLE}

        def consenfolp(self, *_: Untyped) -> dict[str, Any]:
            rows = self.rows()
            for row in rows:
                terms = pyscipopt.quicksum(value * variables[j] for j, value in row.terms.items())
                for side in [terms >= row.lower] * (row.lower > -math.inf) + [terms <= row.upper] * (
                    row.upper < math.inf
                ):
                    self.model.addCons(side)
            return {"result": results.CONSADDED if rows else results.FEASIBLE}

        consenfops = consenfolp

        def conslock(self, constraint: Untyped, locktype: Untyped, positive: int, negative: int) -> None:
            for variable in variables:
                own, locks = self.model.getTransformedVar(variable), positive + negative
                self.model.addVarLocksType(own, locktype, locks, locks)

    model.includeConshdlr(Watch(), "coralopt_lazy", "lazy rows", enfopriority=-1, chckpriority=-1, needscons=False)


def _incumbent(model: Model, variables: list[Variable]) -> Floats:
    best = model.getBestSol()
    return np.array([model.getSolVal(best, variable) for variable in variables], dtype=np.float64)


def _model(job: Job, duals: bool) -> Model:
    """A model with its options set; ``duals`` keeps the rows as they are, so that they can be priced."""
    model: Model = pyscipopt.Model()
    if not job.options.log:
        model.hideOutput()
    # SCIP 10.0 loses integrality when it aggregates columns into sums of others (case presolve_keeps_the_problem of
    # the compliance suite): it then calls fractional solutions optimal.
    common = {**named_options(job.options, _OPTIONS), "presolving/donotmultaggr": True}
    if job.matrix.extras.quadratic is not None:
        # The row that holds the objective's value is missed by this much.
        common["numerics/feastol"] = 1e-9
    if job.options.memory_limit is not None:
        # SCIP counts in MB.
        common["limits/memory"] = float(job.options.memory_limit) * 1024
    off = pyscipopt.SCIP_PARAMSETTING.OFF
    if job.options.presolve is False or duals:
        # Duals of a linear programme are those of the original rows only when nothing was presolved away.
        model.setPresolve(off)
    if duals:
        model.setHeuristics(off)
        model.disablePropagation()
    job.set_options("SCIP", common, model.getParams, model.getParam, model.setParam)
    job.effective["threads"] = 1
    return model


def _pass_model(model: Model, matrix: MilpMatrix) -> tuple[list[Variable], list[Constraint]]:
    infinity, new_row, empty = model.infinity(), pyscipopt.scip.ExprCons, pyscipopt.scip.Expr
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
    model.addObjoffset(float(matrix.offset))
    by_row = matrix.a.tocsr()
    rows = []
    switched = _pass_extras(model, matrix, variables)
    for i, (low, high) in enumerate(zip(matrix.row_lower, matrix.row_upper, strict=True)):
        if i in switched:
            continue
        sides = new_row(empty({}), lhs=max(float(low), -infinity), rhs=min(float(high), infinity))
        row = model.addCons(sides, name=f"r{i}")
        # Adding coefficients one by one is linear in the row's length; summing expressions is quadratic.
        for k in range(by_row.indptr[i], by_row.indptr[i + 1]):
            model.addCoefLinear(row, variables[by_row.indices[k]], float(by_row.data[k]))
        rows.append(row)
    return variables, rows


def _pass_extras(model: Model, matrix: MilpMatrix, variables: list[Variable]) -> set[int]:
    """What is no linear row; the rows that indicators switch."""
    extras, by_row = matrix.extras, matrix.a.tocsr()
    for group in extras.sos:
        add = model.addConsSOS1 if group.kind == 1 else model.addConsSOS2
        add([variables[j] for j in group.columns], list(group.weights), name=group.name)
    for part in extras.indicators:
        span = slice(by_row.indptr[part.row], by_row.indptr[part.row + 1])
        entries = list(zip(by_row.indices[span], by_row.data[span].tolist(), strict=True))
        for sign, side in ((-1.0, -matrix.row_lower[part.row]), (1.0, matrix.row_upper[part.row])):
            if side < math.inf:
                row = pyscipopt.quicksum(sign * value * variables[j] for j, value in entries) <= float(side)
                model.addConsIndicator(row, variables[part.column], activeone=part.value == 1)
    if extras.quadratic is not None:
        value = model.addVar(name="quadratic", lb=None, ub=None, obj=1.0)
        q = extras.quadratic.tocoo()
        products = zip(q.row, q.col, q.data.tolist(), strict=True)
        whole = pyscipopt.quicksum(0.5 * factor * variables[i] * variables[j] for i, j, factor in products)
        model.addCons(whole >= value if matrix.maximize else whole <= value)
    return {part.row for part in extras.indicators}


def _pass_start(model: Model, variables: list[Variable], start: Floats) -> bool | None:
    """Hand over a start, complete or with NaN where unknown; whether SCIP finds it feasible, ``None`` for a partial."""
    partial = bool(np.isnan(start).any())
    solution = model.createPartialSol() if partial else model.createSol()
    for variable, value in zip(variables, start, strict=True):
        if not math.isnan(value):
            model.setSolVal(solution, variable, float(value))
    feasible = None if partial else bool(model.checkSol(solution, printreason=False, original=True))
    model.addSol(solution)
    return feasible


def _listen(model: Model, variables: list[Variable], job: Job) -> None:
    """Tell about incumbents and solved nodes."""
    kinds = pyscipopt.SCIP_EVENTTYPE
    watched = kinds.BESTSOLFOUND | kinds.NODESOLVED

    class Watch(pyscipopt.Eventhdlr):  # type: ignore[name-defined,misc]
        def eventinit(self) -> None:
            self.model.catchEvent(watched, self)

        def eventexit(self) -> None:
            self.model.dropEvent(watched, self)

        def eventexec(self, event: Untyped) -> None:
            own = self.model
            job.stop = own.interruptSolve
            # The primal bound lags behind while an incumbent is being announced.
            objective = own.getSolObjVal(own.getBestSol()) if own.getNSols() > 0 else math.inf
            new = event.getType() == kinds.BESTSOLFOUND
            job.tell(objective, own.getDualbound(), (lambda: _incumbent(own, variables)) if new else None)

    model.includeEventhdlr(Watch(), "coralopt", "incumbents and bounds")


def _with_singletons(matrix: MilpMatrix, x: Floats, duals: Floats) -> Floats:
    """Duals, in place, with those of rows of one column, which SCIP turns into bounds and prices at 0.

    Such a row earns the reduced cost of its column where the row, not the column's own bound, is what holds it back.
    """
    by_row = matrix.a.tocsr()
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
