"""An infeasible demand is explained by the least shortfall there can be, in words."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from coralopt.allocation import AllocationProblem, SideConstraint, explain, largest_factor, solve_allocation
from coralopt.allocation.explain import Explanation, Shortfall
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import Limit, MatrixResult, Reason, Termination, solve_matrix
from coralopt.testing.allocation_strategies import (
    allocation_problems,
    least_shortfall_by_enumeration,
)
from coralopt.testing.synthetic import synthetic_problem


@settings(max_examples=150, deadline=None)
@given(problem=allocation_problems(max_templates=4))
def test_shortfall_is_the_least_possible(problem: AllocationProblem) -> None:
    """Blaming a phase for more than it must miss would send the user to rent the wrong nodes."""
    explanation = explain(problem)
    truth = float(least_shortfall_by_enumeration(problem))
    assert explanation.missing_share == pytest.approx(truth, rel=2e-3, abs=1e-6)
    assert explanation.least_share <= truth + 1e-6
    assert bool(explanation.shortfalls) == (truth > 0)
    for item in explanation.shortfalls:
        p = problem.phase_names.index(item.phase)
        assert 0 < item.missing_tokens_s <= item.demand_tokens_s == problem.demand[p]
        assert (item.reason == "no template") == (not ((problem.phase == p) & (problem.throughput > 0)).any())


def pool(**changes: object) -> AllocationProblem:
    given: dict[str, object] = {
        "usage": np.array([[1, 0], [0, 2]]),
        "throughput": np.array([100.0, 300.0]),
        "phase": np.array([0, 1]),
        "demand": np.array([500.0, 900.0]),
        "availability": np.array([[3, 7]]),
        "price": np.array([[1.0, 4.0]]),
        "running": None,
        "penalty": 0.1,
        "phase_names": ("small/decode", "large/prefill"),
        "region_names": ("us-east-2",),
        "configuration_names": ("1xL4", "1xH100"),
    }
    return AllocationProblem(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens_s", [1e-9, 1e-7, 1e-4, 1.0, 1e7])
@pytest.mark.parametrize("budget", [0.0, 1e-9, 0.699, 0.6999999])
def test_a_budget_just_below_the_price_of_a_node(tokens_s: float, budget: float) -> None:
    """However small the demand: it cannot be met, the limit is named, no share can be served, all of it is unmet."""
    problem = pool(
        usage=np.array([[1, 0], [0, 1]]),
        phase=np.array([0, 0]),
        demand=np.array([tokens_s]),
        availability=np.array([[10**6, 10**6]]),
        price=np.array([[0.7, 1.8]]),
        phase_names=("small/mixed",),
        side_constraints=(SideConstraint("limits.max_usd_h", "most", "usd_h", budget),),
    )
    with pytest.raises(InfeasibleError) as caught:
        solve_allocation(problem)
    assert "limits.max_usd_h" in str(caught.value)
    with pytest.raises(InfeasibleError, match=r"no common share .*(\n.*)*limits\.max_usd_h"):
        largest_factor(problem)
    unmet = solve_allocation(replace(problem, unmet_price=np.array([0.01])))
    assert unmet.cost_usd_h == pytest.approx(0.01 * tokens_s, rel=1e-12)
    # A node can be had; at 1e7 tokens/s that is little.
    one = largest_factor(replace(problem, side_constraints=(SideConstraint("budget", "most", "usd_h", 0.7),)))
    assert float(one.factor) == pytest.approx(min(1.0, 100.0 / tokens_s), rel=1e-6)


def test_a_limit_that_only_tolerances_tell_apart_is_named() -> None:
    """Prices without a common step: the back end takes 0.57 + 1e-8 for 0.57, which no one can afford."""
    price = 1.712345678912345 / 3
    limit = SideConstraint("limits.max_usd_h", "most", "usd_h", price * (1 - 1e-7))
    problem = pool(demand=np.array([1.0, 0.0]), price=np.array([[price, 4.0]]), side_constraints=(limit,))
    two = replace(problem, usage=np.array([[1, 0], [0, 1]]), phase=np.array([0, 0]))
    with pytest.raises(InfeasibleError, match=r"not within limits\.max_usd_h: 0\.5708 is enough"):
        solve_allocation(two)
    # A limit on less than everything is a row of the programme.
    two = replace(two, side_constraints=(replace(limit, regions=(0,)),))
    with pytest.raises(
        NoSolutionError, match=r"only one within its tolerances: limits\.max_usd_h: 0\.570781892971 USD/h"
    ):
        solve_allocation(two)
    with pytest.raises(NoSolutionError, match=r"breaks limits\.max_usd_h"):
        largest_factor(two)


@pytest.mark.parametrize("share", [1e-8, 1e-6, 1e-3])
def test_a_limit_that_leaves_room_is_not_blamed(share: float) -> None:
    """Nodes are what lacks, be it by less than back ends see."""
    ample = SideConstraint("limits.max_usd_h", "most", "usd_h", 1e4)
    problem = pool(demand=np.array([300.0 * (1 + share), 0.0]), side_constraints=(ample,))
    explanation = explain(problem)
    assert explanation.shortfalls[0].binding == (("1xL4", "us-east-2"),)
    assert explanation.conflict == ()


def test_what_time_left_open_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of two limits is one too many; whether easing one would be enough is not known without an answer."""
    limits = (
        SideConstraint("few", "most", "nodes", 2.6, phases=(0,)),
        SideConstraint("cheap", "most", "usd_h", 2.6),
    )
    problem = pool(demand=np.array([250.0, 0.0]), side_constraints=limits)
    known = explain(problem)
    assert (known.conflict, known.enough, known.decided) == (("cheap",), (), True)
    assert "and others as well: cheap" in str(known)

    answers: list[MatrixResult] = []

    def no_fourth_answer(*task: Any) -> MatrixResult:
        answers.append(solve_matrix(*task))
        late = Termination(Reason.NO_SOLUTION_FOUND, Limit.TIME, "time")
        return answers[-1] if len(answers) != 4 else replace(answers[-1], x=None, termination=late)

    monkeypatch.setattr(importlib.import_module("coralopt.allocation.explain"), "solve_matrix", no_fourth_answer)
    unknown = explain(problem)
    assert len(answers) == 5
    assert (unknown.conflict, unknown.irreducible, unknown.enough, unknown.decided) == (("cheap",), True, (), False)
    assert "maybe others as well: cheap" in str(unknown)


