r"""Coverings: sets of instances that meet the demand of one model phase, and all of them that could be cheap enough.

Model phases meet only in the capacity rows, so an allocation is one covering a phase whose nodes together fit into the
pool. At capacity prices lambda a covering has the weight w = cost + sum lambda U, the cheapest one D_m, and any allocation
costs at least L = sum_m D_m - sum lambda A (see :mod:`coralopt.allocation.bounds.lagrangian`). An allocation that uses a
covering of weight above D_m + g costs more than L + g. So whoever looks for allocations of cost at most L + g may
forget all other coverings: :func:`near_coverings` lists those that remain.

Two coverings of a phase that use the same nodes are equal to the rest of the world, and the cheaper one stays; so does
a covering that uses no more of any node and costs no more than another. That is where the millions of near-equal
allocations go: templates cut the same nodes into instances in many ways.

Limits on sums over instances (side constraints of "most") meet phases as capacity rows do. Nodes, GPUs and USD/h follow
from the nodes that a covering uses, so coverings on the same nodes are still equal; instances and new nodes do not, and
are counted beside the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Bools, Floats, Ints

#: From so many coverings of a phase on they are not compared in pairs: few replace others that were not dropped before.
MANY = 6_000
#: Share of a demand by which a sum of throughputs may miss it and still be looked at; the exact check decides later.
HAIR = 1e-9


class _Table:
    """Arrays side by side, one row each of everything."""

    def some(self, chosen: Bools | Ints) -> Self:
        """Some rows."""
        return type(self)(*(part[chosen] for part in vars(self).values()))

    @classmethod
    def union(cls, tables: Sequence[Self]) -> Self:
        """The rows of all; where they differ in width, padded with -1."""
        return cls(
            *(_below_each_other(parts) for parts in zip(*(vars(table).values() for table in tables), strict=True))
        )


@dataclass(frozen=True, eq=False)
class Coverings(_Table):
    """Coverings of all model phases, sorted by phase.

    Attributes:
        phase: int64 (n,).
        cost: float64 (n,), USD/h.
        use: int16 (n, R * C), nodes.
        members: int64 (n, d), columns of the instances, -1 where there are fewer than d.
        tight: bool (n,), whether only exact arithmetic can tell that the demand is met.
        adds: float64 (n, S), what they add to every side constraint but those that they meet by themselves.
    """

    phase: Ints
    cost: Floats
    use: npt.NDArray[np.int16]
    members: Ints
    tight: Bools
    adds: Floats

    def __len__(self) -> int:
        return len(self.phase)

    def rows(self) -> Floats:
        """float64 (n, R * C + S): what they use of everything that there is only so much of."""
        return np.concatenate([self.use.astype(np.float64), self.adds], axis=1)


def side_adds(problem: AllocationProblem, columns: Columns, chosen: Ints) -> Floats:
    """float64 (k, S): what an instance of each chosen column adds to every side constraint but those inside coverings.

    What is asked for at least is at most so much of less than nothing.
    """
    template, region, kept = columns.template[chosen], columns.region[chosen], columns.kept[chosen]
    # Coverings that do without any one instance, or region, are made so; no row asks for that.
    parts = [
        np.zeros(len(chosen))
        if problem.inside(item)
        else item.sign * item.coefficients(problem, template, region, kept)
        for item in open_constraints(problem)
    ]
    return np.array(parts, dtype=np.float64).reshape(len(parts), len(chosen)).T


def available(problem: AllocationProblem) -> Floats:
    """float64 (R * C + S,): nodes, then bounds of side constraints; 1 where coverings meet them."""
    bounds = [1.0 if problem.inside(item) else item.sign * item.limit(problem) for item in open_constraints(problem)]
    return np.concatenate([problem.availability.ravel().astype(np.float64), bounds])


@dataclass(frozen=True)
class NodeLimit:
    """How many nodes of one kind a model phase may use.

    Attributes:
        phase: Model phase.
        cell: Region times C plus configuration.
        least: Nodes.
        most: Nodes.
    """

    phase: int
    cell: int
    least: int
    most: int


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """Some columns at capacity prices.

    Attributes:
        chosen: int64 (k,), the columns.
        weight: float64 (k,), USD/h.
        least: One float64 (G + 1,) a model phase: a lower bound on the weight that covers s of G steps of its demand.
        whole: float64 (P,), USD/h; what a covering of the whole demand weighs at least.
    """

    chosen: Ints
    weight: Floats
    least: tuple[Floats, ...]
    whole: Floats


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
        problem: The problem.
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
    phases = columns.phase[near.chosen]
    adds = side_adds(problem, columns, near.chosen)
    for p in np.flatnonzero(problem.demand > 0).tolist():
        mine = phases == p
        alone = WeightedColumns(near.chosen[mine], near.weight[mine], (near.least[p],), near.whole[[p]])
        own = [limit for limit in limits if limit.phase == p]
        ends = _Ends(float(near.whole[p]) + slack, 4 * most, deadline)
        part = _of_phase(problem, columns, p, alone, adds[mine], ends, own)
        if part is None or count + len(part) > most:
            return None
        count += len(part)
        parts.append(part)
    if any(not len(part) for part in parts):
        return parts[0].some(np.zeros(0, dtype=np.int64))
    return Coverings.union(parts)


@dataclass(frozen=True, eq=False)
class _Labels(_Table):
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
        labels = self.some(np.lexsort((-self.speed, self.mark)))
        first = np.append(True, labels.mark[1:] != labels.mark[:-1])
        # Equal marks almost surely mean equal rows; only rows that are equal may go.
        leader = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
        stays = first | (labels.use != labels.use[leader]).any(axis=1)
        if spared:
            left = labels.speed - labels.largest
            stays |= left > left[leader]
        if by_weight:
            stays |= labels.weight < labels.weight[leader]
        return labels.some(stays)


@dataclass(frozen=True)
class _Ends:
    """Where a list of coverings ends: at this weight, with so many on equally many nodes, at this time."""

    weight: float
    most: int
    deadline: float


def _of_phase(
    problem: AllocationProblem,
    columns: Columns,
    phase: int,
    near: WeightedColumns,
    adds: Floats,
    ends: _Ends,
    node_limits: Sequence[NodeLimit],
) -> Coverings | None:
    """All coverings of one phase up to a weight, but for those that another one replaces.

    Built instance by instance, those on few nodes first, so that the best way to use some nodes is known before anything
    is added. Of partial coverings on the same nodes and the same kept instances only the one that covers most is kept, those
    that cover more once the largest instance is lost, and those that are cheaper to start; none is kept if it covers no
    more than one on one node fewer. ``None`` when more than ``most`` are on equally many nodes, or time is up.
    ``adds`` is what the columns of ``near`` add to every side constraint.
    """
    chosen, weight, least = near.chosen, near.weight, near.least[0]
    pool = problem.availability.ravel().copy()
    for node_limit in node_limits:
        pool[node_limit.cell] = min(pool[node_limit.cell], node_limit.most)
    regions, configurations = problem.price.shape
    demand = float(problem.demand[phase])
    spared = float(problem.spared[phase]) * demand
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
    # And one for every sum that the nodes do not tell.
    beside = [k for k, item in enumerate(open_constraints(problem)) if item.measure in ("instances", "new_nodes")]
    most_beside = np.array([open_constraints(problem)[k].bound for k in beside], dtype=np.float64)
    rows = np.concatenate([use[:, cells], own, adds[:, beside].astype(np.int16)], axis=1)
    room = np.concatenate([pool[cells], columns.upper[chosen[kept]], np.floor(most_beside)]).astype(np.int64)
    mark = np.random.default_rng(0).integers(1, 2**62, (rows.shape[1],), dtype=np.int64)
    marks, sizes = rows.astype(np.int64) @ mark, rows.sum(axis=1, dtype=np.int64)
    # Cells of which fewer nodes are always as good.
    needed = [node_limit.cell for node_limit in node_limits if node_limit.least > 0]
    free = np.flatnonzero(~np.isin(cells, needed)) if not spared and not by_weight else np.zeros(0, dtype=np.int64)

    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.allocation.bounds.kernels import extend

    complete: list[Coverings] = []
    pending, fewer = {0: [_Labels.nothing(rows.shape[1])]}, _Labels.nothing(rows.shape[1]).some(np.zeros(0, np.int64))
    last = 0
    while pending:
        size = min(pending)
        labels = _Labels.union(pending.pop(size)).merged(spared > 0, by_weight)
        best = _best_on_fewer(labels, fewer if size == last + 1 else fewer.some(np.zeros(0, np.int64)), mark, free)
        fewer, last = replace(labels, speed=np.maximum(best, labels.speed)), size
        labels = labels.some(best < labels.speed)
        # What the demand is exceeded by, and what must be left once the largest instance is lost.
        over = np.minimum(labels.speed - demand, (labels.speed - labels.largest - spared) if spared else np.inf)
        full = over >= -demand * HAIR
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
            complete.append(Coverings(of_phase, cost, whole, members, tight[full], added))
        labels = labels.some(~full | tight)
        if len(labels) > ends.most or time.perf_counter() > ends.deadline:
            return None
        label, item = np.empty(20 * ends.most, dtype=np.int64), np.empty(20 * ends.most, dtype=np.int64)
        parts = labels.speed, labels.largest, labels.weight, labels.use
        count = extend(parts, speed, weight, rows, room, (demand, spared), least, ends.weight, label, item)
        if count < 0:
            return None
        size_of = sizes[item[:count]]
        for more in np.unique(size_of).tolist():
            a, b = label[:count][size_of == more], item[:count][size_of == more]
            longer = _Labels(
                labels.use[a] + rows[b],
                labels.mark[a] + marks[b],
                labels.speed[a] + speed[b],
                np.maximum(labels.largest[a], speed[b]),
                labels.weight[a] + weight[b],
                np.concatenate([labels.members[a], chosen[b][:, None]], axis=1),
            )
            pending.setdefault(size + more, []).append(longer.merged(spared > 0, by_weight))
    if not complete:
        cells_of_none = np.zeros((0, regions * configurations), np.int16)
        none = np.zeros(0, np.int64)
        no_members, nothing = np.zeros((0, 1), np.int64), np.zeros((0, adds.shape[1]))
        return Coverings(none, np.zeros(0), cells_of_none, no_members, np.zeros(0, np.bool_), nothing)
    # First what another one replaces may go, but only among those that use enough of what is needed.
    coverings = Coverings.union(complete)
    for node_limit in node_limits:
        coverings = coverings.some(coverings.use[:, node_limit.cell] >= node_limit.least)
    return coverings if len(coverings) > MANY else _undominated(coverings, beside)


def _best_on_fewer(labels: _Labels, fewer: _Labels, mark: Ints, free: Ints) -> Floats:
    """float64 (n,): most tokens/s of ``fewer``, sorted by mark, on the same nodes but one of a ``free`` cell; or -1."""
    best = np.full(len(labels), -1.0)
    if not len(fewer):
        return best
    for cell in free.tolist():
        some = np.flatnonzero(labels.use[:, cell] > 0)
        wanted = labels.mark[some] - mark[cell]
        at = np.minimum(np.searchsorted(fewer.mark, wanted), len(fewer) - 1)
        hit = fewer.mark[at] == wanted
        some, at = some[hit], at[hit]
        same = labels.use[some].copy()
        same[:, cell] -= 1
        equal = (same == fewer.use[at]).all(axis=1)
        best[some[equal]] = np.maximum(best[some[equal]], fewer.speed[at[equal]])
    return best


def _below_each_other(parts: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    """Rows of several, padded with -1 where they are narrower than others."""
    width = max(part.shape[-1] for part in parts)
    if parts[0].ndim == 2:
        short = [((0, 0), (0, width - part.shape[1])) for part in parts]
        parts = [
            np.pad(part, pad, constant_values=-1) if pad[1][1] else part for part, pad in zip(parts, short, strict=True)
        ]
    return np.concatenate(parts)


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
