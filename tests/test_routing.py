"""Weighted round robin: how far picks may be from their shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.routing import MOST_OF_SHARE, Routing, choose, choose_by_key, smooth_weighted_round_robin


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
class Busy:
    weight: float
    credit: float = 0.0
    work: float = 0.0
    taken: int = 0

    @property
    def rate(self) -> float:
        return self.weight


@pytest.mark.parametrize("routing", ["least-work", "weighted-round-robin"])
@given(st.integers(1, 6), st.integers(1, 40))
def test_idle_instances_take_turns(routing: Routing, count: int, requests: int) -> None:
    """One request at a time among equal instances: the first one got all of them by least work."""
    items = [Busy(300.0) for _ in range(count)]
    for _ in range(requests):
        chosen = choose(routing, items, 128.0, lambda: 0.5)
        assert chosen is not None
        chosen.taken += 1
    assert max(item.taken for item in items) - min(item.taken for item in items) <= 1


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.integers(0, 4), st.integers(0, 3)), min_size=1))
def test_least_work_is_the_least(instances: list[tuple[float, int, int]]) -> None:
    """Nobody has less work for its rate, nor as little and fewer requests; the first of those that are equal in both."""
    items = [Busy(rate, work=8.0 * work, taken=taken) for rate, work, taken in instances]
    chosen = choose("least-work", items, 8.0, lambda: 0.5)
    assert chosen is not None
    for item in items:
        assert (chosen.work + 8) / chosen.rate <= (item.work + 8) / item.rate
        if (chosen.work + 8) / chosen.rate == (item.work + 8) / item.rate:
            assert chosen.taken / chosen.rate <= item.taken / item.rate
            if chosen.taken / chosen.rate == item.taken / item.rate:
                assert items.index(chosen) <= items.index(item)


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
