r"""All coverings that could be cheap enough (module ``coverings``), listed instance by instance.

Phases that go unmet together share a covering, which may leave some of their demand unmet (module ``unmet``). With
covering tables W_p and the cost c of what is unmet, s steps of phase p served weigh beside what follows at least::

    L_p(s) = min over a  of  W_p(a - s) + sum over the others q of W_q(a) + c(1 - (a + 1) / G)

so partial coverings of a phase, any amount of it served, are listed as coverings are, with this in place of the covering
knapsack's table. Those of all phases of the group are then combined. In the same way those of single regions make the
coverings of a phase that must survive the loss of a region (module ``surviving``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coralopt.allocation.bounds.coverings import HAIR, Coverings, NodeLimit, Table, WeightedColumns, side_adds
from coralopt.allocation.bounds.knapsack import least_weights
from coralopt.allocation.bounds.lagrangian import grid_steps
from coralopt.allocation.bounds.pricing import GRID
from coralopt.allocation.bounds.spared import completions_of
from coralopt.allocation.bounds.surviving import surviving_cover
from coralopt.allocation.bounds.unmet import GroupCover, UnmetGroup, shared_groups
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.bounds.kernels import Sums

#: From so many coverings of a phase on they are not compared in pairs: few replace others that were not dropped before.
MANY = 6_000
#: Pairs of partial coverings that are looked at, at most; they take half a kilobyte each.
MOST_PAIRS = 1_000_000
#: Steps of the grid of what must survive the loss of a region.
SURVIVING_GRID = 4_000


def near_coverings(
    problem: AllocationProblem,
    columns: Columns,
    near: WeightedColumns,
    slack: float,
    most: int,
    deadline: float = np.inf,
    limits: Sequence[NodeLimit] = (),
) -> Coverings | None:
    """Every covering of weight at most ``slack`` above the least of its phase, but for replaceable ones.

    Args:
        problem: A problem whose coverings can be listed.
        columns: Its columns.
        near: Those that any wanted covering may use.
        slack: USD/h.
        most: Most coverings of all phases.
        deadline: Value of ``time.perf_counter()`` to stop at.
        limits: Of nodes that coverings may use; at most one a phase and cell.

    Returns:
        The coverings; none at all where some phase has none; ``None`` when there are more than ``most``, or time is up.
    """
    parts, count = [], 0
    groups = {group.phases[0]: group for group in shared_groups(problem, problem.unmet_prices())}
    # Side constraints whose sums the nodes do not tell.
    beside = [k for k, item in enumerate(open_constraints(problem)) if item.measure in ("instances", "new_nodes")]
    for p in problem.leading_phases().tolist():
        own = [limit for limit in limits if limit.phase == p]
        listing = _Listing(problem, columns, near, own, most, deadline)
        if p in groups:
            part = listing.of_group(groups[p], slack)
        elif problem.surviving[p].any():
            part = listing.of_surviving(p, float(near.whole[p]) + slack)
        else:
            part = listing.of_phase(p, near.least[p], float(near.whole[p]) + slack)
        if part is None:
            return None
        # First what another one replaces may go, but only among those that use enough of what is needed.
        for limit in own:
            used = limit.counted(part.use)
            part = part.some((used >= limit.least) & (used <= limit.most))
        if len(part) <= MANY:
            part = _undominated(part, beside)
        count += len(part)
        if count > most:
            return None
        parts.append(part)
    if any(not len(part) for part in parts):
        return parts[0].some(np.zeros(0, dtype=np.int64))
    return Coverings.union(parts)


@dataclass(frozen=True, eq=False)
class _Labels(Table):
    """Partial coverings of one phase.

    Attributes:
        use: int16 (n, k), nodes of every cell that matters, then instances of every kept column.
        mark: int64 (n,), equal for equal rows of ``use``.
        speed: float64 (n,), tokens/s.
        largest: float64 (n,), tokens/s of the largest instance.
        weight: float64 (n,), USD/h.
        members: int64 (n, d), columns of the instances, -1 where there are fewer than d.
    """

    use: npt.NDArray[np.int16]
    mark: Ints
    speed: Floats
    largest: Floats
    weight: Floats
    members: Ints

    def __len__(self) -> int:
        return len(self.mark)

    @property
    def left(self) -> Floats:
        """float64 (n,): tokens/s once the largest instance is lost."""
        return self.speed - self.largest

    def replaced(self, fewer: _Labels, rival: Ints) -> _Labels:
        """With the figures of the rows of ``fewer`` that stand for them; -1 for none."""
        speed, largest = self.speed.copy(), self.largest.copy()
        there = rival >= 0
        speed[there], largest[there] = fewer.speed[rival[there]], fewer.largest[rival[there]]
        return replace(self, speed=speed, largest=largest)

    @staticmethod
    def nothing(cells: int) -> _Labels:
        """The covering without instances."""
        use, members = np.zeros((1, cells), dtype=np.int16), np.empty((1, 0), dtype=np.int64)
        return _Labels(use, np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1), members)

    def merged(self, spared: bool, by_weight: bool) -> _Labels:
        """Of those on the same nodes the one that covers most, sorted by mark.

        Args:
            spared: Keep those, too, that cover more once the largest instance is lost.
            by_weight: Keep those, too, that are cheaper.
        """
        every, nothing = np.arange(len(self)), np.zeros((1, self.use.shape[1]), dtype=np.int16)
        rows = self.use, every, nothing, np.zeros_like(every)
        return self.some(
            _kept(self.mark, self.speed, self.left if spared else None, self.weight if by_weight else None, rows)
        )

    def longer(self, label: Ints, items: _Items, item: Ints, spared: bool, by_weight: bool) -> _Labels:
        """Each of some labels with the item of the same place, merged."""
        mark, speed = self.mark[label] + items.mark[item], self.speed[label] + items.speed[item]
        largest = np.maximum(self.largest[label], items.speed[item])
        weight = self.weight[label] + items.weight[item]
        rows = self.use, label, items.rows, item
        kept = _kept(mark, speed, speed - largest if spared else None, weight if by_weight else None, rows)
        label, item = label[kept], item[kept]
        return _Labels(
            self.use[label] + items.rows[item],
            mark[kept],
            speed[kept],
            largest[kept],
            weight[kept],
            np.concatenate([self.members[label], items.chosen[item][:, None]], axis=1),
        )


@dataclass(frozen=True, eq=False)
class _Items:
    """Instances that labels are made of: columns, and what each adds to the attributes of a label."""

    chosen: Ints
    rows: npt.NDArray[np.int16]
    mark: Ints
    speed: Floats
    weight: Floats


def _kept(mark: Ints, speed: Floats, left: Floats | None, weight: Floats | None, rows: Sums) -> Ints:
    """int64, of partial coverings on the same nodes the fastest, and what else stays, sorted by mark.

    Args:
        mark: int64 (n,), equal for equal rows.
        speed: float64 (n,), tokens/s.
        left: float64 (n,), tokens/s once the largest instance is lost, where those stay, too, of which more is left.
        weight: float64 (n,), USD/h, where those stay, too, that are cheaper.
        rows: Two tables and the rows of each whose sums are what partial coverings use.
    """
    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.allocation.bounds.kernels import leaders

    # Numpy sorts by one key many times faster than by two.
    order = np.argsort(mark) if left is None and weight is None else np.lexsort((-speed, mark))
    # Equal marks almost surely mean equal rows; only rows that are equal may go.
    leader, other = leaders(order, mark, speed, rows)
    stays = other | (leader == np.arange(len(leader)))
    if left is not None and weight is not None:
        stays |= left[order] > left[order[leader]]
    elif left is not None:
        # More is left than of any faster one on the same nodes.
        rank = leader * len(leader) + np.where(other, 0, np.unique(left[order], return_inverse=True)[1])
        stays |= rank > np.append(-1, np.maximum.accumulate(rank)[:-1])
    if weight is not None:
        stays |= weight[order] < weight[order[leader]]
    kept: Ints = order[stays]
    return kept


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Partial coverings.

    Attributes:
        coverings: With what they use and cost.
        weight: float64 (n,), USD/h.
        speed: float64 (n,), tokens/s of the last phase or region.
    """

    coverings: Coverings
    weight: Floats
    speed: Floats

    def some(self, chosen: Bools | Ints) -> _Pieces:
        """Some of them."""
        return _Pieces(self.coverings.some(chosen), self.weight[chosen], self.speed[chosen])

    @staticmethod
    def nothing(cells: int, sides: int) -> _Pieces:
        """The one without instances."""
        none, nowhere = np.zeros(1, dtype=np.int64), np.zeros((1, cells), dtype=np.int16)
        members, added = np.empty((1, 0), dtype=np.int64), np.zeros((1, sides))
        coverings = Coverings(none, np.zeros(1), nowhere, members, np.zeros(1, dtype=np.bool_), added)
        return _Pieces(coverings, np.zeros(1), np.zeros(1))


