"""Weighted round robin: how far picks may be from their shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.routing import MOST_OF_SHARE, choose_by_key, smooth_weighted_round_robin


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


@dataclass(eq=False)
class Home:
    name: str
    weight: float
    credit: float = 0.0
    work: float = 0.0


def pick(items: list[Home], key: str) -> Home:
    chosen = choose_by_key(items, key, 1.0)
    assert chosen is not None
    return chosen


def test_keys_stay_and_follow_the_weights() -> None:
    """The same key, the same item while nothing is busy; items as they weigh; only the keys of one that goes move."""
    items = [Home("a", 300.0), Home("b", 100.0), Home("c", 600.0)]
    homes = {f"k{n}": pick(items, f"k{n}").name for n in range(3000)}
    shares = Counter(homes.values())
    for item in items:
        assert abs(shares[item.name] / 3000 - item.weight / 1000) < 0.03
    assert all(pick(items[::-1], key).name == home for key, home in homes.items())
    assert all(pick(items[:2], key).name == home for key, home in homes.items() if home != "c")
    assert choose_by_key([], "k", 1.0) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1.0, 1e3), min_size=1, max_size=6), st.integers(1, 200))
def test_one_key_fills_nobody_beyond_its_bound(weights: list[float], requests: int) -> None:
    """However many requests have the same beginning: everybody's work stays near their share of it."""
    items = [Home(str(number), weight) for number, weight in enumerate(weights)]
    for _ in range(requests):
        pick(items, "the same").work += 1
    for item in items:
        assert item.work <= MOST_OF_SHARE * (requests + 1) * item.weight / sum(weights) + 2
