r"""Coverings: sets of instances that meet the demand of one model phase, and all of them that could be cheap enough.

Model phases meet only in the capacity rows, so an allocation is one covering a phase whose nodes together fit into the
pool. At capacity prices lambda a covering has the weight w = cost + sum lambda U, the cheapest one D_m, and any allocation
costs at least L = sum_m D_m - sum lambda A (see :mod:`coralopt.allocation.bounds.lagrangian`). An allocation that uses a
covering of weight above D_m + g costs more than L + g. So whoever looks for allocations of cost at most L + g may
forget all other coverings: module ``listing`` lists those that remain.

Two coverings of a phase that use the same nodes are equal to the rest of the world, and the cheaper one stays; so does
a covering that uses no more of any node and costs no more than another. That is where the millions of near-equal
allocations go: templates cut the same nodes into instances in many ways.

Limits on sums over instances (side constraints of "most") meet phases as capacity rows do. Nodes, GPUs and USD/h follow
from the nodes that a covering uses, so coverings on the same nodes are still equal; instances and new nodes do not, and
are counted beside the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints
from coralopt.types import Bools, Floats, Ints

#: Share of a demand by which a sum of throughputs may miss it and still be looked at; the exact check decides later.
HAIR = 1e-9


class Table:
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
class Coverings(Table):
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


def listable(problem: AllocationProblem) -> bool:
    """Whether coverings say all, and can be listed."""
    unmet = [p for group, _, _ in problem.unmet_groups() for p in group]
    return not (problem.routes or problem.replicas[unmet].any())


@dataclass(frozen=True)
class NodeLimit:
    """How many nodes of some kinds a model phase may use, or those that go unmet together.

    Attributes:
        phase: Model phase; the first one of a group.
        cells: Of each kind, region times C plus configuration.
        least: Nodes.
        most: Nodes.
    """

    phase: int
    cells: tuple[int, ...]
    least: int
    most: int

    def counted(self, use: Floats | Ints | npt.NDArray[np.int16]) -> Floats:
        """float64 (...,), how many of these nodes are used, given (..., R * C) of all and perhaps more behind them."""
        counted: Floats = use[..., list(self.cells)].sum(axis=-1, dtype=np.float64)
        return counted

    def narrow(self, room: Floats | Ints) -> None:
        """Hold each cell of ``room``, (R * C,) and perhaps more behind them, to what all may be together; in place."""
        cells = list(self.cells)
        room[cells] = np.minimum(room[cells], self.most)


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """Some columns at capacity prices.

    Attributes:
        chosen: int64 (k,), the columns.
        weight: float64 (k,), USD/h.
        least: One float64 (K + 1, G + 1) a model phase that needs K replicas: a lower bound on the weight of at least k
            instances that cover s of G steps of its demand.
        whole: float64 (P,), USD/h; what a covering of the whole demand weighs at least.
    """

    chosen: Ints
    weight: Floats
    least: tuple[Floats, ...]
    whole: Floats


def _below_each_other(parts: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    """Rows of several, padded with -1 where they are narrower than others."""
    width = max(part.shape[-1] for part in parts)
    if parts[0].ndim == 2:
        short = [((0, 0), (0, width - part.shape[1])) for part in parts]
        parts = [
            np.pad(part, pad, constant_values=-1) if pad[1][1] else part for part, pad in zip(parts, short, strict=True)
        ]
    return np.concatenate(parts)
