"""What goes unmet together: the least weight is that of every count of every instance."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation.bounds.knapsack import least_weights
from coralopt.allocation.bounds.unmet import GroupCover, UnmetGroup


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), phases=st.integers(1, 3), tiers=st.integers(1, 3))
def test_least_weight_is_that_of_all_counts(seed: int, phases: int, tiers: int) -> None:
    """Alone and beside one more instance; and no more than the least of all by more than a step of what is unmet."""
    rng, grid = np.random.default_rng(seed), 12
    prices, shares = np.sort(rng.uniform(1, 60, tiers)), rng.uniform(0.1, 0.4, tiers)
    shares[-1] = 1.0
    group = UnmetGroup(tuple(range(phases)), tuple(zip(prices.tolist(), shares.tolist(), strict=True)))
    sizes = [rng.uniform(1, grid, int(rng.integers(1, 3))) for _ in range(phases)]
    weights = [rng.uniform(1, 20, len(some)) for some in sizes]
    counts = [np.array(list(product(range(grid + 1), repeat=len(some)))) for some in sizes]

    def cost(unmet: float) -> float:
        left, total = unmet, 0.0
        for price, share in group.tiers:
            total += price * min(left, share)
            left -= min(left, share)
        return total

    def least(phase: int = -1, forced: float = 0.0) -> float:
        """Over the shares that some count of some phase serves: a larger one would be dearer, a smaller one no cheaper."""
        given = [counts[p] @ sizes[p] + (forced if p == phase else 0.0) for p in range(phases)]
        paid = [counts[p] @ weights[p] for p in range(phases)]
        levels = {1.0, *(min(1.0, float(some) / grid) for part in given for some in part)}
        return min(
            cost(1 - level)
            + sum(float(np.min(paid[p][given[p] >= level * grid - 1e-9], initial=np.inf)) for p in range(phases))
            for level in levels
        )

    steps = [np.ceil(some).astype(np.int64) for some in sizes]
    tables = {p: least_weights(steps[p], weights[p], grid) for p in range(phases)}
    cover = GroupCover.of(group, tables)
    assert cover.least <= least() + 1e-9
    for p in range(phases):
        forced = float(rng.uniform(0, grid))
        beside = cover.beside(p, tables[p], np.array([int(np.ceil(forced))]))
        assert beside[0] <= least(p, forced) + 1e-9
    # Where instances are whole steps, only the unmet step is missing.
    sizes = [some.astype(np.float64) for some in steps]
    assert cover.least >= least() - max(price for price, _ in group.tiers) / grid - 1e-9
    assert cover.unmet[grid] == pytest.approx(0.0)
