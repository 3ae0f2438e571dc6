"""Compiled covering knapsacks; imported only when they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coralopt.compiling import compiled
from coralopt.types import Floats, Ints

#: Smallest item whose covering tables are filled in blocks, and the most amounts of a block, which stay in cache.
BLOCK, LARGEST_BLOCK = 32, 4096


@compiled(nogil=True)
def one_more(sizes: Ints, weights: Floats, table: Floats) -> Floats:
    """Least weight of one item and what ``table`` says of the rest, for every amount."""
    least = np.full(len(table), np.inf)
    for amount in range(len(table)):
        for item in range(len(sizes)):
            rest = amount - sizes[item]
            value = weights[item] + table[rest if rest > 0 else 0]
            if value < least[amount]:
                least[amount] = value
    return least


@compiled(nogil=True)
def cover(sizes: Ints, weights: Floats, table: Floats) -> None:
    """Unbounded covering knapsack: fill ``table[d]`` with the least weight of items of total size at least d.

    Sizes descend. Once an amount equals the size of an item that weighs more than others which cover it, the item is out: on
    grids much longer than the items few are left to look at. As many amounts as the smallest item is large do not depend on
    one another: such blocks are filled item by item, in loops that compile to vector instructions.
    """
    alive = np.arange(len(sizes))
    count = due = len(sizes)
    smallest = sizes[count - 1] if count else len(table)
    amount = 1
    while amount < len(table):
        end = amount + 1
        if smallest < BLOCK:
            least = np.inf
            for k in range(count):
                rest = amount - sizes[alive[k]]
                least = min(least, weights[alive[k]] + (table[rest] if rest > 0 else 0.0))
            table[amount] = least
        else:
            end = min(amount + min(smallest, LARGEST_BLOCK), len(table))
            table[amount:end] = np.inf
            for k in range(count):
                _take(sizes[alive[k]], weights[alive[k]], table, amount, end)
        while due > 0 and sizes[due - 1] < end:
            due -= 1
            if table[sizes[due]] < weights[due]:
                kept = 0
                for k in range(count):
                    if alive[k] != due:
                        alive[kept] = alive[k]
                        kept += 1
                count = kept
                smallest = sizes[alive[count - 1]]
        amount = end


@njit(inline="always")
def _take(size: int, weight: float, table: Floats, start: int, end: int) -> None:
    """Lower ``table[start:end]`` by one more of this item, which is as large as the block or larger."""
    first = min(max(start, size + 1), end)
    # Without branches, or they are not vector instructions.
    alone, values, before = table[start:first], table[first:end], table[max(first - size, 0) : max(end - size, 0)]
    for k in range(len(alone)):
        alone[k] = weight if weight < alone[k] else alone[k]
    for k in range(len(values)):
        value = weight + before[k]
        values[k] = value if value < values[k] else values[k]


@compiled(nogil=True)
def covering_items(sizes: Ints, weights: Floats, table: Floats, amount: int) -> Ints:
    """int64 (n,): items that cover so much at the weight which ``table``, filled by :func:`cover`, says; sizes descend."""
    taken = np.empty(amount // sizes[-1] + 1 if len(sizes) else 0, dtype=np.int64)
    count = 0
    while amount > 0 and len(sizes):
        least = np.inf
        for item in range(len(sizes)):
            rest = amount - sizes[item]
            value = weights[item] + (table[rest] if rest > 0 else 0.0)
            if value < least:
                least = value
                taken[count] = item
        amount -= sizes[taken[count]]
        count += 1
    return taken[:count].copy()


@compiled(nogil=True)
def raise_to_slope(table: Floats, slope: float) -> None:
    """Raise ``table[d]`` to ``slope`` times d where it is lower; in place."""
    for amount in range(len(table)):
        table[amount] = max(table[amount], amount * slope)


@compiled(nogil=True)
def least_with_largest(
    sizes: Ints, weights: Floats, largest: Ints, needed: tuple[int, int], table: Floats, beside: Floats
) -> Floats:
    """float64 (n,): least weight of the first k + 1 items, in any number, of which ``largest[k]`` may be lost.

    Sizes ascend. ``needed`` is what all items must cover, and all but the largest. Fills ``table``, and ``beside``: least
    weight of what stands beside one more item of every size. An item that smaller ones of no more weight cover is never
    needed, since of these less is lost.
    """
    least = np.full(len(sizes), np.inf)
    whole, spared = needed
    for item in range(len(sizes)):
        if table[sizes[item]] > weights[item]:
            for amount in range(1, len(table)):
                rest = amount - sizes[item]
                value = weights[item] + (table[rest] if rest > 0 else 0.0)
                if value < table[amount]:
                    table[amount] = value
        amount = max(whole, spared + largest[item])
        least[item] = table[amount]
        # Either one of these items is the largest, or the one that they stand beside.
        for size in range(1, largest[item] + 1):
            beside[size] = min(beside[size], table[amount - size])
        end = largest[item + 1] if item + 1 < len(sizes) else len(beside)
        for size in range(largest[item] + 1, end):
            beside[size] = min(beside[size], table[max(whole - size, spared)])
    return least


class Completions(NamedTuple):
    """What completes a partial covering of which any one instance may be lost (module ``spared``).

    Attributes:
        sizes: int64 (n,), grid steps of the items, ascending.
        alone: float64 (n + 1, G + 1), least weight of the first j items, in any number, that cover so many steps.
        larger: float64 (n + 1, G + 1), least weight of what completes coverings without so many steps of the demand, the
            largest of all being one of the items from j on.
    """

    sizes: Ints
    alone: Floats
    larger: Floats


@compiled(nogil=True)
def fill_completions(sizes: Ints, weights: Floats, less: int, alone: Floats, larger: Floats) -> None:
    """Fill both tables of :class:`Completions`, full of inf; ``less`` steps of the demand need not be left after a loss."""
    alone[0, 0] = 0.0
    for item in range(len(sizes)):
        alone[item + 1] = alone[item]
        for amount in range(1, alone.shape[1]):
            rest = max(amount - sizes[item], 0)
            alone[item + 1, amount] = min(alone[item, amount], weights[item] + alone[item + 1, rest])
    for item in range(len(sizes) - 1, -1, -1):
        for missing in range(alone.shape[1]):
            rest = max(missing - sizes[item], missing - less, 0)
            larger[item, missing] = min(larger[item + 1, missing], weights[item] + alone[item + 1, rest])


@njit(inline="always")
def missing_steps(missing: float, grid: int) -> int:
    """Steps of what is missing of a demand, as a share; rounded down, since it may be a hair less than it seems."""
    return max(0, min(grid, int(np.ceil(missing * grid * (1 - 1e-9) - 1e-6))))


@njit(inline="always")
def completed_for(completions: Completions, missing: float, lacking: float, largest: float) -> float:
    """Least weight of what completes a partial covering; ``largest``, its largest instance, and others are shares of demand.

    ``missing`` is what it lacks of the demand, ``lacking`` what it lacks of all that is asked for if no other instance is
    larger.
    """
    grid = completions.alone.shape[1] - 1
    whole, rest = missing_steps(missing, grid), missing_steps(lacking, grid)
    size, place, end = steps_of(largest, 1.0, grid), 0, len(completions.sizes)
    # The first item larger than it; ``np.searchsorted`` would load SciPy with the kept machine code.
    while place < end:
        middle = (place + end) // 2
        if completions.sizes[middle] <= size:
            place = middle + 1
        else:
            end = middle
    return float(min(completions.alone[place, rest], completions.larger[place, whole]))


@compiled(nogil=True)
def cheapest_by_size(sizes: Ints, weights: Floats, grid: int) -> Ints:
    """int64 (k,): the items, largest first, that no item of the same or a larger size undercuts; ties to the first."""
    # Grids are much longer than the items are many.
    best = np.full(grid + 1, -1, dtype=np.int32)
    for item in range(len(sizes)):
        size = sizes[item]
        if best[size] < 0 or weights[item] < weights[best[size]]:
            best[size] = item
    kept = np.empty(min(grid, len(sizes)), dtype=np.int64)
    count = 0
    least = np.inf
    for size in range(grid, 0, -1):
        item = best[size]
        if item >= 0 and weights[item] < least:
            least = weights[item]
            kept[count] = item
            count += 1
    return kept[:count].copy()


@njit(inline="always")
def steps_of(throughput: float, demand: float, grid: int) -> int:
    # The hair of slack keeps rounding up on the safe side of floating-point division.
    size = int(np.ceil(min(throughput / demand, 1.0) * grid * (1 + 1e-12)))
    return max(1, min(size, grid))