@dataclass(frozen=True, eq=False)
class _Listing:
    """Lists coverings of a phase or a group of them.

    Attributes:
        problem: The problem.
        columns: Its columns.
        near: Those that any wanted covering may use.
        limits: Of nodes that these coverings may use.
        most: Where it ends: at four times so many on equally many nodes.
        deadline: Value of ``time.perf_counter()`` to stop at.
    """

    problem: AllocationProblem
    columns: Columns
    near: WeightedColumns
    limits: Sequence[NodeLimit]
    most: int
    deadline: float

    def of_phase(
        self, phase: int, least: Floats, end: float, any_amount: bool = False, region: int | None = None
    ) -> Coverings | None:
        """All coverings of one phase up to a weight, but for those that another one replaces.

        Built instance by instance, those on few nodes first, so that the best way to use some nodes is known before
        anything is added. Of partial coverings on the same nodes and the same kept instances only the one that covers most
        is kept, those that cover more once the largest instance is lost, and those that are cheaper to start; none is kept
        if it covers no more than one on one node fewer.

        Args:
            phase: The model phase.
            least: float64 (K + 1, G + 1), what covers so many steps by at least k instances weighs at least.
            end: USD/h, the weight; of a partial covering, with what ``least`` says of the rest.
            any_amount: Whether partial coverings are wanted, too.
            region: Where all of it is; everywhere when ``None``.
        """
        problem, columns, near = self.problem, self.columns, self.near
        # An instance that serves nothing is no replica, nor is it needed.
        mine = (columns.phase[near.chosen] == phase) & (problem.throughput[columns.template[near.chosen]] > 0)
        if region is not None:
            mine &= columns.region[near.chosen] == region
        chosen, weight = near.chosen[mine], near.weight[mine]
        adds = side_adds(problem, columns, chosen)
        pool = self._most_nodes()
        regions, configurations = problem.price.shape
        demand = float(problem.demand[phase])
        spared, replicas = float(problem.spared[phase]) * demand, int(problem.replicas[phase])
        by_weight = problem.start_penalty is not None
        speed = problem.throughput[columns.template[chosen]]
        cube = np.zeros((len(chosen), regions, configurations), dtype=np.int16)
        cube[np.arange(len(chosen)), columns.region[chosen]] = problem.usage[columns.template[chosen]]
        use = cube.reshape(len(chosen), regions * configurations)
        # Only cells that matter, then one entry a kept column: two equal rows are interchangeable.
        cells = np.flatnonzero(use.any(axis=0))
        kept = np.flatnonzero(columns.kept[chosen])
        own = np.zeros((len(chosen), len(kept)), dtype=np.int16)
        own[kept, np.arange(len(kept))] = 1
        # And one for every sum that the nodes do not tell, instances among them where some are asked for.
        beside = [
            k
            for k, item in enumerate(open_constraints(problem))
            if item.sense == "most" and item.measure in ("instances", "new_nodes")
        ]
        most_beside = np.array([open_constraints(problem)[k].bound for k in beside], dtype=np.float64)
        each = np.ones((len(chosen), int(replicas > 0)), dtype=np.int16)
        rows = np.concatenate([use[:, cells], own, adds[:, beside].astype(np.int16), each], axis=1)
        most_of_rows = [pool[cells], columns.upper[chosen[kept]], np.floor(most_beside)]
        room = np.concatenate([*most_of_rows, np.full(each.shape[1], pool.sum())]).astype(np.int64)
        mark = np.random.default_rng(0).integers(1, 2**62, (rows.shape[1],), dtype=np.int64)
        items = _Items(chosen, rows, rows.astype(np.int64) @ mark, speed, weight)
        sizes = rows.sum(axis=1, dtype=np.int64)
        # Cells of which fewer nodes are always as good.
        needed = [cell for limit in self.limits if limit.least > 0 for cell in limit.cells]
        free = np.flatnonzero(~np.isin(cells, needed)) if not by_weight else np.zeros(0, dtype=np.int64)
        completions = completions_of(grid_steps(speed, demand, GRID), weight, GRID, float(problem.spared[phase]))

        most = 4 * self.most
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.kernels import extend

        complete: list[Coverings] = []
        none = np.zeros(0, dtype=np.int64)
        nothing = _Labels.nothing(rows.shape[1])
        pending, fewer, last = {0: [nothing]}, nothing.some(none), 0
        label, item = np.empty(20 * most, dtype=np.int64), np.empty(20 * most, dtype=np.int64)
        while pending:
            size = min(pending)
            labels = _Labels.union(pending.pop(size)).merged(spared > 0, by_weight)
            rival = _rival_on_fewer(labels, fewer if size == last + 1 else fewer.some(none), mark, free, spared > 0)
            fewer, last = labels.replaced(fewer, rival), size
            labels = labels.some(rival < 0)
            # What the demand is exceeded by, and what must be left once the largest instance is lost.
            over = np.minimum(labels.speed - demand, (labels.left - spared) if spared else np.inf)
            instances = (labels.members >= 0).sum(axis=1)
            over[instances < len(least) - 1] = -np.inf
            full = (over >= -demand * HAIR) | np.bool_(any_amount)
            tight = full & (over < demand * HAIR)
            if full.any():
                whole = np.zeros((int(full.sum()), regions * configurations), dtype=np.int16)
                whole[:, cells] = labels.use[full][:, : len(cells)]
                members = labels.members[full]
                cost = np.where(members >= 0, columns.cost[members], 0.0).sum(axis=1)
                # The columns ascend, and a row of nothing stands for none.
                added = np.append(adds, np.zeros((1, adds.shape[1])), axis=0)[
                    np.where(members >= 0, np.searchsorted(chosen, members), len(chosen))
                ].sum(axis=1)
                of_phase = np.full(len(cost), phase, dtype=np.int64)
                complete.append(Coverings(of_phase, cost, whole, members, tight[full] & (not any_amount), added))
            labels, instances = labels.some(~full | tight), instances[~full | tight]
            if len(labels) > most or time.perf_counter() > self.deadline:
                return None
            parts = labels.speed, labels.largest, labels.weight, labels.use, instances
            count = extend(parts, speed, weight, rows, room, (demand, spared), least, completions, end, label, item)
            if count < 0:
                return None
            size_of = sizes[item[:count]]
            for more in np.unique(size_of).tolist():
                of_size = size_of == more
                longer = labels.longer(label[:count][of_size], items, item[:count][of_size], spared > 0, by_weight)
                pending.setdefault(size + more, []).append(longer)
        if not complete:
            no_use, no_members = np.zeros((0, regions * configurations), np.int16), np.zeros((0, 1), np.int64)
            return Coverings(none, np.zeros(0), no_use, no_members, np.zeros(0, np.bool_), adds[:0])
        return Coverings.union(complete)

    def of_group(self, group: UnmetGroup, slack: float) -> Coverings | None:
        """All coverings of phases that go unmet together of weight at most ``slack`` above their least."""
        problem, tables = self.problem, {p: self.near.least[p][-1] for p in group.phases}
        cover = GroupCover.of(group, tables)
        grid, end = len(cover.unmet) - 1, cover.least + slack
        joined, served = _Pieces.nothing(problem.price.size, len(open_constraints(problem))), np.ones(1)
        for p, table in tables.items():
            # A part of a step costs less than a step.
            step = table[grid] / grid if np.isfinite(table[grid]) else 0.0
            more = self._more(joined, p, cover.beside(p, table, np.arange(grid + 1)) - step, end)
            if more is None:
                return None
            first, joined = more
            served = np.minimum(served[first], joined.speed / problem.demand[p])
            light = joined.weight + group.cost(np.maximum(0.0, 1.0 - served)) <= end * (1 + HAIR)
            light &= (joined.coverings.use <= self._most_nodes()).all(axis=1)
            joined, served = joined.some(light), served[light]
        whole = joined.coverings
        phase = np.full(len(whole), group.phases[0], dtype=np.int64)
        return replace(whole, phase=phase, cost=whole.cost + group.cost(np.maximum(0.0, 1.0 - served)))

    def of_surviving(self, phase: int, end: float) -> Coverings | None:
        """All coverings of a phase up to a weight that survive the loss of any region."""
        problem, near, regions = self.problem, self.near, range(len(self.problem.region_names))
        demand, needed = float(problem.demand[phase]), problem.surviving[phase]
        mine = self.columns.phase[near.chosen] == phase
        steps = grid_steps(problem.throughput[self.columns.template[near.chosen]], demand, SURVIVING_GRID)
        here = [mine & (self.columns.region[near.chosen] == r) for r in regions]
        tables = [least_weights(steps[some], near.weight[some], SURVIVING_GRID) for some in here]
        cover = surviving_cover(tables, (needed * SURVIVING_GRID).astype(np.int64))
        amounts = np.arange(SURVIVING_GRID + 1)
        joined, speed = _Pieces.nothing(problem.price.size, len(open_constraints(problem))), np.zeros((1, 0))
        for r in regions:
            more = self._more(joined, phase, cover.with_one(r, amounts, np.zeros(len(amounts))), end, r)
            if more is None:
                return None
            first, joined = more
            speed = np.column_stack([speed[first], joined.speed])
            if r == len(tables) - 2:
                # What is missing is up to the last region, but for what must be left without it.
                total = speed.sum(axis=1)
                missing = np.maximum(demand - total, (needed[:-1] * demand - (total[:, None] - speed)).max(axis=1))
                least = tables[-1][
                    np.clip(np.ceil(missing / demand * SURVIVING_GRID - 1e-6), 0, SURVIVING_GRID).astype(int)
                ]
                light = (joined.weight + least <= end) & (total >= needed[-1] * demand * (1 - HAIR))
                joined, speed = joined.some(light), speed[light]
        total = speed.sum(axis=1)
        over = np.minimum(total - demand, (total[:, None] - speed - needed * demand).min(axis=1))
        whole = replace(joined.coverings, tight=np.abs(over) < demand * HAIR)
        return whole.some((over >= -demand * HAIR) & (joined.weight <= end))

    def _more(
        self, first: _Pieces, phase: int, beside: Floats, end: float, region: int | None = None
    ) -> tuple[Ints, _Pieces] | None:
        """Partial coverings of a phase, in one region or everywhere, beside each of others, up to a weight.

        Args:
            first: The others.
            phase: The model phase.
            beside: float64 (G + 1,), what stands beside so many steps of it weighs at least.
            end: USD/h, the weight.
            region: The region.

        Returns:
            Which of the others, and both together; ``None`` where these are too many.
        """
        own = self.of_phase(phase, beside[None, ::-1], end, any_amount=True, region=region)
        if own is None:
            return None
        each, there = np.zeros(len(self.columns)), own.members >= 0
        each[self.near.chosen] = self.near.weight
        weight = np.where(there, each[own.members], 0.0).sum(axis=1)
        speed = np.where(there, self.problem.throughput[self.columns.template[own.members]], 0.0).sum(axis=1)
        order = np.argsort(weight, kind="stable")
        count = np.searchsorted(weight[order], end - first.weight, side="right")
        if count.sum() > MOST_PAIRS:
            return None
        a = np.repeat(np.arange(len(count)), count)
        b = order[np.arange(len(a)) - np.repeat(np.cumsum(count) - count, count)]
        one, other = first.coverings.some(a), own.some(b)
        both = Coverings(
            other.phase,
            one.cost + other.cost,
            one.use + other.use,
            np.concatenate([one.members, other.members], axis=1),
            one.tight | other.tight,
            one.adds + other.adds,
        )
        return a, _Pieces(both, first.weight[a] + weight[b], speed[b])

    def _most_nodes(self) -> Ints:
        """int64 (R * C,): nodes that there are, within the limits."""
        pool = self.problem.availability.ravel().copy()
        for limit in self.limits:
            limit.narrow(pool)
        return pool


