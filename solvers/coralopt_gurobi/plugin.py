"""The Gurobi back end: one fresh environment and model a solve, so that nothing can leak into the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import LicenseLimitError, OptionError, SolverError, SolverNotFoundError
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

#: Size limit of the licence that comes with the package: columns, and rows with a range counted twice.
FREE_LIMIT = 2000
TOO_LARGE, NO_LICENCE = 10010, 10009
#: Gurobi's figures of this size mean that nothing is known.
UNKNOWN = 1e99


class GurobiBackend:
    """Gurobi (proprietary); the licence that comes with the package stops at 2000 columns and 2000 rows."""

    name: ClassVar[str] = "gurobi"
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
        """Whether gurobipy is installed, its version, and whether the licence at hand has the size limit."""
        try:
            found = version("gurobipy")
        except PackageNotFoundError:
            licence = "proprietary; free up to 2000 x 2000"
            return Availability(False, "", licence, "install the extra: pip install 'coralopt[gurobi]'")
        try:
            restricted = _restricted()
        except LicenseLimitError as error:
            return Availability(True, found, "proprietary; no valid licence", str(error))
        if restricted:
            hint = "larger models: solver 'highs' or 'scip', option restrict of an allocation, or a full licence"
            licence = f"proprietary; restricted to {FREE_LIMIT} columns x {FREE_LIMIT} rows"
            return Availability(True, found, licence, hint, size_limit=(FREE_LIMIT, FREE_LIMIT))
        return Availability(True, found, "proprietary; no size limit found")

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
    ) -> RawResult:
        """Solve one matrix. Ctrl-C stops Gurobi, which keeps its incumbent.

        Raises:
            LicenseLimitError: The matrix is larger than the licence at hand allows, or there is no licence.
            OptionError: A native option Gurobi does not know or does not take with this value.
            SolverNotFoundError: gurobipy is not installed.
        """
        try:
            import gurobipy
        except ImportError as error:
            raise SolverNotFoundError(
                "solver 'gurobi' is not installed; install the extra: pip install 'coralopt[gurobi]'"
            ) from error
        rows, columns = _size(matrix)
        if (rows > FREE_LIMIT or columns > FREE_LIMIT) and _restricted():
            raise LicenseLimitError(
                f"solver 'gurobi' is size-limited here ({FREE_LIMIT} columns x {FREE_LIMIT} rows); this model has "
                f"{columns} columns x {rows} rows; use solver 'highs' or 'scip', hand over fewer columns (restrict of an "
                f"allocation: coralopt plan --restrict {FREE_LIMIT - 100}), or install a full licence"
            )
        begun = time.perf_counter()
        environment = _environment(gurobipy, options.log)
        try:
            model = gurobipy.Model(env=environment)
            try:
                effective = _set_options(gurobipy, model, options)
                x, parts = _pass_model(gurobipy, model, matrix)
                is_mip = bool(matrix.integer.any())
                watch = _Watch(gurobipy, on_progress, x, matrix.maximize)
                if start is not None and is_mip:
                    x.Start = np.where(np.isnan(start), gurobipy.GRB.UNDEFINED, start)
                handed = time.perf_counter()
                watch.since = handed
                model.optimize(watch)
                if model.Status == gurobipy.GRB.INF_OR_UNBD:
                    model.Params.DualReductions = 0
                    model.optimize(watch)
                solved = time.perf_counter()
                if watch.failure is not None:
                    raise watch.failure
                accepted = watch.start_taken if start is not None and is_mip else None
                return _result(gurobipy, model, matrix, x, parts, accepted, effective, handed - begun, solved - handed)
            finally:
                model.dispose()
        except gurobipy.GurobiError as error:
            raise _translated(error) from None
        finally:
            environment.dispose()

    def conflict(self, matrix: MilpMatrix, options: SolveOptions) -> list[tuple[str, int, str]]:
        """Gurobi's irreducible infeasible subset.

        Raises:
            LicenseLimitError: The matrix is larger than the licence at hand allows, or there is no licence.
        """
        import gurobipy

        environment = _environment(gurobipy, options.log)
        try:
            with gurobipy.Model(env=environment) as model:
                x, parts = _pass_model(gurobipy, model, matrix)
                if options.time_limit is not None:
                    model.Params.TimeLimit = float(options.time_limit)
                model.computeIIS()
                found = [("column", int(j), "lower") for j in np.flatnonzero(x.IISLB)]
                found += [("column", int(j), "upper") for j in np.flatnonzero(x.IISUB)]
                for which, rows in parts:
                    senses = {"=": ("lower", "upper"), ">": ("lower",), "<": ("upper",)}
                    for i, sense, inside in zip(which, rows.Sense, rows.IISConstr, strict=True):
                        found += [("row", int(i), side) for side in senses[str(sense)] if inside]
                return found
        except gurobipy.GurobiError as error:
            raise _translated(error) from None
        finally:
            environment.dispose()


def _size(matrix: MilpMatrix) -> tuple[int, int]:
    ranges = np.isfinite(matrix.row_lower) & np.isfinite(matrix.row_upper) & (matrix.row_lower != matrix.row_upper)
    return matrix.shape[0] + int(ranges.sum()), matrix.shape[1]


def _environment(gurobipy: Any, log: bool) -> Any:
    environment = gurobipy.Env(empty=True)
    environment.setParam("OutputFlag", 0)
    try:
        environment.start()
    except gurobipy.GurobiError as error:
        environment.dispose()
        raise _translated(error) from None
    if log:
        environment.setParam("OutputFlag", 1)
    return environment


def _translated(error: Any) -> SolverError:
    if error.errno == TOO_LARGE:
        return LicenseLimitError(f"Gurobi's licence does not cover a model of this size: {error}")
    if error.errno == NO_LICENCE:
        return LicenseLimitError(f"Gurobi finds no valid licence: {error}; use solver 'highs' or 'scip'")
    return SolverError(f"Gurobi failed: {error} (code {error.errno})")


def _restricted() -> bool:
    """Whether the licence at hand has the size limit: a model just above it tells."""
    import gurobipy

    environment = _environment(gurobipy, False)
    try:
        with gurobipy.Model(env=environment) as model:
            model.addMVar(FREE_LIMIT + 1, ub=1.0)
            try:
                model.optimize()
            except gurobipy.GurobiError as error:
                if error.errno == TOO_LARGE:
                    return True
                raise _translated(error) from None
            return False
    finally:
        environment.dispose()


def _set_options(gurobipy: Any, model: Any, options: SolveOptions) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "MIPGap": float(options.rel_gap),
        "MIPGapAbs": float(options.abs_gap),
        "Seed": options.seed,
        "Threads": options.threads or 1,
    }
    if options.time_limit is not None:
        wanted["TimeLimit"] = float(options.time_limit)
    if options.node_limit is not None:
        wanted["NodeLimit"] = float(options.node_limit)
    if options.memory_limit is not None:
        # Gurobi counts in GB of 1e9 bytes; the soft limit keeps the incumbent.
        wanted["SoftMemLimit"] = float(options.memory_limit) * 1024**3 / 1e9
    if options.presolve is not None:
        wanted["Presolve"] = -1 if options.presolve else 0
    known = [name for name in dir(gurobipy.GRB.Param) if not name.startswith("_")]
    wanted.update(checked_native("Gurobi", options.native, known, lambda name: model.getParamInfo(name)[2]))
    for name, value in wanted.items():
        try:
            model.setParam(name, value)
        except gurobipy.GurobiError as error:
            raise OptionError(f"Gurobi does not take {value!r} for its option {name!r}: {error}") from None
    return wanted


def _pass_model(gurobipy: Any, model: Any, matrix: MilpMatrix) -> tuple[Any, list[tuple[Any, Any]]]:
    """The model's columns, and (rows of the matrix, Gurobi rows) of every block of rows."""
    kinds = np.where(matrix.integer, gurobipy.GRB.INTEGER, gurobipy.GRB.CONTINUOUS)
    x = model.addMVar(matrix.shape[1], lb=matrix.lower, ub=matrix.upper, obj=matrix.c, vtype=kinds)
    model.ModelSense = gurobipy.GRB.MAXIMIZE if matrix.maximize else gurobipy.GRB.MINIMIZE
    model.ObjCon = float(matrix.offset)
    by_row = matrix.a.tocsr()
    equal = matrix.row_lower == matrix.row_upper
    parts = []
    for sense, chosen, right in (
        ("=", equal, matrix.row_lower),
        (">", ~equal & np.isfinite(matrix.row_lower), matrix.row_lower),
        ("<", ~equal & np.isfinite(matrix.row_upper), matrix.row_upper),
    ):
        which = np.flatnonzero(chosen)
        if len(which):
            parts.append((which, model.addMConstr(by_row[which], x, sense, right[which])))
    return x, parts


