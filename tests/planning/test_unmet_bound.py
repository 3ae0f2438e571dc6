"""The bound by branching on shares of unmet demand, for allocations of a whole library."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import load_scenario
from coralopt.allocation import solve_allocation
from coralopt.errors import InfeasibleError
from coralopt.planning import plan_scenario
from coralopt.planning.coral import allocation_problem
from coralopt.planning.operators import unmet_prices
from coralopt.planning.unmet_bound import UnmetSolver
from coralopt.templates import build_library, scenario_tables
from tests.planning.test_on_demand import with_unmet_demand


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**16))
def test_the_bound_is_below_the_least_cost(seed: int) -> None:
    """Of a library; it is looked for as if no search of an allocation had ended."""
    scenario = with_unmet_demand(seed, "every")
    tables = scenario_tables(scenario)
    problem = allocation_problem(scenario, build_library(scenario), tables=tables)
    if not scenario.operations.cases:
        problem = replace(problem, unmet_price=unmet_prices(scenario))
    try:
        best = solve_allocation(problem, options={"rel_gap": 1e-6})
    except InfeasibleError:
        return
    bound = UnmetSolver(scenario, tables).bound(problem, best, 1e-6, float("inf"))
    assert bound <= best.cost_usd_h * (1 + 1e-9)


def test_a_budget_beside_dear_unmet_demand_is_proven_in_seconds() -> None:
    """A tree over the templates took 40 s."""
    scenario = load_scenario("core").with_limits(budget_usd_h=18.0, unmet_usd_mtok=10.0)
    plan = plan_scenario(scenario, options={"rel_gap": 1e-3}, on_infeasible="shortfall")
    assert plan.cost_usd_h == pytest.approx(191.71563, rel=1e-4)
    assert plan.status == "optimal"
    assert plan.lower_bound_usd_h <= 191.71563 * (1 + 1e-6)
