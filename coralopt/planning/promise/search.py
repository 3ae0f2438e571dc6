"""The cheapest plan whose model phases hold their SLOs for the share of requests asked for; docs/concepts/promise.md.

Lower bounds come from what groups hold at most, plans from what they were seen to hold; whatever decides the cheapest plan
is simulated until both meet. What one phase does to another (KV transfers from the prefill nodes, their memory) is in no
group's capacity: the instances of a model are simulated together, and where that fails, the cheapest plan without one of its
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
    AllocationProblem,
    AllocationSearchOptions,
    Served,
    fewest_gpus,
    solve_or_serve_less,
)
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.placement import Placement
from coralopt.plan.certificate import RefusedInstances
from coralopt.planning.promise.capacities import PARTS, PRICE_TOLERANCE, Groups, Place
from coralopt.planning.promise.columns import GroupColumns, least_price
from coralopt.planning.promise.combinations import all_together
from coralopt.planning.promise.cover_search import FREE_GPU, CoverSearch
from coralopt.planning.promise.designs import Design, Designs
from coralopt.planning.promise.group_plan import GroupPlan, SingleTemplates
from coralopt.planning.promise.oracle import PhaseOracle
from coralopt.planning.promise.refusals import Refusals
from coralopt.planning.promise.regions import RegionCosts
from coralopt.planning.promise.restricted import find_of_one_gpu, find_side_by_side
from coralopt.planning.promise.room import Room
from coralopt.planning.promise.together import Together, TogetherRaces
from coralopt.planning.promise.workers import OutOfTimeError, Workers
from coralopt.planning.request import PlanRequest
from coralopt.planning.stages import StageTables
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.groups import GroupSimulator
from coralopt.templates import TemplateLibrary
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats, Ints

#: Replications a phase after which a search with a ceiling looks whether anything below it is left.
REPLICATIONS_AT_ONCE = 16
#: Further replications a phase in search of any cover, and as many in search of groups that the pool has room for.
FURTHER = 100
#: Part of the time limit after which models without a design get one before the search for cheaper groups goes on.
FOR_GROUPS = 0.5
#: Plans whose models are simulated together, at most.
MOST_PLANS = 60
#: Allocations at what groups hold at most, at most; how many may come without a rise of the bound that is worth them;
#: columns of one.
MOST_BOUNDS, WORTH, PATIENCE, MOST_COLUMNS = 40, 1e-3, 4, 20_000


class PromiseSearch:
    """The search over one scenario.

    Args:
        request: What to plan.
        library: Its templates.
        tables: Its throughput tables.
        base: The allocation problem over single templates at their mean throughput; all demand is to be met.
        remember: Whether capacities are kept from one search to the next.
        ceiling: The search ends as soon as it is known that no plan costs less, USD/h.
        refused: Instances that certificates did not confirm; they are no design.

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
        refused: Sequence[RefusedInstances] = (),
    ) -> None:
        self.ceiling = ceiling
        self.request, self.library, self.base, self.remember = request, library, base, remember
        scenario = request.scenario
        self.scenario: ResolvedScenario = scenario
        self.gap = request.solve_options.rel_gap or 0.0
        simulator = GroupSimulator(scenario)
        of_stages = StageTables(scenario, tables)
        most = base.most_instances()
        self.groups: list[Groups] = []
        prices: list[Floats] = []
        for p, phase in enumerate(scenario.model_phases):
            oracle = PhaseOracle(scenario, phase, library.phases[p], of_stages, simulator, remember)
            fits = most.max(axis=1)[library.offsets[p] :][: len(library.phases[p])]
            demand, replicas = float(base.demand[p]), int(base.replicas[p])
            if demand == 0 and replicas:
                # Idle replicas: any of its templates holds all of so little.
                throughput = library.phases[p].throughput
                demand = float(throughput[throughput > 0].min(initial=2.0)) / 2
            groups = Groups.of(oracle, demand, fits, replicas)
            self.groups.append(groups)
            prices.append(least_price(base, library, p, groups, most))
        room = Room.of(base, library, self.groups)
        if len(room.limits):
            prices = [np.where(room.fits_alone(p), price, math.inf) for p, price in enumerate(prices)]
        # Wherever it is cheapest.
        self.price = [price.min(axis=1) for price in prices]
        self.regions = {routes.model: RegionCosts(self.groups, prices, routes) for routes in base.routes}
        digests = [groups.oracle.digest for groups in self.groups]
        limit = request.solve_options.time_limit
        self._deadline = math.inf if limit is None else time.monotonic() + limit
        self.workers = Workers(request.progress, None if limit is None else limit * FOR_GROUPS)
        self.refusals = Refusals(scenario, self.groups, base.demand, self.workers)
        self.singles = SingleTemplates(scenario, library, self.groups, base)
        self.races = TogetherRaces(scenario, simulator, digests, self.workers, remember, refused)
        # Of designs that cost nothing, those of few GPUs are looked at first, too.
        gpus = [self._gpus(p) for p in range(len(self.groups))]
        apart = [np.where(price == 0, FREE_GPU * own[:, None], price) for own, price in zip(gpus, prices, strict=True)]
        self.designs = Designs(scenario, self.groups, apart, self.races, room)
        at_once = math.inf if math.isinf(ceiling) else REPLICATIONS_AT_ONCE
        self.covers = CoverSearch(self.groups, gpus, self.gap, self.workers, at_once, self._check_ceiling)
        self.chosen: list[Design] = []
        self.bound = 0.0
        self.cut_short, self.unconfirmed = "", tuple[str, ...]()
        # Left for groups that the pool has room for.
        self.replications_for_room: float = FURTHER * len(self.groups)

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
            raise self.refusals.too_soon(Workers(self.request.progress)) from None
        finally:
            # What was found out is kept, whatever ends the search.
            if self.remember:
                self.races.save()
                for groups in self.groups:
                    groups.oracle.save()

    def _run(self) -> tuple[Served, Mapping[int, Placement]]:
        try:
            of_groups = self._of_groups()
        except OutOfTimeError:
            # Better some design of each model than cheaper groups, which may serve few requests together.
            self.workers.go_on(self._deadline - time.monotonic())
            self.designs.some_of_each()
            of_groups = self._of_groups()
        if self._deadline < math.inf:
            self.workers.go_on(self._deadline - time.monotonic())
        self.designs.search()
        find_of_one_gpu(self.designs)
        together = all_together(self.designs, self.price, self.regions)
        self.bound = max(self.bound, self.designs.least(self._costs(held=False), together)[0])
        of_designs = self._of_designs()
        if of_designs is None or of_designs.cost_usd_h > self._alone() * (1 + self.gap + PRICE_TOLERANCE):
            # The cheapest designs want the same nodes.
            find_side_by_side(self.designs)
            of_designs = self._of_designs()
            self._race_side_by_side(math.inf if of_designs is None else of_designs.cost_usd_h)
            of_designs = self._of_designs()
        if of_designs is None:
            # There are too few nodes for the cheapest designs of all models at once.
            self.chosen, of_designs = [], of_groups
        return self.singles.served(self._holding(of_designs), self.bound)

    def _costs(self, held: bool) -> list[float]:
        """Price of the cheapest groups of each phase that were seen to hold it, or that may, USD/h."""
        pairs = zip(self.groups, self.price, strict=True)
        return [float(groups.covers(groups.least if held else groups.most, price)[PARTS]) for groups, price in pairs]

    def _alone(self) -> float:
        """Sum of what the cheapest design known of each model costs, or the cheapest groups of each phase, USD/h."""
        best = {model: self.designs.ceiling(model) for model in self.designs.raced}
        return self.designs.least(self._costs(held=True), best)[0]

    def _of_groups(self) -> GroupPlan:
        """The cheapest plan of groups that hold by themselves; finds the bound, too."""
        plan = self._cheapest(frozenset())
        self.bound = self._bound(plan.cost_usd_h)
        return plan

    def _known_by_now(self) -> tuple[Served, Mapping[int, Placement]] | None:
        """The cheapest plan of the designs known so far; of other models those that missed least, or, where nothing was
        simulated together yet, groups that hold by themselves."""
        self.bound = self.least()
        known = self.designs.in_order
        held = {design.model for design in known}
        nearest = [design for model, (_, design) in self.designs.nearest.items() if model not in held]
        for designs in ([*known, *nearest], known, []):
            self.chosen = designs
            with contextlib.suppress(InfeasibleError, NoSolutionError):
                plan = self._cheapest_by_ways(*self._open(frozenset()))
                self.unconfirmed = tuple(sorted(self.designs.raced - self._confirmed(plan)))
                return self.singles.served(plan, self.bound)
        return None

    def _confirmed(self, plan: GroupPlan) -> set[str]:
        """Models whose groups in a plan are just those of a design that was seen to hold."""
        of_model: dict[str, set[Place]] = {}
        for place in plan.places:
            of_model.setdefault(self.scenario.model_phases[place[0]].served, set()).add(place)
        known = {(design.model, frozenset(design.groups)) for design in self.designs.known}
        return {model for model, places in of_model.items() if (model, frozenset(places)) in known}

    def least(self) -> float:
        """What no plan of the family costs less than, by what is known so far, USD/h."""
        return max(self.bound, self.designs.least(self._costs(held=False))[0])

    def _holding(self, plan: GroupPlan) -> GroupPlan:
        """The first plan whose models hold together, or that which came nearest: from each to the cheapest without one of
        the groups of a model that does not."""
        cuts: frozenset[Place] = frozenset()
        nearest: tuple[float, GroupPlan] | None = None
        for _ in range(MOST_PLANS):
            failing, least, models = self._failing(plan)
            if nearest is None or not failing or least > nearest[0]:
                nearest, self.unconfirmed = (least, plan), models
            without = [(cuts | {cut}, self._without(cuts | {cut})) for cut in failing]
            others = [(other_cuts, other) for other_cuts, other in without if other is not None]
            if not others or self.designs.used_up:
                break
            cuts, plan = min(others, key=lambda other: other[1].cost_usd_h)
        assert nearest is not None
        return nearest[1]

    def _of_designs(self) -> GroupPlan | None:
        """The cheapest plan of designs that were seen to hold, if there is one."""
        self.chosen = self.designs.in_order
        return self._without(frozenset()) if self.chosen else None

    def _race_side_by_side(self, cost: float) -> None:
        """Race what plans of groups have for each model, since it has room beside the others: as long as they cost less than
        some plan, from each to the cheapest without one of the groups of a model that does not hold."""
        cuts: frozenset[Place] = frozenset()
        self.chosen = []
        plan = self._without(cuts)
        for _ in range(MOST_PLANS):
            if plan is None or plan.cost_usd_h >= cost * (1 - PRICE_TOLERANCE) or self.designs.used_up:
                return
            of_model: dict[str, list[Place]] = {}
            for place in plan.places:
                model = self.scenario.model_phases[place[0]].served
                if model in self.designs.raced:
                    of_model.setdefault(model, []).append(place)
            held = self.workers.map(lambda own: self.designs.hold(own[0], tuple(own[1])), of_model.items())
            failing = next((own for own, holds in zip(of_model.values(), held, strict=True) if not holds), [])
            without = [(cuts | {cut}, self._without(cuts | {cut})) for cut in dict.fromkeys(failing)]
            others = [(other_cuts, other) for other_cuts, other in without if other is not None]
            if not others:
                return
            cuts, plan = min(others, key=lambda other: other[1].cost_usd_h)

    def _without(self, cuts: frozenset[Place]) -> GroupPlan | None:
        """The cheapest plan without these groups, ``None`` where there is none."""
        try:
            return self._cheapest(cuts)
        except (InfeasibleError, NoSolutionError):
            return None

    def _cheapest(self, cuts: frozenset[Place]) -> GroupPlan:
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
                before = self.covers.replications
                if not self.covers.settle(self._solve(best).places):
                    raise
                spent = self.covers.replications - before
                self.replications_for_room -= int(spent.sum())
                if self.replications_for_room < 0:
                    raise self.refusals.in_vain(int(np.argmax(spent))) from None

    def _look(self, prices: Sequence[Floats], ways: Sequence[tuple[tuple[int, ...], ...]], may_refuse: bool) -> None:
        """Find out what decides the cheapest covers of these ways to serve models.

        Raises:
            ScenarioError: Not even idle instances meet an SLO for the share of requests asked for.
            NoSolutionError: They do, but no group was seen to.
        """
        known = self.covers.tighten({p: prices[p] for p in itertools.chain(*itertools.chain(*ways))})
        for several in ways if may_refuse else ():
            # Nothing holds, or nothing was seen to hold for long: maybe nothing can.
            for end in (0, 1) if len(several) == 1 else (0,):
                hopeless = [[p for p in way if math.isinf(known[p][end])] for way in several]
                if all(hopeless):
                    self.refusals.check_slo(hopeless[0][0])
        unseen = [p for p, (low, high) in known.items() if low < high == math.inf]
        covers = self.workers.map(lambda p: self.covers.tighten_one(p, prices[p], FURTHER, FURTHER), unseen)
        in_vain = {p for p, (_, high) in zip(unseen, covers, strict=True) if math.isinf(high)}
        for several in ways:
            if all(in_vain & set(way) for way in several):
                raise self.refusals.in_vain(min(in_vain & set(several[0])))
        if unseen:
            # What holds them was seen late; cheaper groups may, too.
            self.covers.tighten({p: prices[p] for p in unseen if p not in in_vain})

    def _cheapest_by_ways(self, prices: Sequence[Floats], designs: Sequence[Design]) -> GroupPlan:
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
        best: GroupPlan | None = None
        failure: InfeasibleError | NoSolutionError | None = None
        for cost, phases in combined:
            # Without scarce nodes the first is the best; its reasons are given where nothing can be met.
            if (best is not None and cost >= best.cost_usd_h) or (failure is not None and math.isinf(cost)):
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
                    plan = self._solve(columns)
                except (InfeasibleError, NoSolutionError) as error:
                    if math.isinf(dearer):
                        failure = failure or error
                    continue
                if best is None or plan.cost_usd_h < best.cost_usd_h:
                    best = plan
                if plan.cost_usd_h <= enough:
                    break
        if best is None:
            assert failure is not None
            raise failure
        gpus = np.array([host.count for host in self.scenario.configurations])
        options = self.request.solve_options
        result = fewest_gpus(best.columns.problem, best.served.result, gpus, self.request.backend, options)
        return replace(best, served=replace(best.served, result=result))

    def _bound(self, cost: float) -> float:
        """A lower bound on every plan of the family, USD/h; groups that decide it are simulated."""
        bound_usd_h, worth, in_vain = 0.0, 0.0, 0
        for _ in range(MOST_BOUNDS):
            pairs = list(zip(self.groups, self.price, strict=True))
            least = [groups.covers(groups.most, price) for groups, price in pairs]
            floor, others = self.designs.least([float(bound[PARTS]) for bound in least])
            bound_usd_h = min(cost, max(floor, bound_usd_h))
            held, _ = self.designs.least(self._costs(held=True))
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
                plan = self._solve(columns)
            except (InfeasibleError, NoSolutionError):
                # Nothing cheaper than the plan there is, or than what was left out.
                return max(bound_usd_h, ceiling)
            bound_usd_h = max(bound_usd_h, min(ceiling, plan.served.result.bound_usd_h))
            if bound_usd_h >= worth:
                worth, in_vain = bound_usd_h * (1 + WORTH), -1
            in_vain += 1
            if bound_usd_h >= cost * (1 - self.gap) or in_vain >= PATIENCE:
                break
            if not self._tighten_there(plan) and not self.covers.settle(plan.places):
                break
        return bound_usd_h

    def _tighten_there(self, plan: GroupPlan) -> bool:
        """Close covers in the regions where a plan has them; whether anything was simulated."""
        regions = plan.served.result.allocation.region.tolist()
        where = {p: region for own, region in zip(plan.chosen, regions, strict=True) for p, _ in own}
        return self.covers.tighten_there({p: self.designs.price[p][:, region] for p, region in where.items()})

    def _check_ceiling(self) -> None:
        if self.ceiling <= self.least() < math.inf:
            raise NoSolutionError(f"no plan costs less than {self.ceiling:,.4f} USD/h", None)

    def _gpus(self, p: int) -> Ints:
        """int64 (J,): GPUs of each group of model phase ``p``."""
        groups, each = self.groups[p], np.array([host.count for host in self.scenario.configurations])
        usage = self.base.usage[self.library.offsets[p] :][: len(self.library.phases[p])].astype(np.int64)
        return np.asarray((usage @ each)[groups.template] * groups.count)

    def _failing(self, plan: GroupPlan) -> tuple[list[Place], float, tuple[str, ...]]:
        """Groups of which one must go, since the instances of a model do not hold together; least share that met; and all
        models of which that is so."""
        chosen = plan.chosen
        of_model: dict[str, list[int]] = {}
        for k, own in enumerate(chosen):
            phase = self.scenario.model_phases[own[0][0]]
            if phase.demand_tokens_s > 0:
                of_model.setdefault(phase.model.name, []).append(k)

        def race(rows: Sequence[int]) -> Together:
            return self.races.race(tuple(instance for k in rows for _, instance in self.singles.instances(plan, k)))

        outcomes = self.workers.map(race, of_model.values())
        failing = {
            model: k for (model, k), outcome in zip(of_model.items(), outcomes, strict=True) if not outcome.holds
        }
        cuts = [place for k in next(iter(failing.values()), ()) for place in chosen[k]]
        return cuts, min((outcome.least for outcome in outcomes), default=1.0), tuple(sorted(failing))

    def _solve(self, columns: GroupColumns) -> GroupPlan:
        options = self.request.solve_options
        served = solve_or_serve_less(
            columns.problem, "explain", self.request.backend, options, AllocationSearchOptions()
        )
        return GroupPlan(served, columns, self.chosen)

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


def _smallest(values: Floats, count: int) -> float:
    """The largest of so many smallest values, infinite where there are no more."""
    return float(np.partition(values, count)[count]) if len(values) > count else math.inf


def asks_for_shares(scenario: ResolvedScenario) -> bool:
    """Whether any model is planned for a share of its requests rather than for mean ones."""
    return any(phase.attainment is not None and phase.demand_tokens_s > 0 for phase in scenario.model_phases)
