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

The parts of a region are found instance by instance (modules ``parts_kernel``
and ``regions_kernel``). A part matters only up to a limit on the
weight of the whole covering: what it leaves of the demand weighs at least what a covering knapsack says, at prices of
the phase's own (module ``own_prices``), which know what supply there is. The limit rises until a covering is within it, or
reaches what a known covering weighs. Of parts on the same nodes the lighter and faster counts, and none that serves no more
than another one on fewer nodes. Some thousand parts a region say what a search over whole coverings, whose number is the
product, cannot.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit
from coralopt.allocation.bounds.cuts import CutRows
from coralopt.allocation.bounds.knapsack import cheapest_share
from coralopt.allocation.bounds.own_prices import OwnItems, OwnPrices
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.bounds.parts_kernel import PartItems
    from coralopt.allocation.bounds.regions_kernel import PhaseRows

#: How far above what is known to be a bound is looked at first, as a share, and by what it grows at most and at least.
FIRST, GROWTH, LEAST = 1e-4, 3.0, 1.3
#: Limits in a row that bring no more parts, after which the next one is the end.
SAME = 6
#: Own prices are raised where a known covering is further above what they say, as a share; and in how many rounds.
NEAR, ROUNDS = 1e-3, 30
#: Share of a demand that may be missed: what rounding does.
HAIR = 1e-9


