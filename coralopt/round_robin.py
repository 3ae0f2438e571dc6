"""Smooth weighted round robin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Weighted(Protocol):
    """Something that can be picked.

    Attributes:
        weight: How often, relative to the others.
        credit: State of the algorithm; 0 at first.
    """

    @property
    def weight(self) -> float: ...

    credit: float


Item = TypeVar("Item", bound=Weighted)


def smooth_weighted_round_robin(items: Iterable[Item]) -> Item | None:
    """Pick the next of ``items`` and move the credits on; ``None`` when there are none.

    Every pick gives each item its weight as credit and takes the sum of weights from the one picked, the first with the
    largest credit. Credits sum to zero, so while the set stays the same, picks are never further from their shares than
    the number of items, and they are spread evenly: weights 5, 1, 1 give a a b a c a a.
    """
    best: Item | None = None
    total = 0.0
    for item in items:
        item.credit += item.weight
        total += item.weight
        if best is None or item.credit > best.credit:
            best = item
    if best is not None:
        best.credit -= total
    return best