class _Watch:
    """Callback: incumbents and bounds while solving, and whether a start was taken."""

    def __init__(
        self, gurobipy: Any, on_progress: Callable[[SolveProgress], None] | None, columns: Any, maximize: bool
    ) -> None:
        self._where = gurobipy.GRB.Callback
        self._on_progress = on_progress
        self._columns = columns
        self._better = max if maximize else min
        self.since = 0.0
        self.start_taken = False
        self.failure: BaseException | None = None

    def __call__(self, model: Any, where: int) -> None:
        if where == self._where.MESSAGE:
            text = model.cbGet(self._where.MSG_STRING)
            self.start_taken |= "Loaded user MIP start" in text or "User MIP start produced solution" in text
        elif self._on_progress is None or self.failure is not None:
            return
        elif where == self._where.MIP:
            self._tell(model, model.cbGet(self._where.MIP_OBJBST), model.cbGet(self._where.MIP_OBJBND), None)
        elif where == self._where.MIPSOL:
            found, best = model.cbGet(self._where.MIPSOL_OBJ), model.cbGet(self._where.MIPSOL_OBJBST)
            best = found if abs(best) >= UNKNOWN else self._better(found, best)

            def incumbent() -> Floats:
                return np.asarray(model.cbGetSolution(self._columns), dtype=np.float64)

            self._tell(model, best, model.cbGet(self._where.MIPSOL_OBJBND), incumbent if found == best else None)

    def _tell(self, model: Any, objective: float, bound: float, solution: Callable[[], Floats] | None) -> None:
        try:
            seconds = time.perf_counter() - self.since
            assert self._on_progress is not None
            self._on_progress(SolveProgress(_finite(objective), _finite(bound), seconds, solution))
        except BaseException as error:
            # An exception must not cross the solver's own frames; it surfaces once Gurobi has stopped.
            self.failure = error
            model.terminate()


