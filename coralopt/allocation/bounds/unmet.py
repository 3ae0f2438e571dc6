r"""The least weight of what serves model phases that go unmet together, and of what they leave unmet.

The phases of a group leave the same share s of their demands unmet, at a convex cost c(s) for all of them. With covering
tables W_p of the phases (least weight of instances that give so many of G steps of the demand), the group weighs at least::

    D = min over a  of  sum_p W_p(a) + c(1 - (a + 1) / G),   and c(0) in place of the last term where a = G

since an allocation that leaves s unmet covers a = floor((1 - s) G) steps of every phase, and s > 1 - (a + 1) / G. Prices
of unmet demand that the phases share between them say less: each of them would leave a share of its own.

With an instance of phase p the minimum is over the rest of p instead. There the amounts are looked at in blocks, each with
the least total of the others and the least amount: still a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Floats, Ints

#: Blocks of amounts, and sizes of instances, that are told apart where one instance is forced.
BLOCKS, SIZES = 2_000, 8_000


@dataclass(frozen=True)
class UnmetGroup:
    """Model phases that go unmet together.

    Attributes:
        phases: Those with demand.
        tiers: (USD/h of all their demand at the tier's price, share of it that may go unmet at this price), cheapest first.
    """

    phases: tuple[int, ...]
    tiers: tuple[tuple[float, float], ...]

    def cost(self, share: Floats) -> Floats:
        """USD/h of these shares unmet."""
        total, below = np.zeros_like(share), 0.0
        for usd_h, width in self.tiers:
            total += usd_h * np.clip(share - below, 0.0, width)
            below += width
        return total

    def least_cost(self, grid: int) -> Floats:
        """float64 (G + 1,): USD/h at least, where so many whole steps are served."""
        share = np.maximum(0.0, 1.0 - (np.arange(grid + 1) + 1.0) / grid)
        return self.cost(share) * (1 - 1e-12)


def priced_groups(problem: AllocationProblem, unmet: Floats) -> tuple[UnmetGroup, ...]:
    """Groups with a price.

    Args:
        problem: The problem.
        unmet: float64 (P,), USD/h for one token/s of unmet demand.
    """
    groups = []
    for group in dict.fromkeys(group for group, _, _ in problem.unmet_groups()):
        needed = tuple(p for p in group if problem.demand[p] > 0)
        if needed:
            usd_h = float(sum(unmet[p] * problem.demand[p] for p in needed))
            tiers = problem.tiers_of(group[0])
            groups.append(UnmetGroup(needed, tuple((factor * usd_h, share) for share, factor in tiers)))
    return tuple(groups)


def shared_groups(problem: AllocationProblem, unmet: Floats) -> tuple[UnmetGroup, ...]:
    """Those but for phases with routes and those that some instance may be lost from."""
    routed = {p for model in problem.routes for p in model.phases}
    return tuple(
        group
        for group in priced_groups(problem, unmet)
        if not routed & set(group.phases) and not problem.spared[list(group.phases)].any()
    )


@dataclass(frozen=True, eq=False)
class GroupCover:
    """What serves a group, and leaves some of it unmet, at least weight.

    Attributes:
        least: USD/h; infinite where nothing does.
        amount: Steps of every phase in the best combination.
        tables: Phase -> float64 (G + 1,), its covering table.
        unmet: float64 (G + 1,), USD/h at least for what is unmet beside so many steps.
    """

    least: float
    amount: int
    tables: Mapping[int, Floats]
    unmet: Floats

    @staticmethod
    def of(group: UnmetGroup, tables: Mapping[int, Floats]) -> GroupCover:
        """From covering tables of its phases."""
        unmet = group.least_cost(len(tables[group.phases[0]]) - 1)
        total = reduce(np.add, (tables[p] for p in group.phases), unmet)
        amount = int(np.argmin(total))
        return GroupCover(float(total[amount]), amount, tables, unmet)

    def beside(self, phase: int, rest: Floats, steps: Ints) -> Floats:
        """float64 (n,): least weight of everything beside one more instance of a phase that covers so many steps.

        Args:
            phase: One of the group.
            rest: float64 (G + 1,), covering table of the phase's other instances.
            steps: int64 (n,).
        """
        from coralopt.allocation.bounds.kernels import least_beside

        grid = len(rest) - 1
        others = reduce(np.add, (table for p, table in self.tables.items() if p != phase), self.unmet)
        first = np.unique(np.append(np.linspace(0, grid, BLOCKS).astype(np.int64), 1))
        least = np.minimum.reduceat(others, first)
        unit = max(1, grid // SIZES)
        sizes, back = np.unique(np.minimum(-(-steps // unit) * unit, grid), return_inverse=True)
        weights = least_beside(sizes, first, least, rest)
        return np.asarray(weights[back])
