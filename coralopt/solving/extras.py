"""What a model may hold beside its rows and columns: a quadratic objective, special ordered sets, indicators, gaps at 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csc_array


@dataclass(frozen=True)
class SosSet:
    """Of these columns at most ``kind`` differ from 0, and those stand side by side.

    Attributes:
        name: Unique.
        kind: 1 or 2.
        columns: Positions, in the order of the weights.
        weights: Increasing; only their order says anything.
    """

    name: str
    kind: Literal[1, 2]
    columns: tuple[int, ...]
    weights: tuple[float, ...]

    def spans(self, nonzero: Sequence[int]) -> bool:
        """Whether these places of the set, in order, are too far apart for all to differ from 0."""
        return bool(nonzero) and nonzero[-1] - nonzero[0] >= self.kind


@dataclass(frozen=True)
class Indicator:
    """A row of the matrix that binds only where a binary column has a value, 0 or 1."""

    row: int
    column: int
    value: Literal[0, 1]


@dataclass(frozen=True, eq=False)
class Extras:
    """Parts of a matrix that are no linear rows; false when there are none.

    Attributes:
        quadratic: float64 (n, n) symmetric, Q: the objective has x'Qx / 2 more; ``None`` without.
        sos: Special ordered sets.
        indicators: Rows that do not always bind, each once.
        semicontinuous: Columns that are 0 or within their bounds, in order; their lower bounds are finite.
    """

    quadratic: csc_array | None = None
    sos: tuple[SosSet, ...] = ()
    indicators: tuple[Indicator, ...] = ()
    semicontinuous: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.quadratic is not None or self.discrete

    @property
    def discrete(self) -> bool:
        """Whether they need branching."""
        return bool(self.sos or self.indicators or self.semicontinuous)

    def products(self, x: Floats) -> Floats:
        """float64 (n,): what each column adds to the quadratic part of the objective."""
        return np.zeros(len(x)) if self.quadratic is None else 0.5 * x * (self.quadratic @ x)

    def scaled(self, columns: Floats, objective: float) -> Extras:
        """The same in units of columns and of the objective."""
        if self.quadratic is None:
            return self
        from scipy.sparse import diags_array

        units = diags_array(columns)
        return replace(self, quadratic=(units @ self.quadratic @ units * objective).tocsc())

    def permuted(self, rows: Ints, columns: Ints) -> Extras:
        """The same where row and column k are those that were at ``rows[k]`` and ``columns[k]``."""
        row, column = np.argsort(rows).tolist(), np.argsort(columns).tolist()
        return Extras(
            None if self.quadratic is None else self.quadratic[columns][:, columns].tocsc(),
            tuple(replace(group, columns=tuple(column[j] for j in group.columns)) for group in self.sos),
            tuple(Indicator(row[part.row], column[part.column], part.value) for part in self.indicators),
            tuple(sorted(column[j] for j in self.semicontinuous)),
        )

    def examined(self, lower: Floats, upper: Floats, column_names: Sequence[str], row_names: Sequence[str]) -> Extras:
        """The same, with the quadratic part as canonical CSC.

        Raises:
            SolverError: A part that does not fit the matrix; says which one.
        """
        count = len(lower)
        for j in self.semicontinuous:
            if not 0 <= j < count or not np.isfinite(lower[j]) or lower[j] > upper[j]:
                raise SolverError(
                    f"semi-continuous column {column_names[j] if 0 <= j < count else j} needs a finite lower "
                    "bound that is not above its upper one"
                )
        for group in self.sos:
            if len(set(group.columns)) < len(group.columns) or not all(0 <= j < count for j in group.columns):
                raise SolverError(f"set {group.name} needs different columns of the matrix")
            if len(group.weights) != len(group.columns) or (np.diff(group.weights) <= 0).any():
                raise SolverError(f"set {group.name} needs a weight a column, increasing")
        rows = [indicator.row for indicator in self.indicators]
        if len(set(rows)) < len(rows) or not all(0 <= i < len(row_names) for i in rows):
            raise SolverError("indicators need different rows of the matrix")
        for indicator in self.indicators:
            j = indicator.column
            if not 0 <= j < count or lower[j] < 0 or upper[j] > 1:
                raise SolverError(
                    f"row {row_names[indicator.row]} needs a binary column that says where it holds, "
                    f"not {column_names[j] if 0 <= j < count else j}"
                )
        if self.quadratic is None:
            return self
        q = self.quadratic.tocsc()
        if q.shape != (count, count):
            raise SolverError(f"the quadratic objective has shape {q.shape}; it must be ({count}, {count})")
        if not np.isfinite(q.data).all() or abs(q - q.T).max() > 0:
            raise SolverError("the quadratic objective must be symmetric, of finite numbers")
        q.sum_duplicates()
        q.eliminate_zeros()
        return replace(self, quadratic=q if q.nnz else None)


def is_convex(quadratic: csc_array, maximize: bool) -> bool | None:
    """Whether a minimum (or maximum) of this objective is one everywhere; ``None`` where it is too large to tell.

    Judged by the eigenvalues of each group of columns that products join, rounding apart.
    """
    from scipy.sparse.csgraph import connected_components

    count, groups = connected_components(quadratic, directed=False)
    sizes = np.bincount(groups, minlength=count)
    if sizes.max(initial=0) > MOST_JOINED:
        return None
    single = np.flatnonzero(sizes[groups] == 1)
    sign = -1.0 if maximize else 1.0
    if (sign * quadratic.diagonal()[single] < 0).any():
        return False
    for group in np.flatnonzero(sizes > 1):
        members = np.flatnonzero(groups == group)
        values = np.linalg.eigvalsh(sign * quadratic[members][:, members].toarray())
        if values[0] < -EIGENVALUE_ROUNDING * max(abs(values[0]), abs(values[-1])):
            return False
    return True


#: Most columns that products may join in one group, for its eigenvalues; and their rounding, relative to the largest.
MOST_JOINED, EIGENVALUE_ROUNDING = 3000, 1e-11
NO_EXTRAS = Extras()
