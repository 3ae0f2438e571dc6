"""What a plan hangs on: what binds, which alternatives were close, how cost follows prices, demand and SLOs.

Every figure is a plan of its own, solved to the same gap, not a linear price: the difference of two proven costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError, OptionError, PlanError, ScenarioError
from coralopt.plan import Plan, PlannedInstance
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.request import PlanRequest
from coralopt.planning.variation import varied
from coralopt.templates.library import COLUMNS, TemplateLibrary
from coralopt.templates.on_demand import is_on_demand
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
        instead: The instances of its model phase then, in words: how many on which nodes, where.
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
        gap_usd_h: Differences below this say nothing: the gap that the plans may have, USD/h.
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
        PlanError: Planned again it has another cost.
        CoraloptError: The plan's scenario cannot be planned any more.
    """
    if plan.planner != "coral" or plan.on_infeasible != "met":
        raise OptionError(
            f"only plans of coral that meet all demand are analysed; this one is by {plan.planner}, demand: "
            f"{plan.on_infeasible}"
        )
    options: dict[str, object] = {"rel_gap": plan.requested_gap, "time_limit": LIMIT_S}
    again = _Again(plan, PlanRequest(plan.resolved, options=options, library=library).warmed(), progress)
    nodes = sorted(again.nodes(), key=lambda item: -item.saved_usd_h)
    close = sorted(again.alternatives(), key=lambda item: (item.more_usd_h is None, item.more_usd_h or 0.0))
    curves = tuple(again.sensitivities())
    return PlanAnalysis(again.cost_usd_h, again.gap_usd_h, tuple(nodes), tuple(close), curves)


class _Again:
    """The same plan again with one thing changed.

    Attributes:
        cost_usd_h: Cost with nothing changed.
        gap_usd_h: What is not proven of it.
    """

    def __init__(self, plan: Plan, request: PlanRequest, progress: Progress | None) -> None:
        self.plan, self.request, self.progress = plan, request, progress
        same = self._planned("the plan itself", request)
        if same is None:
            raise CoraloptError(f"the plan's scenario has no plan any more within {LIMIT_S:g} s")
        self.cost_usd_h = same.cost_usd_h
        self.gap_usd_h = max(plan.gap, plan.requested_gap) * plan.cost_usd_h
        if abs(same.cost_usd_h - plan.cost_usd_h) > self.gap_usd_h + 1e-9:
            raise PlanError(
                f"the plan costs {plan.cost_usd_h:,.4f} USD/h; planned again it costs {same.cost_usd_h:,.4f}. Another "
                "version made it, or it was changed: plan the scenario anew, and analyse that plan"
            )

    def nodes(self) -> Iterator[MoreNodes]:
        """One more node of every kind that is used up, the dearest first."""
        scenario = self.request.scenario
        names = [item.name for item in scenario.configurations]
        used = np.zeros_like(scenario.availability)
        for (region, name), count in self.plan.rented_nodes().items():
            used[scenario.regions.index(region), names.index(name)] = count
        full = np.argwhere((used >= scenario.availability) & (used > 0)).tolist()
        for r, c in sorted(full, key=lambda place: -scenario.price_usd_h[place[0], place[1]])[:MOST_NODES]:
            availability = scenario.availability.copy()
            availability[r, c] += 1
            changed = scenario.with_supply(availability, scenario.price_usd_h)
            plan = self._planned(f"one more {names[c]}", replace(self.request, scenario=changed))
            if plan is not None:
                yield MoreNodes(scenario.regions[r], names[c], max(0.0, self.cost_usd_h - plan.cost_usd_h))

    def alternatives(self) -> Iterator[CloseAlternative]:
        """The plan without each of its templates of one model, wherever that stands."""
        if is_on_demand(self.request.scenario):
            return
        library = self.request.templates()[0]
        alone = [item for item in self.plan.instances if item.shared is None]
        dearest = sorted(alone, key=lambda item: -item.count * item.price_usd_h)
        templates: dict[object, PlannedInstance] = {}
        for item in dearest:
            templates.setdefault((item.key, frozenset(item.nodes().items())), item)
        for instance in list(templates.values())[:MOST_TEMPLATES]:
            plan = self._planned(f"without {_nodes(instance.nodes())}", self._without(library, instance))
            if plan is None:
                yield CloseAlternative(instance, None, "")
                continue
            mine = [item for item in plan.instances if item.key == instance.key]
            instead = "; ".join(f"{item.count} on {_nodes(item.nodes())} in {item.region}" for item in mine)
            yield CloseAlternative(instance, max(0.0, plan.cost_usd_h - self.cost_usd_h), instead)

    def _without(self, library: TemplateLibrary, instance: PlannedInstance) -> PlanRequest:
        """The request with a library that lacks the instance's template; what runs of it must go."""
        nodes, scenario = instance.nodes(), self.request.scenario
        usage = [nodes.get(name, 0) for name in library.configurations]
        phases = []
        for phase in library.phases:
            keep = np.ones(len(phase), dtype=np.bool_)
            if phase.key == instance.key:
                keep = ~(phase.usage == np.array(usage)).all(axis=1)
            phases.append(replace(phase, **{name: getattr(phase, name)[keep] for name in COLUMNS}))
        left = [
            entry
            for entry in scenario.running
            if entry.key != instance.key or {name: n for name, n in entry.nodes.items() if n} != nodes
        ]
        changed = scenario if len(left) == len(scenario.running) else scenario.with_running(left)
        warm = self.request.warm.with_library(changed, replace(library, phases=tuple(phases)))
        return replace(self.request, scenario=changed, warm=warm)

    def sensitivities(self) -> Iterator[Sensitivity]:
        """Cost over factors of the prices of each GPU type, of demand and of the SLOs of each model."""
        scenario = self.request.scenario
        used = {name for instance in self.plan.instances for name in instance.nodes()}
        gpus = dict.fromkeys(item.gpu.name for item in scenario.configurations if item.name in used)
        paths = [*(f"price.{gpu}" for gpu in gpus)]
        paths += [f"{section}.{model}" for section in ("demand", "slo") for model in scenario.model_keys.values()]
        for path in paths:
            changed = SLO_FACTORS if path.startswith("slo") else FACTORS
            costs = {1.0: self.cost_usd_h} | {factor: self._cost(path, factor) for factor in changed}
            factors = tuple(sorted(costs))
            yield Sensitivity(path, factors, tuple(costs[factor] for factor in factors))

    def _planned(self, words: str, request: PlanRequest) -> Plan | None:
        """A plan; ``None`` where there is none in time."""
        if self.progress is not None:
            self.progress(words, 0, 0)
        try:
            return CoralPlanner().plan(request).plan
        except (InfeasibleError, NoSolutionError, ScenarioError):
            return None

    def _cost(self, path: str, factor: float) -> float:
        changed = replace(self.request, scenario=varied(self.request.scenario, {path: factor}), library=None)
        plan = self._planned(f"{path} times {factor:g}", changed)
        return math.nan if plan is None else plan.cost_usd_h


def _nodes(counts: Mapping[str, int]) -> str:
    return " + ".join(name if count == 1 else f"{count} of {name}" for name, count in counts.items())
