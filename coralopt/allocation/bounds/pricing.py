"""The pricing problem of the decomposition: at given prices, the covering of least weight of every model phase.

Covering knapsacks over a grid, by dynamic programming. Coverings know what must be there whichever instance or region is
lost, replicas, and the routes of a model; see :mod:`coralopt.allocation.bounds.decomposition` for what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit, available, side_adds
from coralopt.allocation.bounds.knapsack import CoveringTable, cheapest_share, raise_to_line, several_items
from coralopt.allocation.bounds.lagrangian import grid_for, grid_steps
from coralopt.allocation.bounds.routed import routed_cover, staircases
from coralopt.allocation.bounds.spared import SparedCover, least_spared
from coralopt.allocation.bounds.surviving import SurvivingCover, surviving_cover
from coralopt.allocation.bounds.unmet import GroupCover, UnmetGroup, shared_groups
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.routes import ModelRoutes, Pool, least_flow
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Bools, Floats, Ints

#: Least steps of the grid of the knapsacks here; the root's bound itself is made on a finer one.
GRID = 20_000
#: Share of the best prices so far in the next ones asked about.
SMOOTHING = 0.6


@dataclass(frozen=True)
class Covering:
    """A covering as the master holds it.

    Attributes:
        phase: Model phase; the first one of a model with routes, for all of them.
        members: (column, count) pairs, sorted.
        cost: USD/h, routes included.
        use: float64 (R * C + S,), nodes, then what it adds to every side constraint.
    """

    phase: int
    members: tuple[tuple[int, int], ...]
    cost: float
    use: Floats


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Prices of the rows of capacity and side constraints, at least 0, and of the limits, negative for a least."""

    capacity: Floats
    limits: Floats

    def same(self, other: Multipliers) -> bool:
        """Whether all prices are equal."""
        return np.array_equal(self.capacity, other.capacity) and np.array_equal(self.limits, other.limits)

    def towards(self, other: Multipliers) -> Multipliers:
        """A step from these to others."""
        return Multipliers(
            SMOOTHING * self.capacity + (1 - SMOOTHING) * other.capacity,
            SMOOTHING * self.limits + (1 - SMOOTHING) * other.limits,
        )


@dataclass(frozen=True, eq=False)
class PricedCoverings:
    """The answer at some prices.

    Attributes:
        bound: Lagrangian bound over the columns, USD/h.
        coverings: That of least weight of every model phase, or of a model with routes.
        weight: float64 (k,), of the columns.
        side_prices: float64 (S,), USD/h; those that instances earn are at most what they weigh.
        least: float64 (K + 1, G + 1) a phase that needs K replicas: least weight of at least k instances that cover so many
            steps.
        whole: float64 (P,), USD/h; what a covering of the whole demand weighs at least.
        surviving: Phase -> what serves it and survives the loss of a region.
        spared: Phase -> the same of an instance.
        shared: What serves each group of phases that go unmet together.
    """

    bound: float
    coverings: list[Covering]
    weight: Floats
    side_prices: Floats
    least: tuple[Floats, ...]
    whole: Floats
    surviving: Mapping[int, SurvivingCover]
    spared: Mapping[int, SparedCover]
    shared: Sequence[GroupCover]


