"""What a node of the tree (module ``branching``) is split by: how many nodes of a kind a model phase uses.

Every number of nodes that the master programme splits is weighed by how far both of its children would lift the bound, up
to the target: the product of both. A child costs so much more over the coverings that the master knows (strong branching):
more than over all coverings, and less than a bound that knows which coverings fit. Where the tree has split the same number
before, it is the mean of that and of what its children did lift on average (pseudo-costs). Averages alone say nothing of a
node whose optimum shifts between phases at no cost, and most nodes of a tree may be of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit
from coralopt.allocation.bounds.decomposition import Decomposition
from coralopt.allocation.bounds.mix import KnownMaster
from coralopt.allocation.problem import AllocationProblem

#: Least distance from a whole number of nodes that counts as split.
SPLIT = 1e-4
#: Splits of each kind that are weighed.
CANDIDATES = 24
#: From so many regions on nodes are counted over all of them, too. In fewer, limits of one region say more: coverings that
#: fit hold each cell to what it may be, the sum of several only in prices.
MANY_REGIONS = 4
#: Of the simplex method, for one child: where many regions tie, it needs hundreds.
PIVOTS = 80
#: Least share of the way to the target that counts: one child that gains nothing must not make the other one worthless.
LEAST = 1e-5


@dataclass(frozen=True)
class Side:
    """One child of a split: a model phase uses at least, or at most, so many nodes of some cells together."""

    phase: int
    cells: tuple[int, ...]
    nodes: int
    least: bool

    def within(
        self, problem: AllocationProblem, limits: tuple[NodeLimit, ...]
    ) -> tuple[tuple[NodeLimit, ...], NodeLimit]:
        """Limits and this one, and the limit that it makes."""
        old = next((limit for limit in limits if limit.phase == self.phase and limit.cells == self.cells), None)
        there = int(problem.availability.ravel()[list(self.cells)].sum())
        least, most = (0, there) if old is None else (old.least, old.most)
        place = len(limits) if old is None else limits.index(old)
        least, most = (max(least, self.nodes), most) if self.least else (least, min(most, self.nodes))
        new = NodeLimit(self.phase, self.cells, least, most)
        return (*limits[:place], new, *limits[place + 1 :]), new


@dataclass(frozen=True)
class Split:
    """A model phase uses so many nodes of some cells together, which is no whole number."""

    phase: int
    cells: tuple[int, ...]
    value: float

    def sides(self) -> tuple[Side, Side]:
        """No more than that, and no less."""
        low = int(np.floor(self.value))
        return Side(self.phase, self.cells, low, False), Side(self.phase, self.cells, low + 1, True)


@dataclass(frozen=True)
class Rises:
    """By how much children lifted the bound over their parents', by phase, cells and side: sum of USD/h, and how many."""

    known: dict[tuple[int, tuple[int, ...], bool], tuple[float, int]] = field(default_factory=dict)

    def add(self, side: Side, rise: float) -> None:
        """One more child."""
        key = side.phase, side.cells, side.least
        total, count = self.known.get(key, (0.0, 0))
        self.known[key] = total + rise, count + 1

    def mean(self, side: Side) -> float | None:
        """USD/h, what children like this one lifted on average; ``None`` where there were none."""
        total, count = self.known.get((side.phase, side.cells, side.least), (0.0, 0))
        return total / count if count else None

    def so_far(self) -> Rises:
        """What is known now."""
        return Rises(dict(self.known))


def best_split(
    problem: AllocationProblem, limits: Sequence[NodeLimit], master: Decomposition, rises: Rises, slack: float
) -> Split | None:
    """The split whose children lift the bound most.

    Args:
        problem: The problem.
        limits: Those of the node.
        master: Its master programme.
        rises: What splits of other nodes did.
        slack: USD/h from its bound to the target.
    """
    known = KnownMaster.of(problem, limits, master.state.coverings, master.state.capacity_prices)
    # What lifts more than the slack is no better for it, and where pivots are many they lift little.
    known = replace(known, enough=slack, pivots=PIVOTS)

    def share(lifted: float) -> float:
        return min(max(lifted / slack, LEAST), 1.0)

    def rise(side: Side) -> float:
        costs, mean = known.at_least if side.least else known.at_most, rises.mean(side)
        here = share(costs(side.phase, side.cells, side.nodes))
        return here if mean is None else (here + share(mean)) / 2

    best, highest = None, 0.0
    for split in _splits(problem, limits, master):
        product = 1.0
        for side in split.sides():
            if product <= highest:
                # Whatever the other side lifts, this split is no better.
                break
            product *= rise(side)
        if product > highest:
            best, highest = split, product
    return best


def _splits(problem: AllocationProblem, limits: Sequence[NodeLimit], master: Decomposition) -> list[Split]:
    """Of each kind those that split most, by what the nodes are worth."""
    mean = master.mean_use[:, : problem.price.size]
    worth = np.nan_to_num(problem.price).ravel() + master.state.capacity_prices.ravel()
    settled = {
        (limit.phase, limit.cells)
        for limit in limits
        # Where a limit holds only within rounding there is nothing to split.
        if limit.least == limit.most or not limit.least <= float(limit.counted(mean[limit.phase])) <= limit.most
    }
    splits = []
    for kind in _countable(problem):
        value = np.stack([mean[:, list(cells)].sum(axis=1) for cells in kind])
        part = value - np.floor(value)
        split = (part > SPLIT) & (part < 1 - SPLIT)
        for k, phase in np.argwhere(split).tolist():
            split[k, phase] = (phase, kind[k]) not in settled
        least = np.array([worth[list(cells)].min() for cells in kind])
        score = np.where(split, np.minimum(part, 1 - part) * least[:, None], 0.0)
        most = np.argsort(-score, axis=None, kind="stable")[:CANDIDATES]
        for place in most[score.ravel()[most] > 0].tolist():
            k, phase = divmod(place, score.shape[1])
            splits.append(Split(phase, kind[k], float(value[k, phase])))
    return splits


def _countable(problem: AllocationProblem) -> list[list[tuple[int, ...]]]:
    """What a phase may use many or few of, by kind: nodes of a configuration in one region, and in all of them."""
    regions, configurations = problem.price.shape
    cells = np.arange(problem.price.size).reshape(regions, configurations)
    kinds: list[list[tuple[int, ...]]] = [[(cell,) for cell in cells.ravel().tolist()]]
    if regions >= MANY_REGIONS:
        kinds.append([tuple(everywhere) for everywhere in cells.T.tolist()])
    return kinds
