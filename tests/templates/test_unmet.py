"""Models that leave demand unmet: least prices against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt.allocation import UnmetGroup
from coralopt.templates.unmet import least_fraction, least_with_unmet

PRICES = st.floats(0.0, 10.0)


def groups() -> st.SearchStrategy[UnmetGroup]:
    """Two tiers, the second one dearer and for all the rest."""
    return st.tuples(PRICES, PRICES, st.floats(0.01, 1.0)).map(
        lambda drawn: UnmetGroup((0,), ((min(drawn[:2]), drawn[2]), (max(drawn[:2]), 1.0)))
    )


@given(groups(), st.floats(0.0, 10.0))
def test_fractions_of_nodes_are_cheapest_where_the_price_bends(group: UnmetGroup, usd_h: float) -> None:
    shares = np.linspace(0.0, 1.0, 2001)
    totals = (1 - shares) * usd_h + group.cost(shares)
    least = least_fraction(usd_h, group)
    assert least <= totals.min() + 1e-9
    assert least >= totals.min() - (usd_h + 20) / 2000


@given(groups(), st.floats(0.05, 3.0), st.floats(0.01, 5.0), st.integers(1, 40))
def test_whole_instances_cost_no_less(group: UnmetGroup, size: float, usd_h: float, grid: int) -> None:
    """Of instances that serve ``size`` of the demand each, any number: what is left unmet is what they do not serve."""
    counts = np.arange(0, 40)
    totals = counts * usd_h + group.cost(np.maximum(0.0, 1.0 - counts * size))
    steps = np.ceil(np.arange(grid + 1) / np.ceil(min(size, 1.0) * grid))
    assert least_with_unmet(steps * usd_h, group) <= totals.min() + 1e-9


def test_what_nothing_serves_goes_unmet() -> None:
    group = UnmetGroup((0,), ((3.0, 0.25), (8.0, 1.0)))
    assert least_fraction(float("inf"), group) == pytest.approx(0.75 + 6.0)
    assert least_with_unmet(np.array([0.0, np.inf, np.inf]), group) == pytest.approx(0.75 + 6.0)
