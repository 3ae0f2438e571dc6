"""The planner of the paper: template library, then allocation to least cost, then a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coralopt._version import __version__
from coralopt.allocation import (
    AllocationProblem,
    AllocationResult,
    AllocationSearchOptions,
    LargestFactor,
    OnInfeasible,
    largest_factor,
    solve_allocation,
    solve_or_serve_less,
    unmet_demand,
)
from coralopt.errors import Mistake, ScenarioError
from coralopt.placement import Placement
from coralopt.plan import Plan, PlannedDemand, PlannedInstance, PlannedNode, PlannedStage
from coralopt.planning.operators import operator_terms, planned_classes, planned_options, unmet_prices
from coralopt.planning.stage_tables import StageTables
from coralopt.scenario.resolved import ModelPhase, ResolvedScenario
from coralopt.solving import SolveOptions, backend_version
from coralopt.templates import TemplateLibrary, obtain_library, scenario_tables
from coralopt.throughput import ThroughputTables, stage_role
from coralopt.types import Progress


@dataclass(frozen=True)
class PlanningReport:
    """How a plan came about; everything that may differ between two equal runs stays here, out of the plan.

    Attributes:
        seconds: Seconds by step: ``library``, ``allocation``, ``plan``.
        templates: Number of templates in the library.
        node_sets: Number of node sets examined for it.
        library_reused: Whether the library was read rather than built.
        allocation: Everything the allocation floor reports.
    """

    seconds: Mapping[str, float]
    templates: int
    node_sets: int
    library_reused: bool
    allocation: AllocationResult = field(repr=False)


def plan_scenario(
    scenario: ResolvedScenario,
    *,
    solver: str | None = None,
    options: Mapping[str, Any] | None = None,
    formulation: str | None = None,
    reductions: bool = True,
    restrict: int | None = None,
    on_infeasible: OnInfeasible = "explain",
    library: Path | None = None,
    progress: Progress | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Plan:
    """Plan a scenario; see :func:`plan_with_report` for the arguments and errors."""
    return plan_with_report(
        scenario,
        solver=solver,
        options=options,
        formulation=formulation,
        reductions=reductions,
        restrict=restrict,
        on_infeasible=on_infeasible,
        library=library,
        progress=progress,
        on_step=on_step,
    )[0]


def plan_with_report(
    scenario: ResolvedScenario,
    *,
    solver: str | None = None,
    options: Mapping[str, Any] | None = None,
    formulation: str | None = None,
    reductions: bool = True,
    restrict: int | None = None,
    on_infeasible: OnInfeasible = "explain",
    library: Path | None = None,
    progress: Progress | None = None,
    on_step: Callable[[str], None] | None = None,
) -> tuple[Plan, PlanningReport]:
    """Decide what to rent and how to split every model, at proven cost (paper sections 3.2 and 3.3).

    Args:
        scenario: From :func:`coralopt.load_scenario`.
        solver: MILP back end for the allocation; the scenario's own when ``None``.
        options: Common solver options that override the scenario's (``rel_gap``, ``time_limit`` in s, ...).
        formulation: ``"split"`` (default) or ``"paper"``.
        reductions: Whether the exact reductions run ahead of the solver.
        restrict: Most columns to hand to the solver at once, for licences that stop at a size; the gap stays proven
            over all columns.
        on_infeasible: What to do when the demand cannot be met: ``"explain"`` raises and says why, ``"scale"`` serves the
            largest common share of all demands, ``"shortfall"`` leaves demand unmet at the scenario's prices.
        library: Template library file; the user's cache directory when ``None``.
        progress: Told about the library's progress.
        on_step: Told when a step begins.

    Raises:
        ScenarioError: An SLO no node can meet, or a running instance the library does not know.
        InfeasibleError: The pool cannot meet every demand; says which model falls short and what binds.
        LibraryError: The library file is stale, foreign or corrupt.
        SolverError: The solver is unknown, not installed, or answered wrongly.
    """
    say = on_step or (lambda _: None)
    started = time.perf_counter()
    say("templates")
    templates, reused = obtain_library(scenario, library, progress=progress)
    built = time.perf_counter()
    say("allocation")
    problem = allocation_problem(scenario, templates)
    chosen = solver or scenario.solver
    asked = SolveOptions.from_mapping({**scenario.solver_options, **(options or {})})
    served = solve_or_serve_less(
        replace(problem, shortfall_price=unmet_prices(scenario)),
        on_infeasible,
        chosen,
        asked,
        AllocationSearchOptions(formulation or "split", reductions, restrict),
    )
    result = served.result
    solved = time.perf_counter()
    say("plan")
    plan = make_plan(scenario, templates, served.problem, result, chosen, asked.rel_gap, factor=served.factor)
    report = PlanningReport(
        seconds={"library": built - started, "allocation": solved - built, "plan": time.perf_counter() - solved},
        templates=len(templates),
        node_sets=sum(phase.examined for phase in templates.phases),
        library_reused=reused,
        allocation=result,
    )
    return plan, report


def allocation_problem(scenario: ResolvedScenario, library: TemplateLibrary) -> AllocationProblem:
    """The allocation problem of the scenario over its library; template t is row t of the stacked library.

    Raises:
        ScenarioError: A running instance whose template the library does not hold.
    """
    rows = len(library)
    running = np.zeros((rows, len(scenario.regions)), dtype=np.int64) if scenario.running else None
    mistakes = []
    for index, entry in enumerate(scenario.running):
        phase_index = [phase.key for phase in scenario.model_phases].index(entry.key)
        usage = [int(entry.nodes.get(name, 0)) for name in library.configurations]
        unknown = sorted(set(entry.nodes) - set(library.configurations))
        row = None if unknown else library.phases[phase_index].find(usage)
        if row is None:
            mistakes.append(
                Mistake(
                    place=f"running[{index}].nodes",
                    problem=f"the template library has no template of {entry.key} on {dict(entry.nodes)}",
                    hint="it is outside max_nodes or memory_ratio, cannot serve the model within its SLO, or uses "
                    "configurations that no region offers; remove the entry or widen `pruning`",
                )
            )
        else:
            assert running is not None
            running[library.offsets[phase_index] + row, scenario.regions.index(entry.region)] += entry.count
    if mistakes:
        raise ScenarioError(scenario.name, mistakes)
    return AllocationProblem(
        usage=np.concatenate([phase.usage for phase in library.phases]).astype(np.int16),
        throughput=np.concatenate([phase.throughput for phase in library.phases]),
        phase=np.repeat(np.arange(len(library.phases), dtype=np.int32), [len(phase) for phase in library.phases]),
        demand=np.array([phase.needed_tokens_s for phase in scenario.model_phases]),
        availability=scenario.availability,
        price=scenario.price_usd_h,
        running=running,
        penalty=scenario.initialization_penalty,
        phase_names=tuple(phase.key for phase in scenario.model_phases),
        region_names=scenario.regions,
        configuration_names=library.configurations,
        **operator_terms(scenario, library.configurations),
    )


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


def make_plan(
    scenario: ResolvedScenario,
    library: TemplateLibrary,
    problem: AllocationProblem,
    result: AllocationResult,
    solver: str,
    requested_gap: float,
    made: Sequence[ThroughputTables] | None = None,
    factor: LargestFactor | None = None,
) -> Plan:
    """The allocation made concrete: instances with their stages, nodes, instance types and shares of traffic.

    ``problem`` is the one that ``result`` solves: with less demand than the scenario where ``factor`` says so, with a price
    of unmet demand where that was allowed.
    """
    of_stages = StageTables(scenario, scenario_tables(scenario) if made is None else made)
    tables = of_stages.plain
    phases = {phase.key: phase for phase in scenario.model_phases}
    instances: list[PlannedInstance] = []
    planned: dict[str, float] = dict.fromkeys(phases, 0.0)
    spent: dict[str, float] = dict.fromkeys(phases, 0.0)
    provisioning = 0.0
    allocation = result.allocation
    classes = planned_classes(problem, allocation)
    unmet = np.array([phase.needed_tokens_s for phase in scenario.model_phases]) - problem.demand
    unmet_usd_h = 0.0
    if problem.shortfall_price is not None:
        items = [(t, r, n) for (t, r), n in allocation.to_mapping().items()]
        missing = unmet_demand(problem, items)
        unmet = np.array([float(lack) for lack in missing])
        unmet_usd_h = float(
            sum(Fraction(float(c)) * m for c, m in zip(problem.shortfall_price, missing, strict=True) if m)
        )
    for row, region, count in zip(allocation.template, allocation.region, allocation.count, strict=True):
        templates, local = library.locate(int(row))
        phase = phases[templates.key]
        usage = problem.usage[row].astype(np.int64)
        price = float(sum(int(n) * float(scenario.price_usd_h[region, c]) for c, n in enumerate(usage) if n))
        running = 0 if problem.running is None else int(problem.running[row, region])
        region_name = scenario.regions[region]
        nodes = {library.configurations[c]: int(n) for c, n in enumerate(usage) if n}
        placement = templates.placement(local)
        by_stage, budgets_ms = of_stages.of(phase.key, placement)
        instances.append(
            PlannedInstance(
                name=instance_name(phase, region_name, nodes),
                model=phase.model.name,
                phase=phase.phase,
                region=region_name,
                count=int(count),
                kept=min(running, int(count)),
                stages=planned_stages(scenario, placement, by_stage, int(region), budgets_ms),
                tokens_s=float(templates.throughput[local]),
                price_usd_h=price,
            )
        )
        planned[phase.key] += int(count) * float(templates.throughput[local])
        spent[phase.key] += int(count) * price
        provisioning += int(count) * price
    demands = tuple(
        PlannedDemand(
            model=phase.model.name,
            phase=phase.phase,
            slo_ms=phase.slo_ms,
            demand_tokens_s=phase.demand_tokens_s,
            planned_tokens_s=planned[key],
            cost_usd_h=spent[key],
            throughput_sources={
                name: line
                for name, line in zip(tables[key].configurations, tables[key].provenance, strict=True)
                if any(name in item.nodes() for item in instances if f"{item.model}/{item.phase}" == key)
            },
            unmet_tokens_s=max(0.0, float(lack)),
        )
        for (key, phase), lack in zip(phases.items(), unmet, strict=True)
    )
    if classes:
        provisioning = sum(item.nodes * item.usd_h for item in classes)
    done: Literal["met", "scale", "shortfall"] = "met"
    if problem.shortfall_price is not None or factor is not None:
        done = "shortfall" if factor is None else "scale"
    return Plan(
        planner="coral",
        coralopt_version=__version__,
        solver=solver,
        solver_version=backend_version(solver),
        formulation=result.formulation,
        status="optimal" if result.gap <= requested_gap else "feasible",
        cost_usd_h=result.cost_usd_h,
        provisioning_usd_h=provisioning,
        initialization_usd_h=max(0.0, result.cost_usd_h - provisioning - unmet_usd_h),
        lower_bound_usd_h=result.bound_usd_h,
        gap=result.gap,
        requested_gap=requested_gap,
        on_infeasible=done,
        served_factor=1.0 if factor is None else float(factor.factor),
        served_factor_bound=1.0 if factor is None else factor.bound,
        unmet_usd_h=unmet_usd_h,
        scenario_digest=scenario.digest,
        library_digest=library.digest,
        demands=demands,
        instances=tuple(instances),
        options=planned_options(problem, allocation),
        node_classes=classes,
        scenario=dict(scenario.document),
    )


def prove_bound(plan: Plan, *, progress: Progress | None = None) -> tuple[str, ...]:
    """Re-derive what a plan says about its whole library: rebuild the templates and solve the allocation again.

    Returns:
        One sentence for everything that is off; empty when the lower bound stands.
    """
    from coralopt.scenario import scenario_from_mapping
    from coralopt.templates import build_library

    scenario = scenario_from_mapping(plan.scenario, source="the plan's scenario")
    library = build_library(scenario, progress=progress)
    violations = []
    if library.digest != plan.library_digest:
        violations.append(f"library_digest is {plan.library_digest[:12]}, rebuilt {library.digest[:12]}")
    asked = SolveOptions.from_mapping({**scenario.solver_options, "rel_gap": plan.requested_gap})
    problem = allocation_problem(scenario, library)
    if plan.on_infeasible == "scale":
        violations += _factor_violations(plan, problem, scenario.solver, asked)
        unmet = {f"{item.model}/{item.phase}": item.unmet_tokens_s for item in plan.demands}
        promised = [phase.needed_tokens_s - unmet[phase.key] for phase in scenario.model_phases]
        # A hair less: what was proven for the demand served holds for a smaller one.
        problem = replace(problem, demand=np.maximum(0.0, np.array(promised) * (1 - 1e-12)))
    elif plan.on_infeasible == "shortfall":
        problem = replace(problem, shortfall_price=unmet_prices(scenario))
    result = solve_allocation(problem, solver=scenario.solver, options=asked)
    if plan.lower_bound_usd_h > result.cost_usd_h * (1 + 1e-9):
        violations.append(
            f"lower_bound_usd_h is {plan.lower_bound_usd_h!r}, but an allocation of {result.cost_usd_h!r} USD/h exists"
        )
    if plan.cost_usd_h < result.bound_usd_h * (1 - 1e-9):
        violations.append(f"cost_usd_h is {plan.cost_usd_h!r}, below the re-derived bound {result.bound_usd_h!r}")
    rederived = (plan.cost_usd_h - result.bound_usd_h) / max(plan.cost_usd_h, 1e-9)
    if plan.status == "optimal" and rederived > plan.requested_gap * (1 + 1e-6) + 1e-9:
        violations.append(f"the re-derived bound leaves a gap of {rederived:.3e}, {plan.requested_gap:.3e} is claimed")
    return tuple(violations)


def _factor_violations(plan: Plan, problem: AllocationProblem, solver: str, asked: SolveOptions) -> list[str]:
    found = largest_factor(problem, solver, asked)
    violations = []
    if float(found.factor) > plan.served_factor_bound * (1 + 1e-9):
        violations.append(
            f"served_factor_bound is {plan.served_factor_bound!r}, but {float(found.factor)!r} of every demand can be served"
        )
    if plan.served_factor > found.bound * (1 + 1e-9):
        violations.append(f"served_factor is {plan.served_factor!r}, above the re-derived bound {found.bound!r}")
    return violations
