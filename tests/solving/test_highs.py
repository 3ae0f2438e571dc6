"""HiGHS behind the core: the cases every back end has to get right."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array

from coralopt.errors import OptionError, SolverNotFoundError, UnsupportedError, WrongAnswerError
from coralopt.solving import (
    Limit,
    MilpMatrix,
    RawResult,
    Reason,
    SolveOptions,
    get_backend,
    matrix_from_pyomo,
    solve_matrix,
    solver_listing,
)


def matrix(
    c: list[float],
    a: list[list[float]],
    low: list[float],
    high: list[float],
    lower: list[float] | None = None,
    upper: list[float] | None = None,
    integer: bool = True,
    maximize: bool = False,
    offset: float = 0.0,
) -> MilpMatrix:
    """A small matrix from lists."""
    n, m = len(c), len(low)
    return MilpMatrix(
        c=np.array(c, dtype=float),
        offset=offset,
        a=csc_array(np.array(a, dtype=float).reshape(m, n)),
        row_lower=np.array(low, dtype=float),
        row_upper=np.array(high, dtype=float),
        lower=np.zeros(n) if lower is None else np.array(lower, dtype=float),
        upper=np.full(n, np.inf) if upper is None else np.array(upper, dtype=float),
        integer=np.full(n, integer),
        maximize=maximize,
        column_names=[f"x{i}" for i in range(n)],
        row_names=[f"r{i}" for i in range(m)],
    )


INF = float("inf")
KNAPSACK = matrix([5, 4, 3], [[2, 3, 1]], [-INF], [5], upper=[1, 1, 1], maximize=True)


def hard(n: int = 40, seed: int = 1) -> MilpMatrix:
    """A market-split problem that no solver finishes quickly."""
    rng = np.random.default_rng(seed)
    a = rng.integers(1, 100, (5, n)).astype(float)
    half = np.floor(a.sum(axis=1) / 2)
    slack = np.eye(5)
    full = np.hstack([a, slack, -slack])
    c = np.concatenate([np.zeros(n), np.ones(10)])
    return matrix(list(c), full.tolist(), list(half), list(half), upper=[1] * n + [INF] * 10)


def test_optimal_min_max_and_offset() -> None:
    """Both senses, and the constant counts."""
    result = solve_matrix(KNAPSACK)
    assert result.objective == 9
    assert result.termination.reason is Reason.OPTIMAL
    cover = matrix([3, 5], [[2, 3]], [7], [INF], offset=10.0)
    assert solve_matrix(cover, "highs", {"rel_gap": 0.0}).objective == 10 + 11


def test_infeasible_and_unbounded() -> None:
    """No solution object; the bound is None when infeasible."""
    nothing = solve_matrix(matrix([1], [[1]], [3], [INF], upper=[2]))
    assert nothing.termination.reason is Reason.INFEASIBLE
    assert nothing.x is None
    assert nothing.bound is None
    endless = solve_matrix(matrix([-1], [[1]], [0], [INF]))
    assert endless.termination.reason in (Reason.UNBOUNDED, Reason.INFEASIBLE_OR_UNBOUNDED)
    assert endless.x is None


def test_degenerate_shapes() -> None:
    """No columns, no rows, free, fixed, range and equality rows."""
    assert solve_matrix(matrix([], [], [], [], offset=2.0)).objective == 2.0
    assert solve_matrix(matrix([], [], [1], [INF])).termination.reason is Reason.INFEASIBLE
    assert solve_matrix(matrix([1, -1], [], [], [], upper=[3, 4])).objective == -4
    mixed = matrix([1, 1], [[1, 2], [1, 0]], [3, 2], [9, 2], lower=[-INF, -5], upper=[INF, 5])
    assert solve_matrix(mixed).objective == 2 + 1


@pytest.mark.parametrize("options", [{"time_limit": 0.0}, {"time_limit": 1.0}, {"node_limit": 1}])
def test_limits_never_raise(options: dict[str, Any]) -> None:
    """A limit is a status with the best known solution and a bound that does not pass it."""
    result = solve_matrix(hard(), "highs", {"rel_gap": 0.0, **options})
    assert result.termination.reason in (Reason.FEASIBLE, Reason.NO_SOLUTION_FOUND)
    assert result.termination.limit in (Limit.TIME, Limit.NODE)
    if result.x is not None:
        assert result.bound is not None
        assert result.bound <= result.objective
        assert result.gap > 0


def test_options_do_not_leak_and_threads_may_change() -> None:
    """A limit of one solve must not stop the next; the thread pool of the process may be resized."""
    first = solve_matrix(KNAPSACK, "highs", {"time_limit": 0.0})
    assert first.termination.limit is Limit.TIME
    for threads in (1, 2, 1):
        assert solve_matrix(KNAPSACK, "highs", {"threads": threads}).objective == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rel_gapp": 1}, "rel_gap"),
        ({"rel_gap": "small"}, "number"),
        ({"rel_gap": -1.0}, "at least 0"),
        ({"threads": 1.5}, "whole number"),
        ({"log": 1}, "true or false"),
        ({"native": {"mip_rel_gapp": 1.0}}, "mip_rel_gap"),
        ({"native": {"mip_rel_gap": "x"}}, "float"),
    ],
)
def test_bad_options_raise(options: dict[str, Any], words: str) -> None:
    """A typo that is silently ignored costs a night of computing."""
    with pytest.raises(OptionError, match=words):
        solve_matrix(KNAPSACK, "highs", options)


def test_same_seed_same_answer() -> None:
    """Gap- and node-limited runs repeat exactly on one thread."""
    runs = [solve_matrix(hard(20), "highs", {"seed": 3, "node_limit": 50}) for _ in range(2)]
    assert runs[0].objective == runs[1].objective or (runs[0].x is None and runs[1].x is None)
    assert runs[0].nodes == runs[1].nodes


def test_start_is_harmless() -> None:
    """A good start keeps the optimum, a bad one too."""
    for start in ([1.0, 0.0, 1.0], [1.0, 1.0, 1.0]):
        assert solve_matrix(KNAPSACK, "highs", start=np.array(start)).objective == 9


@pytest.mark.parametrize("maximize", [False, True])
def test_lp_duals_are_shadow_prices(maximize: bool) -> None:
    """d objective / d right-hand side, for min and max alike."""
    sign = -1.0 if maximize else 1.0

    def lp(rhs: float) -> MilpMatrix:
        return matrix([sign * 2, sign * 3], [[1, 1], [1, 3]], [rhs, 6], [INF, INF], integer=False, maximize=maximize)

    result = solve_matrix(lp(4))
    assert result.row_duals is not None
    change = solve_matrix(lp(4.5)).objective - result.objective
    assert result.row_duals[0] * 0.5 == pytest.approx(change)
    assert result.reduced_costs is not None
    expected = lp(4).c - lp(4).a.T @ result.row_duals
    assert result.reduced_costs == pytest.approx(expected)


def test_mip_has_no_duals_and_progress_is_told() -> None:
    """MIP duals mean nothing; incumbents and bounds arrive while the solver runs."""
    assert solve_matrix(KNAPSACK).row_duals is None
    events: list[Any] = []
    solve_matrix(hard(), "highs", {"time_limit": 1.5}, on_progress=events.append)
    assert events
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_pyomo_route_equals_enumeration(seed: int, maximize: bool) -> None:
    """Pyomo model, matrix, HiGHS: the same optimum as trying every point with exact arithmetic."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    c = rng.integers(-5, 6, n).tolist()
    a = rng.integers(-3, 4, (m, n)).tolist()
    b = rng.integers(0, 9, m).tolist()
    kinds = rng.integers(0, 3, m).tolist()
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(n), domain=pyo.Integers, bounds=(-1, 3))
    model.rows = pyo.ConstraintList()
    for row, right, kind in zip(a, b, kinds, strict=True):
        if not any(row):
            continue
        body = sum(v * model.x[i] for i, v in enumerate(row))
        model.rows.add([body <= right, body >= -right, pyo.inequality(-right, body, right)][kind])
    model.o = pyo.Objective(
        expr=sum(v * model.x[i] for i, v in enumerate(c)) + 7, sense=pyo.maximize if maximize else pyo.minimize
    )
    best: Fraction | None = None
    for point in itertools.product(range(-1, 4), repeat=n):
        sums = [sum(v * x for v, x in zip(row, point, strict=True)) for row in a]
        good = all(
            [s <= right, s >= -right, -right <= s <= right][kind] or not any(row)
            for s, right, kind, row in zip(sums, b, kinds, a, strict=True)
        )
        if good:
            value = Fraction(sum(v * x for v, x in zip(c, point, strict=True)) + 7)
            best = value if best is None else (max(best, value) if maximize else min(best, value))
    compiled, _ = matrix_from_pyomo(model)
    result = solve_matrix(compiled, "highs", {"rel_gap": 0.0})
    if best is None:
        assert result.termination.reason is Reason.INFEASIBLE
    else:
        assert result.objective == float(best)


