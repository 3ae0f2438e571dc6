"""The Gurobi back end: one fresh environment and model a solve, so that nothing can leak into the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from coralopt.errors import LicenseLimitError, SolverError
from coralopt.solving import Availability, Basis, Capability, Limit, MilpMatrix, RawResult, Reason, SolveOptions
from coralopt.solving.extras import is_convex
from coralopt.solving.plugin import MATRIX_CAPABILITIES, Job, MatrixPlugin, Status, lazy, named_options, stopped
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from gurobipy import Model

gurobipy = lazy("gurobipy")
#: A block of columns or rows, of whose attributes gurobipy's hints know nothing.
Block: TypeAlias = Any
#: Size limit of the licence that comes with the package: columns, and rows with a range counted twice.
FREE_LIMIT = 2000
TOO_LARGE, NO_LICENCE = 10010, 10009
_OPTIONS = {"rel_gap": "MIPGap", "abs_gap": "MIPGapAbs", "seed": "Seed", "threads": "Threads"}
_OPTIONS |= {"time_limit": "TimeLimit", "node_limit": "NodeLimit"}
_STATUSES: dict[str, Status] = {
    "OPTIMAL": (Reason.OPTIMAL, None),
    "SUBOPTIMAL": stopped(None),
    "INFEASIBLE": (Reason.INFEASIBLE, None),
    "UNBOUNDED": (Reason.UNBOUNDED, None),
    "INF_OR_UNBD": (Reason.INFEASIBLE_OR_UNBOUNDED, None),
    "TIME_LIMIT": stopped(Limit.TIME),
    "NODE_LIMIT": stopped(Limit.NODE),
    **dict.fromkeys(("ITERATION_LIMIT", "WORK_LIMIT"), stopped(Limit.WORK)),
    "SOLUTION_LIMIT": stopped(Limit.SOLUTION),
    "MEM_LIMIT": stopped(Limit.MEMORY),
    "INTERRUPTED": stopped(Limit.INTERRUPTED),
    "USER_OBJ_LIMIT": stopped(Limit.OTHER),
    "NUMERIC": (Reason.NUMERICAL_ERROR, None),
}


class GurobiBackend(MatrixPlugin):
    """Gurobi (proprietary); its free licence stops at 2000 columns x 2000 rows. Ctrl-C keeps its incumbent."""

    name: ClassVar[str] = "gurobi"
    package: ClassVar[str] = "gurobipy"
    licence: ClassVar[str] = f"proprietary; free up to {FREE_LIMIT} x {FREE_LIMIT}"
    hint: ClassVar[str] = "install the extra: pip install 'coralopt[gurobi]'"
    capabilities: ClassVar[frozenset[Capability]] = MATRIX_CAPABILITIES
    unknown: ClassVar[float] = 1e99

    def probe(self) -> Availability:
        """Whether gurobipy is installed, its version, and whether the licence at hand has the size limit."""
        plain = super().probe()
        try:
            if not plain.installed or not _restricted():
                return replace(plain, licence="proprietary; no size limit found") if plain.installed else plain
        except LicenseLimitError as error:
            return replace(plain, licence="proprietary; no valid licence", hint=str(error))
        return replace(
            plain,
            licence=f"proprietary; restricted to {FREE_LIMIT} columns x {FREE_LIMIT} rows",
            hint="larger models: solver 'highs' or 'scip', option restrict of an allocation, or a full licence",
            size_limit=(FREE_LIMIT, FREE_LIMIT),
        )

    def run(self, job: Job) -> RawResult:
        """One fresh model in an environment of its own, solved once."""
        _refuse_large(job.matrix)
        options = job.options
        with _model(job.options.log) as model:
            _set_options(model, job)
            columns, parts = _pass_model(model, job.matrix)
            job.stop = model.terminate
            taken: list[bool] = []
            watch = partial(_watch, job, columns, taken)
            if job.start is not None:
                columns.Start = np.where(np.isnan(job.start), gurobipy.GRB.UNDEFINED, job.start)
            if job.basis is not None:
                model.update()
                _pass_basis(columns, parts, job.basis)
            with job.solving():
                model.optimize(watch)
                if model.Status == gurobipy.GRB.INF_OR_UNBD:
                    model.Params.DualReductions = 0
                    model.optimize(watch)
            codes = gurobipy.GRB.Status
            words = next(name for name in dir(codes) if name[0] != "_" and getattr(codes, name) == model.Status)
            reason, limit = _STATUSES.get(words, (Reason.OTHER_ERROR, Limit.OTHER))
            known = reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND)
            usable = known and model.SolCount > 0
            duals = basis = None
            quadratic = job.matrix.extras.quadratic
            plain = not job.is_mip and (quadratic is None or is_convex(quadratic, job.matrix.maximize))
            if usable and reason is Reason.OPTIMAL and plain:
                duals = np.zeros(job.matrix.shape[0])
                for which, rows in parts:
                    duals[which] += np.asarray(rows.Pi, dtype=np.float64)
                basis = _basis(columns, parts, len(duals)) if quadratic is None else None
            return RawResult(
                reason,
                limit,
                words,
                np.asarray(columns.X, dtype=np.float64) if usable else None,
                float(model.ObjBound) if known and not plain else np.nan,
                nodes=int(model.NodeCount),
                iterations=int(model.IterCount),
                row_duals=duals,
                start_accepted=bool(taken),
                objective=float(model.ObjVal) if usable else None,
                basis=basis,
                pool=_pool(model, columns) if usable and options.solutions > 1 else (),
            )

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[tuple[str, int, str]]:
        """Gurobi's irreducible infeasible subset."""
        with _model(options.log) as model:
            x, parts = _pass_model(model, matrix)
            _set_options(model, Job(matrix, SolveOptions(time_limit=options.time_limit)))
            model.computeIIS()
            members = [("column", int(j), "lower") for j in np.flatnonzero(x.IISLB)]
            members += [("column", int(j), "upper") for j in np.flatnonzero(x.IISUB)]
            senses = {"=": ("lower", "upper"), ">": ("lower",), "<": ("upper",)}
            for which, rows in parts:
                for i, sense, inside in zip(which, rows.Sense, rows.IISConstr, strict=True):
                    members += [("row", int(i), side) for side in senses[str(sense)] if inside]
            return members


