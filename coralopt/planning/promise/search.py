"""The cheapest plan whose model phases hold their SLOs for the share of requests asked for; docs/concepts/promise.md.

Lower bounds come from what groups hold at most, plans from what they were seen to hold; whatever decides the cheapest plan
is simulated until both meet. What one phase does to another (KV transfers from the prefill nodes, their memory) is in no
group's capacity: the instances of a model are simulated together, and where that fails, the cheapest plan without one of its
groups is next.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from coralopt.allocation import AllocationProblem, Served
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.placement import Placement
from coralopt.plan.certificate import RefusedInstances
from coralopt.planning.promise.capacities import PRICE_TOLERANCE, Groups, Place
from coralopt.planning.promise.cheapest import CheapestPlans
from coralopt.planning.promise.columns import least_price
from coralopt.planning.promise.combinations import all_together
from coralopt.planning.promise.cover_search import FREE_GPU, CoverSearch
from coralopt.planning.promise.design_search import DesignSearch
from coralopt.planning.promise.designs import Designs
from coralopt.planning.promise.group_plan import GroupPlan, SingleTemplates
from coralopt.planning.promise.in_room import least_in_room
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
#: Part of the time limit after which models without a design get one before the search for cheaper groups goes on.
FOR_GROUPS = 0.5
#: Plans whose models are simulated together, at most.
MOST_PLANS = 60


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

    Raises:
        InfeasibleError: Not even one instance of some phase is within the limits.

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
            within = [np.where(room.fits_alone(p), price, math.inf) for p, price in enumerate(prices)]
            for phase, price, left in zip(scenario.model_phases, prices, within, strict=True):
                if phase.demand_tokens_s > 0 and np.isfinite(price).any() and not np.isfinite(left).any():
                    names = ", ".join(row.name for row in base.side_constraints if row.sense == "most")
                    raise InfeasibleError(f"no instance of {phase.key} is within {names}")
            prices = within
        self.prices = prices
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
        self.cheapest = CheapestPlans(request, base, library, self.price, self.covers, self.designs, self.refusals)
        self.bound = 0.0
        self.cut_short, self.unconfirmed = "", tuple[str, ...]()

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
            DesignSearch(self.designs).some_of_each()
            of_groups = self._of_groups()
        if self._deadline < math.inf:
            self.workers.go_on(self._deadline - time.monotonic())
        DesignSearch(self.designs).search()
        find_of_one_gpu(self.designs)
        together = all_together(self.designs, self.price, self.regions)
        self.bound = max(self.bound, self.designs.least(self.cheapest.costs(held=False), together)[0])
        of_designs = self._of_designs()
        if of_designs is None or of_designs.cost_usd_h > self._alone() * (1 + self.gap + PRICE_TOLERANCE):
            # The cheapest designs want the same nodes.
            find_side_by_side(self.designs)
            of_designs = self._of_designs()
            self._race_side_by_side(math.inf if of_designs is None else of_designs.cost_usd_h)
            of_designs = self._of_designs()
            cost = math.inf if of_designs is None else of_designs.cost_usd_h
            # A search with a ceiling is for comparison only.
            if self.bound < cost * (1 - self.gap) and math.isinf(self.ceiling):
                routes = {model: own.routes for model, own in self.regions.items()}
                prices, solver = self.cheapest.node_prices, self.request.backend
                bound = least_in_room(self.designs, self.prices, routes, prices, cost, solver)
                # Infinite where no combinations have room beside each other: what is left is a plan that is not confirmed.
                if math.isfinite(bound):
                    self.bound = max(self.bound, min(cost, bound))
                of_designs = self._of_designs()
        if of_designs is None:
            # There are too few nodes for the cheapest designs of all models at once.
            self.cheapest.chosen, of_designs = [], of_groups
        return self.singles.served(self._holding(of_designs), self.bound)

    def _alone(self) -> float:
        """Sum of what the cheapest design known of each model costs, or the cheapest groups of each phase, USD/h."""
        best = {model: self.designs.ceiling(model) for model in self.designs.raced}
        return self.designs.least(self.cheapest.costs(held=True), best)[0]

    def _of_groups(self) -> GroupPlan:
        """The cheapest plan of groups that hold by themselves; finds the bound, too."""
        plan = self.cheapest.plan(frozenset())
        self.bound = self.cheapest.bound(plan.cost_usd_h)
        return plan

    def _known_by_now(self) -> tuple[Served, Mapping[int, Placement]] | None:
        """The cheapest plan of the designs known so far; of other models those that missed least, or, where nothing was
        simulated together yet, groups that hold by themselves."""
        self.bound = self.least()
        known = self.designs.in_order
        held = {design.model for design in known}
        nearest = [design for model, (_, design) in self.designs.nearest.items() if model not in held]
        for designs in ([*known, *nearest], known, []):
            self.cheapest.chosen = designs
            with contextlib.suppress(InfeasibleError, NoSolutionError):
                plan = self.cheapest.by_ways(*self.cheapest.open_(frozenset()))
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
        return max(self.bound, self.designs.least(self.cheapest.costs(held=False))[0])

    def _holding(self, plan: GroupPlan) -> GroupPlan:
        """The first plan whose models hold together, or that which came nearest: from each to the cheapest without one of
        the groups of a model that does not."""
        cuts: frozenset[Place] = frozenset()
        nearest: tuple[float, GroupPlan] | None = None
        for _ in range(MOST_PLANS):
            failing, least, models = self._failing(plan)
            if nearest is None or not failing or least > nearest[0]:
                nearest, self.unconfirmed = (least, plan), models
            without = [(cuts | {cut}, self.cheapest.without(cuts | {cut})) for cut in failing]
            others = [(other_cuts, other) for other_cuts, other in without if other is not None]
            if not others or self.designs.used_up:
                break
            cuts, plan = min(others, key=lambda other: other[1].cost_usd_h)
        assert nearest is not None
        return nearest[1]

    def _of_designs(self) -> GroupPlan | None:
        """The cheapest plan of designs that were seen to hold, if there is one."""
        self.cheapest.chosen = self.designs.in_order
        return self.cheapest.without(frozenset()) if self.cheapest.chosen else None

    def _race_side_by_side(self, cost: float) -> None:
        """Race what plans of groups have for each model, since it has room beside the others: as long as they cost less than
        some plan, from each to the cheapest without one of the groups of a model that does not hold."""
        cuts: frozenset[Place] = frozenset()
        self.cheapest.chosen = []
        plan = self.cheapest.without(cuts)
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
            without = [(cuts | {cut}, self.cheapest.without(cuts | {cut})) for cut in dict.fromkeys(failing)]
            others = [(other_cuts, other) for other_cuts, other in without if other is not None]
            if not others:
                return
            cuts, plan = min(others, key=lambda other: other[1].cost_usd_h)

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


def asks_for_shares(scenario: ResolvedScenario) -> bool:
    """Whether any model is planned for a share of its requests rather than for mean ones."""
    return any(phase.attainment is not None and phase.demand_tokens_s > 0 for phase in scenario.model_phases)