def _finite(value: float) -> float | None:
    return float(value) if abs(value) < UNKNOWN else None


def _result(
    gurobipy: Any,
    model: Any,
    matrix: MilpMatrix,
    columns: Any,
    parts: list[tuple[Any, Any]],
    accepted: bool | None,
    effective: dict[str, Any],
    handover: float,
    seconds: float,
) -> RawResult:
    status = gurobipy.GRB.Status
    words = next(name for name in dir(status) if not name.startswith("_") and getattr(status, name) == model.Status)
    reason, limit = {
        status.OPTIMAL: (Reason.OPTIMAL, None),
        status.SUBOPTIMAL: (Reason.NO_SOLUTION_FOUND, None),
        status.INFEASIBLE: (Reason.INFEASIBLE, None),
        status.UNBOUNDED: (Reason.UNBOUNDED, None),
        status.INF_OR_UNBD: (Reason.INFEASIBLE_OR_UNBOUNDED, None),
        status.TIME_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.TIME),
        status.NODE_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.NODE),
        status.ITERATION_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.WORK),
        status.WORK_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.WORK),
        status.SOLUTION_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.SOLUTION),
        status.MEM_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.MEMORY),
        status.INTERRUPTED: (Reason.NO_SOLUTION_FOUND, Limit.INTERRUPTED),
        status.USER_OBJ_LIMIT: (Reason.NO_SOLUTION_FOUND, Limit.OTHER),
        status.NUMERIC: (Reason.NUMERICAL_ERROR, None),
    }.get(model.Status, (Reason.OTHER_ERROR, Limit.OTHER))
    is_mip = bool(model.IsMIP)
    bound = math.inf if matrix.maximize else -math.inf
    x = duals = reduced = objective = None
    if reason in (Reason.OPTIMAL, Reason.NO_SOLUTION_FOUND):
        if is_mip:
            known = _finite(model.ObjBound)
            bound = bound if known is None else known
        elif reason is Reason.OPTIMAL:
            # An optimal basis of an LP proves its own objective.
            bound = float(model.ObjVal)
        if model.SolCount > 0:
            x = np.asarray(columns.X, dtype=np.float64)
            objective = float(model.ObjVal)
            reason = Reason.OPTIMAL if reason is Reason.OPTIMAL else Reason.FEASIBLE
    if x is not None and not is_mip and reason is Reason.OPTIMAL:
        duals = np.zeros(matrix.shape[0])
        for which, rows in parts:
            duals[which] += np.asarray(rows.Pi, dtype=np.float64)
        reduced = matrix.c - matrix.a.T @ duals
    return RawResult(
        reason=reason,
        limit=limit,
        raw=words,
        x=x,
        bound=bound,
        nodes=int(model.NodeCount),
        iterations=int(model.IterCount),
        row_duals=duals,
        reduced_costs=reduced,
        effective=effective,
        handover_seconds=handover,
        solve_seconds=seconds,
        start_accepted=accepted,
        objective=objective,
    )
