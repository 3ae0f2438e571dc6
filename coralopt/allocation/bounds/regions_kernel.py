"""The lightest coverings made of one part a region (module ``parts``), compiled; imported only when they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coralopt.allocation.bounds.knapsack_kernel import missing_steps
from coralopt.allocation.bounds.parts_kernel import HAIR, PartItems, PartTask, parts_within
from coralopt.compiling import compiled
from coralopt.types import Floats, Ints

#: How far above what is known to be a bound is looked at first, as a share, and by what it grows at most and at least.
FIRST, GROWTH, LEAST = 1e-4, 3.0, 1.3
#: Coverings that are returned.
WANTED = 12
#: More amounts that some regions serve are rounded up to whole steps.
MANY = 20_000


class PhaseInstances(NamedTuple):
    """What no price changes about the instances of one model phase, region by region.

    Rows are nodes, then running instances; those of a region are numbered from 0.

    Attributes:
        start: int64 (R + 1,), the first instance of every region.
        first_row: int64 (R + 1,), its first row.
        speed: float64 (n,), tokens/s.
        row: int64 (n, w), rows that an instance uses, then -1.
        amount: int64 (n, w), how much of each.
        mark: int64 (n,), sums of ``mark_of_row``.
        room: int64 (m,), how much there is of every row.
        mark_of_row: int64 (m,), random numbers.
        cell: int64 (m,), cells of rows of nodes; -1 for others.
    """

    start: Ints
    first_row: Ints
    speed: Floats
    row: Ints
    amount: Ints
    mark: Ints
    room: Ints
    mark_of_row: Ints
    cell: Ints


class InstancePrices(NamedTuple):
    """What the instances of one model phase weigh.

    Attributes:
        weight: float64 (n,), USD/h, of cuts what an instance adds by itself.
        of_cuts: float64 (n,), USD/h, what each pays for these.
        own: float64 (n,), USD/h, what each pays at the phase's own prices.
    """

    weight: Floats
    of_cuts: Floats
    own: Floats


class PricedCuts(NamedTuple):
    """Cuts on the supply, each of one region.

    Attributes:
        weights: float64 (R * C, K), what a node adds to the sum of each.
        region: int64 (K,).
        divisor: int64 (K,).
        remainder: int64 (K,).
        price: float64 (K,), USD/h.
    """

    weights: Floats
    region: Ints
    divisor: Ints
    remainder: Ints
    price: Floats


class PhaseTask(NamedTuple):
    """What limits the coverings of a phase.

    Attributes:
        demand: tokens/s.
        least: float64 (G + 1,), USD/h; what serves so many steps of the demand weighs at least, whether it fits or not.
        own: float64 (H + 1,), USD/h, the same of H steps with own prices.
        worth: USD/h, of all there is at own prices.
        slope: USD/h a token/s that everything weighs at least, own prices included.
        known: USD/h; no covering that fits weighs less.
        ceiling: USD/h, of a covering that is known to fit; may be infinite.
        grid: Steps of the demand on which amounts are rounded up where there are many.
        most: Parts that are made at most, of a region.
    """

    demand: float
    least: Floats
    own: Floats
    worth: float
    slope: float
    known: float
    ceiling: float
    grid: int
    most: int


class Fronts(NamedTuple):
    """Parts of every region that none that serves as much undercuts, those that serve least first.

    Attributes:
        label: int64 (R + 1,), the first label of every region.
        parent: int64 (n,), what the last instance of a label was added to, counted in its region.
        item: int64 (n,), that instance.
        start: int64 (R + 1,), the first part of every region.
        part: int64 (f,), labels, counted in their region.
        speed: float64 (f,), tokens/s.
        weight: float64 (f,), USD/h.
        largest: Labels of a region there was room for, at most.
    """

    label: Ints
    parent: Ints
    item: Ints
    start: Ints
    part: Ints
    speed: Floats
    weight: Floats
    largest: int


@njit(cache=True, nogil=True)
def _steps(speed: float, demand: float, grid: int) -> int:
    """Grid steps that a throughput covers, rounded up, 1 to ``grid``."""
    return max(1, min(grid, int(np.ceil(speed / (demand if demand > 0 else 1.0) * grid * (1 + 1e-12)))))


@njit(cache=True, nogil=True)
def _undominated(speed: Floats, weight: Floats) -> Ints:
    """Positions, those that serve most first, of what weighs less than all that serves as much; ties to the first."""
    order = np.argsort(-speed, kind="mergesort")
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
def _region_task(instances: PhaseInstances, cuts: PricedCuts, within: PhaseTask, region: int, limit: float) -> PartTask:
    """What limits the parts of a region."""
    rows = slice(instances.first_row[region], instances.first_row[region + 1])
    cell, some = instances.cell[rows], np.flatnonzero((cuts.region == region) & (cuts.price > 0))
    weights = np.zeros((len(some), len(cell)), dtype=np.int64)
    for k in range(len(some)):
        for row in range(len(cell)):
            if cell[row] >= 0:
                weights[k, row] = int(cuts.weights[cell[row], some[k]])
    return PartTask(
        within.demand,
        instances.room[rows],
        instances.mark_of_row[rows],
        within.own,
        within.slope,
        limit,
        weights,
        cuts.divisor[some],
        cuts.remainder[some],
        cuts.price[some],
        within.most,
    )


@njit(cache=True, nogil=True)
def _fronts(
    instances: PhaseInstances, prices: InstancePrices, cuts: PricedCuts, within: PhaseTask, limit: float
) -> tuple[Fronts, bool]:
    """The parts of every region within a limit, and whether these are all; otherwise there are too many."""
    regions, grid = len(instances.start) - 1, len(within.own) - 1
    label, start = np.zeros(regions + 1, dtype=np.int64), np.zeros(regions + 1, dtype=np.int64)
    parent, item = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    part, speed, weight = np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
    largest, whole = 0, prices.weight + prices.own
    step = within.own[grid] / grid
    for region in range(regions):
        mine = np.arange(instances.start[region], instances.start[region + 1])
        # Every instance by itself, as the search does it.
        light = np.empty(len(mine), dtype=np.bool_)
        for k in range(len(mine)):
            steps = _steps(instances.speed[mine[k]], within.demand, grid)
            light[k] = whole[mine[k]] + (within.own[grid - steps] - step) <= limit
        mine = mine[light]
        mine = mine[np.argsort(whole[mine] - within.slope * instances.speed[mine], kind="mergesort")]
        items = PartItems(
            (prices.weight - prices.of_cuts)[mine],
            prices.of_cuts[mine],
            prices.own[mine],
            instances.speed[mine],
            instances.row[mine],
            instances.amount[mine],
            instances.mark[mine],
        )
        labels, is_part, count, all_of_them = parts_within(items, _region_task(instances, cuts, within, region, limit))
        if not all_of_them:
            return Fronts(label, parent, item, start, part, speed, weight, largest), False
        some = np.flatnonzero(is_part[:count])
        some = some[_undominated(labels.speed[some], labels.whole[some])][::-1]
        of_label = np.full(count, -1, dtype=np.int64)
        for k in range(1, count):
            of_label[k] = mine[labels.item[k]]
        parent, item = np.append(parent, labels.parent[:count]), np.append(item, of_label)
        part = np.append(part, some)
        speed, weight = np.append(speed, labels.speed[some]), np.append(weight, labels.whole[some])
        label[region + 1], start[region + 1] = len(parent), len(part)
        largest = max(largest, len(labels.parent))
    return Fronts(label, parent, item, start, part, speed, weight, largest), True


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
                speed, weight = np.append(speed, np.empty(count)), np.append(weight, np.empty(count))
                came = np.append(came, np.empty(count, dtype=np.int64))
                choice = np.append(choice, np.empty(count, dtype=np.int64))
            speed[count], weight[count], came[count], choice[count] = total, whole, k, part
            count += 1
    return speed[:count], weight[:count], came[:count], choice[:count]


@njit(cache=True, nogil=True)
def _put_together(fronts: Fronts, within: PhaseTask, limit: float) -> tuple[float, Ints, Ints]:
    """The lightest coverings of one part a region: least weight, and members as below; none where all are too heavy."""
    regions, demand = len(fronts.start) - 1, within.demand
    order = np.argsort(fronts.start[1:] - fronts.start[:-1], kind="mergesort")
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
                    speed[k] = _steps(speed[k], demand, within.grid) * (demand / within.grid)
        kept = _undominated(speed, weight)
        served = speed[kept], weight[kept]
        came, choice = np.append(came, origin[kept]), np.append(choice, taken[kept])
        ends[place + 1] = len(came)
    # Many of the last region's parts say as many coverings.
    whole = np.flatnonzero(speed >= demand * (1 - HAIR))
    lightest = whole[np.argsort(weight[whole], kind="mergesort")[:WANTED]]
    members, starts = [np.int64(0) for _ in range(0)], np.zeros(len(lightest) + 1, dtype=np.int64)
    for covering in range(len(lightest)):
        k, taken_part = origin[lightest[covering]], taken[lightest[covering]]
        for place in range(regions - 1, -1, -1):
            region = order[place]
            label = fronts.part[fronts.start[region] + taken_part]
            while label > 0:
                members.append(fronts.item[fronts.label[region] + label])
                label = fronts.parent[fronts.label[region] + label]
            if place > 0:
                taken_part = choice[ends[place - 1] + k]
                k = came[ends[place - 1] + k]
        starts[covering + 1] = len(members)
    return weight[lightest[0]] if len(lightest) else limit, np.array(members, dtype=np.int64), starts


@compiled(nogil=True)
def lightest_within(
    instances: PhaseInstances, prices: InstancePrices, cuts: PricedCuts, within: PhaseTask
) -> tuple[float, Ints, Ints]:
    """The lightest coverings of a phase that fit, at most ``WANTED``.

    Returns:
        USD/h that no covering that fits undercuts, infinite where nothing fits; int64 (m,), the instances of all coverings,
        one covering after the other, the lightest first; and int64 (c + 1,), where each begins: none where parts are too
        many to tell.
    """
    known, reach = within.known, FIRST * (1 + within.known)
    while True:
        limit = min(known + reach, within.ceiling)
        fronts, all_of_them = _fronts(instances, prices, cuts, within, limit + within.worth)
        if not all_of_them:
            # What is not looked at weighs at least as much as the last limit.
            return known, np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        weight, members, starts = _put_together(fronts, within, limit)
        if len(starts) > 1 or limit == within.ceiling:
            return weight, members, starts
        # Parts grow about with the fourth power of the reach.
        growth = (within.most / fronts.largest) ** 0.25
        known, reach = limit, reach * min(GROWTH, max(growth, LEAST)) if reach <= limit else np.inf
