"""What a solver plugin is: the small protocols that back ends implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from coralopt.solving.matrix import Lazy, MilpMatrix
from coralopt.solving.options import OptionValue, SolveOptions
from coralopt.solving.status import Limit, Reason
from coralopt.types import Floats

if TYPE_CHECKING:
    from typing_extensions import TypeIs

P_contra = TypeVar("P_contra", contravariant=True)
A = TypeVar("A")


class Capability(Enum):
    """Something a back end can do; declared as data, asked before use."""

    LP = "lp"
    MILP = "milp"
    #: Without ``MILP``: takes matrices whose columns are all integer, with finite bounds.
    BOXED = "boxed"
    #: Convex quadratic objectives of continuous columns; ``MIQP``: any, beside integer columns as well.
    QP = "qp"
    MIQP = "miqp"
    #: Special ordered sets, rows that a binary column switches, columns that are 0 or from a lower bound >= 0 on; what
    #: a back end does not declare reaches it as rows and binary columns.
    SOS = "sos"
    INDICATOR = "indicator"
    SEMICONTINUOUS = "semicontinuous"
    PLACEMENT = "placement"
    PLACEMENT_FAMILY = "placement_family"
    MIP_START = "mip_start"
    LP_DUALS = "lp_duals"
    #: Starts a linear programme from a :class:`Basis`, and gives the one that it ends with.
    LP_BASIS = "lp_basis"
    #: Takes rows that are made while it solves; without it the core solves again with them.
    LAZY = "lazy"
    #: Gives several solutions.
    POOL = "pool"
    PROGRESS = "progress"
    SEED = "seed"
    INTERRUPT = "interrupt"
    NODE_LIMIT = "node_limit"
    #: Solves of several threads of a process run at the same time.
    CONCURRENT = "concurrent"
    #: Stops at ``memory_limit`` by itself; the others need ``isolate``.
    MEMORY_LIMIT = "memory_limit"
    #: Has ``conflict(matrix, options)``, a native irreducible infeasible subset.
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Availability:
    """Whether a back end can be used here.

    Attributes:
        installed: Whether its package is there.
        version: Version of the solver, empty when not installed.
        licence: In words, with its limits.
        hint: What to install or do when it cannot be used.
        size_limit: (rows, columns) that the licence at hand allows, ``None`` for any size. A row with two different
            sides may count twice.
    """

    installed: bool
    version: str
    licence: str
    hint: str = ""
    size_limit: tuple[int, int] | None = None


@dataclass(frozen=True)
class SolveProgress:
    """An event of a running solve.

    Attributes:
        objective: Best objective so far, ``None`` without an incumbent.
        bound: Proven bound so far, ``None`` when nothing is known.
        seconds: Since the start of the solve.
        solution: Gives float64 (n,), the incumbent itself; only on events of a new incumbent, only during the call.
    """

    objective: float | None
    bound: float | None
    seconds: float
    solution: Callable[[], Floats] | None = None


#: Told about the events of a running solve. It must not solve anything.
Listener = Callable[[SolveProgress], None]


@dataclass(frozen=True, eq=False)
class Basis:
    """Where the simplex method stands: of every column and row whether it is basic, or at which of its bounds.

    Attributes:
        columns, rows: int8 (n,) and (m,): ``LOWER``, ``BASIC``, ``UPPER``, or ``FREE`` (at 0, without bounds).
    """

    LOWER: ClassVar[int] = 0
    BASIC: ClassVar[int] = 1
    UPPER: ClassVar[int] = 2
    FREE: ClassVar[int] = 3
    columns: npt.NDArray[np.int8]
    rows: npt.NDArray[np.int8]

    def with_columns(self, lower: Floats, upper: Floats) -> Basis:
        """The basis of the same with more columns of these bounds, each at one of them, or free at 0."""
        at = np.where(np.isfinite(lower), Basis.LOWER, np.where(np.isfinite(upper), Basis.UPPER, Basis.FREE))
        return Basis(np.concatenate([self.columns, at.astype(np.int8)]), self.rows)

    def with_rows(self, count: int) -> Basis:
        """The basis of the same with ``count`` rows more."""
        return Basis(self.columns, np.concatenate([self.rows, np.full(count, self.BASIC, dtype=np.int8)]))


@dataclass(frozen=True, eq=False)
class RawResult:
    """What a back end says; the core recomputes and checks before anything of it reaches a user.

    Attributes:
        reason: The back end's claim.
        limit: The limit hit, if any.
        raw: The solver's own words.
        x: float64 (n,), best solution, or ``None``.
        bound: Proven bound; -inf (+inf when maximising) when nothing is known.
        nodes: Branch-and-bound nodes.
        iterations: Simplex iterations.
        row_duals: float64 (m,), d objective / d right-hand side, for an LP; else ``None``.
        reduced_costs: float64 (n,), c - A'y, for an LP; else ``None``.
        effective: Native option name -> value in force.
        handover_seconds: Seconds to hand the matrix over.
        solve_seconds: Seconds inside the solver.
        start_accepted: Whether a start was taken as a solution; ``None`` when none was given or it is unknown.
        objective: The solver's own objective of ``x``, ``None`` when it names none; the core recomputes it.
        basis: Of an LP with an optimum, where the back end declares ``LP_BASIS``.
        pool: Further solutions, where the back end declares ``POOL`` and the options ask for them.
    """

    reason: Reason
    limit: Limit | None
    raw: str
    x: Floats | None
    bound: float
    nodes: int = 0
    iterations: int = 0
    row_duals: Floats | None = None
    reduced_costs: Floats | None = None
    effective: Mapping[str, OptionValue] = field(default_factory=dict)
    handover_seconds: float = 0.0
    solve_seconds: float = 0.0
    start_accepted: bool | None = None
    objective: float | None = None
    basis: Basis | None = None
    pool: Sequence[Floats] = ()


class Plugin(Protocol):
    """What every back end says about itself."""

    @property
    def name(self) -> str:
        """The word it is asked for by."""
        ...

    @property
    def kind(self) -> str:
        """``"matrix"``, or the kind of problems that it takes whole."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do."""
        ...

    def probe(self) -> Availability:
        """Installed, version, licence; never called at import."""
        ...


