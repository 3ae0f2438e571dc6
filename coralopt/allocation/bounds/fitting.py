r"""What a covering weighs at least that fits the supply by itself.

A covering knapsack knows prices of nodes, but not how many there are. Where a model phase needs most of what there is, the
covering of least weight may use more nodes of a kind than the pool has; in the master programme of the decomposition such
coverings fit together, in fractions. With Q the coverings of phase m that use at most what there is of every row by
themselves, every allocation still consists of one of each::

    L(lambda) = - sum_i lambda_i A_i + sum_m F_m,    F_m = min { w(q) : q in Q_m }  >=  D_m

Prices may then rise where they only keep one phase within the pool. F_m is put together from parts of regions (module
``parts``) where coverings are such, and else found by best-first search from the covering knapsack's table (module
``fitting_kernel``): what is missing of a partial covering weighs at least what the table says, and what would pass a row is
never made. A search that ends early leaves the weight up to which it looked: still a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit, WeightedColumns, available, listable, side_adds
from coralopt.allocation.bounds.cuts import CutRows, SupplyCut
from coralopt.allocation.bounds.decomposition import MasterState
from coralopt.allocation.bounds.known import KnownCoverings, serving
from coralopt.allocation.bounds.lagrangian import LagrangianBound, grid_steps
from coralopt.allocation.bounds.parts import PartPrices, PartRange, RegionParts
from coralopt.allocation.bounds.pricing import GRID, Covering, Multipliers, PricedCoverings, PricingProblem
from coralopt.allocation.bounds.spared import completions_of
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.machine import cores
from coralopt.types import Bools, Floats, Ints

#: First distance from the covering knapsack's weight that is looked at, as a share of the bound, its growth, and its end.
FIRST, GROWTH, LAST = 1e-4, 3.0, 0.03
#: Coverings that a search returns, and instances of one.
WANTED, DEEPEST = 24, 60
#: Share of a sum by which a row may be exceeded: what rounding does.
HAIR = 1e-8


@dataclass(frozen=True)
class Effort:
    """How much work a search takes.

    Attributes:
        most: Partial coverings, or parts of a region, that are made at most.
        grid: Steps of a demand on which parts of regions are put together.
        until: Time, s as of :func:`time.perf_counter`, from when on no parts are looked for further above.
    """

    most: int
    grid: int
    until: float = math.inf


#: For the bound itself, and at the prices that are tried.
WHOLE, PRICED = Effort(300_000, 100_000), Effort(40_000, GRID)


@dataclass(frozen=True)
class Fitting:
    """What was found for one model phase.

    Attributes:
        least: USD/h that a covering which fits weighs at least; may be infinite where nothing fits.
        coverings: The lightest ones, as far as found: positions of columns.
    """

    least: float
    coverings: tuple[Ints, ...]


@dataclass(frozen=True)
class Look:
    """How far above a covering knapsack's weight coverings that fit are looked for.

    Attributes:
        reach: USD/h, at first.
        ceiling: USD/h that a covering weighs which is known to fit; may be infinite.
    """

    reach: float = 0.0
    ceiling: float = np.inf


ANYWHERE = Look()


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
        effort: How much work a search takes.
        good: Phase -> prices of its own that were good before (class ``RegionParts``).
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        chosen: Ints,
        limits: Sequence[NodeLimit] = (),
        effort: Effort = WHOLE,
        good: dict[int, Floats] | None = None,
    ) -> None:
        self.problem, self.columns, self.chosen = problem, columns, chosen
        self.limits, self.effort = limits, effort
        self._known = KnownCoverings(problem, columns, chosen)
        self.parts = RegionParts(problem, columns, chosen, limits, good) if RegionParts.known(problem) else None
        sides, cells = open_constraints(problem), problem.price.size
        cuts = [(k, cut) for k, cut in enumerate(sides) if isinstance(cut, SupplyCut) and self.parts is not None]
        self.cuts = CutRows.of([cut for _, cut in cuts], problem.price.shape)
        #: Rows of these cuts among all rows.
        self.cut_rows = cells + np.array([k for k, _ in cuts], dtype=np.int64)
        self.phase, region = columns.phase[chosen], columns.region[chosen]
        template, kept = columns.template[chosen], np.flatnonzero(columns.kept[chosen])
        self.speed = problem.throughput[template].astype(np.float64)
        kinds, adds = problem.price.shape[1], side_adds(problem, columns, chosen)
        self.cut_adds = adds[:, self.cut_rows - cells]
        # Whatever fits the pool satisfies cuts, and instances on the same nodes may add different sums to them.
        adds[:, [isinstance(item, SupplyCut) for item in sides]] = 0.0
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

    def part_prices(self, weight: Floats, side_prices: Floats) -> PartPrices:
        """What parts of regions weigh.

        Args:
            weight: float64 (k,), USD/h, of the columns.
            side_prices: float64 (S,), USD/h, of the side constraints.
        """
        price = side_prices[self.cut_rows - self.problem.price.size]
        return PartPrices(weight, self.cuts, price, self.cut_adds @ price)

    def as_whole(self, coverings: Sequence[Covering]) -> list[Covering]:
        """Coverings that count as a whole in cuts, where coverings are parts of regions."""
        if not len(self.cut_rows) or not coverings:
            return list(coverings)
        use = np.array([covering.use for covering in coverings])
        added = self._added(use)
        other = (use[:, self.cut_rows] != added).any(axis=1)
        use[:, self.cut_rows] = added
        return [
            replace(covering, use=whole) if changes else covering
            for covering, whole, changes in zip(coverings, use, other.tolist(), strict=True)
        ]

    def as_good(self, use: Floats) -> Bools:
        """bool (n,): which coverings fit and add as a whole to every cut what they say, float64 (n, R * C + S)."""
        honest = (self._added(use) <= use[:, self.cut_rows] + HAIR).all(axis=1)
        return np.asarray(self.fits(use) & honest)

    def _added(self, use: Floats) -> Floats:
        """float64 (n, K): what coverings add to the cuts as a whole."""
        return self.cuts.added(use[:, : self.problem.price.size])

    def lightest(
        self, phase: int, near: WeightedColumns, over: Floats, prices: PartPrices, look: Look = ANYWHERE
    ) -> Fitting:
        """The lightest coverings of a phase that fit.

        Looks further and further above the covering knapsack's weight, until one is found or the end is reached. Where
        coverings are parts of regions, these are put together, which tells all but side constraints over several regions.

        Args:
            phase: The model phase.
            near: The columns that take part and their weights, tables and least weights of all phases.
            over: float64 (k,), USD/h; how far above the bound every column lifts it.
            prices: What parts of regions weigh.
            look: How far above is looked.
        """
        if self.parts is None:
            return self._searched(phase, near, over, look.reach)
        floor = float(near.whole[phase])
        within = PartRange(
            near.least[phase][0], floor, look.ceiling, self.effort.grid, self.effort.most, self.effort.until
        )
        known = self.parts.lightest(phase, prices, within)
        least = max(floor, known.weight)
        if np.isinf(least) or (known.members and self._within_sides(known.members[0])):
            return Fitting(least, tuple(some for some in known.members if self._within_sides(some)))
        searched = self._searched(phase, near, over, look.reach)
        return Fitting(max(least, searched.least), searched.coverings or known.members)

    def lightest_of_each(
        self,
        phases: Sequence[int],
        near: WeightedColumns,
        over: Floats,
        prices: PartPrices,
        reach: Mapping[int, float],
    ) -> list[Fitting]:
        """The same of several phases at a time; ``reach`` by phase, 0 for others."""
        ceilings = self._known.lightest(prices.weight - prices.of_cuts, prices.price)
        looks = [Look(reach.get(p, 0.0), float(ceilings[p])) for p in phases]
        # Compiled code lets other threads run, and phases share nothing: what comes out does not depend on threads.
        with ThreadPoolExecutor(cores()) as threads:
            return list(threads.map(lambda p, look: self.lightest(p, near, over, prices, look), phases, looks))

    def know(self, coverings: Sequence[Covering]) -> None:
        """Remember coverings that fit: none that is heavier need be looked for, of those that serve their demand."""
        if coverings:
            self._known.add(coverings, self._added(np.array([covering.use for covering in coverings])))

    def _within_sides(self, members: Ints) -> bool:
        """Whether a covering whose nodes are there satisfies every side constraint."""
        row, amount = self.row[members].ravel(), self.amount[members].ravel()
        return bool(self.fits(np.bincount(row[row >= 0], amount[row >= 0], len(self.room)).astype(np.float64)))

    def _searched(self, phase: int, near: WeightedColumns, over: Floats, reach: float) -> Fitting:
        """The same by search over whole coverings."""
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
                item.narrow(room)
                spare[list(item.cells)] &= item.least == 0
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
            task = FittingTask(
                demand, spared, by_weight, room, near.least[phase], completions, floor, limit, self.effort.most
            )
            least, number = lightest_fitting(items, task, members)
            if number or least < limit or reach >= end:
                return Fitting(max(floor, least), tuple(mine[some[some >= 0]] for some in members[:number]))
            reach *= GROWTH

    def fits(self, use: Floats) -> Bools:
        """bool (...,): whether that much of nodes and side constraints is there, float64 (..., R * C + S)."""
        return _fits(use, self.room)


class FittingPricing(PricingProblem):
    """The covering of least weight of every model phase that fits by itself, at given prices.

    Args:
        problem: A problem of which :func:`knows_fitting` is true.
        columns: Its columns.
        chosen: int64 (k,), those that take part.
        limits: Of nodes that coverings may use; at most one a phase and cell.
        good: Phase -> prices of its own that were good before (class ``RegionParts``).
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        chosen: Ints,
        limits: Sequence[NodeLimit] = (),
        good: dict[int, Floats] | None = None,
        until: float = math.inf,
    ) -> None:
        super().__init__(problem, columns, chosen, limits)
        self.search = FittingSearch(problem, columns, chosen, limits, replace(PRICED, until=until), good)
        #: Phase -> how far above the covering knapsack's weight the last search had to look, USD/h.
        self.reach: dict[int, float] = {}
        #: Phases of which no covering that fits is known.
        self.hard: set[int] = set()
        #: Prices that a decomposition begins with, and what they bring, where no phase is hard.
        self.first: tuple[Multipliers, PricedCoverings] | None = None

    def first_excess(self, start: Multipliers) -> Floats:
        """Prices for coverings that need not fit are good ones here, too: those of more than is there stay near them."""
        most = float(start.capacity.max(initial=0.0))
        return 1.5 * start.capacity + 0.05 * most if most else super().first_excess(start)

    def started(self, state: MasterState) -> MasterState:
        """What a decomposition begins with: the hard phases are known, of the others only coverings that fit stay."""
        fits = self.search.fits(np.array([item.use for item in state.coverings])) if state.coverings else ()
        fitting = [item for item, there in zip(state.coverings, fits, strict=True) if there]
        self.search.know(fitting)
        self.hard = set()
        start = Multipliers(state.row_prices(), state.prices_of(self.limits))
        answer = self.coverings(start)
        if answer is not None:
            fits = self.search.fits(np.array([covering.use for covering in answer.coverings]))
            self.hard = {covering.phase for covering, there in zip(answer.coverings, fits, strict=True) if not there}
        self.first = None if self.hard or answer is None else (start, answer)
        fitting += [item for item in state.coverings if item.phase in self.hard]
        return replace(state, coverings=tuple(self.search.as_whole(fitting)))

    def coverings(self, multipliers: Multipliers) -> PricedCoverings | None:
        """The bound at these prices and light coverings of every phase that fit.

        ``None`` when the chosen columns cannot cover some phase.
        """
        if self.first is not None and self.first[0].same(multipliers):
            return self.first[1]
        answer = super().coverings(multipliers)
        if answer is None:
            return None
        bounds = self.column_bounds(answer)
        near = WeightedColumns(self.chosen, answer.weight, answer.least, answer.whole)
        prices = self.search.part_prices(near.weight, answer.side_prices)
        whole, light, heavier, better = answer.whole.copy(), list[Covering](), list[Covering](), list[Covering]()
        good = self.search.as_good(np.array([covering.use for covering in answer.coverings]))
        for covering, enough in zip(answer.coverings, good.tolist(), strict=True):
            (light if enough or covering.phase in self.hard else heavier).append(covering)
        phases, over = [covering.phase for covering in heavier], bounds - answer.bound
        lightest = self.search.lightest_of_each(phases, near, over, prices, self.reach)
        for covering, fitting in zip(heavier, lightest, strict=True):
            p = covering.phase
            if np.isinf(fitting.least):
                return None
            whole[p] = fitting.least
            self.reach[p] = fitting.least - float(answer.whole[p])
            own = []
            for some in fitting.coverings:
                columns, counts = np.unique(some, return_counts=True)
                own.append(self._covering(p, dict(zip(columns.tolist(), counts.tolist(), strict=True))))
            # Where nothing better is known, in fractions it may fit beside others.
            light += self.search.as_whole(own) or [covering]
            better += own
        self.search.know(better)
        gained = float((whole - answer.whole).sum())
        bound = answer.bound + gained - 1e-9 * abs(gained)
        return replace(answer, bound=bound, whole=whole, coverings=light)


