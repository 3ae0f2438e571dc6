"""Weighted round robin: how far picks may be from their shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.routing import smooth_weighted_round_robin


@dataclass(eq=False)
class Item:
    weight: float
    credit: float = 0.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=8), st.integers(1, 400))
def test_picks_stay_close_to_their_shares(weights: list[float], rounds: int) -> None:
    """After any number of picks no item is further from its share than the number of items."""
    items = [Item(weight) for weight in weights]
    picks = Counter(items.index(smooth_weighted_round_robin(items)) for _ in range(rounds))  # type: ignore[arg-type]
    for index, weight in enumerate(weights):
        assert abs(picks[index] - rounds * weight / sum(weights)) <= len(weights)


def test_picks_are_spread_evenly() -> None:
    """Bursts on the heaviest item would fill its queue while the others idle."""
    items = [Item(5), Item(1), Item(1)]
    order = "".join("abc"[items.index(smooth_weighted_round_robin(items))] for _ in range(7))  # type: ignore[arg-type]
    assert order == "aabacaa"


def test_nothing_to_pick() -> None:
    """No instance is up."""
    assert smooth_weighted_round_robin([]) is None
