"""What a back end is handed instead of a matrix: the same problem in figures that floating-point solvers can hold apart.

Their tolerances are absolute: a row of tokens/s of 1e-9 holds whatever its columns are, and a coefficient of 1e-10 is
dropped. So, where figures are far from 1, rows, continuous columns and the objective are multiplied by powers of two, which
loses no digit. Bounds of integer columns, and sides of rows whose terms are whole multiples of one number, are moved to the
next value that can be reached. What a solver would drop or read as infinite even so is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving.backend import Listener, SolveProgress
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.tolerance import TOLERANCE
from coralopt.types import Bools, Floats, Ints

#: Rows, columns and objectives with a figure in here, or on both sides of it, are left as they are.
ORDINARY = (2.0**-10, 2.0**24)
#: Solvers drop coefficients below this.
DROPPED = 1e-9
#: Solvers read figures of this size as infinite.
HUGE = 1e20
#: Most decimal places of coefficients whose common divisor is looked for, and most steps that one of them may have.
DECIMALS, MOST_STEPS = 9, 1e9
#: Relative error up to which a coefficient is a decimal figure: that of a sum of a few.
ROUNDED = 1e-12
#: A dropped term that can move its row by at most this is within any solver's tolerances.
HARMLESS = 1e-9


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A matrix in other units.

    Attributes:
        matrix: What is handed over: R A C, s c C, ...
        rows: float64 (m,), R: what every row was multiplied by; ``None`` when nothing was scaled.
        columns: float64 (n,), C: the unit of every column; 1 for integer ones.
        objective: s: what the objective was multiplied by.
    """

    matrix: MilpMatrix
    rows: Floats | None
    columns: Floats
    objective: float

    def options(self, options: SolveOptions) -> SolveOptions:
        """The same with the absolute gap in the new unit; that of an objective far below 1 shrinks with it."""
        return options if self.objective >= 1 else replace(options, abs_gap=options.abs_gap * self.objective)

    def start(self, start: Floats | None) -> Floats | None:
        return start if start is None or self.rows is None else start / self.columns

    def listener(self, listener: Listener | None) -> Listener | None:
        """Told in the old units."""
        if listener is None or self.rows is None:
            return listener

        def heard(event: SolveProgress) -> None:
            solution = event.solution
            assert listener is not None
            listener(
                SolveProgress(
                    None if event.objective is None else event.objective / self.objective,
                    None if event.bound is None else event.bound / self.objective,
                    event.seconds,
                    None if solution is None else lambda: solution() * self.columns,
                )
            )

        return heard

    def duals(self, values: Floats | None) -> Floats | None:
        """Prices of the rows in the old units."""
        return values if values is None or self.rows is None else values * self.rows / self.objective


def conditioned(matrix: MilpMatrix) -> Conditioned:
    """The matrix with whole bounds, in powers of two of its units where it needs that.

    Raises:
        SolverError: A coefficient that solvers drop, or a figure that they read as infinite.
    """
    matrix = _whole(matrix)
    columns = np.repeat(np.arange(len(matrix.c)), np.diff(matrix.a.indptr))
    sizes = np.abs(matrix.a.data)
    counted = _decides(matrix, columns)
    row_units = _units(matrix.a.indices[counted], sizes[counted], len(matrix.row_lower))
    column_units = _units(columns, sizes * row_units[matrix.a.indices], len(matrix.c))
    column_units[matrix.integer] = 1.0
    products = matrix.extras.scaled(column_units, 1.0).quadratic
    costs = np.concatenate([np.abs(matrix.c) * column_units, [] if products is None else np.abs(products.data)])
    objective = float(_units(np.zeros(len(costs), dtype=np.int64), costs, 1)[0])
    if objective == 1 and (row_units == 1).all() and (column_units == 1).all():
        _refuse(matrix, columns)
        return Conditioned(matrix, None, column_units, 1.0)
    a = matrix.a.copy()
    a.data = a.data * row_units[a.indices] * column_units[columns]
    scaled = replace(
        matrix,
        c=matrix.c * column_units * objective,
        offset=matrix.offset * objective,
        a=a,
        row_lower=matrix.row_lower * row_units,
        row_upper=matrix.row_upper * row_units,
        lower=matrix.lower / column_units,
        upper=matrix.upper / column_units,
        extras=matrix.extras.scaled(column_units, objective),
    )
    _refuse(scaled, columns)
    return Conditioned(scaled, row_units, column_units, objective)


def _decides(matrix: MilpMatrix, columns: Ints) -> Bools:
    """bool (k,): entries that decide the unit of their row: a continuous column of this row alone takes any unit."""
    alone = (np.diff(matrix.a.indptr) == 1) & ~matrix.integer
    counted: Bools = ~alone[columns]
    others = np.bincount(matrix.a.indices[counted], minlength=len(matrix.row_lower)) > 0
    return np.asarray(counted | ~others[matrix.a.indices])


def _units(groups: Ints, sizes: Floats, count: int) -> Floats:
    """float64 (count,): powers of two that bring groups of sizes near 1; 1 for a group that is near enough."""
    largest, smallest = np.zeros(count), np.full(count, np.inf)
    np.maximum.at(largest, groups, sizes)
    np.minimum.at(smallest, groups, np.where(sizes > 0, sizes, np.inf))
    far = (largest > 0) & ((largest < ORDINARY[0]) | (smallest > ORDINARY[1]))
    units = np.ones(count)
    units[far] = np.exp2(-np.rint((np.log2(largest[far]) + np.log2(smallest[far])) / 2))
    return units


