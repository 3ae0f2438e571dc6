"""The tree over node counts proves what trying everything finds, whatever little of it goes to the back end at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_problems import best_operated_by_enumeration, countable_cells, operated_problems

from coralopt.allocation import (
    AllocationProblem,
    AllocationResult,
    AllocationSearchOptions,
    SearchLimits,
    reduce_problem,
    solve_allocation,
)
from coralopt.allocation.bounds.coverings import NodeLimit, WeightedColumns
from coralopt.allocation.bounds.decomposition import MasterState, best_prices
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search import branching
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.decomposition import add_cuts, raise_bound
from coralopt.allocation.search.fixing import close_weighed
from coralopt.allocation.search.node_programme import has_programme, solve_programme
from coralopt.allocation.search.solve import _root_bound
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions, get_backend
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration
from coralopt.testing.instances import allocation_instance
from coralopt.testing.synthetic import synthetic_problem

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)


def searched(problem: AllocationProblem, limits: SearchLimits, many: int) -> AllocationResult:
    """Where nodes are counted over all regions, too, from ``many`` on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coralopt.allocation.search.splitting.MANY_REGIONS", many)
        return solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(limits=limits))


@settings(max_examples=80, deadline=None)
@given(allocation_problems(), st.sampled_from((2, 5, 6_000)), st.sampled_from((0, 1, 5_000)), st.sampled_from((2, 4)))
def test_tree_is_exact(problem: AllocationProblem, leaf: int, nodes: int, many: int) -> None:
    """With next to nothing handed over at once, or chosen from in a leaf, the tree must branch, and is still exact."""
    truth = best_by_enumeration(problem)
    if truth is None:
        return
    limits = SearchLimits(direct_columns=0, first_coverings=0, most_coverings=0, leaf_coverings=leaf, leaf_nodes=nodes)
    for columns in (0, 6_000):
        # Nodes with more columns do not go to the back end.
        result = searched(problem, replace(limits, programme_columns=columns), many)
        assert result.cost_usd_h == pytest.approx(float(truth), abs=1e-6)
        assert result.bound_usd_h <= float(truth) + 1e-6


@pytest.mark.parametrize(
    "kinds", [("spare",), ("replicas",), ("survive",), ("replicas", "survive"), ("shortfall", "cases")]
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_operators_ask_for_is_no_cell_to_branch_on(kinds: tuple[str, ...], data: st.DataObject) -> None:
    """Rows of the master programme beside those of nodes, and coverings of phases that go unmet together."""
    problem, many = data.draw(operated_problems(kinds=kinds)), data.draw(st.sampled_from((2, 4)))
    truth = best_operated_by_enumeration(problem)
    if truth is None:
        return
    limits = SearchLimits(direct_columns=0, first_coverings=0, most_coverings=0, leaf_coverings=2)
    result = searched(problem, limits, many)
    assert result.cost_usd_h == pytest.approx(float(truth), abs=1e-6)
    assert result.bound_usd_h <= float(truth) + 1e-6


@settings(max_examples=80, deadline=None)
@given(problem=allocation_problems(), seed=st.integers(0, 1000))
def test_limits_only_cut_what_they_say(problem: AllocationProblem, seed: int) -> None:
    """A limit that the optimum satisfies must not lift the bound over it; the least of both children bounds the whole."""
    small = reduce_problem(problem).problem
    columns = Columns.of(small)
    truth = best_by_enumeration(problem)
    if truth is None or not len(columns):
        return
    rng = np.random.default_rng(seed)
    phase = int(rng.integers(len(small.demand)))
    cells = countable_cells(small, rng)
    most = int(small.availability.ravel()[list(cells)].sum())
    cut = int(rng.integers(0, most + 1))
    every = np.arange(len(columns))
    bounds = [
        best_prices(
            PricingProblem(small, columns, every, [limit]), MasterState(np.zeros(small.price.shape)), "highs"
        ).bound
        for limit in (NodeLimit(phase, cells, 0, cut), NodeLimit(phase, cells, cut + 1, most))
    ]
    assert min(bounds) <= float(truth) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("seed", [601, 1251])
def test_ctrl_c_in_a_leaf_ends_the_tree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The back end heard it first: no other leaf is handed over."""
    leaves: list[int] = []

    def interrupted(search: SearchContext, *_: object) -> float:
        leaves.append(seed)
        search.interrupted, search.deadline = True, 0.0
        return -np.inf

    monkeypatch.setattr("coralopt.allocation.search.branching.best_choice", interrupted)
    limits = SearchLimits(
        direct_columns=0,
        compact_columns=0,
        loss_columns=0,
        cut_rounds=0,
        first_coverings=0,
        most_coverings=0,
        leaf_coverings=2,
        programme_columns=0,
        first_rise=0.5,
    )
    search = AllocationSearchOptions(limits=limits)
    result = solve_allocation(allocation_instance(seed), options=EXACT, search=search)
    assert len(leaves) == 1
    assert result.interrupted
    assert result.bound_usd_h <= result.cost_usd_h


@pytest.mark.parametrize("nodes", [0, 5_000])
def test_a_leaf_that_is_hard_to_choose_from_is_split(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound alone would end the tree short of the gap; a leaf that is easy ends by itself."""
    problem = synthetic_problem(max_nodes=3, phases=6, configurations=5, regions=2, supply="scarce", nodes=24, seed=2)
    options = AllocationSearchOptions(limits=SearchLimits(leaf_nodes=nodes))
    search = SearchContext(problem, get_backend("highs"), options, EXACT, math.inf)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    root = _root_bound(search)
    settled: list[int] = []
    choose = branching._Tree._choose

    def watched(self: branching._Tree, *leaf: Any) -> Any:
        own, children = choose(self, *leaf)
        settled.append(len(children))
        return own, children

    monkeypatch.setattr(branching._Tree, "_choose", watched)
    branching.Branching(search, root).go()
    assert search.done()
    assert bool(sum(settled)) == (nodes == 0)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 4),
    most=st.sampled_from([2, 100]),
    columns=st.sampled_from([0, 6_000]),
)
def test_a_tree_in_several_goes(seed: int, nodes: int, most: int, columns: int) -> None:
    """Every go ends after a few nodes and the next one goes on from there; bounds in between hold, and never fall."""
    supply = "scarce" if seed % 2 else "ample"
    problem = synthetic_problem(max_nodes=2, phases=4, configurations=3, regions=2, supply=supply, nodes=12, seed=seed)
    try:
        optimum = solve_allocation(problem, options=EXACT).cost_usd_h
    except InfeasibleError:
        return
    close = SolveOptions(rel_gap=1e-6, abs_gap=0.0)
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), close, math.inf)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    limits = SearchLimits(leaf_coverings=most, tree_nodes=nodes, first_rise=0.5, programme_columns=columns)
    search.options = AllocationSearchOptions(limits=limits)
    root = _root_bound(search)
    tree, bounds = branching.Branching(search, root), [search.bound]
    for _ in range(20):
        tree.go()
        bounds.append(search.bound)
    assert np.diff(bounds).min(initial=0.0) >= 0
    assert bounds[-1] <= optimum * (1 + 1e-9)
    assert search.cost >= optimum * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(problem=allocation_problems(), above=st.floats(-0.2, 0.2), cut=st.booleans())
