"""The tree over node counts: alone, without the steps that come after it, against trying everything."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    Joint,
    SideConstraint,
    solve_allocation,
)
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.neighbourhood import search_neighbourhoods
from coralopt.allocation.search.node_counts import _CountNode, branch_on_node_counts
from coralopt.allocation.search.options import SearchLimits
from coralopt.allocation.search.solve import _root_bound
from coralopt.errors import InfeasibleError, SolverError
from coralopt.solving import SolveOptions, require_backend
from coralopt.testing.allocation_strategies import (
    best_by_enumeration,
    best_with_divided_time,
    divided_problems,
    joint_problems,
)

EXACT = SolveOptions(rel_gap=0.0)


def searched(problem: AllocationProblem, limits: SearchLimits = SearchLimits()) -> SearchContext:
    """The tree right after the root bounds, no allocation known."""
    options = AllocationSearchOptions(explained=False, limits=limits)
    search = SearchContext(problem, require_backend("highs"), options, EXACT, math.inf)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    branch_on_node_counts(search, _root_bound(search))
    return search


@settings(max_examples=40)
@given(st.one_of(joint_problems(), divided_problems()))
def test_the_tree_is_exact(problem: AllocationProblem) -> None:
    """Cost and bound are the least cost of all."""
    truth = (best_with_divided_time if problem.joint.divided else best_by_enumeration)(problem)
    if not (problem.demand > 0).any():
        return
    try:
        search = searched(problem)
    except InfeasibleError:
        assert truth is None
        return
    if truth is None or search.small.supply:
        assert search.allocation is None
        return
    assert search.cost == pytest.approx(float(truth), rel=1e-6, abs=1e-6)
    assert search.bound == pytest.approx(float(truth), rel=1e-6, abs=1e-6)


@settings(max_examples=15)
@given(joint_problems(), st.integers(0, 2))
def test_a_tree_cut_short_has_a_bound(problem: AllocationProblem, nodes: int) -> None:
    """Open nodes keep their bounds."""
    truth = best_by_enumeration(problem)
    if truth is None or not (problem.demand > 0).any():
        return
    search = searched(problem, SearchLimits(tree_nodes=nodes))
    assert search.bound <= float(truth) + 1e-6
    assert search.cost >= float(truth) - 1e-6


def _halves(models: int) -> AllocationProblem:
    """Every pair of an odd number of models fits one node, no three do: fractions rent half a node too few."""
    pairs = [(i, j) for i in range(models) for j in range(i + 1, models)]
    count = len(pairs)
    return AllocationProblem(
        usage=np.ones((count, 1), dtype=np.int16),
        throughput=np.ones(count),
        phase=np.array([i for i, _ in pairs], dtype=np.int32),
        demand=np.ones(models),
        availability=np.array([[models]]),
        price=np.array([[1.0]]),
        running=None,
        penalty=0.0,
        phase_names=tuple(f"m{i}/mixed" for i in range(models)),
        region_names=("r",),
        configuration_names=("1xGPU",),
        joint=Joint(np.arange(count), np.array([j for _, j in pairs], dtype=np.int32), np.ones(count)),
    )


def test_half_a_node_is_a_whole_one() -> None:
    """Nine models in pairs take five nodes, proven by one branching; the relaxation rents 4.5."""
    search = searched(_halves(9), SearchLimits(tree_nodes=2))
    assert search.relaxation_usd_h == pytest.approx(4.5)
    assert search.cost == 5.0
    assert search.bound == pytest.approx(5.0)
    limits = SearchLimits(direct_columns=0)
    result = solve_allocation(_halves(9), options=EXACT, search=AllocationSearchOptions(limits=limits))
    assert result.cost_usd_h == 5.0
    assert result.gap == 0.0
    assert "node counts" in result.seconds


def test_neighbourhoods_of_shared_nodes_find_the_pairs() -> None:
    """From a node for each model, instances that are taken away together come back as pairs; with an odd one left over."""
    everything = _halves(7)
    alone = replace(
        everything,
        usage=np.ones((len(everything.throughput) + 7, 1), dtype=np.int16),
        throughput=np.ones(len(everything.throughput) + 7),
        phase=np.concatenate([everything.phase, np.arange(7, dtype=np.int32)]),
    )
    search = SearchContext(alone, require_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.columns = Columns.of(search.small)
    own = np.arange(7) + len(everything.throughput)
    assert search.offer(Allocation(own, np.zeros(7, dtype=np.int64), np.ones(7, dtype=np.int64)))
    assert search.cost == 7.0
    search_neighbourhoods(search, _root_bound(search))
    assert search.cost == 4.0


def test_ctrl_c_in_a_leaf_ends_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back end heard it first, and the context has no time left; the bound so far stands."""
    leaves: list[float] = []

    def interrupted(search: SearchContext, node: _CountNode) -> float:
        leaves.append(node.bound)
        search.interrupted, search.deadline = True, 0.0
        return node.bound

    monkeypatch.setattr("coralopt.allocation.search.node_counts._solve_leaf", interrupted)
    kinds, names = np.eye(3, dtype=np.int16), ("1xA", "1xB", "1xC")
    price, available = np.array([[1.0, 1.1, 1.2]]), np.full((1, 3), 3)
    search = searched(replace(_halves(3), usage=kinds, price=price, availability=available, configuration_names=names))
    assert len(leaves) == 1
    assert search.bound <= leaves[0]


def test_problems_with_limits_of_the_tree_are_not_reduced() -> None:
    """Dominance would take away nodes that must be in use."""
    least = SideConstraint("used", "least", "used_nodes", 2.0, None, (0,), (0,))
    problem = replace(_halves(3), side_constraints=(least,))
    with pytest.raises(SolverError, match="search's own limits"):
        reduce_problem(problem)
    with pytest.raises(SolverError, match="measure"):
        replace(problem, side_constraints=(replace(least, sense="most"),))


def test_a_tree_that_ends_without_any_allocation_says_that_there_is_none() -> None:
    """One and a half instances on three nodes would do; whole ones do not, and another demand is 0."""
    problem = AllocationProblem(
        usage=np.array([[2, 0], [0, 1]], dtype=np.int16),
        throughput=np.array([3.25, 10.0]),
        phase=np.zeros(2, dtype=np.int32),
        demand=np.array([34.0, 0.0]),
        availability=np.array([[3, 3]]),
        price=np.array([[3.25, 4.25]]),
        running=None,
        penalty=0.0,
        phase_names=("model0/decode", "model1/decode"),
        region_names=("region0",),
        configuration_names=("1xGPU", "2xGPU"),
        joint=Joint(np.array([1]), np.array([1], dtype=np.int32), np.array([0.5])),
    )
    search = AllocationSearchOptions(limits=SearchLimits(direct_columns=0))
    with pytest.raises(InfeasibleError):
        solve_allocation(problem, "highs", EXACT, search)