class PricingProblem:
    """The covering knapsacks of all phases over the chosen columns."""

    def __init__(
        self, problem: AllocationProblem, columns: Columns, chosen: Ints, limits: Sequence[NodeLimit] = ()
    ) -> None:
        from scipy.sparse import csr_array

        configurations = problem.price.shape[1]
        self.problem, self.chosen, self.limits = problem, chosen, limits
        self.shape = problem.price.shape
        self.template = template = columns.template[chosen]
        self.phase = columns.phase[chosen]
        self.region = columns.region[chosen]
        self.usage = problem.usage[template].astype(np.float64)
        row, column = np.nonzero(self.usage)
        cell = (self.phase[row] * self.shape[0] + self.region[row]) * configurations + column
        #: float64 (k, P * R * C), nodes of each column where its phase pays for them.
        self.nodes = csr_array(
            (self.usage[row, column], (row, cell)), shape=(len(chosen), len(problem.demand) * problem.price.size)
        )
        self.cost = columns.cost[chosen]
        self.grid = grid_for(problem, GRID)
        self.steps = grid_steps(problem.throughput[template], problem.demand[self.phase], self.grid)
        self.share = problem.throughput[template] / np.maximum(problem.demand[self.phase], 1e-300)
        kept = columns.kept[chosen]
        self.adds, self.available = side_adds(problem, columns, chosen), available(problem)
        #: Side constraints that ask for instances: each earns their price.
        self.earned = np.array([problem.counted(item) for item in open_constraints(problem)], dtype=np.bool_)
        #: Those that go unmet together, at a price.
        self.groups = shared_groups(problem, problem.unmet_prices())
        #: Phase -> the first of those that share a covering with it.
        self.leading = np.arange(len(problem.demand))
        for phases in (*(model.phases for model in problem.routes), *(group.phases for group in self.groups)):
            self.leading[list(phases)] = phases[0]
        usable = np.ones(len(chosen), dtype=np.bool_)
        for limit in limits:
            counted = np.zeros(self.shape)
            counted.flat[list(limit.cells)] = 1.0
            other = self.leading[self.phase] != limit.phase
            usable &= other | ((self.usage * counted[self.region]).sum(axis=1) <= limit.most)
        self.usable = usable
        pool = columns.pool[chosen]

        def items(mine: Bools) -> _Items:
            copies = [(int(k), int(columns.upper[chosen[k]])) for k in np.flatnonzero(mine & kept)]
            return _Items(self.grid, self.steps, np.flatnonzero(mine & ~kept), copies)

        tied = {p for model in problem.routes for p in model.phases} | {p for some in self.groups for p in some.phases}
        self.parts = [
            (p, items((self.phase == p) & usable)) for p in problem.leading_phases().tolist() if p not in tied
        ]
        self.grouped = {p: items((self.phase == p) & usable) for group in self.groups for p in group.phases}
        #: Phase -> its columns by region, where it must survive the loss of one.
        self.regional = {
            p: [items((self.phase == p) & (self.region == r) & usable) for r in range(len(problem.region_names))]
            for p in np.flatnonzero(problem.surviving.any(axis=1)).tolist()
        }
        self.models = [
            (model, {name: items(np.isin(pool, some)) for name, some in staircases(problem, model).items()})
            for model in problem.routes
        ]
        # No node may come at less than nothing: with weights of at least 0 the knapsacks stay what they are.
        self.floor = -np.nan_to_num(problem.segments.base).ravel()

    def first_excess(self, start: Multipliers) -> Floats:
        """float64 (R * C + S,), USD/h: what no price exceeds at first, given those to begin with."""
        return np.full(
            len(self.available), 10.0 * max(float(start.capacity.max(initial=0.0)), float(self.cost.max(initial=1.0)))
        )

    def node_prices(self, multipliers: Multipliers) -> tuple[Floats, Floats]:
        """float64 (P, R * C): what each phase pays for a node; and float64 (n,), what of it is for each limit."""
        cells, paid = self.problem.price.size, multipliers.limits.copy()
        prices = np.repeat(multipliers.capacity[None, :cells], len(self.problem.demand), axis=0)
        for k, limit in enumerate(self.limits):
            some = list(limit.cells)
            paid[k] = max(paid[k], float((self.floor[some] - prices[limit.phase, some]).max()))
            prices[np.ix_(self.leading == limit.phase, np.array(some))] += paid[k]
        return prices, paid

    def coverings(self, multipliers: Multipliers) -> PricedCoverings | None:
        """The bound at these prices and the covering of least weight of every phase.

        ``None`` when the chosen columns cannot cover some phase.
        """
        prices, paid = self.node_prices(multipliers)
        side_prices = multipliers.capacity[self.problem.price.size :].copy()
        weight = self.cost + self.nodes @ prices.ravel() + self.adds[:, ~self.earned] @ side_prices[~self.earned]
        for row in np.flatnonzero(self.earned).tolist():
            # No instance may come at less than nothing.
            each = self.adds[:, row] < 0
            side_prices[row] = min(side_prices[row], float(weight[each].min(initial=0.0 if not each.any() else np.inf)))
            weight = weight + self.adds[:, row] * side_prices[row]
        cells = self.problem.price.size
        total = -float(side_prices @ self.available[cells:])
        total -= self.problem.segments.worth(multipliers.capacity[:cells].reshape(self.shape), np.ones(self.shape[0]))
        for limit, price in zip(self.limits, paid.tolist(), strict=True):
            total -= price * (limit.most if price > 0 else limit.least)
        cheapest = []
        least = [np.zeros((1, self.grid + 1)) for _ in self.problem.demand]
        whole, surviving, spared = np.zeros(len(least)), dict[int, SurvivingCover](), dict[int, SparedCover]()
        for phase, items in self.parts:
            filled, share = items.filled(weight), float(self.problem.spared[phase])
            if not np.isfinite(filled.table[self.grid]):
                return None
            counts = filled.counts(self.grid)
            line, replicas = filled.table.copy(), 0 if phase in self.regional else int(self.problem.replicas[phase])
            raise_to_line(line, cheapest_share(weight[items.all], self.share[items.all]))
            least[phase] = items.several(weight, line, replicas)
            whole[phase] = float(least[phase][-1, self.grid])
            if share:
                spared[phase], counts = items.spared(weight, share)
                whole[phase] = max(whole[phase], spared[phase].least)
            if phase in self.regional:
                filled_in = [part.filled(weight) for part in self.regional[phase]]
                needed = (self.problem.surviving[phase] * self.grid).astype(np.int64)
                cover = surviving_cover([part.table for part in filled_in], needed)
                if not np.isfinite(cover.least):
                    return None
                whole[phase], surviving[phase], counts = max(whole[phase], cover.least), cover, {}
                for part, amount in zip(filled_in, cover.amounts, strict=True):
                    counts |= part.counts(amount)
            missing = replicas - sum(counts.values())
            if missing > 0:
                several = items.several(weight, filled.table, replicas)
                if share:
                    cheapest_one = int(items.all[np.argmin(weight[items.all])])
                    counts[cheapest_one] = counts.get(cheapest_one, 0) + missing
                else:
                    counts = items.counts_of(weight, filled, several, self.grid)
            total += float(whole[phase])
            cheapest.append(self._covering(phase, counts))
        shared: list[GroupCover] = []
        for group in self.groups:
            joined, counts = self._shared(group, weight)
            if not np.isfinite(joined.least):
                return None
            total += joined.least
            shared.append(joined)
            for phase, table in joined.tables.items():
                least[phase] = table[None]
            cheapest.append(self._covering(group.phases[0], counts, group=group))
        for model, pools in self.models:
            filled_by = {name: items.filled(weight) for name, items in pools.items()}
            tables = {name: filled.table for name, filled in filled_by.items()}
            everything = np.full(len(self.problem.demand), np.inf)
            joint = routed_cover(self.problem, model, tables, everything, 0.0)
            if not np.isfinite(joint.least):
                return None
            total += joint.least
            taken: dict[int, int] = {}
            for name, amount in {**joint.amounts, -1: joint.alone}.items():
                taken |= filled_by[name].counts(amount) if amount else {}
            cheapest.append(self._covering(model.phases[0], taken, model))
        slack = 1e-9 * (abs(total) + 2 * float(multipliers.capacity @ np.abs(self.available)))
        return PricedCoverings(
            total - slack, cheapest, weight, side_prices, tuple(least), whole, surviving, spared, shared
        )

    def _shared(self, group: UnmetGroup, weight: Floats) -> tuple[GroupCover, dict[int, int]]:
        """What a group weighs at least, and copies of columns that serve it so."""
        tables, parts = dict[int, Floats](), dict[int, tuple[_Filled, Floats]]()
        for p in group.phases:
            items = self.grouped[p]
            filled = items.filled(weight)
            line = filled.table.copy()
            raise_to_line(line, cheapest_share(weight[items.all], self.share[items.all]))
            least = int(self.problem.replicas[p])
            tables[p] = items.several(weight, line, least)[-1]
            parts[p] = filled, items.several(weight, filled.table, least)
        cover, counts = GroupCover.of(group, tables), dict[int, int]()
        for p, (filled, several) in parts.items() if np.isfinite(cover.least) else ():
            counts |= self.grouped[p].counts_of(weight, filled, several, cover.amount)
        return cover, counts

    def _covering(
        self,
        phase: int,
        counts: Mapping[int, int],
        model: ModelRoutes | None = None,
        group: UnmetGroup | None = None,
    ) -> Covering:
        use, adds, cost = np.zeros(self.shape), np.zeros(self.adds.shape[1]), 0.0
        for k, n in counts.items():
            use[self.region[k]] += n * self.usage[k]
            adds += n * self.adds[k]
            cost += n * float(self.cost[k])
        members = tuple(sorted((int(self.chosen[k]), n) for k, n in counts.items()))
        if model is not None:
            # Grid steps are rounded up, so a hair of the requests may find no way.
            speed = self.problem.throughput[self.template]
            capacity: dict[Pool, Fraction] = {}
            for p, region in {pool for route in model.routes for pool in route.pools}:
                given = sum(
                    n * float(speed[k])
                    for k, n in counts.items()
                    if self.phase[k] == p and region in (None, int(self.region[k]))
                )
                capacity[p, region] = Fraction(given) / Fraction(float(self.problem.demand[p]))
            cost += float(least_flow(model, capacity).usd_h)
        if group is not None:
            served = [
                sum(n * float(self.share[k]) for k, n in counts.items() if self.phase[k] == p) for p in group.phases
            ]
            cost += float(group.cost(np.array([max(0.0, 1.0 - min(served))]))[0])
        return Covering(phase, members, cost, np.concatenate([use.ravel(), adds]))

    def column_bounds(self, answer: PricedCoverings) -> Floats:
        """float64 (k,): what an allocation with one instance of each column costs at least, within the limits."""
        bounds = np.full(len(self.chosen), np.inf)
        bounds[np.isin(self.phase, [p for model, _ in self.models for p in model.phases])] = answer.bound
        for phase, _ in self.parts:
            mine = np.flatnonzero((self.phase == phase) & self.usable)
            # What stands beside one of so many replicas is one fewer.
            rest = answer.least[phase][-2:][0][self.grid - self.steps[mine]]
            if phase in answer.spared:
                rest = np.maximum(rest, answer.spared[phase].beside[self.steps[mine]])
            bounds[mine] = answer.bound - answer.whole[phase] + answer.weight[mine] + rest
            for r in range(len(self.problem.region_names)) if phase in answer.surviving else ():
                here = mine[self.region[mine] == r]
                cover = answer.surviving[phase].with_one(r, self.steps[here], answer.weight[here])
                bounds[here] = np.maximum(bounds[here], answer.bound - answer.whole[phase] + cover)
        for joined in answer.shared:
            for phase, table in joined.tables.items():
                items, least = self.grouped[phase], int(self.problem.replicas[phase])
                mine = np.flatnonzero((self.phase == phase) & self.usable)
                rest = table
                if least:
                    line = items.filled(answer.weight).table
                    rest = items.several(answer.weight, line, least - 1)[-1]
                beside = joined.beside(phase, rest, self.steps[mine])
                bounds[mine] = answer.bound - joined.least + answer.weight[mine] + beside
        return bounds - 1e-9 * abs(answer.bound)


