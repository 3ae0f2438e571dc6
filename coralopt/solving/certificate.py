"""Proofs of what a solver claims of a linear programme, in arithmetic whose rounding is accounted for.

Any prices y of the rows bound the optimum: min c'x >= sum of y_i times the side it pushes against + sum of the least of
(c - A'y)_j x_j over the bounds of x_j (weak duality). Every figure below comes with a bound on its own rounding error, taken
off in the safe direction (Neumaier and Shcherbina, 2004), so the result holds whatever the solver did. Columns without a
bound get one from the rows, and from the objective, which must not pass the answer at hand. Where that is not enough and
the matrix is small, prices are rounded to simple fractions and everything is computed exactly.

With c = 0, prices whose bound is above 0 show that there is no solution at all: a Farkas vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving.backend import MatrixBackend, RawResult
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.status import BOUND_TOLERANCE, Proof, gap_reached
from coralopt.types import Floats, Ints

#: Unit of rounding of a double, twice: products and sums of a few operations each.
ROUNDING = 2.0**-52
#: Most nonzeros of a matrix that is computed in fractions, and largest denominator of a price.
MOST_EXACT, SIMPLE = 20_000, 10_000
#: Rounds in which bounds of columns are derived from rows.
ROUNDS = 3


@dataclass(frozen=True, eq=False)
class ClaimCertificate:
    """What a proof of a claim takes; it is made when it is asked for.

    Attributes:
        matrix: What was solved.
        backend: By whom.
        options: How.
        prices: float64 (m,) of the rows of an LP with an optimum; ``None`` where no solution is claimed.
        objective: Of the answer.
    """

    matrix: MilpMatrix
    backend: MatrixBackend
    options: SolveOptions
    prices: Floats | None = None
    objective: float = math.nan

    def proof(self) -> Proof:
        """What the claim rests on."""
        if self.prices is None:
            return Proof.FARKAS if self._infeasible() else Proof.SOLVER
        bound, rel_gap = safe_bound(self.matrix, self.prices, self.objective), self.options.rel_gap + BOUND_TOLERANCE
        reached = gap_reached(self.objective, bound, rel_gap, max(self.options.abs_gap, BOUND_TOLERANCE))
        return Proof.DUAL_BOUND if reached else Proof.SOLVER

    def _infeasible(self) -> bool:
        plain = SolveOptions(time_limit=self.options.time_limit)
        try:
            return infeasible_for_sure(self.matrix, lambda elastic: self.backend.solve(elastic, plain))
        except SolverError:
            return False


@dataclass(frozen=True, eq=False)
class _Entries:
    """Nonzeros of the rows, and of the objective as one more row where there is an answer to stay below."""

    rows: Ints
    columns: Ints
    values: Floats
    lower: Floats
    upper: Floats


def safe_bound(matrix: MilpMatrix, prices: Floats, objective: float = math.inf) -> float:
    """A bound on the linear relaxation that holds in spite of all rounding; infinite in the weak direction without one.

    Args:
        matrix: The matrix.
        prices: float64 (m,), d objective / d right-hand side, as good as they are.
        objective: That of an answer at hand; better ones are what the bound is about.
    """
    sign = -1.0 if matrix.maximize else 1.0
    cost, y = sign * matrix.c, sign * np.where(np.isfinite(prices), prices, 0.0)
    side = np.where(y > 0, matrix.row_lower, matrix.row_upper)
    y = np.where(np.isfinite(side), y, 0.0)
    columns = np.repeat(np.arange(len(cost)), np.diff(matrix.a.indptr))
    terms = matrix.a.data * y[matrix.a.indices]
    reduced = cost - np.bincount(columns, terms, len(cost))
    sizes = np.abs(cost) + np.bincount(columns, np.abs(terms), len(cost))
    error = (np.diff(matrix.a.indptr) + 2) * ROUNDING * sizes
    lower, upper = matrix.lower, matrix.upper
    if (((reduced + error > 0) & np.isinf(lower)) | ((reduced - error < 0) & np.isinf(upper))).any():
        lower, upper = implied_bounds(matrix, cost, sign * (objective - matrix.offset))
    with np.errstate(invalid="ignore"):
        low, high = reduced - error, reduced + error
        corners = np.stack([low * lower, low * upper, high * lower, high * upper])
    # Nothing times a missing bound is nothing.
    corners[np.isnan(corners)] = 0.0
    least = corners.min(axis=0) if len(cost) else np.zeros(0)
    parts = np.concatenate([y * np.where(np.isfinite(side), side, 0.0), least, [sign * matrix.offset]])
    if not np.isfinite(parts).all():
        return sign * _exact_bound(matrix, cost, y, sign * matrix.offset)
    bound = math.fsum(parts) - 2 * ROUNDING * math.fsum(np.abs(parts))
    return sign * float(np.nextafter(bound, -math.inf))


def _exact_bound(matrix: MilpMatrix, cost: Floats, y: Floats, offset: float) -> float:
    """The same in fractions, with the prices rounded to simple ones, for a minimum."""
    if matrix.a.nnz > MOST_EXACT:
        return -math.inf
    prices = [Fraction(price).limit_denominator(SIMPLE) for price in y.tolist()]
    sides = np.where(y > 0, matrix.row_lower, matrix.row_upper).tolist()
    bound = Fraction(offset)
    bound += sum((price * Fraction(side) for price, side in zip(prices, sides, strict=True) if price), Fraction(0))
    starts, places, values = matrix.a.indptr.tolist(), matrix.a.indices.tolist(), matrix.a.data.tolist()
    for j, c in enumerate(cost.tolist()):
        reduced = Fraction(c)
        reduced -= sum((Fraction(values[k]) * prices[places[k]] for k in range(starts[j], starts[j + 1])), Fraction(0))
        side = float(matrix.lower[j] if reduced > 0 else matrix.upper[j])
        if reduced and math.isinf(side):
            return -math.inf
        bound += reduced * Fraction(side) if reduced else 0
    return float(np.nextafter(float(bound), -math.inf)) if bound else 0.0


def implied_bounds(matrix: MilpMatrix, cost: Floats | None = None, most: float = math.inf) -> tuple[Floats, Floats]:
    """Bounds of the columns that rows, and a cost of at most ``most``, leave them; a hair wider than they are."""
    cost = np.zeros(len(matrix.c)) if cost is None else cost
    rows, used = len(matrix.row_lower), np.flatnonzero(cost)
    columns = np.repeat(np.arange(len(cost)), np.diff(matrix.a.indptr))
    entries = _Entries(
        np.concatenate([matrix.a.indices, np.full(len(used), rows)]),
        np.concatenate([columns, used]),
        np.concatenate([matrix.a.data, cost[used]]),
        np.append(matrix.row_lower, -math.inf),
        np.append(matrix.row_upper, most),
    )
    lower, upper = matrix.lower.copy(), matrix.upper.copy()
    for _ in range(ROUNDS):
        for values, sides in ((entries.values, entries.upper), (-entries.values, -entries.lower)):
            _tighten(entries, values, sides, lower, upper)
    return lower, upper


def _tighten(entries: _Entries, values: Floats, sides: Floats, lower: Floats, upper: Floats) -> None:
    """Bounds of columns from rows ``values x <= sides``, in place; only missing bounds are filled."""
    rows, columns, count = entries.rows, entries.columns, len(sides)
    with np.errstate(invalid="ignore"):
        least = np.where(values > 0, values * lower[columns], values * upper[columns])
    least[values == 0] = 0.0
    missing = np.isinf(least)
    finite = np.where(missing, 0.0, least)
    total, size = np.bincount(rows, finite, count), np.bincount(rows, np.abs(finite), count)
    alone = np.bincount(rows, missing, count)[rows] - missing == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        room = sides[rows] - (total[rows] - finite) + 1e-9 * (size[rows] + np.abs(sides[rows]) + 1.0)
        limit = room / values
    good = alone & np.isfinite(limit) & (values != 0)
    up, down = good & (values > 0) & np.isinf(upper[columns]), good & (values < 0) & np.isinf(lower[columns])
    np.minimum.at(upper, columns[up], limit[up])
    np.maximum.at(lower, columns[down], limit[down])


def infeasible_for_sure(matrix: MilpMatrix, ask: Callable[[MilpMatrix], RawResult]) -> bool:
    """Whether the linear relaxation is shown to have no solution, by prices of the least sum of violations.

    Args:
        matrix: The matrix; its integer columns count as continuous, which only makes the claim stronger.
        ask: A solver of linear programmes with prices.
    """
    from scipy.sparse import csc_array, hstack

    rows, columns = matrix.shape
    sides = np.concatenate(
        [np.flatnonzero(np.isfinite(matrix.row_lower)), np.flatnonzero(np.isfinite(matrix.row_upper))]
    )
    signs = np.where(np.arange(len(sides)) < np.isfinite(matrix.row_lower).sum(), 1.0, -1.0)
    slacks = csc_array((signs, (sides, np.arange(len(sides)))), shape=(rows, len(sides)))
    plain = replace(matrix, c=np.zeros(columns), offset=0.0, maximize=False, integer=np.zeros(columns, dtype=np.bool_))
    elastic = replace(
        plain,
        c=np.concatenate([plain.c, np.ones(len(sides))]),
        a=hstack([matrix.a, slacks]).tocsc(),
        lower=np.concatenate([matrix.lower, np.zeros(len(sides))]),
        upper=np.concatenate([matrix.upper, np.full(len(sides), np.inf)]),
        integer=np.zeros(columns + len(sides), dtype=np.bool_),
        column_names=[*matrix.column_names, *(f"slack{k}" for k in range(len(sides)))],
    )
    prices = ask(elastic).row_duals
    return prices is not None and safe_bound(plain, prices) > 0
