"""The cheapest plan whose model phases hold their SLOs for the share of requests asked for; docs/concepts/promise.md.

Lower bounds come from what groups hold at most, plans from what they were seen to hold; whatever decides the cheapest plan
is played until both meet. What one phase does to another (KV transfers from the prefill nodes, their memory) is in no
group's capacity: the instances of a model are played together, and where that fails, the cheapest plan without one of its
groups is next.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    Served,
    fewest_gpus,
    request_flows,
    solve_or_serve_less,
)
from coralopt.errors import InfeasibleError, Mistake, NoSolutionError, ScenarioError
from coralopt.placement import Placement
from coralopt.plan import PlannedInstance
from coralopt.planning.promise.capacities import MOST_GAMES, PARTS, PRICE_TOLERANCE, Groups, Place, tighten
from coralopt.planning.promise.columns import GroupColumns, least_price
from coralopt.planning.promise.combinations import least_together
from coralopt.planning.promise.cuttings import Cutting
from coralopt.planning.promise.designs import Design, Designs
from coralopt.planning.promise.games import PhaseGames
from coralopt.planning.promise.restricted import find_of_one_gpu, find_side_by_side
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.planning.promise.workers import OutOfTimeError, Workers
from coralopt.planning.request import PlanRequest
from coralopt.planning.stages import StageTables
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario
from coralopt.simulation.groups import GroupPlayer
from coralopt.templates import TemplateLibrary
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats, Ints

#: Games that all phases together may take at least: those of one model may need more than its phases' part.
FEWEST_GAMES = 2_000
#: Games a phase after which a search with a ceiling looks whether anything below it is left.
GAMES_AT_ONCE = 16
#: Games without any cover after which it is looked whether a single request in an idle pool meets the SLO.
IN_VAIN = 40
#: Further games a phase in search of any cover, and as many in search of groups that the pool has room for.
FURTHER = 100
#: Part of the time limit after which models without a design get one before the search for cheaper groups goes on.
FOR_GROUPS = 0.5
#: Requests that tell about what is possible at best where there is no time for more.
FEW = 500
#: Templates of most throughput whose idle instances are looked at then.
MOST_IDLE = 50
#: Plans whose models are played together, at most.
MOST_PLANS = 60
#: Allocations at what groups hold at most, at most; the rise of the bound that is worth another; columns of one.
MOST_BOUNDS, WORTH, MOST_COLUMNS = 5, 1e-3, 20_000
#: What tells groups that cost nothing apart while they are looked at, USD/h a GPU.
FREE_GPU = 1e-6


class PromiseSearch:
    """The search over one scenario.

    Args:
        request: What to plan.
        library: Its templates.
        tables: Its throughput tables.
        base: The allocation problem over single templates at their mean throughput; all demand is to be met.
        remember: Whether capacities are kept from one search to the next.
        ceiling: The search ends as soon as it is known that no plan costs less, USD/h.

    Attributes:
        cut_short: What ended the search before its time, empty where nothing did.
        unconfirmed: Models of the plan that ask for a share and whose instances were not seen to hold it together.
    """

    def __init__(
        self,
        request: PlanRequest,
        library: TemplateLibrary,
        tables: Sequence[ThroughputTables],
        base: AllocationProblem,
        remember: bool = True,
        ceiling: float = math.inf,
    ) -> None:
        self.ceiling = ceiling
        self.request, self.library, self.base, self.remember = request, library, base, remember
        scenario = request.scenario
        self.scenario: ResolvedScenario = scenario
        self.gap = request.solve_options.rel_gap or 0.0
        player = GroupPlayer(scenario)
        of_stages = StageTables(scenario, tables)
        room = base.most_instances()
        self.groups: list[Groups] = []
        prices: list[Floats] = []
        for p, phase in enumerate(scenario.model_phases):
            games = PhaseGames(scenario, phase, library.phases[p], of_stages, player, remember)
            groups = Groups.of(games, base.demand[p], room.max(axis=1)[library.offsets[p] :][: len(library.phases[p])])
            self.groups.append(groups)
            prices.append(least_price(base, library, p, groups, room))
        # Wherever it is cheapest.
        self.price = [price.min(axis=1) for price in prices]
        digests = [groups.games.digest for groups in self.groups]
        limit = request.solve_options.time_limit
        self._deadline = math.inf if limit is None else time.monotonic() + limit
        self.workers = Workers(request.progress, None if limit is None else limit * FOR_GROUPS)
        self.races = TogetherRaces(scenario, player, digests, self.workers, remember)
        # Of designs that cost nothing, those of few GPUs are looked at first, too.
        apart = [np.where(price == 0, FREE_GPU * self._gpus(p)[:, None], price) for p, price in enumerate(prices)]
        self.designs = Designs(scenario, self.groups, apart, self.races, base.availability)
        self.chosen: list[Design] = []
        self.bound = 0.0
        self.cut_short, self.unconfirmed = "", tuple[str, ...]()
        # Left for the cheapest covers of phases.
        self.games: float = max(FEWEST_GAMES, MOST_GAMES * len(self.groups))
        # Left for groups that the pool has room for.
        self.games_for_room: float = FURTHER * len(self.groups)

    def run(self) -> tuple[Served, Mapping[int, Placement]]:
        """The cheapest plan that was seen to hold together with a lower bound on all of the family; and placements of rows
        that are not the library's.

        After Ctrl-C, or when time is over, the cheapest of designs and groups known by then: :attr:`cut_short`.

        Raises:
            InfeasibleError: The pool has no such plan.
            NoSolutionError: When time was over, none was known; or none costs less than the ceiling.
            KeyboardInterrupt: At Ctrl-C none was known.
        """
        try:
            return self._run()
        except (KeyboardInterrupt, OutOfTimeError) as error:
            self.cut_short = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else "the time limit"
            plan = self._known_by_now()
            if plan is not None:
                return plan
            if isinstance(error, KeyboardInterrupt):
                raise
            raise self._too_soon() from None
        finally:
            # What was found out is kept, whatever ends the search.
            if self.remember:
                self.races.save()
                for groups in self.groups:
                    groups.games.save()

    def _run(self) -> tuple[Served, Mapping[int, Placement]]:
        try:
            served, columns = self._of_groups()
        except OutOfTimeError:
            # Better some design of each model than cheaper groups, which may serve few requests together.
            self.workers.go_on(self._deadline - time.monotonic())
            self.designs.some_of_each()
            served, columns = self._of_groups()
        if self._deadline < math.inf:
            self.workers.go_on(self._deadline - time.monotonic())
        self.designs.search()
        find_of_one_gpu(self.designs)
        self.bound = max(self.bound, self._bound_together())
        self.chosen = self.designs.in_order
        of_designs = self._without(frozenset()) if self.chosen else None
        if of_designs is None and find_side_by_side(self.designs):
            self.chosen = self.designs.in_order
            of_designs = self._without(frozenset())
        if of_designs is None:
            # There are too few nodes for the cheapest designs of all models at once.
            self.chosen, of_designs = [], (served, columns)
        return self._finished(*self._holding(*of_designs))

    def _bound_together(self) -> float:
        """What no plan costs less than where groups of a model surely miss together, USD/h; less where time is over."""
        pairs = zip(self.groups, self.price, strict=True)
        costs = [float(groups.covers(groups.most, price)[PARTS]) for groups, price in pairs]
        least = dict[str, float]()

        def find_out(model: str) -> None:
            least[model] = least_together(self.designs, model, self.price, self.designs.ceiling(model))

        with contextlib.suppress(OutOfTimeError):
            self.workers.map(find_out, sorted(self.designs.raced))
        floor, _ = self.designs.least(costs, least)
        return floor

    def _of_groups(self) -> tuple[Served, GroupColumns]:
        """The cheapest plan of groups that hold by themselves, and the bound."""
        served, columns = self._cheapest(frozenset())
        self.bound = self._bound(served.result.cost_usd_h)
        return served, columns

    def _known_by_now(self) -> tuple[Served, Mapping[int, Placement]] | None:
        """The cheapest plan of the designs known so far; of other models those that missed least, or, where nothing was
        played together yet, groups that hold by themselves."""
        self.bound = self.least()
        known = self.designs.in_order
        held = {design.model for design in known}
        nearest = [design for model, (_, design) in self.designs.nearest.items() if model not in held]
        for designs in ([*known, *nearest], known, []):
            self.chosen = designs
            with contextlib.suppress(InfeasibleError, NoSolutionError):
                served, columns = self._cheapest_by_ways(*self._open(frozenset()))
                confirmed = self._confirmed(served, columns)
                self.unconfirmed = tuple(sorted(self.designs.raced - confirmed))
                return self._finished(served, columns)
        return None

    def _confirmed(self, served: Served, columns: GroupColumns) -> set[str]:
        """Models whose groups in a plan are just those of a design that was seen to hold."""
        of_model: dict[str, set[Place]] = {}
        for row in served.result.allocation.template.tolist():
            for place in columns.groups[row]:
                of_model.setdefault(self.scenario.model_phases[place[0]].served, set()).add(place)
        known = {(design.model, frozenset(design.groups)) for design in self.designs.known}
        return {model for model, places in of_model.items() if (model, frozenset(places)) in known}

    def _too_soon(self) -> NoSolutionError:
        """What to say where time was over before any plan was known: what is possible for the phases that nothing holds."""
        workers, lines = Workers(self.request.progress), list[str]()
        for phase, groups in zip(self.scenario.model_phases, self.groups, strict=True):
            games = groups.games
            if games.target is None or not groups.unit_tokens or groups.least.any():
                continue
            share, nodes, _ = games.best_share(workers, FEW)
            lines.append(
                f"  - {phase.key}: after {games.played} simulations no instances are known that meet {_said(phase)} for "
                f"{games.target:.2%} of any part of its requests; though idle, {nodes} meets it for {share:.1%}"
            )
        first = (
            "time was over before a plan was known that serves the share of requests asked for within SLO; give it more "
            "time: what was found out is kept, and the search goes on from there"
        )
        without = lines or ["  - every phase has instances that hold it, but the pool has no room for all of these"]
        return NoSolutionError("\n".join([first, *without]), None)

    def least(self) -> float:
        """What no plan of the family costs less than, by what is known so far, USD/h."""
        pairs = zip(self.groups, self.price, strict=True)
        floor, _ = self.designs.least([float(groups.covers(groups.most, price)[PARTS]) for groups, price in pairs])
        return max(self.bound, floor)

    def _holding(self, served: Served, columns: GroupColumns) -> tuple[Served, GroupColumns]:
        """The first plan whose models hold together, or that which came nearest: from each to the cheapest without one of
        the groups of a model that does not."""
        cuts: frozenset[Place] = frozenset()
        nearest: tuple[float, Served, GroupColumns] | None = None
        for _ in range(MOST_PLANS):
            failing, least, models = self._failing(served, columns)
            if nearest is None or not failing or least > nearest[0]:
                nearest, self.unconfirmed = (least, served, columns), models
            others = [(cuts | {cut}, *plan) for cut in failing if (plan := self._without(cuts | {cut})) is not None]
            if not others or self.designs.used_up:
                break
            cuts, served, columns = min(others, key=lambda other: other[1].result.cost_usd_h)
        assert nearest is not None
        return nearest[1:]

    def _without(self, cuts: frozenset[Place]) -> tuple[Served, GroupColumns] | None:
        """The cheapest plan without these groups, ``None`` where there is none."""
        try:
            return self._cheapest(cuts)
        except (InfeasibleError, NoSolutionError):
            return None

    def _cheapest(self, cuts: frozenset[Place]) -> tuple[Served, GroupColumns]:
        """The cheapest plan at what groups were seen to hold, without those that were cut."""
        prices, designs = self._open(cuts)
        ways = self._ways(designs)
        self._look(prices, ways, may_refuse=not cuts)
        while True:
            try:
                return self._cheapest_by_ways(prices, designs)
            except (InfeasibleError, NoSolutionError):
                # What was looked at finds no room: look at what the best of all would take.
                best = GroupColumns.of(
                    self.base, self.library, self.groups, "most", [price < math.inf for price in prices]
                )
                before = [groups.games.played for groups in self.groups]
                if not self._find_out(self._solve(best), best):
                    raise
                played = [groups.games.played - games for groups, games in zip(self.groups, before, strict=True)]
                self.games_for_room -= sum(played)
                if self.games_for_room < 0:
                    raise self._in_vain(int(np.argmax(played))) from None

    def _look(self, prices: Sequence[Floats], ways: Sequence[tuple[tuple[int, ...], ...]], may_refuse: bool) -> None:
        """Find out what decides the cheapest covers of these ways to serve models.

        Raises:
            ScenarioError: Not even idle instances meet an SLO for the share of requests asked for.
            NoSolutionError: They do, but no group was seen to.
        """
        known = self._tighten({p: prices[p] for p in itertools.chain(*itertools.chain(*ways))})
        for several in ways if may_refuse else ():
            # Nothing holds, or nothing was seen to hold for long: maybe nothing can.
            for end in (0, 1) if len(several) == 1 else (0,):
                hopeless = [[p for p in way if math.isinf(known[p][end])] for way in several]
                if all(hopeless):
                    self._refuse(hopeless[0][0])
        unseen = [p for p, (low, high) in known.items() if low < high == math.inf]
        covers = self.workers.map(lambda p: self._search(p, prices[p], FURTHER, FURTHER), unseen)
        in_vain = {p for p, (_, high) in zip(unseen, covers, strict=True) if math.isinf(high)}
        for several in ways:
            if all(in_vain & set(way) for way in several):
                raise self._in_vain(min(in_vain & set(several[0])))
        if unseen:
            # What holds them was seen late; cheaper groups may, too.
            self._tighten({p: prices[p] for p in unseen if p not in in_vain})

    def _in_vain(self, p: int) -> NoSolutionError:
        """What to say where instances may hold a model phase, and games did not come upon any that do in this pool."""
        phase, games = self.scenario.model_phases[p], self.groups[p].games
        share, nodes, _ = games.best_share(self.workers)
        rate, sent, better = games.rate(self.base.demand[p]), "", "quicker or more nodes"
        if phase.phase == "prefill":
            best, sender = games.best_share_sent(self.workers)
            sent = f", and with KV caches in time for tpot_ms: {phase.decode_ms:g}, {sender} for {best:.2%}"
            better += ", or nodes with quicker links"
        return NoSolutionError(
            f"{phase.key}: no instances that the pool has room for were seen to meet {_said(phase)} for "
            f"{games.target or 0:.2%} of {rate:g} requests/s in {games.played} simulations; though idle, {nodes} meets "
            f"it for {share:.2%}{sent}. Ask for a smaller share or a longer time, or add {better}",
            None,
        )

    def _tighten(self, prices: Mapping[int, Floats]) -> dict[int, tuple[float, float]]:
        """Bound and cost of each phase's cheapest cover, USD/h.

        All searches together may take :data:`MOST_GAMES` games a phase on average. Each phase gets half of that first; then
        they are shared out by what each cover could still cost less, until all are known or the games are used up.
        """
        results = dict.fromkeys(prices, (0.0, math.inf))
        at_once = math.inf if math.isinf(self.ceiling) else GAMES_AT_ONCE
        share = dict.fromkeys(results, min(MOST_GAMES / 2, self.games / max(1, len(prices)), at_once))
        while share:
            before = {p: self.groups[p].games.played for p in share}

            def search(p: int, games: Mapping[int, float] = share) -> tuple[float, float]:
                return self._search(p, prices[p], games[p], IN_VAIN)

            results |= zip(share, self.workers.map(search, share), strict=True)
            if self.ceiling <= self.least() < math.inf:
                raise NoSolutionError(f"no plan costs less than {self.ceiling:,.4f} USD/h", None)
            played = {p: self.groups[p].games.played - before[p] for p in share}
            self.games -= sum(played.values())
            gain = {p: results[p][1] - results[p][0] for p in share if played[p] >= share[p]}
            gain = {p: usd_h for p, usd_h in gain.items() if self.gap * results[p][1] < usd_h < math.inf}
            left = {p: self.games * gain[p] / sum(gain.values()) for p in gain}
            share = {p: min(games, at_once) for p, games in left.items() if games >= 1}
        return results

    def _search(self, p: int, prices: Floats, games: float, in_vain: float = math.inf) -> tuple[float, float]:
        """Bound and cost of one phase's cheapest cover, USD/h; of groups that cost nothing, those of few GPUs come first."""
        price = np.where(prices == 0, FREE_GPU * self._gpus(p), prices)
        return tighten(self.groups[p], price, self.gap, self.workers.tell, games=games, in_vain=in_vain)

    def _gpus(self, p: int) -> Ints:
        """int64 (J,): GPUs of each group of model phase ``p``."""
        groups, each = self.groups[p], np.array([host.count for host in self.scenario.configurations])
        usage = self.base.usage[self.library.offsets[p] :][: len(self.library.phases[p])].astype(np.int64)
        return np.asarray((usage @ each)[groups.template] * groups.count)

    def _cheapest_by_ways(self, prices: Sequence[Floats], designs: Sequence[Design]) -> tuple[Served, GroupColumns]:
        """The cheapest plan at what groups were seen to hold, every model served in one way, or by one of its designs.

        Raises:
            InfeasibleError, NoSolutionError: There is none.
        """
        covers = [groups.covers(groups.least, price) for groups, price in zip(self.groups, prices, strict=True)]
        least = {design.model: design.price for design in sorted(designs, key=lambda item: -item.price)}
        combined: list[tuple[float, list[int]]] = [(sum(least.values()), [])]
        for ways in self._ways(designs):
            # The cheapest of all are among those of the cheapest so far.
            longer = (
                (cost + sum(float(covers[p][PARTS]) for p in way), [*phases, *way])
                for cost, phases in combined
                for way in ways
            )
            combined = heapq.nsmallest(MOST_PLANS, longer)
        best: tuple[Served, GroupColumns] | None = None
        failure: InfeasibleError | NoSolutionError | None = None
        for cost, phases in combined:
            # Without scarce nodes the first is the best; its reasons are given where nothing can be met.
            if (best is not None and cost >= best[0].result.cost_usd_h) or (failure is not None and math.isinf(cost)):
                break
            enough = cost * (1 + self.gap + PRICE_TOLERANCE)
            # Mostly there is room for groups of which each phase has its cheapest cover.
            for dearer in (enough - cost, math.inf) if math.isfinite(cost) else (math.inf,):
                columns = GroupColumns.of(
                    self.base,
                    self.library,
                    self.groups,
                    "least",
                    [
                        (price + cover[PARTS - groups.least] <= cover[PARTS] + dearer)
                        & (price < math.inf)
                        & (p in phases)
                        for p, (groups, price, cover) in enumerate(zip(self.groups, prices, covers, strict=True))
                    ],
                    [design.groups for design in designs],
                )
                try:
                    served = self._solve(columns)
                except (InfeasibleError, NoSolutionError) as error:
                    if math.isinf(dearer):
                        failure = failure or error
                    continue
                if best is None or served.result.cost_usd_h < best[0].result.cost_usd_h:
                    best = served, columns
                if served.result.cost_usd_h <= enough:
                    break
        if best is None:
            assert failure is not None
            raise failure
        served, columns = best
        gpus = np.array([host.count for host in self.scenario.configurations])
        options = self.request.solve_options
        result = fewest_gpus(columns.problem, served.result, gpus, self.request.backend, options)
        return replace(served, result=result), columns

    def _refuse(self, p: int) -> None:
        """No group of this model phase holds anything: is it the SLO?

        Raises:
            ScenarioError: On no node so many requests meet it; says how many do at best.
            NoSolutionError: On some they do, but games refused every group.
        """
        phase, groups = self.scenario.model_phases[p], self.groups[p]
        games = groups.games
        share, nodes, template = games.best_share(self.workers)
        if games.target is None or share >= games.target:
            # There are too few nodes, which the allocation says better, or too few groups were played: those without a
            # chance are left out, and a large one of the quickest instances likely holds if any does.
            open_ = np.setdiff1d(groups.template[groups.most > 0], groups.template[groups.least > 0])
            open_ = open_[np.argsort(-games.templates.throughput[open_], kind="stable")][:MOST_IDLE]
            groups.most[np.isin(groups.template, games.hopeless(open_.tolist(), self.workers))] = 0
            for j in np.flatnonzero(groups.template == template)[-1:].tolist():
                groups.settle(j)
            if len(groups.most) and not groups.most.any():
                raise self._in_vain(p)
            return
        mistake = Mistake(
            place=f"models.{self.scenario.model_keys[phase.model.name]}.slo.attainment",
            problem=f"no node of the pool meets {_said(phase)} for {games.target:.2%} of the requests; "
            f"at most {share:.2%} meet it, alone on {nodes}",
            hint=f"ask for less than that, for a larger {' or '.join(_limits(phase))}, or add quicker nodes",
        )
        raise ScenarioError(self.scenario.name, [mistake])

    def _bound(self, cost: float) -> float:
        """A lower bound on every plan of the family, USD/h; groups that decide it are played."""
        bound_usd_h = 0.0
        for _ in range(MOST_BOUNDS):
            pairs = list(zip(self.groups, self.price, strict=True))
            least = [groups.covers(groups.most, price) for groups, price in pairs]
            floor, others = self.designs.least([float(bound[PARTS]) for bound in least])
            bound_usd_h = min(cost, max(floor, bound_usd_h))
            held, _ = self.designs.least([float(groups.covers(groups.least, price)[PARTS]) for groups, price in pairs])
            if bound_usd_h >= cost * (1 - self.gap) or cost <= held * (1 + self.gap + PRICE_TOLERANCE):
                # Phases do not want each other's nodes, so an allocation would say the same.
                return bound_usd_h
            # What a plan with each group costs at least.
            with_group = [
                price + bound[PARTS - groups.most] + rest
                for (groups, price), bound, rest in zip(pairs, least, others, strict=True)
            ]
            ceiling = min(cost, _smallest(np.concatenate(with_group), MOST_COLUMNS))
            columns = GroupColumns.of(
                self.base, self.library, self.groups, "most", [prices <= ceiling for prices in with_group]
            )
            try:
                served = self._solve(columns)
            except (InfeasibleError, NoSolutionError):
                # Nothing cheaper than the plan there is, or than what was left out.
                return max(bound_usd_h, ceiling)
            before, bound_usd_h = bound_usd_h, max(bound_usd_h, min(ceiling, served.result.bound_usd_h))
            if bound_usd_h >= cost * (1 - self.gap) or bound_usd_h < before * (1 + WORTH):
                break
            if not self._tighten_there(served, columns) and not self._find_out(served, columns):
                break
        return bound_usd_h

    def _tighten_there(self, served: Served, columns: GroupColumns) -> bool:
        """Find out what decides the covers of phases in the regions where a plan has them; whether anything was played.

        What is cheapest anywhere may have no room for other phases of its model beside it.
        """
        allocation = served.result.allocation
        where = {
            p: region
            for row, region in zip(allocation.template.tolist(), allocation.region.tolist(), strict=True)
            for p, _ in columns.groups[row]
        }
        before = sum(groups.games.played for groups in self.groups)
        games = min(MOST_GAMES / 2, self.games / max(1, len(where)))

        def search(p: int) -> None:
            self._search(p, self.designs.price[p][:, where[p]], games, 0)

        self.workers.map(search, where)
        played = sum(groups.games.played for groups in self.groups) - before
        self.games -= played
        return played > 0

    def _find_out(self, served: Served, columns: GroupColumns) -> bool:
        """Play the groups of a plan that nothing is known of at the share they take; whether there was any."""
        unknown: dict[int, list[int]] = {}
        for row in served.result.allocation.template.tolist():
            for p, j in columns.groups[row]:
                if not self.groups[p].known[j]:
                    unknown.setdefault(p, []).append(j)

        def settle(p: int) -> None:
            groups = self.groups[p]
            for j in unknown[p]:
                self.workers.tell(f"capacities of {groups.games.phase.key}", groups.games.played, 0)
                groups.settle(j)

        self.workers.map(settle, unknown)
        return bool(unknown)

    def _failing(self, served: Served, columns: GroupColumns) -> tuple[list[Place], float, tuple[str, ...]]:
        """Groups of which one must go, since the instances of a model do not hold together; least share that met; and all
        models of which that is so."""
        chosen = [columns.groups[row] for row in served.result.allocation.template.tolist()]
        of_model: dict[str, list[int]] = {}
        for k, own in enumerate(chosen):
            of_model.setdefault(self.scenario.model_phases[own[0][0]].model.name, []).append(k)

        def race(rows: Sequence[int]) -> Together:
            return self.races.race(tuple(instance for k in rows for _, instance in self._instances(served, columns, k)))

        outcomes = self.workers.map(race, of_model.values())
        failing = {
            model: k for (model, k), outcome in zip(of_model.items(), outcomes, strict=True) if not outcome.holds
        }
        cuts = [place for k in next(iter(failing.values()), ()) for place in chosen[k]]
        return cuts, min((outcome.least for outcome in outcomes), default=1.0), tuple(sorted(failing))

    def _instances(self, served: Served, columns: GroupColumns, k: int) -> list[tuple[int, PlannedInstance]]:
        """Row in the library and instances of the k-th column of an allocation, in their region."""
        allocation = served.result.allocation
        row, region, times = (int(values[k]) for values in (allocation.template, allocation.region, allocation.count))
        own_groups = set(columns.groups[row])
        parts = next((design.parts for design in self.chosen if own_groups <= set(design.groups)), {})
        placed: list[tuple[int, PlannedInstance]] = []
        for p, j in columns.groups[row]:
            own = Cutting(int(self.groups[p].template[j]), int(self.groups[p].count[j]))
            for part in parts.get((p, j), (own,)):
                where = {"region": self.scenario.regions[region], "count": times * part.count}
                instance = self.groups[p].games.instances.of(part.template, part.placement).model_copy(update=where)
                placed.append((self.library.offsets[p] + part.template, instance))
        return placed

    def _finished(self, served: Served, columns: GroupColumns) -> tuple[Served, Mapping[int, Placement]]:
        """The same plan over single templates, and how the nodes of some are cut."""
        chosen = {place for row in served.result.allocation.template.tolist() for place in columns.groups[row]}
        placements = {
            self.library.offsets[p] + part.template: part.placement
            for design in self.chosen
            if chosen >= set(design.groups)
            for (p, _), parts in design.parts.items()
            for part in parts
            if part.placement is not None
        }
        return self._as_templates(served, columns), placements

    def _as_templates(self, served: Served, columns: GroupColumns) -> Served:
        """The same plan as an allocation of single templates, checked against the problem over these."""
        allocation, counts = served.result.allocation, dict[tuple[int, int], int]()
        for k, region in enumerate(allocation.region.tolist()):
            for row, instance in self._instances(served, columns, k):
                counts[row, region] = counts.get((row, region), 0) + instance.count
        single = Allocation.of(counts)
        # Requests go where the groups hold them; single templates have room for more at their mean throughput.
        items = [(t, r, n) for (t, r), n in allocation.to_mapping().items()]
        flows = request_flows(served.problem, items)
        served_phases = [p for row in allocation.template.tolist() for p, _ in columns.groups[row]]
        phases = np.isin(np.arange(len(self.groups)), served_phases)
        demand = np.where(phases, np.minimum(self.base.demand, served.problem.demand), 0.0)
        problem = replace(self.base, demand=demand, routes=())
        cost = float(problem.check(single).objective) + float(sum(flow.usd_h for flow in flows))
        bound = min(self.bound, cost)
        result = replace(
            served.result,
            allocation=single,
            cost_usd_h=cost,
            bound_usd_h=bound,
            gap=(cost - bound) / cost if cost else 0.0,
            state=None,
        )
        return replace(served, result=result, problem=problem, flows=tuple(flows))

    def _solve(self, columns: GroupColumns) -> Served:
        return solve_or_serve_less(
            columns.problem,
            "explain",
            self.request.backend,
            self.request.solve_options,
            AllocationSearchOptions(),
        )

    def _open(self, cuts: frozenset[Place]) -> tuple[list[Floats], list[Design]]:
        """Prices of groups that may stand by themselves, infinite for others and for those that were cut; designs.

        Where a region or an instance may fail a part has to survive, so groups of designs stand by themselves.
        """
        designs = [design for design in self.chosen if not cuts & set(design.groups)]
        designed = set(itertools.chain(*(self.designs.ways[design.model] for design in designs)))
        apart = any(item.measure == "tokens_s" for item in self.base.side_constraints)
        open_ = {place for design in designs for place in design.groups if apart}
        prices = [price.copy() for price in self.price]
        for p in itertools.chain(*designed):
            prices[p] = np.full_like(self.price[p], math.inf)
        for p, j in open_:
            prices[p][j] = self.price[p][j]
        for p, j in cuts:
            prices[p][j] = math.inf
        return prices, [] if apart else designs

    def _ways(self, designs: Sequence[Design]) -> list[tuple[tuple[int, ...], ...]]:
        """Ways of the models that have none of these designs."""
        designed = {design.model for design in designs}
        return [ways for model, ways in self.designs.ways.items() if model not in designed]


def _limits(phase: ModelPhase) -> dict[str, float]:
    """What the scenario calls the SLOs of a phase -> ms."""
    slo_ms = {"ttft_ms": phase.prefill_ms, "tpot_ms": phase.decode_ms}
    names = {"prefill": ("ttft_ms",), "decode": ("tpot_ms",), "mixed": tuple(slo_ms)}[phase.phase]
    return {name: slo_ms[name] for name in names}


def _said(phase: ModelPhase) -> str:
    return " and ".join(f"{name}: {ms:g}" for name, ms in _limits(phase).items())


def _smallest(values: Floats, count: int) -> float:
    """The largest of so many smallest values, infinite where there are no more."""
    return float(np.partition(values, count)[count]) if len(values) > count else math.inf


def asks_for_shares(scenario: ResolvedScenario) -> bool:
    """Whether any model is planned for a share of its requests rather than for mean ones."""
    return any(phase.attainment is not None and phase.demand_tokens_s > 0 for phase in scenario.model_phases)
