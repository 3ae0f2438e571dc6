"""Cases about answers: optimal, infeasible, unbounded, and every shape of model."""

from __future__ import annotations

import math

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Capability, MatrixBackend, MilpMatrix, Reason, SolveOptions, solve_matrix
from coralopt.testing.compliance.case import INFINITY, best_by_enumeration, case, knapsack, matrix

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-7)
NO_OPTIMUM = (Reason.UNBOUNDED, Reason.INFEASIBLE_OR_UNBOUNDED)


def _optimum(backend: MatrixBackend, programme: MilpMatrix, value: float) -> None:
    result = solve_matrix(programme, backend, EXACT)
    assert result.termination.reason is Reason.OPTIMAL, result.termination
    assert math.isclose(result.objective, value, rel_tol=1e-6, abs_tol=1e-6), (result.objective, value)
    assert result.bound is not None
    assert math.isclose(result.bound, value, rel_tol=1e-5, abs_tol=1e-5), (result.bound, value)


@case(Capability.LP)
def linear_minimum(backend: MatrixBackend) -> None:
    """The simplest thing there is."""
    _optimum(backend, matrix([2, 3], [([1, 1], 4, INFINITY)], integer=False), 8)


@case(Capability.LP)
def linear_maximum(backend: MatrixBackend) -> None:
    """A back end that drops the sense answers the opposite question."""
    _optimum(backend, matrix([2, 3], [([1, 2], -INFINITY, 8)], (0, 6), integer=False, maximize=True), 15)


@case(Capability.BOXED)
def integer_minimum(backend: MatrixBackend) -> None:
    """Integrality must reach the solver: the relaxation has a better value."""
    _optimum(backend, matrix([3, 4], [([2, 3], 7, INFINITY)], (0, 10)), 10)


@case(Capability.BOXED)
def integer_maximum(backend: MatrixBackend) -> None:
    """Both senses, with integrality."""
    programme = knapsack()
    _optimum(backend, programme, best_by_enumeration(programme) or 0.0)


@case(Capability.MILP)
def mixed_columns(backend: MatrixBackend) -> None:
    """Integer and continuous columns side by side."""
    programme = matrix([5, 4], [([2, 1], -INFINITY, 7.5)], (0, 3), integer=[True, False], maximize=True)
    _optimum(backend, programme, 5 * 2 + 4 * 3)


@case(Capability.BOXED)
def objective_constant(backend: MatrixBackend) -> None:
    """A constant belongs to objective and bound alike, in both senses."""
    for maximize in (False, True):
        programme = knapsack(maximize, offset=1000.5)
        _optimum(backend, programme, best_by_enumeration(programme) or 0.0)


@case(Capability.LP)
def unbounded_linear(backend: MatrixBackend) -> None:
    """No solution object for an unbounded model, whatever point the solver holds."""
    result = solve_matrix(matrix([-1, 1], [([1, -1], 0, INFINITY)], integer=False), backend)
    assert result.termination.reason in NO_OPTIMUM, result.termination
    assert result.x is None
    assert result.bound == -INFINITY


@case(Capability.MILP)
def unbounded_integer(backend: MatrixBackend) -> None:
    """Some interfaces report 1e20 or 1e30 as an optimum here."""
    result = solve_matrix(matrix([1, 1], [([1, -1], 0, 5)], maximize=True), backend)
    assert result.termination.reason in NO_OPTIMUM, result.termination
    assert result.x is None
    assert result.bound == INFINITY


@case(Capability.LP)
def infeasible_linear(backend: MatrixBackend) -> None:
    """Infeasible: no solution, no bound, no exception."""
    result = solve_matrix(matrix([1], [([1], 2, INFINITY), ([1], -INFINITY, 1)], integer=False), backend)
    assert result.termination.reason is Reason.INFEASIBLE, result.termination
    assert result.x is None
    assert result.bound is None


@case(Capability.BOXED)
def infeasible_integer(backend: MatrixBackend) -> None:
    """Feasible as a linear programme, infeasible in whole numbers."""
    result = solve_matrix(matrix([1, 1], [([2, 2], 3, 3)], (0, 5)), backend)
    assert result.termination.reason is Reason.INFEASIBLE, result.termination
    assert result.bound is None


@case(Capability.LP)
def infeasible_with_an_unbounded_ray(backend: MatrixBackend) -> None:
    """Presolve may not tell infeasible from unbounded; calling it unbounded would be wrong."""
    programme = matrix([-1, 0], [([0, 1], 2, INFINITY), ([0, 1], -INFINITY, 1)], integer=False)
    result = solve_matrix(programme, backend)
    assert result.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED), result.termination
    assert result.x is None


