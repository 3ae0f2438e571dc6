"""The bound of a search with templates on demand: prices of nodes that raise it, in rounds or by branching.

At any prices of nodes and limits there is a bound over node sets of any size (:mod:`coralopt.templates.certificate`). Better
prices come from a linear programme over all ways to serve demand that were cheapest at some prices so far: a step is taken
from the best prices to those of the programme, a longer one after a step in vain (smoothing, Wentges 1997; Pessoa et al.
2018). Where some demand may go unmet, the bound is raised further by branching on the shares that do
(:mod:`coralopt.templates.unmet_branches`); prices then come from a programme whose blocks of models leave shares of one box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coralopt.allocation import Allocation
from coralopt.planning.on_demand_objective import Objective
from coralopt.templates import (
    AnySizeBounds,
    DemandBlock,
    DemandColumn,
    PricedNodes,
    ShareBox,
    ShareBranches,
    TemplateLibrary,
)
from coralopt.templates.unmet_branches import BEYOND
from coralopt.types import Floats

#: Most prices tried to raise the bound, and for boxes of shares that go unmet.
RAISES, BRANCHES = 20, 40
#: Tries in a row that do not raise the bound by a share of the gap; how far a step goes, and how much farther after each.
VAIN, SLOW, STEP, FARTHER = 3, 0.01, 0.6, 0.2
#: Share of the gap that prices can still raise the bound of a box by at most when it is halved instead; so many times.
EARLY, MOST_HALVED = 0.1, 200
#: Share of the gap asked for that may be lost by rounding before demands are cut finer.
SHORT = 0.2
#: A part of a mix, or of the cost, that counts as none.
NONE = 1e-6


@dataclass(frozen=True)
class DemandSteps:
    """How finely demands are cut.

    Attributes:
        grid: Steps of each demand.
        most: Steps at most.
        short: Share of a demand by which its cheapest instances may fall short before it is cut finer.
    """

    grid: int
    most: int
    short: float

    @staticmethod
    def of(objective: Objective, rel_gap: float) -> DemandSteps:
        """Those of an objective; rounding loses a share of the gap that is asked for at most."""
        return DemandSteps(objective.grid, objective.most_steps, SHORT * rel_gap)


class BoundSearch:
    """The highest bound over node sets of any size, and prices of nodes to try next.

    Args:
        bounds: The bounds at any prices.
        steps: How finely demands are cut.
    """

    def __init__(self, bounds: AnySizeBounds, steps: DemandSteps) -> None:
        self.bounds, self.steps = bounds, steps
        #: The bound; and prices at which it is highest.
        self.value = 0.0
        self.best: PricedNodes | None = None
        self._columns: list[DemandColumn] = []
        self._vain = 0
        # Where some demand may go unmet: bounds by shares, prices at which they are, blocks, and the box looked at.
        self._branches = ShareBranches(len(bounds.groups_unmet))
        self._duals: list[Floats] = []
        self._blocks: list[DemandBlock] = []
        self._box: ShareBox | None = None

    @property
    def best_duals(self) -> Floats:
        """Prices of nodes and limits at which the bound is highest."""
        return self.bounds.supply.free_of_charge if self.best is None else self.best.duals

    def price(self, duals: Floats) -> PricedNodes:
        """Least prices of all demand at these prices of nodes and limits."""
        duals = self.bounds.supply.above_zero(duals)
        priced = self.bounds.whole_nodes(duals, self.steps.grid, self.steps.most, self.steps.short)
        if self.best is None or priced.bound_usd_h > self.best.bound_usd_h:
            self.best = priced
        self.value = max(self.value, priced.bound_usd_h)
        self._columns += self.bounds.covers(priced)
        if self.bounds.groups_unmet:
            self._add_shares(priced)
        return priced

    def add_used(self, library: TemplateLibrary, allocation: Allocation) -> None:
        """Columns of what an allocation uses, so that the programme's cost is no higher than that."""
        phases = len(self.bounds.demand)
        used = np.zeros((phases, *self.bounds.supply.nodes.shape))
        nodes = library.usage[allocation.template] * allocation.count[:, None]
        np.add.at(used, (library.phase[allocation.template], allocation.region), nodes)
        tokens_s = library.throughput[allocation.template] * allocation.count
        served = np.bincount(library.phase[allocation.template], tokens_s, phases)
        # Columns serve a whole demand each.
        self._columns += [
            self.bounds.column(m, used[m] * max(1.0, float(self.bounds.demand[m] / served[m])))
            for m in np.flatnonzero(served).tolist()
        ]

    def shared(self) -> Floats | None:
        """Prices of the supply when the cheapest ways to serve all demands share it; ``None`` where none are known."""
        return self.bounds.programme.solve(self._columns).duals if self._columns else None

    def towards(self, ceiling: float, enough: float) -> Iterator[PricedNodes]:
        """Raise the bound, price by price.

        Args:
            ceiling: Cost of the best allocation, USD/h.
            enough: A bound that need not be raised.

        Yields:
            Least prices at each.
        """
        for _ in range(RAISES):
            duals = None if self.value >= enough else self._raised(ceiling)
            if duals is None:
                break
            before = self.value
            yield self.price(duals)
            self._count(before, ceiling)
        self._vain = 0
        for _ in range(BRANCHES if self._branches.prices else 0):
            duals = self._branched(ceiling, enough)
            if duals is None:
                break
            yield self.price(duals)

    def _raised(self, ceiling: float) -> Floats | None:
        """Prices that may raise the bound; ``None`` where the last ones did not, or it is near what prices can prove."""
        near, mix = SLOW * (ceiling - self.value), self.bounds.programme.solve(self._columns)
        if self._vain == VAIN or (mix.short <= 0 and mix.usd_h - self.value <= near):
            return None
        return self._step(self.best_duals, mix.duals)

    def _step(self, duals: Floats, aim: Floats) -> Floats:
        """Prices on the way to others."""
        step = min(1.0, STEP + FARTHER * self._vain)
        return (1 - step) * duals + step * aim

    def _count(self, before: float, ceiling: float) -> None:
        """Count tries in vain."""
        self._vain = 0 if self.value - before > SLOW * (ceiling - self.value) else self._vain + 1

    def _branched(self, ceiling: float, enough: float) -> Floats | None:
        """Branch on the shares that go unmet: prices that the box of the least bound lacks, ``None`` where none help."""
        before = self.value
        for _ in range(MOST_HALVED):
            box = self._box = self._branches.least(enough)
            self.value = max(self.value, box.bound_usd_h)
            if self.value >= enough - NONE * abs(enough):
                break
            groups, inside = self.bounds.groups_unmet, self._blocks_of(box)
            mix = self.bounds.programme.solve(self._columns, inside)
            self._count(before, ceiling)
            promising = mix.short > 0 or mix.usd_h - box.bound_usd_h > EARLY * (ceiling - box.bound_usd_h)
            if promising and self._vain <= VAIN:
                return self._step(self._duals[box.best], mix.duals)
            mixed, self._vain = _most_mixed(inside, mix.blocks), 0
            if mixed is None:
                break
            self._branches.halve(box, groups.index(mixed[0]), mixed[1])
        return None

    def _blocks_of(self, box: ShareBox) -> list[DemandBlock]:
        """Blocks whose shares are in a box, of every group one at least."""
        assert self.best is not None
        for i, group in enumerate(self.bounds.groups_unmet):
            if not any(block.group == group and box.holds(i, block.share) for block in self._blocks):
                self._blocks.append(self.bounds.block(self.best, group, box.share[box.best][i]))
        groups = self.bounds.groups_unmet
        return [block for block in self._blocks if box.holds(groups.index(block.group), block.share)]

    def _add_shares(self, priced: PricedNodes) -> None:
        """Prices by shares, and blocks of those shares that are best at them: of all, and within the box looked at."""
        prices = self.bounds.shares(priced)
        for i, group in enumerate(self.bounds.groups_unmet):
            ranges = {(Fraction(0), BEYOND)}
            if self._box is not None:
                ranges.add((self._box.low[i], self._box.high[i]))
            shares = {prices.least(i, *within)[1] for within in ranges}
            self._blocks += [self.bounds.block(priced, group, share) for share in sorted(shares)]
        self._branches.prices.append(prices)
        self._duals.append(priced.duals)


def _most_mixed(blocks: Sequence[DemandBlock], parts: Floats) -> tuple[int, Fraction] | None:
    """The group whose blocks in a mix leave the most different shares, and their mean; ``None`` if none differ."""
    several: dict[int, list[tuple[float, float]]] = {}
    for block, part in zip(blocks, parts.tolist(), strict=True):
        if part > NONE:
            several.setdefault(block.group, []).append((float(block.share), part))
    spreads = []
    for group, mixed in several.items():
        share, part = np.array(mixed).T
        mean = float(share @ part / part.sum())
        spreads.append((float(np.abs(share - mean) @ part), group, mean))
    spread, group, mean = max(spreads, default=(0.0, 0, 0.0))
    return (group, Fraction(mean)) if spread > NONE else None
