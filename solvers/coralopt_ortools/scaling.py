"""Matrices in whole numbers, exactly: rows are multiplied until every coefficient is whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from coralopt.errors import UnsupportedError
from coralopt.solving import MilpMatrix
from coralopt.solving.rows import row_terms
from coralopt.types import Ints

#: Largest sum of coefficient times value that 64-bit integers are trusted with.
MOST = 2**61
#: A bound so close to a whole number is one.
ROUNDING = 1e-9
#: A row: its columns, their weights, the least and the greatest sum.
WholeRow = tuple[list[int], list[int], int, int]


def _fractions(values: Iterable[float]) -> list[Fraction]:
    """Numbers as they are written: 0.1 is a tenth."""
    return [Fraction(repr(float(value))) for value in values]


def whole_bounds(matrix: MilpMatrix) -> tuple[Ints, Ints]:
    """int64 (n,), twice: least and greatest values.

    Raises:
        UnsupportedError: A bound needs more than 64 bits.
    """
    large = np.maximum(np.abs(matrix.lower), np.abs(matrix.upper)) > MOST
    if large.any():
        name = matrix.column_names[int(large.argmax())]
        raise UnsupportedError(
            f"solver 'cp-sat' computes with 64-bit integers; narrow the bounds of {name}, or use 'highs'"
        )
    low, high = np.ceil(matrix.lower - ROUNDING), np.floor(matrix.upper + ROUNDING)
    return low.astype(np.int64), high.astype(np.int64)


def whole_rows(matrix: MilpMatrix, largest: Sequence[int]) -> Iterator[WholeRow]:
    """The rows that have coefficients; ``largest`` is the largest absolute value of each column.

    Raises:
        UnsupportedError: A row in whole numbers needs more than 64 bits.
    """
    for i, (columns, factors) in enumerate(row_terms(matrix)):
        values = _fractions(factors)
        if not any(values):
            continue
        scale = Fraction(math.lcm(*(value.denominator for value in values)))
        scale /= math.gcd(*(int(value * scale) for value in values))
        weights = [int(value * scale) for value in values]
        most = sum(abs(weight) * largest[j] for weight, j in zip(weights, columns, strict=True))
        if most > MOST:
            raise UnsupportedError(
                f"solver 'cp-sat' computes with 64-bit integers; row {matrix.row_names[i]} scaled to whole numbers "
                f"reaches {float(most):.3g}: narrow the bounds of its columns, round its coefficients, or use 'highs'"
            )
        low, high = float(matrix.row_lower[i]), float(matrix.row_upper[i])
        least = -most - 1 if low == -math.inf else max(math.ceil(Fraction(repr(low)) * scale), -most - 1)
        greatest = most + 1 if high == math.inf else min(math.floor(Fraction(repr(high)) * scale), most + 1)
        yield columns, weights, least, greatest


def whole_objective(matrix: MilpMatrix, largest: Sequence[int]) -> tuple[list[int], Fraction, float]:
    """Whole weights, what 1 counts in them, and by how much their rounding may move the bound: 0 where none is needed."""
    exact = _fractions(matrix.c)
    scale = Fraction(math.lcm(*(value.denominator for value in exact)))
    most = sum(abs(value) * size for value, size in zip(exact, largest, strict=True)) + abs(Fraction(matrix.offset))
    if most * scale > MOST:
        scale = Fraction(2) ** math.floor(math.log2(MOST / most))
    weights = [round(value * scale) for value in exact]
    error = sum(abs(w / scale - v) * size for w, v, size in zip(weights, exact, largest, strict=True))
    return weights, scale, float(error)
