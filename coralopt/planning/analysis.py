"""What a plan hangs on: what binds, which alternatives were close, how cost follows prices, demand and SLOs.

Every figure is a plan of its own, solved to the same gap, not a linear price: the difference of two proven costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationSearchOptions,
    AllocationState,
    solve_allocation,
)
from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError, OptionError, ScenarioError
from coralopt.plan import Plan, PlannedInstance
from coralopt.planning.coral import CoralPlanner, allocation_problem
from coralopt.planning.request import PlanRequest
from coralopt.planning.sweep import varied
from coralopt.templates import TemplateLibrary
from coralopt.types import Progress

#: Most kinds of nodes and most templates that are looked at, and seconds for one plan.
MOST_NODES, MOST_TEMPLATES, LIMIT_S = 12, 12, 60.0
#: Factors on prices and demand, and on SLOs, whose templates are built anew.
FACTORS, SLO_FACTORS = (0.75, 0.9, 1.1, 1.25), (0.75, 1.5)


@dataclass(frozen=True)
class MoreNodes:
    """One more node of a kind.

    Attributes:
        region, configuration: Which.
        saved_usd_h: What the plan would cost less, USD/h.
    """

    region: str
    configuration: str
    saved_usd_h: float


@dataclass(frozen=True)
class CloseAlternative:
    """The best plan without one of the templates in use.

    Attributes:
        instance: What is left out.
        more_usd_h: What that plan costs more, USD/h; ``None`` where there is no plan without it.
        instead: The instances of its model phase then, in words.
    """

    instance: PlannedInstance
    more_usd_h: float | None
    instead: str


@dataclass(frozen=True)
class Sensitivity:
    """How cost follows one factor.

    Attributes:
        path: As of a sweep, ``price.L40S``.
        factors: Ascending, 1 among them.
        costs: USD/h, NaN where there is no plan.
    """

    path: str
    factors: tuple[float, ...]
    costs: tuple[float, ...]


@dataclass(frozen=True)
class PlanAnalysis:
    """What a plan hangs on.

    Attributes:
        cost_usd_h: The plan's cost.
        gap_usd_h: Differences below this say nothing: the gap that the plans were asked for, USD/h.
        nodes: Kinds of nodes that are used up, the most valuable first.
        alternatives: The templates in use, the least needed first.
        sensitivities: Prices by GPU type, then demand and SLOs by model.
    """

    cost_usd_h: float
    gap_usd_h: float
    nodes: tuple[MoreNodes, ...]
    alternatives: tuple[CloseAlternative, ...]
    sensitivities: tuple[Sensitivity, ...]


def analyse_plan(plan: Plan, library: Path | None = None, progress: Progress | None = None) -> PlanAnalysis:
    """Plan again and again with one thing changed: minutes where one plan takes seconds.

    Args:
        plan: A plan of coral that meets all demand.
        library: Its template library; the cache directory when ``None``.
        progress: Told about each plan.

    Raises:
        OptionError: Another planner's plan, or one that leaves demand unmet.
        CoraloptError: The plan's scenario cannot be planned any more.
    """
    if plan.planner != "coral" or plan.on_infeasible != "met":
        raise OptionError(
            f"only plans of coral that meet all demand are analysed; this one is by {plan.planner}, demand: "
            f"{plan.on_infeasible}"
        )
    options: dict[str, object] = {"rel_gap": plan.requested_gap, "time_limit": LIMIT_S}
    request = PlanRequest(plan.resolved, options=options, library=library).warmed()
    again = _Again(plan, request, request.templates()[0], progress)
    nodes = sorted(again.nodes(), key=lambda item: -item.saved_usd_h)
    close = sorted(again.alternatives(), key=lambda item: (item.more_usd_h is None, item.more_usd_h or 0.0))
    curves = tuple(again.sensitivities())
    return PlanAnalysis(again.cost_usd_h, plan.requested_gap * again.cost_usd_h, tuple(nodes), tuple(close), curves)


class _Again:
    """The same plan again with one thing changed.

    Attributes:
        cost_usd_h: Cost with nothing changed.
    """

    def __init__(self, plan: Plan, request: PlanRequest, library: TemplateLibrary, progress: Progress | None) -> None:
        self.plan, self.request, self.library, self.progress = plan, request, library, progress
        self.problem = allocation_problem(request.scenario, library)
        self.state: AllocationState | None = None
        result = self._solved(self.problem, "the plan itself")
        if result is None:
            raise CoraloptError(f"the plan's scenario has no plan any more within {LIMIT_S:g} s")
        self.cost_usd_h, _ = result

    def nodes(self) -> Iterator[MoreNodes]:
        """One more node of every kind that is used up, those first that the allocation's capacity prices value most."""
        problem, used = self.problem, np.zeros_like(self.problem.availability)
        for instance in self.plan.instances:
            for name, count in instance.nodes().items():
                place = problem.region_names.index(instance.region), problem.configuration_names.index(name)
                used[place] += instance.count * count
        full = (used >= problem.availability) & (used > 0)
        value = np.zeros(full.shape) if self.state is None else self.state.capacity_prices
        for r, c in sorted(np.argwhere(full).tolist(), key=lambda place: -value[place[0], place[1]])[:MOST_NODES]:
            availability = problem.availability.copy()
            availability[r, c] += 1
            region, configuration = problem.region_names[r], problem.configuration_names[c]
            result = self._solved(replace(problem, availability=availability), f"one more {configuration} in {region}")
            if result is not None:
                yield MoreNodes(region, configuration, max(0.0, self.cost_usd_h - result[0]))

    def alternatives(self) -> Iterator[CloseAlternative]:
        """The plan without each of its templates, wherever that stands."""
        problem = self.problem
        dearest = sorted(self.plan.instances, key=lambda item: -item.count * item.price_usd_h)
        templates = {(item.key, tuple(sorted(item.nodes().items()))): item for item in reversed(dearest)}
        for instance in list(reversed(templates.values()))[:MOST_TEMPLATES]:
            phase = problem.phase_names.index(instance.key)
            usage = [instance.nodes().get(name, 0) for name in problem.configuration_names]
            local = self.library.phases[phase].find(usage)
            if local is None:
                continue
            keep = np.arange(len(problem.throughput)) != self.library.offsets[phase] + local
            rows = {name: getattr(problem, name)[keep] for name in ("usage", "throughput", "phase")}
            running = None if problem.running is None else problem.running[keep]
            words = f"without {instance.key} on {_nodes(instance.nodes())}"
            result = self._solved(replace(problem, **rows, running=running), words)
            if result is None:
                yield CloseAlternative(instance, None, "")
                continue
            kinds = np.flatnonzero(keep)[result[1].template]
            instead = [
                f"{count} of {_nodes(self._usage(int(t)))} in {problem.region_names[r]}"
                for t, r, count in zip(kinds, result[1].region, result[1].count, strict=True)
                if problem.phase[t] == phase
            ]
            yield CloseAlternative(instance, max(0.0, result[0] - self.cost_usd_h), "; ".join(instead))

    def sensitivities(self) -> Iterator[Sensitivity]:
        """Cost over factors of the prices of each GPU type, of demand and of the SLOs of each model."""
        scenario = self.request.scenario
        used = {name for instance in self.plan.instances for name in instance.nodes()}
        gpus = dict.fromkeys(item.gpu.name for item in scenario.configurations if item.name in used)
        paths = [*(f"price.{gpu}" for gpu in gpus)]
        paths += [f"{section}.{model}" for section in ("demand", "slo") for model in scenario.model_keys.values()]
        for path in paths:
            changed = SLO_FACTORS if path.startswith("slo") else FACTORS
            costs = {1.0: self.cost_usd_h} | {factor: self._planned(path, factor) for factor in changed}
            factors = tuple(sorted(costs))
            yield Sensitivity(path, factors, tuple(costs[factor] for factor in factors))

    def _usage(self, template: int) -> dict[str, int]:
        counts = self.problem.usage[template]
        return {name: int(n) for name, n in zip(self.problem.configuration_names, counts, strict=True) if n}

    def _solved(self, problem: AllocationProblem, words: str) -> tuple[float, Allocation] | None:
        """Cost and allocation; ``None`` where there is none in time."""
        self._tell(words)
        search = AllocationSearchOptions(state=self.state, explained=False)
        try:
            result = solve_allocation(problem, self.request.backend, self.request.solve_options, search)
        except (InfeasibleError, NoSolutionError):
            return None
        self.state = self.state or result.state
        return result.cost_usd_h, result.allocation

    def _planned(self, path: str, factor: float) -> float:
        self._tell(f"{path} times {factor:g}")
        try:
            scenario = varied(self.request.scenario, {path: factor})
            return CoralPlanner().plan(replace(self.request, scenario=scenario)).plan.cost_usd_h
        except (InfeasibleError, NoSolutionError, ScenarioError):
            return math.nan

    def _tell(self, words: str) -> None:
        if self.progress is not None:
            self.progress(words, 0, 0)


def _nodes(counts: Mapping[str, int]) -> str:
    return " + ".join(name if count == 1 else f"{count} of {name}" for name, count in counts.items())
