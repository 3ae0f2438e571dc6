"""One solve on its way through a plugin: :class:`Job` keeps its clock, its options in force, and what the listener said."""

from __future__ import annotations

import _thread
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.errors import OptionError
from coralopt.solving.backend import Basis, Listener, RawResult, SolveProgress
from coralopt.solving.matrix import Lazy, LazyRow, MilpMatrix
from coralopt.solving.options import OptionValue, SolveOptions, checked_native
from coralopt.solving.status import Reason
from coralopt.threads import wait_for
from coralopt.types import Floats, Ints

#: Reasons that may come with a solution and a bound.
_USABLE = (Reason.OPTIMAL, Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND)


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
    _time_limit: float | None = field(init=False)

    def __post_init__(self) -> None:
        # Options of a second run have what was left of it.
        self._time_limit = self.options.time_limit

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
    def known_start(self) -> tuple[Ints, Floats]:
        """Positions and values of what the start says: int64 (k,) and float64 (k,)."""
        start = np.zeros(0) if self.start is None else self.start
        positions = np.flatnonzero(~np.isnan(start))
        return positions, start[positions]

    def without_presolve(self, node_limit: int | None) -> None:
        """What is run next is run without presolve, in the time that is left."""
        self.options = replace(self.options, presolve=False, time_limit=self.time_left, node_limit=node_limit)

    @property
    def time_left(self) -> float | None:
        """Seconds that are left for the solver, ``None`` without a limit."""
        return None if self._time_limit is None else max(0.0, self._time_limit - self.solve_seconds)

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
        while True:
            try:
                if begun is None:
                    begun = _thread.start_new_thread(run, ())
                wait_for(ended)
                return interrupted
            except KeyboardInterrupt:
                self.stop()
                if interrupted or begun is None:
                    raise
                interrupted = True

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