def _refuse_large(matrix: MilpMatrix) -> None:
    ranges = np.isfinite(matrix.row_lower) & np.isfinite(matrix.row_upper) & (matrix.row_lower != matrix.row_upper)
    rows, columns = matrix.shape[0] + int(ranges.sum()), matrix.shape[1]
    if max(rows, columns) > FREE_LIMIT and _restricted():
        raise LicenseLimitError(
            f"solver 'gurobi' is size-limited here ({FREE_LIMIT} columns x {FREE_LIMIT} rows); this model has "
            f"{columns} columns x {rows} rows; use solver 'highs' or 'scip', hand over fewer columns (restrict of an "
            f"allocation: coralopt plan --restrict {FREE_LIMIT - 100}), or install a full licence"
        )


@contextmanager
def _model(log: bool) -> Iterator[Model]:
    """A fresh model in an environment of its own; Gurobi's errors become ours."""
    environment = gurobipy.Env(empty=True)
    try:
        environment.setParam("OutputFlag", 0)
        environment.start()
        environment.setParam("OutputFlag", int(log))
        with gurobipy.Model(env=environment) as model:
            yield model
    except gurobipy.GurobiError as error:
        if error.errno == TOO_LARGE:
            raise LicenseLimitError(f"Gurobi's licence does not cover a model of this size: {error}") from None
        if error.errno == NO_LICENCE:
            raise LicenseLimitError(f"Gurobi finds no valid licence: {error}; use solver 'highs' or 'scip'") from None
        raise SolverError(f"Gurobi failed: {error} (code {error.errno})") from None
    finally:
        environment.dispose()


def _restricted() -> bool:
    """Whether the licence at hand has the size limit: a model just above it tells."""
    with _model(log=False) as model:
        model.addMVar(FREE_LIMIT + 1, ub=1.0)
        try:
            model.optimize()
        except gurobipy.GurobiError as error:
            if error.errno != TOO_LARGE:
                raise
            return True
        return False


def _set_options(model: Model, job: Job) -> None:
    options = job.options
    common = named_options(options, _OPTIONS)
    if options.memory_limit is not None:
        # Gurobi counts in GB of 1e9 bytes; the soft limit keeps the incumbent.
        common["SoftMemLimit"] = float(options.memory_limit) * 1024**3 / 1e9
    if job.lazy is not None:
        common["LazyConstraints"] = 1
    if options.solutions > 1:
        # The best ones, not those that happen to be met.
        common |= {"PoolSolutions": options.solutions, "PoolSearchMode": 2}
    if options.presolve is not None:
        common["Presolve"] = -1 if options.presolve else 0
    known = [name for name in dir(gurobipy.GRB.Param) if name[0] != "_"]
    job.set_options("Gurobi", common, lambda: known, lambda name: model.getParamInfo(name)[2], model.setParam)


