"""The step ``annealing``: ruin and recreate over whole allocations, with limits that may be passed at a price.

A move takes one to four instances away from one or two model phases and fills what they served with up to three others.
Nodes above what the pool has, and side constraints above their bound, cost a price of their own that rises while they
are and falls while they are not; so the search passes through allocations that do not fit to others that do. What an
instance or a region may be lost from, and the least number of instances, hold at every move. Where demand may go unmet,
moves also change how much of it does. It gives upper bounds only;
every allocation it offers is checked exactly. The best allocation of scarce pools is often one that no fractional one
points at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coralopt.allocation.bounds.pricing import Covering
from coralopt.allocation.bounds.unmet import shared_groups
from coralopt.allocation.model.columns import Columns, joined
from coralopt.allocation.search.context import Root, SearchContext
from coralopt.allocation.side_constraints import open_constraints
from coralopt.allocation.supply import Segments
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.search.annealing_kernel import Items, Needs, Rows

#: (column, count) pairs.
Members = tuple[tuple[int, int], ...]

#: Columns of least column bound of every model phase that take part.
NEAR = 300
#: Moves of a round for every column that takes part, and at most; how many rounds in a row may be in vain.
MOVES, MOST_MOVES, IDLE = 100, 100_000, 6
#: Temperatures of the first moves of rounds in turn, as shares of what an instance costs in the mean; and of the last move
#: as a share of that.
HOT, COLD = (0.01, 0.03), 0.05
#: What a unit above a limit costs at first, as a share of what the cheapest instance costs for it (a capacity price comes
#: on top).
ABOVE = 0.15
#: USD/h of all instances where nodes cost nothing.
FREE = 1e-6
#: Coverings of a model phase that rounds may begin with.
STARTS = 20
#: Rounds that are drawn ahead of results.
AHEAD = 2
#: Room for instances of a model phase beyond those to begin with.
ROOM = 40


class Annealing:
    """Rounds of annealing, from the allocation to begin with and from the best one in turn.

    The same for the same seed, but for the time limit.

    Args:
        search: What is known; a better allocation is offered to it.
        root: The bounds over all columns.
        light: Coverings of every model phase with demand, (column, count) pairs each, the lightest first; rounds begin with
            one of each.
    """

    def __init__(self, search: SearchContext, root: Root, light: Sequence[Sequence[Members]]) -> None:
        near = search.columns.least(root.lagrangian.column_bounds, NEAR)
        self.search, self.light = search, light
        members = [k for some in light for covering in some for k, _ in covering]
        self.columns = joined([*near, np.array(members, dtype=np.int64)])
        # Side by side by model phase, the cheapest first.
        self.columns = self.columns[np.lexsort((search.columns.cost[self.columns], search.columns.phase[self.columns]))]
        self.phase = search.columns.phase[self.columns]
        self.items, self.rows = self._task(root)
        self.needs = self._needs()
        self.rng = np.random.default_rng(search.solve_options.seed)
        self.idle, self.least = 0, math.inf
        self.best: Ints | None = None

    @staticmethod
    def of(search: SearchContext, root: Root, met: Sequence[Covering]) -> Annealing | None:
        """From coverings of low weight of every model phase, among those that the decomposition met.

        ``None`` where a phase has none. Templates of several model phases never come here: there is no decomposition of
        them.
        """
        weight, light = root.lagrangian.weight, []
        for p in search.small.leading_phases().tolist():
            own = {covering.members for covering in met if covering.phase == p}
            if not own:
                return None
            heavy = [(sum(n * float(weight[k]) for k, n in members), members) for members in own]
            light.append([_kept_and_new(search.columns, members) for _, members in sorted(heavy)[:STARTS]])
        return Annealing(search, root, light)

    def run(self, rounds: int) -> None:
        """So many rounds at most; ends where the best allocation is good enough, or does not get better."""
        search = self.search
        with search.side_by_side(search.processors) as lanes:
            for cost, counts in lanes.results(self._chains(rounds), AHEAD):
                self.idle += 1
                if cost < self.least:
                    self.least, self.best = cost, counts
                if cost < search.cost * (1 - 1e-9) and search.offer(search.columns.allocation(counts, self.columns)):
                    self.idle = 0
        search.lap("annealing")

    def _chains(self, rounds: int) -> Iterator[Callable[[], tuple[float, Ints]]]:
        """Rounds to anneal, side by side in pairs; every other pair goes on from the best allocation when it is drawn."""
        from coralopt.allocation.search.annealing_kernel import Cooling, anneal

        search = self.search
        deadline = time.perf_counter() + search.share_of_left()
        moves = min(MOVES * len(self.columns), MOST_MOVES)
        lightest = np.zeros(len(search.columns), dtype=np.int64)
        lightest[self.columns] = self.start()
        if not lightest.any():
            # All of it may go unmet.
            lightest[self.columns] = 1
        unit = max(search.columns.usd_h(search.small, lightest), FREE) / int(lightest.sum())
        for turn, rng in enumerate(self.rng.spawn(rounds)):
            if search.done() or self.idle >= IDLE or time.perf_counter() >= deadline:
                break
            pair = turn // AHEAD
            hot = HOT[pair % len(HOT)] * unit
            cooling = Cooling(moves, hot, hot * COLD)
            begin = self.best if self.best is not None and pair % 2 else self.start(spread=turn > 0)
            yield partial(anneal, self.items, self.rows, self.needs, cooling, *self._placed(begin), rng)

    def start(self, spread: bool = False) -> Ints:
        """int64 (n,), instances of the columns that take part: the lightest coverings, or light ones at random."""
        counts = np.zeros(len(self.search.columns), dtype=np.int64)
        for some in self.light:
            place = int(len(some) * self.rng.random() ** 2) if spread else 0
            for column, count in some[place]:
                counts[column] += count
        return counts[self.columns]

    def _task(self, root: Root) -> tuple[Items, Rows]:
        """The columns that take part, and what they share, as the compiled moves know them."""
        from coralopt.allocation.search.annealing_kernel import Items, Rows

        small, columns = self.search.small, self.search.columns
        template, region = columns.template[self.columns], columns.region[self.columns]
        cost, (regions, kinds) = columns.cost[self.columns], small.price.shape
        cells = regions * kinds
        sides = [item for item in open_constraints(small) if item.sense == "most"]
        dear, most_at, surcharge = _steps_of(small.segments)
        whole = np.zeros((len(template), cells + len(sides) + len(dear)))
        np.put_along_axis(
            whole, region[:, None] * kinds + np.arange(kinds), small.usage[template].astype(float), axis=1
        )
        for i, item in enumerate(sides):
            whole[:, cells + i] = item.coefficients(small, template, region, columns.kept[self.columns])
        whole[:, cells + len(sides) :] = whole[:, dear]
        row = np.argsort(whole <= 0, axis=1, kind="stable")[:, : max(1, int((whole > 0).sum(axis=1).max()))]
        amount = np.take_along_axis(whole, row, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(whole > 0, cost[:, None] / whole, np.inf).min(axis=0)
        price = ABOVE * np.where(np.isfinite(each), each, 0.0)
        assert self.search.capacity_prices is not None
        if small.supply:
            # The last nodes are the dearest.
            price[:cells] = np.maximum(price[:cells], ABOVE * np.nan_to_num(small.price).ravel())
        price[:cells] += self.search.capacity_prices.ravel()
        price[cells + len(sides) :] = surcharge
        first = np.searchsorted(self.phase, np.arange(len(small.demand) + 1))
        near = np.lexsort((root.lagrangian.column_bounds[self.columns], self.phase))
        served = np.minimum(small.throughput[template], small.demand[self.phase])
        most = columns.upper[self.columns].astype(np.int64)
        limits = small.availability.ravel().astype(np.float64), [item.limit(small) for item in sides], most_at
        return (
            Items(first, served, cost, most, np.where(amount > 0, row, -1), amount, near, region.astype(np.int64)),
            Rows(np.concatenate(limits), price, np.arange(len(price)) >= cells + len(sides)),
        )

    def _needs(self) -> Needs:
        """What each model phase must have."""
        from coralopt.allocation.search.annealing_kernel import Needs

        small = self.search.small
        demand = small.demand.astype(np.float64)

        def share_of(share: Floats, whole: Floats) -> Floats:
            # Sums that miss nothing by a rounding hold.
            return np.where(share > 0, share * whole, -np.inf)

        surviving = share_of(small.surviving, demand[:, None])
        groups = shared_groups(small, small.unmet_prices())
        group, tiers = np.full(len(demand), -1, dtype=np.int64), max((len(some.tiers) for some in groups), default=0)
        unmet = np.zeros((2, len(groups), tiers))
        for g, some in enumerate(groups):
            group[list(some.phases)] = g
            unmet[:, g, : len(some.tiers)] = np.array(some.tiers).T
        return Needs(demand, small.replicas, share_of(small.spared, demand), surviving, group, unmet[0], unmet[1])

    def _placed(self, counts: Ints) -> tuple[Ints, Ints]:
        """int64 (P, s), items of every model phase in so many instances, then room for more; and int64 (P,), how many."""
        size = np.bincount(self.phase, weights=counts, minlength=len(self.needs.demand)).astype(np.int64)
        chosen = np.full((len(size), int(size.max()) + ROOM), -1, dtype=np.int64)
        for p in range(len(size)):
            low, high = self.items.first[p], self.items.first[p + 1]
            chosen[p, : size[p]] = np.repeat(np.arange(low, high), counts[low:high])
        return chosen, size


def _kept_and_new(columns: Columns, members: Members) -> Members:
    """The same instances, of kept columns as many as run: bounds fill replicas up with kept ones however few run."""
    if all(not columns.kept[k] or count <= columns.upper[k] for k, count in members):
        return members
    counts = np.zeros(len(columns), dtype=np.int64)
    for k, count in members:
        counts[k] += count
    counts = columns.counts(columns.allocation(counts))
    return tuple((k, int(counts[k])) for k in np.flatnonzero(counts).tolist())


def _steps_of(pieces: Segments) -> tuple[Ints, Floats, Floats]:
    """Where nodes get dearer: cells, nodes up to there, and by how much, USD/h."""
    place, base = np.zeros(len(pieces.cell)), np.zeros(len(pieces.cell))
    upto, last = pieces.first.ravel().astype(np.float64), np.zeros(pieces.first.size)
    for e, cell in enumerate(pieces.cell.tolist()):
        place[e], base[e] = upto[cell], last[cell]
        upto[cell] += pieces.nodes[e]
        last[cell] = pieces.surcharge[e]
    return pieces.cell, place, pieces.surcharge - base
