"""What all checks of a plan look at: the plan, its scenario looked up, throughput tables made anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coralopt.placement import Budgets, Coupling, Links, PlacementProblem, engine_limits
from coralopt.plan.document import Plan
from coralopt.plan.parts import PlannedInstance
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving.tolerance import close
from coralopt.throughput import (
    ThroughputTables,
    budget_tables,
    engine_runs,
    link_tables,
    only_executable,
    source_tables,
    throughput_source,
)
from coralopt.types import Floats

#: Instances with their model phase, as the verification knows them.
Known = Sequence[tuple[PlannedInstance, ModelPhase]]


def differs(first: float, second: float) -> bool:
    """Whether two figures are not the same, rounding apart; NaN differs from everything."""
    return not close(first, second)


@dataclass(frozen=True, eq=False)
class Inspected:
    """A plan and what it is held against.

    Attributes:
        plan: The plan.
        scenario: The scenario that it carries.
        tables: Throughput tables of that.
        known: Instances whose every name the scenario knows; the others are reported by the check of names.
    """

    plan: Plan
    scenario: ResolvedScenario
    tables: TablesByStage
    known: Known

    @staticmethod
    def of(plan: Plan) -> Inspected:
        """The plan with its scenario looked up.

        Raises:
            CoraloptError: The scenario is not one, or its throughput source does not cover it.
        """
        scenario = plan.resolved
        tables = TablesByStage(scenario)
        names = {configuration.name for configuration in scenario.configurations}
        known = [
            (instance, tables.phases[instance.key])
            for instance in plan.instances
            if instance.key in tables.phases and set(instance.nodes()) <= names and instance.region in scenario.regions
        ]
        return Inspected(plan, scenario, tables, known)


class TablesByStage:
    """Throughput tables by model phase, and by what a stage may take of its time or link; each is made once."""

    def __init__(self, scenario: ResolvedScenario) -> None:
        self.scenario, self.source = scenario, throughput_source(scenario.throughput_source)
        self.phases = {phase.key: phase for phase in scenario.model_phases}
        self.tables: dict[tuple[object, ...], ThroughputTables] = {}
        self.placed: dict[str, tuple[Floats, Coupling | None]] = {}
        for key in self.phases:
            self.plain(key)

    def plain(self, key: str, **how: Any) -> ThroughputTables:
        """Of a model phase with SLO / S for every stage and its own network, or as ``how`` says."""
        name = (key, *how.items())
        if name not in self.tables:
            phase, hosts = self.phases[key], self.scenario.configurations
            tables = source_tables(self.scenario.throughput_source, phase, hosts, self.scenario.max_nodes, **how)
            self.tables[name] = only_executable(tables, self.scenario.placement.engine, phase, hosts)
        return self.tables[name]

    def of_stage(self, phase: ModelPhase, instance: PlannedInstance, position: int) -> ThroughputTables | str:
        """What holds for this stage, or the sentence that says what is off."""
        rules, stage = self.scenario.placement, instance.stages[position]
        if rules.link_network and position + 1 < len(instance.stages):
            speed = {host.name: host.network_gb_s for host in self.scenario.configurations}
            slowest = min(speed[node.configuration] for node in instance.stages[position + 1].nodes)
            return self.plain(phase.key, receiver_gb_s=slowest)
        if rules.budget_units is None:
            if stage.latency_budget_ms is None:
                return self.plain(phase.key)
            return "has a latency budget of its own, but the scenario splits the SLO equally"
        unit_ms = phase.budget_ms / (rules.budget_units * len(instance.stages))
        given = unit_ms * rules.budget_units if stage.latency_budget_ms is None else stage.latency_budget_ms
        units = round(given / unit_ms)
        if units < 1 or differs(units * unit_ms, given):
            return f"has a latency budget of {given!r} ms, no whole number of units of {unit_ms!r} ms"
        if units > rules.budget_units * len(instance.stages):
            return f"has a latency budget of {given!r} ms, more than the whole pipeline"
        return self.plain(phase.key, budget_units=(units, rules.budget_units))

    def problem(self, phase: ModelPhase, nodes: dict[str, int]) -> PlacementProblem:
        """The placement problem of these nodes."""
        hosts = self.scenario.configurations
        values, coupling = self._values(phase)
        return PlacementProblem(
            values,
            tuple(nodes.get(host.name, 0) for host in hosts),
            tuple(host.name for host in hosts),
            limits=engine_limits(self.scenario.placement.engine),
            gpus=tuple(host.count for host in hosts),
            coupling=coupling,
        )

    def _values(self, phase: ModelPhase) -> tuple[Floats, Coupling | None]:
        """What placements of a model phase are made from, and what its cells are; made once."""
        if phase.key not in self.placed:
            self.placed[phase.key] = self._build_values(phase)
        return self.placed[phase.key]

    def _build_values(self, phase: ModelPhase) -> tuple[Floats, Coupling | None]:
        scenario, rules = self.scenario, self.scenario.placement
        coupling: Coupling | None = None
        hosts, values = scenario.configurations, self.plain(phase.key).values
        if rules.budget_units is not None:
            values = budget_tables(self.source, phase, hosts, scenario.max_nodes, rules.budget_units)
            coupling = Budgets(rules.budget_units)
        elif rules.link_network:
            values, classes = link_tables(self.source, phase, hosts, scenario.max_nodes)
            coupling = Links(classes)
        if coupling is not None:
            runs = engine_runs(rules.engine, phase, hosts, scenario.max_nodes)
            values = np.where(runs[:, None, :, None, None], values, 0.0)
        return values, coupling
