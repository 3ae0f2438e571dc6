r"""The least weight of what serves a model phase and survives the loss of any region.

At given weights of instances every region r has a covering table W_r(t): the least weight of instances that give t of G
steps of the phase's demand. Where the rest must give X_l steps once region l is lost, the phase weighs at least::

    D = min  sum_r W_r(t_r)    s.t.    sum_r t_r >= G,    sum_{r != l} t_r >= X_l  for every l

Whole instances are in it, so D is far above what prices of the surviving shares make of it: two or three instances cannot
be spread over the regions in fractions. In three regions, with t_1 and t_2 given, t_3 is as small as the sums allow. So the
edges of two staircases are tried in pairs, in ascending order of weight, and the third table is looked up. A long staircase
is made coarser (:mod:`coralopt.allocation.bounds.routed`): still a bound. In two regions the third table is that of nothing.

In more regions D is known where no X_l is above G / 2. Then amounts serve and survive exactly if what every region gives
counts up to c_r = G - X_r only::

    sum_r min(t_r, c_r) >= G

If so, without l there are at least G - c_l = X_l. The other way round: if no t_r is above its c_r, the sum is that of all
amounts; if one is, it is c_r and at least X_r of the others; if two are, it is at least 2 G - X_r - X_s >= G. So regions
are joined one after the other, on a grid of at most ``STEPS`` steps, where amounts are rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.allocation.bounds.routed import SPAN, Edges
from coralopt.allocation.problem import ANY_SHARE
from coralopt.types import Floats, Ints

#: Edges of a staircase.
EDGES = 2_000
#: Steps, and edges of each region, where they are too many for pairs.
STEPS, STAIRS = 4_000, 1_000


@dataclass(frozen=True, eq=False)
class SurvivingCover:
    """What serves a phase and survives, at least weight.

    Attributes:
        least: USD/h; infinite where nothing does.
        amounts: Steps of every region in the best combination.
        limit: USD/h; combinations above this were not looked at.
        after: One int64 (n,) a region: amounts of it in the combinations looked at.
        rests: One float64 (n,) a region: least weight of the other regions beside each.
        tables: One float64 (G + 1,) a region, its covering table.
    """

    least: float
    amounts: tuple[int, ...]
    limit: float
    after: tuple[Ints, ...]
    rests: tuple[Floats, ...]
    tables: tuple[Floats, ...]

    def with_one(self, region: int, steps: Ints, weight: Floats) -> Floats:
        """float64 (n,): what serves and survives weighs at least with an instance of this region, size and weight."""
        from coralopt.allocation.bounds.kernels import least_beside

        if not np.isfinite(self.least):
            return np.full(len(steps), np.inf)
        sizes, back = np.unique(steps, return_inverse=True)
        beside = least_beside(sizes, self.after[region], self.rests[region], self.tables[region])
        return np.minimum(weight + beside[back], self.limit)


def surviving_cover(tables: Sequence[Floats], needed: Ints) -> SurvivingCover:
    """The bound of the module docstring.

    Args:
        tables: R float64 (G + 1,), covering tables of the regions.
        needed: int64 (R,), steps that must be left without each region; at most G / 2 where there are four regions or more.
    """
    from coralopt.allocation.bounds.kernels import surviving_pairs

    grid, regions = len(tables[0]) - 1, len(tables)
    limit = _usual(tables, needed)
    nowhere = (np.zeros(0, dtype=np.int64),) * regions
    if not np.isfinite(limit):
        return SurvivingCover(np.inf, (0,) * regions, np.inf, nowhere, (np.zeros(0),) * regions, tuple(tables))
    limit *= 1 + SPAN
    if regions > ANY_SHARE:
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
    return SurvivingCover(
        min(float(best), limit),
        amounts_of[:regions],
        limit,
        tuple(after for after, _ in listed),
        tuple(rest for _, rest in listed),
        tuple(tables),
    )


def _of_many(tables: Sequence[Floats], needed: Ints, limit: float) -> SurvivingCover:
    """The same in any number of regions, of combinations up to a weight."""
    grid = len(tables[0]) - 1
    steps = min(grid, STEPS)
    stairs = [Edges.of(table, limit, STAIRS) for table in tables]
    # Rounded up, as what is not known counts as there.
    counted = [-(-np.minimum(edges.reach, grid - x) * steps // grid) for edges, x in zip(stairs, needed, strict=True)]
    nothing = np.append(0.0, np.full(steps, np.inf))
    others = _beside_each(nothing, list(zip(counted, (edges.weight for edges in stairs), strict=True)))
    # The fewest amounts that count as so many steps.
    amounts = np.append(0, np.arange(steps) * grid // steps + 1)
    after, rests = [], []
    for r, x in enumerate(needed.tolist()):
        most = -(-(grid - x) * steps // grid)
        beside = others[r][::-1][: most + 1]
        lower = np.flatnonzero(beside < np.append(np.inf, np.minimum.accumulate(beside)[:-1]))
        after.append(amounts[lower])
        rests.append(beside[lower])
    totals = others[0][np.maximum(steps - counted[0], 0)] + stairs[0].weight
    best, amounts_of = min(float(totals.min()), limit), _amounts(stairs, counted, steps)
    return SurvivingCover(best, amounts_of, limit, tuple(after), tuple(rests), tuple(tables))


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


def _amounts(stairs: Sequence[Edges], counted: Sequence[Ints], steps: int) -> tuple[int, ...]:
    """Steps of every region in the best combination."""
    from coralopt.allocation.bounds.kernels import join_region

    joined = [np.append(0.0, np.full(steps, np.inf))]
    for edges, counts in zip(stairs, counted, strict=True):
        joined.append(join_region(joined[-1], counts, edges.weight))
    missing, amounts = steps, list[int]()
    for edges, counts, before in zip(stairs[::-1], counted[::-1], joined[-2::-1], strict=True):
        left = np.maximum(missing - counts, 0)
        k = int(np.argmin(before[left] + edges.weight))
        amounts.append(int(edges.reach[k]))
        missing = int(left[k])
    return tuple(amounts[::-1])


def _usual(tables: Sequence[Floats], needed: Ints) -> float:
    """USD/h; weight of equal amounts of all regions, or of two of them: more than the least."""
    grid, regions = len(tables[0]) - 1, len(tables)
    sets = [tuple(range(regions)), *((r, s) for r in range(regions) for s in range(r))]
    totals = [float(tables[r][grid]) for r in range(regions) if needed[r] == 0]
    for some in sets:
        share = max(-(-grid // len(some)), -(-int(needed.max()) // (len(some) - 1)))
        if share <= grid:
            totals.append(sum(float(tables[r][share]) for r in some))
    return min(totals, default=np.inf)
