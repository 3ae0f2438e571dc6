r"""What a covering weighs at least that fits the supply by itself.

A covering knapsack knows prices of nodes, but not how many there are. Where a model phase needs most of what there is, the
covering of least weight may use more nodes of a kind than the pool has; in the master programme of the decomposition such
coverings fit together, in fractions. With Q the coverings of phase m that use at most what there is of every row by
themselves, every allocation still consists of one of each::

    L(lambda) = - sum_i lambda_i A_i + sum_m F_m,    F_m = min { w(q) : q in Q_m }  >=  D_m

Prices may then rise where they only keep one phase within the pool. F_m is found by best-first search from the covering
knapsack's table (module ``fitting_kernel``): what is missing of a partial covering weighs at least what the table says, and
what would pass a row is never made. A search that ends early leaves the weight up to which it looked: still a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit, WeightedColumns, available, listable, side_adds
from coralopt.allocation.bounds.cuts import CutRows, SupplyCut
from coralopt.allocation.bounds.decomposition import MasterState
from coralopt.allocation.bounds.lagrangian import LagrangianBound, grid_steps
from coralopt.allocation.bounds.parts import PartPrices, RegionParts, node_adds
from coralopt.allocation.bounds.pricing import GRID, Covering, Multipliers, PricedCoverings, PricingProblem
from coralopt.allocation.bounds.spared import completions_of
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Floats, Ints

#: First distance from the covering knapsack's weight that is looked at, as a share of the bound, its growth, and its end.
FIRST, GROWTH, LAST = 1e-4, 3.0, 0.03
#: Partial coverings that a search makes at most: for the bound itself, and at the prices that are tried.
MOST, MOST_PRICED = 1_000_000, 100_000
#: Coverings that a search returns, and instances of one.
WANTED, DEEPEST = 24, 60
#: Steps of the grid on which parts of regions are put together for the bound itself.
PARTS_GRID = 100_000
#: Share of a sum by which a row may be exceeded: what rounding does.
HAIR = 1e-8


@dataclass(frozen=True)
class Fitting:
    """What was found for one model phase.

    Attributes:
        least: USD/h that a covering which fits weighs at least.
        coverings: The lightest ones, as far as found: positions of columns.
    """

    least: float
    coverings: tuple[Ints, ...]


def knows_fitting(problem: AllocationProblem) -> bool:
    """Whether coverings of single phases that fit are all there is to search for."""
    return listable(problem) and not (problem.surviving.any() or problem.unmet_groups())


class FittingSearch:
    """Searches for coverings that fit, over some columns.

    Args:
        problem: A problem whose coverings can be listed.
        columns: Its columns.
        chosen: int64 (k,), those that take part.
        limits: Of nodes that coverings may use; at most one a phase and cell.
        most: Partial coverings that a search makes at most.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        chosen: Ints,
        limits: Sequence[NodeLimit] = (),
        most: int = MOST,
    ) -> None:
        self.problem, self.limits, self.most = problem, limits, most
        self.phase, region = columns.phase[chosen], columns.region[chosen]
        template, kept = columns.template[chosen], np.flatnonzero(columns.kept[chosen])
        self.speed = problem.throughput[template].astype(np.float64)
        kinds, cells = problem.price.shape[1], problem.price.size
        adds = side_adds(problem, columns, chosen)
        # Whatever fits the pool satisfies cuts, and instances on the same nodes may add different sums to them.
        adds[:, [isinstance(item, SupplyCut) for item in open_constraints(problem)]] = 0.0
        copies = np.zeros((len(chosen), len(kept)))
        copies[kept, np.arange(len(kept))] = 1.0
        self.room = np.concatenate([available(problem), columns.upper[chosen[kept]]])
        whole = np.concatenate([problem.usage[template], adds, copies], axis=1)
        width = max(1, int((whole > 0).sum(axis=1).max(initial=0)))
        place = np.argsort(whole <= 0, axis=1, kind="stable")[:, :width]
        self.amount = np.take_along_axis(whole, place, axis=1)
        row = np.where(place < kinds, region[:, None] * kinds + place, cells - kinds + place)
        self.row = np.where(self.amount > 0, row, -1)
        random = np.random.default_rng(0).integers(1, 2**40, len(self.room), dtype=np.int64)
        # Of nodes and copies alone, which are whole numbers.
        random[cells : cells + adds.shape[1]] = 0
        self.node, self.first_kept = random[:cells], cells + adds.shape[1]
        self.mark = (np.where(self.row < 0, 0, random[self.row]) * self.amount.astype(np.int64)).sum(axis=1)

    def lightest(self, phase: int, near: WeightedColumns, over: Floats, reach: float = 0.0) -> Fitting:
        """The lightest coverings of a phase that fit.

        Looks further and further above the covering knapsack's weight, until one is found or the end is reached.

        Args:
            phase: The model phase.
            near: The columns that take part and their weights, tables and least weights of all phases.
            over: float64 (k,), USD/h; how far above the bound every column lifts it.
            reach: USD/h; how far above is looked at first.
        """
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.fitting_kernel import FittingItems, FittingTask, lightest_fitting

        demand, members = float(self.problem.demand[phase]), np.full((WANTED, DEEPEST), -1, dtype=np.int64)
        spared, floor = float(self.problem.spared[phase]) * demand, float(near.whole[phase])
        by_weight, room = self.problem.start_penalty is not None, self.room.copy()
        # Rows of which less is always as good; what runs already is cheaper than what does not.
        spare = np.full(len(room), not by_weight)
        spare[self.first_kept :] = False
        for item in self.limits:
            if item.phase == phase:
                room[item.cell] = min(room[item.cell], item.most)
                spare[item.cell] &= item.least == 0
        end = LAST * float(near.whole.sum())
        reach = max(1.2 * reach, FIRST / LAST * end)
        while True:
            reach = min(reach, end)
            limit = floor + reach
            mine = np.flatnonzero((self.phase == phase) & (self.speed > 0) & (over <= reach * (1 + HAIR)))
            of_mine = near.weight[mine], self.speed[mine], self.row[mine], self.amount[mine], self.mark[mine]
            items = FittingItems(*of_mine, self.node, spare)
            steps = grid_steps(self.speed[mine], demand, GRID)
            completions = completions_of(steps, near.weight[mine], GRID, float(self.problem.spared[phase]))
            task = FittingTask(demand, spared, by_weight, room, near.least[phase], completions, floor, limit, self.most)
            least, number = lightest_fitting(items, task, members)
            if number or least < limit or reach >= end:
                return Fitting(max(floor, least), tuple(mine[some[some >= 0]] for some in members[:number]))
            reach *= GROWTH

    def fits(self, use: Floats) -> bool:
        """Whether that much of nodes and side constraints is there, float64 (R * C + S,)."""
        return bool((use <= self.room[: len(use)] * (1 + HAIR) + HAIR).all())


