"""Branching on shares of unmet demand, against looking at every share."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.templates import ShareBranches, SharePrices


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**16))
def test_the_bound_is_that_of_the_best_shares(groups: int, prices: int, grid: int, seed: int) -> None:
    """Over all shares, of the highest cost at any prices: no more, and no less where nothing is left to halve."""
    draw = np.random.default_rng(seed)
    branches = ShareBranches(groups)
    branches.prices += [
        SharePrices(float(draw.normal()) + 30.0, tuple(draw.integers(0, 12, grid + 1) * 1.0 for _ in range(groups)))
        for _ in range(prices)
    ]
    best = min(
        max(item.rest_usd_h + sum(f[t] for f, t in zip(item.usd_h, at, strict=True)) for item in branches.prices)
        for at in itertools.product(range(grid + 1), repeat=groups)
    )
    lagrangian = max(item.rest_usd_h + sum(f.min() for f in item.usd_h) for item in branches.prices)
    box = branches.least(np.inf)
    assert lagrangian * (1 - 1e-8) <= box.bound_usd_h <= best * (1 + 1e-9)
    assert box.bound_usd_h == pytest.approx(best, rel=1e-6)
    # What is enough is not halved further; what was halved stays so.
    assert ShareBranches.least(branches, 0.0).bound_usd_h <= best * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(0, 2**16))
def test_prices_may_cut_demands_into_other_steps(grids: list[int], seed: int) -> None:
    """Shares between two steps serve the larger one: no bound is above the cost of any share."""
    draw = np.random.default_rng(seed)
    branches = ShareBranches(2)
    branches.prices += [
        SharePrices(30.0, tuple(draw.integers(0, 12, grid + 1) * 1.0 for _ in range(2))) for grid in grids
    ]
    fine = [Fraction(t, 2 * math.lcm(*grids)) for t in range(2 * math.lcm(*grids) + 1)]
    steps = [np.array([math.ceil((1 - share) * grid) for share in fine]) for grid in grids]
    cost = np.max(
        [
            item.rest_usd_h + item.usd_h[0][at][:, None] + item.usd_h[1][at][None]
            for item, at in zip(branches.prices, steps, strict=True)
        ],
        axis=0,
    )
    assert branches.least(np.inf).bound_usd_h <= cost.min() * (1 + 1e-9)


def test_a_box_that_is_halved_by_hand() -> None:
    """One that all prices agree on: only a mix of shares tells that it is worth halving."""
    branches = ShareBranches(2)
    branches.prices.append(SharePrices(0.0, (np.array([5.0, 1.0, 5.0]), np.array([2.0, 2.0, 2.0]))))
    box = branches.least(100.0)
    assert (box.low, box.bound_usd_h) == ((0, 0), pytest.approx(3.0))
    branches.halve(box, 0, Fraction(1, 4))
    assert branches.least(100.0).low == (Fraction(1, 4), 0)
    branches.prices.append(SharePrices(0.0, (np.array([5.0, 9.0, 8.0]), np.array([2.0, 2.0, 2.0]))))
    # Shares up to a quarter serve both steps, at ten; of the others one step costs eleven at the second prices.
    assert branches.least(100.0).bound_usd_h == pytest.approx(7.0)
    assert branches.least(100.0).holds(0, Fraction(1))
    assert not branches.least(100.0).holds(0, Fraction(1, 10))