def test_words_for_too_few_nodes() -> None:
    """The message names the phase, what is missing, and the nodes to ask for."""
    with pytest.raises(InfeasibleError) as caught:
        solve_allocation(pool())
    text = str(caught.value)
    assert "small/decode falls short by 200.0 of 500.0 tokens/s (40.0 %)" in text
    assert "1xL4 in us-east-2" in text
    assert "large/prefill" not in text
    assert caught.value.explanation.shortfalls[0].binding == (("1xL4", "us-east-2"),)


def test_words_for_no_template() -> None:
    """No number of nodes helps a phase that no node set serves; the message must not ask for more of them."""
    with pytest.raises(InfeasibleError, match="small/decode: no node set of the pool can serve it") as caught:
        solve_allocation(pool(phase=np.array([1, 1])))
    assert caught.value.explanation.shortfalls[0].reason == "no template"


def test_words_for_nothing_that_fits() -> None:
    """Templates exist, but no single region has the nodes of one: that is another remedy again."""
    with pytest.raises(InfeasibleError, match="large/prefill: no region offers the nodes") as caught:
        solve_allocation(pool(availability=np.array([[9, 1]])))
    assert caught.value.explanation.shortfalls[0].reason == "does not fit"


def test_words_for_both() -> None:
    """One phase that no node set serves does not keep the message from saying what would help another."""
    lacks = [Shortfall(f"m{k}/decode", 10.0, 5.0, reason, ()) for k, reason in enumerate(("no template", "capacity"))]
    assert "offer more nodes of these" in str(Explanation(tuple(lacks), 1.0, 1.0))
    assert "offer more nodes of these" not in str(Explanation((lacks[0],), 1.0, 1.0))


def test_words_for_little_demand() -> None:
    """A demand of two requests an hour is not one of 0.0."""
    assert "falls short by 0.00056 of 0.0011 tokens/s (50.0 %)" in str(
        Shortfall("m", 1 / 900, 1 / 1800, "capacity", ())
    )


def test_a_pool_that_is_large_enough_is_not_blamed() -> None:
    """Asked without need, the explanation says so."""
    assert "can meet every demand" in str(explain(pool(availability=np.array([[9, 9]]))))


def test_large_pool() -> None:
    """Above the column limit the explanation is a good one rather than the best, and says how good."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=12, regions=2, supply="scarce", nodes=200)
    problem = replace(problem, availability=problem.availability // 3)
    explanation = explain(problem)
    assert explanation.shortfalls
    assert 0 < explanation.least_share <= explanation.missing_share <= 1.5 * explanation.least_share + 0.05
