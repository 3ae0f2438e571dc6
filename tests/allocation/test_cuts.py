"""Cutting planes on the supply cut off fractions only: whole allocations satisfy them, and all bounds with them hold."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from operator_problems import best_operated_by_enumeration, operated_problems

from coralopt.allocation import AllocationProblem, AllocationSearchOptions, SearchLimits, solve_allocation
from coralopt.allocation.bounds.cuts import SupplyCut, violated_cuts
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search.choice import ChoiceLimits, best_choice_among
from coralopt.allocation.search.context import SearchContext
from coralopt.allocation.search.coverings import all_near, allocation_of
from coralopt.allocation.search.decomposition import add_cuts, raise_bound
from coralopt.allocation.search.solve import _root_bound
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions, get_backend, solve_matrix
from coralopt.testing.allocation_strategies import allocation_problems, best_by_enumeration

EXACT = SolveOptions(rel_gap=0.0, abs_gap=1e-9)
EVERY_STEP = AllocationSearchOptions(limits=SearchLimits(direct_columns=0))
WITHOUT_END = ChoiceLimits(np.inf, 0.0, 10**6, np.inf)


def with_three_kinds(problem: AllocationProblem, seed: int) -> AllocationProblem:
    """The same with templates and a pool of three kinds of nodes."""
    rng = np.random.default_rng(seed)
    templates, regions, _, _ = problem.shape
    usage = rng.integers(0, 3, (templates, 3))
    usage[usage.sum(axis=1) == 0, 0] = 1
    return replace(
        problem,
        usage=usage.astype(np.int16),
        availability=rng.integers(0, 4, (regions, 3)),
        price=rng.integers(1, 30, (regions, 3)) / 4.0,
        configuration_names=("1xGPU", "2xGPU", "3xGPU"),
    )


def random_cuts(problem: AllocationProblem, seed: int) -> list[SupplyCut]:
    """Up to six of any weights and divisors that make a cut."""
    rng, cuts = np.random.default_rng(seed), dict[str, SupplyCut]()
    regions, kinds = problem.price.shape
    for _ in range(6):
        region, divisor = int(rng.integers(regions)), int(rng.integers(2, 6))
        weights = rng.integers(0, divisor, kinds)
        total = int(weights @ problem.availability[region])
        if total % divisor and total >= divisor:
            chosen = np.flatnonzero(weights)
            cut = SupplyCut.of(problem, region, tuple(chosen.tolist()), tuple(weights[chosen].tolist()), divisor)
            cuts[cut.name] = cut
    return list(cuts.values())


@settings(max_examples=150, deadline=None)
@given(problem=allocation_problems(max_templates=4), seed=st.integers(0, 10**6))
def test_whatever_fits_a_region_satisfies_every_cut(problem: AllocationProblem, seed: int) -> None:
    """All multisets of instances within the nodes of a region, against the formula in fractions."""
    problem = with_three_kinds(problem, seed)
    template = np.arange(len(problem.throughput))
    for cut in random_cuts(problem, seed):
        assert cut.regions is not None
        region, w = cut.regions[0], np.zeros(3, dtype=np.int64)
        w[list(cut.configurations or ())] = cut.gpus
        each = cut.coefficients(problem, template, np.full(len(template), region))
        assert (cut.coefficients(problem, template, np.full(len(template), 1 - region)) == 0).all()
        beyond = Fraction(int(w @ problem.availability[region]), cut.divisor) % 1
        for k, nodes in enumerate((problem.usage.astype(np.int64) @ w).tolist()):
            size = Fraction(nodes, cut.divisor)
            rounded = size.__floor__() + max(Fraction(0), size % 1 - beyond) / (1 - beyond)
            assert Fraction(each[k]) == rounded * (cut.divisor - cut.remainder)
        for counts in product(range(4), repeat=len(template)):
            if (np.array(counts) @ problem.usage <= problem.availability[region]).all():
                assert each @ np.array(counts) <= cut.bound


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(max_templates=4), seed=st.integers(0, 10**6))
def test_cuts_that_are_found_cut_off_the_fractions(problem: AllocationProblem, seed: int) -> None:
    problem = with_three_kinds(problem, seed)
    columns = Columns.of(problem)
    assume(len(columns))
    values = np.random.default_rng(seed).integers(0, 8, len(columns)) / 4.0
    for cut in violated_cuts(problem, columns, values):
        assert cut.coefficients(problem, columns.template, columns.region) @ values > cut.bound
        assert not cut.is_ban


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(), slack=st.sampled_from((0.0, 5.0, 50.0)), seed=st.integers(0, 10**6))
def test_coverings_near_a_bound_with_cuts_hold_the_optimum(problem: AllocationProblem, slack: float, seed: int) -> None:
    """At any prices of nodes and cuts: the bound holds, and the optimum is among the coverings or above the slack."""
    problem = with_three_kinds(problem, seed)
    truth, columns = best_by_enumeration(problem), Columns.of(problem)
    if truth is None or not (problem.demand > 0).any():
        return
    cuts, rng = random_cuts(problem, seed), np.random.default_rng(seed)
    within = replace(problem, side_constraints=tuple(cuts))
    prices, of_cuts = rng.uniform(0, 2, problem.price.shape), rng.uniform(0, 3, len(cuts))
    root = lagrangian_bound(within, columns, prices, grid=1000, side_prices=of_cuts)
    assert root.bound <= float(truth) + 1e-9
    coverings = all_near(within, columns, root, slack, 100_000)
    assert coverings is not None
    if truth > root.bound + slack:
        return
    there = np.concatenate([problem.availability.ravel().astype(float), [cut.bound for cut in cuts]])
    found = best_choice_among(coverings, there, np.append(prices.ravel(), of_cuts), WITHOUT_END, problem.segments)
    assert found.chosen is not None
    check = problem.check(allocation_of(columns, coverings, found.chosen))
    assert check.feasible
    assert check.objective == pytest.approx(float(truth), abs=1e-6)


@settings(max_examples=80, deadline=None)
@given(problem=operated_problems(), seed=st.integers(0, 10**6))
def test_the_bound_with_cuts_is_below_the_optimum(problem: AllocationProblem, seed: int) -> None:
    """With everything that operators ask for; every column that the optimum uses has a bound of at most its cost."""
    search = SearchContext(problem, get_backend("highs"), EVERY_STEP, EXACT, math.inf)
    search.reduce(None)
    if not (search.small.demand > 0).any() or not search.small.adds_up:
        return
    search.columns = Columns.of(search.small)
    truth = best_operated_by_enumeration(problem)
    try:
        found = add_cuts(search, raise_bound(search, _root_bound(search), None), whole=False)
    except InfeasibleError:
        assert truth is None
        return
    if truth is not None:
        assert search.bound <= float(truth) * (1 + 1e-9) + 1e-9
        assert found.root.lagrangian.bound <= float(truth) * (1 + 1e-9) + 1e-9


@settings(max_examples=60, deadline=None)
@given(problem=allocation_problems(max_templates=4, max_available=3), seed=st.integers(0, 10**6))
def test_an_integer_programme_within_cuts_has_the_same_optimum(problem: AllocationProblem, seed: int) -> None:
    """Another route: rows and back end know nothing of coverings or prices."""
    problem = with_three_kinds(problem, seed)
    within = replace(problem, side_constraints=tuple(random_cuts(problem, seed)))
    try:
        truth = solve_allocation(problem, options=EXACT, search=AllocationSearchOptions(reductions=False))
    except InfeasibleError:
        return
    columns = Columns.of(problem)
    result = solve_matrix(assemble(within, columns, np.arange(len(columns))), "highs", EXACT)
    assert result.objective == pytest.approx(truth.cost_usd_h, abs=1e-6)


def test_cuts_prove_what_prices_of_nodes_cannot() -> None:
    """Each model needs two of three nodes: one of them fits, and half of each in fractions."""
    problem = AllocationProblem(
        usage=np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=np.int16),
        throughput=np.ones(3),
        phase=np.arange(3, dtype=np.int32),
        demand=np.ones(3),
        availability=np.array([[1, 1, 1], [4, 4, 4]]),
        price=np.array([[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]),
        running=None,
        penalty=0.0,
        phase_names=("a", "b", "c"),
        region_names=("near", "far"),
        configuration_names=("1xA", "1xB", "1xC"),
    )
    options = SolveOptions(rel_gap=1e-6)
    search = SearchContext(problem, get_backend("highs"), EVERY_STEP, options, math.inf)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    found = raise_bound(search, _root_bound(search), None)
    assert search.bound == pytest.approx(18.0, rel=1e-3)
    add_cuts(search, found, whole=False)
    assert search.cuts
    assert search.bound == pytest.approx(22.0, rel=1e-3)
    assert solve_allocation(problem, options=options, search=EVERY_STEP).cost_usd_h == 22.0


def test_cuts_that_leave_nothing_are_taken_back() -> None:
    """Three nodes make one instance of two, not one and a half; whoever is asked for more says that it cannot be met."""
    problem = AllocationProblem(
        usage=np.array([[2, 0], [0, 1]], dtype=np.int16),
        throughput=np.array([3.25, 10.0]),
        phase=np.zeros(2, dtype=np.int32),
        demand=np.array([34.0]),
        availability=np.array([[3, 3]]),
        price=np.array([[3.25, 4.25]]),
        running=None,
        penalty=0.0,
        phase_names=("a",),
        region_names=("r",),
        configuration_names=("1xA", "1xB"),
    )
    with pytest.raises(InfeasibleError):
        solve_allocation(problem, options=EXACT, search=EVERY_STEP)