class MatrixBackend(Plugin, Protocol):
    """A back end that solves matrices: HiGHS, SCIP, Gurobi, ..."""

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Listener | None = None,
    ) -> RawResult:
        """Solve; never raises for a limit.

        Args:
            matrix: Canonical CSC (sorted, no duplicates), no NaN.
            options: To be followed from scratch: nothing may stay behind for the next solve.
            start: float64 (n,), NaN where unknown; only given when the back end declares ``MIP_START``.
            on_progress: Called while solving when the back end declares ``PROGRESS``.

        Raises:
            OptionError: An unknown or wrong native option.
            LicenseLimitError: The licence does not cover the matrix.
        """
        ...


class SteeredBackend(Protocol):
    """What ``solve`` of a back end takes beside, when it declares ``LP_BASIS`` or ``LAZY``."""

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | Basis | None = None,
        on_progress: Listener | None = None,
        lazy: Lazy | None = None,
    ) -> RawResult:
        """Like any other, from a basis, and with ``lazy`` asked about every solution before it counts."""
        ...


#: ("row" or "column", position, "lower" or "upper"): one side of a row, or one bound of a column.
Member = tuple[str, int, str]


@runtime_checkable
class ConflictBackend(Protocol):
    """A back end with a native search for an irreducible infeasible subset (capability ``conflict``)."""

    def conflict(self, matrix: MilpMatrix, options: SolveOptions, /) -> list[Member]:
        """Sides and bounds that cannot hold together; a guess, which the core proves. Empty when there is none."""
        ...


@runtime_checkable
class PickyBackend(Protocol):
    """A back end that cannot always solve in the process of whoever asks."""

    def needs_process(self, matrix: MilpMatrix, options: SolveOptions, /) -> bool:
        """Whether this solve needs a process of its own."""
        ...


@runtime_checkable
class ReadingBackend(Protocol):
    """A back end whose solver reads model files itself: a second opinion on what a file says."""

    def read_file(self, path: Path, /) -> MilpMatrix:
        """The file as the solver reads it.

        Raises:
            SolverError: It refuses the file.
        """
        ...


@dataclass(frozen=True, eq=False)
class RawAnswer(Generic[A]):
    """What a solver that takes whole problems says.

    Attributes:
        reason: The solver's claim.
        answer: In the problem's terms, or ``None``.
        bound: Proven bound on the objective; infinite in the weak direction when nothing is known.
        raw: The solver's own words.
        solve_seconds: Seconds inside the solver.
        iterations: Whatever the solver counts.
        limit: The limit hit, if any.
    """

    reason: Reason
    answer: A | None
    bound: float
    raw: str
    solve_seconds: float = 0.0
    iterations: int = 0
    limit: Limit | None = None


class ProblemBackend(Plugin, Protocol[P_contra, A]):
    """A solver that takes whole problems of one kind itself rather than a matrix."""

    def solve_problem(self, problem: P_contra, options: SolveOptions, /) -> RawAnswer[A]:
        """Solve one problem exactly."""
        ...


# Which class of problem a back end takes is known by its kind, when it runs.
Backend = MatrixBackend | ProblemBackend[Any, Any]


def is_matrix_backend(backend: Plugin) -> TypeIs[MatrixBackend]:
    """Whether a back end takes matrices rather than whole problems."""
    return backend.kind == "matrix"
