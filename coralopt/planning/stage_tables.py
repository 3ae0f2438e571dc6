"""What holds for each stage of a planned placement: its latency budget, and the throughput tables that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coralopt.placement import Budgets, Links, Placement, coupled_throughput
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import placement_tables
from coralopt.throughput import ThroughputTables, build_tables, only_executable, throughput_source


class StageTables:
    """The throughput tables that hold for each stage of a placement, with its best latency budgets or its real links."""

    def __init__(self, scenario: ResolvedScenario, plain: Sequence[ThroughputTables]) -> None:
        self.scenario = scenario
        self.plain = {table.key: table for table in plain}
        values, self.coupling = placement_tables(scenario, plain)
        self.values = dict(zip(self.plain, values, strict=True))
        self.phases = {phase.key: phase for phase in scenario.model_phases}
        self.known: dict[tuple[str, int], ThroughputTables] = {}

    def of(self, key: str, placement: Placement) -> tuple[list[ThroughputTables], list[float | None] | None]:
        """Tables of every stage, and their latency budgets in ms where they are not SLO / S."""
        count = len(placement.stages)
        if self.coupling is None:
            return [self.plain[key]] * count, None
        _, cells = coupled_throughput(self.values[key], placement, self.coupling)
        tables = [self._at(key, cell) for cell in cells]
        if isinstance(self.coupling, Links):
            return tables, None
        unit_ms = self.phases[key].budget_ms / self.coupling.total(count)
        return tables, [cell * unit_ms for cell in cells]

    def _at(self, key: str, cell: int) -> ThroughputTables:
        if (key, cell) not in self.known:
            hosts = self.scenario.configurations
            how: dict[str, Any] = {}
            if isinstance(self.coupling, Budgets):
                how["budget_units"] = (cell, self.coupling.units)
            else:
                how["receiver_gb_s"] = sorted({host.network_gb_s for host in hosts})[cell]
            source = throughput_source(self.scenario.throughput_source)
            phase = self.phases[key]
            made = build_tables(source, phase, hosts, self.scenario.max_nodes, **how)
            self.known[key, cell] = only_executable(made, self.scenario.placement.engine, phase, hosts)
        return self.known[key, cell]
