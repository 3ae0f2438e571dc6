"""What the tree branches on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation.bounds.coverings import NodeLimit
from coralopt.allocation.bounds.decomposition import MasterState, best_prices
from coralopt.allocation.bounds.pricing import PricingProblem
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.search.splitting import Rises, Side, Split, best_split
from coralopt.testing.allocation_strategies import allocation_problems


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems(), seed=st.integers(0, 10**6))
def test_sides_part_all_numbers_of_nodes(problem: AllocationProblem, seed: int) -> None:
    """Split twice in the same cells, every number of nodes is in just one of the children."""
    rng = np.random.default_rng(seed)
    cells = tuple(sorted(rng.choice(problem.price.size, int(rng.integers(1, problem.price.size + 1)), replace=False)))
    there = int(problem.availability.ravel()[list(cells)].sum())
    children: list[tuple[NodeLimit, ...]] = [()]
    for _ in range(2):
        split = Split(0, cells, float(rng.uniform(0, there + 1)))
        children = [side.within(problem, limits)[0] for limits in children for side in split.sides()]
    for nodes in range(there + 1):
        assert sum(limit.least <= nodes <= limit.most for (limit,) in children) == 1


@settings(max_examples=100, deadline=None)
@given(problem=allocation_problems())
def test_what_splits_did_decides(problem: AllocationProblem) -> None:
    """The best split is no longer taken once its children are known to lift nothing, if another one lifts more."""
    columns, start = Columns.of(problem), MasterState(np.zeros(problem.price.shape))
    if not len(columns) or not len(problem.leading_phases()):
        return
    master = best_prices(PricingProblem(problem, columns, np.arange(len(columns))), start, "highs")
    if np.isinf(master.bound) or np.isinf(master.master):
        return
    rises = Rises()
    first = best_split(problem, (), master, rises, 1.0)
    if first is None:
        return
    for side in first.sides():
        rises.add(side, 0.0)
    second = best_split(problem, (), master, rises, 1.0)
    assert second is not None
    for side in second.sides():
        rises.add(side, 1e6)
    # Others that lift as much may come first.
    assert best_split(problem, (), master, rises, 1.0) != first or second == first


def test_rises_are_means_of_their_side() -> None:
    """Of a number of nodes, whatever it was rounded to; a copy knows nothing of later ones."""
    low, high = Split(3, (7,), 2.5).sides()
    assert (low, high) == (Side(3, (7,), 2, False), Side(3, (7,), 3, True))
    rises = Rises()
    assert rises.mean(low) is None
    rises.add(low, 1.0)
    before = rises.so_far()
    rises.add(Side(3, (7,), 4, False), 2.0)
    assert rises.mean(low) == pytest.approx(1.5)
    assert before.mean(low) == pytest.approx(1.0)
    assert rises.mean(high) is None