def test_programme_of_a_node(problem: AllocationProblem, above: float, cut: bool) -> None:
    """It finds the optimum where that costs less than the target, and nothing otherwise, within a limit as without."""
    truth = best_by_enumeration(problem)
    if not truth or not has_programme(problem, get_backend("highs")):
        # Nothing to serve, or no allocation.
        return
    optimum = float(truth)
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.columns = Columns.of(search.small)
    everything = np.arange(len(search.columns))
    limits: tuple[NodeLimit, ...] = ()
    if cut:
        # It holds of every allocation, but makes prices of its own.
        cells = tuple(range(problem.price.size))
        limits = (NodeLimit(0, cells, 0, int(problem.availability.sum())),)
    pricing = PricingProblem(problem, search.columns, everything, limits)
    master = best_prices(pricing, MasterState(np.zeros(problem.price.shape)), "highs")
    if not np.isfinite(master.bound):
        return
    target = optimum * (1 + above) + 1e-3 * np.sign(above or 1.0)
    answer = solve_programme(search, master.near(target), limits, target, replace(EXACT, presolve=False))
    assert answer.ended
    if target > optimum:
        assert answer.bound <= optimum + 1e-6
        assert answer.allocation is not None
        assert problem.check(answer.allocation).objective == pytest.approx(optimum, abs=1e-6)
    else:
        assert answer.bound == math.inf
        assert answer.allocation is None


@settings(max_examples=60, deadline=None)
@given(operated_problems(kinds=("spare", "supply", "region", "replicas", "survive", "ban", "quota")), st.booleans())
def test_programme_over_all_that_survives(problem: AllocationProblem, cut: bool) -> None:
    """With what every phase weighs as rows of the programme: the optimum, and none where there is none."""
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.columns = Columns.of(search.small)
    if not has_programme(search.small, search.backend) or not (search.small.demand > 0).any():
        return
    truth = best_operated_by_enumeration(problem)
    try:
        highest = raise_bound(search, _root_bound(search), None)
        close_weighed(search, (add_cuts(search, highest, whole=False) if cut else highest).root)
    except InfeasibleError:
        assert truth is None
        return
    assert truth is not None
    assert search.cost == pytest.approx(float(truth), abs=1e-6)
    assert search.bound == pytest.approx(float(truth), abs=1e-6)


@pytest.mark.parametrize("weight", [7e-15, -7e-15])
def test_weights_that_solvers_drop(weight: float) -> None:
    """A column may weigh next to nothing at the prices of a node, which back ends would not see as it is."""
    problem = allocation_instance(1)
    truth = best_by_enumeration(problem)
    assert truth
    optimum = float(truth)
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, math.inf)
    search.columns = Columns.of(search.small)
    everything, count = np.arange(len(search.columns)), len(problem.demand)
    weights = np.where(everything % 2 == 0, 1.0, weight)
    near = WeightedColumns(everything, weights, (), np.full(count, min(weight, 0.0) * 1e6))
    answer = solve_programme(search, near, (), optimum + 1.0, EXACT)
    assert answer.bound == pytest.approx(optimum, abs=1e-6)
