"""The cheapest covers of all model phases, closed in replications that the phases share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coralopt.planning.promise.capacities import MOST_REPLICATIONS, Groups, Place, tighten
from coralopt.planning.promise.workers import Workers
from coralopt.types import Floats, Ints

#: Replications that all phases together may take at least: those of one model may need more than its phases' part.
FEWEST_REPLICATIONS = 2_000
#: Replications without any cover after which it is looked whether a single request in an idle pool meets the SLO.
IN_VAIN = 40
#: What tells groups that cost nothing apart while they are looked at, USD/h a GPU.
FREE_GPU = 1e-6


@dataclass(eq=False)
class CoverSearch:
    """Simulates the groups that decide what serves each phase at least cost.

    Attributes:
        groups: Groups of every model phase.
        gpus: int64 (J,) each, GPUs of every group.
        gap: Relative gap at which a cover is known well enough.
        workers: Simulate groups of several phases at once.
        at_once: Replications of a phase after which ``check`` is asked.
        check: Raises where the search is to end.
        replications_left: Replications that are left for covers of all phases together.
    """

    groups: Sequence[Groups]
    gpus: Sequence[Ints]
    gap: float
    workers: Workers
    at_once: float = math.inf
    check: Callable[[], None] = lambda: None
    replications_left: float = field(init=False)

    def __post_init__(self) -> None:
        self.replications_left = max(FEWEST_REPLICATIONS, MOST_REPLICATIONS * len(self.groups))

    @property
    def replications(self) -> Ints:
        """int64 (P,): replications made so far for each model phase."""
        return np.array([groups.oracle.replications for groups in self.groups])

    def tighten(self, prices: Mapping[int, Floats]) -> dict[int, tuple[float, float]]:
        """Bound and cost of the cheapest cover of some phases, USD/h.

        All searches together may take :data:`MOST_REPLICATIONS` a phase on average. Each phase gets half of that first; then
        they are shared out by what each cover could still cost less, until all are known or none is left.

        Args:
            prices: Phase -> float64 (J,), USD/h of each of its groups.
        """
        results = dict.fromkeys(prices, (0.0, math.inf))
        share = dict.fromkeys(
            results, min(MOST_REPLICATIONS / 2, self.replications_left / max(1, len(prices)), self.at_once)
        )
        while share:
            before = self.replications

            def search(p: int, replications: Mapping[int, float] = share) -> tuple[float, float]:
                return self.tighten_one(p, prices[p], replications[p], IN_VAIN)

            results |= zip(share, self.workers.map(search, share), strict=True)
            self.check()
            spent = self.replications - before
            self.replications_left -= int(spent.sum())
            gain = {p: results[p][1] - results[p][0] for p in share if spent[p] >= share[p]}
            gain = {p: usd_h for p, usd_h in gain.items() if self.gap * results[p][1] < usd_h < math.inf}
            left = {p: self.replications_left * gain[p] / sum(gain.values()) for p in gain}
            share = {p: min(replications, self.at_once) for p, replications in left.items() if replications >= 1}
        return results

    def tighten_one(self, p: int, prices: Floats, replications: float, in_vain: float) -> tuple[float, float]:
        """Bound and cost of one phase's cheapest cover, USD/h; of groups that cost nothing, those of few GPUs come first.

        Args:
            p: The phase.
            prices: float64 (J,), USD/h of its groups.
            replications: To simulate at most.
            in_vain: Replications after which the search ends where no cover is known.
        """
        price = np.where(prices == 0, FREE_GPU * self.gpus[p], prices)
        return tighten(self.groups[p], price, self.gap, self.workers.tell, replications=replications, in_vain=in_vain)

    def tighten_there(self, prices: Mapping[int, Floats]) -> bool:
        """Find out what decides the covers of phases where a plan has them; whether anything was simulated.

        What is cheapest anywhere may have no room for other phases of its model beside it.

        Args:
            prices: Phase -> float64 (J,), USD/h of each of its groups in the region where it is served.
        """
        before = self.replications.sum()
        replications = min(MOST_REPLICATIONS / 2, self.replications_left / max(1, len(prices)))
        self.workers.map(lambda p: self.tighten_one(p, prices[p], replications, 0), prices)
        spent = int(self.replications.sum() - before)
        self.replications_left -= spent
        return spent > 0

    def settle(self, chosen: Iterable[Place]) -> bool:
        """Simulate those of some groups of which nothing is known, at the share that they take; whether there were any."""
        unknown: dict[int, list[int]] = {}
        for p, j in chosen:
            if not self.groups[p].known[j]:
                unknown.setdefault(p, []).append(j)

        def find_out(p: int) -> None:
            groups = self.groups[p]
            for j in unknown[p]:
                self.workers.tell(f"capacities of {groups.oracle.phase.key}", groups.oracle.replications, 0)
                groups.settle(j)

        self.workers.map(find_out, unknown)
        return bool(unknown)
