"""What planning one scenario leaves for the next, similar one: throughput tables, templates, capacity prices.

Demand, supply and prices decide neither tables nor templates; a latency budget decides those of its own model phase. So
epochs, rounds of verified planning and shares of a demand all plan from what the plan before them was made of.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from coralopt.allocation import AllocationState
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import (
    PhaseTemplates,
    TemplateLibrary,
    build_library,
    check_slos,
    library_digest,
    scenario_tables,
)
from coralopt.throughput import ThroughputTables
from coralopt.types import Progress


@dataclass(frozen=True, eq=False)
class WarmState:
    """What an outcome leaves for the next request.

    Attributes:
        tables: Throughput tables by what decides them.
        phases: Templates of model phases by the same.
        library: The library of the last plan.
        prices: Capacity prices of the last allocation; ``None`` solves without.
    """

    tables: Mapping[Hashable, ThroughputTables] = field(default_factory=dict)
    phases: Mapping[Hashable, PhaseTemplates] = field(default_factory=dict)
    library: TemplateLibrary | None = None
    prices: AllocationState | None = None

    def covering(self, scenario: ResolvedScenario) -> WarmState:
        """With the tables of this scenario, too; only those not known are made.

        Raises:
            CoraloptError: The throughput source does not cover a model or a GPU.
        """
        missing = [phase for phase in scenario.model_phases if _decides(scenario, phase) not in self.tables]
        if not missing:
            return self
        tables = scenario_tables(replace(scenario, model_phases=tuple(missing)))
        more = {_decides(scenario, phase): table for phase, table in zip(missing, tables, strict=True)}
        return replace(self, tables={**self.tables, **more})

    def tables_of(self, scenario: ResolvedScenario) -> tuple[ThroughputTables, ...]:
        """The throughput tables of every model phase of the scenario."""
        known = self.covering(scenario).tables
        return tuple(known[_decides(scenario, phase)] for phase in scenario.model_phases)

    def with_library(self, scenario: ResolvedScenario, library: TemplateLibrary) -> WarmState:
        """With the library of this scenario."""
        phases = {
            _decides(scenario, phase): templates
            for phase, templates in zip(scenario.model_phases, library.phases, strict=True)
        }
        return replace(self, phases={**self.phases, **phases}, library=library)

    def known_library(self, scenario: ResolvedScenario, progress: Progress | None = None) -> TemplateLibrary | None:
        """The library of the scenario from what is known, missing model phases built; ``None`` if none is known.

        Raises:
            ScenarioError: An SLO no node can meet.
        """
        keys = [_decides(scenario, phase) for phase in scenario.model_phases]
        if self.library is None or not any(key in self.phases for key in keys):
            return None
        tables = self.tables_of(scenario)
        check_slos(scenario, tables)
        phases = tuple(
            self.phases[key]
            if key in self.phases
            else build_library(replace(scenario, model_phases=(phase,)), (table,), progress=progress).phases[0]
            for phase, table, key in zip(scenario.model_phases, tables, keys, strict=True)
        )
        if len(phases) == len(self.library.phases) and all(map(operator.is_, phases, self.library.phases)):
            return self.library
        return replace(
            self.library,
            digest=library_digest(scenario, tables),
            configurations=tuple(configuration.name for configuration in scenario.configurations),
            phases=phases,
            document=scenario.document,
        )


def _decides(scenario: ResolvedScenario, phase: ModelPhase) -> Hashable:
    """Everything that decides the tables and templates of one model phase."""
    return (
        replace(phase, demand_tokens_s=0.0, throughput_headroom=0.0),
        scenario.configurations,
        scenario.max_nodes,
        scenario.memory_ratio,
        scenario.throughput_source,
        scenario.placement,
    )
