"""Designs of a model: groups for each of its phases that hold its SLOs together.

What one phase does to another is in no group's capacity, so designs are simulated. Where KV caches arrive too late, the same
nodes are simulated as pipelines too, whose nodes each send a part of every cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from coralopt.plan import PlannedInstance
from coralopt.planning.promise.capacities import PARTS, Groups, Place
from coralopt.planning.promise.instances import GroupPart
from coralopt.planning.promise.room import Room
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.scenario.resolved import ResolvedScenario, ways_of
from coralopt.types import Floats

#: Of a model without any design those are looked at that cost at most so many times what the cheapest groups do.
MOST_TIMES = 2.0
#: Windows that the search for cheaper designs of a model may simulate on average, and as many for its bound: at least, or
#: more while all of them have so many requests, of which each window counts as some more than it has.
FEWEST_WINDOWS, REQUESTS, A_WINDOW = 120, 750_000, 500
#: What settling may take for a model where the gap is open, in the same requests.
REQUESTS_TO_SETTLE = 3_000_000
#: Replications that count as one window.
REPLICATIONS_A_WINDOW = 4


@dataclass(frozen=True)
class Way:
    """Phases that serve the requests of a model, in one region.

    Attributes:
        phases: ``(mixed,)`` or ``(prefill, decode)``, by position.
        region: Where their groups stand.
    """

    phases: tuple[int, ...]
    region: int


@dataclass(frozen=True, eq=False)
class Design:
    """Groups in one region that hold a model's SLOs together.

    Attributes:
        model: Its name.
        groups: Model phase and group of each.
        parts: How the nodes of some of them are cut.
        price: USD/h.
    """

    model: str
    groups: tuple[Place, ...]
    parts: Mapping[Place, tuple[GroupPart, ...]]
    price: float


@dataclass(frozen=True, eq=False)
class Designs:
    """Designs of each model: what they cost, and which of those that were simulated hold.

    Attributes:
        scenario: What is planned.
        groups: Groups of every model phase.
        price: float64 (J, R) each, USD/h of a group in a region; infinite where it cannot stand there.
        races: Simulates instances of a model together.
        room: What regions and limits have room for.
        known: Designs that were seen to hold so far.
        nearest: Model -> of the designs that were seen not to hold the one that missed least, and the share that it met; a
            share far below the one asked for is only known to be that, and of such designs the dearest has most room. Of
            designs that meet it on average, though not surely, the cheapest.
    """

    scenario: ResolvedScenario
    groups: Sequence[Groups]
    price: Sequence[Floats]
    races: TogetherRaces
    room: Room
    known: list[Design] = field(default_factory=list)
    nearest: dict[str, tuple[float, Design]] = field(default_factory=dict)
    _raced: set[tuple[PlannedInstance, ...]] = field(default_factory=set)

    @cached_property
    def ways(self) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """Model with demand -> ways in which its requests may be served, each the phases it takes; in mode auto two.

        Of variants each has its own. One serves all requests of the model, so it has to be good enough for that.

        A phase of replicas without requests is one by itself, under its own key.
        """
        variants = [phase.variant for phase in self.scenario.model_phases]
        ways = {
            model: tuple(way for way in several if (variant := variants[way[0]]) is None or variant.may_serve_all)
            for model, several in ways_of(self.scenario).items()
        }
        for p, phase in enumerate(self.scenario.model_phases):
            # Of some only one phase is asked for.
            name = phase.served if phase.demand_tokens_s > 0 else phase.key
            if self.groups[p].unit_tokens > 0 and name not in ways:
                ways[name] = ((p,),)
        return ways

    def least(self, costs: Sequence[float], together: Mapping[str, float] | None = None) -> tuple[float, list[float]]:
        """What all models cost at least, and beside each phase everything else, USD/h.

        Args:
            costs: What each phase costs at least.
            together: What some models cost at least.
        """
        of_way = {way: sum(costs[p] for p in way) for ways in self.ways.values() for way in ways}
        cheapest = {model: min(of_way[way] for way in ways) for model, ways in self.ways.items()}
        cheapest |= dict(together or {})
        beside = [0.0] * len(costs)
        for model, ways in self.ways.items():
            rest = sum(cost for other, cost in cheapest.items() if other != model)
            for way in ways:
                for p in way:
                    beside[p] = rest + sum(costs[q] for q in way if q != p)
        return sum(cheapest.values()), beside

    @property
    def raced(self) -> set[str]:
        """Models that ask for a share of requests."""
        return {model for model, ways in self.ways.items() if self.groups[ways[0][0]].oracle.target is not None}

    @property
    def in_order(self) -> list[Design]:
        """Designs that were seen to hold so far, model by model: searches run side by side."""
        return sorted(self.known, key=lambda item: list(self.ways).index(item.model))

    def best(self, model: str) -> Design | None:
        """The cheapest design of a model that was seen to hold so far."""
        return min((item for item in self.known if item.model == model), key=lambda item: item.price, default=None)

    @property
    def used_up(self) -> bool:
        """Whether twice the windows for cheaper designs were asked for: enough where nodes are too few for those."""
        return sum(map(self.spent, self.ways)) >= 2 * sum(map(self.windows, self.ways))

    def windows(self, model: str) -> float:
        """Windows that the search for cheaper designs of a model may simulate on average, and those for its bound."""
        return max(FEWEST_WINDOWS, REQUESTS / self.requests(model))

    def windows_to_settle(self, model: str) -> float:
        """Windows that may settle what a model costs at least."""
        return REQUESTS_TO_SETTLE / self.requests(model)

    def ways_in_regions(self, model: str) -> list[Way]:
        """Those of a model that asks for a share, in regions that may hold it; none of one of mean requests."""
        ways = (
            Way(phases, region)
            for phases in self.ways[model]
            if self.groups[phases[0]].oracle.target is not None
            for region in range(len(self.room.nodes))
        )
        return [way for way in ways if self.bound(way) < math.inf]

    def ceiling(self, model: str) -> float:
        """What a design that is worth looking at costs less than, USD/h."""
        best = self.best(model)
        if best is not None:
            return best.price
        return MOST_TIMES * min(map(self.cost, self.ways_in_regions(model)), default=math.inf)

    def floor(self, model: str) -> float:
        """What no design of a model that asks for a share costs less than, by what is known of its groups, USD/h."""
        return min(map(self.bound, self.ways_in_regions(model)))

    def requests(self, model: str) -> float:
        """What a window of a model costs, in requests."""
        return A_WINDOW + self.races.requests(model)

    def spent(self, model: str) -> float:
        """Windows that were asked for the model's sake, replications counted in."""
        phases = itertools.chain(*self.ways[model])
        return (
            self.races.windows_of[model]
            + sum(self.groups[p].oracle.replications for p in phases) / REPLICATIONS_A_WINDOW
        )

    def price_in(self, p: int, region: int) -> Floats:
        """float64 (J,): USD/h of the groups of a phase in a region."""
        return self.price[p][:, region]

    def cost(self, way: Way) -> float:
        """Price of the cheapest groups that were seen to hold all phases of a way, USD/h."""
        return sum(self.least_of(p, way.region) for p in way.phases)

    def bound(self, way: Way) -> float:
        """Price of the cheapest groups that may hold them, USD/h."""
        return sum(self.least_of(p, way.region, held=False) for p in way.phases)

    def least_of(self, p: int, region: int, held: bool = True) -> float:
        """Price of the cheapest groups that were seen to hold all of a phase, or that may hold it, USD/h."""
        groups = self.groups[p]
        return float(groups.covers(groups.least if held else groups.most, self.price_in(p, region))[PARTS])

    def instances(
        self, groups: Sequence[Place], parts: Mapping[Place, tuple[GroupPart, ...]]
    ) -> tuple[PlannedInstance, ...]:
        """Instances of some groups of one model, all in the first region; equal ones are counted together."""
        counts: dict[PlannedInstance, int] = {}
        for p, j in groups:
            group = self.groups[p]
            own = GroupPart(int(group.template[j]), int(group.count[j]))
            for part in parts.get((p, j), (own,)):
                instance = group.oracle.instances.of(part.template, part.placement)
                counts[instance] = counts.get(instance, 0) + part.count
        return tuple(instance.model_copy(update={"count": count}) for instance, count in counts.items())

    def missed(self, model: str, way: Way, groups: tuple[Place, ...]) -> set[str]:
        """The kinds of SLO that groups miss together however they are cut; where none, they are a design that is known."""
        price = float(sum(self.price_in(p, way.region)[j] for p, j in groups))
        outcome = self._race(Design(model, groups, {}, price))
        if outcome.holds:
            return set()
        failed = self._failed(groups, outcome)
        if failed == {"decode"}:
            for parts in self._cuts(groups):
                if self._race(Design(model, groups, parts, price)).holds:
                    return set()
        return failed

    def hold(self, model: str, groups: tuple[Place, ...]) -> bool:
        """Whether groups hold together where they are cheapest, perhaps cut; then they are a design that is known."""
        phases, price = tuple(dict.fromkeys(p for p, _ in groups)), self.price_of(groups)
        if np.isinf(price).all():
            return False
        return not self.missed(model, Way(phases, int(np.argmin(price))), groups)

    def settle(self, model: str, groups: tuple[Place, ...]) -> Together:
        """A race of groups for as long as a certificate takes, cut in every way until one holds; then they are a design that
        is known, if some region has room for them. They miss where they surely do in every way."""
        misses = True
        for parts in itertools.chain([{}], self._cuts(groups)):
            outcome = self.races.settled(self.instances(groups, parts))
            if outcome.holds:
                price = float(self.price_of(groups).min())
                if price < math.inf:
                    self.known.append(Design(model, groups, parts, price))
                return outcome
            misses &= outcome.misses
        return replace(outcome, misses=misses)

    def price_of(self, groups: Sequence[Place]) -> Floats:
        """float64 (R,): USD/h of groups in each region, infinite where there is no room for them."""
        price = np.sum([self.price[p][j] for p, j in groups], axis=0)
        return np.where(self.room.fits(groups), price, np.inf)

    def was_raced(self, groups: Sequence[Place]) -> bool:
        """Whether groups were simulated together, as they are cut by themselves."""
        return self.instances(groups, {}) in self._raced

    def surely_miss(self, model: str, groups: tuple[Place, ...]) -> bool:
        """Whether groups surely miss an SLO of their model together, however they are cut."""
        return all(
            self.races.surely_misses(self.instances(groups, parts))
            for parts in itertools.chain([{}], self._cuts(groups))
        )

    def _cuts(self, groups: Sequence[Place]) -> Iterator[Mapping[Place, tuple[GroupPart, ...]]]:
        """Ways to cut the prefill nodes of one of the groups into pipelines."""
        for p, j in groups:
            group = self.groups[p]
            template, count, tokens_s = int(group.template[j]), int(group.count[j]), PARTS * group.unit_tokens
            for parts in group.oracle.instances.pipelines(template, count, tokens_s):
                yield {(p, j): parts}

    def _race(self, design: Design) -> Together:
        """Simulate a design, and note it."""
        instances = self.instances(design.groups, design.parts)
        self._raced.add(instances)
        outcome = self.races.race(instances)
        if outcome.holds:
            self.known.append(design)
            return outcome
        before, target = self.nearest.get(design.model), self.groups[design.groups[0][0]].oracle.target or 0.0
        if before is not None and outcome.least == before[0]:
            nearer = (design.price > before[1].price) == (outcome.least < target)
        else:
            nearer = before is None or outcome.least > before[0]
        if nearer:
            self.nearest[design.model] = outcome.least, design
        return outcome

    def _failed(self, groups: Sequence[Place], outcome: Together) -> set[str]:
        target = self.groups[groups[0][0]].oracle.target
        assert target is not None
        below = {kind for kind, share in outcome.shares.items() if share < target}
        # None is below, but none is surely above: the worst is the one to change.
        return below or {min(outcome.shares, key=lambda kind: outcome.shares[kind])}