class Liar:
    """A back end that answers the knapsack with whatever it is told to."""

    name = "liar"
    kind = "matrix"
    capabilities = get_backend("highs").capabilities

    def __init__(self, x: list[float] | None, bound: float) -> None:
        self.result = RawResult(Reason.OPTIMAL, None, "trust me", None if x is None else np.array(x), bound)

    def probe(self) -> Any:
        """Installed."""
        return get_backend("highs").probe()

    def solve(self, *_: Any, **__: Any) -> RawResult:
        """The lie."""
        return self.result


@pytest.mark.parametrize(
    ("x", "bound", "words"),
    [
        ([1.0, 1.0, 1.0], 12.0, "row r0"),
        ([2.0, 0.0, 0.0], 12.0, "out of bounds"),
        ([0.5, 0.0, 1.0], 12.0, "integer column"),
        ([1.0, 0.0, 1.0], 7.0, "claims the bound"),
        ([1.0, 0.0, float("nan")], 9.0, "nan"),
        (None, 9.0, "no solution"),
    ],
)
def test_lies_are_caught(x: list[float] | None, bound: float, words: str) -> None:
    """Violated rows, bounds, integrality, a bound below its own solution, an optimum without a solution."""
    with pytest.raises(WrongAnswerError, match=words):
        solve_matrix(KNAPSACK, Liar(x, bound))


def test_claimed_optimum_without_proof_is_only_feasible() -> None:
    """Optimal means that the recomputed gap is within the one asked for, whatever the solver calls it."""
    result = solve_matrix(KNAPSACK, Liar([1.0, 0.0, 1.0], 12.0))
    assert result.termination.reason is Reason.FEASIBLE
    assert result.gap == pytest.approx((12 - 8) / 8)


def test_unknown_and_unfit_solvers() -> None:
    """Errors name the choices."""
    with pytest.raises(SolverNotFoundError, match="highs"):
        solve_matrix(KNAPSACK, "hihgs")
    with pytest.raises(UnsupportedError, match="highs"):
        solve_matrix(KNAPSACK, "dp")
    assert {row["name"] for row in solver_listing()} >= {"highs", "dp"}
    assert SolveOptions.from_mapping({"rel_gap": 0.5}).to_mapping()["rel_gap"] == 0.5
