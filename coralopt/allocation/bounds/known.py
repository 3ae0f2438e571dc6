"""Coverings that are known to fit, in arrays: what the lightest of each phase weighs is one look at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.allocation.bounds.pricing import Covering
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class _Members:
    """Instances of some coverings, one after the other, none of which is empty.

    Attributes:
        column: int64 (k,), their columns.
        count: float64 (k,), how many of each.
        start: int64 (n,), where each covering begins.
    """

    column: Ints
    count: Floats
    start: Ints

    @staticmethod
    def of(coverings: Sequence[Covering]) -> _Members:
        """Those of coverings, of which there is at least one."""
        pairs = np.array([pair for covering in coverings for pair in covering.members], dtype=np.int64)
        lengths = [len(covering.members) for covering in coverings]
        return _Members(pairs[:, 0], pairs[:, 1].astype(np.float64), np.cumsum([0, *lengths[:-1]]))

    def sums(self, each: Floats) -> Floats:
        """float64 (n,): of what one instance adds, float64 (k,)."""
        return np.add.reduceat(each * self.count, self.start)


@dataclass(frozen=True, eq=False)
class _Block:
    """What one call added.

    Attributes:
        phase: int64 (n,), their model phases.
        place: int64 (k,), positions of the members' columns among those that take part.
        members: Their members.
        cuts: float64 (n, K), what each adds as a whole to cuts.
    """

    phase: Ints
    place: Ints
    members: _Members
    cuts: Floats


class KnownCoverings:
    """Coverings over some columns that fit and serve their phase's demand.

    Args:
        problem: The problem.
        columns: Its columns.
        chosen: int64 (c,), those that take part, in ascending order.
    """

    def __init__(self, problem: AllocationProblem, columns: Columns, chosen: Ints) -> None:
        self.problem, self.columns, self.chosen = problem, columns, chosen
        self._blocks: list[_Block] = []

    def add(self, coverings: Sequence[Covering], cuts: Floats) -> None:
        """Remember coverings that fit, but for those that miss their demand or use other columns.

        Args:
            coverings: The coverings.
            cuts: float64 (n, K), what each adds as a whole to cuts.
        """
        if not len(coverings) or not len(self.chosen):
            return
        members = _Members.of(coverings)
        ours = np.logical_and.reduceat(np.isin(members.column, self.chosen), members.start)
        good = np.flatnonzero(ours & serving(self.problem, self.columns, coverings))
        if len(good):
            members = _Members.of([coverings[k] for k in good.tolist()])
            phase = np.array([coverings[k].phase for k in good.tolist()])
            self._blocks.append(_Block(phase, np.searchsorted(self.chosen, members.column), members, cuts[good]))

    def lightest(self, weight: Floats, price: Floats) -> Floats:
        """float64 (P,), USD/h: what the lightest known covering of each phase weighs; infinite where none is known.

        Args:
            weight: float64 (c,), USD/h, of the columns that take part, without cuts.
            price: float64 (K,), USD/h, of the cuts.
        """
        least = np.full(len(self.problem.demand), np.inf)
        for block in self._blocks:
            np.minimum.at(least, block.phase, block.members.sums(weight[block.place]) + block.cuts @ price)
        return least


def serving(problem: AllocationProblem, columns: Columns, coverings: Sequence[Covering]) -> Bools:
    """bool (n,): which coverings serve their phase's demand; those that a rounded grid gave may miss it."""
    members = _Members.of(coverings)
    speed = problem.throughput[columns.template[members.column]].astype(np.float64)
    return np.asarray(members.sums(speed) >= problem.demand[[covering.phase for covering in coverings]])
