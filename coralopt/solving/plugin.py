"""What matrix plugins do alike: :class:`MatrixPlugin`, their base, and :class:`Job`, one solve on its way through one.

A plugin says what its solver is called, and in ``run`` hands the matrix over, solves and reads back. The base asks the
package metadata, guards the import, keeps the clock, relays progress, and turns what the solver says into a
:class:`RawResult` of one meaning.
"""

from __future__ import annotations

import _thread
import importlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from coralopt.errors import LicenseLimitError, OptionError, SolverNotFoundError
from coralopt.solving.backend import Availability, Basis, Capability, Listener, RawResult, SolveProgress
from coralopt.solving.matrix import Lazy, LazyRow, MilpMatrix
from coralopt.solving.options import OptionValue, SolveOptions, checked_native
from coralopt.solving.status import Limit, Reason
from coralopt.types import Floats

#: How a solver's own status reads: reason and limit. The base turns NO_SOLUTION_FOUND with a solution into FEASIBLE.
Status = tuple[Reason, Limit | None]
#: All that a matrix back end can declare; take away what yours cannot do.
MATRIX_CAPABILITIES = frozenset(Capability) - {Capability.PLACEMENT, Capability.PLACEMENT_FAMILY, Capability.BOXED}
#: Reasons that may come with a solution and a bound.
_USABLE = (Reason.OPTIMAL, Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND)


class _Lazy(ModuleType):
    # Solvers' packages have no types, or wrong ones.
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def lazy(package: str) -> ModuleType:
    """A package that is imported when something of it is used: ``coralopt solvers`` imports every plugin, no solver."""
    return _Lazy(package)


def stopped(limit: Limit | None) -> Status:
    """The status of a solve that a limit ended."""
    return Reason.NO_SOLUTION_FOUND, limit


def named_options(options: SolveOptions, names: Mapping[str, str]) -> dict[str, OptionValue]:
    """The common options that a solver has, under its own names; those that limit nothing stay out.

    Args:
        options: Common options.
        names: Name of a common option -> the solver's name for it.
    """
    values: dict[str, OptionValue | None] = {
        "log": options.log,
        "rel_gap": float(options.rel_gap),
        "abs_gap": float(options.abs_gap),
        "seed": options.seed,
        "threads": options.threads or 1,
        "time_limit": None if options.time_limit in (None, math.inf) else float(options.time_limit or 0.0),
        "node_limit": options.node_limit,
        "presolve": options.presolve,
    }
    return {own: value for name, own in names.items() if (value := values[name]) is not None}