@case(Capability.LP)
def empty_model(backend: MatrixBackend) -> None:
    """No columns, no rows: the optimum is the constant."""
    result = solve_matrix(matrix([], offset=2.5), backend)
    assert result.termination.reason is Reason.OPTIMAL, result.termination
    assert result.objective == 2.5


@case(Capability.LP)
def no_columns_but_an_impossible_row(backend: MatrixBackend) -> None:
    """0 >= 1 has no solution even without columns."""
    result = solve_matrix(matrix([], [([], 1, INFINITY)]), backend)
    assert result.termination.reason is Reason.INFEASIBLE, result.termination


@case(Capability.BOXED)
def row_without_coefficients(backend: MatrixBackend) -> None:
    """An empty row that holds is harmless; one that does not makes the model infeasible."""
    _optimum(backend, matrix([1], [([0], -1, 1), ([1], 2, INFINITY)], (0, 9)), 2)
    result = solve_matrix(matrix([1], [([0], 1, 2)], (0, 9)), backend)
    assert result.termination.reason is Reason.INFEASIBLE, result.termination


@case(Capability.LP)
def linear_without_rows(backend: MatrixBackend) -> None:
    """There is an optimum though there is no row that could have a price."""
    _optimum(backend, matrix([1, -2], bounds=[(-3, 4), (-3, 4)], integer=False), -11)


@case(Capability.BOXED)
def no_rows(backend: MatrixBackend) -> None:
    """Bounds alone decide."""
    _optimum(backend, matrix([1, -2], bounds=[(-3, 4), (-3, 4)]), -11)


@case(Capability.LP)
def free_columns(backend: MatrixBackend) -> None:
    """Columns without bounds may be negative; a default lower bound of 0 would cut the optimum off."""
    programme = matrix([1, 1], [([1, 2], -4, INFINITY), ([3, 1], -6, INFINITY)], (-INFINITY, INFINITY), integer=False)
    _optimum(backend, programme, -1.6 - 1.2)


@case(Capability.MILP)
def negative_bounds(backend: MatrixBackend) -> None:
    """Integer columns below 0, and an upper bound only."""
    _optimum(backend, matrix([1, -1], [([1, 1], -9, 9)], [(-7.5, 3), (-INFINITY, -2.5)]), -6 + 3)


@case(Capability.BOXED)
def fixed_columns(backend: MatrixBackend) -> None:
    """lower = upper is a constant, not an error."""
    _optimum(backend, matrix([1, 1], [([1, 1], 5, INFINITY)], [(2, 2), (0, 9)]), 5)


@case(Capability.BOXED)
def range_and_equality_rows(backend: MatrixBackend) -> None:
    """Both sides of a row count."""
    rows = [([1, 1, 0], 2, 4), ([0, 1, 1], 3, 3), ([1, 0, -1], -INFINITY, INFINITY)]
    programme = matrix([3, -1, 2], rows, (0, 5))
    _optimum(backend, programme, best_by_enumeration(programme) or 0.0)


@case(Capability.BOXED)
def duplicate_entries(backend: MatrixBackend) -> None:
    """Two entries at one place add up."""
    from dataclasses import replace

    from scipy.sparse import coo_array

    once = matrix([1], [([3], 7, INFINITY)], (0, 9))
    twice = replace(once, a=coo_array(([1.0, 2.0], ([0, 0], [0, 0])), shape=(1, 1)))
    _optimum(backend, twice, 3)


@case(Capability.BOXED)
def zero_objective(backend: MatrixBackend) -> None:
    """A feasibility problem has objective 0, bound 0 and gap 0."""
    result = solve_matrix(matrix([0, 0], [([1, 1], 3, 3)], (0, 5)), backend)
    assert result.termination.reason is Reason.OPTIMAL, result.termination
    assert result.objective == 0.0
    assert result.gap == 0.0


@case(Capability.BOXED)
def zero_optimum(backend: MatrixBackend) -> None:
    """A relative gap at an optimum of 0 must not divide by zero."""
    _optimum(backend, matrix([1, 1], [([1, -1], 0, 0)], (0, 4)), 0)


@case(Capability.BOXED)
def wide_coefficients(backend: MatrixBackend) -> None:
    """Tokens/s beside node counts: coefficients from 1 to 1e6."""
    programme = matrix(
        [1.25, 40.0, 3.5],
        [([800.5, 123456.0, 2500.25], 1_000_000.0, INFINITY), ([1, 8, 2], -INFINITY, 80)],
        [(0, 9), (0, 9), (0, 9)],
    )
    _optimum(backend, programme, best_by_enumeration(programme) or 0.0)


