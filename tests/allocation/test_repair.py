"""The first allocation where rounding finds none, and what a pass of the search leaves to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from operator_problems import best_operated_by_enumeration, operated_problems

from coralopt.allocation import AllocationProblem, AllocationSearchOptions, SearchLimits, solve_allocation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search import solve as solve_module
from coralopt.allocation.search.context import Root, SearchContext, TooFarError
from coralopt.allocation.search.decomposition import Highest, raise_bound
from coralopt.allocation.search.neighbourhood import repair
from coralopt.allocation.search.restricted_master import restricted_master
from coralopt.allocation.search.result import AllocationResult
from coralopt.allocation.search.solve import _root_bound, _round
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions, get_backend
from coralopt.testing.synthetic import synthetic_problem
from coralopt.types import Floats

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)


def repaired(search: SearchContext, highest: Highest) -> None:
    """The step ``repair``."""
    repair(search, highest.values(search.columns), highest.root)


def from_support(search: SearchContext, highest: Highest) -> None:
    """The step ``restricted master``."""
    restricted_master(search, [highest.values(search.columns)], highest.root.column_bounds, 1.0)


#: What finds a first allocation beside a fractional one, and the seconds that it is given.
STEPS = [pytest.param(repaired, math.inf, id="repair"), pytest.param(from_support, 120.0, id="restricted master")]


def scarce(shape: tuple[int, int, int, int, int], seed: int) -> AllocationProblem:
    """A synthetic problem of so many nodes a template, phases, configurations, regions and nodes, less a tenth of these."""
    max_nodes, phases, configurations, regions, nodes = shape
    problem = synthetic_problem(max_nodes, phases, configurations, regions, "scarce", nodes, seed)
    return replace(problem, availability=np.floor(0.9 * problem.availability).astype(np.int64))


def begun(problem: AllocationProblem, seconds: float = math.inf) -> SearchContext:
    """A search over all columns of what is left of the problem."""
    deadline = time.perf_counter() + seconds
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(), EXACT, deadline)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    return search


@pytest.mark.parametrize(("step", "seconds"), STEPS)
@pytest.mark.parametrize(
    ("shape", "seed"), [((2, 4, 5, 2, 16), 1), ((3, 4, 5, 2, 12), 2), ((3, 6, 6, 2, 20), 0), ((3, 6, 6, 2, 20), 2)]
)
def test_an_allocation_is_found_where_rounding_finds_none(
    shape: tuple[int, int, int, int, int], seed: int, step: Callable[[SearchContext, Highest], None], seconds: float
) -> None:
    problem = scarce(shape, seed)
    search = begun(problem, seconds)
    root = _root_bound(search)
    _round(search, root)
    assert search.allocation is None
    highest = raise_bound(search, root, None)
    step(search, highest)
    assert search.allocation is not None
    assert problem.check(search.reduced.restore(search.allocation)).objective == search.cost
    truth = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(reductions=False)).cost_usd_h
    assert truth * (1 - 1e-9) <= search.cost <= 1.2 * truth


@pytest.mark.parametrize(("step", "seconds"), STEPS)
@settings(max_examples=100, deadline=None)
@given(problem=operated_problems())
def test_only_allocations_are_found(
    step: Callable[[SearchContext, Highest], None], seconds: float, problem: AllocationProblem
) -> None:
    """With everything that operators ask for: none where there is none, and none below the optimum."""
    search = begun(problem, seconds)
    if not (search.small.demand > 0).any() or not search.small.adds_up:
        return
    try:
        highest = raise_bound(search, _root_bound(search), None)
    except InfeasibleError:
        return
    step(search, highest)
    if search.allocation is None:
        return
    truth = best_operated_by_enumeration(problem)
    assert truth is not None
    check = problem.check(search.reduced.restore(search.allocation))
    assert check.feasible
    assert check.objective == search.cost >= float(truth) * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("seed", [0, 3])
def test_a_pass_that_looks_too_near_is_followed_by_one_that_looks_further(seed: int) -> None:
    """However little the first passes look at: what they prove stays, and the optimum is found."""
    problem = synthetic_problem(
        max_nodes=3, phases=4, configurations=5, regions=2, supply="scarce", nodes=20, seed=seed
    )
    exact = SolveOptions(rel_gap=1e-3, time_limit=60.0)
    truth = solve_allocation(problem, options=exact, search=AllocationSearchOptions(reductions=False))
    for near, most in ((20, 10**6), (20, 100), (10**6, 10**6)):
        limits = SearchLimits(
            direct_columns=0, many_templates=0, near_margin=1e-3, near_templates=near, most_near=most, doublings=3
        )
        result = solve_allocation(problem, options=exact, search=AllocationSearchOptions(limits=limits))
        assert result.bound_usd_h <= truth.cost_usd_h * (1 + 1e-9)
        assert result.cost_usd_h >= truth.bound_usd_h * (1 - 1e-9)


@pytest.mark.parametrize("most", [10, 10**6])
def test_every_pass_begins_with_bounds_of_its_own(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds up to the target of a pass near known prices must not be told of a pass over everything."""
    problem = synthetic_problem(max_nodes=3, phases=4, configurations=5, regions=2, supply="scarce", nodes=20)
    truth = solve_allocation(problem, options=SolveOptions(rel_gap=1e-3, time_limit=60.0))
    begin, prove, bounds = solve_module._pass, solve_module.prove, list[float]()

    def watched(search: SearchContext, *more: Any) -> AllocationResult:
        bounds.append(search.bound)
        return begin(search, *more)

    def too_far(search: SearchContext, root: Root, known: Floats | None, *more: Any) -> None:
        prove(search, root, known, *more)
        if known is not None:
            search.by_prices = 0.0
            raise TooFarError

    monkeypatch.setattr(solve_module, "_pass", watched)
    monkeypatch.setattr(solve_module, "prove", too_far)
    limits = SearchLimits(many_templates=0, most_tries=2, near_templates=10**5, most_near=most)
    options = SolveOptions(rel_gap=1e-3, time_limit=60.0)
    search = AllocationSearchOptions(limits=limits, state=truth.state)
    result = solve_allocation(problem, options=options, search=search)
    assert len(bounds) == (2 if most == 10 else 3)
    assert not any(bounds)
    assert result.bound_usd_h <= truth.cost_usd_h * (1 + 1e-9)


def test_the_bound_of_a_pass_stays() -> None:
    search = begun(synthetic_problem(max_nodes=2, phases=2, configurations=4, regions=1, nodes=10))
    _root_bound(search)
    assert 0 < search.proven == search.again(search.near).proven
