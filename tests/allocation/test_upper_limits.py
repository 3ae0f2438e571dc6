"""Upper limits are left out as long as that settles an allocation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_problems import allocations_within, operated_cost, operated_problems

from coralopt.allocation import AllocationProblem, AllocationSearchOptions, Explanation, solve_allocation
from coralopt.allocation.search.upper_limits import UpperLimitSearch, rent_only
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import Limit, SolveOptions, get_backend

EXACT = SolveOptions(rel_gap=0.0)
FREE = SideConstraint("budget", "most", "usd_h", 1e9)


@st.composite
def limited_problems(draw: st.DrawFn) -> tuple[AllocationProblem, Fraction | None]:
    """A problem where instances run already, with a budget of about the rent of some allocation; its least rent without."""
    problem = draw(operated_problems(("supply", "region", "model", "quota", "spare")))
    problem = replace(problem, unmet_price=None, penalty=draw(st.sampled_from([0.0, 0.5, 8.0])))
    every = [dict(counts) for counts in allocations_within(problem)]
    served = np.zeros_like(problem.demand)
    for (t, _), count in draw(st.sampled_from(every)).items():
        served[problem.phase[t]] += count * problem.throughput[t]
    problem = replace(problem, demand=np.minimum(problem.demand, served))
    running = np.zeros((len(problem.throughput), len(problem.price)), dtype=np.int64)
    for (t, r), count in draw(st.sampled_from(every)).items():
        running[t, r] = count
    problem = replace(problem, running=running)
    rent = rent_only(replace(problem, side_constraints=(*problem.side_constraints, FREE)), FREE)
    rents = [cost for counts in every if (cost := operated_cost(rent, counts)) is not None]
    budget = (
        float(min(rents, default=Fraction(4)))
        + draw(st.sampled_from([0.0, 1.0, 4.0]))
        + draw(st.sampled_from([-0.25, 0.0, 0.25]))
    )
    row = replace(FREE, bound=max(0.0, budget))
    limited = replace(problem, side_constraints=(*problem.side_constraints, row))
    return limited, min(rents, default=None)


@settings(max_examples=150, deadline=None)
@given(drawn=limited_problems())
def test_least_cost_within_a_budget_is_that_of_enumeration(
    drawn: tuple[AllocationProblem, Fraction | None],
) -> None:
    """Where none is affordable, the reason names the least rent."""
    problem, least_rent = drawn
    every = (operated_cost(problem, counts) for counts in allocations_within(problem))
    truth = min((cost for cost in every if cost is not None), default=None)
    if truth is None:
        with pytest.raises(InfeasibleError) as caught:
            solve_allocation(problem, options=EXACT)
        explanation = caught.value.explanation
        assert isinstance(explanation, Explanation)
        assert (least_rent is None) == (not explanation.needed)
        for name, bound in explanation.eased.items():
            # Beside all other limits, whichever were left out.
            rows = (replace(row, bound=bound) if row.name == name else row for row in problem.side_constraints)
            eased = replace(problem, side_constraints=tuple(rows))
            assert any(operated_cost(eased, counts) is not None for counts in allocations_within(eased))
        if least_rent is not None:
            assert explanation.needed["budget"] == pytest.approx(float(least_rent))
            assert explanation.eased["budget"] == pytest.approx(float(least_rent))
            assert "is enough, less than" in str(caught.value)
        return
    result = solve_allocation(problem, options=EXACT)
    assert result.cost_usd_h == pytest.approx(float(truth))
    assert result.bound_usd_h == pytest.approx(float(truth))


def two_kinds(**parts: Any) -> AllocationProblem:
    """One model phase on a dear or a cheap node."""
    return AllocationProblem(
        usage=np.array([[1, 0], [0, 1]], dtype=np.int16),
        throughput=np.array([10.0, 10.0]),
        phase=np.array([0, 0], dtype=np.int32),
        price=np.array([[3.0, 2.0]]),
        availability=np.array([[2, 2]]),
        phase_names=("m/decode",),
        region_names=("here",),
        configuration_names=("dear", "cheap"),
        **parts,
    )


def test_the_row_is_there_where_cost_goes_against_rent() -> None:
    """Keeping the dear node costs less than starting a cheap one; the budget allows only the cheap one."""
    problem = two_kinds(
        demand=np.array([10.0]),
        penalty=1.0,
        running=np.array([[1], [0]]),
        side_constraints=(replace(FREE, bound=2.5),),
    )
    assert solve_allocation(problem, options=EXACT).cost_usd_h == pytest.approx(4.0)
    assert solve_allocation(replace(problem, side_constraints=()), options=EXACT).cost_usd_h == pytest.approx(3.0)


def test_a_limit_is_not_called_enough_beside_one_that_was_left_out() -> None:
    """Three nodes would do, but not within the budget: both limits are in the way."""
    problem = two_kinds(
        demand=np.array([30.0]),
        penalty=0.1,
        running=None,
        side_constraints=(replace(FREE, bound=6.0), SideConstraint("few", "most", "nodes", 2.0)),
    )
    with pytest.raises(InfeasibleError) as caught:
        solve_allocation(problem, options=EXACT)
    assert "is enough" not in str(caught.value)
    assert not caught.value.explanation.enough


def test_ctrl_c_ahead_of_any_allocation_ends_all_searches() -> None:
    """Without limits nothing is known in time: the search goes on with them, unless it was Ctrl-C."""
    limits = (replace(FREE, bound=9.0), SideConstraint("few", "most", "nodes", 3.0))
    problem = two_kinds(demand=np.array([10.0]), penalty=0.1, running=None, side_constraints=limits)
    for limit, searches in ((Limit.TIME, 3), (Limit.INTERRUPTED, 1)):
        said = SimpleNamespace(termination=SimpleNamespace(limit=limit))
        solve = Mock(side_effect=NoSolutionError("nothing is known", said))
        search = UpperLimitSearch(problem, get_backend("highs"), EXACT, AllocationSearchOptions(), solve)
        with pytest.raises(NoSolutionError):
            search.run()
        assert solve.call_count == searches
