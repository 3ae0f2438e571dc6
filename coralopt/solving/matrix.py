"""The one thing a MILP back end sees: a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MilpMatrix:
    """min (or max) c'x + offset subject to row_lower <= A x <= row_upper, lower <= x <= upper, some x integer.

    Attributes:
        c: float64 (n,), objective coefficients.
        offset: Constant of the objective.
        a: scipy.sparse CSC matrix (m, n), float64.
        row_lower: float64 (m,), -inf where there is none.
        row_upper: float64 (m,), +inf where there is none.
        lower: float64 (n,), -inf where there is none.
        upper: float64 (n,), +inf where there is none.
        integer: bool (n,).
        maximize: Sense of the objective.
        column_names: n names, unique.
        row_names: m names, unique.
    """

    c: Floats
    offset: float
    a: Any
    row_lower: Floats
    row_upper: Floats
    lower: Floats
    upper: Floats
    integer: npt.NDArray[np.bool_]
    maximize: bool
    column_names: Sequence[str]
    row_names: Sequence[str]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.row_lower), len(self.c)
