"""Annealing offers what the problem allows, at the cost it says, and finds the optimum of small problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from operator_problems import operated_problems

from coralopt.allocation import AllocationProblem, AllocationSearchOptions, SearchLimits, SideConstraint
from coralopt.allocation.bounds.unmet import shared_groups
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search.annealing import Annealing
from coralopt.allocation.search.annealing_kernel import Cooling, anneal
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.decomposition import raise_bound
from coralopt.allocation.search.solve import _root_bound, solve_allocation
from coralopt.allocation.side_constraints import open_constraints
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions, get_backend
from coralopt.testing.allocation_strategies import allocation_problems
from coralopt.testing.instances import allocation_instance
from coralopt.testing.synthetic import synthetic_problem

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)
#: Three replicas where one instance runs, which costs least: the bound counts that one three times.
REPLICAS = AllocationProblem(
    usage=np.array([[2, 2], [0, 1]]),
    throughput=np.array([8.5, 10.0]),
    phase=np.zeros(2, dtype=np.int32),
    demand=np.array([14.5]),
    availability=np.array([[3, 3], [3, 1]]),
    price=np.array([[6.5, 4.0], [6.75, 2.75]]),
    running=np.array([[2, 0], [1, 0]]),
    penalty=2.0,
    phase_names=("model0/decode",),
    region_names=("region0", "region1"),
    configuration_names=("1xGPU", "2xGPU"),
    side_constraints=(SideConstraint("replicas", "least", "instances", 3.0, (0,)),),
)


def annealing_of(problem: AllocationProblem) -> Annealing | None:
    """As the search makes it, after the decomposition; ``None`` where it does not come so far."""
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.reduce(None)
    small = search.small
    if not (small.demand > 0).any() or not small.adds_up or len(small.joint) or small.routes:
        return None
    search.columns = Columns.of(search.small)
    try:
        root: Root = _root_bound(search)
    except InfeasibleError:
        return None
    found = raise_bound(search, root, None)
    return Annealing.of(search, found.root, found.met)


@settings(max_examples=60, deadline=None)
@given(
    problem=st.one_of(
        allocation_problems(),
        operated_problems(),
        operated_problems(("supply", "quota", "spare")),
        operated_problems(("shortfall", "cases", "replicas", "budget")),
    ),
    seed=st.integers(0, 3),
)
@example(problem=REPLICAS, seed=1)
def test_what_it_finds_is_allowed(problem: AllocationProblem, seed: int) -> None:
    """Cost, demand, nodes, running instances and side constraints, what may be lost among them, added up anew."""
    task = annealing_of(problem)
    if task is None:
        return
    unit = max(float(task.items.cost.max()), 1e-3)
    cooling = Cooling(2_000, 0.1 * unit, 0.001 * unit)
    begin = task._placed(task.start())
    cost, counts = anneal(task.items, task.rows, task.needs, cooling, *begin, np.random.default_rng(seed))
    if not np.isfinite(cost):
        return
    small, columns = task.search.small, task.search.columns
    template, region = columns.template[task.columns], columns.region[task.columns]
    every = np.zeros(len(columns), dtype=np.int64)
    every[task.columns] = counts
    share = np.bincount(columns.phase[task.columns], small.throughput[template] * counts, len(small.demand))
    missing = np.maximum(0.0, 1 - share / np.where(small.demand > 0, small.demand, np.nan))
    groups = shared_groups(small, small.unmet_prices())
    unmet = sum(float(group.cost(np.array([missing[list(group.phases)].max()]))[0]) for group in groups)
    assert np.isclose(cost, columns.usd_h(small, every) + unmet)
    assert (counts <= columns.upper[task.columns]).all()
    served = np.bincount(columns.phase[task.columns], small.throughput[template] * counts, len(small.demand))
    priced = np.isfinite(small.unmet_prices())
    assert (served >= np.where(priced, 0.0, small.demand * (1 - 1e-9))).all()
    used = np.zeros_like(small.availability)
    np.add.at(used, region, small.usage[template].astype(np.int64) * counts[:, None])
    assert (used <= small.availability).all()
    check = small.check(columns.allocation(counts, task.columns))
    assert check.feasible
    assert np.isclose(float(check.objective), cost)
    for item in open_constraints(small):
        each = item.coefficients(small, template, region, columns.kept[task.columns])
        value = float(each @ counts) - (float(each[counts > 0].max()) if item.one_lost else 0.0)
        room = item.sign * (item.limit(small) - value)
        assert room >= -1e-6 * item.limit(small) - 1e-9


def test_it_finds_the_optimum_of_small_problems() -> None:
    """Alone, without what comes before and after it; the full model says what the optimum is."""
    optimal = met = 0
    for seed in range(100):
        problem = allocation_instance(seed, max_templates=8)
        task = annealing_of(problem)
        if task is None:
            continue
        task.run(4)
        try:
            whole = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(reductions=False))
        except InfeasibleError:
            assert math.isinf(task.search.cost)
            continue
        met += 1
        assert task.search.cost >= whole.cost_usd_h * (1 - 1e-9)
        optimal += task.search.cost <= whole.cost_usd_h * (1 + 1e-9)
    assert met >= 20
    assert optimal >= 0.9 * met


def test_the_same_seed_finds_the_same() -> None:
    """And what it finds is near what the whole search proves."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=6, regions=2, supply="scarce", nodes=40)
    whole = solve_allocation(problem)
    costs = []
    for _ in range(2):
        task = annealing_of(problem)
        assert task is not None
        task.run(8)
        costs.append(task.search.cost)
    assert costs[0] == costs[1]
    assert whole.bound_usd_h <= costs[0] <= whole.bound_usd_h * 1.02


def test_ctrl_c_ends_the_search_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocation before it is the answer, marked as interrupted."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coralopt.allocation.search.annealing_kernel.anneal", interrupted)
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=6, regions=2, supply="scarce", nodes=40)
    limits = SearchLimits(direct_columns=0, doublings=0, rests=0)
    result = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(limits=limits))
    assert result.interrupted
    assert problem.check(result.allocation).feasible
    assert result.bound_usd_h <= result.cost_usd_h
