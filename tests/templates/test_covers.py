"""What instances cost together where one of them, or all of a region, may be lost: against listing all of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.templates.covers import CoverRules, any_instances, least_prices
from coralopt.templates.instance_prices import InstancePrices

#: Prices of one instance by its steps: what serves more costs no less, and may be impossible.
rising = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0, math.inf]), min_size=5, max_size=5).map(
    lambda more: np.concatenate([[0.0], 1.0 + np.cumsum(more)])
)


def in_region(one: np.ndarray, region: int) -> InstancePrices:
    nothing = np.zeros((1, 3, 1, 2)), np.ones(1)
    return InstancePrices(*nothing, {}, 1.0, one, any_instances(one), np.ones(len(one), dtype=np.int64), region)


@settings(max_examples=150, deadline=None)
@given(rising, st.sampled_from([0.2, 0.5, 0.7, 1.0]))
def test_instances_without_their_largest_equal_an_enumeration(one: np.ndarray, share: float) -> None:
    grid = len(one) - 1
    best = math.inf
    for count in range(1, 2 * grid + 1):
        for sizes in itertools.combinations_with_replacement(range(1, grid + 1), count):
            if sum(sizes) >= grid and sum(sizes) - max(sizes) >= share * grid - 1e-9:
                best = min(best, sum(float(one[size]) for size in sizes))
    assert least_prices([in_region(one, 0)], grid, CoverRules(spared=share))[-1] == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(st.lists(rising, min_size=1, max_size=4), st.sampled_from([0.2, 0.4, 0.5, 0.6, 0.9, 1.0]))
def test_regions_without_any_of_them_equal_an_enumeration(several: list[np.ndarray], share: float) -> None:
    grid = len(several[0]) - 1
    prices = [in_region(one, r) for r, one in enumerate(several)]
    best = math.inf
    for amounts in itertools.product(range(grid + 1), repeat=len(several)):
        if sum(amounts) >= grid and sum(amounts) - max(amounts) >= share * grid - 1e-9:
            best = min(best, sum(float(price.every[a]) for price, a in zip(prices, amounts, strict=True)))
    assert least_prices(prices, grid, CoverRules(surviving=share))[-1] == pytest.approx(best)


def test_the_dearest_rule_counts() -> None:
    """Three instances of a step each, or two of all steps: what is dearer is what both rules cost at least."""
    one = np.array([0.0, 1.0, 1.5, 2.0])
    alone = [
        least_prices([in_region(one, 0)], 3, rules)[-1] for rules in (CoverRules(replicas=3), CoverRules(spared=1.0))
    ]
    assert alone == [3.0, 4.0]
    assert least_prices([in_region(one, 0)], 3, CoverRules(replicas=3, spared=1.0))[-1] == 4.0
