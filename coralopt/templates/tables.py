"""The throughput tables of a scenario, what its placements are made from, and SLOs that nothing can meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coralopt.catalog.types import unsupported
from coralopt.errors import Mistake, ScenarioError
from coralopt.placement import Budgets, Coupling, Links
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput import (
    ThroughputTables,
    budget_tables,
    engine_runs,
    explain_infeasible,
    link_tables,
    only_executable,
    source_tables,
    throughput_source,
)
from coralopt.types import Floats

#: Most stages of a pipeline that is looked for where no SLO can be met.
MOST_STAGES = 6


def scenario_tables(scenario: ResolvedScenario) -> tuple[ThroughputTables, ...]:
    """Throughput tables of every model phase of the scenario, 0 where its engine cannot run a node.

    Raises:
        CoraloptError: The throughput source does not cover a model or a GPU.
    """
    source, nodes, engine = scenario.throughput_source, scenario.configurations, scenario.placement.engine
    return tuple(
        only_executable(source_tables(source, phase, nodes, scenario.max_nodes), engine, phase, nodes)
        for phase in scenario.model_phases
    )


def placement_tables(
    scenario: ResolvedScenario, tables: Sequence[ThroughputTables]
) -> tuple[tuple[Floats, ...], Coupling | None]:
    """The tables that placements of the scenario are made from, by model phase, and what their cells are.

    Without free latency budgets and network-aware stages they are ``tables`` themselves and there are no cells.
    """
    rules = scenario.placement
    if rules.budget_units is None and not rules.link_network:
        return tuple(table.values for table in tables), None
    source = throughput_source(scenario.throughput_source)
    nodes, most = scenario.configurations, scenario.max_nodes

    if rules.budget_units is not None:
        values = [budget_tables(source, phase, nodes, most, rules.budget_units) for phase in scenario.model_phases]
        coupling: Coupling = Budgets(rules.budget_units)
    else:
        linked = [link_tables(source, phase, nodes, most) for phase in scenario.model_phases]
        values, coupling = [table for table, _ in linked], Links(linked[0][1])
    runs = (engine_runs(rules.engine, phase, nodes, most) for phase in scenario.model_phases)
    masked = (np.where(run[:, None, :, None, None], table, 0.0) for run, table in zip(runs, values, strict=True))
    return tuple(masked), coupling


def check_slos(scenario: ResolvedScenario, tables: Sequence[ThroughputTables]) -> None:
    """Refuse SLOs that no node of the pool can meet, and models that the engine cannot run on any, all of them at once.

    Raises:
        ScenarioError: Names each SLO and the smallest time that could be met, or the model and the engine.
    """
    mistakes = []
    engine = scenario.placement.engine
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        if phase.demand_tokens_s > 0 and not (table.values > 0).any():
            refused = {unsupported(phase.model, configuration.gpu) for configuration in scenario.configurations}
            if "" not in refused:
                hint = "choose another weight_format or kv_format, or offer other GPUs"
                mistakes.append(Mistake(f"models.{phase.model.name}", "; ".join(sorted(refused)), hint))
                continue
            if not engine_runs(engine, phase, scenario.configurations, scenario.max_nodes).all():
                anywhere = source_tables(scenario.throughput_source, phase, scenario.configurations, scenario.max_nodes)
                if (anywhere.values > 0).any():
                    mistakes.append(
                        Mistake(
                            place=f"models.{phase.model.name}",
                            problem=f"no node of the pool runs its {phase.phase} under the engine {engine!r}",
                            hint="decode takes one node that holds the whole model, with BF16 and GPUs that divide the "
                            "attention heads; add larger nodes, use mode mixed, or the engine 'any'"
                            if phase.phase == "decode"
                            else "it takes nodes with BF16 and GPUs that divide the attention heads; add such nodes, or "
                            "use the engine 'any'",
                        )
                    )
                    continue
            limits = [("ttft_ms", phase.prefill_ms)] if phase.phase != "decode" else []
            limits += [("tpot_ms", phase.decode_ms)] if phase.phase != "prefill" else []
            which = f".{limits[0][0]}" if len(limits) == 1 else ""
            slos = " and ".join(f"{name} of {ms:g} ms" for name, ms in limits)
            room = f" less {phase.latency_headroom:.0%} headroom" if phase.latency_headroom else ""
            stages = min(scenario.max_nodes, MOST_STAGES)
            mistakes.append(
                Mistake(
                    place=f"models.{phase.model.name}.slo{which}",
                    problem=f"no node configuration of the pool can meet {slos}{room}",
                    hint=explain_infeasible(phase, scenario.configurations, scenario.throughput_source, stages),
                )
            )
    if mistakes:
        raise ScenarioError(scenario.name, list(dict.fromkeys(mistakes)))
