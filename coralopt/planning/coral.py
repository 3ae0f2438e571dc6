"""The planner of the paper: template library, then allocation to least cost, then a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    Joint,
    LargestFactor,
    OnInfeasible,
    Served,
    fewest_gpus,
    largest_factor,
    solve_allocation,
    solve_or_serve_less,
)
from coralopt.allocation.model import FORMULATIONS
from coralopt.errors import InfeasibleError, Mistake, OptionError, ScenarioError
from coralopt.placement import Placement
from coralopt.plan import Plan
from coralopt.plan.bill import left_out
from coralopt.plan.certificate import RefusedInstances
from coralopt.plan.flows import allowed_routes, closed_regions
from coralopt.planning.make_plan import make_plan
from coralopt.planning.on_demand import OnDemandSearch
from coralopt.planning.on_demand_objective import LargestShare
from coralopt.planning.operators import case_terms, operator_terms, start_penalties, unmet_prices
from coralopt.planning.promise.attempts import Attempts, Promised
from coralopt.planning.promise.search import PromiseSearch, asks_for_shares
from coralopt.planning.request import LibraryUse, PlanOutcome, PlanRequest, StepClock, setting
from coralopt.planning.solve_on_demand import largest_share, least_cost, solve_on_demand
from coralopt.planning.unmet_bound import UnmetSolver
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Backend
from coralopt.solving.status import gap_met
from coralopt.templates import (
    Patterns,
    TemplateLibrary,
    build_library,
    check_slos,
    class_rates,
    is_on_demand,
    library_digest,
    scenario_tables,
    shared_patterns,
)
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats, Ints, Progress

#: Least share of an instance's time that all requests of a class take: solvers cannot tell less from none.
LEAST_TIME = 1e-5


class CoralPlanner:
    """Template library and allocation together, at proven cost (paper, sections 3.2, 3.3, 4.2 and 4.3).

    Its settings: ``formulation``, ``"split"`` or ``"paper"``; ``reductions``, whether the exact reductions run ahead of the
    solver; ``restrict``, the most columns to hand to the solver at once, for licences that stop at a size: the gap stays
    proven over all columns; ``certify``, whether a plan for a share of requests gets its certificate.
    """

    name = "coral"
    summary = "nodes of several kinds in one replica, all models together, to proven least cost"
    source = "the paper, section 4"
    settings: Mapping[str, object] = {"formulation": "split", "reductions": True, "restrict": None, "certify": True}

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """Decide what to rent and how to split every model.

        Raises:
            ScenarioError: An SLO no node can meet, or a running instance the library does not know.
            InfeasibleError: The pool cannot meet every demand; says which model falls short and what binds.
            LibraryError: The library file is stale, foreign or corrupt.
            SolverError: The solver is unknown, not installed, or answered wrongly.
        """
        scenario, steps = request.scenario, StepClock()
        request.check()
        formulation, restrict = setting(self, request, "formulation"), setting(self, request, "restrict")
        if formulation not in FORMULATIONS:
            raise OptionError(f"unknown formulation {formulation!r}; choose from: {', '.join(sorted(FORMULATIONS))}")
        reductions = bool(setting(self, request, "reductions"))
        search = AllocationSearchOptions(formulation, reductions, restrict, state=request.warm.prices)
        if scenario.operations.cases and request.on_infeasible != "explain":
            raise OptionError("demand cases say what may go unmet at what price: leave out --on-infeasible")
        limit = request.solve_options.time_limit
        deadline = math.inf if limit is None else time.perf_counter() + limit
        promised: Promised | None = None
        patterns, reused = Patterns.none(), False
        try:
            if is_on_demand(scenario):
                warm = request.warm.covering(scenario)
                check_slos(scenario, warm.tables_of(scenario))
                problem_of = partial(allocation_problem, scenario)
                library, served = solve_on_demand(request, warm.tables_of(scenario), problem_of, search)
                served = _fewest(request, served, deadline)
            else:
                library, reused, warm = request.templates()
                steps.end("library")
                patterns = shared_patterns(scenario, warm.tables_of(scenario))
                problem = allocation_problem(scenario, library, patterns, warm.tables_of(scenario))
                if len(problem.joint) and request.on_infeasible == "scale":
                    what = "shared nodes; leave sharing" if len(patterns) else "classes of requests; leave these"
                    raise OptionError(f"on_infeasible is 'scale', which does not know {what} out of the scenario")
                unmet = unmet_prices(scenario)
                if unmet is not None:
                    problem = replace(problem, unmet_price=unmet)
                if asks_for_shares(scenario):
                    document = partial(_document, request, warm.tables_of(scenario), library, patterns)
                    search_for = partial(_promise_search, library, warm.tables_of(scenario), problem)
                    promised = _for_shares(
                        Attempts(request, search_for, document, steps), bool(setting(self, request, "certify"))
                    )
                    served = promised.served
                else:
                    solve = UnmetSolver(scenario, warm.tables_of(scenario)).solve
                    served = solve_or_serve_less(
                        problem, request.on_infeasible, request.backend, request.solve_options, search, solve
                    )
                    served = _fewest(request, served, deadline)
        except InfeasibleError as error:
            # More of what no engine runs would not help.
            reasons = [str(error), *left_out(scenario), *closed_regions(scenario)]
            if asks_for_shares(scenario):
                reasons.append(
                    "for a share of requests an instance counts for what its memory holds in that share of moments; "
                    "`attainment: mean` with `plan --simulate` may find a plan whose requests wait for memory"
                )
            raise InfeasibleError("\n".join(reasons), error.explanation) from error
        if promised is None:
            steps.end("allocation")
            plan = _document(request, warm.tables_of(scenario), library, patterns, served)
            steps.end("plan")
        else:
            plan = promised.plan
        return PlanOutcome(
            plan,
            steps.seconds,
            # A solve that needed no prices leaves those before it as they are.
            warm=replace(warm, prices=served.result.state or warm.prices),
            own_gap=plan.gap,
            interrupted=served.result.interrupted or (promised is not None and promised.cut_short == "Ctrl-C"),
            notes=() if promised is None else promised.notes,
            library=LibraryUse(len(library), sum(phase.examined for phase in library.phases), reused),
        )


def _document(
    request: PlanRequest,
    tables: Sequence[ThroughputTables],
    library: TemplateLibrary,
    patterns: Patterns,
    served: Served,
    placements: Mapping[int, Placement] = MappingProxyType({}),
    unconfirmed: tuple[str, ...] = (),
) -> Plan:
    """The plan of an allocation."""
    scenario, gap = request.scenario, request.solve_options.rel_gap
    plan = make_plan(scenario, library, tables, served, request.backend, gap, placements, patterns)
    if not (scenario.availability > 0).any(axis=0).all():
        # Read anywhere else, the plan's scenario has fewer configurations, so its library is a part of this one.
        names = [configuration.name for configuration in plan.resolved.configurations]
        digest = library_digest(plan.resolved, [table.of(names) for table in tables])
        plan = plan.model_copy(update={"library_digest": digest})
    if unconfirmed:
        plan = plan.model_copy(update={"unconfirmed": unconfirmed, "status": "feasible"})
    return plan


def _promise_search(
    library: TemplateLibrary,
    tables: Sequence[ThroughputTables],
    problem: AllocationProblem,
    request: PlanRequest,
    refused: Sequence[RefusedInstances],
) -> PromiseSearch:
    return PromiseSearch(request, library, tables, replace(problem, unmet_price=None), refused=refused)


def _for_shares(attempts: Attempts, certified: bool) -> Promised:
    """A plan whose instances serve the shares of requests that the scenario says."""
    try:
        return attempts.run(certified)
    except InfeasibleError as error:
        if attempts.request.on_infeasible == "explain":
            raise
        raise InfeasibleError(
            f"{error}; less than the whole demand is served for mean requests only (`attainment: mean`)",
            error.explanation,
        ) from error


def _fewest(request: PlanRequest, served: Served, deadline: float) -> Served:
    """The allocation of fewest GPUs among those of equal cost."""
    options = request.solve_options
    gpus = np.array([host.count for host in request.scenario.configurations])
    return replace(served, result=fewest_gpus(served.problem, served.result, gpus, request.backend, options, deadline))


def plan_scenario(
    scenario: ResolvedScenario,
    *,
    solver: str | Backend | None = None,
    options: Mapping[str, object] | None = None,
    on_infeasible: OnInfeasible = "explain",
    library: Path | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Decide what to rent and how to split every model, at proven cost (paper sections 3.2 and 3.3).

    Args:
        scenario: From :func:`coralopt.load_scenario`.
        solver, options, on_infeasible, library, progress: As in :class:`coralopt.planning.PlanRequest`.
        settings: As in :class:`coralopt.planning.CoralPlanner`.

    Raises:
        CoraloptError: As :meth:`coralopt.planning.CoralPlanner.plan`.
    """
    request = PlanRequest(
        scenario,
        solver,
        options or {},
        library,
        on_infeasible,
        settings=settings or {},
        progress=progress,
    )
    return CoralPlanner().plan(request).plan


