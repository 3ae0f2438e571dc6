"""An allocation made concrete: the plan with its instances, demands, flows and bill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from coralopt._version import __version__
from coralopt.allocation import AllocationProblem, Served, price_of_unmet, request_flows, time_shares, unmet_demand
from coralopt.placement import Placement
from coralopt.plan import Plan, PlannedCase, PlannedClass, PlannedDemand, PlannedInstance
from coralopt.plan.document import headline_gap
from coralopt.plan.flows import allowed_routes, planned_flows, planned_means, planned_modes
from coralopt.plan.parts import share_of
from coralopt.planning.operators import planned_cases, planned_classes, planned_options
from coralopt.planning.shared_nodes import shared_instances
from coralopt.planning.stages import StageTables, instance_name, planned_stages
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Backend, backend_version, get_backend
from coralopt.solving.status import gap_met
from coralopt.templates import Patterns, TemplateLibrary, with_spare_batches
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats


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


@dataclass(frozen=True)
class _OwnNodes:
    """Instances on nodes of their own.

    Attributes:
        scenario: What was planned.
        library: Its templates.
        problem: The problem that the allocation solves.
        stages: Tables of stages.
        placements: Row of the library -> its placement where that is not the template's.
        time_shares: Template -> model phase -> share of its instances' time, where classes of requests divide it.
    """

    scenario: ResolvedScenario
    library: TemplateLibrary
    problem: AllocationProblem
    stages: StageTables
    placements: Mapping[int, Placement]
    time_shares: Mapping[int, Mapping[int, float]]

    def instance(self, row: int, r: int, count: int) -> PlannedInstance:
        """The instances of one template in one region."""
        scenario, problem = self.scenario, self.problem
        templates, local = self.library.locate(row)
        phase = self.stages.phases[templates.key]
        usage = problem.usage[row].astype(np.int64)
        nodes = {self.library.configurations[c]: int(n) for c, n in enumerate(usage) if n}
        placement = self.placements.get(row) or templates.placement(local)
        parts = self._classes(row, r, placement) if phase.request_class is not None else ()
        by_stage, budgets_ms = self.stages.of(phase.key, placement)
        stages = planned_stages(scenario, placement, by_stage, r, budgets_ms)
        tokens_s = float(templates.throughput[local])
        if row in self.placements or parts:
            tokens_s = min(stage.tokens_s for stage in stages)
        return PlannedInstance(
            name=instance_name(phase, scenario.regions[r], nodes),
            model=phase.model.name,
            phase=phase.phase,
            region=scenario.regions[r],
            count=count,
            kept=min(0 if problem.running is None else int(problem.running[row, r]), count),
            stages=stages,
            tokens_s=tokens_s,
            price_usd_h=float(sum(int(n) * float(scenario.price_usd_h[r, c]) for c, n in enumerate(usage) if n)),
            classes=parts,
        )

    def _classes(self, row: int, r: int, placement: Placement) -> tuple[PlannedClass, ...]:
        parts = []
        for p, share in sorted(self.time_shares[row].items()):
            phase = self.scenario.model_phases[p]
            stages = planned_stages(self.scenario, placement, self.stages.of(phase.key, placement)[0], r)
            tokens_s = min(stage.tokens_s for stage in stages)
            parts.append(PlannedClass(model=phase.model.name, tokens_s=tokens_s, time_share=min(1.0, share)))
        return tuple(parts)


@dataclass(frozen=True)
class _Unmet:
    """Demand that a plan leaves.

    Attributes:
        tokens_s: float64 (P,), tokens/s of each model phase.
        usd_h: What it is charged.
        cases: The demands that may come, with what each leaves.
    """

    tokens_s: Floats
    usd_h: float
    cases: tuple[PlannedCase, ...]

    @classmethod
    def of(cls, scenario: ResolvedScenario, problem: AllocationProblem, items: list[tuple[int, int, int]]) -> _Unmet:
        """Of an allocation, as (template, region, count)."""
        needed = np.array([phase.needed_tokens_s for phase in scenario.model_phases])
        priced = problem.unmet_price is not None
        missing = unmet_demand(problem, items) if priced else [Fraction(0)] * len(needed)
        usd_h = float(sum(price_of_unmet(problem, p, m) for p, m in enumerate(missing) if m))
        cases = planned_cases(scenario, problem, missing)
        if cases:
            # What is planned for is the largest demand; the demand itself may be a larger or a smaller one.
            itself = replace(problem, demand=needed, unmet_price=np.zeros(len(needed)), unmet_tiers=())
            missing = unmet_demand(itself, items)
        elif not priced:
            return cls(np.maximum(0.0, needed - problem.demand), 0.0, ())
        return cls(np.array([float(lack) for lack in missing]), usd_h, cases)


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
    problem, result, allocation = served.problem, served.result, served.result.allocation
    items = [(t, r, n) for (t, r), n in allocation.to_mapping().items()]
    unmet = _Unmet.of(scenario, problem, items)
    divided = planned_class_shares(problem, items) if problem.joint.divided else {}
    own = _OwnNodes(scenario, library, problem, of_stages, placements or {}, divided)
    groups: Counter[str] = Counter()
    if patterns is not None:
        shared_rows = allocation.template[allocation.template >= len(library)] - len(library)
        patterns = with_spare_batches(scenario, patterns, np.unique(shared_rows).tolist())
    instances: list[PlannedInstance] = []
    initialization = 0.0
    columns = (allocation.template.tolist(), allocation.region.tolist(), allocation.count.tolist())
    for row, region, count in zip(*columns, strict=True):
        if patterns is not None and row >= len(library):
            shared = shared_instances(scenario, patterns, row - len(library), region, groups)
            of_row = [item.model_copy(update={"count": count}) for item in shared]
        else:
            of_row = [own.instance(row, region, count)]
        # Not what else costs taken from the whole: beside a dear unmet demand that is mostly rounding.
        added = sum((item.count - item.kept) * item.price_usd_h for item in of_row)
        initialization += added * float(problem.penalties[row])
        instances += of_row
    classes = planned_classes(problem, allocation)
    provisioning = (
        sum(item.nodes * item.usd_h for item in classes)
        if classes
        else sum(item.count * item.price_usd_h for item in instances)
    )
    planned, spent = _by_phase(of_stages.phases, instances)
    chosen = request_flows(problem, items) if served.flows is None else served.flows
    modes = planned_modes(scenario, chosen, list(planned.values()))
    demands = tuple(
        PlannedDemand(
            model=phase.model.name,
            phase=phase.phase,
            slo_ms=phase.slo_ms,
            demand_tokens_s=share_of(modes, key) * phase.demand_tokens_s,
            planned_tokens_s=planned[key],
            cost_usd_h=spent[key],
            throughput_sources=_sources(of_stages.plain[key], instances),
            unmet_tokens_s=max(0.0, share_of(modes, key) * float(lack)),
            prefix_hit=phase.prefix_hit,
        )
        for (key, phase), lack in zip(of_stages.phases.items(), unmet.tokens_s, strict=True)
    )
    served_factor, served_factor_bound = 1.0, 1.0
    if served.factor is not None:
        served_factor, served_factor_bound = float(served.factor.factor), served.factor.bound
    flows = [
        flow
        for model, of_model in zip(allowed_routes(scenario), chosen, strict=True)
        for flow in planned_flows(scenario, model, of_model, served_factor)
    ]
    egress_usd_h = sum(flow.usd_h for flow in flows)
    way: Literal["met", "scale", "shortfall"] = "scale" if served_factor < 1 else "met"
    if any(item.unmet_tokens_s for item in demands) and served.factor is None:
        way = "shortfall"
    gap = headline_gap(result.cost_usd_h, result.bound_usd_h, served_factor, served_factor_bound)
    return Plan(
        planner="coral",
        coralopt_version=__version__,
        solver=get_backend(solver).name,
        solver_version=backend_version(solver),
        formulation=result.formulation,
        status="optimal" if gap_met(gap, requested_gap) else "feasible",
        cost_usd_h=result.cost_usd_h,
        provisioning_usd_h=provisioning,
        initialization_usd_h=initialization,
        lower_bound_usd_h=result.bound_usd_h,
        gap=gap,
        requested_gap=requested_gap,
        on_infeasible=way,
        served_factor=served_factor,
        served_factor_bound=served_factor_bound,
        unmet_usd_h=unmet.usd_h,
        egress_usd_h=egress_usd_h,
        scenario_digest=scenario.digest,
        library_digest=library.digest,
        demands=demands,
        instances=tuple(instances),
        options=(*planned_options(problem, allocation), *planned_means(scenario, modes)),
        node_classes=classes,
        flows=tuple(flows),
        modes=tuple(modes),
        cases=unmet.cases,
        scenario=dict(scenario.document),
    )


def _by_phase(phases: Iterable[str], instances: Sequence[PlannedInstance]) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens/s and USD/h of every model phase."""
    planned, spent = dict.fromkeys(phases, 0.0), dict.fromkeys(phases, 0.0)
    for item in instances:
        for key, (tokens_s, time_share) in item.serves().items():
            planned[key] += item.count * tokens_s
            spent[key] += item.count * item.price_usd_h * time_share
    return planned, spent


def _sources(tables: ThroughputTables, instances: Sequence[PlannedInstance]) -> dict[str, str]:
    """Configuration -> where its times come from, of those that serve this model phase."""
    mine = [item.nodes() for item in instances if tables.key in item.serves()]
    return {
        name: line
        for name, line in zip(tables.configurations, tables.provenance, strict=True)
        if any(name in nodes for nodes in mine)
    }
