"""Requests that may not go from any instance to any other: flows, rows, bounds and answers against trying everything."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    ModelRoutes,
    Route,
    SearchLimits,
    check_allocation,
    matrix_from_arrays,
    solve_allocation,
)
from coralopt.allocation.bounds import routed
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.model import FORMULATIONS
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.routes import least_flow
from coralopt.allocation.search.options import AllocationSearchOptions
from coralopt.errors import InfeasibleError, SolverError
from coralopt.solving import MilpMatrix, SolveOptions, matrix_from_pyomo, solve
from coralopt.testing.allocation_strategies import (
    allocation_problems,
    best_with_routes,
    flow_by_linear_programme,
    routed_problems,
    varied_problems,
)

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-7)
problems = st.one_of(routed_problems(), routed_problems(unmet=True), varied_problems())


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 2**32 - 1))
def test_the_exact_flow_costs_what_a_linear_programme_says(problem: AllocationProblem, seed: int) -> None:
    """The price of routes in a plan is only as good as the flow that the checker chooses."""
    rng = np.random.default_rng(seed)
    most = np.minimum(problem.most_instances(), 3)
    allocation = Allocation.of({(t, r): int(rng.integers(0, most[t, r] + 1)) for t, r in np.ndindex(most.shape)})
    check = check_allocation(problem, allocation)
    flow = flow_by_linear_programme(problem, allocation)
    served = not any(item.kind == "demand" for item in check.violations)
    assert served == (flow is not None)
    if flow is not None:
        bare = replace(problem, demand=np.zeros_like(problem.demand), routes=(), unmet_price=None, unmet_together=())
        assert check.objective - bare.check(allocation).objective == pytest.approx(flow, rel=1e-6, abs=1e-6)


def assert_finds(problem: AllocationProblem, search: AllocationSearchOptions, truth: float | None) -> None:
    """The search proves the best cost, or that there is none."""
    if truth is None:
        with pytest.raises(InfeasibleError):
            solve_allocation(problem, "highs", EXACT, search)
        return
    result = solve_allocation(problem, "highs", EXACT, search)
    assert result.cost_usd_h == pytest.approx(truth, rel=1e-6, abs=1e-5)
    assert result.bound_usd_h <= truth * (1 + 1e-7) + 1e-6
    assert result.gap <= 1e-6


@settings(max_examples=40, deadline=None)
@given(problems)
def test_formulations_reductions_and_search_find_the_best(problem: AllocationProblem) -> None:
    """Every way to an answer must agree with trying all counts."""
    truth = best_with_routes(problem)
    searches = (
        AllocationSearchOptions(explained=False),
        AllocationSearchOptions(explained=False, limits=SearchLimits(direct_columns=0, many_templates=0)),
    )
    for formulation in FORMULATIONS:
        solution = solve(problem, "highs", formulation, EXACT)
        assert (solution.answer is None) == (truth is None)
        if truth is not None:
            assert solution.objective == pytest.approx(truth, rel=1e-6, abs=1e-5)
    for search in searches:
        assert_finds(problem, search, truth)


@settings(max_examples=40, deadline=None)
@given(problems, st.integers(0, 2**32 - 1))
def test_bounds_hold_at_any_prices(problem: AllocationProblem, seed: int) -> None:
    """The proof of a plan with routes is the bound of its models; a column of the optimum must never look too dear."""
    truth = best_with_routes(problem)
    columns = Columns.of(problem)
    if truth is None or not len(columns):
        return
    prices = np.random.default_rng(seed).choice([0.0, 0.0, 0.5, 3.0], problem.price.shape)
    solution = solve(problem, "highs", "split", EXACT)
    assert solution.answer is not None
    used = columns.counts(solution.answer) > 0
    for grid in (7, 1000):
        found = lagrangian_bound(problem, columns, prices, grid=grid)
        # The truth comes from a linear programme and is off by its tolerance.
        assert found.bound <= truth + 1e-6 + 1e-8 * abs(truth)
        assert (found.column_bounds[used] <= truth + 1e-5).all()


@settings(max_examples=20, deadline=None)
@given(problems, st.sampled_from([0, 4, 40]))
def test_too_many_combinations_cost_only_the_bound(problem: AllocationProblem, pairs: int) -> None:
    """Where regions allow more combinations than are looked at (forty do), a model may lack a bound; answers stay best."""
    truth = best_with_routes(problem)
    columns = Columns.of(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routed, "PAIRS", pairs)
        if len(columns):
            bound = lagrangian_bound(problem, columns, np.zeros(problem.price.shape), grid=1000)
            assert truth is None or bound.bound <= truth + 1e-6 + 1e-8 * abs(truth)
        search = AllocationSearchOptions(explained=False, limits=SearchLimits(direct_columns=0, many_templates=0))
        assert_finds(problem, search, truth)


def test_what_regions_cannot_exchange_is_explained() -> None:
    """Enough prefill and enough decode, but not where the other is: a reader must learn what is missing."""
    problem = AllocationProblem(
        usage=np.eye(2, dtype=np.int16),
        throughput=np.ones(2),
        phase=np.array([0, 1], dtype=np.int32),
        demand=np.ones(2),
        availability=np.eye(2, dtype=np.int64),
        price=np.ones((2, 2)),
        running=None,
        penalty=0.0,
        phase_names=("m/prefill", "m/decode"),
        region_names=("a", "b"),
        configuration_names=("c", "d"),
        routes=(ModelRoutes("m", tuple(Route(((0, r), (1, r))) for r in (0, 1))),),
    )
    with pytest.raises(InfeasibleError, match="m/decode falls short by 1"):
        solve_allocation(problem)
    sent = replace(problem, routes=(ModelRoutes("m", (Route(((0, 0), (1, 1)), 5.0),)),))
    assert solve_allocation(sent).cost_usd_h == 7.0


def _rows(matrix: MilpMatrix) -> dict[str, tuple[float, float, tuple[tuple[str, float], ...]]]:
    dense = matrix.a.toarray()
    return {
        name.removesuffix("_lb").removesuffix("_ub"): (
            matrix.row_lower[i],
            matrix.row_upper[i],
            tuple(sorted((matrix.column_names[k], dense[i, k]) for k in np.flatnonzero(dense[i]))),
        )
        for i, name in enumerate(matrix.row_names)
        # A row without coefficients is none for the compiler; it holds anyway or makes both infeasible.
        if dense[i].any()
    }


@settings(max_examples=60, deadline=None)
@given(problems)
def test_the_direct_matrix_has_the_rows_of_the_compiled_one(problem: AllocationProblem) -> None:
    """Two routes to the same rows, coefficient for coefficient."""
    direct = matrix_from_arrays(problem)
    built = FORMULATIONS["split"].build(problem)
    if hasattr(built, "nothing_serves"):
        return
    compiled, _ = matrix_from_pyomo(built)
    assert _rows(direct) == _rows(compiled)
    costs = dict(zip(compiled.column_names, compiled.c.tolist(), strict=True))
    for name, cost in zip(direct.column_names, direct.c.tolist(), strict=True):
        assert costs.get(name, cost) == cost


def test_a_flow_prefers_what_is_near_and_pays_for_the_rest() -> None:
    """Half of the prefill stands where the decode does; only the other half is sent."""
    routes = ModelRoutes("m", tuple(Route(((0, r), (1, s)), 0.0 if r == s else 10.0) for r in (0, 1) for s in (0, 1)))
    half = Fraction(1, 2)
    flow = least_flow(routes, {(0, 0): half, (0, 1): Fraction(1), (1, 0): Fraction(1)})
    assert flow.shares == (half, 0, half, 0)
    assert (flow.usd_h, flow.unmet) == (5, 0)
    assert least_flow(routes, {(0, 0): half, (1, 0): Fraction(1)}).unmet == half
    assert least_flow(routes, {(0, 1): half, (1, 0): Fraction(1)}, unmet_usd_h=Fraction(9)).unmet == 1


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ((Route(((0, 0), (1, 0)), -1.0),), "at least 0"),
        ((Route(((0, 0), (1, 7))),), "no pool"),
        ((Route(((0, 0), (0, 1))),), "one or two phases"),
        ((Route(((0, 0),)), Route(((0, None), (1, 0)))), "in one region and in all"),
        ((Route(((0, 0),)), Route(((0, 0), (1, 0)))), "two places"),
        ((), "none"),
    ],
)
def test_bad_routes_are_refused(routes: tuple[Route, ...], message: str) -> None:
    """A typing error in a route must not become a plan."""
    with pytest.raises(SolverError, match=message):
        AllocationProblem(
            usage=np.ones((2, 1), dtype=np.int16),
            throughput=np.ones(2),
            phase=np.array([0, 1], dtype=np.int32),
            demand=np.ones(2),
            availability=np.ones((2, 1), dtype=np.int64),
            price=np.ones((2, 1)),
            running=None,
            penalty=0.0,
            phase_names=("m/prefill", "m/decode"),
            region_names=("a", "b"),
            configuration_names=("c",),
            routes=(ModelRoutes("m", routes),),
        )


@settings(max_examples=40, deadline=None)
@given(allocation_problems(max_templates=4, max_regions=2, max_phases=3, max_available=3))
def test_both_modes_of_a_model_cost_at_most_the_cheaper_one(problem: AllocationProblem) -> None:
    """Who may choose pays for no choice; and the best split is that of trying all counts."""
    if len(problem.demand) < 3:
        return
    demand = np.maximum(problem.demand, 0.25)
    routes = ModelRoutes("model0", (Route(((2, None),)), Route(((0, None), (1, None)))))
    free = replace(problem, demand=demand, routes=(routes,))
    apart, mixed = (replace(problem, demand=np.where(np.arange(3) == 2, *d)) for d in ((0.0, demand), (demand, 0.0)))
    solutions = [solve(pure, "highs", "split", EXACT) for pure in (apart, mixed)]
    cheaper = min((float(found.objective) for found in solutions if found.answer is not None), default=None)
    truth = best_with_routes(free)
    if truth is None:
        assert cheaper is None
        return
    assert cheaper is None or truth <= cheaper + 1e-6
    result = solve_allocation(free, "highs", EXACT)
    assert result.cost_usd_h == pytest.approx(truth, rel=1e-6, abs=1e-5)
    assert result.bound_usd_h <= truth * (1 + 1e-7) + 1e-6