def allocation_problem(
    scenario: ResolvedScenario,
    library: TemplateLibrary,
    patterns: Patterns | None = None,
    tables: Sequence[ThroughputTables] | None = None,
) -> AllocationProblem:
    """The allocation problem of the scenario; template t is row t of the stacked library, patterns come behind.

    Of models whose requests come in classes the templates divide their time; those that are not worth having serve nothing.

    Args:
        scenario: The scenario.
        library: Its templates.
        patterns: Its shared nodes.
        tables: Its throughput tables, which only classes need; made anew if they are not given.

    Raises:
        ScenarioError: A running instance whose template the library does not hold.
    """
    patterns = Patterns.none() if patterns is None else patterns
    rows = len(library) + len(patterns)
    usage, throughput, phase, joint = library.usage, library.throughput, library.phase, _joint(patterns, len(library))
    if len(patterns):
        # Only then: a large library is many megabytes.
        usage = np.concatenate([usage, np.eye(len(library.configurations), dtype=np.int16)[patterns.configuration]])
        throughput = np.concatenate([throughput, patterns.tokens_s[:, 0]])
        phase = np.concatenate([phase, patterns.phase[:, 0].astype(np.int32)])
    if scenario.models_in_classes:
        throughput, joint = _divided(scenario, library, scenario_tables(scenario) if tables is None else tables)
    running = np.zeros((rows, len(scenario.regions)), dtype=np.int64) if scenario.running else None
    mistakes = []
    for index, entry in enumerate(scenario.running):
        phase_index = [phase.key for phase in scenario.model_phases].index(entry.key)
        nodes = [int(entry.nodes.get(name, 0)) for name in library.configurations]
        unknown = sorted(set(entry.nodes) - set(library.configurations))
        row = None if unknown else library.phases[phase_index].find(nodes)
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
        usage=usage,
        throughput=throughput,
        phase=phase,
        availability=scenario.availability,
        price=scenario.price_usd_h,
        running=running,
        penalty=scenario.initialization_penalty,
        phase_names=tuple(phase.key for phase in scenario.model_phases),
        region_names=scenario.regions,
        configuration_names=library.configurations,
        routes=allowed_routes(scenario),
        start_penalty=start_penalties(scenario, library),
        joint=joint,
        **case_terms(scenario),
        **operator_terms(scenario, library.configurations),
    )