@case(Capability.BOXED)
def equal_columns(backend: MatrixBackend) -> None:
    """Ties everywhere: many optima, one value."""
    programme = matrix([2.0] * 6, [([3.0] * 6, 10, INFINITY)], (0, 2))
    _optimum(backend, programme, 8)


@case(Capability.BOXED)
def random_programmes_equal_enumeration(backend: MatrixBackend) -> None:
    """Forty small programmes of every kind, against trying everything."""
    rng = np.random.default_rng(20240)
    for _ in range(40):
        columns, rows = int(rng.integers(1, 5)), int(rng.integers(0, 4))
        lower = rng.integers(-2, 2, columns)
        bounds = [
            (float(low), float(low + width)) for low, width in zip(lower, rng.integers(0, 4, columns), strict=True)
        ]
        lines = []
        for _ in range(rows):
            low, high = sorted(rng.integers(-8, 12, 2).tolist())
            sides = [(low, high), (low, INFINITY), (-INFINITY, high), (high, high)][int(rng.integers(0, 4))]
            lines.append((rng.integers(-4, 5, columns).tolist(), float(sides[0]), float(sides[1])))
        programme = matrix(
            (rng.integers(-8, 9, columns) / 4).tolist(),
            lines,
            bounds,
            maximize=bool(rng.integers(0, 2)),
            offset=float(rng.integers(-4, 5)),
        )
        truth = best_by_enumeration(programme)
        if truth is None:
            result = solve_matrix(programme, backend, EXACT)
            assert result.termination.reason is Reason.INFEASIBLE, result.termination
        else:
            _optimum(backend, programme, truth)


@case(Capability.MILP)
def presolve_keeps_the_problem(backend: MatrixBackend) -> None:
    """Two small placements that SCIP 10.0 gets wrong by itself: a fractional optimum, and one that violates a row."""
    from coralopt.solving import compile_problem
    from coralopt.testing.instances import placement_instance

    for seed, formulation, value in ((319, "tight", 56.125), (1194, "paper", 113.75)):
        programme = compile_problem(placement_instance(seed), formulation).matrix
        result = solve_matrix(programme, backend, SolveOptions(rel_gap=1e-6, abs_gap=1e-6))
        # Columns may lean on tolerances; the wrong answers are off by far more.
        assert math.isclose(result.objective, value, rel_tol=1e-5), (result.objective, value)


@case(Capability.LP)
def rows_of_millionths(backend: MatrixBackend) -> None:
    """The presolve of GLPK 5.0 takes x = 0 for x >= 1.9e-6."""
    rows = [([1, 0], 2.0**-19, INFINITY), ([0, 1], 0.09375, INFINITY)]
    result = solve_matrix(matrix([2.0**19, 32 / 3], rows, integer=False), backend)
    assert result.x is not None, result.termination
    assert result.x[0] > 0


@case(Capability.BOXED)
def preprocessing_keeps_the_optimum(backend: MatrixBackend) -> None:
    """One region and its loss: the preprocessing of CBC 2.10.8 makes it 176.5625."""
    rows: list[tuple[list[float], float, float]] = [
        ([48.75, 48.75, 0.0], 66.5, INFINITY),
        ([48.75, 48.75, -48.75], 66.5, INFINITY),
        ([1.0, 0.0, -2.0], -INFINITY, 0.0),
        ([0.0, 1.0, -2.0], -INFINITY, 0.0),
    ]
    _optimum(backend, matrix([6.5625, 85, 0], rows, [(0, 2), (0, 2), (0, 1)]), 98.125)


@case(Capability.MILP)
def an_exhausted_search_leaves_no_gap(backend: MatrixBackend) -> None:
    """Placements after which CPLEX 22.2 names an older bound (63 % off), and Xpress 9.9 one of its cutoff (1e-5 off)."""
    from coralopt.solving import compile_problem
    from coralopt.testing.instances import placement_instance

    for seed, formulation, value in ((910007, "paper", 18350080.0), (910009, "tight", 0.625)):
        programme = compile_problem(placement_instance(seed), formulation).matrix
        result = solve_matrix(programme, backend, SolveOptions(rel_gap=1e-6, abs_gap=1e-6))
        assert result.termination.reason is Reason.OPTIMAL, result
        assert math.isclose(result.objective, value, rel_tol=1e-5), (result.objective, value)


