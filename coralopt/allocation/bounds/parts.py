r"""Coverings that fit, region by region.

Regions share nothing in a covering but the demand. A *part* is what a covering has in one region r: a multiset of instances
on nodes u <= A_r. With W_r(s) the least weight of a part of r that serves s, the lightest covering of phase m that fits is
a minimum over how the demand is split (a min-plus convolution)::

    F_m = min { sum_r W_r(s_r) : sum_r s_r >= T_m }

At prices a part on nodes u weighs::

    w(u) = sum_i v_i + sum_k mu_k f_k(s_k(u))

with v_i what its instances weigh and f_k the rounding of cut k (module ``cuts``). Here a cut counts the nodes of a whole
part. That is at least what its instances count one by one, since f_k is superadditive, and every allocation still satisfies
the cut: the parts of all phases fit together.

The parts of a region are found instance by instance (module ``parts_kernel``). A part matters only up to a limit on the
weight of the whole covering: what it leaves of the demand weighs at least what a covering knapsack says, at prices of
the phase's own (module ``own_prices``), which know what supply there is. The limit rises until a covering is within it, or
reaches what a known covering weighs. Of parts on the same nodes the lighter and faster counts, and none that serves no more
than another one on fewer nodes. Some thousand parts a region say what a search over whole coverings, whose number is the
product, cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit
from coralopt.allocation.bounds.cuts import SupplyCut
from coralopt.allocation.bounds.knapsack import cheapest_share
from coralopt.allocation.bounds.lagrangian import grid_steps
from coralopt.allocation.bounds.own_prices import OwnCover, OwnItems, OwnPrices
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Floats, Ints

#: How far above what is known to be a bound is looked at first, as a share, and by what it grows at most and at least.
FIRST, GROWTH, LEAST = 1e-4, 3.0, 1.3
#: Own prices are raised where a known covering is further above what they say, as a share; and in how many rounds.
NEAR, ROUNDS = 1e-3, 10
#: Coverings that are returned.
WANTED = 12
#: More amounts that some regions serve are rounded up to whole steps.
MANY = 20_000
#: Share of a demand that may be missed: what rounding does.
HAIR = 1e-9


@dataclass(frozen=True, eq=False)
class PartPrices:
    """What parts weigh.

    Attributes:
        weight: float64 (k,), USD/h, of the columns, of cuts what an instance adds by itself.
        cuts: Cuts on the supply, each with its price, USD/h.
        of_cuts: float64 (k,), USD/h, what each column pays for these.
    """

    weight: Floats
    cuts: Sequence[tuple[SupplyCut, float]]
    of_cuts: Floats


@dataclass(frozen=True, eq=False)
class PartRange:
    """How far parts are looked for.

    Attributes:
        least: float64 (G + 1,), USD/h; what serves so many steps of the demand weighs at least, whether it fits or not.
        floor: USD/h; what a covering weighs at least.
        ceiling: USD/h, of a covering that is known to fit; may be infinite.
        grid: Steps of the demand on which amounts are rounded up where there are many.
        most: Parts that are made at most, of a region.
    """

    least: Floats
    floor: float
    ceiling: float
    grid: int
    most: int


@dataclass(frozen=True, eq=False)
class LightestCoverings:
    """The lightest coverings of a phase that fit.

    Attributes:
        weight: USD/h; no covering that fits weighs less. Infinite where nothing fits.
        members: Positions of their columns, the lightest first; none where nothing fits, or parts are too many to tell.
    """

    weight: float
    members: tuple[Ints, ...]


class RegionParts:
    """Searches parts of some columns.

    Args:
        problem: A problem for which :meth:`known` holds.
        columns: Its columns.
        chosen: int64 (k,), those that take part.
        limits: Of nodes that coverings may use; at most one a phase and cell.
    """

    def __init__(
        self, problem: AllocationProblem, columns: Columns, chosen: Ints, limits: Sequence[NodeLimit] = ()
    ) -> None:
        self.problem, self.columns, self.chosen, self.limits = problem, columns, chosen, limits
        self.speed = problem.throughput[columns.template[chosen]].astype(np.float64)
        group = columns.phase[chosen] * len(problem.region_names) + columns.region[chosen]
        order = np.argsort(group, kind="stable")
        order = order[self.speed[order] > 0]
        edges = np.arange(len(problem.demand) * len(problem.region_names) + 1)
        self._own: dict[int, OwnPrices] = {}
        self._regions: dict[tuple[int, int], _RegionInstances] = {}
        self._places = np.split(order, np.searchsorted(group[order], edges)[1:-1])

    def places_in(self, phase: int, region: int) -> Ints:
        """int64 (n,): positions of the columns of a phase in a region, but for such as serve nothing."""
        return self._places[phase * len(self.problem.region_names) + region]

    @staticmethod
    def known(problem: AllocationProblem) -> bool:
        """Whether coverings are parts of regions that share only the demand."""
        whole = problem.routes or problem.unmet_groups() or problem.spared.any() or problem.surviving.any()
        return not (whole or problem.replicas.any())

    def lightest(self, phase: int, prices: PartPrices, within: PartRange) -> LightestCoverings:
        """The lightest coverings of a phase whose nodes are there; side constraints are not looked at.

        Args:
            phase: The model phase.
            prices: What its parts weigh.
            within: How far they are looked for.
        """
        regions = len(self.problem.region_names)
        mine = self._places[phase * regions : (phase + 1) * regions]
        every = np.concatenate(mine)
        weight, grid = prices.weight[every], len(within.least) - 1
        own = self._own_prices(phase, every)
        ceiling = within.ceiling * (1 + HAIR) + HAIR
        cover = own.cover(weight, grid)
        if ceiling - cover.floor > NEAR * (1 + abs(cover.floor)):
            cover = own.raised(weight, grid, ROUNDS)
        known = max(within.floor, cover.floor)
        reach = FIRST * (1 + known)
        while True:
            limit = min(known + reach, ceiling)
            fronts = self._fronts(phase, prices, within, (cover, limit))
            if fronts is None:
                # What is not looked at weighs at least as much as the last limit.
                return LightestCoverings(known, ())
            lightest = _put_together(fronts, within, float(self.problem.demand[phase]), limit)
            if lightest.members or limit == ceiling:
                return lightest
            # Parts grow about with the fourth power of the reach.
            growth = (within.most / max(len(front.parent) for front in fronts)) ** 0.25
            known, reach = limit, reach * min(GROWTH, max(growth, LEAST)) if reach <= limit else np.inf

    def _own_prices(self, phase: int, every: Ints) -> OwnPrices:
        """The prices of a phase of its own, those of the last time if any."""
        if phase not in self._own:
            usage = self.problem.usage[self.columns.template[self.chosen[every]]].astype(np.float64)
            width = max(1, int((usage > 0).sum(axis=1).max(initial=0)))
            kind = np.argsort(usage <= 0, axis=1, kind="stable")[:, :width]
            amount = np.take_along_axis(usage, kind, axis=1)
            cell = self.columns.region[self.chosen[every]][:, None] * usage.shape[1] + kind
            room = self.problem.availability.astype(np.float64).ravel()
            for item in self.limits:
                if item.phase == phase:
                    room[item.cell] = min(room[item.cell], item.most)
            items = OwnItems(self.speed[every], np.where(amount > 0, cell, -1), amount, room)
            self._own[phase] = OwnPrices(items, float(self.problem.demand[phase]))
        return self._own[phase]

    def _fronts(
        self, phase: int, prices: PartPrices, within: PartRange, line: tuple[OwnCover, float]
    ) -> list[_Front] | None:
        """The parts of every region; ``None`` where there are too many."""
        cover, limit = line
        regions = len(self.problem.region_names)
        mine, fronts, place = self._places[phase * regions : (phase + 1) * regions], [], 0
        every = np.concatenate(mine)
        slope = cheapest_share(prices.weight[every] + cover.paid, self.speed[every])
        for r, places in enumerate(mine):
            paid = cover.paid[place : place + len(places)]
            place += len(places)
            front = self._front((phase, r), paid, prices, within, (cover, slope, limit + cover.worth))
            if front is None:
                return None
            fronts.append(front)
        return fronts

    def _front(
        self,
        place: tuple[int, int],
        paid: Floats,
        prices: PartPrices,
        within: PartRange,
        line: tuple[OwnCover, float, float],
    ) -> _Front | None:
        """The parts of a region that none that serves as much undercuts; ``None`` where there are too many parts."""
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.parts_kernel import PartItems, PartTask, parts_within

        (phase, region), (cover, slope, limit) = place, line
        if place not in self._regions:
            self._regions[place] = _RegionInstances.of(self, phase, region)
        mine, demand, least = self._regions[place], float(self.problem.demand[phase]), cover.least
        weight, of_cuts, grid = prices.weight[mine.places], prices.of_cuts[mine.places], len(least) - 1
        # Every instance by itself, as the search does it.
        rest = least[grid - grid_steps(mine.speed, demand, grid)] - least[grid] / grid
        light = np.flatnonzero(weight + paid + rest <= limit)
        order = light[np.argsort((weight + paid - slope * mine.speed)[light], kind="stable")]
        cuts = [item for item in prices.cuts if item[0].regions == (region,) and item[1] > 0]
        parts = PartItems(
            (weight - of_cuts)[order],
            of_cuts[order],
            paid[order],
            mine.speed[order],
            mine.row[order],
            mine.amount[order],
            mine.mark[order],
        )
        task = PartTask(
            demand=demand,
            room=mine.room,
            mark=mine.mark_of_row,
            rest=least,
            slope=slope,
            limit=limit,
            weights=mine.weights_of([cut for cut, _ in cuts]),
            divisor=np.array([cut.divisor for cut, _ in cuts], dtype=np.int64),
            remainder=np.array([cut.remainder for cut, _ in cuts], dtype=np.int64),
            price=np.array([price for _, price in cuts], dtype=np.float64),
            most=within.most,
        )
        labels, is_part, count, all_of_them = parts_within(parts, task)
        if not all_of_them:
            return None
        part = np.flatnonzero(is_part[:count])
        part = part[np.lexsort((labels.whole[part], -labels.speed[part]))]
        part = part[_undominated(labels.whole[part])][::-1]
        return _Front(labels.parent, labels.item, mine.places[order], part, labels.speed[part], labels.whole[part])


@dataclass(frozen=True, eq=False)
class _RegionInstances:
    """What no price changes about the instances of one model phase in one region. Rows are nodes, then running instances.

    Attributes:
        places: int64 (n,), their positions among the columns that take part.
        speed: float64 (n,), tokens/s.
        row: int64 (n, w), rows that an instance uses, then -1.
        amount: int64 (n, w), how much of each.
        mark: int64 (n,), sums of ``mark_of_row``.
        kinds: int64 (k,), configurations of the first rows.
        room: int64 (m,), how much there is of every row.
        mark_of_row: int64 (m,), random numbers.
    """

    places: Ints
    speed: Floats
    row: Ints
    amount: Ints
    mark: Ints
    kinds: Ints
    room: Ints
    mark_of_row: Ints

    @staticmethod
    def of(parts: RegionParts, phase: int, region: int) -> _RegionInstances:
        """Those of the columns that take part."""
        problem, columns = parts.problem, parts.columns
        places = parts.places_in(phase, region)
        some = parts.chosen[places]
        usage = problem.usage[columns.template[some]].astype(np.int64)
        kinds, kept = np.flatnonzero(usage.any(axis=0)), np.flatnonzero(columns.kept[some])
        copies = np.zeros((len(some), len(kept)), dtype=np.int64)
        copies[kept, np.arange(len(kept))] = 1
        whole = np.concatenate([usage[:, kinds], copies], axis=1)
        width = max(1, int((whole > 0).sum(axis=1).max(initial=0)))
        row = np.argsort(whole <= 0, axis=1, kind="stable")[:, :width]
        amount = np.take_along_axis(whole, row, axis=1)
        most = problem.availability[region].astype(np.int64).copy()
        for item in parts.limits:
            r, c = divmod(item.cell, len(most))
            if item.phase == phase and r == region:
                most[c] = min(most[c], item.most)
        room = np.concatenate([most[kinds], columns.upper[some[kept]].astype(np.int64)])
        mark = np.random.default_rng(0).integers(1, 2**40, len(room), dtype=np.int64)
        row = np.where(amount > 0, row, -1)
        return _RegionInstances(places, parts.speed[places], row, amount, whole @ mark, kinds, room, mark)

    def weights_of(self, cuts: Sequence[SupplyCut]) -> Ints:
        """int64 (K, m): what a unit of every row adds to the sum of each cut."""
        weights = np.zeros((len(cuts), len(self.room)), dtype=np.int64)
        for k, cut in enumerate(cuts):
            gpus = dict(zip(cut.configurations or (), cut.gpus, strict=True))
            weights[k, : len(self.kinds)] = [gpus.get(c, 0) for c in self.kinds.tolist()]
        return weights


@dataclass(frozen=True, eq=False)
class _Front:
    """Parts of a region that none that serves as much undercuts, those that serve least first.

    Attributes:
        parent: int64 (n,), what the last instance of each part was added to.
        item: int64 (n,), that instance.
        places: int64 (i,), positions of the instances.
        part: int64 (f,), the parts.
        speed: float64 (f,), tokens/s.
        weight: float64 (f,), USD/h.
    """

    parent: Ints
    item: Ints
    places: Ints
    part: Ints
    speed: Floats
    weight: Floats

    def members(self, k: int) -> list[int]:
        """Positions of the instances of one of them."""
        part, members = int(self.part[k]), list[int]()
        while part > 0:
            members.append(int(self.places[self.item[part]]))
            part = int(self.parent[part])
        return members


def _undominated(weight: Floats) -> Ints:
    """Positions, of what is sorted by what it serves, the most first, of those that weigh less than all before."""
    least = np.minimum.accumulate(weight)
    return np.flatnonzero(np.append(True, least[1:] < least[:-1])) if len(weight) else np.zeros(0, dtype=np.int64)


def _put_together(fronts: Sequence[_Front], within: PartRange, demand: float, limit: float) -> LightestCoverings:
    """The lightest coverings of one part a region; none where all are heavier than the limit."""
    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.allocation.bounds.parts_kernel import with_region

    fronts = sorted(fronts, key=lambda front: len(front.part))
    served: tuple[Floats, Floats] = (np.zeros(1), np.zeros(1))
    taken: list[tuple[Ints, Ints]] = []
    for front in fronts:
        task = demand, within.least, limit
        speed, weight, came, choice = with_region(served, (front.speed, front.weight), task)
        if front is fronts[-1]:
            break
        if len(speed) > MANY:
            # Rounded up, so that many of them are one.
            speed = np.where(speed > 0, grid_steps(speed, demand, within.grid) * (demand / within.grid), 0.0)
        order = np.lexsort((weight, -speed))
        order = order[_undominated(weight[order])]
        served = speed[order], weight[order]
        taken.append((came[order], choice[order]))
    # Many of the last region's parts say as many coverings.
    whole = np.flatnonzero(speed >= demand * (1 - HAIR))
    lightest = whole[np.argsort(weight[whole], kind="stable")[:WANTED]]
    coverings = []
    for k in lightest.tolist():
        members = fronts[-1].members(int(choice[k]))
        k = int(came[k])
        for front, (earlier, part) in zip(reversed(fronts[:-1]), reversed(taken), strict=True):
            members += front.members(int(part[k]))
            k = int(earlier[k])
        coverings.append(np.array(members, dtype=np.int64))
    return LightestCoverings(float(weight[lightest[0]]) if len(lightest) else limit, tuple(coverings))
