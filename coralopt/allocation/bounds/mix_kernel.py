"""Convex combinations of coverings by the simplex method, compiled; imported only when they run.

Linear programmes of this kind are small, nothing is proven by them, and thousands of them are solved from several threads:
a dense tableau that lets other threads run is worth more than a back end with all it can do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coralopt.compiling import compiled
from coralopt.types import Floats, Ints

#: Reduced costs, entries and missing amounts so small count as 0.
TINY = 1e-9
#: Pivots per row and column after which the first column that improves is taken, so that the programme ends, and at most.
PATIENCE, MOST = 3, 30


class Mix(NamedTuple):
    """An optimal basis.

    Attributes:
        table: float64 (1 + n + P, 1 + K + n): the rows, reduced costs first; before the columns the right-hand side, with
            the negative value in its first place. The last n columns are what is left of each row.
        basis: int64 (1 + n + P,), the covering that is basic in each row; -1 for none.
        over: float64 (n,), what one more than is there costs in each row.
    """

    table: Floats
    basis: Ints
    over: Floats

    @property
    def value(self) -> float:
        """The least cost."""
        return -float(self.table[0, 0])

    @property
    def prices(self) -> Floats:
        """float64 (n,), the dual prices of the rows."""
        return np.clip(self.table[0, len(self.table[0]) - len(self.over) :], 0.0, self.over)


@compiled(nogil=True)
def cheapest_mix(cost: Floats, phase: Ints, use: Floats, room: Floats, over: Floats) -> Mix:
    """The cheapest convex combination of coverings of every phase that fits, or exceeds what is there at a price::

        min  sum_k c_k z_k + sum_i e_i s_i    s.t.   sum_k U_ki z_k - s_i <= A_i for every row i,
                                                     sum_{k of m} z_k = 1 for every phase m,   z, s >= 0

    The covering of each phase that costs least with what it alone exceeds makes the first basis.

    Args:
        cost: float64 (K,), c.
        phase: int64 (K,), 0 to P - 1, each at least once; -1 for columns that belong to none.
        use: float64 (K, n), U.
        room: float64 (n,), A.
        over: float64 (n,), e, at least 0.
    """
    known, rows = use.shape
    phases = phase.max() + 1
    first, least = np.full(phases, -1, dtype=np.int64), np.full(phases, np.inf)
    for k in range(known):
        whole = cost[k]
        for i in range(rows):
            whole += over[i] * max(0.0, use[k, i] - max(room[i], 0.0))
        if phase[k] >= 0 and whole < least[phase[k]]:
            first[phase[k]], least[phase[k]] = k, whole
    table, basis = np.zeros((1 + rows + phases, 1 + known + rows)), np.full(1 + rows + phases, -1, dtype=np.int64)
    for m in range(phases):
        table[1 + rows + m, 0], basis[1 + rows + m] = 1.0, first[m]
        table[0, 0] -= cost[first[m]]
    for i in range(rows):
        left = room[i]
        for m in range(phases):
            left -= use[first[m], i]
        sign = 1.0 if left >= 0 else -1.0
        table[1 + i, 0], table[1 + i, 1 + known + i] = sign * left, sign
        for k in range(known):
            table[1 + i, 1 + k] = sign * (use[k, i] - (use[first[phase[k]], i] if phase[k] >= 0 else 0.0))
    for k in range(known):
        table[0, 1 + k] = cost[k]
        if phase[k] >= 0:
            table[0, 1 + k] -= cost[first[phase[k]]]
            table[1 + rows + phase[k], 1 + k] = 1.0
    for i in range(rows):
        if table[1 + i, 1 + known + i] < 0:
            table[0] -= over[i] * table[1 + i]
    _improve(table, basis, known, over)
    return Mix(table, basis, over)


@compiled(nogil=True)
def value_within(mix: Mix, use: Floats, room: float, over: float) -> float:
    """The least cost with one more row, by the dual simplex method.

    Args:
        mix: The optimal basis without it.
        use: float64 (K,), what coverings use of it.
        room: How much there is.
        over: What one more costs.
    """
    old, known = mix.table, len(use)
    rows = len(mix.over)
    table, basis = np.zeros((old.shape[0] + 1, old.shape[1] + 1)), np.append(mix.basis, -1)
    table[:-1, :-1] = old
    overs = np.append(mix.over, over)
    last = table[-1]
    last[0], last[1 : 1 + known], last[-1] = room, use, 1.0
    for r in range(1, len(basis) - 1):
        if basis[r] >= 0 and use[basis[r]] != 0.0:
            last -= use[basis[r]] * table[r]
    for _ in range(MOST * (known + rows)):
        out, least = -1, -TINY
        for r in range(1, len(table)):
            if table[r, 0] < least:
                out, least = r, table[r, 0]
        if out < 0:
            break
        # Exceeding a row is what is left of it with the other sign.
        column, sign, reduced, ratio = -1, 1.0, 0.0, np.inf
        for k in range(1, table.shape[1]):
            entry, price = table[out, k], max(table[0, k], 0.0)
            if entry < -TINY and price < -entry * ratio:
                column, sign, reduced, ratio = k, 1.0, table[0, k], price / -entry
            elif k > known and entry > TINY:
                price = max(overs[k - 1 - known] - table[0, k], 0.0)
                if price < entry * ratio:
                    column, sign, reduced, ratio = k, -1.0, overs[k - 1 - known] - table[0, k], price / entry
        if column < 0:
            return np.inf
        _pivot(table, basis, known, out, column, sign, reduced)
    return float(-table[0, 0])


@njit(cache=True, nogil=True)
def _improve(table: Floats, basis: Ints, known: int, over: Floats) -> None:
    """Pivots until no reduced cost is negative."""
    patience = PATIENCE * (table.shape[0] + table.shape[1])
    smallest = -TINY * (1.0 + over.max()) if len(over) else -TINY
    for pivot in range(MOST // PATIENCE * patience):
        column, least, sign = -1, smallest, 1.0
        for k in range(1, table.shape[1]):
            if table[0, k] < least:
                column, least, sign = k, table[0, k], 1.0
            elif k > known and over[k - 1 - known] - table[0, k] < least:
                column, least, sign = k, over[k - 1 - known] - table[0, k], -1.0
            if column >= 0 and pivot > patience:
                break
        if column < 0:
            return
        out, ratio = -1, np.inf
        for r in range(1, len(table)):
            entry = sign * table[r, column]
            if entry > TINY and table[r, 0] < entry * ratio:
                out, ratio = r, max(table[r, 0], 0.0) / entry
        if out < 0:
            return
        _pivot(table, basis, known, out, column, sign, least)


@njit(cache=True, nogil=True)
def _pivot(table: Floats, basis: Ints, known: int, out: int, column: int, sign: float, reduced: float) -> None:
    """Bring ``sign`` times a column, of some reduced cost, into the basis in place of a row."""
    table[out] /= sign * table[out, column]
    row = table[out]
    for r in range(len(table)):
        if r != out:
            share = reduced if r == 0 else sign * table[r, column]
            if share != 0.0:
                other = table[r]
                for k in range(len(row)):
                    other[k] -= share * row[k]
    basis[out] = column - 1 if column <= known else -1
