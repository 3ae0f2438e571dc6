"""The compiled search for the lightest covering of a model phase that fits the supply; imported only when it runs."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from coralopt.allocation.bounds.knapsack_kernel import Completions, completed_for, missing_steps
from coralopt.types import Bools, Floats, Ints

#: Share of a sum by which a row may be exceeded, and a demand be missed: what rounding does.
HAIR = 1e-9


class FittingItems(NamedTuple):
    """The instances that coverings of one model phase are made of.

    Attributes:
        weight: float64 (n,), USD/h.
        speed: float64 (n,), tokens/s.
        row: int64 (n, w), rows that an instance uses, then -1.
        amount: float64 (n, w), how much of each, above 0.
        mark: int64 (n,), sums of which are equal where equally many nodes and copies are used, and almost nowhere else.
        node: int64 (R * C,), the mark of one node of each cell, the first rows.
        spare: bool (m,), whether less of each row is always as good.
    """

    weight: Floats
    speed: Floats
    row: Ints
    amount: Floats
    mark: Ints
    node: Ints
    spare: Bools


class FittingTask(NamedTuple):
    """What is asked for.

    Attributes:
        demand: tokens/s.
        spared: tokens/s that must be left whichever instance is lost; 0 for none.
        by_weight: Whether equal use of every row may cost differently.
        room: float64 (m,), how much there is of every row.
        least: float64 (K + 1, G + 1), what covers so many of G steps of the demand by at least k instances weighs at least,
            whether it fits or not; K instances are asked for.
        completions: What completes those from which an instance may be lost.
        floor: USD/h; what every covering weighs at least.
        limit: USD/h; heavier coverings are not looked for.
        most: Partial coverings that are made at most.
    """

    demand: float
    spared: float
    by_weight: bool
    room: Floats
    least: Floats
    completions: Completions
    floor: float
    limit: float
    most: int


class Labels(NamedTuple):
    """Partial coverings, the empty one first.

    Attributes:
        parent: int64 (n,), what an instance was added to.
        item: int64 (n,), that instance.
        depth: int64 (n,), how many instances.
        weight: float64 (n,), USD/h.
        speed: float64 (n,), tokens/s.
        largest: float64 (n,), tokens/s of the largest instance.
        mark: int64 (n,), sum of the marks.
        older: int64 (n,), an older one with the same mark, or -1.
    """

    parent: Ints
    item: Ints
    depth: Ints
    weight: Floats
    speed: Floats
    largest: Floats
    mark: Ints
    older: Ints


@njit(cache=True, nogil=True)
def _use(items: FittingItems, labels: Labels, label: int, used: Floats) -> None:
    """How much a partial covering uses of every row."""
    used[:] = 0.0
    while label > 0:
        k = labels.item[label]
        for q in range(items.row.shape[1]):
            if items.row[k, q] < 0:
                break
            used[items.row[k, q]] += items.amount[k, q]
        label = labels.parent[label]


@njit(cache=True, nogil=True)
def _fits(items: FittingItems, room: Floats, used: Floats, k: int) -> bool:
    """Whether one more instance of item k is within every row."""
    for q in range(items.row.shape[1]):
        row = items.row[k, q]
        if row < 0:
            break
        if used[row] + items.amount[k, q] > room[row] * (1 + HAIR) + HAIR:
            return False
    return True


@njit(cache=True, nogil=True)
def _serves(task: FittingTask, labels: Labels, rival: int, label: int) -> bool:
    """Whether a partial covering gives as much as another one, with and without its largest instance if one may be lost."""
    if labels.speed[rival] < labels.speed[label]:
        return False
    left = labels.speed[label] - labels.largest[label]
    return task.spared <= 0 or labels.speed[rival] - labels.largest[rival] >= left


@njit(cache=True, nogil=True)
def _replaced(
    items: FittingItems, task: FittingTask, labels: Labels, newest: dict[np.int64, np.int64], label: int, used: Floats
) -> bool:
    """Whether a partial covering on one node fewer, and no more of anything else, is as fast."""
    other = np.zeros(len(used))
    instances = min(labels.depth[label], len(task.least) - 1)
    for cell in range(len(items.node)):
        wanted = labels.mark[label] - items.node[cell]
        rival = int(newest[wanted]) if items.spare[cell] and used[cell] > 0 and wanted in newest else -1
        while rival >= 0:
            if _serves(task, labels, rival, label) and labels.depth[rival] >= instances:
                _use(items, labels, rival, other)
                other[cell] += 1
                same = True
                for row in range(len(used)):
                    equal = row < len(items.node) or not items.spare[row]
                    if other[row] > used[row] + HAIR or (equal and other[row] < used[row] - HAIR):
                        same = False
                        break
                if same:
                    return True
            rival = labels.older[rival]
    return False


@njit(cache=True, nogil=True)
def _known(items: FittingItems, task: FittingTask, labels: Labels, fresh: int, rival: int, used: Floats) -> bool:
    """Whether a partial covering of a chain, up to itself, that uses the same of every row is as fast as a new one.

    ``used`` is without its last instance.
    """
    other = np.zeros(len(used))
    instances = min(labels.depth[fresh], len(task.least) - 1)
    while rival >= 0 and rival != fresh:
        if (
            _serves(task, labels, rival, fresh)
            and labels.depth[rival] >= instances
            and (not task.by_weight or labels.weight[rival] <= labels.weight[fresh])
        ):
            _use(items, labels, rival, other)
            k = labels.item[fresh]
            for q in range(items.row.shape[1]):
                if items.row[k, q] < 0:
                    break
                other[items.row[k, q]] -= items.amount[k, q]
            same = True
            for row in range(len(used)):
                if abs(used[row] - other[row]) > HAIR:
                    same = False
                    break
            if same:
                return True
        rival = labels.older[rival]
    return False


@njit(cache=True, nogil=True)
def lightest_fitting(items: FittingItems, task: FittingTask, members: Ints) -> tuple[float, int]:
    """The lightest coverings that fit, by best-first search (A*) over partial ones.

    What is missing of a partial covering weighs at least what ``least`` says. A partial covering is dropped where another
    one uses the same of every row, or one node fewer, is no slower and has no fewer of the instances that are asked for: in
    any allocation that one may stand in its place.

    Args:
        items: Instances, each in any number.
        task: What is asked for.
        members: int64 (wanted, d), filled with the items of the coverings found, the lightest first, then -1.

    Returns:
        USD/h that every covering which fits weighs at least, but for those that another one replaces; and how many
        coverings were found.
    """
    most, replicas, grid = task.most, task.least.shape[0] - 1, task.least.shape[1] - 1
    labels = Labels(
        np.full(most, -1, dtype=np.int64),
        np.full(most, -1, dtype=np.int64),
        np.zeros(most, dtype=np.int64),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most, dtype=np.int64),
        np.full(most, -1, dtype=np.int64),
    )
    # The table has shares of what a whole costs in fractions, too: a part of a step costs less than a step.
    step = task.least[0, grid] / grid
    newest = {np.int64(0): np.int64(0)}
    used = np.zeros(len(task.room))
    queue = [(task.floor, 0.0, 0)]
    count, complete, bound = 1, 0, np.inf
    while len(queue) > 0:
        value, _, label = heapq.heappop(queue)
        rival = int(newest[labels.mark[label]])
        if rival != label:
            # Faster ones may have come since.
            _use(items, labels, labels.parent[label], used)
            if _known(items, task, labels, label, rival, used):
                continue
        _use(items, labels, label, used)
        if _replaced(items, task, labels, newest, label, used):
            continue
        speed, largest = labels.speed[label], labels.largest[label]
        if (
            labels.depth[label] >= replicas
            and speed >= task.demand * (1 - HAIR)
            and (task.spared <= 0 or speed - largest >= task.spared - task.demand * HAIR)
        ):
            bound = min(bound, value)
            k = label
            for i in range(labels.depth[label]):
                members[complete, i] = labels.item[k]
                k = labels.parent[k]
            complete += 1
            if complete == len(members):
                break
            continue
        if labels.depth[label] == members.shape[1] or count + len(items.weight) > most:
            # What is not looked at weighs at least as much as this.
            bound = min(bound, value)
            break
        for k in range(len(items.weight)):
            heavier = labels.weight[label] + items.weight[k]
            if heavier > task.limit:
                continue
            faster, large = speed + items.speed[k], max(largest, items.speed[k])
            missing = task.demand - faster
            if task.spared > 0:
                missing = max(missing, task.spared + large - faster)
            total = max(value, heavier)
            others = max(0, replicas - labels.depth[label] - 1)
            if missing > 0 or others > 0:
                total = max(value, heavier + task.least[others, missing_steps(missing / task.demand, grid)] - step)
                if task.spared > 0:
                    short = (task.demand - faster) / task.demand
                    rest = completed_for(task.completions, short, missing / task.demand, large / task.demand)
                    total = max(total, heavier + rest)
            if total > task.limit or not _fits(items, task.room, used, k):
                continue
            both = labels.mark[label] + items.mark[k]
            rival = int(newest[both]) if both in newest else -1
            labels.parent[count], labels.item[count], labels.depth[count] = label, k, labels.depth[label] + 1
            labels.weight[count], labels.speed[count], labels.largest[count] = heavier, faster, large
            labels.mark[count], labels.older[count] = both, rival
            if rival >= 0 and _known(items, task, labels, count, rival, used):
                continue
            newest[both] = np.int64(count)
            heapq.heappush(queue, (total, -faster, count))
            count += 1
    # Whatever was not found is above the limit.
    return min(bound, task.limit), complete