class FittingPricing(PricingProblem):
    """The covering of least weight of every model phase that fits by itself, at given prices.

    Args:
        problem: A problem of which :func:`knows_fitting` is true.
        columns: Its columns.
        chosen: int64 (k,), those that take part.
        limits: Of nodes that coverings may use; at most one a phase and cell.
        parts: Parts by region, where these are known; coverings then count as a whole in cuts.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        chosen: Ints,
        limits: Sequence[NodeLimit] = (),
        parts: RegionParts | None = None,
    ) -> None:
        super().__init__(problem, columns, chosen, limits)
        self.search = FittingSearch(problem, columns, chosen, limits, MOST_PRICED)
        self.by_region = None if parts is None else _ByRegion(problem, columns, parts, limits)
        #: Phase -> how far above the covering knapsack's weight the last search had to look, USD/h.
        self.reach: dict[int, float] = {}
        #: Phases whose coverings that fit are too many to tell the lightest one.
        self.hard: set[int] = set()

    def started(self, state: MasterState) -> MasterState:
        """What a decomposition begins with: the hard phases are known, of the others only coverings that fit stay."""
        self.hard = set()
        answer = self.coverings(Multipliers(state.row_prices(), state.prices_of(self.limits)))
        if self.by_region is not None:
            fitting = (item for item in state.coverings if self.search.fits(item.use))
            return replace(state, coverings=tuple(self.by_region.as_whole(item) for item in fitting))
        if answer is not None:
            of_phase = np.bincount([covering.phase for covering in answer.coverings], minlength=len(answer.whole))
            for covering in answer.coverings:
                if of_phase[covering.phase] == 1 and not self.search.fits(covering.use):
                    self.hard.add(covering.phase)
        stay = (item for item in state.coverings if item.phase in self.hard or self.search.fits(item.use))
        return replace(state, coverings=tuple(stay))

    def coverings(self, multipliers: Multipliers) -> PricedCoverings | None:
        """The bound at these prices and light coverings of every phase that fit.

        ``None`` when the chosen columns cannot cover some phase.
        """
        answer = super().coverings(multipliers)
        if answer is None:
            return None
        if self.by_region is not None:
            return self._by_region(self.by_region, answer, multipliers)
        bounds = self.column_bounds(answer)
        near = WeightedColumns(self.chosen, answer.weight, answer.least, answer.whole)
        whole, light = answer.whole.copy(), list[Covering]()
        for covering in answer.coverings:
            p = covering.phase
            if p in self.hard or self.search.fits(covering.use):
                light.append(covering)
                continue
            fitting = self.search.lightest(p, near, bounds - answer.bound, self.reach.get(p, 0.0))
            whole[p] = fitting.least
            self.reach[p] = fitting.least - float(answer.whole[p])
            for some in fitting.coverings:
                columns, counts = np.unique(some, return_counts=True)
                light.append(self._covering(p, dict(zip(columns.tolist(), counts.tolist(), strict=True))))
            if not fitting.coverings:
                # Nothing better is known; in fractions it may fit beside others.
                light.append(covering)
        gained = float((whole - answer.whole).sum())
        bound = answer.bound + gained - 1e-9 * abs(gained)
        return replace(answer, bound=bound, whole=whole, coverings=light)

    def _by_region(
        self, by_region: _ByRegion, answer: PricedCoverings, multipliers: Multipliers
    ) -> PricedCoverings | None:
        """The same from the parts of every region."""
        prices, whole, light = self.node_prices(multipliers), answer.whole.copy(), list[Covering]()
        for covering in answer.coverings:
            p = covering.phase
            if self.search.fits(covering.use) and by_region.pays_no_more(covering):
                light.append(covering)
                continue
            at = by_region.prices(p, prices[p], answer.side_prices, answer.least[p][0])
            lightest = by_region.parts.lightest(p, at, self.grid, (float(whole[p]), 1.2 * self.reach.get(p, 0.0)))
            if not lightest.counts:
                return None
            self.reach[p] = max(0.0, lightest.weight - float(whole[p]))
            whole[p] += self.reach[p]
            light.append(by_region.covering(p, lightest.counts))
        gained = float((whole - answer.whole).sum())
        bound = answer.bound + gained - 1e-9 * abs(gained)
        return replace(answer, bound=bound, whole=whole, coverings=light)


class _ByRegion:
    """The parts of every region at prices.

    Args:
        problem: The problem, with its cuts.
        columns: Its columns.
        parts: Of these.
        limits: Of nodes that coverings may use.
    """

    def __init__(
        self, problem: AllocationProblem, columns: Columns, parts: RegionParts, limits: Sequence[NodeLimit]
    ) -> None:
        self.problem, self.columns, self.parts, self.limits = problem, columns, parts, limits
        self.adds, self.cells, sides = node_adds(problem), problem.price.size, open_constraints(problem)
        self.cost = np.nan_to_num(problem.segments.base) + problem.penalty * np.nan_to_num(problem.price)
        self.cuts = {k: cut for k, cut in enumerate(sides) if isinstance(cut, SupplyCut)}
        self.of_cuts = CutRows.of(tuple(self.cuts.values()), problem.price.shape)
        #: Rows of the cuts among all rows.
        self.rows = self.cells + np.array(list(self.cuts), dtype=np.int64)

    def prices(self, phase: int, capacity: Floats, side_prices: Floats, least: Floats) -> PartPrices:
        """What parts of a phase weigh.

        Args:
            phase: The model phase.
            capacity: float64 (R * C,), what it pays for a node, USD/h.
            side_prices: float64 (S,), USD/h, of the side constraints.
            least: float64 (G + 1,), USD/h; what serves so many steps weighs at least, whether it fits or not.
        """
        node = self.cost + capacity.reshape(self.cost.shape) + np.tensordot(side_prices, self.adds[:, phase], 1)
        most = self.problem.availability.copy()
        for limit in self.limits:
            if limit.phase == phase:
                cell = divmod(limit.cell, most.shape[1])
                most[cell] = min(most[cell], limit.most)
        cuts = [(cut, float(side_prices[k])) for k, cut in self.cuts.items() if side_prices[k] > 0]
        return PartPrices(node, cuts, most, least)

    def covering(self, phase: int, counts: Mapping[int, int]) -> Covering:
        """The covering of so many instances of every column."""
        some, many = np.array(list(counts)), np.array(list(counts.values()), dtype=np.float64)
        use = np.zeros(self.problem.price.shape)
        np.add.at(use, self.columns.region[some], self.problem.usage[self.columns.template[some]] * many[:, None])
        adds = (self.adds[:, phase] * use).sum(axis=(1, 2))
        cost = float(self.columns.cost[some] @ many)
        members = tuple(sorted(counts.items()))
        return self.as_whole(Covering(phase, members, cost, np.concatenate([use.ravel(), adds])))

    def as_whole(self, covering: Covering) -> Covering:
        """A covering that counts as a whole in cuts."""
        use = covering.use.copy()
        use[self.rows] = self.of_cuts.added(use[: self.cells])
        return replace(covering, use=use)

    def pays_no_more(self, covering: Covering) -> bool:
        """Whether a covering adds as a whole to every cut what it says."""
        return bool((self.of_cuts.added(covering.use[: self.cells]) <= covering.use[self.rows]).all())


def with_fitting(
    problem: AllocationProblem,
    columns: Columns,
    lagrangian: LagrangianBound,
    state: MasterState,
    parts: RegionParts | None = None,
) -> LagrangianBound:
    """The bound where every model phase weighs what fits by itself, and the column bounds that follow.

    Args:
        problem: A problem whose coverings can be listed.
        columns: Its columns.
        lagrangian: Its bound at some prices, column bounds at the same ones.
        state: These prices.
        parts: Parts by region, where these are known.
    """
    if not np.isfinite(lagrangian.bound):
        return lagrangian
    if parts is None:
        whole = _searched(problem, columns, lagrangian)
    else:
        whole = _put_together(_ByRegion(problem, columns, parts, ()), lagrangian, state)
    gained = (whole - lagrangian.whole) * (1 - 1e-9)
    total = float(gained.sum())
    return replace(
        lagrangian,
        bound=lagrangian.bound + total,
        column_bounds=lagrangian.column_bounds + (total - gained[columns.phase]),
        whole=lagrangian.whole + gained,
    )


def _searched(problem: AllocationProblem, columns: Columns, lagrangian: LagrangianBound) -> Floats:
    """float64 (P,), USD/h: what every model phase weighs that fits by itself, by search."""
    end = LAST * float(lagrangian.whole.sum()) * (1 + HAIR)
    chosen = np.flatnonzero(lagrangian.column_bounds <= lagrangian.bound + end)
    search = FittingSearch(problem, columns, chosen)
    near = WeightedColumns(chosen, lagrangian.weight[chosen], lagrangian.least, lagrangian.whole)
    over, whole = lagrangian.column_bounds[chosen] - lagrangian.bound, lagrangian.whole.copy()
    for p in np.flatnonzero(problem.demand > 0).tolist():
        whole[p] = search.lightest(p, near, over).least
    return whole


def _put_together(by_region: _ByRegion, lagrangian: LagrangianBound, state: MasterState) -> Floats:
    """float64 (P,), USD/h: the same from the parts of every region."""
    side_prices, whole = state.row_prices()[by_region.cells :], lagrangian.whole.copy()
    for p in np.flatnonzero(by_region.problem.demand > 0).tolist():
        at = by_region.prices(p, state.capacity_prices.ravel(), side_prices, lagrangian.least[p][0])
        weight = by_region.parts.lightest(p, at, PARTS_GRID, (float(whole[p]), 0.0)).weight
        if np.isinf(weight):
            # Nothing fits at all; so much says enough.
            weight = float(whole[p]) + LAST * float(lagrangian.whole.sum())
        whole[p] = max(whole[p], weight)
    return whole
