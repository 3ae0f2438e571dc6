"""Templates that divide their time among model phases: every way to an answer against trying everything."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    Joint,
    ModelRoutes,
    Route,
    SideConstraint,
    explain,
    solve_allocation,
    time_shares,
)
from coralopt.allocation.bounds.relaxation import SHORTFALL, dual_bound, reduced_costs, solve_relaxation
from coralopt.allocation.model import FORMULATIONS
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.reductions.clip import clipped
from coralopt.allocation.search.options import SearchLimits
from coralopt.errors import InfeasibleError, SolverError
from coralopt.solving import SolveOptions, solve
from coralopt.testing.allocation_strategies import best_with_divided_time, divided_problems
from coralopt.testing.instances import problem_from_json, problem_to_json

EXACT = SolveOptions(rel_gap=0.0)


@settings(max_examples=12, deadline=None)
@given(divided_problems())
def test_formulations_reductions_and_search_find_the_best(problem: AllocationProblem) -> None:
    """Every way to an answer agrees with trying all counts, each with its best shares of time by another programme."""
    truth = best_with_divided_time(problem)
    for formulation in FORMULATIONS:
        solution = solve(problem, "highs", formulation, EXACT)
        assert (solution.answer is None) == (truth is None)
        if truth is not None:
            assert solution.objective == pytest.approx(truth, rel=1e-6, abs=1e-6)
    for limits in (SearchLimits(), SearchLimits(direct_columns=0, many_templates=0)):
        search = AllocationSearchOptions(explained=False, limits=limits)
        if truth is None:
            with pytest.raises(InfeasibleError):
                solve_allocation(problem, "highs", EXACT, search)
        else:
            result = solve_allocation(problem, "highs", EXACT, search)
            assert result.cost_usd_h == pytest.approx(truth, rel=1e-6, abs=1e-6)
            assert result.bound_usd_h <= truth + 1e-6
            assert result.gap <= 1e-6


def test_a_wider_pass_reaches_the_cost_that_is_known() -> None:
    """The bound at its prices comes from another grid; a target told as a share of it was 2.7e-6 short of the cost."""
    problem = AllocationProblem(
        usage=np.array([[0, 2]], dtype=np.int16),
        throughput=np.array([7.75]),
        phase=np.array([0], dtype=np.int32),
        demand=np.array([13.75]),
        availability=np.array([[0, 3], [3, 0]]),
        price=np.array([[2.75, 5.75], [6.75, 5.0]]),
        running=None,
        penalty=0.0,
        phase_names=("a/mixed",),
        region_names=("r", "s"),
        configuration_names=("1xA", "1xB"),
        joint=Joint(divided=True),
        unmet_price=np.array([12.36363636]),
        unmet_together=((0,),),
    )
    search = AllocationSearchOptions(explained=False, limits=SearchLimits(direct_columns=0, many_templates=0))
    result = solve_allocation(problem, "highs", EXACT, search)
    assert result.bound_usd_h == result.cost_usd_h == pytest.approx(11.5 + 6 * 12.36363636)


@settings(max_examples=12, deadline=None)
@given(divided_problems())
def test_the_relaxation_is_a_bound_at_its_own_and_at_worse_prices(problem: AllocationProblem) -> None:
    """Weak duality holds at any prices, so that an early end of the column generation proves nothing wrong."""
    truth = best_with_divided_time(problem)
    columns = Columns.of(problem)
    if truth is None or not len(columns):
        return
    relaxation = solve_relaxation(problem, columns, "highs")
    assert (relaxation.shortfall <= SHORTFALL).all()
    for factor in (1.0, 0.5, 3.0):
        worse = replace(relaxation, demand_duals=factor * relaxation.demand_duals)
        prices = reduced_costs(problem, columns, worse.demand_duals, worse.capacity_prices)
        assert dual_bound(problem, columns, worse, prices) <= truth + 1e-6


def _pair(price: tuple[float, float] = (1.0, 1.5)) -> AllocationProblem:
    """One node for both phases, 10 tokens/s of the first or 5 of the second, and a better one for the second."""
    return AllocationProblem(
        usage=np.eye(2, dtype=np.int16),
        throughput=np.array([10.0, 1.0]),
        phase=np.array([0, 0], dtype=np.int32),
        demand=np.array([5.0, 2.5]),
        availability=np.array([[4, 4]]),
        price=np.array([price]),
        running=None,
        penalty=0.0,
        phase_names=("a.short/mixed", "a.long/mixed"),
        region_names=("r",),
        configuration_names=("1xA", "1xB"),
        joint=Joint(np.array([0, 1]), np.array([1, 1], dtype=np.int32), np.array([5.0, 20.0]), divided=True),
    )


def test_one_instance_gives_each_class_its_half() -> None:
    """5 of 10 and 2.5 of 5 take all of its time; a hair more needs another; nothing is clipped to a demand."""
    problem = _pair()
    assert solve_allocation(problem).cost_usd_h == 1.0
    (group,) = time_shares(problem, [(0, 0, 1)])
    assert group.served == 1
    assert group.time == {(0, 0): Fraction(1, 2), (0, 1): Fraction(1, 2)}
    more = replace(problem, demand=np.array([5.0, 2.6]))
    assert solve_allocation(more).cost_usd_h == 2.0
    check = more.check(Allocation.of({(0, 0): 1}))
    assert {(item.kind, item.subject) for item in check.violations} == {
        ("demand", name) for name in problem.phase_names
    }
    # Alone on the other node the long ones would take 1/8 of it.
    alone = replace(problem, joint=Joint())
    with pytest.raises(InfeasibleError):
        solve_allocation(alone)
    spare = time_shares(problem, [(0, 0, 1), (1, 0, 1)])[0]
    assert spare.served > 1
    assert sum(time for (t, _), time in spare.time.items() if t == 0) <= 1


def test_a_model_beside_classes_may_need_little() -> None:
    """A plain phase beside them is clipped, so that a back end sees a demand of 1e-8 of what an instance gives."""
    pair, little = _pair(), np.array([7.0])
    beside = replace(
        pair,
        usage=np.vstack([pair.usage, [[0, 1]]]).astype(np.int16),
        throughput=np.append(pair.throughput, little),
        phase=np.append(pair.phase, 2).astype(np.int32),
        demand=np.append(pair.demand, 1e-8 * little),
        phase_names=(*pair.phase_names, "b/mixed"),
    )
    assert clipped(beside).throughput.tolist() == [10.0, 1.0, 1e-8 * 7.0]
    assert solve_allocation(beside).cost_usd_h == 2.5
    assert solve(beside, "highs", "split", EXACT).objective == 2.5


def test_what_falls_short_is_said_of_every_class_that_shares_the_time() -> None:
    """Shares of time could go to either, so neither is served whole."""
    problem = replace(_pair(), availability=np.array([[1, 0]]), demand=np.array([10.0, 5.0]))
    told = explain(problem)
    assert [item.phase for item in told.shortfalls] == ["a.short/mixed", "a.long/mixed"]
    assert [item.missing_tokens_s for item in told.shortfalls] == [5.0, 2.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routes": (ModelRoutes("a", (Route(((0, None),)), Route(((1, None),)))),)}, "neither routes nor tokens/s"),
        ({"side_constraints": (SideConstraint("s", "least", "tokens_s", 0.5, (0,)),)}, "neither routes nor tokens/s"),
        ({"unmet_price": np.ones(2)}, "template 0 divides its time among phases that do not go unmet together"),
        ({"start_penalty": np.zeros(2)}, "neither start costs of their own nor the loss of an instance"),
    ],
)
def test_what_divided_time_does_not_know_is_refused(change: dict[str, object], message: str) -> None:
    """Better a sentence than a bound that does not hold."""
    with pytest.raises(SolverError, match=message):
        replace(_pair(), **change)  # type: ignore[arg-type]


def test_saved_problems_come_back() -> None:
    """With the word that says how templates serve their phases."""
    again = problem_from_json(problem_to_json(_pair()))
    assert isinstance(again, AllocationProblem)
    assert again.joint.divided
    assert solve_allocation(again).cost_usd_h == 1.0
