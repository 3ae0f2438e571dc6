"""Cases about parts that are no linear rows: by the solver's own means where it declares them, else as rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from coralopt.errors import UnsupportedError
from coralopt.solving import Capability, MatrixBackend, MilpMatrix, Reason, SolveOptions, solve_matrix
from coralopt.solving.extras import Extras, Indicator, SosSet
from coralopt.solving.verdict import examine
from coralopt.testing.compliance.case import INFINITY, case, matrix

EXACT = SolveOptions(rel_gap=1e-7)


def _value(programme: MilpMatrix, backend: MatrixBackend) -> float:
    result = solve_matrix(programme, backend, EXACT)
    assert result.termination.reason in (Reason.OPTIMAL, Reason.FEASIBLE), result.termination
    assert result.gap < 1e-5, result.gap
    return result.objective


def _quadratic(programme: MilpMatrix, q: list[list[float]]) -> MilpMatrix:
    from scipy.sparse import csc_array

    return replace(programme, extras=Extras(csc_array(np.array(q))))


@case(Capability.QP)
def convex_quadratic_objectives(backend: MatrixBackend) -> None:
    """Both senses, with products: min x² + y² + xy - 4x - 3y over x + y <= 2 is -4.25, at (1.5, 0.5)."""
    for sign in (1.0, -1.0):
        rows = [([1, 1], -INFINITY, 2)]
        linear = matrix([-4 * sign, -3 * sign], rows, (0, 5), integer=False, maximize=sign < 0, offset=1.0)
        programme = _quadratic(linear, [[2 * sign, sign], [sign, 2 * sign]])
        assert math.isclose(_value(programme, backend), 1 - 4.25 * sign, abs_tol=1e-5)


@case(Capability.QP)
def a_quadratic_objective_that_is_not_convex(backend: MatrixBackend) -> None:
    """Local solvers call a saddle optimal: min -xy over x + y <= 3 is -2.25; else it is refused by name."""
    programme = _quadratic(matrix([0, 0], [([1, 1], -INFINITY, 3)], (0, 2), integer=False), [[0, -1], [-1, 0]])
    if Capability.MIQP in backend.capabilities:
        assert math.isclose(_value(programme, backend), -2.25, abs_tol=1e-4)
        return
    words = "it was taken"
    try:
        solve_matrix(programme, backend)
    except UnsupportedError as error:
        words = str(error)
    assert "convex" in words, words


@case(Capability.MIQP)
def quadratic_objectives_of_whole_numbers(backend: MatrixBackend) -> None:
    """One column whole: x = 2 and y = 0.55."""
    programme = matrix([-4.3, -3.1], [([1, 1], -INFINITY, 3)], (0, 5), integer=[True, False])
    assert math.isclose(_value(_quadratic(programme, [[2, 1], [1, 2]]), backend), -4.9025, abs_tol=1e-5)


@case(Capability.MILP)
def special_ordered_sets(backend: MatrixBackend) -> None:
    """Of the first kind one column, of the second two neighbours; columns may be negative or unbounded but for rows."""
    rows = [([1, 1, 1, 1], -INFINITY, 10), ([0, 0, 0, 1], -INFINITY, 9)]
    bounds = [(-1, 3), (0, 3), (0, 2), (0, INFINITY)]
    linear = matrix([3, 2, 4, 1], rows, bounds, integer=False, maximize=True)
    columns, weights = (0, 1, 2, 3), (1.0, 2.5, 3.0, 7.0)
    for kind, value in ((1, 9.0), (2, 16.0)):
        group = SosSet("set", kind, columns, weights)  # type: ignore[arg-type]
        assert math.isclose(_value(replace(linear, extras=Extras(sos=(group,))), backend), value, abs_tol=1e-6)


@case(Capability.MILP)
def rows_that_a_column_switches(backend: MatrixBackend) -> None:
    """x + y between 3 and 4 binds where z has the value, 0 or 1; leaving it costs 10."""
    rows = [([1, 1, 0], 3, 4), ([1, 0, 0], -INFINITY, 1)]
    for value in (0, 1):
        linear = matrix([1, 2, 10 - 20 * value], rows, [(0, 9), (0, 9), (0, 1)], integer=[False, False, True])
        indicator = Indicator(0, 2, value)
        programme = replace(linear, extras=Extras(indicators=(indicator,)))
        assert math.isclose(_value(programme, backend), 5.0 - 10 * value, abs_tol=1e-6)
        # Where the row cannot hold, the column must not have the value.
        impossible = replace(programme, row_lower=np.array([12.0, -INFINITY]), row_upper=np.array([12.0, 1.0]))
        assert math.isclose(_value(impossible, backend), 10.0 - 10 * value, abs_tol=1e-6)


@case(Capability.MILP)
def columns_that_are_zero_or_large(backend: MatrixBackend) -> None:
    """x is 0 or from 4 to 9, or whole and 0 or from 1.5 to 9; a lower bound of 0 would do the first for 3.5."""
    semi = Extras(semicontinuous=(0,))
    programme = matrix([1, 1.5], [([1, 1], 3.5, INFINITY)], [(4, 9), (0, 2)], integer=False)
    assert math.isclose(_value(replace(programme, extras=semi), backend), 4.0, abs_tol=1e-6)
    programme = matrix([1, 1.5], [([1, 2], 3.5, INFINITY)], [(1.5, 9), (0, 2)], integer=[True, False])
    assert math.isclose(_value(replace(programme, extras=semi), backend), 2.625, abs_tol=1e-6)


@case(Capability.MILP)
def random_parts_equal_enumeration(backend: MatrixBackend) -> None:
    """Thirty small programmes of whole numbers with sets, switched rows and gaps, against trying everything."""
    rng = np.random.default_rng(14)
    for _ in range(30):
        bounds = [(float(low), float(low + rng.integers(0, 4))) for low in rng.integers(-2, 3, 4)]
        bounds[0], bounds[3] = (float(rng.integers(0, 3)), 3.0), (0.0, 1.0)
        sides = [(float(low), float(low + rng.integers(0, 5))) for low in rng.integers(-6, 6, 2)]
        rows = [(rng.integers(-3, 4, 4).tolist(), *side) for side in sides]
        programme = matrix(rng.integers(-6, 7, 4).tolist(), rows, bounds, maximize=bool(rng.integers(0, 2)))
        places = tuple(rng.permutation(3).tolist())
        group = SosSet("set", int(rng.integers(1, 3)), places, (1.0, 2.0, 4.0))  # type: ignore[arg-type]
        switch = Indicator(int(rng.integers(0, 2)), 3, int(rng.integers(0, 2)))  # type: ignore[arg-type]
        programme = replace(programme, extras=Extras(None, (group,), (switch,), (0,)))
        ranges = [np.arange(low, high + 1) for low, high in bounds]
        points = itertools.product([0.0, *ranges[0]], *ranges[1:])
        good = [np.array(point) for point in points if not examine(programme, np.array(point))[1]]
        if not good:
            result = solve_matrix(programme, backend, EXACT)
            assert result.termination.reason is Reason.INFEASIBLE, result.termination
            continue
        best = (max if programme.maximize else min)(programme.objective(point) for point in good)
        value = _value(programme, backend)
        assert math.isclose(value, best, abs_tol=1e-6), (value, best)
