"""The search for the cheapest design of each model: some that holds first, then cheaper ones, while windows are left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.planning.promise.capacities import FARTHER, HALFWAY, PARTS, PRICE_TOLERANCE, Place, tighten
from coralopt.planning.promise.designs import MOST_TIMES, REPLICATIONS_A_WINDOW, Designs, Way
from coralopt.types import Floats

#: Covers of one phase looked at at once, and replications about the groups of one phase ahead of that, at most.
MOST_COVERS, REPLICATIONS = 60, (12, 90)
#: Where none of those is left, covers that hold so many times the demand.
ROOMS = (1.25, 1.5, 2.0, 3.0)
#: A design that is to hold whatever it costs gets more instances so often, twice as many more each time; and so many groups
#: with more room are asked whether they hold all.
RAISES, ROOMIER = 6, 5
#: How often what is left of all windows is shared out anew, and what is too little for another design.
ROUNDS, TOO_FEW = 3, 4
#: Designs with different groups of the other phases, after which groups that failed in all of them are left out.
FAILURES = {"prefill": 2, "decode": 4, "mixed": 1}

#: Price, USD/h, groups and groups by phase.
Combination = tuple[float, tuple[Place, ...], tuple[tuple[Place, ...], ...]]


@dataclass(frozen=True, eq=False)
class DesignSearch:
    """The search for the cheapest design of each model.

    Attributes:
        designs: What is known of designs; those that are simulated are known there afterwards.
    """

    designs: Designs

    def search(self, models: Sequence[str] | None = None) -> None:
        """Find for each model that asks for a share, or of some, the cheapest design that holds, if there is any.

        Each gets some design that holds first. Then windows are shared out by what each model's could still cost less, until
        the cheapest of every model is known or the windows are used up.
        """
        designs, models = self.designs, self.some_of_each(models)
        models = [model for model in models if min(map(designs.cost, designs.ways_in_regions(model))) < math.inf]
        # A window of many requests takes longer than one of few.
        requests = {model: designs.requests(model) for model in designs.raced}
        total = sum(designs.windows(model) * each for model, each in requests.items())
        total += sum(designs.spent(model) * requests[model] for model in models)
        open_ = models
        for _ in range(ROUNDS):
            gain = {
                model: designs.ceiling(model) - min(map(designs.bound, designs.ways_in_regions(model)))
                for model in open_
            }
            left = total - sum(designs.spent(model) * requests[model] for model in models)
            share = {model: left / requests[model] * gain[model] / (sum(gain.values()) or 1.0) for model in open_}
            open_ = [model for model in open_ if share[model] >= TOO_FEW]
            wanted = [(model, designs.spent(model) + share[model]) for model in open_]
            ended = designs.races.workers.map(lambda one: self._cheaper(*one), wanted)
            open_ = [model for model, known in zip(open_, ended, strict=True) if not known]

    def some_of_each(self, models: Sequence[str] | None = None) -> list[str]:
        """Find some design of each model that asks for a share, and name these models: nothing is asked of the others."""
        models = [
            model for model in (self.designs.ways if models is None else models) if self.designs.ways_in_regions(model)
        ]
        self.designs.races.workers.map(self._first, models)
        return models

    def _first(self, model: str) -> None:
        """A design that holds, found soon: the cheapest groups, with more and more instances where they fail."""
        designs = self.designs
        ways = designs.ways_in_regions(model)
        if all(math.isinf(designs.cost(way)) for way in ways):
            # Every phase has groups that hold it, but in different regions.
            self.tighten(model, REPLICATIONS[0])
        for way in sorted(ways, key=designs.cost):
            if math.isfinite(designs.cost(way)) and self._first_of(model, way):
                return

    def tighten(self, model: str, replications: float = REPLICATIONS[1]) -> None:
        """Find out what decides the cheapest covers of a model's phases in each region, in so many replications each."""
        for way in sorted(self.designs.ways_in_regions(model), key=self.designs.bound):
            for p in way.phases:
                self._tighten(p, way.region, replications)

    def _tighten(self, p: int, region: int, replications: float, spare: float | None = None) -> None:
        groups, price, tell = self.designs.groups[p], self.designs.price_in(p, region), self.designs.races.workers.tell
        tighten(groups, price, 0.0, tell, spare, replications)

    def _first_of(self, model: str, way: Way) -> bool:
        """The same in one way; whether there was one."""
        designs = self.designs
        covers = [
            [(p, j) for j in self._covers(p, way.region, designs.least_of(p, way.region), 1)[0][1]] for p in way.phases
        ]
        if not designs.room.fits(tuple(itertools.chain(*covers)))[way.region]:
            # The phases want the same nodes.
            beside = self._combinations(way, MOST_TIMES * designs.cost(way), REPLICATIONS[1])
            covers = [list(cover) for cover in min(beside)[1]] if beside else covers
        for turn in range(RAISES + 1):
            groups = tuple(itertools.chain(*covers))
            if not designs.room.fits(groups)[way.region]:
                return False
            failed = designs.missed(model, way, groups)
            if not failed:
                return True
            for cover in covers:
                # Caches that come too late ask for more nodes that send them, too.
                if self._kind(cover) in {*failed, "mixed"} or (turn and "decode" in failed):
                    self._raise(way.region, cover, 2**turn)
        return False

    def _raise(self, region: int, cover: list[Place], more: int) -> None:
        """More instances of the group that does most; where there are none, a cheap group with twice its room instead."""
        p = cover[0][0]
        groups, price = self.designs.groups[p], self.designs.price_in(p, region)
        k = max(range(len(cover)), key=lambda k: int(groups.least[cover[k][1]]))
        j = cover[k][1]
        last = int(np.flatnonzero((groups.template == groups.template[j]) & np.isfinite(price))[-1])
        if j < last:
            cover[k] = p, min(j + more, last)
            return
        tokens = groups.oracle.templates.throughput[groups.template] * groups.count
        roomier = np.flatnonzero((tokens >= 2 * tokens[j]) & (groups.most == PARTS) & np.isfinite(price))
        for other in roomier[np.argsort(price[roomier], kind="stable")][:ROOMIER].tolist():
            groups.find_out(other, PARTS)
            if groups.least[other] == PARTS:
                cover[:] = [(p, other)]
                return

    def _cheaper(self, model: str, most_windows: float) -> bool:
        """Look for cheaper designs that hold; whether all were looked at before so many windows were asked for.

        Looked at is what is cheapest with one cover of the best design, once for each cover; then what costs about half of
        what is between the least and the best, and after a failure what costs more. Covers that fail with several others
        come again once nothing else is left.
        """
        designs = self.designs
        ways, kept = designs.ways_in_regions(model), set[tuple[tuple[Place, ...], int]]()
        least, farther = min(map(designs.cost, ways)), HALFWAY
        failures: dict[tuple[Place, ...], int] = {}
        patience = 1
        while True:
            ceiling = designs.ceiling(model) * (1 - PRICE_TOLERANCE)
            open_: list[Combination] = []
            left_out = False
            ways.sort(key=designs.cost)
            looks = itertools.product((1.0,), ways, REPLICATIONS), itertools.product(ROOMS, ways, REPLICATIONS[:1])
            for room, way, replications in itertools.chain(*looks):
                left = (most_windows - designs.spent(model)) * REPLICATIONS_A_WINDOW / len(way.phases)
                for price, covers in self._combinations(way, ceiling, min(replications, left), room):
                    groups = tuple(itertools.chain(*covers))
                    if designs.was_raced(groups):
                        continue
                    if any(failures.get(cover, 0) >= patience * FAILURES[self._kind(cover)] for cover in covers):
                        left_out = True
                    else:
                        open_.append((price, groups, covers))
                if open_ or designs.spent(model) >= most_windows:
                    break
            if designs.spent(model) >= most_windows:
                return not open_ and not left_out
            if not open_:
                if not left_out:
                    return True
                patience *= 2
                continue
            designs.races.workers.tell(f"designs of {model}", int(designs.spent(model)), int(most_windows))
            aim = least + farther * (ceiling - least)
            near = self._near_best(model, open_, kept)
            _, groups, covers = near or min(open_, key=lambda item: abs(item[0] - aim))
            failed = designs.missed(model, way, groups)
            if not failed:
                farther = HALFWAY
                # With other groups they do hold.
                for cover in covers:
                    failures.pop(cover, None)
                continue
            if near is None:
                farther += FARTHER * (1 - farther)
            for cover in covers:
                if self._kind(cover) in {*failed, "mixed"}:
                    failures[cover] = failures.get(cover, 0) + 1

    def _near_best(
        self, model: str, open_: Sequence[Combination], kept: set[tuple[tuple[Place, ...], int]]
    ) -> Combination | None:
        """The cheapest combination that has the best design's cover of one phase, where that was not looked at yet."""
        best = self.designs.best(model)
        for k in range(0 if best is None else len(open_[0][2])):
            if best is not None and (best.groups, k) not in kept:
                kept.add((best.groups, k))
                near = [item for item in open_ if set(item[2][k]) <= set(best.groups)]
                if near:
                    return min(near)
        return None

    def _covers(
        self, p: int, region: int, most_usd_h: float, count: int, room: float = 1.0
    ) -> list[tuple[float, tuple[int, ...]]]:
        """Covers of a phase for at most some price, cheapest first."""
        groups, price = self.designs.groups[p], self.designs.price_in(p, region)
        return groups.cheapest_covers(price, most_usd_h * (1 + PRICE_TOLERANCE), count, room)

    def _kind(self, cover: Sequence[Place]) -> str:
        return self.designs.scenario.model_phases[cover[0][0]].phase

    def _combinations(
        self, way: Way, most_usd_h: float, replications: float, room: float = 1.0
    ) -> list[tuple[float, tuple[tuple[Place, ...], ...]]]:
        """Price and groups of each phase of a way that cover it, where there is room for all of them, for at most a price.

        Of each phase groups are simulated by themselves first, in so many replications at most; covers hold so many times
        the demand.
        """
        designs = self.designs
        spare, has = most_usd_h - designs.cost(way), designs.room.has[way.region]

        def covers_of(p: int) -> list[tuple[float, tuple[Place, ...], Floats]]:
            self._tighten(p, way.region, replications, spare)
            covers = self._covers(p, way.region, designs.least_of(p, way.region) + spare, MOST_COVERS, room)
            places = [(cost, tuple((p, j) for j in cover)) for cost, cover in covers]
            return [(cost, cover, designs.room.needs(cover)[way.region]) for cost, cover in places]

        if spare < 0:
            return []
        priced: list[tuple[float, tuple[tuple[Place, ...], ...]]] = []
        for chosen in itertools.product(*designs.races.workers.map(covers_of, way.phases)):
            cost = sum(own for own, _, _ in chosen)
            if cost <= most_usd_h and (sum(needs for _, _, needs in chosen) <= has).all():
                priced.append((cost, tuple(cover for _, cover, _ in chosen)))
        return priced