def _pass_model(model: Model, matrix: MilpMatrix) -> tuple[Block, list[tuple[Ints, Block]]]:
    """The model's columns, and (rows of the matrix, Gurobi rows) of every block of rows."""
    extras, codes = matrix.extras, gurobipy.GRB
    kinds = np.where(matrix.integer, codes.INTEGER, codes.CONTINUOUS)
    kinds[[part.column for part in extras.indicators]] = codes.BINARY
    semi = list(extras.semicontinuous)
    kinds[semi] = np.where(matrix.integer[semi], codes.SEMIINT, codes.SEMICONT)
    x = model.addMVar(matrix.shape[1], lb=matrix.lower, ub=matrix.upper, obj=matrix.c, vtype=kinds)
    model.ModelSense = sense = gurobipy.GRB.MAXIMIZE if matrix.maximize else gurobipy.GRB.MINIMIZE
    model.ObjCon = float(matrix.offset)
    if extras.quadratic is not None:
        model.setMObjective(0.5 * extras.quadratic, matrix.c, float(matrix.offset), sense=sense)
    for group in extras.sos:
        model.addSOS(group.kind, [x[j].item() for j in group.columns], list(group.weights))
    by_row = matrix.a.tocsr()
    equal = matrix.row_lower == matrix.row_upper
    always = np.ones(len(equal), dtype=np.bool_)
    always[[part.row for part in extras.indicators]] = False
    parts = []
    for sense, chosen, right in (
        ("=", equal, matrix.row_lower),
        (">", ~equal & np.isfinite(matrix.row_lower), matrix.row_lower),
        ("<", ~equal & np.isfinite(matrix.row_upper), matrix.row_upper),
    ):
        for part in extras.indicators:
            if chosen[part.row]:
                span = slice(by_row.indptr[part.row], by_row.indptr[part.row + 1])
                columns = [x[j].item() for j in by_row.indices[span]]
                terms = gurobipy.LinExpr(by_row.data[span].tolist(), columns)
                switch = x[part.column].item()
                model.addGenConstrIndicator(switch, bool(part.value), terms, sense, float(right[part.row]))
        which = np.flatnonzero(chosen & always)
        if len(which):
            parts.append((which, model.addMConstr(by_row[which], x, sense, right[which])))
    return x, parts


def _missing(job: Job, columns: Block, model: Model) -> list[tuple[Block, str, float]]:
    """(terms, sense, side) of the lazy rows that a new solution violates."""
    found = []
    for row in job.missing(np.asarray(model.cbGetSolution(columns), dtype=np.float64)):
        terms = gurobipy.LinExpr(list(row.terms.values()), [columns[j].item() for j in row.terms])
        found += [(terms, sense, side) for sense, side in ((">", row.lower), ("<", row.upper)) if abs(side) < np.inf]
    return found


def _pool(model: Model, columns: Block) -> tuple[Floats, ...]:
    """Every solution that Gurobi holds."""
    points = []
    for k in range(model.SolCount):
        model.Params.SolutionNumber = k
        points.append(np.asarray(columns.Xn, dtype=np.float64))
    return tuple(points)


def _pass_basis(columns: Block, parts: list[tuple[Ints, Block]], basis: Basis) -> None:
    codes = np.empty(4, dtype=np.int32)
    codes[[Basis.BASIC, Basis.LOWER, Basis.UPPER, Basis.FREE]] = 0, -1, -2, -3
    columns.VBasis = codes[basis.columns]
    for which, rows in parts:
        # A row with two sides is two rows here, of which the one that does not hold it back is basic.
        sides = {"<": (Basis.UPPER,), ">": (Basis.LOWER,)}.get(str(rows.Sense[0]), (Basis.LOWER, Basis.UPPER))
        rows.CBasis = np.where(np.isin(basis.rows[which], sides), -1, 0)


def _basis(columns: Block, parts: list[tuple[Ints, Block]], count: int) -> Basis | None:
    try:
        numbers = np.array([Basis.BASIC, Basis.FREE, Basis.UPPER, Basis.LOWER], dtype=np.int8)
        status = numbers[np.asarray(columns.VBasis)]
        rows_status = np.full(count, Basis.BASIC, dtype=np.int8)
        for which, rows in parts:
            side = Basis.UPPER if str(rows.Sense[0]) == "<" else Basis.LOWER
            rows_status[which[np.asarray(rows.CBasis) < 0]] = side
    except (AttributeError, gurobipy.GurobiError):
        # The barrier method without crossover has none.
        return None
    return Basis(status, rows_status)


def _watch(job: Job, columns: Block, taken: list[bool], model: Model, where: int) -> None:
    """Callback: incumbents and bounds while solving; ``taken`` gets an entry when a start is taken."""
    codes, get = gurobipy.GRB.Callback, model.cbGet
    if where == codes.MESSAGE:
        text = get(codes.MSG_STRING)
        if "Loaded user MIP start" in text or "User MIP start produced solution" in text:
            taken.append(True)
    elif where == codes.MIP:
        job.tell(get(codes.MIP_OBJBST), get(codes.MIP_OBJBND))
    elif where == codes.MIPSOL and job.lazy is not None and (rows := _missing(job, columns, model)):
        for terms, sense, side in rows:
            model.cbLazy(terms, sense, side)
    elif where == codes.MIPSOL:
        new, best, bound = get(codes.MIPSOL_OBJ), get(codes.MIPSOL_OBJBST), get(codes.MIPSOL_OBJBND)
        if job.known(best) is None or (new >= best if job.matrix.maximize else new <= best):
            job.tell(new, bound, lambda: np.asarray(model.cbGetSolution(columns), dtype=np.float64))
        else:
            job.tell(best, bound)
