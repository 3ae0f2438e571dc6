"""Planners that place one model on given nodes: on a scenario, on the nodes that another planner rented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coralopt._version import __version__
from coralopt.catalog.types import GIB
from coralopt.errors import Mistake, OptionError, ScenarioError
from coralopt.placement import engine_limits
from coralopt.plan import Plan, PlannedInstance
from coralopt.plan.flows import is_routed
from coralopt.planning.registry import get_planner
from coralopt.planning.request import PlanOutcome, PlanRequest, StepClock, count_setting, demand_met, setting
from coralopt.planning.rivals.hexgen import hexgen_search
from coralopt.planning.rivals.strategies import refuse_cells
from coralopt.planning.stages import instance_name, planned_stages
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import relative_gap
from coralopt.solving.status import gap_met
from coralopt.templates import library_digest
from coralopt.throughput import ThroughputTables


class HelixPlanner:
    """Helix (Mei et al., ASPLOS 2025): one model on a fixed cluster; see :mod:`coralopt.planning.rivals.helix`."""

    name = "helix"
    summary = "one model on fixed nodes: layer ranges that may overlap, MILP of maximum flow"
    source = "Helix (Mei et al., ASPLOS 2025), artifact commit 148b733"
    settings: Mapping[str, object] = {}

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """Refuses: Helix answers a pool, not a scenario.

        Its layer ranges overlap, so that a node may feed nodes of several "stages", and it has no latency SLO, whereas
        every T_j(g) of a plan is made for one number of stages. A plan has no words for such a layout.

        Raises:
            ScenarioError: Always; says what to use instead.
        """
        problem = "helix places one model on fixed nodes without an SLO, in layer ranges that overlap: no plan"
        hint = "use `coralopt place POOL --planner helix`, or planner hexgen, which plans on rented nodes"
        raise ScenarioError(request.scenario.name, [Mistake("planner", problem, hint)])


class HexgenPlanner:
    """HexGen (Jiang et al., ICML 2024) on the nodes that another planner rented; see :mod:`coralopt.planning.rivals.hexgen`.

    HexGen takes its devices as given. The nodes of each model phase and region are those of the plan by ``nodes_from``;
    HexGen cuts them into pipelines anew, within the scenario's limits on node sets. So it costs what that plan costs, and
    shows what its placements are worth on the same nodes: demands may be missed.
    """

    name = "hexgen"
    summary = "pipelines on the nodes that another planner rented: dynamic programme and evolutionary search"
    source = "HexGen (Jiang et al., ICML 2024), optimizer in its repository's history"
    settings: Mapping[str, object] = {"nodes_from": "coral", "generations": 300}

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """A plan of pipelines whose stages are single nodes. It may miss demands; a note says so."""
        scenario = request.scenario
        refuse_cells(scenario)
        if is_routed(scenario):
            problem = f"hexgen cuts nodes anew and does not know kv_transfer: {scenario.kv_transfer.mode}"
            raise ScenarioError(scenario.name, [Mistake("kv_transfer", problem, "compare with kv_transfer: free")])
        lender, generations = setting(self, request, "nodes_from"), count_setting(self, request, "generations", 0)
        if lender in ("hexgen", "helix"):
            raise OptionError(f"nodes_from is {lender!r}; name a planner that rents nodes")
        rented = get_planner(lender).plan(replace(request, settings={}))
        steps = StepClock()
        tables = {table.key: table for table in rented.warm.tables_of(scenario)}
        instances: list[PlannedInstance] = []
        for phase in scenario.model_phases:
            for r, region in enumerate(scenario.regions):
                counts = _nodes(rented.plan, scenario, phase, region)
                if sum(counts):
                    instances += _pipelines(scenario, phase, r, tables[phase.key], counts, request.seed, generations)
        steps.end("search")
        plan = _plan(rented.plan, tables, instances, request)
        notes = [
            f"the nodes are those that {lender} rented, {rented.plan.cost_usd_h:.4f} USD/h; idle ones are given back"
        ]
        if demand_met(plan) < 1:
            notes.append(f"not every demand is met: {demand_met(plan):.1%} of the one that falls shortest")
        return PlanOutcome(
            plan, {lender: sum(rented.steps.values()), **steps.seconds}, warm=rented.warm, notes=tuple(notes)
        )


def _nodes(plan: Plan, scenario: ResolvedScenario, phase: ModelPhase, region: str) -> tuple[int, ...]:
    """Nodes of each configuration that a plan rents for one model phase in one region."""
    counts = dict.fromkeys((c.name for c in scenario.configurations), 0)
    for item in plan.instances:
        if item.key == phase.key and item.region == region:
            for name, count in item.nodes().items():
                counts[name] += count * item.count
    return tuple(counts.values())


def _pipelines(
    scenario: ResolvedScenario,
    phase: ModelPhase,
    region: int,
    table: ThroughputTables,
    counts: tuple[int, ...],
    seed: int,
    generations: int,
) -> list[PlannedInstance]:
    limits, gpus = engine_limits(scenario.placement.engine), [c.count for c in scenario.configurations]
    memory = [c.memory_gib for c in scenario.configurations]
    cap = scenario.memory_ratio * phase.model.weight_bytes / GIB

    def allowed(group: tuple[int, ...]) -> bool:
        return (
            sum(group) <= scenario.max_nodes
            and (sum(group) == 1 or sum(n * m for n, m in zip(group, memory, strict=True)) < cap)
            and limits.node_set_allowed(group, gpus)
        )

    search = hexgen_search(table.values, counts, seed=seed, generations=generations, allowed=allowed)
    worth = dict(zip(search.pipelines, search.throughputs, strict=True))
    running = {
        tuple(int(entry.nodes.get(c.name, 0)) for c in scenario.configurations): entry.count
        for entry in scenario.running
        if entry.key == phase.key and entry.region == scenario.regions[region]
    }
    instances = []
    for placement, count in Counter(search.pipelines).items():
        nodes = {c.name: n for c, n in zip(scenario.configurations, placement.node_set, strict=True) if n}
        prices = scenario.price_usd_h[region].tolist()
        instances.append(
            PlannedInstance(
                name=instance_name(phase, scenario.regions[region], nodes),
                model=phase.model.name,
                phase=phase.phase,
                region=scenario.regions[region],
                count=count,
                kept=min(count, running.get(placement.node_set, 0)),
                stages=planned_stages(scenario, placement, [table] * len(placement.stages), region),
                tokens_s=worth[placement],
                price_usd_h=float(sum(n * price for n, price in zip(placement.node_set, prices, strict=True) if n)),
            )
        )
    return instances


def _plan(
    rented: Plan, tables: Mapping[str, ThroughputTables], instances: list[PlannedInstance], request: PlanRequest
) -> Plan:
    """The plan of these instances on the nodes of another planner's plan."""
    scenario = request.scenario
    demands = []
    for demand in rented.demands:
        mine = [i for i in instances if i.key == demand.key]
        used = {name for i in mine for name in i.nodes()}
        table = tables[demand.key]
        sources = zip(table.configurations, table.provenance, strict=True)
        outcome = {
            "planned_tokens_s": float(sum(i.count * i.tokens_s for i in mine)),
            "cost_usd_h": float(sum(i.count * i.price_usd_h for i in mine)),
            "throughput_sources": {name: line for name, line in sources if name in used},
        }
        demands.append(demand.model_copy(update=outcome))
    provisioning = float(sum(i.count * i.price_usd_h for i in instances))
    initialization = float(sum((i.count - i.kept) * i.price_usd_h * scenario.initialization_penalty for i in instances))
    cost = provisioning + initialization
    gap = relative_gap(cost, 0.0) if np.isfinite(cost) else 1.0
    return rented.model_copy(
        update={
            "planner": "hexgen",
            "solver": "none",
            "solver_version": __version__,
            "formulation": "hexgen",
            "status": "optimal" if gap_met(gap, rented.requested_gap) else "feasible",
            "cost_usd_h": cost,
            "provisioning_usd_h": provisioning,
            "initialization_usd_h": initialization,
            "lower_bound_usd_h": 0.0,
            "gap": gap,
            "library_digest": library_digest(scenario, list(tables.values())),
            "demands": tuple(demands),
            "instances": tuple(instances),
        }
    )
