"""What a plan would cost with one GPU type for all models: the comparison of its bill."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from coralopt.allocation import AllocationProblem, AllocationSearchOptions
from coralopt.allocation.reductions import Near, near_templates
from coralopt.errors import InfeasibleError, NoSolutionError, ScenarioError
from coralopt.plan import Plan
from coralopt.plan.bill import OneGpuRent
from coralopt.planning.coral import CoralPlanner, allocation_problem
from coralopt.planning.make_plan import make_plan
from coralopt.planning.on_demand import OnDemandSearch
from coralopt.planning.promise.search import PromiseSearch, asks_for_shares
from coralopt.planning.request import PlanOutcome, PlanRequest
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import is_on_demand, shared_patterns

#: A comparison need not be exact: relative gap, and for mean requests seconds for each GPU type.
GAP, SECONDS = 0.01, 10.0


def cheapest_of_one_gpu(request: PlanRequest, outcome: PlanOutcome, seconds: float = math.inf) -> OneGpuRent | None:
    """The cheapest plan of coral with one GPU type: every type in turn, the others taken out of the pool.

    Proven lower bounds come first, and types that cannot be the cheapest by them are not searched; a plan that has one
    type anyway is the first to beat.

    Args:
        request: What was planned.
        outcome: The plan, whose templates and tables serve again.
        seconds: For all types together; then what is known by then, with the lower bound.

    Returns:
        ``None`` where there is nothing to compare: one type in the pool, or a plan that does not meet the whole demand.
    """
    scenario, nodes = request.scenario, request.scenario.availability.max(axis=0) > 0
    gpus = np.array(scenario.gpu_types)
    names = tuple(dict.fromkeys(gpus[nodes].tolist()))
    if len(names) < 2 or outcome.plan.on_infeasible != "met":
        return None
    settings = {"certify": False} if asks_for_shares(scenario) else {}
    options = {**request.options, "rel_gap": GAP}
    search = _OneGpuSearch(
        replace(request, options=options, on_infeasible="explain", warm=outcome.warm, settings=settings),
        {
            name: scenario.with_supply(np.where(gpus == name, scenario.availability, 0), scenario.price_usd_h)
            for name in names
        },
        outcome.plan,
        seconds,
    )
    try:
        search.run()
    except KeyboardInterrupt:
        search.ended = True
    return search.rent()


class _OneGpuSearch:
    """What is known of the plans of each GPU type.

    Args:
        request: What was planned.
        scenarios: GPU type -> the scenario without all others.
        own: The plan that is compared.
        seconds: For all types together.
    """

    def __init__(
        self, request: PlanRequest, scenarios: Mapping[str, ResolvedScenario], own: Plan, seconds: float
    ) -> None:
        self.request, self.scenarios, self.own = request, scenarios, own
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        # Whether time or Ctrl-C came first.
        self.ended = False
        # What no plan of a type costs less than, and the cheapest that is known, USD/h.
        self.bounds = dict.fromkeys(scenarios, own.lower_bound_usd_h)
        self.plans: dict[str, Plan] = {}

    def run(self) -> None:
        """Look for the cheapest plan of each type, first of those that the plan rents most GPUs of."""
        hosts = {item.name: item for item in self.request.scenario.configurations}
        rented = dict.fromkeys(self.scenarios, 0)
        for (_, name), nodes in self.own.rented_nodes().items():
            rented[hosts[name].gpu.name] += nodes * hosts[name].count
        shares = asks_for_shares(self.request.scenario) and not is_on_demand(self.request.scenario)
        mark, types = self.own.certificate, [name for name, count in rented.items() if count]
        if len(types) == 1 and (mark.holds if mark is not None else not shares):
            self.plans[types[0]] = self.own
        if shares:
            self.request = self.request.warmed()
            for name in self.scenarios:
                self.bounds[name] = max(self.bounds[name], self._search(name).least())
        elif is_on_demand(self.request.scenario):
            for name in self.scenarios:
                self.bounds[name] = max(self.bounds[name], self._least_of_any_size(name))
        else:
            self.request = self.request.warmed()
            for name in self.scenarios:
                self.bounds[name] = max(self.bounds[name], self._least_of_any_supply(name))
        for name in sorted(self.scenarios, key=lambda name: (self.bounds[name], -rented[name])):
            if name in self.plans or self.bounds[name] >= self._least():
                continue
            if time.monotonic() >= self.deadline:
                self.ended = True
                break
            try:
                (self._plan_for_shares if shares else self._plan)(name)
            except (InfeasibleError, ScenarioError):
                self.bounds[name] = math.inf
            except NoSolutionError:
                # Time was over, or no plan of this type costs less than the cheapest known.
                self.ended |= self.bounds[name] < self._least()

    def rent(self) -> OneGpuRent:
        """What came of it."""
        least = min(self.bounds.values())
        saved = max(0.0, 1 - self.own.cost_usd_h / least) if least > 0 else 0.0
        seconds = time.monotonic() - self.started if self.ended else None
        gpu = min(self.plans, key=lambda name: self.plans[name].cost_usd_h, default=None)
        if gpu is None:
            return OneGpuRent(None, math.nan, tuple(self.scenarios), least, saved=saved, seconds=seconds)
        plan = self.plans[gpu]
        rent, gap = (
            plan.provisioning_usd_h + plan.egress_usd_h,
            max(0.0, 1 - least / plan.cost_usd_h) if plan.cost_usd_h else 0.0,
        )
        return OneGpuRent(gpu, rent, tuple(self.scenarios), least, gap, saved, plan is self.own, seconds)

    def _least(self) -> float:
        return min((plan.cost_usd_h for plan in self.plans.values()), default=math.inf)

    def _limited(self, name: str, seconds: float) -> PlanRequest:
        limit = min(
            self.request.solve_options.time_limit or math.inf, seconds, max(0.01, self.deadline - time.monotonic())
        )
        options = {**self.request.options, **({"time_limit": limit} if limit < math.inf else {})}
        return replace(self.request, scenario=self.scenarios[name], options=options)

    def _of_type(self, name: str) -> PlanRequest:
        """Without templates of other GPUs, which only take time; running instances of these must stay known."""
        request = self._limited(name, SECONDS)
        if request.scenario.running or is_on_demand(request.scenario):
            return request
        library, _, warm = request.templates()
        part = library.with_nodes_of(request.scenario.availability.max(axis=0) > 0)
        return replace(request, warm=warm.with_library(request.scenario, part))

    def _least_of_any_supply(self, name: str) -> float:
        """USD/h; what whole instances of this type cost at least, were there any number of nodes."""
        request = self._of_type(name)
        library, tables = request.templates()[0], request.warm.tables_of(request.scenario)
        if len(shared_patterns(request.scenario, tables)) or request.scenario.models_in_classes:
            # A template that serves several model phases is in no bound of one.
            return 0.0
        problem = allocation_problem(request.scenario, library, tables=tables)
        if _lacks_templates(problem):
            return math.inf
        return near_templates(problem, np.zeros_like(problem.price), Near(margin=0.0, most=1)).bound

    def _least_of_any_size(self, name: str) -> float:
        """USD/h; what node sets of any size of this type cost at least."""
        scenario = self.scenarios[name]
        tables, problem_of = self.request.warm.tables_of(scenario), partial(allocation_problem, scenario)
        try:
            search = OnDemandSearch(self.request, tables, problem_of, AllocationSearchOptions())
        except ScenarioError:
            return math.inf
        return search.bounds.whole_nodes(search.bounds.supply.free_of_charge, search.objective.grid).bound_usd_h

    def _plan(self, name: str) -> None:
        request = self._of_type(name)
        outcome = CoralPlanner().plan(request)
        self.plans[name], self.bounds[name] = outcome.plan, max(self.bounds[name], outcome.plan.lower_bound_usd_h)
        if outcome.interrupted:
            raise KeyboardInterrupt

    def _plan_for_shares(self, name: str) -> None:
        search, scenario = self._search(name), self.scenarios[name]
        try:
            served, placements = search.run()
        finally:
            self.bounds[name] = max(self.bounds[name], search.least())
            self.ended |= bool(search.cut_short)
        if not search.unconfirmed:
            tables = self.request.warm.tables_of(scenario)
            library = self.request.templates()[0]
            self.plans[name] = make_plan(scenario, library, tables, served, self.request.backend, GAP, placements)
        if search.cut_short == "Ctrl-C":
            raise KeyboardInterrupt

    def _search(self, name: str) -> PromiseSearch:
        request, scenario = self._limited(name, math.inf), self.scenarios[name]
        tables, library = request.warm.tables_of(scenario), request.templates()[0]
        problem = allocation_problem(scenario, library, tables=tables)
        return PromiseSearch(request, library, tables, replace(problem, unmet_price=None), ceiling=self._least())


def _lacks_templates(problem: AllocationProblem) -> bool:
    """Whether some demand that must be met has no template at all."""
    served = np.isin(np.arange(len(problem.demand)), problem.phase[problem.throughput > 0])
    return bool(((problem.demand > 0) & ~served).any()) and problem.unmet_price is None and not problem.unmet_tiers
