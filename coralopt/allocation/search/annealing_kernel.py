"""The compiled moves of the step ``annealing``; imported only when they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coralopt.compiling import compiled
from coralopt.types import Bools, Floats, Ints

#: Most instances that one move takes away from a model phase, and puts in their place.
MOST_REMOVED, MOST_ADDED = 4, 3
#: Ways that a move tries to fill what it took away.
TRIALS = 6
#: Moves between two changes of what limits cost; by how much that rises where one is passed, and falls elsewhere in the
#: first moves; its least; and the share of the moves after which it only rises.
EVERY, RISE, FALL, LEAST, SETTLED = 100, 1.06, 0.05, 0.3, 0.7
#: Most that the price of a limit is multiplied with.
STRONGEST = 1e4
#: Chance that a move takes an item that would close a phase best for one that it does not see.
OVERLOOKED = 0.04
#: Chance that a move looks at two phases that go unmet together; and, added up, that it serves as much of them as before,
#: all, what the others of them serve by then, or anything up to so much more or less than before.
TOGETHER = 0.7
AS_BEFORE, ALL, AS_LEFT, NEARBY = 0.4, 0.55, 0.75, 0.25


class Items(NamedTuple):
    """What instances may be: columns of several model phases, those of a phase side by side, its cheapest first.

    Attributes:
        first: int64 (P + 1,), where the items of each phase begin.
        served: float64 (n,), tokens/s of one instance, at most the demand.
        cost: float64 (n,), USD/h.
        most: int64 (n,), instances at most.
        row: int64 (n, w), rows that an instance uses, then -1.
        amount: float64 (n, w), how much of each.
        near: int64 (n,), of each phase the items in ascending order of their column bound.
        region: int64 (n,).
    """

    first: Ints
    served: Floats
    cost: Floats
    most: Ints
    row: Ints
    amount: Floats
    near: Ints
    region: Ints


class Needs(NamedTuple):
    """What the instances of a model phase must be together.

    Attributes:
        demand: float64 (P,), tokens/s.
        instances: int64 (P,), at least so many.
        spared: float64 (P,), tokens/s whichever instance is lost.
        surviving: float64 (P, R), tokens/s without each region.
        group: int64 (P,), with which others a phase goes unmet, -1 where it must be served.
        unmet_usd_h: float64 (groups, tiers), USD/h of all of a group's demand at the prices of its tiers.
        unmet_share: float64 (groups, tiers), how much of it may go unmet at these.
    """

    demand: Floats
    instances: Ints
    spared: Floats
    surviving: Floats
    group: Ints
    unmet_usd_h: Floats
    unmet_share: Floats


class Rows(NamedTuple):
    """What instances share: nodes of a kind in a region, those at a lower price, and side constraints.

    Attributes:
        limit: float64 (m,).
        price: float64 (m,), USD/h for a unit above the limit.
        sold: bool (m,), whether units above the limit are to be had at that price.
    """

    limit: Floats
    price: Floats
    sold: Bools


class Cooling(NamedTuple):
    """How a search cools down.

    Attributes:
        moves: How many moves.
        hot: Temperature of the first move, USD/h.
        cold: That of the last.
    """

    moves: int
    hot: float
    cold: float


@compiled()
def _excess(items: Items, rows: Rows, used: Floats, k: int, strength: Floats) -> float:
    """What one more instance of item k is above the limits, USD/h."""
    total = 0.0
    for q in range(items.row.shape[1]):
        row = items.row[k, q]
        if row < 0:
            break
        over = used[row] - rows.limit[row]
        after = over + items.amount[k, q]
        if after > 1e-9 * rows.limit[row]:
            total += rows.price[row] * strength[row] * (after - max(over, 0.0))
    return total


@compiled()
def _paid(rows: Rows, used: Floats) -> float:
    """USD/h for units above limits, infinite where they are not to be had."""
    total = 0.0
    for row in range(len(used)):
        if used[row] > rows.limit[row] * (1 + 1e-9):
            if not rows.sold[row]:
                return np.inf
            total += rows.price[row] * (used[row] - rows.limit[row])
    return total


@compiled()
def _press(rows: Rows, used: Floats, fall: float, strength: Floats) -> None:
    """Make limits that are passed dearer and others cheaper, in place."""
    for row in range(len(used)):
        if not rows.sold[row]:
            if used[row] > rows.limit[row] * (1 + 1e-9):
                strength[row] = min(strength[row] * RISE, STRONGEST)
            else:
                strength[row] = max(strength[row] * (1 - fall), LEAST)


@compiled()
def _use(items: Items, used: Floats, count: Ints, k: int, sign: int) -> None:
    """Put an instance of item k in or take it out."""
    count[k] += sign
    for q in range(items.row.shape[1]):
        row = items.row[k, q]
        if row < 0:
            break
        used[row] += sign * items.amount[k, q]


@compiled()
def _enough(needs: Needs, phase: int, demand: float, given: Floats, largest: float, number: int) -> bool:
    """Whether so many instances that give so much by region are enough for a demand, the largest of this size."""
    total = given.sum()
    if total < demand or number < needs.instances[phase] or total - largest < needs.spared[phase]:
        return False
    lost = 0
    for region in range(len(given)):
        lost += total - given[region] < needs.surviving[phase, region]
    return lost == 0


@compiled()
def _fill(
    items: Items,
    rows: Rows,
    needs: Needs,
    left_over: tuple[int, float, Floats, float, int],
    state: tuple[Floats, Ints, Floats],
    added: Ints,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """The best of some ways to complete what is left over of a phase; USD/h, and how many items stand in ``added``.

    What is left over of it: the phase, tokens/s to serve in all, tokens/s by region, of the largest instance, and how many
    instances.
    """
    phase, demand, given, most, number_left = left_over
    if _enough(needs, phase, demand, given, most, number_left):
        return 0.0, 0
    used, count, strength = state
    low, high = items.first[phase], items.first[phase + 1]
    if low == high:
        return np.inf, 0
    simple = needs.spared[phase] < 0 and needs.surviving[phase].max() < 0 and needs.instances[phase] <= 1
    now = np.empty_like(given)
    tried = np.empty(MOST_ADDED, dtype=np.int64)
    least, number = np.inf, 0
    for trial in range(TRIALS):
        some = 0 if trial == 0 else (1 if trial < (2 * TRIALS) // 3 + 1 else 2)
        value, taken, dead, largest = 0.0, 0, False, most
        now[:] = given
        enough = False
        for _ in range(some):
            if enough:
                break
            # Items of low column bound are tried most.
            k = items.near[low + int((high - low) * rng.random() ** 3)]
            if count[k] >= items.most[k]:
                dead = True
                break
            value += items.cost[k] + _excess(items, rows, used, k, strength)
            _use(items, used, count, k, 1)
            tried[taken] = k
            taken += 1
            now[items.region[k]] += items.served[k]
            largest = max(largest, items.served[k])
            enough = _enough(needs, phase, demand, now, largest, number_left + taken)
            if value >= least:
                dead = True
                break
        random = taken
        if not enough and not dead:
            left = demand - now.sum()
            closing, best = -1, least - value
            # The cheapest come first.
            for k in range(low, high):
                if items.cost[k] >= best:
                    break
                if items.served[k] < left or count[k] >= items.most[k]:
                    continue
                if not simple:
                    now[items.region[k]] += items.served[k]
                    enough = _enough(needs, phase, demand, now, max(largest, items.served[k]), number_left + taken + 1)
                    now[items.region[k]] -= items.served[k]
                    if not enough:
                        continue
                price = items.cost[k] + _excess(items, rows, used, k, strength)
                if price < best and rng.random() > OVERLOOKED:
                    best, closing = price, k
            if closing >= 0:
                tried[taken] = closing
                taken += 1
                value += best
            else:
                dead = True
        for j in range(random):
            _use(items, used, count, tried[j], -1)
        if not dead and value < least:
            least, number = value, taken
            added[:taken] = tried[:taken]
    return least, number


@compiled()
def _unmet_usd_h(needs: Needs, group: int, share: Floats) -> float:
    """What a group costs where each phase is served to these shares."""
    unmet = 0.0
    for p in range(len(share)):
        if needs.group[p] == group:
            # What a rounding leaves is met, as the exact check says.
            unmet = max(unmet, 1.0 - share[p] * (1 + 1e-9))
    total = 0.0
    for tier in range(needs.unmet_share.shape[1]):
        part = min(unmet, needs.unmet_share[group, tier])
        total += part * needs.unmet_usd_h[group, tier]
        unmet -= part
    return total


@compiled()
def _level(needs: Needs, group: int, share: Floats, left: Floats, rng: np.random.Generator) -> float:
    """Which share of a group's demand a move serves: ``share`` of the phases before it, ``left`` once it took some away."""
    before, after = 1.0, 1.0
    for p in range(len(share)):
        if needs.group[p] == group:
            before, after = min(before, share[p]), min(after, left[p])
    draw = rng.random()
    if draw < AS_BEFORE:
        return before
    if draw < ALL:
        return 1.0
    if draw < AS_LEFT:
        return after
    return max(0.0, min(1.0, before + NEARBY * (2.0 * rng.random() - 1.0)))


