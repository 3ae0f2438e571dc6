"""Small linear programmes in exact fractions, for checks: the simplex method with Bland's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction


def maximise(
    gains: Sequence[Sequence[Fraction]], rows: Sequence[tuple[Mapping[int, Fraction], Fraction]]
) -> tuple[Fraction, ...]:
    """The x >= 0 with ``sum a_j x_j <= limit`` in every row that makes the first gain largest, then the second, and so on.

    Gains are compared as a whole, digit by digit, so that the pivots stay those of one objective over an ordered field.

    Args:
        gains: Coefficients of every objective, the most important one first.
        rows: (column -> coefficient, limit of at least 0), which bound the gains together.

    Raises:
        ArithmeticError: The rows bound no optimum.
    """
    size, count, zero = len(gains[0]), len(rows), Fraction(0)
    table = [
        [row.get(j, zero) for j in range(size)] + [Fraction(int(i == k)) for k in range(count)] + [limit]
        for i, (row, limit) in enumerate(rows)
    ]
    worth = [[*gain, *[zero] * (count + 1)] for gain in gains]
    basis, nothing = list(range(size, size + count)), [zero] * len(gains)
    while True:
        entering = next((j for j in range(size + count) if [line[j] for line in worth] > nothing), None)
        if entering is None:
            break
        steps = [(line[-1] / line[entering], basis[i], i) for i, line in enumerate(table) if line[entering] > 0]
        if not steps:
            raise ArithmeticError("the rows bound no optimum")
        leaving = min(steps)[2]
        basis[leaving], pivot = entering, table[leaving][entering]
        table[leaving] = own = [value / pivot for value in table[leaving]]
        for line in (*table[:leaving], *table[leaving + 1 :], *worth):
            if factor := line[entering]:
                for j, value in enumerate(own):
                    if value:
                        line[j] -= factor * value
    x = [zero] * (size + count)
    for column, line in zip(basis, table, strict=True):
        x[column] = line[-1]
    return tuple(x[:size])
