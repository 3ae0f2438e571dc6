"""Answers that miss a row or a bound by a solver's tolerances, made to hold before anyone is called wrong.

Solvers let rows be missed by 1e-6 or so. First the integer columns are fixed where they are, what rows then say of single
columns becomes their bounds, and the others are solved for again; then the sides that were missed are moved inwards, and the
whole is solved again. What comes out is checked like any answer, and its objective is held against the first solve's bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from coralopt.solving.backend import RawResult
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.status import Reason
from coralopt.solving.verdict import ROW_TOLERANCE, WITHOUT_SOLUTION, examine
from coralopt.types import Floats

#: Violations above this, relative like :data:`ROW_TOLERANCE`, are no matter of tolerances: the solver is wrong.
REPAIRABLE = 1e-3
#: How far sides are moved inwards, relative to the size of their terms.
MARGIN = 4 * ROW_TOLERANCE


def repaired(matrix: MilpMatrix, raw: RawResult, ask: Callable[[MilpMatrix], RawResult]) -> RawResult:
    """The result with an answer that holds, where the solver's own misses something by little; else as it is.

    Args:
        matrix: What was asked for.
        raw: What the solver says.
        ask: The same solver, for another matrix.
    """
    if raw.x is None or raw.reason in WITHOUT_SOLUTION or raw.x.shape != matrix.c.shape:
        return raw
    if not examine(matrix, raw.x)[1] or examine(matrix, raw.x, REPAIRABLE)[1]:
        return raw
    for changed in _changed(matrix, raw.x):
        second = ask(changed)
        raw = replace(raw, solve_seconds=raw.solve_seconds + second.solve_seconds)
        if second.x is not None and second.reason not in WITHOUT_SOLUTION and not examine(matrix, second.x)[1]:
            words = f"{raw.raw}; its answer missed a side by its tolerances and was repaired"
            return replace(raw, reason=Reason.FEASIBLE, raw=words, x=second.x, objective=None)
    return raw


def _changed(matrix: MilpMatrix, x: Floats) -> Iterator[MilpMatrix]:
    """The model with its integer columns fixed, then with the sides moved inwards that ``x`` comes close to."""
    if matrix.integer.any() and not matrix.integer.all() and not matrix.extras:
        whole = np.clip(np.rint(x), matrix.lower, matrix.upper)
        yield bounded_by_rows(
            replace(
                matrix,
                lower=np.where(matrix.integer, whole, matrix.lower),
                upper=np.where(matrix.integer, whole, matrix.upper),
                integer=np.zeros_like(matrix.integer),
            )
        )
    yield tightened(matrix, x)


def bounded_by_rows(matrix: MilpMatrix) -> MilpMatrix:
    """What rows say of their only column that is not fixed, as its bounds: solvers keep to these more closely."""
    lower, upper = matrix.lower.copy(), matrix.upper.copy()
    columns = np.repeat(np.arange(len(lower)), np.diff(matrix.a.indptr))
    rows, values = matrix.a.indices, matrix.a.data
    left = np.ones(len(matrix.row_lower), dtype=np.bool_)
    while True:
        free = (lower < upper)[columns] & (values != 0)
        single = left & (np.bincount(rows[free], minlength=len(left)) == 1)
        here = free & single[rows]
        if not here.any():
            return replace(matrix, lower=lower, upper=upper)
        rest = matrix.a @ np.where(lower < upper, 0.0, lower)
        row, column, value = rows[here], columns[here], values[here]
        sides = np.sort([(side[row] - rest[row]) / value for side in (matrix.row_lower, matrix.row_upper)], axis=0)
        least, most = (np.clip(side, lower[column], upper[column]) for side in sides)
        np.maximum.at(lower, column, least)
        np.minimum.at(upper, column, most)
        # Rounding may leave nothing between two rows.
        np.maximum(upper, lower, out=upper)
        left &= ~single


def tightened(matrix: MilpMatrix, x: Floats) -> MilpMatrix:
    """The model with the sides of rows moved inwards by :data:`MARGIN` that ``x`` misses or nearly does; equations stay."""
    activity, size = matrix.a @ x, np.maximum(1.0, abs(matrix.a) @ np.abs(x))
    margin = np.where(matrix.row_lower < matrix.row_upper, MARGIN * size, 0.0)
    return replace(
        matrix,
        row_lower=np.where(activity < matrix.row_lower + margin, matrix.row_lower + margin, matrix.row_lower),
        row_upper=np.where(activity > matrix.row_upper - margin, matrix.row_upper - margin, matrix.row_upper),
    )
