"""Which model phases a neighbourhood takes away, and which columns it looks at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from coralopt.allocation import AllocationProblem, AllocationSearchOptions, solve_allocation
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.search import neighbourhood
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.search.neighbourhood import NeighbourhoodSearch, _Phases
from coralopt.allocation.search.solve import _root_bound
from coralopt.errors import InfeasibleError
from coralopt.solving import SolveOptions, get_backend
from coralopt.testing.allocation_strategies import allocation_problems
from coralopt.testing.synthetic import synthetic_problem
from coralopt.types import Ints

ROUGH, EXACT = SolveOptions(rel_gap=0.2), SolveOptions(rel_gap=0.0)


def begun(problem: AllocationProblem) -> tuple[SearchContext, Root] | None:
    """A search that knows an allocation, with the bounds over all columns; ``None`` where there is none."""
    try:
        known = solve_allocation(problem, options=ROUGH).allocation
    except InfeasibleError:
        return None
    search = SearchContext(problem, get_backend("highs"), AllocationSearchOptions(start=known), EXACT, math.inf)
    search.reduce(None)
    search.columns = Columns.of(search.small)
    if not len(search.columns):
        return None
    root = _root_bound(search)
    place = np.searchsorted(search.reduced.kept, known.template)
    assert search.offer(type(known)(place, known.region, known.count))
    return search, root


@settings(max_examples=80, deadline=None)
@given(allocation_problems())
def test_regrets_and_unused_supply_are_what_an_allocation_costs_above_the_bound(problem: AllocationProblem) -> None:
    """So where both are 0 nothing is to be gained."""
    state = begun(problem)
    if state is None:
        return
    search, root = state
    assert search.allocation is not None
    assert search.capacity_prices is not None
    counts = search.columns.counts(search.allocation)
    regret = _Phases(search, root).regret(counts)
    used = np.zeros_like(search.small.availability)
    usage = search.small.usage[search.columns.template].astype(np.int64)
    np.add.at(used, search.columns.region, usage * counts[:, None])
    unused = float((search.capacity_prices * (search.small.availability - used)).sum())
    # The bound keeps a billionth of all that its prices make of the supply, for rounding.
    supply = float((search.capacity_prices * search.small.availability).sum())
    margin = 1e-9 * (abs(root.lagrangian.bound) + 2 * supply)
    above = search.cost - root.lagrangian.bound
    assert regret.sum() + unused == pytest.approx(above, rel=1e-6, abs=1e-6 + 2 * margin)


@pytest.mark.parametrize("seed", range(3))
def test_every_set_is_drawn_once_and_what_takes_part_fits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four phases have four sets of three and one of all; none of them finds anything here."""
    problem = synthetic_problem(
        max_nodes=3, phases=4, configurations=5, regions=2, supply="scarce", nodes=20, seed=seed
    )
    state = begun(problem)
    assert state is not None
    search, root = state
    sets: list[tuple[Ints, Ints]] = []

    def in_vain(search: SearchContext, chosen: Ints, fixed: Ints, limits: tuple[int, float]) -> None:
        sets.append((chosen, fixed))

    monkeypatch.setattr(neighbourhood, "_optimised", in_vain)
    drawn = NeighbourhoodSearch(search, root)
    assert search.allocation is not None
    drawn.counts = search.columns.counts(search.allocation)
    for work in drawn.drawn():
        assert work is not None
        drawn.keep(*work())
    columns, small = search.columns, search.small
    taken = [tuple(np.unique(columns.phase[(drawn.counts > 0) & (fixed == 0)])) for _, fixed in sets]
    assert sorted(map(len, taken)) == [3, 3, 3, 3, 4]
    assert len(set(taken)) == len(taken)
    for chosen, fixed in sets:
        room = small.availability.astype(np.int64)
        used = np.flatnonzero(fixed)
        usage = small.usage[columns.template].astype(np.int64)
        np.subtract.at(room, columns.region[used], usage[used] * fixed[used, None])
        assert (usage[chosen] <= room[columns.region[chosen]]).all()
