"""Designs of a model: groups for each of its phases that hold its SLOs together; the cheapest, by themselves.

What one phase does to another is in no group's capacity. Designs are simulated in the order of their price; where KV caches
arrive too late, the same nodes are simulated as pipelines too, whose nodes each send a part of every cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from coralopt.plan import PlannedInstance
from coralopt.planning.promise.capacities import FARTHER, HALFWAY, PARTS, PRICE_TOLERANCE, Groups, Place, tighten
from coralopt.planning.promise.instances import GroupPart
from coralopt.planning.promise.room import Room
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.scenario.resolved import ResolvedScenario, ways_of
from coralopt.types import Floats

#: Of a model without any design those are looked at that cost at most so many times what the cheapest groups do.
MOST_TIMES = 2.0
#: Covers of one phase looked at at once, and replications about the groups of one phase ahead of that, at most.
MOST_COVERS, REPLICATIONS = 60, (12, 90)
#: Where none of those is left, covers that hold so many times the demand.
ROOMS = (1.25, 1.5, 2.0, 3.0)
#: A design that is to hold whatever it costs gets more instances so often, twice as many more each time; and so many groups
#: with more room are asked whether they hold all.
RAISES, ROOMIER = 6, 5
#: Windows that the search for cheaper designs of a model may simulate on average, and as many for its bound: at least, or
#: more while all of them have so many requests, of which each window counts as some more than it has.
FEWEST_WINDOWS, REQUESTS, A_WINDOW = 120, 750_000, 500
#: What settling may take for a model where the gap is open, in the same requests.
REQUESTS_TO_SETTLE = 3_000_000
#: Replications that count as one window; how often what is left of all windows is shared out anew, and what is too little
#: for another design.
REPLICATIONS_A_WINDOW, ROUNDS, TOO_FEW = 4, 3, 4
#: Designs with different groups of the other phases, after which groups that failed in all of them are left out.
FAILURES = {"prefill": 2, "decode": 4, "mixed": 1}

#: Price, USD/h, groups and groups by phase.
Combination = tuple[float, tuple[Place, ...], tuple[tuple[Place, ...], ...]]


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
    """The search for the cheapest design of each model.

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

    def search(self, models: Sequence[str] | None = None) -> None:
        """Find for each model that asks for a share, or of some, the cheapest design that holds, if there is any.

        Each gets some design that holds first. Then windows are shared out by what each model's could still cost less, until
        the cheapest of every model is known or the windows are used up.
        """
        models, workers = self.some_of_each(models), self.races.workers
        models = [model for model in models if min(map(self._cost, self._ways(model))) < math.inf]
        # A window of many requests takes longer than one of few.
        requests = {model: self._requests(model) for model in self.raced}
        total = sum(self.windows(model) * each for model, each in requests.items())
        total += sum(self._spent(model) * requests[model] for model in models)
        open_ = models
        for _ in range(ROUNDS):
            gain = {model: self.ceiling(model) - min(map(self._bound, self._ways(model))) for model in open_}
            left = total - sum(self._spent(model) * requests[model] for model in models)
            share = {model: left / requests[model] * gain[model] / (sum(gain.values()) or 1.0) for model in open_}
            open_ = [model for model in open_ if share[model] >= TOO_FEW]

            wanted = [(model, self._spent(model) + share[model]) for model in open_]
            ended = workers.map(lambda one: self._cheaper(*one), wanted)
            open_ = [model for model, known in zip(open_, ended, strict=True) if not known]

    def some_of_each(self, models: Sequence[str] | None = None) -> list[str]:
        """Find some design of each model that asks for a share, and name these models: nothing is asked of the others."""
        models = [model for model in (self.ways if models is None else models) if self._ways(model)]
        self.races.workers.map(self._first, models)
        return models

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
        return sum(map(self._spent, self.ways)) >= 2 * sum(map(self.windows, self.ways))

    def windows(self, model: str) -> float:
        """Windows that the search for cheaper designs of a model may simulate on average, and those for its bound."""
        return max(FEWEST_WINDOWS, REQUESTS / self._requests(model))

    def windows_to_settle(self, model: str) -> float:
        """Windows that may settle what a model costs at least."""
        return REQUESTS_TO_SETTLE / self._requests(model)

    def _ways(self, model: str) -> list[Way]:
        """Those of a model that asks for a share, in regions that may hold it; none of one of mean requests."""
        ways = (
            Way(phases, region)
            for phases in self.ways[model]
            if self.groups[phases[0]].oracle.target is not None
            for region in range(len(self.room.nodes))
        )
        return [way for way in ways if self._bound(way) < math.inf]

    def ceiling(self, model: str) -> float:
        """What a design that is worth looking at costs less than, USD/h."""
        best = self.best(model)
        if best is not None:
            return best.price
        return MOST_TIMES * min(map(self._cost, self._ways(model)), default=math.inf)

    def _requests(self, model: str) -> float:
        """What a window of a model costs, in requests."""
        return A_WINDOW + self.races.requests(model)

    def _spent(self, model: str) -> float:
        """Windows that were asked for the model's sake, replications counted in."""
        phases = itertools.chain(*self.ways[model])
        return (
            self.races.windows_of[model]
            + sum(self.groups[p].oracle.replications for p in phases) / REPLICATIONS_A_WINDOW
        )

    def _first(self, model: str) -> None:
        """A design that holds, found soon: the cheapest groups, with more and more instances where they fail."""
        ways = self._ways(model)
        if all(math.isinf(self._cost(way)) for way in ways):
            # Every phase has groups that hold it, but in different regions.
            self.tighten(model, REPLICATIONS[0])
        for way in sorted(ways, key=self._cost):
            if math.isfinite(self._cost(way)) and self._first_of(model, way):
                return

    def tighten(self, model: str, replications: float = REPLICATIONS[1]) -> None:
        """Find out what decides the cheapest covers of a model's phases in each region, in so many replications each."""
        for way in sorted(self._ways(model), key=self._bound):
            for p in way.phases:
                tighten(
                    self.groups[p], self._price(p, way.region), 0.0, self.races.workers.tell, replications=replications
                )

    def _first_of(self, model: str, way: Way) -> bool:
        """The same in one way; whether there was one."""
        covers = [
            [(p, j) for j in self._covers(p, way.region, self._least(p, way.region), 1)[0][1]] for p in way.phases
        ]
        if not self.room.fits(tuple(itertools.chain(*covers)))[way.region]:
            # The phases want the same nodes.
            beside = self._combinations(way, MOST_TIMES * self._cost(way), REPLICATIONS[1])
            covers = [list(cover) for cover in min(beside)[1]] if beside else covers
        for turn in range(RAISES + 1):
            groups = tuple(itertools.chain(*covers))
            if not self.room.fits(groups)[way.region]:
                return False
            failed = self._hold(model, way, groups)
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
        groups, price = self.groups[p], self._price(p, region)
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
        ways, kept = self._ways(model), set[tuple[tuple[Place, ...], int]]()
        least, farther = min(map(self._cost, ways)), HALFWAY
        failures: dict[tuple[Place, ...], int] = {}
        patience = 1
        while True:
            ceiling = self.ceiling(model) * (1 - PRICE_TOLERANCE)
            open_: list[Combination] = []
            left_out = False
            ways.sort(key=self._cost)
            looks = itertools.product((1.0,), ways, REPLICATIONS), itertools.product(ROOMS, ways, REPLICATIONS[:1])
            for room, way, replications in itertools.chain(*looks):
                left = (most_windows - self._spent(model)) * REPLICATIONS_A_WINDOW / len(way.phases)
                for price, covers in self._combinations(way, ceiling, min(replications, left), room):
                    groups = tuple(itertools.chain(*covers))
                    if self.instances(groups, {}) in self._raced:
                        continue
                    if any(failures.get(cover, 0) >= patience * FAILURES[self._kind(cover)] for cover in covers):
                        left_out = True
                    else:
                        open_.append((price, groups, covers))
                if open_ or self._spent(model) >= most_windows:
                    break
            if self._spent(model) >= most_windows:
                return not open_ and not left_out
            if not open_:
                if not left_out:
                    return True
                patience *= 2
                continue
            self.races.workers.tell(f"designs of {model}", int(self._spent(model)), int(most_windows))
            aim = least + farther * (ceiling - least)
            near = self._near_best(model, open_, kept)
            _, groups, covers = near or min(open_, key=lambda item: abs(item[0] - aim))
            failed = self._hold(model, way, groups)
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
        best = self.best(model)
        for k in range(0 if best is None else len(open_[0][2])):
            if best is not None and (best.groups, k) not in kept:
                kept.add((best.groups, k))
                near = [item for item in open_ if set(item[2][k]) <= set(best.groups)]
                if near:
                    return min(near)
        return None

    def _price(self, p: int, region: int) -> Floats:
        return self.price[p][:, region]

    def _cost(self, way: Way) -> float:
        """Price of the cheapest groups that were seen to hold all phases of a way, USD/h."""
        return sum(self._least(p, way.region) for p in way.phases)

    def _bound(self, way: Way) -> float:
        """Price of the cheapest groups that may hold them, USD/h."""
        return sum(self._least(p, way.region, held=False) for p in way.phases)

    def _least(self, p: int, region: int, held: bool = True) -> float:
        """Price of the cheapest groups that were seen to hold all of a phase, or that may hold it, USD/h."""
        groups = self.groups[p]
        return float(groups.covers(groups.least if held else groups.most, self._price(p, region))[PARTS])

    def _covers(
        self, p: int, region: int, most_usd_h: float, count: int, room: float = 1.0
    ) -> list[tuple[float, tuple[int, ...]]]:
        """Covers of a phase for at most some price, cheapest first."""
        return self.groups[p].cheapest_covers(self._price(p, region), most_usd_h * (1 + PRICE_TOLERANCE), count, room)

    def _kind(self, cover: Sequence[Place]) -> str:
        return self.scenario.model_phases[cover[0][0]].phase

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

    def _combinations(
        self, way: Way, most_usd_h: float, replications: float, room: float = 1.0
    ) -> list[tuple[float, tuple[tuple[Place, ...], ...]]]:
        """Price and groups of each phase of a way that cover it, where there is room for all of them, for at most a price.

        Of each phase groups are simulated by themselves first, in so many replications at most; covers hold so many times
        the demand.
        """
        spare, has = most_usd_h - self._cost(way), self.room.has[way.region]

        def covers_of(p: int) -> list[tuple[float, tuple[Place, ...], Floats]]:
            tighten(self.groups[p], self._price(p, way.region), 0.0, self.races.workers.tell, spare, replications)
            covers = self._covers(p, way.region, self._least(p, way.region) + spare, MOST_COVERS, room)
            places = [(cost, tuple((p, j) for j in cover)) for cost, cover in covers]
            return [(cost, cover, self.room.needs(cover)[way.region]) for cost, cover in places]

        if spare < 0:
            return []
        priced: list[tuple[float, tuple[tuple[Place, ...], ...]]] = []
        for chosen in itertools.product(*self.races.workers.map(covers_of, way.phases)):
            cost = sum(own for own, _, _ in chosen)
            if cost <= most_usd_h and (sum(needs for _, _, needs in chosen) <= has).all():
                priced.append((cost, tuple(cover for _, cover, _ in chosen)))
        return priced

    def _hold(self, model: str, way: Way, groups: tuple[Place, ...]) -> set[str]:
        """The kinds of SLO that groups miss together however they are cut; where none, they are a design that is known."""
        price = float(sum(self._price(p, way.region)[j] for p, j in groups))
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
        return not self._hold(model, Way(phases, int(np.argmin(price))), groups)

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
