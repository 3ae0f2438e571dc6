"""The parts of coverings in one region (module ``parts``), compiled; imported only when they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from coralopt.allocation.bounds.knapsack_kernel import missing_steps
from coralopt.types import Bools, Floats, Ints

#: Share of a sum by which a demand may be missed: what rounding does.
HAIR = 1e-9


class PartItems(NamedTuple):
    """The instances that parts of one model phase in one region are made of, the cheapest for what they serve first.

    Attributes:
        weight: float64 (n,), USD/h, but for the cuts.
        of_cuts: float64 (n,), USD/h, what it pays for the cuts by itself.
        own: float64 (n,), USD/h, what it pays at the phase's own prices; these say which parts matter, not what they weigh.
        speed: float64 (n,), tokens/s.
        row: int64 (n, w), rows that an instance uses, then -1.
        amount: int64 (n, w), how much of each, above 0.
        mark: int64 (n,), sums of which are equal where equally much of every row is used, and almost nowhere else.
    """

    weight: Floats
    of_cuts: Floats
    own: Floats
    speed: Floats
    row: Ints
    amount: Ints
    mark: Ints


class PartTask(NamedTuple):
    """What limits parts.

    Attributes:
        demand: tokens/s of the whole phase.
        room: int64 (m,), how much there is of every row.
        mark: int64 (m,), of one unit of every row.
        rest: float64 (G + 1,), USD/h; what serves so many of G steps of the demand weighs at least, own prices included.
        slope: USD/h a token/s that everything weighs at least.
        limit: USD/h; coverings that are heavier, own prices included, are not looked for.
        weights: int64 (K, m), what a unit of every row adds to the sum of each cut.
        divisor: int64 (K,).
        remainder: int64 (K,).
        price: float64 (K,), USD/h.
        most: Parts that are made at most.
    """

    demand: float
    room: Ints
    mark: Ints
    rest: Floats
    slope: float
    limit: float
    weights: Ints
    divisor: Ints
    remainder: Ints
    price: Floats
    most: int


class PartLabels(NamedTuple):
    """Parts, the empty one first.

    Attributes:
        parent: int64 (n,), what an instance was added to.
        item: int64 (n,), that instance.
        older: int64 (n,), an older one with the same mark, or -1.
        mark: int64 (n,), sum of the marks.
        weight: float64 (n,), USD/h, but for the cuts.
        whole: float64 (n,), USD/h, with them.
        own: float64 (n,), USD/h, at prices of the phase's own.
        speed: float64 (n,), tokens/s.
        use: int32 (n, m), how much of every row.
    """

    parent: Ints
    item: Ints
    older: Ints
    mark: Ints
    weight: Floats
    whole: Floats
    own: Floats
    speed: Floats
    use: npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def _room_for(labels: PartLabels, count: int) -> PartLabels:
    """The same labels with room for more."""
    size = 2 * count
    use = np.zeros((size, labels.use.shape[1]), dtype=np.int32)
    use[:count] = labels.use[:count]
    parent, item, older, mark = (
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int64),
    )
    weight, whole, own, speed = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    parent[:count], item[:count], older[:count] = labels.parent[:count], labels.item[:count], labels.older[:count]
    mark[:count], weight[:count] = labels.mark[:count], labels.weight[:count]
    whole[:count], own[:count], speed[:count] = labels.whole[:count], labels.own[:count], labels.speed[:count]
    return PartLabels(parent, item, older, mark, weight, whole, own, speed, use)


@njit(cache=True, nogil=True)
def _undercut(labels: PartLabels, rival: int, label: int, fewer: int) -> bool:
    """Whether one of a chain serves as much at no more weight, on the same rows or on one unit of ``fewer`` less."""
    while rival >= 0:
        if (
            rival != label
            and labels.speed[rival] >= labels.speed[label]
            and labels.weight[rival] <= labels.weight[label]
        ):
            same = True
            for row in range(labels.use.shape[1]):
                if labels.use[rival, row] + (1 if row == fewer else 0) != labels.use[label, row]:
                    same = False
                    break
            if same:
                return True
        rival = labels.older[rival]
    return False


@njit(cache=True, nogil=True)
def parts_within(items: PartItems, task: PartTask) -> tuple[PartLabels, Bools, int, bool]:
    """Every part of a region that a covering within the limit may have, but for those that another one undercuts.

    Parts of few units come first, so that those which no extension needs are seen as such before they are extended.

    Returns:
        Labels; bool (n,), which of them are parts; how many labels there are; and whether these are all.
    """
    rows, grid = len(task.room), len(task.rest) - 1
    labels = PartLabels(
        np.full(64, -1, dtype=np.int64),
        np.full(64, -1, dtype=np.int64),
        np.full(64, -1, dtype=np.int64),
        np.zeros(64, dtype=np.int64),
        np.zeros(64),
        np.zeros(64),
        np.zeros(64),
        np.zeros(64),
        np.zeros((64, rows), dtype=np.int32),
    )
    kept = np.zeros(64, dtype=np.bool_)
    newest = {np.int64(0): np.int64(0)}
    step = task.rest[grid] / grid
    # A queue for every number of units: its first label, its last one, and what comes after each label.
    most = task.room.sum()
    first, last = np.full(most + 1, -1, dtype=np.int64), np.full(most + 1, -1, dtype=np.int64)
    after = np.full(64, -1, dtype=np.int64)
    first[0] = last[0] = 0
    units, count = 0, 1
    while units <= most:
        label = first[units]
        if label < 0:
            units += 1
            continue
        first[units] = after[label]
        if _undercut(labels, int(newest[labels.mark[label]]), label, -1):
            continue
        needed = True
        for row in range(rows):
            fewer = labels.mark[label] - task.mark[row]
            if labels.use[label, row] > 0 and fewer in newest and _undercut(labels, int(newest[fewer]), label, row):
                needed = False
                break
        if not needed:
            continue
        kept[label] = True
        speed, whole = labels.speed[label], labels.whole[label] + labels.own[label]
        if speed >= task.demand * (1 - HAIR):
            continue
        for k in range(len(items.speed)):
            heavier = whole + items.weight[k] + items.of_cuts[k] + items.own[k]
            faster = speed + items.speed[k]
            missing = task.demand - faster
            if heavier + task.slope * missing > task.limit:
                # So do all that come after it.
                break
            rest = 0.0
            if missing > 0:
                rest = max(0.0, task.rest[missing_steps(missing / task.demand, grid)] - step)
            if heavier + rest > task.limit:
                continue
            fits, more = True, 0
            for q in range(items.row.shape[1]):
                row = items.row[k, q]
                if row < 0:
                    break
                more += items.amount[k, q]
                if labels.use[label, row] + items.amount[k, q] > task.room[row]:
                    fits = False
                    break
            if not fits:
                continue
            if count == task.most:
                return labels, kept, count, False
            if count == len(labels.parent):
                labels = _room_for(labels, count)
                grown = np.zeros(len(labels.parent), dtype=np.bool_)
                grown[:count] = kept
                kept = grown
                after = np.append(after, np.full(count, -1, dtype=np.int64))
            labels.use[count] = labels.use[label]
            for q in range(items.row.shape[1]):
                if items.row[k, q] < 0:
                    break
                labels.use[count, items.row[k, q]] += items.amount[k, q]
            labels.parent[count], labels.item[count] = label, k
            labels.weight[count], labels.speed[count] = labels.weight[label] + items.weight[k], faster
            paid = 0.0
            for cut in range(len(task.price)):
                total = 0
                for row in range(rows):
                    total += task.weights[cut, row] * labels.use[count, row]
                parts, over = divmod(total, task.divisor[cut])
                counted = (task.divisor[cut] - task.remainder[cut]) * parts + max(0, over - task.remainder[cut])
                paid += task.price[cut] * counted
            labels.whole[count], labels.own[count] = labels.weight[count] + paid, labels.own[label] + items.own[k]
            if labels.whole[count] + labels.own[count] + rest > task.limit:
                continue
            both = labels.mark[label] + items.mark[k]
            rival = int(newest[both]) if both in newest else -1
            labels.mark[count], labels.older[count] = both, rival
            if _undercut(labels, rival, count, -1):
                continue
            newest[both] = np.int64(count)
            whose = units + more
            if first[whose] < 0:
                first[whose] = count
            else:
                after[last[whose]] = count
            last[whose] = count
            count += 1
    return labels, kept, count, True