@dataclass(frozen=True, eq=False)
class _Items:
    """Columns of one covering knapsack: the grid, steps of all columns, the new ones, and (kept one, copies)."""

    grid: int
    steps: Ints
    fresh: Ints
    kept: list[tuple[int, int]]

    @property
    def all(self) -> Ints:
        """New and kept ones."""
        return np.concatenate([self.fresh, np.array([k for k, _ in self.kept], dtype=np.int64)])

    def filled(self, weight: Floats) -> _Filled:
        """Least weights that cover the grid with fresh items and some copies of kept ones."""
        cover = CoveringTable.of(self.steps[self.fresh], weight[self.fresh], self.grid)
        table = cover.least
        layers: list[tuple[int, int, Bools]] = []
        amounts = np.arange(self.grid + 1)
        for k, copies in self.kept:
            size = 1
            while copies > 0:
                taken = min(size, copies)
                other = table[np.maximum(amounts - int(self.steps[k]) * taken, 0)] + float(weight[k]) * taken
                better = other < table
                table = np.where(better, other, table)
                layers.append((k, taken, better))
                copies -= taken
                size *= 2
        return _Filled(self, table, cover, layers)

    def several(self, weight: Floats, table: Floats, least: int) -> Floats:
        """float64 (least + 1, G + 1): least weights that cover each amount with at least 0, 1, ... ``least`` items."""
        return several_items(self.steps[self.all], weight[self.all], table, least)

    def counts_of(self, weight: Floats, filled: _Filled, several: Floats, amount: int) -> dict[int, int]:
        """Column -> copies that cover so many steps at least weight, of the last of these tables."""
        every, counts = self.all, dict[int, int]()
        for table in several[-2::-1]:
            k = int(every[np.argmin(weight[every] + table[np.maximum(amount - self.steps[every], 0)])])
            counts[k] = counts.get(k, 0) + 1
            amount = max(0, amount - int(self.steps[k]))
        for k, count in filled.counts(amount).items():
            counts[k] = counts.get(k, 0) + count
        return counts

    def spared(self, weight: Floats, share: float) -> tuple[SparedCover, dict[int, int]]:
        """Least weight of what covers the grid, and a share of it whichever item is lost; and the items."""
        cover = least_spared(self.steps[self.all], weight[self.all], self.grid, share)
        fitting = self.all[self.steps[self.all] <= cover.largest]
        table = CoveringTable.of(self.steps[fitting], weight[fitting], cover.amount)
        return cover, _Filled(replace(self, fresh=fitting), table.least, table, []).counts(cover.amount)


@dataclass(frozen=True, eq=False)
class _Filled:
    """A covering knapsack's table, that of its fresh items alone, and where a kept one is better than what is before it."""

    items: _Items
    table: Floats
    fresh: CoveringTable
    layers: list[tuple[int, int, Bools]]

    def counts(self, amount: int) -> dict[int, int]:
        """Column -> copies that cover so many steps at least weight."""
        steps, counts = self.items.steps, dict[int, int]()
        for k, taken, better in reversed(self.layers):
            if amount > 0 and better[amount]:
                counts[k] = counts.get(k, 0) + taken
                amount = max(0, amount - int(steps[k]) * taken)
        for k in self.items.fresh[self.fresh.members(amount)].tolist():
            counts[k] = counts.get(k, 0) + 1
        return counts
