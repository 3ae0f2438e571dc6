"""Lists of coverings hold the best allocation within the slack, also with replicas, losses of a region, unmet demand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_problems import best_operated_by_enumeration, countable_cells, operated_problems

from coralopt.allocation import reduce_problem
from coralopt.allocation.bounds.coverings import NodeLimit, available, listable
from coralopt.allocation.bounds.lagrangian import lagrangian_bound
from coralopt.allocation.bounds.listing import near_coverings
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search.choice import ChoiceLimits, best_choice_among
from coralopt.allocation.search.coverings import allocation_of
from coralopt.allocation.side_constraints import open_constraints

WITHOUT_END = ChoiceLimits(np.inf, 0.0, 10**6, np.inf)
KINDS = [
    ("replicas",),
    ("replicas", "supply", "quota", "loads"),
    ("survive",),
    ("survive", "replicas"),
    ("spare",),
    ("spare", "replicas", "region", "loads"),
    ("shortfall",),
    ("shortfall", "cases", "region", "instances"),
]


@pytest.mark.parametrize("kinds", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), slack=st.sampled_from((0.0, 2.0, 10.0, 100.0)), seed=st.integers(0, 10**6))
def test_lists_hold_the_best_allocation(kinds: tuple[str, ...], data: st.DataObject, slack: float, seed: int) -> None:
    """At any prices, and on both sides of any limit on nodes: the best choice is the optimum, or that is above the slack."""
    problem = reduce_problem(data.draw(operated_problems(kinds=kinds, max_available=4))).problem
    truth = best_operated_by_enumeration(problem)
    if truth is None or not (problem.demand > 0).any() or not problem.adds_up or not listable(problem):
        return
    columns, rng = Columns.of(problem), np.random.default_rng(seed)
    prices = rng.uniform(0, 2, problem.price.shape) * rng.integers(0, 2)
    of_rows = rng.uniform(0, 2, len(open_constraints(problem))) * rng.integers(0, 2)
    root = lagrangian_bound(problem, columns, prices, grid=1000, side_prices=of_rows)
    assert root.bound <= float(truth) * (1 + 1e-9) + 1e-9
    if truth > root.bound + slack:
        return
    phase = int(rng.choice(problem.leading_phases()))
    cells = countable_cells(problem, rng)
    most = int(problem.availability.ravel()[list(cells)].sum())
    cut = int(rng.integers(0, most + 1))
    best = np.inf
    slack += 1e-6
    for limit in (NodeLimit(phase, cells, 0, cut), NodeLimit(phase, cells, cut + 1, most)):
        coverings = near_coverings(problem, columns, root.near(root.bound + slack), slack, 10**5, limits=[limit])
        assert coverings is not None
        if not len(coverings):
            continue
        own = coverings.use[coverings.phase == phase][:, list(cells)].sum(axis=1)
        assert ((own >= limit.least) & (own <= limit.most)).all()
        start = np.append(prices.ravel(), of_rows)
        found = best_choice_among(coverings, available(problem), start, WITHOUT_END, problem.segments)
        if found.chosen is not None:
            check = problem.check(allocation_of(columns, coverings, found.chosen))
            assert check.feasible
            best = min(best, check.objective)
    assert best == pytest.approx(float(truth), abs=1e-6)