def _joint(patterns: Patterns, first: int) -> Joint:
    """What shared nodes serve beside their first phases, as templates from ``first`` on."""
    row, column = np.nonzero(patterns.phase[:, 1:] >= 0)
    place = row, column + 1
    return Joint(first + row, patterns.phase[place].astype(np.int32), patterns.tokens_s[place])


def _divided(
    scenario: ResolvedScenario, library: TemplateLibrary, tables: Sequence[ThroughputTables]
) -> tuple[Floats, Joint]:
    """Tokens/s of every template for its own class, 0 where another is as good for all, and for the other classes."""
    throughput = library.throughput.copy()
    needed = np.array([phase.needed_tokens_s for phase in scenario.model_phases])
    most = np.where(needed > 0, needed / LEAST_TIME, np.inf)
    parts: list[tuple[Ints, Ints, Floats]] = []
    for group, rows, speeds in class_rates(scenario, library, tables):
        speeds = np.minimum(speeds, most[group])
        throughput[np.isin(library.phase, group)] = 0.0
        own = group[None, :] == library.phase[rows][:, None]
        throughput[rows] = speeds[own]
        row, column = np.nonzero(~own & (speeds > 0))
        parts.append((rows[row], group[column], speeds[row, column]))
    template, phase, tokens_s = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((phase, template))
    return throughput, Joint(template[order], phase[order].astype(np.int32), tokens_s[order], divided=True)


