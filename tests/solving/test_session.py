"""Rows that are made while solving, pools of solutions, bases, and matrices that are solved again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csc_array

from coralopt.errors import OptionError, UnsupportedError
from coralopt.solving import (
    Basis,
    Capability,
    LazyRow,
    MatrixSession,
    Reason,
    SolveOptions,
    get_backend,
    solve_matrix,
)
from coralopt.solving.matrix import with_lazy_rows
from coralopt.testing.compliance.case import INFINITY, knapsack, matrix
from coralopt.types import Floats

EXACT = SolveOptions(rel_gap=0.0)


def test_a_session_begins_where_it_ended() -> None:
    """Costs, sides, columns and rows change; every answer is that of a fresh solve, and a basis saves its iterations."""
    rng = np.random.default_rng(3)
    rows = [(rng.integers(1, 9, 20).tolist(), float(rng.integers(20, 60)), INFINITY) for _ in range(12)]
    programme = matrix(rng.integers(5, 40, 20).tolist(), rows, (0, 5), integer=False)
    session = MatrixSession(programme)
    first = session.solve()
    assert first.iterations > 0
    assert session.solve().iterations == 0
    session.change(c=programme.c + 0.01, row_lower=programme.row_lower + 1)
    assert session.solve().objective == pytest.approx(solve_matrix(session.matrix).objective)
    session.add_columns([1.0, 2.0], rng.integers(0, 5, (12, 2)), (0.0, [2.0, INFINITY]))
    assert session.solve().objective == pytest.approx(solve_matrix(session.matrix).objective)
    session.add_rows(csc_array(np.ones((1, 22))), 30.0, INFINITY, ["sum"])
    assert session.solve().objective == pytest.approx(solve_matrix(session.matrix).objective)
    assert session.matrix.row_names[-1] == "sum"
    session.change(integer=np.ones(22, dtype=bool))
    whole = session.solve(EXACT)
    assert whole.objective == pytest.approx(solve_matrix(session.matrix, options=EXACT).objective)
    assert isinstance(session.start, np.ndarray)
    assert session.solve(SolveOptions(time_limit=0.0)).objective == pytest.approx(whole.objective)
    session.add_columns([0.5], np.zeros((13, 1)))
    assert np.isnan(session.start[-1])
    with pytest.raises(OptionError, match="row_names"):
        session.change(row_names=[])


def test_a_basis_must_fit() -> None:
    programme = matrix([1, 1], [([1, 1], 1, INFINITY)], integer=False)
    basis = solve_matrix(programme).basis
    assert basis is not None
    assert sorted(basis.columns.tolist() + basis.rows.tolist()).count(Basis.BASIC) == 1
    with pytest.raises(OptionError, match="basis"):
        solve_matrix(programme, start=basis.with_rows(1))
    with pytest.raises(UnsupportedError, match="takes no basis"):
        solve_matrix(programme, "scipy", start=basis)


def test_lazy_rows_without_a_back_end_that_asks() -> None:
    """HiGHS is asked again with the rows; what time cuts short claims no solution."""
    asked: list[Floats] = []

    def ring(x: Floats) -> list[LazyRow]:
        """No two neighbours in a ring."""
        asked.append(x)
        pairs = itertools.pairwise([*range(len(x)), 0])
        return [LazyRow({i: 1.0, j: 1.0}, -INFINITY, 1.0) for i, j in pairs if x[i] + x[j] > 1]

    programme = matrix([3, 4, 5, 4, 3], bounds=(0, 1), maximize=True)
    result = solve_matrix(programme, options=EXACT, lazy=ring)
    assert result.objective == 8.0
    assert len(asked) > 1
    result = solve_matrix(programme, options={"time_limit": 1e-9}, lazy=lambda x: [LazyRow({0: 1.0}, 7.0, 7.0)])
    assert result.termination.reason in (Reason.NO_SOLUTION_FOUND, Reason.INFEASIBLE)
    assert result.x is None
    never = solve_matrix(programme, lazy=lambda x: [LazyRow({0: 1.0}, 7.0, 7.0)])
    assert never.termination.reason is Reason.INFEASIBLE


def test_one_solution_only_is_said() -> None:
    with pytest.raises(UnsupportedError, match="one solution only"):
        solve_matrix(knapsack(items=4), options={"solutions": 3})
    assert len(solve_matrix(knapsack(items=4)).pool) == 1
    assert with_lazy_rows(knapsack(items=4), []).shape == (2, 4)
    assert Capability.POOL not in get_backend("highs").capabilities