@case(Capability.MILP)
def better_by_millionths(backend: MatrixBackend) -> None:
    """Knapsacks between which 6e-6 lie: CBC 2.10.8 by itself calls one optimal if none is better by 1e-5."""
    weights = [220446, 120546, 192738, 80520, 230202, 215598, 173265, 196641, 73359, 187365, 155826, 67149]
    rows: list[tuple[list[float], float, float]] = [([float(weight) for weight in weights], -INFINITY, 956827.0)]
    items = matrix([weight * 1e-6 for weight in weights], rows, bounds=(0, 1), maximize=True)
    result = solve_matrix(items, backend, SolveOptions(rel_gap=0.0))
    assert math.isclose(result.objective, 0.956661, abs_tol=1e-6), (result.objective, result.bound)


@case(Capability.MILP)
def columns_that_a_binary_switches_off(backend: MatrixBackend) -> None:
    """A placement of wide figures: GLPK 5.0 leaves 1.5e-6 in columns that are 0, which is repaired."""
    from coralopt.solving import solve
    from coralopt.testing.instances import placement_instance

    solution = solve(placement_instance(2_003_623), backend, "tight", SolveOptions(rel_gap=1e-6, abs_gap=1e-6))
    assert math.isclose(solution.objective, 457.0, rel_tol=1e-5), solution


@case(Capability.MILP)
def templates_of_several_phases(backend: MatrixBackend) -> None:
    """Instances that serve two models at once: the presolve of COPT 8.0 ends at 42.1875, called optimal."""
    from coralopt.solving import solve
    from coralopt.testing.instances import allocation_instance

    solution = solve(allocation_instance(3_022_040), backend, "paper", SolveOptions(rel_gap=1e-6, abs_gap=1e-6))
    assert math.isclose(solution.objective, 39.5, rel_tol=1e-6), solution


@case(Capability.MILP)
def rows_that_a_continuous_column_tells_apart(backend: MatrixBackend) -> None:
    """Nodes at most and nodes in use in the same sum: the presolve of HiGHS 1.15.1 ends at 0.7, called optimal, or at
    nothing."""
    counted: list[tuple[list[float], float, float]] = [
        ([1, 1, 1, 0, 0], -INFINITY, 8),
        ([1, 1, 1, -1, 0], 0, 0),
        ([0.2, 0.7, 1, 0, -1], 0, INFINITY),
    ]
    bounds: list[tuple[float, float]] = [(0, 8), (0, 5), (0, 3), (0, 8), (0, 1)]
    whole = [True] * 3 + [False] * 2
    _optimum(backend, matrix([0, 0, 0, 0, 1], counted, bounds, integer=whole, maximize=True), 1.0)
    # What one row says of a few columns: column -> coefficient.
    sparse: list[tuple[dict[int, float], float, float]] = [
        ({2: 1, 3: 1, 4: 1, 10: 1, 11: -1}, 0, 0),
        ({0: 1, 1: 1}, -INFINITY, 3),
        ({0: 1, 1: 1, 12: -1}, 0, 0),
        ({3: 1, 6: 1, 13: -1}, 0, 0),
        ({0: 1, 4: 1, 14: -1}, 0, INFINITY),
        ({6: 0.2, 7: 0.1, 8: 0.1, 9: 0.1, 14: -1}, 0, INFINITY),
        ({1: 1, 10: 1, 14: -1}, 0, INFINITY),
        ({2: 14, 14: -1}, 0, INFINITY),
        ({3: 0.2, 5: 0.25, 14: -1}, 0, INFINITY),
    ]
    rows = [([terms.get(column, 0.0) for column in range(15)], low, high) for terms, low, high in sparse]
    bounds = [(0.0, most) for most in (3, 1, 1, 1, 2, 3, 1, 2, 2, 3, 1, 3, 3, 1, 1)]
    whole = [True] * 11 + [False] * 4
    _optimum(backend, matrix([0] * 14 + [1], rows, bounds, integer=whole, maximize=True), 0.75)


@case(Capability.MILP)
def infeasible_all_through(backend: MatrixBackend) -> None:
    """Shared instances too few for three demands: the integer preprocessing of GLPK 5.0 ends in an assertion."""
    rows: list[tuple[list[float], float, float]] = [
        ([0, 1, 1, 0, 0, 0, 0, 0], -INFINITY, 1),
        ([1, 0, 1, 0, 0, 0, 0, 0], -INFINITY, 1),
        ([63.25, 0, 88.75, -63.25, 63.25, 0, -88.75, -88.75], 1840, INFINITY),
        ([0, 0, 0, 0, 0, 43, 43, 0], 2760, INFINITY),
        ([0, 78.25, 0, 78.25, -78.25, -78.25, 0, 78.25], 2496, INFINITY),
        ([-1, 0, 0, 1, 0, 0, 0, 0], -INFINITY, 0),
        ([0, -1, 0, 0, 1, 1, 0, 0], -INFINITY, 0),
        ([0, 0, -1, 0, 0, 0, 1, 1], -INFINITY, 0),
    ]
    shared = matrix([24.75, 9.75, 34.5, 0, 0, 0, 0, 0], rows, integer=[True] * 3 + [False] * 5)
    assert solve_matrix(shared, backend).termination.reason is Reason.INFEASIBLE


