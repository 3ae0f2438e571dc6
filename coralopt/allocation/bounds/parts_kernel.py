"""The parts of coverings in one region (module ``parts``), compiled; imported only when they run."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from coralopt.allocation.bounds.knapsack_kernel import missing_steps
from coralopt.compiling import compiled
from coralopt.types import Bools, Floats, Ints

_A = TypeVar("_A", Floats, Ints, Bools)

#: Share of a sum by which a demand may be missed: what rounding does.
HAIR = 1e-9


class PartItems(NamedTuple):
    """The instances that parts of one model phase are made of, of all regions.

    Attributes:
        weight: float64 (n,), USD/h, of cuts what an instance adds by itself.
        of_cuts: float64 (n,), USD/h, what it pays for these.
        own: float64 (n,), USD/h, what it pays at the phase's own prices; these say which parts matter, not what they weigh.
        speed: float64 (n,), tokens/s.
        row: int64 (n, w), rows of its region that an instance uses, then -1.
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
    """What limits the parts of a region.

    Attributes:
        order: int64 (n,), its instances, the cheapest for what they serve first.
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

    order: Ints
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


@compiled(nogil=True)
def longer(values: _A, fill: float) -> _A:
    """The same values and as many more; slices would take seconds to compile."""
    count = len(values)
    longer = np.empty(2 * count, dtype=values.dtype)
    for k in range(count):
        longer[k], longer[count + k] = values[k], fill
    return longer


@njit(cache=True, nogil=True)
def _room_for_more(labels: PartLabels) -> PartLabels:
    """The same labels with room for as many more."""
    count, rows = labels.use.shape
    use = np.zeros((2 * count, rows), dtype=np.int32)
    for k in range(count):
        for row in range(rows):
            use[k, row] = labels.use[k, row]
    return PartLabels(
        longer(labels.parent, -1),
        longer(labels.item, -1),
        longer(labels.older, -1),
        longer(labels.mark, -1),
        longer(labels.weight, 0.0),
        longer(labels.whole, 0.0),
        longer(labels.own, 0.0),
        longer(labels.speed, 0.0),
        use,
    )


@njit(cache=True, nogil=True)
def _slot_of(slots: Ints, marks: Ints, mark: int) -> int:
    """Where the newest label with a mark is, or would be: a hash table with linear probing, at most half full."""
    place = mark & (len(slots) - 1)
    while slots[place] >= 0 and marks[slots[place]] != mark:
        place = (place + 1) & (len(slots) - 1)
    return place


@njit(cache=True, nogil=True)
def _more_slots(slots: Ints, marks: Ints) -> Ints:
    """The same table with twice the slots."""
    more = np.full(2 * len(slots), -1, dtype=np.int64)
    for label in slots:
        if label >= 0:
            more[_slot_of(more, marks, marks[label])] = label
    return more


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
    slots = np.full(256, -1, dtype=np.int64)
    slots[0] = 0
    step = task.rest[grid] / grid
    # A queue for every number of units: its first label, its last one, and what comes after each label.
    first, last = np.full(64, -1, dtype=np.int64), np.full(64, -1, dtype=np.int64)
    after = np.full(64, -1, dtype=np.int64)
    first[0] = last[0] = 0
    units, count = 0, 1
    while units < len(first):
        label = first[units]
        if label < 0:
            units += 1
            continue
        first[units] = after[label]
        if _undercut(labels, slots[_slot_of(slots, labels.mark, labels.mark[label])], label, -1):
            continue
        needed = True
        for row in range(rows):
            if labels.use[label, row] == 0:
                continue
            rival = slots[_slot_of(slots, labels.mark, labels.mark[label] - task.mark[row])]
            if _undercut(labels, rival, label, row):
                needed = False
                break
        if not needed:
            continue
        kept[label] = True
        speed, whole = labels.speed[label], labels.whole[label] + labels.own[label]
        if speed >= task.demand * (1 - HAIR):
            continue
        for k in task.order:
            heavier = whole + (items.weight[k] - items.of_cuts[k]) + items.of_cuts[k] + items.own[k]
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
                labels, after, slots = _room_for_more(labels), longer(after, -1), _more_slots(slots, labels.mark)
                kept = longer(kept, False)
            for row in range(rows):
                labels.use[count, row] = labels.use[label, row]
            for q in range(items.row.shape[1]):
                if items.row[k, q] < 0:
                    break
                labels.use[count, items.row[k, q]] += items.amount[k, q]
            labels.parent[count], labels.item[count] = label, k
            labels.weight[count], labels.speed[count] = (
                labels.weight[label] + (items.weight[k] - items.of_cuts[k]),
                faster,
            )
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
            slot = _slot_of(slots, labels.mark, both)
            labels.mark[count], labels.older[count] = both, slots[slot]
            if _undercut(labels, labels.older[count], count, -1):
                continue
            slots[slot], kept[count], after[count] = count, False, -1
            whose = units + more
            while whose >= len(first):
                first, last = longer(first, -1), longer(last, -1)
            if first[whose] < 0:
                first[whose] = count
            else:
                after[last[whose]] = count
            last[whose] = count
            count += 1
    return labels, kept, count, True
