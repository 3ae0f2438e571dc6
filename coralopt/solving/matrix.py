"""The one thing a MILP back end sees: a matrix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, overload

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving.extras import NO_EXTRAS, Extras
from coralopt.types import Bools, Floats

if TYPE_CHECKING:
    from scipy.sparse import csc_array, sparray


class LazyNames(Sequence[str]):
    """Names that are made when somebody asks: a million of them take a second and 90 MiB.

    Args:
        parts: How many names each part has, and the name at a position within it.
    """

    def __init__(self, parts: Sequence[tuple[int, Callable[[int], str]]]) -> None:
        self._ends = list(accumulate(count for count, _ in parts))
        self._parts = list(parts)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        k = position + len(self) if position < 0 else position
        if not 0 <= k < len(self):
            raise IndexError(position)
        part = bisect_right(self._ends, k)
        count, name = self._parts[part]
        return name(k - (self._ends[part] - count))


@dataclass(frozen=True, eq=False)
class MilpMatrix:
    """min (or max) c'x + offset (+ x'Qx / 2) subject to row_lower <= A x <= row_upper, lower <= x <= upper, some x integer.

    Attributes:
        c: float64 (n,), objective coefficients.
        offset: Constant of the objective.
        a: scipy.sparse matrix (m, n), float64; kept as canonical CSC (sorted, duplicates added up).
        row_lower: float64 (m,), -inf where there is none.
        row_upper: float64 (m,), +inf where there is none.
        lower: float64 (n,), -inf where there is none.
        upper: float64 (n,), +inf where there is none.
        integer: bool (n,).
        maximize: Sense of the objective.
        column_names: n names, unique.
        row_names: m names, unique.
        extras: What is no linear row: a quadratic objective, special ordered sets, indicators, semi-continuous columns.

    Raises:
        SolverError: Shapes do not fit, or an entry is not a number that it can be; says which one, where.
    """

    c: Floats
    offset: float
    a: csc_array
    row_lower: Floats
    row_upper: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    maximize: bool
    column_names: Sequence[str]
    row_names: Sequence[str]
    extras: Extras = NO_EXTRAS

    def __post_init__(self) -> None:
        rows, columns = len(self.row_names), len(self.column_names)
        if self.a.shape != (rows, columns):
            raise SolverError(
                f"the matrix has shape {self.a.shape}, but {rows} row and {columns} column names are given"
            )
        for name, size, names in (
            ("c", columns, self.column_names),
            ("lower", columns, self.column_names),
            ("upper", columns, self.column_names),
            ("integer", columns, self.column_names),
            ("row_lower", rows, self.row_names),
            ("row_upper", rows, self.row_names),
        ):
            vector = getattr(self, name)
            if vector.shape != (size,):
                raise SolverError(f"{name} has shape {vector.shape}; it must be ({size},)")
            wrong = ~np.isfinite(vector) if name == "c" else np.isnan(vector)
            if wrong.any():
                first = int(wrong.argmax())
                raise SolverError(f"{name} of {names[first]} is {vector[first]}; it must be a number")
        for low, high, names in (
            ("lower", "upper", self.column_names),
            ("row_lower", "row_upper", self.row_names),
        ):
            for name, never in ((low, np.inf), (high, -np.inf)):
                wrong = getattr(self, name) == never
                if wrong.any():
                    raise SolverError(f"{name} of {names[int(wrong.argmax())]} is {never}; no number lies beyond it")
        if not np.isfinite(self.offset):
            raise SolverError(f"offset is {self.offset}; it must be a number")
        a = self.a.tocsc()
        if not a.has_canonical_format:
            a = a.copy() if a is self.a else a
            a.sum_duplicates()
        if not np.isfinite(a.data).all():
            entry = int((~np.isfinite(a.data)).argmax())
            column = int(np.searchsorted(a.indptr, entry, side="right")) - 1
            row = int(a.indices[entry])
            raise SolverError(
                f"the coefficient of {self.column_names[column]} in {self.row_names[row]} is {a.data[entry]}; "
                "it must be a number"
            )
        object.__setattr__(self, "a", a)
        if self.extras:
            extras = self.extras.examined(self.lower, self.upper, self.column_names, self.row_names)
            object.__setattr__(self, "extras", extras)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.row_lower), len(self.c)

    @property
    def is_mip(self) -> bool:
        """Whether it needs branching: integer columns, sets, indicators or semi-continuous columns."""
        return bool(self.integer.any()) or self.extras.discrete

    def terms(self, x: Floats) -> Floats:
        """float64 (n,): what each column adds to the objective."""
        return self.c * x + self.extras.products(x) if self.extras else self.c * x

    def objective(self, x: Floats) -> float:
        """Objective of a point."""
        return float(self.c @ x) + float(self.extras.products(x).sum()) + self.offset

    def gradient(self, x: Floats) -> Floats:
        """float64 (n,): derivatives of the objective."""
        return self.c if self.extras.quadratic is None else self.c + self.extras.quadratic @ x


@dataclass(frozen=True)
class LazyRow:
    """A row that is made while a problem is solved: its coefficients by the position of the column, and its sides."""

    terms: Mapping[int, float]
    lower: float
    upper: float

    @property
    def sides(self) -> list[tuple[str, float]]:
        """``>`` with the lower side and ``<`` with the upper one, without those that are infinite."""
        return [(sense, side) for sense, side in ((">", self.lower), ("<", self.upper)) if np.isfinite(side)]

    def is_violated(self, x: Floats) -> bool:
        """Whether a point misses it by more than rounding, relative to the size of its terms."""
        parts = [factor * float(x[j]) for j, factor in self.terms.items()]
        slack, activity = LAZY_TOLERANCE * max(1.0, sum(map(abs, parts))), sum(parts)
        return not self.lower - slack <= activity <= self.upper + slack


#: Largest violation of a lazy row, relative to the size of its terms, that passes.
LAZY_TOLERANCE = 1e-6
#: Rows that a point, float64 (n,), must hold beside those of the matrix; none when it holds all.
Lazy = Callable[[Floats], Sequence[LazyRow]]


def with_rows(matrix: MilpMatrix, a: sparray, lower: Floats, upper: Floats, names: Sequence[str] = ()) -> MilpMatrix:
    """The matrix with rows behind its own: their entries, sides and names, ``new7`` for the eighth where none are given."""
    from scipy.sparse import vstack

    first = len(matrix.row_lower)
    return replace(
        matrix,
        a=vstack([matrix.a, a]).tocsc(),
        row_lower=np.concatenate([matrix.row_lower, lower]),
        row_upper=np.concatenate([matrix.row_upper, upper]),
        row_names=[*matrix.row_names, *(names or [f"new{first + k}" for k in range(len(lower))])],
    )


def rows_of_terms(rows: Sequence[Mapping[int, float]], columns: int) -> csc_array:
    """float64 (m, n): rows given by their coefficients by the position of the column."""
    from scipy.sparse import csc_array

    triples = [(i, j, value) for i, terms in enumerate(rows) for j, value in terms.items()]
    i, j, values = (np.array(part) for part in zip(*triples, strict=True)) if triples else (np.zeros(0, int),) * 3
    return csc_array((values, (i, j)), shape=(len(rows), columns), dtype=np.float64)


def with_lazy_rows(matrix: MilpMatrix, rows: Sequence[LazyRow]) -> MilpMatrix:
    """The matrix with these rows behind its own."""
    below = rows_of_terms([row.terms for row in rows], len(matrix.c))
    return with_rows(matrix, below, np.array([row.lower for row in rows]), np.array([row.upper for row in rows]))
