"""What a claim rests on: prices that prove an optimum, vectors that prove there is none, a second solver, our own bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError, WrongAnswerError
from coralopt.solving import MilpMatrix, Proof, RawResult, Reason, SolveOptions, SolveProgress, solve, solve_matrix
from coralopt.solving.certificate import safe_bound
from coralopt.solving.conditioning import conditioned
from coralopt.solving.repair import bounded_by_rows, repaired
from coralopt.testing.compliance.case import INFINITY, best_by_enumeration, knapsack, matrix
from coralopt.testing.instances import allocation_instance, placement_instance
from coralopt.testing.wrong_backends import Honest

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-7)
COVERING = matrix([2, 3], [([3, 1], 6, INFINITY), ([1, 2], 4, INFINITY)], integer=False)


class Liar(Honest):
    """HiGHS that claims a little too much: the answer is a feasible one, and no better one is said to exist."""

    name = "liar"

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        lie = matrix.upper.copy() if matrix.maximize else matrix.lower.copy()
        return replace(result, x=lie, bound=float(matrix.c @ lie) + matrix.offset, objective=None, row_duals=None)


class Doomsayer(Honest):
    """HiGHS that calls everything infeasible."""

    name = "doomsayer"

    def after(self, matrix: MilpMatrix, result: RawResult) -> RawResult:
        return replace(result, reason=Reason.INFEASIBLE, x=None, objective=None)


def test_an_optimum_is_proven_by_prices() -> None:
    result = solve_matrix(COVERING)
    assert result.proof is Proof.DUAL_BOUND
    assert result.row_duals is not None
    assert safe_bound(COVERING, result.row_duals, result.objective) <= result.objective
    # Prices that are off prove less, but never too much.
    for factor in (0.0, 0.9, 1.1, 5.0):
        assert safe_bound(COVERING, result.row_duals * factor, result.objective) <= result.objective + 1e-9


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.0, 1e-9, 1e-3, 1.0]))
def test_no_prices_prove_too_much(seed: int, noise: float) -> None:
    """Whatever the prices, the bound is on the far side of the optimum; the true ones reach it."""
    rng = np.random.default_rng(seed)
    columns, maximize = int(rng.integers(1, 6)), bool(rng.integers(2))
    point = rng.uniform(-3, 3, columns)
    rows = []
    for _ in range(int(rng.integers(1, 5))):
        row = rng.integers(-4, 5, columns).astype(float)
        value = float(row @ point)
        rows.append((row.tolist(), *[(value - 1, INFINITY), (-INFINITY, value + 1), (value, value)][rng.integers(3)]))
    bounds = [[(-5.0, 5.0), (-4.0, INFINITY), (-INFINITY, 4.5), (-INFINITY, INFINITY)][rng.integers(4)] for _ in point]
    programme = matrix(rng.normal(size=columns).tolist(), rows, bounds, integer=False, maximize=maximize, offset=0.5)
    result = solve_matrix(programme)
    if result.x is None or result.row_duals is None:
        return
    prices = result.row_duals + noise * rng.normal(size=len(rows))
    bound = safe_bound(programme, prices, result.objective)
    behind = result.objective - bound if maximize else bound - result.objective
    assert behind <= 1e-9 * max(1.0, abs(result.objective))
    if np.isfinite(bounds).all():
        assert result.proof is Proof.DUAL_BOUND


def test_infeasibility_is_proven_by_a_vector() -> None:
    """Of the rows, of the relaxation of an integer programme, and of bounds alone; parity has no such vector."""
    rows = [([1, 1], 5, INFINITY), ([1, 0], -INFINITY, 2), ([0, 1], -INFINITY, 2)]
    for integer in (False, True):
        result = solve_matrix(matrix([1, 1], rows, integer=integer))
        assert (result.termination.reason, result.proof) == (Reason.INFEASIBLE, Proof.FARKAS)
    free = matrix([1, 1], [([1, -1], 1, INFINITY), ([1, -1], -INFINITY, 0.5)], (-INFINITY, INFINITY), integer=False)
    assert solve_matrix(free).proof is Proof.FARKAS
    crossed = solve_matrix(matrix([1], bounds=[(0.2, 0.8)]))
    assert (crossed.termination.reason, crossed.proof) == (Reason.INFEASIBLE, Proof.FARKAS)
    # Even numbers do not add up to 3, which is seen before any solver is asked.
    parity = solve_matrix(matrix([1, 1, 1], [([2, 2, 4], 3, 3), ([1, 1.5, 1], 0, 9)], (0, 5)))
    assert (parity.termination.reason, parity.proof) == (Reason.INFEASIBLE, Proof.FARKAS)
    prices = solve_matrix(matrix([1, 1], [([0.7, 1.8], 0.6999999, 0.6999999)], (0, 5)))
    assert (prices.termination.reason, prices.proof) == (Reason.INFEASIBLE, Proof.FARKAS)
    hidden = solve_matrix(matrix([1, 1], [([1 / 3, 1 / 3], 0.5, 0.5)], (0, 5)))
    assert (hidden.termination.reason, hidden.proof) == (Reason.INFEASIBLE, Proof.SOLVER)
    # A false claim has no vector.
    assert solve_matrix(COVERING, Doomsayer()).proof is Proof.SOLVER


@given(
    st.lists(st.integers(1, 99_999), min_size=1, max_size=3), st.integers(0, 6), st.integers(0, 400_000), st.booleans()
)
def test_sides_of_decimal_rows_move_to_what_can_be_reached(
    prices: list[int], digits: int, limit: int, whole: bool
) -> None:
    """A row of prices and its moved side admit the same counts, and a side on a sum of prices stays."""
    row = np.array(prices) / 10.0**digits
    side = limit * (1 if whole else np.pi / 3) / 10.0**digits
    programme = matrix([1.0] * len(row), [(row.tolist(), -INFINITY, side)], (0, 5))
    inside = conditioned(programme)
    moved = inside.matrix.row_upper[0] / (1.0 if inside.rows is None else inside.rows[0])
    counts = np.array(list(itertools.product(range(6), repeat=len(row))))
    exact = counts @ np.array(prices)
    assert ((exact <= side * 10.0**digits * (1 + 1e-12)) == (counts @ row <= moved * (1 + 1e-9))).all()
    step = np.gcd.reduce(prices) / 10.0**digits
    assert abs(moved / step - np.rint(moved / step)) <= 1e-9 * max(1.0, moved / step)


def test_a_second_solver_confirms_or_contradicts() -> None:
    """False claims that no check of the answer alone can see: a bound too good, infeasible where there is a solution."""
    programme = knapsack(items=8)
    first = solve_matrix(programme, "highs", EXACT)
    assert first.proof is Proof.SOLVER
    pytest.importorskip("pyscipopt")
    assert solve_matrix(programme, "highs", EXACT, confirm="scip").proof is Proof.SECOND_SOLVER
    minimum = matrix([-1, -1], [([1, 1], -INFINITY, 9)], (0, 4))
    assert solve_matrix(minimum, Liar(), EXACT).objective == 0.0
    with pytest.raises(WrongAnswerError, match=r"'liar' claims the bound .* but 'scip' has a solution of -8"):
        solve_matrix(minimum, Liar(), EXACT, confirm="scip")
    with pytest.raises(WrongAnswerError, match="'liar' claims the bound"):
        solve_matrix(minimum, "scip", EXACT, confirm=Liar())
    with pytest.raises(WrongAnswerError, match="'doomsayer' claims that there is no solution"):
        solve_matrix(minimum, Doomsayer(), EXACT, confirm="scip")
    odd = matrix([1, 1], [([2.5, 2.5], 4, 4)], (0, 5))
    assert solve_matrix(odd, "highs", confirm="scip").proof is Proof.SECOND_SOLVER


def test_problems_are_confirmed_by_our_own_solver() -> None:
    """Placements: the dynamic programme proves by itself, and confirms what a MILP solver says."""
    problem = placement_instance(0)
    assert solve(problem, "dp").proof is Proof.OWN_BOUND
    assert solve(problem, "highs", confirm="dp").proof is Proof.SECOND_SOLVER
    assert solve(allocation_instance(0), "highs").proof is Proof.FARKAS
    assert solve(allocation_instance(1), "highs").proof is Proof.SOLVER


def test_prices_of_new_instances_a_billion_times_the_rent() -> None:
    """SCIP proves twice the optimum where costs are a billion apart; a second solver tells, or both agree."""
    pytest.importorskip("pyscipopt")
    for seed in range(6, 60, 9):
        problem = replace(allocation_instance(seed), penalty=1e9, start_penalty=None, side_constraints=())
        try:
            confirmed = solve(problem, "scip", confirm="highs")
        except WrongAnswerError:
            continue
        truth = solve(problem, "highs")
        assert confirmed.termination.reason == truth.termination.reason
        if truth.answer is not None:
            assert confirmed.objective == pytest.approx(truth.objective, rel=2e-4)


# ---- conditioning and repair ---------------------------------------------------------------------------------------------


def test_scaling_is_exact_and_undone() -> None:
    """Powers of two lose no digit; ordinary matrices are handed over as they are."""
    ordinary = knapsack(items=5)
    assert conditioned(ordinary).rows is None
    far = matrix([3e-9, 7e11], [([0.1, 3e9], 0.3, INFINITY)], [(0, 1e3), (0, 1e3)], integer=False)
    inside = conditioned(far)
    assert inside.rows is not None
    back = inside.matrix.a.toarray() / inside.rows[:, None] / inside.columns
    np.testing.assert_array_equal(back, far.a.toarray())
    np.testing.assert_array_equal(inside.matrix.c / inside.columns / inside.objective, far.c)
    np.testing.assert_array_equal(inside.matrix.upper * inside.columns, far.upper)
    # What goes in is told in the solver's units, what comes back in those of the model.
    point, told = np.array([2.0, 3.0]), list[SolveProgress]()
    start, heard = inside.start(point), inside.listener(told.append)
    assert start is not None
    assert heard is not None
    assert inside.matrix.c @ start == inside.objective * (far.c @ point)
    heard(SolveProgress(7 * inside.objective, 5 * inside.objective, 0.5, lambda: start))
    (event,) = told
    assert (event.objective, event.bound, event.seconds) == (7.0, 5.0, 0.5)
    assert event.solution is not None
    assert event.solution().tolist() == point.tolist()
    prices = inside.duals(np.array([4.0]))
    assert prices is not None
    assert prices.tolist() == [4.0 * inside.rows[0] / inside.objective]
    plain = conditioned(ordinary)
    assert plain.start(start) is start
    assert plain.listener(heard) is heard
    assert plain.start(None) is inside.start(None) is inside.listener(None) is inside.duals(None) is None


def test_bounds_that_say_nothing_are_mistakes() -> None:
    for bounds, word in (((0.0, -INFINITY), "upper of x0 is -inf"), ((INFINITY, INFINITY), "lower of x0 is inf")):
        with pytest.raises(SolverError, match=word):
            matrix([1], bounds=[bounds])
    with pytest.raises(SolverError, match="row_lower of row0 is inf"):
        matrix([1], [([1], INFINITY, INFINITY)])


def test_an_optimum_within_coarse_tolerances_is_none() -> None:
    """HiGHS called 75.75 optimal where figures go up to 2e8; 82.0625 is, and the search goes on below that ceiling."""
    assert solve(placement_instance(500037), "highs", "tight").objective == pytest.approx(82.0625, rel=2e-4)


@pytest.mark.parametrize("kind", ["a billionth", "a billion times", "mixed"])
@pytest.mark.parametrize("formulation", ["tight", "paper"])
def test_placements_of_any_range_are_right(kind: str, formulation: str) -> None:
    """Tokens/s of 1e-9, of 1e9, and from 1e-6 to 1e6 in one table: the dynamic programme's optimum; was 8 times off."""
    for seed in (0, 3, 6, 8):
        problem = placement_instance(seed)
        rng = np.random.default_rng(seed)
        scale = {
            "a billionth": 1e-9,
            "a billion times": 1e9,
            "mixed": 10.0 ** rng.integers(-6, 7, problem.values.shape),
        }
        problem = replace(problem, values=problem.values * scale[kind])
        truth, answer = solve(problem, "dp"), solve(problem, "highs", formulation)
        assert answer.termination.reason is truth.termination.reason
        if truth.answer is not None:
            assert answer.objective == pytest.approx(truth.objective, rel=2e-4)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_bounds_that_rows_give_take_no_point_away(seed: int) -> None:
    """With the integer columns fixed, what rows say of single columns becomes bounds: the optimum stays what it is."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    a = rng.integers(-3, 4, (m, n)) * (rng.random((m, n)) < 0.5)
    middle = a @ (point := rng.integers(0, 4, n)).astype(float)
    low = np.where(rng.random(m) < 0.5, -INFINITY, middle - rng.integers(0, 3, m))
    high = np.where(rng.random(m) < 0.3, INFINITY, middle + rng.integers(0, 3, m))
    integer = rng.random(n) < 0.5
    rows = [
        (row.tolist(), float(low_side), float(high_side)) for row, low_side, high_side in zip(a, low, high, strict=True)
    ]
    bounds = [(float(p), float(p)) if whole else (0.0, 4.0) for p, whole in zip(point, integer, strict=True)]
    plain = matrix(rng.integers(-4, 5, n).tolist(), rows, bounds, integer=False)
    bounded = bounded_by_rows(plain)
    assert (bounded.lower >= plain.lower).all()
    assert (bounded.upper <= plain.upper).all()
    assert solve_matrix(bounded).objective == pytest.approx(solve_matrix(plain).objective)


def test_answers_within_tolerances_are_repaired() -> None:
    """A side missed by 1e-5 is mended: integers fixed, or sides moved inwards; one missed by 0.1 is the solver's fault."""
    programme = matrix([1, 1], [([1, 2], 3, INFINITY)], (0, 9), integer=[True, False])

    def ask(changed: MilpMatrix) -> RawResult:
        result = solve_matrix(changed)
        return RawResult(result.termination.reason, None, "", result.x, result.objective)

    for miss, holds in ((1e-5, True), (0.1, False)):
        raw = RawResult(Reason.OPTIMAL, None, "said", np.array([1.0, 1.0 - miss]), 2.0)
        again = repaired(programme, raw, ask)
        assert again.x is not None
        assert (float(programme.a.toarray()[0] @ again.x) >= 3 - 1e-6) == holds
        assert ("repaired" in again.raw) == holds
    # A column that a binary switches off: moving the side of its row inwards would leave nothing.
    switched = matrix([-2, 1], [([-3, 1], -INFINITY, 0), ([4, 1], -INFINITY, 1)], [(0, 1), (0, 9)], [True, False], True)
    again = repaired(switched, RawResult(Reason.OPTIMAL, None, "said", np.array([0.0, 1.5e-6]), 0.0), ask)
    assert again.x is not None
    assert again.x.tolist() == [0.0, 0.0]
    whole = matrix([1, 1], [([1, 2], 3, INFINITY)], (0, 9))
    assert best_by_enumeration(whole) == 2.0
