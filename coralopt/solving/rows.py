"""Rows of a matrix in the forms that solvers' interfaces take: by their terms, one side at a time, or with ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coralopt.solving.backend import Member
from coralopt.solving.matrix import MilpMatrix
from coralopt.types import Floats, Ints


def row_terms(matrix: MilpMatrix, rows: Iterable[int] | None = None) -> Iterator[tuple[list[int], list[float]]]:
    """Columns and coefficients of these rows in turn, of every row where none are named."""
    by_row = matrix.a.tocsr()
    for i in range(matrix.shape[0]) if rows is None else rows:
        span = slice(by_row.indptr[i], by_row.indptr[i + 1])
        yield by_row.indices[span].tolist(), by_row.data[span].tolist()


def by_sense(matrix: MilpMatrix) -> Iterator[tuple[str, Ints, Floats]]:
    """Rows of one side each: equations (``=``), lower sides (``>``), upper sides (``<``).

    Yields:
        The sense, int64 (k,) positions of its rows, and float64 (k,) their right-hand sides. A row with two different
        sides is in both of the last, a free row in none.
    """
    equal = matrix.row_lower == matrix.row_upper
    for sense, chosen, sides in (
        ("=", equal, matrix.row_lower),
        (">", ~equal & np.isfinite(matrix.row_lower), matrix.row_lower),
        ("<", ~equal & np.isfinite(matrix.row_upper), matrix.row_upper),
    ):
        yield sense, np.flatnonzero(chosen), sides[chosen]


def with_infinity(matrix: MilpMatrix, infinity: float) -> MilpMatrix:
    """The matrix where what is infinite, or larger than this, is the solver's own ``infinity``."""
    return replace(
        matrix,
        lower=np.maximum(matrix.lower, -infinity),
        upper=np.minimum(matrix.upper, infinity),
        row_lower=np.maximum(matrix.row_lower, -infinity),
        row_upper=np.minimum(matrix.row_upper, infinity),
    )


def kinds_of_rows(matrix: MilpMatrix, infinity: float) -> npt.NDArray[np.str_]:
    """(m,): ``E`` equation, ``R`` range, ``L`` upper side, ``G`` lower side, ``N`` free, where ``infinity`` is no side."""
    low, high = matrix.row_lower, matrix.row_upper
    below, above = low > -infinity, high < infinity
    return np.where(low == high, "E", np.where(below & above, "R", np.where(above, "L", np.where(below, "G", "N"))))


def members(kind: str, positions: npt.ArrayLike, lower: npt.ArrayLike, upper: npt.ArrayLike) -> list[Member]:
    """The part of a conflict that is in rows or columns.

    Args:
        kind: ``"row"`` or ``"column"``.
        positions: int (k,).
        lower, upper: bool (k,), whether this side of each is in the conflict.
    """
    sides = (("lower", lower), ("upper", upper))
    return [(kind, int(k), side) for side, held in sides for k in np.asarray(positions)[np.asarray(held, dtype=bool)]]
