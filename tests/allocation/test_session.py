"""Re-solving after a change says what a fresh solve of the changed problem says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import AllocationProblem, AllocationSession
from coralopt.solving import Reason, SolveOptions, solve
from coralopt.testing.allocation_strategies import allocation_problems

EXACT = SolveOptions(rel_gap=1e-6, abs_gap=1e-6)


@settings(max_examples=60, deadline=None)
@given(allocation_problems(max_templates=5), st.integers(0, 2**32 - 1))
def test_a_session_equals_fresh_solves(problem: AllocationProblem, seed: int) -> None:
    """Six changes in a row, each against a model built anew from the changed problem."""
    rng = np.random.default_rng(seed)
    session = AllocationSession(problem, options=EXACT)
    for _ in range(6):
        demand = problem.demand * rng.integers(0, 3, len(problem.demand))
        availability = np.where(np.isnan(problem.price), 0, rng.integers(0, 6, problem.price.shape))
        price = np.where(np.isnan(problem.price), np.nan, rng.integers(1, 30, problem.price.shape) / 4.0)
        found = session.solve(demand, price, availability)
        fresh = solve(session.problem, "highs", "split", EXACT)
        assert (found.answer is None) == (fresh.answer is None)
        if fresh.answer is None:
            assert found.termination.reason is fresh.termination.reason is Reason.INFEASIBLE
        else:
            assert found.objective == pytest.approx(fresh.objective, rel=1e-9)
    assert session.builds == 1


def test_a_new_price_builds_anew_and_a_lost_one_does_not() -> None:
    """What starts to be sold needs columns; what is no longer sold only needs them shut."""
    problem = AllocationProblem(
        usage=np.array([[1, 0], [0, 1]], dtype=np.int16),
        throughput=np.array([10.0, 10.0]),
        phase=np.zeros(2, dtype=np.int32),
        demand=np.array([20.0]),
        availability=np.array([[5, 0]]),
        price=np.array([[3.0, np.nan]]),
        running=None,
        penalty=0.0,
        phase_names=("m/decode",),
        region_names=("r",),
        configuration_names=("a", "b"),
    )
    session = AllocationSession(problem)
    assert session.solve().objective == 6.0
    assert session.solve(price=[[3.0, 1.0]], availability=[[5, 5]]).objective == 2.0
    assert session.builds == 2
    assert session.solve(price=[[3.0, np.nan]], availability=[[5, 0]]).objective == 6.0
    assert session.builds == 2


@pytest.mark.parametrize("solver", ["highs", "scip", "gurobi"])
def test_the_last_answer_is_the_next_start(solver: str) -> None:
    """With no time to search, the answer of the epoch before is what remains."""
    from coralopt.testing.synthetic import synthetic_problem

    pytest.importorskip({"highs": "highspy", "scip": "pyscipopt", "gurobi": "gurobipy"}[solver])
    problem = synthetic_problem(max_nodes=2, phases=2, configurations=3, regions=1, supply="ample", nodes=20)
    session = AllocationSession(problem, solver, {"rel_gap": 1e-4})
    first = session.solve()
    assert first.answer is not None
    second = session.solve(demand=problem.demand * 0.999)
    assert second.start_accepted is not False
    assert second.objective <= first.objective
