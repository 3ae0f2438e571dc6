"""The lightest coverings made of one part a region (module ``parts``), compiled; imported only when they run."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numba import njit

from coralopt.allocation.bounds.cuts import CutRows
from coralopt.allocation.bounds.knapsack_kernel import missing_steps, steps_of
from coralopt.allocation.bounds.parts_kernel import HAIR, PartItems, PartTask, longer, parts_within
from coralopt.compiling import compiled
from coralopt.types import Floats, Ints

_A = TypeVar("_A", Floats, Ints)

#: Coverings that are returned.
WANTED = 12
#: More amounts that some regions serve are rounded up to whole steps.
MANY = 20_000


class PhaseRows(NamedTuple):
    """What instances of one model phase use, region by region: nodes, then running instances, numbered from 0 in each.

    Attributes:
        start: int64 (R + 1,), the first instance of every region.
        first: int64 (R + 1,), its first row.
        room: int64 (m,), how much there is of every row.
        mark: int64 (m,), random numbers, which the marks of instances are sums of.
        cell: int64 (m,), cells of rows of nodes; -1 for others.
    """

    start: Ints
    first: Ints
    room: Ints
    mark: Ints
    cell: Ints


class PhaseTask(NamedTuple):
    """What limits the coverings of a phase.

    Attributes:
        demand: tokens/s.
        least: float64 (G + 1,), USD/h; what serves so many steps of the demand weighs at least, whether it fits or not.
        own: float64 (H + 1,), USD/h, the same of H steps with own prices.
        slope: USD/h a token/s that everything weighs at least, own prices included.
        price: float64 (K,), USD/h, of the cuts.
        grid: Steps of the demand on which amounts are rounded up where there are many.
        most: Parts that are made at most, of a region.
    """

    demand: float
    least: Floats
    own: Floats
    slope: float
    price: Floats
    grid: int
    most: int


class Fronts(NamedTuple):
    """Parts of every region that none that serves as much undercuts, those that serve least first.

    Attributes:
        first: int64 (R + 1,), the first label of every region.
        parent: int64 (n,), what the last instance of a label was added to, counted in its region.
        item: int64 (n,), that instance.
        start: int64 (R + 1,), the first part of every region.
        part: int64 (f,), labels, counted in their region.
        speed: float64 (f,), tokens/s.
        weight: float64 (f,), USD/h.
        largest: Labels of a region there was room for, at most.
    """

    first: Ints
    parent: Ints
    item: Ints
    start: Ints
    part: Ints
    speed: Floats
    weight: Floats
    largest: int


@njit(cache=True, nogil=True)
def _sorted(values: Floats) -> Ints:
    """int64 (n,): positions from the least value to the largest, the first of equal ones first."""
    return np.argsort(values, kind="mergesort")


@compiled(nogil=True)
def joined(first: _A, second: _A) -> _A:
    """Both, one after the other; what NumPy does takes longer to compile."""
    joined = np.empty(len(first) + len(second), dtype=first.dtype)
    for k in range(len(first)):
        joined[k] = first[k]
    for k in range(len(second)):
        joined[len(first) + k] = second[k]
    return joined


@njit(cache=True, nogil=True)
def _undominated(speed: Floats, weight: Floats) -> Ints:
    """Positions, those that serve most first, of what weighs less than all that serves as much; ties to the first."""
    order = _sorted(-speed)
    kept, count, least, k = np.empty(len(order), dtype=np.int64), 0, np.inf, 0
    while k < len(order):
        best, same = order[k], speed[order[k]]
        while k < len(order) and speed[order[k]] == same:
            if weight[order[k]] < weight[best]:
                best = order[k]
            k += 1
        if weight[best] < least or count == 0:
            least = weight[best]
            kept[count] = best
            count += 1
    return kept[:count]


@njit(cache=True, nogil=True)
def _light(items: PartItems, within: PhaseTask, start: int, end: int, limit: float) -> Ints:
    """int64 (n,): those instances that a covering within the limit may have, the cheapest for what they serve first."""
    grid, count = len(within.own) - 1, 0
    step = within.own[grid] / grid
    light, value = np.empty(end - start, dtype=np.int64), np.empty(end - start)
    for k in range(start, end):
        whole = items.weight[k] + items.own[k]
        # Every instance by itself, as the search does it.
        if whole + (within.own[grid - steps_of(items.speed[k], within.demand, grid)] - step) <= limit:
            light[count], value[count] = k, whole - within.slope * items.speed[k]
            count += 1
    order = _sorted(value[:count])
    for k in range(count):
        order[k] = light[order[k]]
    return order


@njit(cache=True, nogil=True)
def _region_task(
    items: PartItems, rows: PhaseRows, cuts: CutRows, within: PhaseTask, region: int, limit: float
) -> PartTask:
    """What limits the parts of a region."""
    mine, count = slice(rows.first[region], rows.first[region + 1]), 0
    cell, some = rows.cell[mine], np.empty(len(within.price), dtype=np.int64)
    for k in range(len(within.price)):
        if cuts.region[k] == region and within.price[k] > 0:
            some[count] = k
            count += 1
    weights, divisor = np.zeros((count, len(cell)), dtype=np.int64), np.empty(count, dtype=np.int64)
    remainder, price = np.empty(count, dtype=np.int64), np.empty(count)
    for k in range(count):
        divisor[k], remainder[k], price[k] = cuts.divisor[some[k]], cuts.remainder[some[k]], within.price[some[k]]
        for row in range(len(cell)):
            if cell[row] >= 0:
                weights[k, row] = int(cuts.weights[cell[row], some[k]])
    return PartTask(
        _light(items, within, rows.start[region], rows.start[region + 1], limit),
        within.demand,
        rows.room[mine],
        rows.mark[mine],
        within.own,
        within.slope,
        limit,
        weights,
        divisor,
        remainder,
        price,
        within.most,
    )


@compiled(nogil=True)
def fronts_within(
    items: PartItems, rows: PhaseRows, cuts: CutRows, within: PhaseTask, limit: float
) -> tuple[Fronts, bool]:
    """The parts of every region within a limit in USD/h, own prices included, and whether these are all.

    Otherwise there are too many.
    """
    regions = len(rows.start) - 1
    first, start = np.zeros(regions + 1, dtype=np.int64), np.zeros(regions + 1, dtype=np.int64)
    parent, item = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    part, speed, weight, largest = np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), 0
    for region in range(regions):
        labels, is_part, count, all_of_them = parts_within(
            items, _region_task(items, rows, cuts, within, region, limit)
        )
        if not all_of_them:
            return Fronts(first, parent, item, start, part, speed, weight, largest), False
        kept, parts = np.empty(count, dtype=np.int64), 0
        faster, heavier = np.empty(count), np.empty(count)
        for label in range(count):
            if is_part[label]:
                kept[parts], faster[parts], heavier[parts] = label, labels.speed[label], labels.whole[label]
                parts += 1
        some = _undominated(faster[:parts], heavier[:parts])[::-1].copy()
        parent, item = joined(parent, labels.parent[:count]), joined(item, labels.item[:count])
        for k in range(len(some)):
            some[k] = kept[some[k]]
        part = joined(part, some)
        for k in range(len(some)):
            faster[k], heavier[k] = labels.speed[some[k]], labels.whole[some[k]]
        speed, weight = joined(speed, faster[: len(some)]), joined(weight, heavier[: len(some)])
        first[region + 1], start[region + 1] = len(parent), len(part)
        largest = max(largest, len(labels.parent))
    return Fronts(first, parent, item, start, part, speed, weight, largest), True


@njit(cache=True, nogil=True)
def _with_region(
    before: tuple[Floats, Floats], front: tuple[Floats, Floats], within: PhaseTask, limit: float
) -> tuple[Floats, Floats, Ints, Ints]:
    """What some regions and one part of the next serve and weigh, but for what is too heavy.

    Args:
        before: float64 (n,) tokens/s and USD/h of what the regions before serve and weigh.
        front: float64 (f,) the same of the parts, the lightest first.
        within: What else says whether it is too heavy.
        limit: USD/h.

    Returns:
        float64 (m,) tokens/s, float64 (m,) USD/h, and int64 (m,) positions of what both came from.
    """
    demand, rest = within.demand, within.least
    grid, size, count = len(rest) - 1, 1024, 0
    step = rest[grid] / grid
    speed, weight = np.empty(size), np.empty(size)
    came, choice = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    for k in range(len(before[0])):
        for part in range(len(front[0])):
            whole = before[1][k] + front[1][part]
            if whole > limit:
                break
            total = min(demand, before[0][k] + front[0][part])
            missing = demand - total
            if missing > demand * HAIR and whole + max(0.0, rest[missing_steps(missing / demand, grid)] - step) > limit:
                continue
            if count == size:
                size *= 2
                speed, weight, came, choice = (
                    longer(speed, 0.0),
                    longer(weight, 0.0),
                    longer(came, 0),
                    longer(choice, 0),
                )
            speed[count], weight[count], came[count], choice[count] = total, whole, k, part
            count += 1
    return speed[:count], weight[:count], came[:count], choice[:count]


@compiled(nogil=True)
def put_together(fronts: Fronts, within: PhaseTask, limit: float) -> tuple[float, Ints, Ints]:
    """The lightest coverings of one part a region within a limit in USD/h, at most ``WANTED``.

    Returns:
        USD/h, the least weight, or the limit where all weigh more; int64 (m,), the instances of all coverings, one covering
        after the other, the lightest first; and int64 (c + 1,), where each begins.
    """
    regions, demand = len(fronts.start) - 1, within.demand
    order = _sorted((fronts.start[1:] - fronts.start[:-1]).astype(np.float64))
    served = np.zeros(1), np.zeros(1)
    # Of every region but the last, one after the other: what each sum came from, and its part.
    came, choice, ends = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.zeros(regions, dtype=np.int64)
    for place in range(regions):
        mine = slice(fronts.start[order[place]], fronts.start[order[place] + 1])
        speed, weight, origin, taken = _with_region(served, (fronts.speed[mine], fronts.weight[mine]), within, limit)
        if place == regions - 1:
            break
        if len(speed) > MANY:
            # Rounded up, so that many of them are one.
            for k in range(len(speed)):
                if speed[k] > 0:
                    speed[k] = steps_of(speed[k], demand, within.grid) * (demand / within.grid)
        kept = _undominated(speed, weight)
        served = speed[kept], weight[kept]
        came, choice = joined(came, origin[kept]), joined(choice, taken[kept])
        ends[place + 1] = len(came)
    # Many of the last region's parts say as many coverings.
    whole, count = np.empty(len(speed), dtype=np.int64), 0
    for k in range(len(speed)):
        if speed[k] >= demand * (1 - HAIR):
            whole[count] = k
            count += 1
    lightest = whole[_sorted(weight[whole[:count]])[:WANTED]]
    members, starts = [np.int64(0) for _ in range(0)], np.zeros(len(lightest) + 1, dtype=np.int64)
    for covering in range(len(lightest)):
        k, taken_part = origin[lightest[covering]], taken[lightest[covering]]
        for place in range(regions - 1, -1, -1):
            region = order[place]
            label = fronts.part[fronts.start[region] + taken_part]
            while label > 0:
                members.append(fronts.item[fronts.first[region] + label])
                label = fronts.parent[fronts.first[region] + label]
            if place > 0:
                taken_part = choice[ends[place - 1] + k]
                k = came[ends[place - 1] + k]
        starts[covering + 1] = len(members)
    return weight[lightest[0]] if len(lightest) else limit, np.array(members, dtype=np.int64), starts