def _fits(use: Floats, room: Floats) -> Bools:
    """bool (...,): whether that much of the first rows is there, float64 (..., n)."""
    return np.asarray((use <= room[: use.shape[-1]] * (1 + HAIR) + HAIR).all(axis=-1))


def _ceilings(
    problem: AllocationProblem, lagrangian: LagrangianBound, coverings: Sequence[Covering], state: MasterState
) -> Floats:
    """float64 (P,), USD/h: what the lightest of some coverings of each phase weighs at most; infinite without any."""
    sides, cells = open_constraints(problem), problem.price.size
    cuts = cells + np.flatnonzero([isinstance(item, SupplyCut) for item in sides])
    prices, lightest = state.row_prices()[cuts], np.full(len(problem.demand), np.inf)
    for item in coverings:
        weight = sum(count * float(lagrangian.weight[column]) for column, count in item.members)
        # Counted instance by instance in these weights already: at most so much more.
        lightest[item.phase] = min(lightest[item.phase], weight + float(prices @ item.use[cuts]))
    return lightest


def with_fitting(
    problem: AllocationProblem,
    columns: Columns,
    lagrangian: LagrangianBound,
    state: MasterState,
    effort: Effort = WHOLE,
    good: dict[int, Floats] | None = None,
) -> LagrangianBound:
    """The bound where every model phase weighs what fits by itself, and the column bounds that follow.

    Args:
        problem: A problem whose coverings can be listed.
        columns: Its columns.
        lagrangian: Its bound at some prices, column bounds at the same ones.
        state: These prices, and coverings of which some fit.
        effort: How much of each model phase is looked at.
        good: Phase -> prices of its own that were good before (class ``RegionParts``).
    """
    if not np.isfinite(lagrangian.bound):
        return lagrangian
    end = np.full(len(problem.demand), LAST * float(lagrangian.whole.sum()))
    room = available(problem)
    known = [item for item in state.coverings if _fits(item.use, room)]
    known = (
        [item for item, serves in zip(known, serving(problem, columns, known), strict=True) if serves] if known else []
    )
    if RegionParts.known(problem):
        # What weighs more than a covering that fits need not be looked at; of some phases none is known.
        end = _ceilings(problem, lagrangian, known, state) - lagrangian.whole
    over = np.maximum(end * (1 + HAIR), 0.0) + HAIR
    chosen = np.flatnonzero(lagrangian.column_bounds <= lagrangian.bound + over[columns.phase])
    # What uses any other column weighs more than this.
    most = lagrangian.whole + over
    search = FittingSearch(problem, columns, chosen, effort=effort, good=good)
    search.know(known)
    near = WeightedColumns(chosen, lagrangian.weight[chosen], lagrangian.least, lagrangian.whole)
    side_prices = state.row_prices()[problem.price.size :]
    if any(item.sense == "least" for item in open_constraints(problem)):
        # Its prices may be lower ones than these, and those of cuts with them: then cuts count instances one by one.
        side_prices = np.zeros_like(side_prices)
    prices = search.part_prices(near.weight, side_prices)
    above, whole = lagrangian.column_bounds[chosen] - lagrangian.bound, lagrangian.whole.copy()
    phases = np.flatnonzero(problem.demand > 0).tolist()
    for p, fitting in zip(phases, search.lightest_of_each(phases, near, above, prices, {}), strict=True):
        least = min(fitting.least, float(most[p]))
        # Nothing fits at all: so much says enough.
        whole[p] = least if np.isfinite(least) else whole[p] + LAST * float(lagrangian.whole.sum())
    gained = (whole - lagrangian.whole) * (1 - 1e-9)
    total = float(gained.sum())
    return replace(
        lagrangian,
        bound=lagrangian.bound + total,
        column_bounds=lagrangian.column_bounds + (total - gained[columns.phase]),
        whole=lagrangian.whole + gained,
    )