@dataclass(eq=False)
class Job:
    """One solve on its way through a plugin.

    Attributes:
        matrix: What is to be solved.
        options: How; to be followed from scratch.
        start: float64 (n,), NaN where unknown; only for a matrix with integer columns.
        basis: Where to start a linear programme.
        lazy: Rows that a solution must hold beside those of the matrix; plugins call :meth:`missing`.
        listener: Told about events; plugins call :meth:`tell`.
        unknown: Figures of at least this size say that nothing is known.
        effective: Options in force, in the solver's own names; for the plugin to fill.
        stop: Ends the solver early; for the plugin to set. Called from inside the solver when the listener raises.
        failure: What the listener raised.
    """

    matrix: MilpMatrix
    options: SolveOptions
    start: Floats | None = None
    listener: Listener | None = None
    basis: Basis | None = None
    lazy: Lazy | None = None
    unknown: float = math.inf
    effective: dict[str, OptionValue] = field(default_factory=dict)
    stop: Callable[[], object] = lambda: None
    failure: BaseException | None = None
    handover_seconds: float = 0.0
    solve_seconds: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    @property
    def is_mip(self) -> bool:
        """Whether it needs branching."""
        return self.matrix.is_mip

    def set_options(
        self,
        solver: str,
        common: Mapping[str, OptionValue],
        known: Callable[[], Iterable[str]],
        current: Callable[[str], object],
        put: Callable[[str, OptionValue], object],
    ) -> None:
        """Give the solver the common options under its names and, stronger, the native ones; keep them as effective.

        Args:
            solver: Its name in messages.
            common: Options by the solver's names.
            known: Names of all its options; asked only when there are native ones.
            current: The value that an option has now, which tells its type.
            put: Sets one option; raises, whatever it raises, when the solver does not take the value.

        Raises:
            OptionError: A native option that the solver does not know, or a value that it does not take.
        """
        native = self.options.native
        self.effective = {**common, **(checked_native(solver, native, known(), current) if native else {})}
        for name, value in self.effective.items():
            try:
                put(name, value)
            except Exception as error:
                cause = f": {error}" if str(error) else ""
                raise OptionError(f"{solver} does not take {value!r} for its option {name!r}{cause}") from error

    @property
    def time_left(self) -> float | None:
        """Seconds that are left for the solver, ``None`` without a limit."""
        limit = self.options.time_limit
        return None if limit is None else max(0.0, limit - self.solve_seconds)

    @contextmanager
    def solving(self) -> Iterator[None]:
        """Around the solver's own call: the time before it is handover; what the listener raised surfaces behind it."""
        begun = time.perf_counter()
        self.handover_seconds, self._since = self.handover_seconds + begun - self._since, begun
        try:
            yield
        finally:
            self.solve_seconds, self._since = self.solve_seconds + time.perf_counter() - begun, time.perf_counter()
        if self.failure is not None:
            raise self.failure

    def in_thread(self, work: Callable[[], object]) -> bool:
        """Run ``work`` in a thread of its own, so that Ctrl-C reaches Python while the solver runs; whether it did.

        The first Ctrl-C calls :attr:`stop` and waits for the solver, whose incumbent survives; a second one gives up.
        """
        ended = threading.Event()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failure = error
            finally:
                ended.set()

        begun, interrupted = None, False
        # Neither Thread.start nor Thread.join: Ctrl-C that lands inside them loses track of the running thread.
        while begun is None or not ended.is_set():
            try:
                if begun is None:
                    begun = _thread.start_new_thread(run, ())
                ended.wait(0.2)
            except KeyboardInterrupt:
                self.stop()
                if interrupted or begun is None:
                    raise
                interrupted = True
        return interrupted

    def known(self, value: float) -> float | None:
        """A figure of the solver, ``None`` where it stands for nothing."""
        return float(value) if abs(value) < self.unknown else None

    def tell(self, objective: float, bound: float, solution: Callable[[], Floats] | None = None) -> None:
        """Tell the listener of an event; an exception of its own must not cross the solver's frames."""
        if self.listener is None or self.failure is not None:
            return
        try:
            seconds = time.perf_counter() - self._since
            self.listener(SolveProgress(self.known(objective), self.known(bound), seconds, solution))
        except BaseException as error:
            self.failure = error
            self.stop()

    def missing(self, x: Floats) -> Sequence[LazyRow]:
        """Lazy rows that a solution violates; what is raised there surfaces behind the solve."""
        try:
            return () if self.lazy is None or self.failure is not None else self.lazy(x)
        except BaseException as error:
            self.failure = error
            self.stop()
            return ()

    def without_columns(self) -> RawResult:
        """The result of a model without columns, which many solvers refuse: feasible iff every row admits 0."""
        matrix = self.matrix
        if bool((matrix.row_lower <= 0).all() and (matrix.row_upper >= 0).all()):
            return RawResult(Reason.OPTIMAL, None, "no columns", np.zeros(0), matrix.offset)
        return RawResult(Reason.INFEASIBLE, None, "no columns", None, math.nan)

    def finished(self, result: RawResult) -> RawResult:
        """What the plugin read off, with the rules that hold for every solver."""
        matrix, reason, x, bound = self.matrix, result.reason, result.x, result.bound
        if x is not None and reason in (*_USABLE, Reason.NUMERICAL_ERROR):
            # After an error there may still be a solution; the core checks it like any other.
            reason = Reason.OPTIMAL if reason is Reason.OPTIMAL else Reason.FEASIBLE
        else:
            x = None
        if self.is_mip and reason is Reason.UNBOUNDED:
            # A ray of the relaxation alone does not show that any whole-number solution exists.
            reason = Reason.INFEASIBLE_OR_UNBOUNDED
        proven = reason is Reason.OPTIMAL and x is not None and not self.is_mip
        if proven and result.objective is not None:
            # An optimal basis of an LP proves its own objective.
            bound = result.objective
        if reason not in _USABLE or math.isnan(bound) or not abs(bound) < self.unknown:
            bound = math.inf if matrix.maximize else -math.inf
        duals = result.row_duals if proven else None
        return replace(
            result,
            reason=reason,
            x=x,
            bound=bound,
            objective=None if x is None else result.objective,
            row_duals=duals,
            reduced_costs=None if duals is None or x is None else matrix.gradient(x) - matrix.a.T @ duals,
            effective=self.effective,
            handover_seconds=self.handover_seconds,
            solve_seconds=self.solve_seconds,
            start_accepted=None if self.start is None else result.start_accepted,
        )