def _rival_on_fewer(labels: _Labels, fewer: _Labels, mark: Ints, free: Ints, spared: bool) -> Ints:
    """int64 (n,): a row of ``fewer``, sorted by mark, that may stand for each on one node of a ``free`` cell less; or -1.

    It is no slower, and neither is it without its largest instance where that may be lost (``spared``): the fastest such.
    """
    rival = np.full(len(labels), -1, dtype=np.int64)
    left, left_of_fewer = labels.left, fewer.left
    for cell in free.tolist() if len(fewer) else ():
        some = np.flatnonzero(labels.use[:, cell] > 0)
        wanted = labels.mark[some] - mark[cell]
        at = np.searchsorted(fewer.mark, wanted)
        while len(some):
            hit = fewer.mark[np.minimum(at, len(fewer) - 1)] == wanted
            hit &= at < len(fewer)
            some, at, wanted = some[hit], at[hit], wanted[hit]
            same = labels.use[some].copy()
            same[:, cell] -= 1
            better = (same == fewer.use[at]).all(axis=1) & (fewer.speed[at] >= labels.speed[some])
            if spared:
                better &= left_of_fewer[at] >= left[some]
            better &= (rival[some] < 0) | (fewer.speed[at] > fewer.speed[rival[some]])
            rival[some[better]] = at[better]
            at = at + 1
    return rival


def _undominated(coverings: Coverings, beside: Sequence[int]) -> Coverings:
    """Without those of one phase that another replaces. What only seems to cover the demand replaces nothing.

    ``beside`` are the side constraints whose sums the nodes do not tell.
    """
    from coralopt.allocation.bounds.kernels import undominated_rows

    order = np.lexsort((coverings.use.sum(axis=1), coverings.cost))
    ordered = coverings.some(order)
    sure = np.flatnonzero(~ordered.tight)
    keep = np.ones(len(ordered), dtype=np.bool_)
    use = np.concatenate([ordered.use[sure], ordered.adds[sure][:, beside].astype(np.int16)], axis=1)
    keep[sure] = undominated_rows(use, ordered.cost[sure])
    return ordered.some(keep)
