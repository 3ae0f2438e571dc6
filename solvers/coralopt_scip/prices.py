"""Prices of the rows that SCIP takes for bounds."""

from __future__ import annotations

import numpy as np

from coralopt.solving import MilpMatrix
from coralopt.solving.rows import row_terms
from coralopt.types import Floats


def with_singletons(matrix: MilpMatrix, x: Floats, duals: Floats) -> Floats:
    """Duals, in place, with those of rows of one column, which SCIP turns into bounds and prices at 0.

    Such a row earns the reduced cost of its column where the row, not the column's own bound, is what holds it back.
    """
    sign = -1.0 if matrix.maximize else 1.0
    reduced = matrix.c - matrix.a.T @ duals
    singletons = np.flatnonzero(np.diff(matrix.a.tocsr().indptr) == 1)
    for i, ((j,), (entry,)) in zip(singletons, row_terms(matrix, singletons), strict=True):
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
