"""An allocation made concrete: instances with their stages, nodes, instance types and shares of traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np

from coralopt._version import __version__
from coralopt.allocation import AllocationProblem, Served, price_of_unmet, request_flows, time_shares, unmet_demand
from coralopt.catalog.mig import MEMORY, SIZES, profiles, sliced
from coralopt.catalog.types import NodeConfiguration
from coralopt.placement import Budgets, Links, Placement, best_cells
from coralopt.plan import Plan, PlannedClass, PlannedDemand, PlannedInstance, PlannedNode, PlannedShare, PlannedStage
from coralopt.plan.document import headline_gap, share_of
from coralopt.plan.flows import allowed_routes, planned_flows, planned_means, planned_modes
from coralopt.planning.operators import planned_cases, planned_classes, planned_options
from coralopt.scenario.parts import SharingWay
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario
from coralopt.solving import Backend, backend_version, get_backend
from coralopt.solving.tolerance import TOLERANCE
from coralopt.templates import Patterns, TemplateLibrary, placement_tables, with_spare_batches
from coralopt.templates.patterns import WAYS
from coralopt.throughput import ThroughputTables, build_tables, only_executable, stage_role, throughput_source
from coralopt.throughput.steps import memory_shares, node_steps, present_share
from coralopt.throughput.swapping import swap_ms, swap_steps


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
            source = throughput_source(self.scenario.throughput_source)
            phase = self.phases[key]
            table = build_tables(source, phase, hosts, self.scenario.max_nodes, **how)
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


def shared_instances(
    scenario: ResolvedScenario, patterns: Patterns, row: int, region: int, groups: Counter[str]
) -> list[PlannedInstance]:
    """The instances of one shared node, one of each model on it.

    Args:
        scenario: What was planned.
        patterns: The shared nodes.
        row: Which of them.
        region: Position of the region.
        groups: Shared nodes of a kind so far, counted up.
    """
    c = int(patterns.configuration[row])
    configuration, place = scenario.configurations[c], scenario.regions[region]
    columns = np.flatnonzero(patterns.phase[row] >= 0).tolist()
    phases = [scenario.model_phases[p] for p in patterns.phase[row, columns].tolist()]
    batches, sizes = (part[row, columns].tolist() for part in (patterns.batch, patterns.size))
    way = WAYS[int(patterns.way[row])]
    groups[f"{place}-{configuration.name}"] += 1
    group = f"{place}-{configuration.name}-shared{groups[f'{place}-{configuration.name}']}"
    instances = []
    shares = _shares(scenario, configuration, way, [*zip(phases, batches, sizes, strict=True)])
    for k, (phase, share) in enumerate(zip(phases, shares, strict=True)):
        tokens_s = float(patterns.tokens_s[row, columns[k]])
        node = PlannedNode(
            configuration=configuration.name,
            instance_type=scenario.instance_types[region][c],
            count=1,
            tokens_s=tokens_s,
            traffic_share=1.0,
            batch=batches[k],
        )
        shared = share.model_copy(update={"group": group, "position": k})
        instances.append(
            PlannedInstance(
                name=f"{phase.model.name}-{phase.phase}-{group}",
                model=phase.model.name,
                phase=phase.phase,
                region=place,
                count=1,
                kept=0,
                stages=(
                    PlannedStage(first_layer=0, last_layer=phase.model.layers - 1, nodes=(node,), tokens_s=tokens_s),
                ),
                tokens_s=tokens_s,
                price_usd_h=float(Fraction(float(scenario.price_usd_h[region, c])) * shared.part),
                shared=shared,
            )
        )
    return instances


def _shares(
    scenario: ResolvedScenario,
    configuration: NodeConfiguration,
    way: SharingWay,
    members: Sequence[tuple[ModelPhase, int, int]],
) -> Iterator[PlannedShare]:
    """What the plan says of each (phase, batch, size of slice) of a shared node, whose name and positions come after."""
    share = partial(PlannedShare, group="node", position=0)
    source = throughput_source(scenario.throughput_source)
    if way == "slices":
        parts = [SIZES[size].memory for _, _, size in members]
        for (phase, batch, size), part in zip(members, parts, strict=True):
            own = sliced(configuration, profiles(configuration)[size])
            ms = node_steps(phase, own, source.times(phase.model, own)).ms_of(batch)
            rent = part / sum(parts)
            yield share(step_ms=ms, cycle_ms=ms, memory_share=part / MEMORY, slice=own.gpu.mig, rent_share=rent)
        return
    timed = [(phase, batch, source.times(phase.model, configuration)) for phase, batch, _ in members]
    if way == "swapping":
        sharing = scenario.sharing
        turns = [swap_steps(phase, configuration, times, sharing).ms_of(batch) for phase, batch, times in timed]
        present = present_share(configuration, sharing.asleep_gib, len(members))
        for (phase, _, _), ms in zip(members, turns, strict=True):
            swap = swap_ms(phase, sharing)
            yield share(step_ms=ms, cycle_ms=sum(turns), memory_share=present, swap_ms=swap)
        return
    steps = [(node_steps(phase, configuration, times), batch) for phase, batch, times in timed]
    cycle = sum(item.ms_of(batch) for item, batch in steps)
    for (item, batch), memory in zip(steps, memory_shares(steps, configuration), strict=True):
        yield share(step_ms=item.ms_of(batch), cycle_ms=cycle, memory_share=memory)


def planned_class_shares(problem: AllocationProblem, items: list[tuple[int, int, int]]) -> dict[int, dict[int, float]]:
    """Template -> model phase -> share of its instances' time, where they divide it so that all have as much to spare.

    Time that no class needs goes to the one that has most of it already.
    """
    counts: Counter[int] = Counter()
    for t, _, n in items:
        counts[t] += n
    shares: dict[int, dict[int, float]] = {t: {} for t in counts}
    for group in time_shares(problem, items):
        for (t, p), time in group.time.items():
            if time / counts[t] > Fraction(1, 10**9):
                shares[t][p] = float(time / counts[t])
    for t, mine in shares.items():
        most = max(mine, key=lambda p: mine[p]) if mine else int(problem.phase[t])
        mine[most] = 1.0 - sum(share for p, share in mine.items() if p != most)
    return shares


def make_plan(
    scenario: ResolvedScenario,
    library: TemplateLibrary,
    tables: Sequence[ThroughputTables],
    served: Served,
    solver: str | Backend,
    requested_gap: float,
    placements: Mapping[int, Placement] | None = None,
    patterns: Patterns | None = None,
) -> Plan:
    """The plan that an allocation is.

    Args:
        scenario: What was planned.
        library: Its templates.
        tables: Its throughput tables.
        served: The allocation, and the problem that it solves: with less demand than the scenario where a factor says so,
            with a price of unmet demand where that was allowed.
        solver: The MILP back end that found it.
        requested_gap: The relative gap asked for.
        placements: Row of the library -> its placement where that is not the template's.
        patterns: Shared nodes, the problem's templates behind those of the library.
    """
    of_stages = StageTables(scenario, tables)
    by_key = of_stages.plain
    problem, result, factor = served.problem, served.result, served.factor
    phases = {phase.key: phase for phase in scenario.model_phases}
    instances: list[PlannedInstance] = []
    planned: dict[str, float] = dict.fromkeys(phases, 0.0)
    spent: dict[str, float] = dict.fromkeys(phases, 0.0)
    provisioning = 0.0
    allocation = result.allocation
    classes = planned_classes(problem, allocation)
    needed = np.array([phase.needed_tokens_s for phase in scenario.model_phases])
    # Where larger demands may come, they are planned for.
    unmet, cases = (
        np.maximum(0.0, needed - problem.demand),
        planned_cases(scenario, problem, [Fraction(0)] * len(needed)),
    )
    unmet_usd_h, items = 0.0, [(t, r, n) for (t, r), n in allocation.to_mapping().items()]
    if problem.unmet_price is not None:
        missing = unmet_demand(problem, items)
        cases = planned_cases(scenario, problem, missing)
        unmet = np.array([float(lack) for lack in missing])
        if cases:
            unmet -= problem.demand - needed
            unmet = np.where(unmet > TOLERANCE * needed, unmet, 0.0)
        unmet_usd_h = float(sum(price_of_unmet(problem, p, m) for p, m in enumerate(missing) if m))
    groups: Counter[str] = Counter()
    if patterns is not None:
        shared_rows = allocation.template[allocation.template >= len(library)] - len(library)
        patterns = with_spare_batches(scenario, patterns, np.unique(shared_rows).tolist())
    divided = planned_class_shares(problem, items) if problem.joint.divided else {}
    for row, region, count in zip(allocation.template, allocation.region, allocation.count, strict=True):
        if patterns is not None and row >= len(library):
            shared = shared_instances(scenario, patterns, int(row) - len(library), int(region), groups)
            instances += [item.model_copy(update={"count": int(count)}) for item in shared]
            continue
        templates, local = library.locate(int(row))
        phase = phases[templates.key]
        usage = problem.usage[row].astype(np.int64)
        price = float(sum(int(n) * float(scenario.price_usd_h[region, c]) for c, n in enumerate(usage) if n))
        running = 0 if problem.running is None else int(problem.running[row, region])
        region_name = scenario.regions[region]
        nodes = {library.configurations[c]: int(n) for c, n in enumerate(usage) if n}
        placement = (placements or {}).get(int(row)) or templates.placement(local)
        parts: tuple[PlannedClass, ...] = ()
        if phase.request_class is not None:
            parts = tuple(
                PlannedClass(
                    model=scenario.model_phases[p].model.name,
                    tokens_s=float(problem.rates((p,))[row]),
                    time_share=min(1.0, share),
                )
                for p, share in sorted(divided[int(row)].items())
            )
        by_stage, budgets_ms = of_stages.of(phase.key, placement)
        stages = planned_stages(scenario, placement, by_stage, int(region), budgets_ms)
        tokens_s = float(templates.throughput[local])
        if int(row) in (placements or {}) or parts:
            tokens_s = min(stage.tokens_s for stage in stages)
        instances.append(
            PlannedInstance(
                name=instance_name(phase, region_name, nodes),
                model=phase.model.name,
                phase=phase.phase,
                region=region_name,
                count=int(count),
                kept=min(running, int(count)),
                stages=stages,
                tokens_s=tokens_s,
                price_usd_h=price,
                classes=parts,
            )
        )
        provisioning += int(count) * price
    for item in instances:
        for key, (given, time_share) in item.serves().items():
            planned[key] += item.count * given
            spent[key] += item.count * item.price_usd_h * time_share
        provisioning += item.count * item.price_usd_h if item.shared else 0.0
    chosen = request_flows(problem, items) if served.flows is None else served.flows
    modes = planned_modes(scenario, chosen, list(planned.values()))
    taken = {key: share_of(modes, key) for key in phases}
    demands = tuple(
        PlannedDemand(
            model=phase.model.name,
            phase=phase.phase,
            slo_ms=phase.slo_ms,
            demand_tokens_s=taken[key] * phase.demand_tokens_s,
            planned_tokens_s=planned[key],
            cost_usd_h=spent[key],
            throughput_sources={
                name: line
                for name, line in zip(by_key[key].configurations, by_key[key].provenance, strict=True)
                if any(name in item.nodes() for item in instances if key in item.serves())
            },
            unmet_tokens_s=max(0.0, taken[key] * float(lack)),
            prefix_hit=phase.prefix_hit,
        )
        for (key, phase), lack in zip(phases.items(), unmet, strict=True)
    )
    flows = [
        flow
        for model, found in zip(allowed_routes(scenario), chosen, strict=True)
        for flow in planned_flows(scenario, model, found, 1.0 if factor is None else float(factor.factor))
    ]
    egress_usd_h = sum(flow.usd_h for flow in flows)
    if classes:
        provisioning = sum(item.nodes * item.usd_h for item in classes)
    served_factor = 1.0 if factor is None else float(factor.factor)
    served_factor_bound = 1.0 if factor is None else factor.bound
    way: Literal["met", "scale", "shortfall"] = "scale" if served_factor < 1 else "met"
    if any(item.unmet_tokens_s for item in demands) and factor is None:
        way = "shortfall"
    gap = headline_gap(result.cost_usd_h, result.bound_usd_h, served_factor, served_factor_bound)
    return Plan(
        planner="coral",
        coralopt_version=__version__,
        solver=get_backend(solver).name,
        solver_version=backend_version(solver),
        formulation=result.formulation,
        status="optimal" if gap <= requested_gap else "feasible",
        cost_usd_h=result.cost_usd_h,
        provisioning_usd_h=provisioning,
        initialization_usd_h=max(0.0, result.cost_usd_h - provisioning - unmet_usd_h - egress_usd_h),
        lower_bound_usd_h=result.bound_usd_h,
        gap=gap,
        requested_gap=requested_gap,
        on_infeasible=way,
        served_factor=served_factor,
        served_factor_bound=served_factor_bound,
        unmet_usd_h=unmet_usd_h,
        egress_usd_h=egress_usd_h,
        scenario_digest=scenario.digest,
        library_digest=library.digest,
        demands=demands,
        instances=tuple(instances),
        options=(*planned_options(problem, allocation), *planned_means(scenario, modes)),
        node_classes=classes,
        flows=tuple(flows),
        modes=tuple(modes),
        cases=cases,
        scenario=dict(scenario.document),
    )