@dataclass(frozen=True, eq=False)
class PartPrices:
    """What parts weigh.

    Attributes:
        weight: float64 (k,), USD/h, of the columns, of cuts what an instance adds by itself.
        cuts: Cuts on the supply.
        price: float64 (K,), USD/h, of the cuts.
        of_cuts: float64 (k,), USD/h, what each column pays for these.
    """

    weight: Floats
    cuts: CutRows
    price: Floats
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
        until: Time, s as of :func:`time.perf_counter`, from when on they are not looked for further.
    """

    least: Floats
    floor: float
    ceiling: float
    grid: int
    most: int
    until: float = math.inf


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
        good: Phase -> float64 (R * C,), prices of its own that were good before, kept up to date; any are true ones.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        chosen: Ints,
        limits: Sequence[NodeLimit] = (),
        good: dict[int, Floats] | None = None,
    ) -> None:
        self.problem, self.columns, self.chosen, self.limits = problem, columns, chosen, limits
        self.good = {} if good is None else good
        self.speed = problem.throughput[columns.template[chosen]].astype(np.float64)
        group = columns.phase[chosen] * len(problem.region_names) + columns.region[chosen]
        order = np.argsort(group, kind="stable")
        order = order[self.speed[order] > 0]
        edges = np.arange(len(problem.demand) * len(problem.region_names) + 1)
        self._own: dict[int, OwnPrices] = {}
        self._instances: dict[int, _PhaseInstances] = {}
        self._places = np.split(order, np.searchsorted(group[order], edges)[1:-1])

    def places(self, phase: int) -> list[Ints]:
        """int64 (n,) a region: positions of the columns of a phase, but for such as serve nothing."""
        regions = len(self.problem.region_names)
        return self._places[phase * regions : (phase + 1) * regions]

    def room(self, phase: int) -> Ints:
        """int64 (R, C): nodes that coverings of a phase may use."""
        room = self.problem.availability.astype(np.int64).ravel()
        for item in self.limits:
            if item.phase == phase:
                item.narrow(room)
        return room.reshape(self.problem.availability.shape)

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
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.regions_kernel import PhaseTask, fronts_within, put_together

        every = np.concatenate(self.places(phase))
        weight, grid = prices.weight[every], len(within.least) - 1
        own = self._own_prices(phase, every)
        ceiling = within.ceiling * (1 + HAIR) + HAIR
        cover = own.cover(weight, grid)
        if ceiling - cover.floor > NEAR * (1 + abs(cover.floor)):
            cover = own.raised(weight, grid, ROUNDS)
            self.good[phase] = own.best
        if phase not in self._instances:
            self._instances[phase] = _PhaseInstances.of(self, phase)
        items, rows = self._instances[phase].at(weight, prices.of_cuts[every], cover.paid), self._instances[phase].rows
        task = PhaseTask(
            demand=float(self.problem.demand[phase]),
            least=within.least,
            own=cover.least,
            slope=cheapest_share(weight + cover.paid, self.speed[every]),
            price=prices.price,
            grid=within.grid,
            most=within.most,
        )
        known, largest, same = max(within.floor, cover.floor), 0, 0
        reach = FIRST * (1 + known)
        while True:
            if time.perf_counter() >= within.until:
                return LightestCoverings(known, ())
            limit = min(known + reach, ceiling)
            fronts, all_of_them = fronts_within(items, rows, prices.cuts, task, limit + cover.worth)
            if not all_of_them:
                # What is not looked at weighs at least as much as the last limit.
                return LightestCoverings(known, ())
            least, members, starts = put_together(fronts, task, limit)
            if len(starts) > 1 or limit == ceiling:
                some = np.split(every[members], starts[1:-1]) if len(starts) > 1 else []
                return LightestCoverings(least, tuple(some))
            # Parts grow about with the fourth power of the reach.
            growth = (within.most / fronts.largest) ** 0.25
            largest, same = fronts.largest, same + 1 if fronts.largest == largest else 0
            # Where higher limits bring no more parts nothing may fit, whatever the limit.
            known, reach = limit, reach * min(GROWTH, max(growth, LEAST)) if same < SAME else np.inf

    def _own_prices(self, phase: int, every: Ints) -> OwnPrices:
        """The prices of a phase of its own, those of the last time if any."""
        if phase not in self._own:
            usage = self.problem.usage[self.columns.template[self.chosen[every]]].astype(np.float64)
            width = max(1, int((usage > 0).sum(axis=1).max(initial=0)))
            kind = np.argsort(usage <= 0, axis=1, kind="stable")[:, :width]
            amount = np.take_along_axis(usage, kind, axis=1)
            cell = self.columns.region[self.chosen[every]][:, None] * usage.shape[1] + kind
            room = self.room(phase).ravel()
            items = OwnItems(self.speed[every], np.where(amount > 0, cell, -1), amount, room.astype(np.float64))
            self._own[phase] = OwnPrices(items, float(self.problem.demand[phase]), self.good.get(phase))
        return self._own[phase]


@dataclass(frozen=True, eq=False)
class _PhaseInstances:
    """What no price changes about the instances of one model phase.

    Attributes:
        rows: What they use.
        speed: float64 (n,), tokens/s.
        row: int64 (n, w), rows of its region that an instance uses, then -1.
        amount: int64 (n, w), how much of each.
        mark: int64 (n,), sums of the rows' marks.
    """

    rows: PhaseRows
    speed: Floats
    row: Ints
    amount: Ints
    mark: Ints

    def at(self, weight: Floats, of_cuts: Floats, own: Floats) -> PartItems:
        """At prices, as attributes of the result say."""
        from coralopt.allocation.bounds.parts_kernel import PartItems

        return PartItems(weight, of_cuts, own, self.speed, self.row, self.amount, self.mark)

    @staticmethod
    def of(parts: RegionParts, phase: int) -> _PhaseInstances:
        """Those among the columns that take part."""
        from coralopt.allocation.bounds.regions_kernel import PhaseRows

        problem, columns, places = parts.problem, parts.columns, parts.places(phase)
        room, kinds, random = parts.room(phase), problem.price.shape[1], np.random.default_rng(0)
        rows, amounts, marks, rooms, cells, units = [], [], [], [], [], []
        for region, mine in enumerate(places):
            some = parts.chosen[mine]
            usage = problem.usage[columns.template[some]].astype(np.int64)
            used, kept = np.flatnonzero(usage.any(axis=0)), np.flatnonzero(columns.kept[some])
            copies = np.zeros((len(some), len(kept)), dtype=np.int64)
            copies[kept, np.arange(len(kept))] = 1
            whole = np.concatenate([usage[:, used], copies], axis=1)
            mark = random.integers(1, 2**40, whole.shape[1], dtype=np.int64)
            place = np.argsort(whole <= 0, axis=1, kind="stable")
            amount = np.take_along_axis(whole, place, axis=1)
            rows.append(np.where(amount > 0, place, -1))
            amounts.append(amount)
            marks.append(whole @ mark)
            rooms.append(np.concatenate([room[region, used], columns.upper[some[kept]].astype(np.int64)]))
            cells.append(np.concatenate([region * kinds + used, np.full(len(kept), -1)]))
            units.append(mark)
        width = max(1, max(int((amount > 0).sum(axis=1).max(initial=0)) for amount in amounts))

        def padded(arrays: Sequence[Ints], value: int) -> Ints:
            wide = [
                np.pad(a[:, :width], ((0, 0), (0, max(0, width - a.shape[1]))), constant_values=value) for a in arrays
            ]
            return np.concatenate(wide)

        all_rows = PhaseRows(
            start=np.cumsum([0, *map(len, places)]),
            first=np.cumsum([0, *map(len, rooms)]),
            room=np.concatenate(rooms),
            mark=np.concatenate(units),
            cell=np.concatenate(cells),
        )
        speed = parts.speed[np.concatenate(places)]
        return _PhaseInstances(all_rows, speed, padded(rows, -1), padded(amounts, 0), np.concatenate(marks))