def _whole(matrix: MilpMatrix) -> MilpMatrix:
    """Bounds of integer columns, and sides of rows that only take multiples of a number, moved to what can be reached."""
    whole = matrix.integer
    rows, columns = len(matrix.row_lower), np.repeat(np.arange(len(matrix.c)), np.diff(matrix.a.indptr))
    place, values = matrix.a.indices, matrix.a.data
    stepping = np.ones(rows, dtype=np.bool_)
    stepping[place[~whole[columns]]] = False
    # What every term of a row is a multiple of: the common divisor of the coefficients, or the one that stands alone.
    steps = _common_steps(place, values, stepping)
    alone = (np.bincount(place, minlength=rows) == 1)[place]
    steps[place[alone]] = np.abs(values[alone])
    stepping &= steps > 0
    # Rows that cannot hold, and columns that can only be 0, are no contradiction here.
    stepping[[indicator.row for indicator in matrix.extras.indicators]] = False
    always = whole.copy()
    always[list(matrix.extras.semicontinuous)] = False
    lower, upper = _inside(matrix.lower, matrix.upper, always, np.ones(len(matrix.c)))
    row_lower, row_upper = _inside(matrix.row_lower, matrix.row_upper, stepping, steps)
    return replace(matrix, lower=lower, upper=upper, row_lower=row_lower, row_upper=row_upper)


def _common_steps(place: Ints, values: Floats, wanted: Bools) -> Floats:
    """float64 (m,): the largest number that all coefficients of a row are whole multiples of, as decimal figures; 0 without.

    Prices and their sums are decimal figures, rounding apart.
    """
    steps = np.zeros(len(wanted))

    def decimal(rows: Bools, digits: int, most: float) -> tuple[Bools, Ints, Floats]:
        """The rows whose coefficients have so many decimal places, their entries, and these in the last place."""
        part = np.flatnonzero(rows[place])
        scaled = np.abs(values[part]) * 10.0**digits
        whole = np.rint(scaled)
        fits = rows.copy()
        fits[place[part[(np.abs(scaled - whole) > ROUNDED * whole) | (whole >= most)]]] = False
        inside = fits[place[part]]
        return fits, part[inside], whole[inside]

    left, _, _ = decimal(wanted, DECIMALS, np.inf)
    for digits in range(DECIMALS + 1):
        fits, entries, whole = decimal(left, digits, MOST_STEPS if digits else 2.0**53)
        divisors = np.zeros(len(wanted), dtype=np.int64)
        np.gcd.at(divisors, place[entries], whole.astype(np.int64))
        steps[fits] = divisors[fits] / 10.0**digits
        left &= ~fits
        if not left.any():
            break
    return steps


def _inside(lower: Floats, upper: Floats, chosen: Bools, steps: Floats) -> tuple[Floats, Floats]:
    """The chosen intervals shrunk to multiples of their steps, rounding apart."""

    def moved(values: Floats, up: bool) -> Floats:
        counts = values[part] / steps[part]
        nearest = np.rint(counts)
        close = np.abs(counts - nearest) <= TOLERANCE * np.maximum(1.0, np.abs(counts))
        result = values.copy()
        result[part] = np.where(close, values[part], (np.ceil if up else np.floor)(counts) * steps[part])
        return result

    part = chosen & np.isfinite(lower)
    low = moved(lower, up=True)
    part = chosen & np.isfinite(upper)
    return low, moved(upper, up=False)


def crossing(matrix: MilpMatrix) -> str:
    """A column or row whose bounds leave nothing between them, empty without one; solvers treat them in their own ways."""
    for lower, upper, names in (
        (matrix.lower, matrix.upper, matrix.column_names),
        (matrix.row_lower, matrix.row_upper, matrix.row_names),
    ):
        # Only sides that differ by more than rounding, which is for the solver's tolerances.
        apart = lower > upper + TOLERANCE * np.maximum(1.0, np.abs(lower))
        if apart.any():
            k = int(apart.argmax())
            return f"{names[k]} must be at least {lower[k]:g} and at most {upper[k]:g}"
    return ""


def _refuse(matrix: MilpMatrix, columns: Ints) -> None:
    """Refuse what solvers would not see as it is."""
    for what, values, names in (
        ("the cost of", matrix.c, matrix.column_names),
        ("the lower bound of", matrix.lower, matrix.column_names),
        ("the upper bound of", matrix.upper, matrix.column_names),
        ("the lower side of", matrix.row_lower, matrix.row_names),
        ("the upper side of", matrix.row_upper, matrix.row_names),
    ):
        huge = (np.abs(values) >= HUGE) & np.isfinite(values)
        if huge.any():
            k = int(huge.argmax())
            raise SolverError(
                f"{what} {names[k]} is {values[k]:g}, which solvers read as infinite; choose other units, or use infinity"
            )
    small = (np.abs(matrix.a.data) < DROPPED) & (matrix.a.data != 0)
    if small.any():
        reach = np.maximum(np.abs(matrix.lower), np.abs(matrix.upper))[columns]
        seen = small & (np.abs(matrix.a.data) * reach > HARMLESS)
        if seen.any():
            k = int(seen.argmax())
            row, column = matrix.row_names[matrix.a.indices[k]], matrix.column_names[columns[k]]
            raise SolverError(
                f"the coefficient of {column} in {row} is {matrix.a.data[k]:g} beside others of ordinary size; solvers drop "
                f"what is below {DROPPED:g}: choose other units, or bound the column"
            )
