"""Of allocations that cost the same, one with the fewest GPUs, where nodes cost nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coralopt.allocation import Allocation, AllocationProblem, fewest_gpus, solve_allocation
from coralopt.allocation.routes import ModelRoutes, Route
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions
from coralopt.testing.allocation_strategies import allocation_problems

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-7)


def gpus_of(problem: AllocationProblem, allocation: Allocation, gpus: np.ndarray) -> int:
    return int((problem.usage[allocation.template] @ gpus) @ allocation.count)


# Many small problems are infeasible.
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    problem=allocation_problems(max_templates=3, max_regions=2, max_phases=2, max_available=2),
    seed=st.integers(0, 2**32 - 1),
)
def test_fewest_gpus_among_equal_costs(problem: AllocationProblem, seed: int) -> None:
    """Against every allocation there is, with some nodes for nothing; never dearer than the first answer."""
    rng = np.random.default_rng(seed)
    free = rng.random(problem.price.shape) < 0.7
    problem = replace(problem, price=np.where(free & ~np.isnan(problem.price), 0.0, problem.price))
    gpus = 2 ** rng.permutation(problem.price.shape[1])
    try:
        result = solve_allocation(problem, options=EXACT)
    except InfeasibleError:
        assume(False)
        return
    fewer = fewest_gpus(problem, result, gpus, "highs", EXACT)
    check = problem.check(fewer.allocation)
    assert check.feasible
    assert check.objective == fewer.cost_usd_h <= result.cost_usd_h
    assert gpus_of(problem, fewer.allocation, gpus) <= gpus_of(problem, result.allocation, gpus)
    if not free.all():
        return
    pairs = np.argwhere(problem.most_instances() > 0).tolist()
    counts = [range(int(problem.most_instances()[t, r]) + 1) for t, r in pairs]
    some = (Allocation.of(dict(zip(map(tuple, pairs), count, strict=True))) for count in itertools.product(*counts))
    least = min(gpus_of(problem, item, gpus) for item in some if problem.check(item).feasible)
    assert gpus_of(problem, fewer.allocation, gpus) == least


def test_paid_nodes_and_limits_stay() -> None:
    """A large free node gives way to a small one; the paid node that serves the other phase stays what it is."""
    problem = AllocationProblem(
        usage=np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        throughput=np.array([10.0, 10.0, 10.0]),
        phase=np.array([0, 0, 1]),
        demand=np.array([10.0, 10.0]),
        availability=np.array([[1, 1, 1]]),
        price=np.array([[0.0, 0.0, 2.0]]),
        running=None,
        penalty=0.1,
        phase_names=("a", "b"),
        region_names=("r",),
        configuration_names=("8xA", "1xA", "1xB"),
    )
    first = solve_allocation(problem, options=EXACT)
    large = replace(first, allocation=Allocation.of({(0, 0): 1, (2, 0): 1}))
    fewer = fewest_gpus(problem, large, np.array([8, 1, 1]), "highs", EXACT)
    assert fewer.allocation.to_mapping() == {(1, 0): 1, (2, 0): 1}
    assert fewer.cost_usd_h == first.cost_usd_h


def test_a_model_with_routes_that_is_not_served_needs_none() -> None:
    """Its demand goes unmet at its price, where nothing serves it; a free node still serves the other model."""
    problem = AllocationProblem(
        usage=np.array([[1, 0], [0, 1]]),
        throughput=np.array([10.0, 10.0]),
        phase=np.array([2, 2]),
        demand=np.array([5.0, 5.0, 10.0]),
        availability=np.array([[1, 1], [1, 1]]),
        price=np.zeros((2, 2)),
        running=None,
        penalty=0.1,
        phase_names=("a/prefill", "a/decode", "b"),
        region_names=("r", "s"),
        configuration_names=("8xA", "1xA"),
        unmet_price=np.array([1.0, 1.0, np.inf]),
        unmet_together=((0, 1),),
        routes=(ModelRoutes("a", tuple(Route(((0, r), (1, r))) for r in range(2))),),
    )
    first = solve_allocation(problem, options=EXACT)
    large = replace(first, allocation=Allocation.of({(0, 0): 1}))
    fewer = fewest_gpus(problem, large, np.array([8, 1]), "highs", EXACT)
    assert [t for t, _ in fewer.allocation.to_mapping()] == [1]
    assert fewer.cost_usd_h == first.cost_usd_h == 10.0
