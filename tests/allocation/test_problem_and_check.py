"""The allocation problem refuses nonsense by name, and its checker trusts nobody."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import Allocation, AllocationProblem, solve_allocation
from coralopt.errors import SolverError
from coralopt.testing.allocation_strategies import allocation_problems, corrupted


def problem(**changes: Any) -> AllocationProblem:
    given = {
        "usage": np.array([[1, 0], [0, 2]], dtype=np.int16),
        "throughput": np.array([10.0, 30.0]),
        "phase": np.array([0, 0], dtype=np.int32),
        "demand": np.array([40.0]),
        "availability": np.array([[3, 4]], dtype=np.int64),
        "price": np.array([[1.0, 1.25]]),
        "running": np.array([[2], [0]], dtype=np.int64),
        "penalty": 0.5,
        "phase_names": ("m/decode",),
        "region_names": ("east",),
        "configuration_names": ("1xL4", "1xH100"),
    }
    return AllocationProblem(**{**given, **changes})


def of(*entries: tuple[int, int, int]) -> Allocation:
    return Allocation.of({(t, r): n for t, r, n in entries})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"usage": np.array([[1, 0], [0, 0]])}, "usage of template 1"),
        ({"usage": np.array([[1, 0], [-1, 3]])}, "usage of template 1"),
        ({"usage": np.array([[1, 0], [0.5, 1]])}, r"usage\[1, 0\] is 0.5"),
        ({"usage": np.ones(2)}, "usage has shape"),
        ({"throughput": np.array([1.0])}, "throughput has shape"),
        ({"throughput": np.array([1.0, np.nan])}, "throughput of template 1 is nan"),
        ({"throughput": np.array([-1.0, 2.0])}, "throughput of template 0 is -1.0"),
        ({"demand": np.array([-1.0])}, "demand of m/decode is -1.0"),
        ({"demand": np.array([np.inf])}, "demand of m/decode is inf"),
        ({"phase": np.array([0, 1])}, "phase of template 1 is 1"),
        ({"phase": np.array([-1, 0])}, "phase of template 0 is -1"),
        ({"availability": np.array([[3, -4]])}, "availability of 1xH100 in east is -4"),
        ({"availability": np.array([[3, np.nan]])}, r"availability\[0, 1\] is nan"),
        ({"price": np.array([[1.0, np.nan]])}, "price of 1xH100 in east is nan"),
        ({"price": np.array([[-1.0, 1.0]])}, "price of 1xL4 in east is -1.0"),
        ({"running": np.array([[2], [-1]])}, "running of template 1 in east is -1"),
        ({"running": np.array([2, 1])}, "running has shape"),
        ({"penalty": float("nan")}, "penalty K is nan"),
        ({"penalty": -0.5}, "penalty K is -0.5"),
        ({"penalty": np.inf}, "penalty K is inf"),
        ({"start_penalty": np.ones(3)}, "start_penalty must be 2 numbers"),
        ({"start_penalty": np.array([1.0, -1.0])}, "start_penalty must be 2 numbers"),
        ({"start_penalty": np.array([np.inf, 1.0])}, "start_penalty must be 2 numbers"),
        ({"configuration_names": ("a",)}, "configuration_names has 1"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], words: str) -> None:
    """Bad figures that pass here come out as strange plans later; the message must say which value, where."""
    with pytest.raises(SolverError, match=words):
        problem(**changes)


def test_cost_is_the_papers() -> None:
    """Provisioning plus K times the price of added instances: kept ones pay no penalty, removed ones nothing."""
    # 3 of template 0 (2 run): 3 x 1 + 0.5 x 1 x 1; 1 of template 1 (none runs): 2.5 + 0.5 x 2.5.
    check = problem().check(of((0, 0, 3), (1, 0, 1)))
    assert check.feasible
    assert check.objective == 3 + 0.5 + 2.5 + 1.25
    assert problem(running=None, penalty=0.0).check(of((0, 0, 1), (1, 0, 1))).objective == 3.5


def test_demand_is_compared_to_a_billionth() -> None:
    """3 x 0.1 is less than 0.1 + 0.2 in binary, and serves it; what a solver's tolerances would hide is missed."""
    third = problem(throughput=np.array([0.1, 0.1]), demand=np.array([0.3]))
    assert third.check(of((0, 0, 3))).feasible
    assert Fraction(0.1) * 3 < Fraction(0.1 + 0.2)
    assert replace(third, demand=np.array([0.1 + 0.2])).check(of((0, 0, 3))).feasible
    check = replace(third, demand=np.array([0.3 * (1 + 2e-9)])).check(of((0, 0, 3)))
    assert not check.feasible
    assert "m/decode" in check.sentences[0]
    # Programs select by kind and subject, not by words.
    assert [(item.kind, item.subject) for item in check.violations] == [("demand", "m/decode")]


def test_capacity_and_price_violations_say_where() -> None:
    """The message is all a solver author has to find the wrong column."""
    assert "4 nodes of 1xL4 in east, 3 are available" in problem().check(of((0, 0, 4))).sentences
    nowhere = problem(availability=np.array([[3, 0]]), price=np.array([[1.0, np.nan]]))
    assert any("no price" in text for text in nowhere.check(of((1, 0, 2))).sentences)


def in_reach(problem: AllocationProblem) -> AllocationProblem:
    """With a demand that one filling of the nodes serves, so that no draw is left out: seven of ten pools are too small."""
    left, served, full = problem.availability.copy(), np.zeros(len(problem.demand)), False
    while not full:
        full = True
        for t, r in np.ndindex(len(problem.usage), len(left)):
            if (problem.usage[t] <= left[r]).all():
                left[r] -= problem.usage[t]
                served[problem.phase[t]] += problem.throughput[t]
                full = False
    return replace(problem, demand=np.minimum(problem.demand, served))


@settings(max_examples=80, deadline=None)
@given(allocation_problems().map(in_reach), st.data())
def test_broken_allocations_are_rejected(problem: AllocationProblem, data: st.DataObject) -> None:
    """The checker is the last gate before an answer leaves: it must see whatever was broken."""
    allocation = solve_allocation(problem).allocation
    assert problem.check(allocation).feasible
    check = problem.check(data.draw(corrupted(problem, allocation)))
    assert not check.feasible
    assert check.violations