@compiled(nogil=True)
def anneal(
    items: Items,
    rows: Rows,
    needs: Needs,
    cooling: Cooling,
    chosen: Ints,
    size: Ints,
    rng: np.random.Generator,
) -> tuple[float, Ints]:
    """Ruin and recreate from an allocation: the cheapest one met within all limits.

    Args:
        items: What instances may be.
        rows: What they share.
        needs: What each phase must have.
        cooling: How many moves, how bold.
        chosen: int64 (P, s), the items of each phase to begin with; overwritten.
        size: int64 (P,), how many of them; overwritten.
        rng: Random numbers.

    Returns:
        Its cost, USD/h, infinite if none was met; int64 (n,), instances of every item.
    """
    phases = len(needs.demand)
    used, count = np.zeros(len(rows.limit)), np.zeros(len(items.cost), dtype=np.int64)
    given, cost = np.zeros(needs.surviving.shape), 0.0
    left = np.zeros(needs.surviving.shape[1])
    for p in range(phases):
        for i in range(size[p]):
            k = chosen[p, i]
            _use(items, used, count, k, 1)
            given[p, items.region[k]] += items.served[k]
            cost += items.cost[k]
    served, would = np.ones(phases), np.ones(phases)
    for p in range(phases):
        if needs.group[p] >= 0:
            served[p] = given[p].sum() / needs.demand[p]
    unmet = np.zeros(len(needs.unmet_usd_h))
    for group in range(len(unmet)):
        unmet[group] = _unmet_usd_h(needs, group, served)
        cost += unmet[group]
    least, best = np.inf, count.copy()
    picked = np.zeros(2, dtype=np.int64)
    removed, gone = np.zeros((2, MOST_REMOVED), dtype=np.int64), np.zeros(2, dtype=np.int64)
    added, come = np.zeros((2, MOST_ADDED), dtype=np.int64), np.zeros(2, dtype=np.int64)
    strength, level, paid_for = np.ones(len(rows.limit)), np.ones(2), np.zeros(2)
    for move in range(cooling.moves):
        progress = move / cooling.moves
        temperature = cooling.hot * (cooling.cold / cooling.hot) ** progress
        if move % EVERY == 0:
            _press(rows, used, FALL * max(0.0, 1 - progress / SETTLED) ** 2, strength)
        picked[0], picked[1] = rng.integers(0, phases), rng.integers(0, phases)
        both = 1 if rng.random() < 0.4 or picked[0] == picked[1] else 2
        if needs.group[picked[0]] >= 0 and rng.random() < TOGETHER:
            for _ in range(2 * phases):
                if picked[1] != picked[0] and needs.group[picked[1]] == needs.group[picked[0]]:
                    both = 2
                    break
                picked[1] = (picked[1] + 1) % phases
        before = 0.0
        for a in range(both):
            p = picked[a]
            draw = rng.random()
            many = 1 if draw >= 0.55 else (2 if draw >= 0.2 else (3 if both == 2 or draw >= 0.06 else 4))
            gone[a] = min(many, size[p])
            for j in range(gone[a]):
                place, last = rng.integers(0, size[p] - j), size[p] - 1 - j
                chosen[p, place], chosen[p, last] = chosen[p, last], chosen[p, place]
                k = chosen[p, last]
                removed[a, j] = k
                _use(items, used, count, k, -1)
                # Taken back in reverse order, so that what it is above the limits now is what it added.
                before += items.cost[k] + _excess(items, rows, used, k, strength)
        after, done = 0.0, 0
        if len(unmet):
            would[:] = served
            for a in range(both):
                p = picked[a]
                for j in range(gone[a]):
                    would[p] -= items.served[removed[a, j]] / needs.demand[p]
            for a in range(both):
                group = needs.group[picked[a]]
                level[a] = 1.0
                if a == 1 and group == needs.group[picked[0]]:
                    level[1] = level[0]
                elif group >= 0:
                    level[a] = _level(needs, group, served, would, rng)
        for a in range(both):
            p = picked[a]
            left[:] = given[p]
            for j in range(gone[a]):
                left[items.region[removed[a, j]]] -= items.served[removed[a, j]]
            largest, stay = 0.0, size[p] - gone[a]
            if needs.spared[p] > 0:
                for j in range(stay):
                    largest = max(largest, items.served[chosen[p, j]])
            left_over = (p, needs.demand[p] * level[a], left, largest, stay)
            value, come[a] = _fill(items, rows, needs, left_over, (used, count, strength), added[a], rng)
            if value == np.inf or size[p] - gone[a] + come[a] > chosen.shape[1]:
                after = np.inf
                break
            after += value
            done += 1
            for j in range(come[a]):
                _use(items, used, count, added[a, j], 1)
        if len(unmet) and after < np.inf:
            for a in range(both):
                for j in range(come[a]):
                    would[picked[a]] += items.served[added[a, j]] / needs.demand[picked[a]]
            for a in range(both):
                group = needs.group[picked[a]]
                paid_for[a] = unmet[group] if group >= 0 else 0.0
                if group >= 0 and (a == 0 or group != needs.group[picked[0]]):
                    paid_for[a] = _unmet_usd_h(needs, group, would)
                    after += paid_for[a] - unmet[group]
                elif a == 1:
                    paid_for[1] = paid_for[0]
        if after <= before or rng.random() < np.exp((before - after) / temperature):
            for a in range(both):
                p = picked[a]
                size[p] -= gone[a]
                for j in range(gone[a]):
                    given[p, items.region[removed[a, j]]] -= items.served[removed[a, j]]
                    cost -= items.cost[removed[a, j]]
                for j in range(come[a]):
                    chosen[p, size[p] + j] = added[a, j]
                    given[p, items.region[added[a, j]]] += items.served[added[a, j]]
                    cost += items.cost[added[a, j]]
                size[p] += come[a]
                if needs.group[p] >= 0:
                    served[p] = given[p].sum() / needs.demand[p]
                    cost += paid_for[a] - unmet[needs.group[p]]
                    unmet[needs.group[p]] = paid_for[a]
            if cost < least - 1e-9:
                paid = _paid(rows, used)
                if cost + paid < least - 1e-9:
                    least = cost + paid
                    best[:] = count
        else:
            for a in range(done):
                for j in range(come[a]):
                    _use(items, used, count, added[a, j], -1)
            for a in range(both):
                for j in range(gone[a]):
                    _use(items, used, count, removed[a, j], 1)
    return least, best
