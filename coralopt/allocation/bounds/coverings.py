r"""Coverings: sets of instances that meet the demand of one model phase, and all of them that could be cheap enough.

Model phases meet only in the capacity rows, so an allocation is one covering a phase whose nodes together fit into the
pool. At capacity prices lambda a covering has the weight w = cost + sum lambda U, the cheapest one D_m, and any allocation
costs at least L = sum_m D_m - sum lambda A (see :mod:`coralopt.allocation.bounds.lagrangian`). An allocation that uses a
covering of weight above D_m + g costs more than L + g. So whoever looks for allocations of cost at most L + g may
forget all other coverings: :func:`near_coverings` lists those that remain.

Two coverings of a phase that use the same nodes are equal to the rest of the world, and the cheaper one stays; so does
a covering that uses no more of any node and costs no more than another. That is where the millions of near-equal
allocations go: templates cut the same nodes into instances in many ways.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Bools, Floats, Ints

#: Share of a demand by which a sum of throughputs may miss it and still be looked at; the exact check decides later.
HAIR = 1e-9


@dataclass(frozen=True, eq=False)
class Coverings:
    """Coverings of all model phases, sorted by phase.

    Attributes:
        phase: int64 (n,).
        cost: float64 (n,), USD/h.
        use: int16 (n, R * C), nodes.
        members: int64 (n, d), columns of the instances, -1 where there are fewer than d.
        tight: bool (n,), whether only exact arithmetic can tell that the demand is met.
    """

    phase: Ints
    cost: Floats
    use: npt.NDArray[np.int16]
    members: Ints
    tight: Bools

    def __len__(self) -> int:
        return len(self.phase)

    def some(self, chosen: Bools | Ints) -> Coverings:
        """Some of them."""
        return Coverings(
            self.phase[chosen], self.cost[chosen], self.use[chosen], self.members[chosen], self.tight[chosen]
        )

    @staticmethod
    def union(parts: list[Coverings]) -> Coverings:
        """All of several."""
        width = max(part.members.shape[1] for part in parts)
        members = [
            np.pad(part.members, ((0, 0), (0, width - part.members.shape[1])), constant_values=-1) for part in parts
        ]
        return Coverings(
            np.concatenate([part.phase for part in parts]),
            np.concatenate([part.cost for part in parts]),
            np.concatenate([part.use for part in parts]),
            np.concatenate(members),
            np.concatenate([part.tight for part in parts]),
        )


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
    for p in np.flatnonzero(problem.demand > 0).tolist():
        mine = phases == p
        alone = WeightedColumns(near.chosen[mine], near.weight[mine], (near.least[p],), near.whole[[p]])
        own = [limit for limit in limits if limit.phase == p]
        part = _of_phase(problem, columns, p, alone, float(near.whole[p]) + slack, 4 * most, deadline, own)
        if part is None or count + len(part) > most:
            return None
        count += len(part)
        parts.append(part)
    if any(not len(part) for part in parts):
        return parts[0].some(np.zeros(0, dtype=np.int64))
    return Coverings.union(parts)


def _of_phase(
    problem: AllocationProblem,
    columns: Columns,
    phase: int,
    near: WeightedColumns,
    limit: float,
    most: int,
    deadline: float,
    node_limits: Sequence[NodeLimit],
) -> Coverings | None:
    """All coverings of one phase of weight at most ``limit``, but for those that another one replaces.

    Built instance by instance, breadth first. Of partial coverings on the same nodes and the same kept instances only the
    one that covers most is kept, those that cover more once the largest instance is lost, and
    those that are cheaper to start. ``None`` when more than ``most`` are of one size, or time is up.
    """
    chosen, weight, least = near.chosen, near.weight, near.least[0]
    pool = problem.availability.ravel().copy()
    for node_limit in node_limits:
        pool[node_limit.cell] = min(pool[node_limit.cell], node_limit.most)
    regions, configurations = problem.price.shape
    demand = float(problem.demand[phase])
    spared = float(problem.spared[phase]) * demand
    speed = problem.throughput[columns.template[chosen]]
    cube = np.zeros((len(chosen), regions, configurations), dtype=np.int16)
    cube[np.arange(len(chosen)), columns.region[chosen]] = problem.usage[columns.template[chosen]]
    use = cube.reshape(len(chosen), regions * configurations)
    # Only cells that matter, then one entry a kept column: two equal rows are interchangeable.
    cells = np.flatnonzero(use.any(axis=0))
    kept = np.flatnonzero(columns.kept[chosen])
    own = np.zeros((len(chosen), len(kept)), dtype=np.int16)
    own[kept, np.arange(len(kept))] = 1
    rows = np.concatenate([use[:, cells], own], axis=1)
    room = np.concatenate([pool[cells], columns.upper[chosen[kept]].astype(np.int64)])
    mark = np.random.default_rng(0).integers(1, 2**62, rows.shape[1], dtype=np.int64)
    marks = rows.astype(np.int64) @ mark

    # Imported here: compiled code is dear to load and most commands never need it.
    from coralopt.allocation.bounds.kernels import extend

    label_use = np.zeros((1, rows.shape[1]), dtype=np.int16)
    label_mark = np.zeros(1, dtype=np.int64)
    label_speed, label_largest, label_weight = np.zeros(1), np.zeros(1), np.zeros(1)
    label_members = np.empty((1, 0), dtype=np.int64)
    complete: list[Coverings] = []
    while len(label_mark):
        room_for = 20 * most
        label, item = np.empty(room_for, dtype=np.int64), np.empty(room_for, dtype=np.int64)
        labels = label_speed, label_largest, label_weight, label_use
        count = extend(labels, speed, weight, rows, room, (demand, spared), least, limit, label, item)
        if count < 0 or time.perf_counter() > deadline:
            return None
        label, item = label[:count], item[:count]
        speeds = label_speed[label] + speed[item]
        weights = label_weight[label] + weight[item]
        next_marks = label_mark[label] + marks[item]
        order = np.lexsort((-speeds, next_marks))
        label, item = label[order], item[order]
        speeds, weights, next_marks = speeds[order], weights[order], next_marks[order]
        largest = np.maximum(label_largest[label], speed[item])
        next_use = label_use[label] + rows[item]
        first = np.concatenate([[True], next_marks[1:] != next_marks[:-1]]) if len(label) else np.zeros(0, np.bool_)
        # Equal marks almost surely mean equal rows; only rows that are equal may go.
        leader = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
        stays = first | (next_use != next_use[leader]).any(axis=1)
        if spared:
            stays |= speeds - largest > (speeds - largest)[leader]
        if problem.start_penalty is not None:
            stays |= weights < weights[leader]
        label, item, label_use = label[stays], item[stays], next_use[stays]
        label_mark, label_speed, label_weight = next_marks[stays], speeds[stays], weights[stays]
        label_largest = largest[stays]
        label_members = np.concatenate([label_members[label], chosen[item][:, None]], axis=1)
        # What the demand is exceeded by, and what must be left once the largest instance is lost.
        over = np.minimum(label_speed - demand, (label_speed - label_largest - spared) if spared else np.inf)
        full = over >= -demand * HAIR
        tight = full & (over < demand * HAIR)
        if full.any():
            whole = np.zeros((int(full.sum()), regions * configurations), dtype=np.int16)
            whole[:, cells] = label_use[full][:, : len(cells)]
            complete.append(
                Coverings(
                    np.full(int(full.sum()), phase, dtype=np.int64),
                    columns.cost[label_members[full]].sum(axis=1),
                    whole,
                    label_members[full],
                    tight[full],
                )
            )
        more = ~full | tight
        label_use, label_mark, label_members = label_use[more], label_mark[more], label_members[more]
        label_speed, label_largest, label_weight = label_speed[more], label_largest[more], label_weight[more]
        if len(label_mark) > most:
            return None
    if not complete:
        cells_of_none = np.zeros((0, regions * configurations), np.int16)
        none = np.zeros(0, np.int64)
        return Coverings(none, np.zeros(0), cells_of_none, np.zeros((0, 1), np.int64), np.zeros(0, np.bool_))
    # First what another one replaces may go, but only among those that use enough of what is needed.
    coverings = Coverings.union(complete)
    for node_limit in node_limits:
        coverings = coverings.some(coverings.use[:, node_limit.cell] >= node_limit.least)
    return _undominated(coverings)


def _undominated(coverings: Coverings) -> Coverings:
    """Without those of one phase that another replaces. What only seems to cover the demand replaces nothing."""
    from coralopt.allocation.bounds.kernels import undominated_rows

    order = np.lexsort((coverings.use.sum(axis=1), coverings.cost))
    ordered = coverings.some(order)
    sure = np.flatnonzero(~ordered.tight)
    keep = np.ones(len(ordered), dtype=np.bool_)
    keep[sure] = undominated_rows(np.ascontiguousarray(ordered.use[sure]), ordered.cost[sure])
    return ordered.some(keep)
