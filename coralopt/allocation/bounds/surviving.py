r"""The least weight of what serves a model phase and survives the loss of any region.

At given weights of instances every region r has a covering table W_r(t): the least weight of instances that give t of G
steps of the phase's demand. Where the rest must give X_l steps once region l is lost, the phase weighs at least::

    D = min  sum_r W_r(t_r)    s.t.    sum_r t_r >= G,    sum_{r != l} t_r >= X_l  for every l

Whole instances are in it, so D is far above what prices of the surviving shares make of it: two or three instances cannot
be spread over the regions in fractions. In three regions, with t_1 and t_2 given, t_3 is as small as the sums allow. So the
edges of two staircases are tried in pairs, in ascending order of weight, and the third table is looked up. A long staircase
is made coarser (:mod:`coralopt.allocation.bounds.routed`): still a bound. In two regions the third table is that of nothing.

In more regions let m be what there is at least, and let region r count for m - X_r only. For every m of at least G::

    sum_r min(t_r, m - X_r) >= m

is enough: what the others count for is at least m - (m - X_l) = X_l without l. And it is needed for one of them: for the
largest of G and all t_r + X_r, where no t_r is above m - X_r, and the sum is at least t_r + X_r whatever r is. So D is the
least over these m, of which there is one an edge, of regions joined one after the other, on a grid of at most ``STEPS``
steps where amounts are rounded up. Ranges of them are halved where D is least: within one, the last m says what a region
counts for, and the first what there must be. If no X_l is above G / 2, it is enough to look at G: where more than one t_r is
above G - X_r, the sum is at least 2 G - X_r - X_s >= G.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coralopt.allocation.bounds.routed import SPAN, Edges
from coralopt.types import Floats, Ints

#: Edges of a staircase.
EDGES = 2_000
#: Regions in which edges are tried in pairs.
PAIRED = 3
#: Steps, and edges of each region, where they are too many for pairs; ranges that are halved at most.
STEPS, STAIRS, HALVED = 4_000, 1_000, 40


@dataclass(frozen=True, eq=False)
class SurvivingCover:
    """What serves a phase and survives, at least weight.

    Attributes:
        least: USD/h; infinite where nothing does.
        amounts: Steps of every region in the best combination.
        limit: USD/h; combinations above this were not looked at.
        others: One pair a region: int64 (n,), amounts of it in the combinations looked at, and float64 (n,), least weight
            of the other regions beside each; worked out when it is first asked for.
        tables: One float64 (G + 1,) a region, its covering table.
    """

    least: float
    amounts: tuple[int, ...]
    limit: float
    others: Callable[[], Sequence[tuple[Ints, Floats]]]
    tables: tuple[Floats, ...]

    @cached_property
    def beside(self) -> Sequence[tuple[Ints, Floats]]:
        """What ``others`` gives."""
        return self.others()

    def with_one(self, region: int, steps: Ints, weight: Floats) -> Floats:
        """float64 (n,): what serves and survives weighs at least with an instance of this region, size and weight."""
        from coralopt.allocation.bounds.kernels import least_beside

        if not np.isfinite(self.least):
            return np.full(len(steps), np.inf)
        sizes, back = np.unique(steps, return_inverse=True)
        beside = least_beside(sizes, *self.beside[region], self.tables[region])
        return np.minimum(weight + beside[back], self.limit)


def surviving_cover(tables: Sequence[Floats], needed: Ints) -> SurvivingCover:
    """The bound of the module docstring.

    Args:
        tables: R float64 (G + 1,), covering tables of the regions.
        needed: int64 (R,), steps that must be left without each region.
    """
    from coralopt.allocation.bounds.kernels import surviving_pairs

    grid, regions = len(tables[0]) - 1, len(tables)
    limit = _usual(tables, needed)
    if not np.isfinite(limit):
        return SurvivingCover(np.inf, (0,) * regions, np.inf, tuple, tuple(tables))
    limit *= 1 + SPAN
    if regions > PAIRED:
        return _of_many(tables, needed, limit)
    first, second = (Edges.of(table, limit, EDGES) for table in tables[:2])
    nothing = np.append(0.0, np.full(grid, np.inf))
    third = tables[2] if regions == 3 else nothing
    steps_needed = np.append(needed, 0)[:3].astype(np.int64)
    best, chosen, beside = surviving_pairs(
        (first.reach, first.weight), (second.reach, second.weight), third, steps_needed, grid, limit
    )
    listed = [(first.after, beside[0]), (second.after, beside[1])]
    if regions == 3:
        # More of the third region that leaves the others no cheaper is never needed.
        floor = np.append(np.inf, np.minimum.accumulate(beside[2])[:-1])
        amounts = np.flatnonzero(beside[2] < floor)
        listed.append((amounts, beside[2][amounts]))
    amounts_of = (int(first.reach[chosen[0]]), int(second.reach[chosen[1]]), int(chosen[2]))
    return SurvivingCover(min(float(best), limit), amounts_of[:regions], limit, lambda: listed, tuple(tables))


@dataclass(frozen=True, eq=False)
class _Regions:
    """Any number of regions, at one m or another; see the module docstring.

    Attributes:
        stairs: Of each region.
        needed: int64 (R,), X_r.
        grid: G.
        sums: int64 (n,), every m that counts, ascending.
    """

    stairs: list[Edges]
    needed: Ints
    grid: int
    sums: Ints

    @staticmethod
    def of(tables: Sequence[Floats], needed: Ints, limit: float) -> _Regions:
        """Of combinations up to a weight."""
        grid = len(tables[0]) - 1
        stairs = [Edges.of(table, limit, STAIRS) for table in tables]
        sums = [np.array([grid])]
        if 2 * int(needed.max()) > grid:
            sums += [edges.reach + x for edges, x in zip(stairs, needed.tolist(), strict=True)]
        every = np.unique(np.concatenate(sums))
        return _Regions(stairs, needed, grid, every[every >= grid])

    @property
    def steps(self) -> int:
        """Of the demand."""
        return min(self.grid, STEPS)

    def level(self, k: int) -> int:
        """Steps that there must be at the m of that place."""
        return int(self.sums[k]) * self.steps // self.grid

    def counted(self, k: int) -> list[tuple[Ints, Floats]]:
        """Of each region int64 (n,), steps that its amounts count for at the m of that place; float64 (n,), their weight."""
        amounts = []
        for edges, x in zip(self.stairs, self.needed.tolist(), strict=True):
            most = int(self.sums[k]) - x
            # More than counts is never needed.
            some = slice(int(np.searchsorted(edges.reach, most)) + 1)
            # Rounded up, as what is not known counts as there.
            steps = -(-np.minimum(edges.reach[some], most) * self.steps // self.grid)
            amounts.append((steps, edges.weight[some]))
        return amounts

    def joined(self, first: int, last: int) -> list[Floats]:
        """Least weights of no region, one, two and so on up to all of them by sum, for any m of a range."""
        from coralopt.allocation.bounds.kernels import join_region

        joined = [np.append(0.0, np.full(self.level(first), np.inf))]
        for region in self.counted(last):
            joined.append(join_region(joined[-1], *region))
        return joined

    def amounts(self, first: int, last: int) -> tuple[int, ...]:
        """Steps of every region in the best combination of a range: at its last m, where all that counts survives."""
        for place in (last, first):
            joined, missing = self.joined(place, last), self.level(place)
            if np.isfinite(joined[-1][-1]):
                break
        amounts = list[int]()
        below = zip(self.stairs[::-1], self.counted(last)[::-1], joined[-2::-1], strict=True)
        for edges, (counts, weight), before in below:
            left = np.maximum(missing - counts, 0)
            k = int(np.argmin(before[left] + weight))
            amounts.append(int(edges.reach[k]))
            missing = int(left[k])
        return tuple(amounts[::-1])

    def beside(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[Ints, Floats]]:
        """``others`` of the cover, over these ranges."""
        steps, grid = self.steps, self.grid
        least = np.full((len(self.stairs), steps + 1), np.inf)
        for first, last in ranges:
            level = self.level(first)
            others = _beside_each(np.append(0.0, np.full(level, np.inf)), self.counted(last))
            for r, x in enumerate(self.needed.tolist()):
                most = -(-(int(self.sums[last]) - x) * steps // grid)
                own = np.minimum(np.arange(steps + 1), most)
                least[r] = np.minimum(least[r], others[r][np.maximum(level - own, 0)])
        # The fewest amounts that count as so many steps.
        amounts, listed = np.append(0, np.arange(steps) * grid // steps + 1), []
        for beside in least:
            lower = np.flatnonzero(beside < np.append(np.inf, np.minimum.accumulate(beside)[:-1]))
            listed.append((amounts[lower], beside[lower]))
        return listed


def _of_many(tables: Sequence[Floats], needed: Ints, limit: float) -> SurvivingCover:
    """The same in any number of regions, of combinations up to a weight."""
    regions = _Regions.of(tables, needed, limit)

    def weighed(first: int, last: int) -> tuple[float, int, int]:
        return float(regions.joined(first, last)[-1][-1]), first, last

    ranges = [weighed(0, len(regions.sums) - 1)]
    for _ in range(HALVED):
        least, first, last = ranges[0]
        if first == last:
            break
        middle = (first + last) // 2
        heapq.heapreplace(ranges, weighed(first, middle))
        heapq.heappush(ranges, weighed(middle + 1, last))
    least, first, last = ranges[0]
    amounts = regions.amounts(first, last)
    within = [(first, last) for weight, first, last in ranges if weight <= limit]
    return SurvivingCover(least, amounts, limit, lambda: regions.beside(within), tuple(tables))


def _beside_each(table: Floats, regions: list[tuple[Ints, Floats]]) -> list[Floats]:
    """One float64 (N + 1,) a region: least weight of ``table`` and all other regions for each sum of counted amounts."""
    from coralopt.allocation.bounds.kernels import join_region

    if len(regions) == 1:
        return [table]
    half, with_first, with_second = len(regions) // 2, table, table
    for region in regions[:half]:
        with_first = join_region(with_first, *region)
    for region in regions[half:]:
        with_second = join_region(with_second, *region)
    return _beside_each(with_second, regions[:half]) + _beside_each(with_first, regions[half:])


def _usual(tables: Sequence[Floats], needed: Ints) -> float:
    """USD/h; weight of equal amounts of all regions, or of two of them, or of all that there is: more than the least.

    Infinite where nothing serves and survives: if all that there is does not, nothing does.
    """
    grid, regions = len(tables[0]) - 1, len(tables)
    sets = [tuple(range(regions)), *((r, s) for r in range(regions) for s in range(r))]
    totals = [float(tables[r][grid]) for r in range(regions) if needed[r] == 0]
    for some in sets:
        share = max(-(-grid // len(some)), -(-int(needed.max()) // (len(some) - 1)))
        if share <= grid:
            totals.append(sum(float(tables[r][share]) for r in some))
    if not np.isfinite(min(totals, default=np.inf)):
        # Of instances that run already there are so many.
        most = np.array([int(np.searchsorted(table, np.inf)) - 1 for table in tables])
        if most.sum() >= grid and (most.sum() - most >= needed).all():
            totals.append(sum(float(table[amount]) for table, amount in zip(tables, most.tolist(), strict=True)))
    return min(totals, default=np.inf)
