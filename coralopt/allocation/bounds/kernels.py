"""Compiled loops of the allocation floor; imported only when they run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from coralopt.allocation.bounds.knapsack_kernel import Completions, completed_for, missing_steps, steps_of
from coralopt.compiling import compiled
from coralopt.types import Bools, Floats, Ints

#: Two tables, and rows of the first and the second whose sums are meant.
Sums = tuple[npt.NDArray[np.int16], Ints, npt.NDArray[np.int16], Ints]


@compiled(nogil=True)
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


@compiled(nogil=True)
def instance_weights(usage: npt.NDArray[np.int16], serves: Bools, nodes: Floats, weight: Floats) -> None:
    """``weight[t, r]``: weight of an instance of template t in region r; in place.

    Infinite where the region cannot host it once, or where it serves nothing. ``nodes[c, n, r]`` is the weight of n nodes of
    configuration c, inf where the region has no such number of them or they have no price there.
    """
    configurations, _, regions = nodes.shape
    # Weights of the first nodes of the row before, up to each kind that it has: sorted rows begin alike.
    kind, partial = np.full(configurations + 1, -1, dtype=np.int64), np.zeros((configurations + 1, regions))
    depth, before = 0, -1
    for t in range(len(serves)):
        if not serves[t]:
            for r in range(regions):
                weight[t, r] = np.inf
            continue
        alike = 0
        if before >= 0:
            while alike < configurations and usage[t, alike] == usage[before, alike]:
                alike += 1
        while kind[depth] >= alike:
            depth -= 1
        for c in range(alike, configurations):
            count = usage[t, c]
            if count:
                for r in range(regions):
                    partial[depth + 1, r] = partial[depth, r] + nodes[c, count, r]
                depth += 1
                kind[depth] = c
        for r in range(regions):
            weight[t, r] = partial[depth, r]
        before = t


@compiled(nogil=True)
def sweep_best(
    weight: Floats,
    throughput: Floats,
    phase: npt.NDArray[np.int32],
    demand: Floats,
    pool: Ints,
    best: Floats,
) -> None:
    """``best[q, s]``: least weight of a new instance of pool q that covers s grid steps of its phase's demand; in place.

    ``best[q, 0]``: least weight of the whole demand, were instances to be had in fractions.
    ``pool[p, r]`` is the pool of an instance of phase p in region r; ``weight`` is that of :func:`instance_weights`.
    """
    regions = weight.shape[1]
    grid = best.shape[1] - 1
    for t in range(len(throughput)):
        p = phase[t]
        size = 0
        for r in range(regions):
            if weight[t, r] == np.inf:
                continue
            if not size:
                size = steps_of(throughput[t], demand[p], grid)
            if weight[t, r] < best[pool[p, r], size]:
                best[pool[p, r], size] = weight[t, r]
            if weight[t, r] * demand[p] < best[pool[p, r], 0] * throughput[t]:
                best[pool[p, r], 0] = weight[t, r] * demand[p] / throughput[t]


@compiled(nogil=True)
def sweep_forced(
    weight: Floats,
    throughput: Floats,
    phase: npt.NDArray[np.int32],
    demand: Floats,
    pool: Ints,
    rests: Floats,
    limit: Floats,
    template: Ints,
    region: Ints,
    over: Floats,
) -> int:
    """List the pairs whose weight plus the cheapest rest is at most the pool's limit; how many there are.

    ``rests[q, s]`` is the least weight of the rest beside an instance of pool q that leaves s grid steps uncovered.

    Fills ``template``, ``region`` and ``over`` as far as they reach; the count goes on.
    """
    regions = weight.shape[1]
    grid = rests.shape[1] - 1
    # Most are too dear whatever they leave.
    most = np.empty(len(limit))
    for q in range(len(limit)):
        least = np.inf
        for value in rests[q]:
            least = min(least, value)
        most[q] = limit[q] - least
    count = 0
    for t in range(len(throughput)):
        p = phase[t]
        for r in range(regions):
            if not weight[t, r] <= most[pool[p, r]]:
                continue
            left = grid - steps_of(throughput[t], demand[p], grid)
            value = weight[t, r] + rests[pool[p, r], left]
            if value <= limit[pool[p, r]]:
                if count < len(template):
                    template[count] = t
                    region[count] = r
                    over[count] = value
                count += 1
    return count


@compiled(nogil=True)
def leaders(order: Ints, mark: Ints, speed: Floats, rows: Sums) -> tuple[Ints, Bools]:
    """Of sums of rows, in an order that puts equal marks side by side: the place of the fastest, and whether they differ."""
    first, label, second, item = rows
    leader, other = np.empty(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.bool_)
    start = 0
    while start < len(order):
        end, best = start, start
        while end < len(order) and mark[order[end]] == mark[order[start]]:
            one, two = order[end], order[best]
            if speed[one] > speed[two] or (speed[one] == speed[two] and one < two):
                best = end
            end += 1
        two = order[best]
        for place in range(start, end):
            one = order[place]
            leader[place] = best
            if place != best:
                for k in range(first.shape[1]):
                    if first[label[one], k] + second[item[one], k] != first[label[two], k] + second[item[two], k]:
                        other[place] = True
                        break
        start = end
    return leader, other


@compiled(nogil=True)
def extend(
    labels: tuple[Floats, Floats, Floats, npt.NDArray[np.int16], Ints],
    speed: Floats,
    weight: Floats,
    rows: npt.NDArray[np.int16],
    room: Ints,
    demand: tuple[float, float],
    least: Floats,
    completions: Completions,
    limit: float,
    label: Ints,
    item: Ints,
) -> int:
    """List the pairs (partial covering, instance to add) that fit and may still end within ``limit``.

    ``labels`` are speed, largest instance, weight, nodes and number of instances of the partial coverings; ``demand`` what
    all instances must give, and all but the largest one; ``completions`` and ``least`` what completes them at least,
    ``least[k]`` by at least k instances, the last by as many as are asked for. Fills ``label`` and ``item``; how many pairs
    there are, or -1 where they are too few for all of them.
    """
    replicas, grid = least.shape[0] - 1, least.shape[1] - 1
    # The table has shares of what a whole costs in fractions, too: a part of a step costs less than a step.
    step = least[0, grid] / grid
    count = 0
    label_speed, label_largest, label_weight, label_use, label_count = labels
    whole, spared = demand
    for k in range(len(label_speed)):
        for j in range(len(speed)):
            value = label_weight[k] + weight[j]
            if value > limit:
                continue
            short = missing = whole - (label_speed[k] + speed[j])
            largest = max(label_largest[k], speed[j])
            if spared > 0:
                missing = max(short, spared + largest - (label_speed[k] + speed[j]))
            others = max(0, replicas - label_count[k] - 1)
            if value + least[others, missing_steps(missing / whole, grid)] - step > limit:
                continue
            rest = (
                completed_for(completions, short / whole, missing / whole, largest / whole)
                if missing > 0 < spared
                else 0.0
            )
            if value + rest > limit:
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


@compiled(nogil=True)
def least_beside(steps: Ints, after: Ints, rests: Floats, table: Floats) -> Floats:
    """Least of ``rests[j]`` and what ``table`` says of the rest of ``after[j]`` steps over all j, for every size."""
    least = np.full(len(steps), np.inf)
    for k in range(len(steps)):
        for j in range(len(after)):
            missing = after[j] - steps[k]
            value = rests[j] + (table[missing] if missing > 0 else 0.0)
            if value < least[k]:
                least[k] = value
    return least


@compiled(nogil=True)
def join_region(others: Floats, counted: Ints, weight: Floats) -> Floats:
    """Least weight of ``others`` and one of these amounts of a region for each sum."""
    size = len(others)
    least = np.full(size, np.inf)
    for k in range(len(weight)):
        own = min(counted[k], size)
        for s in range(own):
            least[s] = min(least[s], others[0] + weight[k])
        for s in range(own, size):
            least[s] = min(least[s], others[s - own] + weight[k])
    return least


@compiled(nogil=True)
def surviving_pairs(
    first: tuple[Ints, Floats], second: tuple[Ints, Floats], third: Floats, needed: Ints, grid: int, limit: float
) -> tuple[float, tuple[int, int, int], tuple[Floats, Floats, Floats]]:
    """The cheapest amounts of three regions that cover the grid, and what is needed without each of them.

    Edges of the first two regions are (largest amount, weight) in ascending order; ``third`` is a covering table. Returns
    the least total, its edges and its amount of the third region; and the least weight of the other two beside every edge
    of the first and of the second region and beside every amount of the third, of totals up to the limit.
    """
    best = np.inf
    chosen = (0, 0, 0)
    beside_first = np.full(len(first[0]), np.inf)
    beside_second = np.full(len(second[0]), np.inf)
    beside_third = np.full(grid + 1, np.inf)
    for i in range(len(first[0])):
        if first[1][i] > limit:
            break
        for j in range(len(second[0])):
            both = first[1][i] + second[1][j]
            if both > limit:
                break
            a = first[0][i]
            b = second[0][j]
            if a + b < needed[2]:
                continue
            amount = max(grid - a - b, needed[0] - b, needed[1] - a, 0)
            if amount > grid:
                continue
            total = both + third[amount]
            if total > limit:
                continue
            if total < best:
                best = total
                chosen = (i, j, amount)
            beside_first[i] = min(beside_first[i], total - first[1][i])
            beside_second[j] = min(beside_second[j], total - second[1][j])
            beside_third[amount] = min(beside_third[amount], both)
    return best, chosen, (beside_first, beside_second, beside_third)


@compiled(nogil=True)
def cheapest_pairs(
    first: Ints,
    first_weight: Floats,
    second: Ints,
    second_weight: Floats,
    alone: tuple[Ints, Floats],
    prices: Floats,
    unmet_and_limit: tuple[float, float],
    grid: int,
) -> tuple[float, tuple[int, int, int], tuple[Floats, Floats, Floats]]:
    """The cheapest of all triples (first profile, second profile, what serves alone) with their flows.

    Profiles are sorted by weight; ``prices[r, s]`` is USD/h for one step. Returns the least total, its triple, and the least
    total with every profile and every edge of what serves alone; totals above the limit are not looked at.
    """
    unmet, limit = unmet_and_limit
    regions = first.shape[1]
    best = np.inf
    chosen = (-1, -1, 0)
    with_first = np.full(len(first_weight), np.inf)
    with_second = np.full(len(second_weight), np.inf)
    with_alone = np.full(len(alone[0]), np.inf)
    surplus = np.zeros(regions, dtype=np.int64)
    lack = np.zeros(regions, dtype=np.int64)
    for s in range(len(alone[0])):
        for i in range(len(first_weight)):
            if alone[1][s] + first_weight[i] > limit:
                break
            for j in range(len(second_weight)):
                total = alone[1][s] + first_weight[i] + second_weight[j]
                if total > limit:
                    break
                left = grid - alone[0][s]
                for r in range(regions):
                    same = min(first[i, r], second[j, r])
                    left -= same
                    surplus[r] = first[i, r] - same
                    lack[r] = second[j, r] - same
                if left > 0:
                    total += max(
                        _sent(left, surplus, lack, prices, False, unmet),
                        _sent(left, lack, surplus, prices, True, unmet),
                    )
                if total <= limit:
                    with_first[i] = min(with_first[i], total)
                    with_second[j] = min(with_second[j], total)
                    with_alone[s] = min(with_alone[s], total)
                    if total < best:
                        best = total
                        chosen = (i, j, s)
    return best, chosen, (with_first, with_second, with_alone)


@njit(inline="always")
def _sent(left: int, here: Ints, there: Ints, prices: Floats, turned: bool, unmet: float) -> float:
    """Least cost of ``left`` steps that leave (or, ``turned``, enter) regions, each at its cheapest price."""
    regions = len(here)
    cost = 0.0
    done = 0
    # Regions in ascending order of price, by selection: there are few.
    last = -1.0
    last_region = -1
    while done < left:
        next_price = np.inf
        region = -1
        for r in range(regions):
            if here[r] <= 0:
                continue
            price = np.inf
            for q in range(regions):
                if q != r and there[q] > 0:
                    price = min(price, prices[q, r] if turned else prices[r, q])
            if (price > last or (price == last and r > last_region)) and price < next_price:
                next_price = price
                region = r
        if region < 0 or next_price >= unmet:
            break
        last = next_price
        last_region = region
        amount = min(left - done, here[region])
        cost += amount * next_price
        done += amount
    if done < left:
        cost += (left - done) * unmet
    return cost
