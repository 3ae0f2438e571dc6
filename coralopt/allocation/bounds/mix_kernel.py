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


class Until(NamedTuple):
    """Where the dual simplex method ends: what it has reached by then is a lower bound.

    Attributes:
        cost: From which on it is enough.
        pivots: At most.
    """

    cost: float
    pivots: int


class _Pivots(NamedTuple):
    """Pivots since a table was up to date.

    Attributes:
        row: float64 (n, w), the row that each divided.
        shares: float64 (n, h), how much of it was taken from every other row.
        out: int64 (n,), which row it is.
    """

    row: Floats
    shares: Floats
    out: Ints


@compiled(nogil=True)
def value_within(mix: Mix, use: Floats, room: float, over: float, until: Until) -> float:
    """The least cost with one more row, by the dual simplex method, which only raises it.

    Few pivots do, so the table stays as it is: its rows and columns are brought up to date when they are looked at.

    Args:
        mix: The optimal basis without it.
        use: float64 (K,), what coverings use of it.
        room: How much there is.
        over: What one more costs.
        until: Where it ends.
    """
    old, known = mix.table, len(use)
    height, width = old.shape
    overs, last = np.append(mix.over, over), np.zeros(width + 1)
    last[0], last[1 : 1 + known], last[-1] = room, use, 1.0
    for r in range(1, height):
        if mix.basis[r] >= 0 and use[mix.basis[r]] != 0.0:
            last[:-1] -= use[mix.basis[r]] * old[r]
    # The right-hand side, and reduced costs, are always up to date.
    left, reduced = np.append(old[:, 0], last[0]), np.append(old[0], 0.0)
    # Steepest rows are nearly known from weights (devex pricing); the least entry needs three times as many pivots.
    most, weights = until.pivots, np.ones(height + 1)
    pivots = _Pivots(np.empty((most, width + 1)), np.empty((most, height + 1)), np.empty(most, dtype=np.int64))
    for count in range(most):
        out, steepest = -1, 0.0
        for r in range(1, len(left)):
            if left[r] < -TINY and left[r] ** 2 > steepest * weights[r]:
                out, steepest = r, left[r] ** 2 / weights[r]
        if out < 0 or -reduced[0] >= until.cost:
            break
        row = _row_now(old, last, pivots, count, out)
        # Exceeding a row is what is left of it with the other sign.
        column, sign, price, ratio = -1, 1.0, 0.0, np.inf
        for k in range(1, len(row)):
            dear = max(reduced[k], 0.0)
            if row[k] < -TINY and dear < -row[k] * ratio:
                column, sign, price, ratio = k, 1.0, reduced[k], dear / -row[k]
            elif k > known and row[k] > TINY:
                dear = max(overs[k - 1 - known] - reduced[k], 0.0)
                if dear < row[k] * ratio:
                    column, sign, price, ratio = k, -1.0, overs[k - 1 - known] - reduced[k], dear / row[k]
        if column < 0:
            return np.inf
        shares = sign * _column_now(old, last, pivots, count, column)
        pivot, weight = sign * row[column], weights[out]
        for r in range(1, len(weights)):
            weights[r] = max(weights[r], (shares[r] / pivot) ** 2 * weight)
        weights[out] = max(weight / pivot**2, 1.0)
        row /= pivot
        shares[0] = price
        left -= shares * row[0]
        left[out] = row[0]
        reduced -= price * row
        pivots.row[count], pivots.shares[count], pivots.out[count] = row, shares, out
    return float(-reduced[0])


@njit(cache=True, nogil=True)
def _row_now(old: Floats, last: Floats, pivots: _Pivots, count: int, r: int) -> Floats:
    """Row ``r`` of a table with one more row after so many pivots."""
    row = last.copy()
    if r < len(old):
        row[:-1], row[-1] = old[r], 0.0
    for p in range(count):
        if pivots.out[p] == r:
            row[:] = pivots.row[p]
        elif pivots.shares[p, r] != 0.0:
            row -= pivots.shares[p, r] * pivots.row[p]
    return row


@njit(cache=True, nogil=True)
def _column_now(old: Floats, last: Floats, pivots: _Pivots, count: int, k: int) -> Floats:
    """Column ``k`` of the same."""
    height, width = old.shape
    column = np.zeros(height + 1)
    column[-1] = last[k]
    if k < width:
        column[:-1] = old[:, k]
    for p in range(count):
        entry = pivots.row[p, k]
        if entry != 0.0:
            column -= pivots.shares[p] * entry
        column[pivots.out[p]] = entry
    return column


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