def prove_bound(plan: Plan, *, progress: Progress | None = None) -> tuple[str, ...]:
    """Re-derive what a plan says about its whole library: rebuild the templates and solve the allocation again.

    Returns:
        One sentence for everything that is off; empty when the lower bound stands.
    """
    scenario = plan.resolved
    request = PlanRequest(scenario, options={"rel_gap": plan.requested_gap}, progress=progress)
    options = request.solve_options
    if is_on_demand(scenario):
        problem_of = partial(allocation_problem, scenario)
        tables, violations = scenario_tables(scenario), list[str]()
        search_of = partial(OnDemandSearch, request, tables, search=AllocationSearchOptions())
        if plan.on_infeasible == "scale":
            violations += _factor_violations(plan, largest_share(search_of(problem_of, objective=LargestShare()))[1])
        result = least_cost(search_of(lambda library: _less(plan, problem_of(library))))[1].result
        return (*violations, *_outside(plan, result.bound_usd_h, result.cost_usd_h), *_wider(plan, result.bound_usd_h))
    library = build_library(scenario, progress=progress)
    violations = []
    if library.digest != plan.library_digest:
        violations.append(f"library_digest is {plan.library_digest[:12]}, rebuilt {library.digest[:12]}")
    tables = scenario_tables(scenario)
    problem = allocation_problem(scenario, library, shared_patterns(scenario, tables), tables)
    if asks_for_shares(scenario):
        refused = () if plan.certificate is None else plan.certificate.refused
        search = PromiseSearch(request, library, tables, problem, remember=False, refused=refused)
        result = search.run()[0].result
        return (*violations, *_outside(plan, result.bound_usd_h, result.cost_usd_h))
    if plan.on_infeasible == "scale":
        violations += _factor_violations(plan, largest_factor(problem, scenario.solver, options))
    problem = _less(plan, problem)
    solve = UnmetSolver(scenario, tables).solve if problem.unmet_groups() else solve_allocation
    result = solve(problem, scenario.solver, options, AllocationSearchOptions())
    violations += _outside(plan, result.bound_usd_h, result.cost_usd_h)
    return (*violations, *_wider(plan, result.bound_usd_h))


def _wider(plan: Plan, bound_usd_h: float) -> list[str]:
    """What a re-derived bound says of a plan that calls itself optimal."""
    gap = (plan.cost_usd_h - bound_usd_h) / max(plan.cost_usd_h, 1e-9)
    if plan.status == "optimal" and not gap_met(gap, plan.requested_gap * (1 + 1e-6) + 1e-9):
        return [f"the re-derived bound leaves a gap of {gap:.3e}, {plan.requested_gap:.3e} is claimed"]
    return []


def _outside(plan: Plan, bound_usd_h: float, cost_usd_h: float) -> list[str]:
    """What contradicts a re-derived bound and the cost of an allocation that exists."""
    violations = []
    if plan.lower_bound_usd_h > cost_usd_h * (1 + 1e-9):
        violations.append(
            f"lower_bound_usd_h is {plan.lower_bound_usd_h!r}, but an allocation of {cost_usd_h!r} USD/h exists"
        )
    if plan.cost_usd_h < bound_usd_h * (1 - 1e-9):
        violations.append(f"cost_usd_h is {plan.cost_usd_h!r}, below the re-derived bound {bound_usd_h!r}")
    return violations


def _less(plan: Plan, problem: AllocationProblem) -> AllocationProblem:
    """What is left to serve of a problem, or its price, where the plan serves less."""
    if plan.on_infeasible == "scale":
        # A hair less: what was proven for the demand served holds for a smaller one.
        served = plan.served_factor * (1 - 1e-12)
        return problem.scaled(problem.demand * served, served)
    if plan.on_infeasible == "shortfall":
        return replace(problem, unmet_price=unmet_prices(plan.resolved))
    return problem


def _factor_violations(plan: Plan, largest: LargestFactor) -> list[str]:
    violations = []
    if float(largest.factor) > plan.served_factor_bound * (1 + 1e-9):
        violations.append(
            f"served_factor_bound is {plan.served_factor_bound!r}, but {float(largest.factor)!r} of every demand can be "
            "served"
        )
    if plan.served_factor > largest.bound * (1 + 1e-9):
        violations.append(f"served_factor is {plan.served_factor!r}, above the re-derived bound {largest.bound!r}")
    return violations
