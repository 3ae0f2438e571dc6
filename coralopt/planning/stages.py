"""Stages of a placement as a plan shows them, and the throughput tables that hold for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coralopt.placement import Budgets, Links, Placement, best_cells
from coralopt.plan import PlannedNode, PlannedStage
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import placement_tables
from coralopt.throughput import ThroughputTables, only_executable, source_tables, stage_role


class StageTables:
    """The throughput tables that hold for each stage of a placement, with its best latency budgets or its real links."""

    def __init__(self, scenario: ResolvedScenario, plain: Sequence[ThroughputTables]) -> None:
        self.scenario = scenario
        self.plain = {table.key: table for table in plain}
        values, self.coupling = placement_tables(scenario, plain)
        self.values = dict(zip(self.plain, values, strict=True))
        self.phases = {phase.key: phase for phase in scenario.model_phases}
        self._cells: dict[tuple[str, int], ThroughputTables] = {}

    def of(self, key: str, placement: Placement) -> tuple[list[ThroughputTables], list[float | None] | None]:
        """Tables of every stage, and their latency budgets in ms where they are not SLO / S."""
        count = len(placement.stages)
        if self.coupling is None:
            return [self.plain[key]] * count, None
        _, cells = best_cells(self.values[key], placement, self.coupling)
        tables = [self._at(key, cell) for cell in cells]
        if isinstance(self.coupling, Links):
            return tables, None
        unit_ms = self.phases[key].budget_ms / self.coupling.total(count)
        return tables, [cell * unit_ms for cell in cells]

    def _at(self, key: str, cell: int) -> ThroughputTables:
        if (key, cell) not in self._cells:
            hosts = self.scenario.configurations
            how: dict[str, Any] = {}  # keywords of build_tables, of several types
            if isinstance(self.coupling, Budgets):
                how["budget_units"] = (cell, self.coupling.units)
            else:
                how["receiver_gb_s"] = sorted({host.network_gb_s for host in hosts})[cell]
            source, phase = self.scenario.throughput_source, self.phases[key]
            table = source_tables(source, phase, hosts, self.scenario.max_nodes, **how)
            self._cells[key, cell] = only_executable(table, self.scenario.placement.engine, phase, hosts)
        return self._cells[key, cell]


def planned_stages(
    scenario: ResolvedScenario,
    placement: Placement,
    tables: Sequence[ThroughputTables],
    region: int,
    budgets_ms: Sequence[float | None] | None = None,
) -> tuple[PlannedStage, ...]:
    """A placement as the plan shows it: layer ranges, nodes, their throughput and share of traffic.

    Args:
        scenario: Names of configurations and instance types.
        placement: The stages.
        tables: The throughput tables that hold for each stage.
        region: Position of the region.
        budgets_ms: Latency budget of each stage where it is not SLO / S.
    """
    stages = []
    first = 0
    total = len(placement.stages)
    for position, (stage, table) in enumerate(zip(placement.stages, tables, strict=True)):
        cell = (total - 1, stage_role(position, total))
        speeds = table.values[cell][:, stage.layers]
        stage_tokens_s = float(sum(count * speeds[c] for c, count in enumerate(stage.nodes) if count))
        nodes = tuple(
            PlannedNode(
                configuration=scenario.configurations[c].name,
                instance_type=scenario.instance_types[region][c],
                count=count,
                tokens_s=float(speeds[c]),
                traffic_share=min(1.0, float(speeds[c]) / stage_tokens_s),
                batch=int(table.batch[cell][c, stage.layers]),
            )
            for c, count in enumerate(stage.nodes)
            if count
        )
        stages.append(
            PlannedStage(
                first_layer=first,
                last_layer=first + stage.layers - 1,
                nodes=nodes,
                tokens_s=stage_tokens_s,
                latency_budget_ms=None if budgets_ms is None else budgets_ms[position],
            )
        )
        first += stage.layers
    return tuple(stages)


def instance_name(phase: ModelPhase, region: str, usage: Mapping[str, int]) -> str:
    """``qwen3-32b-prefill-us-east-2-1xL4-3of1xL40S``: equal for equal templates, whatever else the plan holds."""
    nodes = "-".join(name if count == 1 else f"{count}of{name}" for name, count in usage.items())
    return f"{phase.model.name}-{phase.phase}-{region}-{nodes}"