class MatrixPlugin(ABC):
    """Base of a matrix back end: give the class attributes and :meth:`run`.

    Attributes:
        name: The word it is asked for by.
        capabilities: What it can do.
        package: Its solver's package, as it is installed.
        module: What is imported, where that has another name.
        licence: In words, with its limits.
        hint: What to do where the package is missing.
        unknown: Figures of the solver of at least this size say that nothing is known.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "matrix"
    capabilities: ClassVar[frozenset[Capability]]
    package: ClassVar[str]
    module: ClassVar[str] = ""
    licence: ClassVar[str]
    hint: ClassVar[str]
    unknown: ClassVar[float] = math.inf

    def probe(self) -> Availability:
        """Whether the solver is installed, and which version."""
        try:
            version(self.package)
        except PackageNotFoundError:
            return Availability(False, "", self.licence, self.hint)
        return Availability(True, self.release(), self.licence)

    def release(self) -> str:
        """Version of the solver itself; that of its package where both are one."""
        return version(self.package)

    def needs_process(self, matrix: MilpMatrix, options: SolveOptions) -> bool:
        """Whether a solve must not share this process: packages may bring libraries of one name that exclude another."""
        return self._failed_import() is not None and self.probe().installed

    def _failed_import(self) -> ImportError | None:
        try:
            importlib.import_module(self.module or self.package)
        except ImportError as error:
            return error
        return None

    @abstractmethod
    def run(self, job: Job) -> RawResult:
        """Hand the matrix over, solve inside ``job.solving()``, and read back.

        Returns:
            Reason and limit, ``x`` and ``bound`` as the solver has them (NaN: unknown), ``row_duals`` of an LP.
        """

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | Basis | None = None,
        on_progress: Listener | None = None,
        lazy: Lazy | None = None,
    ) -> RawResult:
        """Solve one matrix; see :class:`coralopt.solving.MatrixBackend`.

        Raises:
            OptionError: A native option that the solver does not know or does not take with this value.
            LicenseLimitError: The licence at hand does not cover the matrix.
            SolverNotFoundError: The solver's package is not installed, or does not load in this process.
        """
        if (error := self._failed_import()) is not None:
            words = f"is not installed; {self.hint}"
            if self.probe().installed:
                words = f"does not load in this process, solve with isolate=True: {error}"
            raise SolverNotFoundError(f"solver {self.name!r} {words}") from error
        basis = start if isinstance(start, Basis) else None
        begin = start if matrix.is_mip and not isinstance(start, Basis) else None
        job = Job(matrix, options, begin, on_progress, None if matrix.is_mip else basis, lazy, self.unknown)
        if (matrix.lower > matrix.upper).any() or (matrix.row_lower > matrix.row_upper).any():
            # Some solvers take a row with crossed sides for a range the other way round.
            return job.finished(RawResult(Reason.INFEASIBLE, None, "crossed bounds", None, math.nan))
        if not matrix.shape[1]:
            return job.finished(job.without_columns())
        result = job.finished(self.run(job))
        if result.reason is Reason.INFEASIBLE_OR_UNBOUNDED and (matrix.c.any() or matrix.extras.quadratic is not None):
            return self._decided(job, result)
        return result

    def _decided(self, job: Job, result: RawResult) -> RawResult:
        """Presolve often stops at "infeasible or unbounded": the same rows without an objective tell which."""
        rest = replace(job.matrix.extras, quadratic=None)
        plain = replace(job.matrix, c=np.zeros_like(job.matrix.c), offset=0.0, extras=rest)
        second = self.solve(plain, replace(job.options, time_limit=job.time_left))
        result = replace(result, solve_seconds=result.solve_seconds + second.solve_seconds)
        if second.x is not None:
            return replace(result, reason=Reason.UNBOUNDED, raw=f"{result.raw}; feasible without the objective")
        if second.reason is Reason.INFEASIBLE:
            return replace(result, reason=Reason.INFEASIBLE, raw=f"{result.raw}; infeasible without the objective")
        return replace(result, limit=second.limit)


class SizeLimited(MatrixPlugin):
    """Base of a back end whose free licence stops at a size: ``run`` raises :meth:`too_large` when its solver refuses.

    Attributes:
        free_limit: (rows, columns) of the free licence.
    """

    free_limit: ClassVar[tuple[int, int]]
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.LP, Capability.MILP, Capability.LP_DUALS, Capability.MIP_START, Capability.NODE_LIMIT}
    )

    def probe(self) -> Availability:
        """Installed or not, and whether the licence at hand is the free one: a model just above its size tells."""
        plain = super().probe()
        if not plain.installed or self._failed_import() is not None:
            return plain
        if not _is_restricted(type(self)):
            return replace(plain, licence="proprietary; no size limit found")
        way_out = "larger models: solver 'highs' or 'scip', or a full licence"
        return replace(plain, hint=way_out, size_limit=self.free_limit)

    def too_large(self, matrix: MilpMatrix) -> LicenseLimitError:
        """The error for a model that the licence does not cover."""
        (most_rows, most_columns), (rows, columns) = self.free_limit, matrix.shape
        return LicenseLimitError(
            f"solver {self.name!r} is size-limited here ({most_columns} columns x {most_rows} rows); this model has "
            f"{columns} columns x {rows} rows; use solver 'highs' or 'scip', or install a full licence"
        )


@cache
def _is_restricted(plugin: type[SizeLimited]) -> bool:
    from scipy.sparse import csc_array

    columns = plugin.free_limit[1] + 1
    zeros, ones, none = np.zeros(columns), np.ones(columns), np.zeros(0)
    a, names = csc_array((0, columns)), [f"x{j}" for j in range(columns)]
    large = MilpMatrix(zeros, 0.0, a, none, none, zeros, ones, zeros > 0, False, names, [])
    try:
        plugin().run(Job(large, SolveOptions()))
    except LicenseLimitError:
        return True
    return False
