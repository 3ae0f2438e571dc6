"""Conflicts and relaxations against their definitions, for every way of finding them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError
from coralopt.solving import Reason, find_conflict, get_backend, smallest_relaxation, solve_matrix
from coralopt.solving.infeasibility import _members, _only
from coralopt.testing.compliance.case import INFINITY, best_by_enumeration, matrix

WAYS = [("highs", True), ("highs", False), ("scip", True), ("gurobi", True)]


@st.composite
def infeasible_programmes(draw):
    """Small programmes without a solution, some only without a whole-number one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns, rows = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    lines = []
    for _ in range(rows):
        low, high = sorted(rng.integers(-6, 10, 2).tolist())
        sides = [(low, high), (low, INFINITY), (-INFINITY, high), (high, high)][int(rng.integers(0, 4))]
        lines.append((rng.integers(-3, 4, columns).tolist(), float(sides[0]), float(sides[1])))
    programme = matrix([1.0] * columns, lines, (0.0, 3.0))
    assume(best_by_enumeration(programme) is None)
    return programme


@pytest.mark.parametrize(("solver", "native"), WAYS)
@settings(max_examples=25, deadline=None)
@given(programme=infeasible_programmes())
def test_a_conflict_is_infeasible_and_irreducible(solver, native, programme):
    """By definition: together impossible, and possible without any one of its members."""
    if not get_backend(solver).probe().installed:
        pytest.skip(f"{solver} is not installed")
    conflict = find_conflict(programme, solver, native=native)
    assert conflict.irreducible
    names = {("row", name): i for i, name in enumerate(programme.row_names)}
    names |= {("column", name): j for j, name in enumerate(programme.column_names)}
    members = [("row", names["row", name], side) for name, side in conflict.rows]
    members += [("column", names["column", name], side) for name, side in conflict.bounds]
    assert set(members) <= set(_members(programme))
    whole = solve_matrix(_only(programme, members), "highs")
    assert whole.termination.reason is Reason.INFEASIBLE
    for member in members:
        rest = solve_matrix(_only(programme, [other for other in members if other != member]), "highs")
        assert rest.termination.reason is Reason.OPTIMAL, member


@settings(max_examples=40, deadline=None)
@given(programme=infeasible_programmes())
def test_the_smallest_relaxation_is_smallest_and_enough(programme):
    """Against all points of the box: none violates its rows by less in sum."""
    found = smallest_relaxation(programme)
    ranges = [np.arange(low, high + 1) for low, high in zip(programme.lower, programme.upper, strict=True)]
    points = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))
    activity = points @ programme.a.toarray().T
    missing = np.maximum(programme.row_lower - activity, 0) + np.maximum(activity - programme.row_upper, 0)
    assert found.total == pytest.approx(missing.sum(axis=1).min(), abs=1e-6)
    assert sum(found.amounts.values()) == pytest.approx(found.total, abs=1e-6)


def test_rows_without_a_weight_stay():
    """What the user calls fixed does not move."""
    programme = matrix([1.0], [([1.0], 4.0, INFINITY), ([1.0], -INFINITY, 1.0)], (0.0, 9.0))
    found = smallest_relaxation(programme, weights={"row0": 2.0})
    assert found.amounts == {"row0": 3.0}
    assert found.total == 6.0


def test_a_feasible_model_has_no_conflict():
    """Asking the wrong question gets a clear answer."""
    with pytest.raises(SolverError, match="does not find the model infeasible"):
        find_conflict(matrix([1.0], [([1.0], 1.0, 2.0)]))