@case(Capability.BOXED)
def fractional_bounds_of_integers(backend: MatrixBackend) -> None:
    """Integer columns between fractional bounds: HiGHS 1.15.1 calls such a model optimal elsewhere, or infeasible."""
    wrong = [
        (
            [-1.75, -1.5],
            [([-2, -2], 0, INFINITY), ([0, 2], -INFINITY, -1.5), ([0, 1], -INFINITY, 1), ([-3, -2], -INFINITY, 2.75)],
            [(0.5, 1.0), (-2.0, -0.5)],
        ),
        (
            [-2.0, -0.75, 1.25, 0.75],
            [([1, 0, 2, 2], -INFINITY, 3.0)],
            [(0.5, 3.0), (-1.0, 2.5), (0.5, 2.5), (-0.5, 2.0)],
        ),
        ([-2.0], [([1], 1.0, INFINITY)], [(-3.0, 1.5)]),
        ([1.25], [([1], -INFINITY, 1.5)], [(0.5, 2.0)]),
    ]
    for (c, rows, bounds), truth in zip(wrong, (-0.25, -2.25, -2.0, 1.25), strict=True):
        _optimum(backend, matrix(c, rows, bounds), truth)
    result = solve_matrix(matrix([1], bounds=[(0.2, 0.8)]), backend)
    assert result.termination.reason is Reason.INFEASIBLE, result.termination


@case(Capability.LP)
def small_coefficients_count(backend: MatrixBackend) -> None:
    """max x with x <= 1e-10 y, y <= 1e12 is 100; solvers that drop the coefficient say 0."""
    programme = matrix([1, 0], [([1, -1e-10], -INFINITY, 0)], [(0, INFINITY), (0, 1e12)], integer=False, maximize=True)
    _optimum(backend, programme, 100)


@case(Capability.LP)
def small_figures_are_held_apart(backend: MatrixBackend) -> None:
    """Everything a billionth of ordinary size: rows hold, and the objective is an optimum, relative to that."""
    programme = matrix([2e-9, 3e-9], [([3e-9, 1e-9], 6e-9, INFINITY), ([1e-9, 2e-9], 4e-9, INFINITY)], integer=False)
    result = solve_matrix(programme, backend, SolveOptions(rel_gap=0.0))
    assert result.termination.reason is Reason.OPTIMAL, result.termination
    assert math.isclose(result.objective, 6.8e-9, rel_tol=1e-6), result.objective
    if result.row_duals is not None:
        assert np.allclose(result.row_duals, [0.2, 1.4], atol=1e-6), result.row_duals


@case(Capability.BOXED)
def figures_that_solvers_misread_are_refused(backend: MatrixBackend) -> None:
    """What would be dropped or read as infinite, and cannot be helped by other units, is an error before the solve."""
    dropped = matrix([1, 0], [([1, -1e-10], -INFINITY, 0)], [(0, 9), (0, 1e12)], maximize=True)
    for programme, word in ((dropped, "x1 in row0"), (matrix([1], bounds=[(0, 1e20)]), "upper bound of x0")):
        try:
            solve_matrix(programme, backend)
        except SolverError as error:
            words = str(error)
        else:
            words = "it was solved"
        assert word in words, words


@case(Capability.BOXED)
def costs_a_billion_apart(backend: MatrixBackend) -> None:
    """Prices beside penalties of 1e9: solvers whose tolerances count in penalties have paid twice, or a bit too much."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        columns = int(rng.integers(2, 5))
        lines = int(rng.integers(1, 4))
        costs = (rng.integers(1, 40, columns) / 4) * np.where(rng.random(columns) < 0.5, 1e9, 1.0)
        rows = [(rng.integers(0, 9, columns).tolist(), float(rng.integers(1, 12)), INFINITY) for _ in range(lines)]
        programme = matrix(costs.tolist(), rows, (0, 4))
        truth = best_by_enumeration(programme)
        result = solve_matrix(programme, backend)
        if truth is None:
            assert result.termination.reason is Reason.INFEASIBLE, (seed, result.termination)
        else:
            assert math.isclose(result.objective, truth, rel_tol=2e-4), (seed, result.objective, truth)
