"""OR-tools: exact scaling to whole numbers, and two libraries of one name in one process."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from coralopt_ortools import CpSatBackend
from coralopt_ortools.scaling import whole_bounds, whole_objective, whole_rows

from coralopt.errors import UnsupportedError
from coralopt.solving import solve_matrix
from coralopt.testing.compliance.case import INFINITY, knapsack, matrix

needs_ortools = pytest.mark.skipif(not CpSatBackend().probe().installed, reason="OR-tools is not installed")


def test_rows_become_whole_numbers_exactly() -> None:
    """A tenth is a tenth: sides round inwards, never across a whole sum."""
    programme = matrix([0, 0], [([0.1, 0.25], 0.3, 1.99), ([4, 6], -INFINITY, 9), ([0, 0], -1, 1)], (0, 10))
    rows = list(whole_rows(programme, [10, 10]))
    # In twentieths: 0.3 is 6, and 1.99 is 39.8.
    assert rows == [([0, 1], [2, 5], 6, 39), ([0, 1], [2, 3], -51, 4)]


def test_what_does_not_fit_64_bits_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"row1 scaled.*highs"):
        list(whole_rows(matrix([0, 0], [([1, 1], 0, 1), ([1e-9, 1e9], 0, 1)], (0, 10_000)), [10_000, 10_000]))
    with pytest.raises(UnsupportedError, match="bounds of x0"):
        whole_bounds(matrix([1], bounds=(0, 1e19)))


def test_rounding_of_the_objective_is_accounted_for() -> None:
    """Short prices are exact; others are rounded, and the bound gives back as much as rounding may take."""
    weights, scale, error = whole_objective(matrix([1.25, 0.1], bounds=(0, 9)), [9, 9])
    assert (weights, scale, error) == ([25, 2], Fraction(20), 0.0)
    prices = np.random.default_rng(3).uniform(0, 1e3, 50)
    weights, scale, error = whole_objective(matrix(prices.tolist(), bounds=(0, 10_000)), [10_000] * 50)
    off = sum(
        abs(Fraction(w) / scale - Fraction(repr(float(p)))) * 10_000 for w, p in zip(weights, prices, strict=True)
    )
    assert 0 < float(off) <= error * (1 + 1e-12) < 1e-12 * prices.sum() * 10_000


@needs_ortools
def test_cp_sat_refuses_what_it_cannot_take() -> None:
    """By the name of the column, and with the names of those that can."""
    for programme in (matrix([1], integer=False, bounds=(0, 1)), matrix([1])):
        with pytest.raises(UnsupportedError, match=r"finite bounds only, not x0.*highs"):
            solve_matrix(programme, "cp-sat")
    with pytest.raises(UnsupportedError, match=r"no integer columns.*highs"):
        solve_matrix(knapsack(), "glop")
    with pytest.raises(UnsupportedError, match=r"no node limit.*highs"):
        solve_matrix(knapsack(), "cp-sat", {"node_limit": 1})


@needs_ortools
@pytest.mark.parametrize(
    "first",
    ["import highspy", "from ortools.sat.python import cp_model", "from ortools.math_opt.python import mathopt"],
)
def test_either_import_may_come_first(first: str) -> None:
    """Both bring a libhighs.so.1, of which a process takes one: the other solver gets a process of its own."""
    code = (
        f"{first}\n"
        "from coralopt.solving import solve_matrix\n"
        "from coralopt.testing.compliance.case import knapsack\n"
        "print([solve_matrix(knapsack(items=8), solver).objective for solver in ('highs', 'cp-sat')])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    truth = solve_matrix(knapsack(items=8), "highs").objective
    assert said.stdout.strip() == str([truth, truth]), said.stderr
