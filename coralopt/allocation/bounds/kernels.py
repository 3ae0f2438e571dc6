"""Compiled loops of the allocation floor; imported only when they run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from coralopt.types import Bools, Floats, Ints


@njit(cache=True)
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


@njit(cache=True)
def cover(sizes: Ints, weights: Floats, table: Floats, choice: Ints) -> None:
    """Unbounded covering knapsack: fill ``table[d]`` with the least weight of items of total size at least d.

    ``choice[d]`` is the item taken last, -1 where none helps.
    """
    for amount in range(1, len(table)):
        least = np.inf
        taken = -1
        for item in range(len(sizes)):
            rest = amount - sizes[item]
            value = weights[item] + (table[rest] if rest > 0 else 0.0)
            if value < least:
                least = value
                taken = item
        table[amount] = least
        choice[amount] = taken


@njit(cache=True)
def cheapest_by_size(sizes: Ints, weights: Floats, grid: int) -> Ints:
    """int64 (k,): the items, largest first, that no item of the same or a larger size undercuts; ties to the first."""
    best = np.full(grid + 1, -1, dtype=np.int64)
    for item in range(len(sizes)):
        size = sizes[item]
        if best[size] < 0 or weights[item] < weights[best[size]]:
            best[size] = item
    kept = np.empty(grid + 1, dtype=np.int64)
    count = 0
    least = np.inf
    for size in range(grid, 0, -1):
        item = best[size]
        if item >= 0 and weights[item] < least:
            least = weights[item]
            kept[count] = item
            count += 1
    return kept[:count].copy()


@njit(cache=True)
def undominated_rows(use: npt.NDArray[np.int16], cost: Floats) -> Bools:
    """bool (n,): rows, sorted by cost, that no earlier kept row undercuts or equals in every entry of ``use``."""
    rows, cells = use.shape
    keep = np.zeros(rows, dtype=np.bool_)
    kept = np.empty(rows, dtype=np.int64)
    count = 0
    for row in range(rows):
        dominated = False
        for k in range(count):
            rival = kept[k]
            less = True
            for cell in range(cells):
                if use[rival, cell] > use[row, cell]:
                    less = False
                    break
            if less and cost[rival] <= cost[row]:
                dominated = True
                break
        if not dominated:
            keep[row] = True
            kept[count] = row
            count += 1
    return keep


@njit(cache=True)
def node_lists(usage: npt.NDArray[np.int16], width: int) -> npt.NDArray[np.int16]:
    """int16 (T, width): the configuration of every node of a template, sorted, padded with -1."""
    nodes = np.full((usage.shape[0], width), -1, dtype=np.int16)
    for t in range(usage.shape[0]):
        k = 0
        for c in range(usage.shape[1]):
            for _ in range(usage[t, c]):
                nodes[t, k] = c
                k += 1
    return nodes


@njit(cache=True)
def sweep_best(
    nodes: npt.NDArray[np.int16],
    throughput: Floats,
    phase: npt.NDArray[np.int32],
    demand: Floats,
    availability: Ints,
    price: Floats,
    best: Floats,
) -> None:
    """``best[p, s]``: least weight of a new instance of phase p that covers s grid steps of its demand; in place.

    ``nodes`` lists the configuration of every node, sorted, padded with -1; ``price[r, c]`` holds weights, inf where there
    is no price. Pairs that a region cannot host once, or that serve nothing, are left out.
    """
    regions = price.shape[0]
    grid = best.shape[1] - 1
    for t in range(len(throughput)):
        p = phase[t]
        if demand[p] <= 0 or throughput[t] <= 0:
            continue
        size = _steps(throughput[t], demand[p], grid)
        for r in range(regions):
            weight = _weight(nodes, t, r, availability, price)
            if weight < best[p, size]:
                best[p, size] = weight


@njit(cache=True)
def sweep_forced(
    nodes: npt.NDArray[np.int16],
    throughput: Floats,
    phase: npt.NDArray[np.int32],
    demand: Floats,
    availability: Ints,
    price: Floats,
    covers: Floats,
    limit: Floats,
    template: Ints,
    region: Ints,
    over: Floats,
) -> int:
    """List the pairs whose weight plus the cheapest rest is at most ``limit[p]``; how many there are.

    Fills ``template``, ``region`` and ``over`` as far as they reach; the count goes on.
    """
    regions = price.shape[0]
    grid = covers.shape[1] - 1
    count = 0
    for t in range(len(throughput)):
        p = phase[t]
        if demand[p] <= 0 or throughput[t] <= 0:
            continue
        rest = covers[p, grid - _steps(throughput[t], demand[p], grid)]
        for r in range(regions):
            value = _weight(nodes, t, r, availability, price) + rest
            if value <= limit[p]:
                if count < len(template):
                    template[count] = t
                    region[count] = r
                    over[count] = value
                count += 1
    return count


@njit(inline="always")
def _steps(throughput: float, demand: float, grid: int) -> int:
    # The hair of slack keeps rounding up on the safe side of floating-point division.
    size = int(np.ceil(min(throughput / demand, 1.0) * grid * (1 + 1e-12)))
    return max(1, min(size, grid))


@njit(inline="always")
def _weight(nodes: npt.NDArray[np.int16], t: int, r: int, availability: Ints, price: Floats) -> float:
    """Weight of one instance; inf where the region cannot host it."""
    weight = 0.0
    last = -1
    run = 0
    for k in range(nodes.shape[1]):
        c = nodes[t, k]
        if c < 0:
            break
        run = run + 1 if c == last else 1
        last = c
        if run > availability[r, c]:
            return np.inf
        weight += price[r, c]
    return weight


@njit(cache=True)
def extend(
    label_speed: Floats,
    label_weight: Floats,
    label_use: npt.NDArray[np.int16],
    speed: Floats,
    weight: Floats,
    rows: npt.NDArray[np.int16],
    room: Ints,
    demand: float,
    least: Floats,
    limit: float,
    label: Ints,
    item: Ints,
) -> int:
    """List the pairs (partial covering, instance to add) that fit and may still end within ``limit``.

    Fills ``label`` and ``item``; how many pairs there are, or -1 where they are too few for all of them.
    """
    grid = len(least) - 1
    count = 0
    for k in range(len(label_speed)):
        for j in range(len(speed)):
            value = label_weight[k] + weight[j]
            if value > limit:
                continue
            missing = demand - (label_speed[k] + speed[j])
            if missing > 0:
                # Rounded down: what is missing may be a hair less than it seems.
                steps = int(np.ceil(missing / demand * grid * (1 - 1e-9) - 1e-6))
                if value + least[max(0, min(grid, steps))] > limit:
                    continue
            fits = True
            for cell in range(rows.shape[1]):
                if label_use[k, cell] + rows[j, cell] > room[cell]:
                    fits = False
                    break
            if fits:
                if count == len(label):
                    return -1
                label[count] = k
                item[count] = j
                count += 1
    return count
