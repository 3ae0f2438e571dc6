"""Plan, play, correct: the cheapest plan found that keeps its promise in a simulation.

Each round plans the scenario with a headroom per model phase, plays the requests against the plan, and corrects: a phase
that failed because requests waited gets more throughput, one whose requests were too slow by themselves a smaller latency
budget; once all passed, less of either is tried. What a round says about one phase is kept by itself, since phases hardly
touch each other, so that every round is an experiment for each of them; at the end the best of all are put together. The
rules are in :mod:`coralopt.planning.headroom`. A plan whose every model phase passed is *verified*; the cheapest one found
is returned.

Rounds share the template library, the throughput tables of phases whose latency budget did not change, and the capacity
prices of the last allocation.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import AllocationSearchOptions, AllocationState, solve_allocation
from coralopt.errors import InfeasibleError, OptionError, ScenarioError
from coralopt.plan import Plan, Simulated, SimulatedPhase
from coralopt.planning.coral import allocation_problem, make_plan
from coralopt.planning.headroom import Ask, Trial, best_ask, next_ask
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import SimulationConfig, SimulationResult, simulate
from coralopt.simulation.possible import possible_requests
from coralopt.solving import SolveOptions
from coralopt.templates import (
    PhaseTemplates,
    TemplateLibrary,
    build_library,
    check_slos,
    library_digest,
    obtain_library,
    scenario_tables,
)
from coralopt.throughput import ThroughputTables
from coralopt.types import Bools, Progress
from coralopt.workload import Trace, Traffic, trace_digest

#: Causes of a miss that more throughput does away with; the others need nodes that are quicker by themselves.
WAITING = ("instance", "startup", "memory", "burst", "queue", "transfer")
INHERENT = ("length", "batch", "transfer")
#: Difference of a share of requests up to which a simulation played again counts as equal.
SAME = 1e-6


@dataclass(frozen=True)
class Round:
    """One plan that was made and played.

    Attributes:
        cost_usd_h: Its cost, NaN where the pool could not give what was asked for.
        headroom: Model phase -> (throughput headroom, latency headroom) planned with.
        attainment: Model phase -> share of its requests that met, the lower of both kinds for mixed ones.
        passed: Whether every model phase reached the target.
        seconds: Seconds by step: ``plan``, ``play``.
    """

    cost_usd_h: float
    headroom: Mapping[str, tuple[float, float]]
    attainment: Mapping[str, float]
    passed: bool
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class VerifiedPlanning:
    """What the search found.

    Attributes:
        plan: The cheapest verified plan; without any, the one that came nearest, marked as failed.
        result: The simulation of ``plan``.
        rounds: All rounds.
        impossible: Model phase -> share of its requests that no node of the pool could serve in time.
        interrupted: Whether Ctrl-C cut the search short.
    """

    plan: Plan
    result: SimulationResult
    rounds: tuple[Round, ...]
    impossible: Mapping[str, float]
    interrupted: bool = False

    @property
    def verified(self) -> bool:
        return self.plan.simulated is not None and self.plan.simulated.passed


class _Templates:
    """Template libraries of scenarios that differ in their latency headroom only; phases that stay are kept."""

    def __init__(self, scenario: ResolvedScenario, path: Path | None, progress: Progress | None) -> None:
        self.progress = progress
        self.known: dict[str, PhaseTemplates] = {}
        self.library, self.reused = obtain_library(scenario, path, progress=progress)
        for table, phase in zip(scenario_tables(scenario), self.library.phases, strict=True):
            self.known[self._mark(table)] = phase

    @staticmethod
    def _mark(table: ThroughputTables) -> str:
        return hashlib.sha256(table.key.encode() + np.ascontiguousarray(table.values).tobytes()).hexdigest()

    def of(self, scenario: ResolvedScenario) -> tuple[TemplateLibrary, tuple[ThroughputTables, ...]]:
        """The library of a scenario; only phases not met before are built."""
        tables = scenario_tables(scenario)
        check_slos(scenario, tables)
        marks = [self._mark(table) for table in tables]
        for phase, table, mark in zip(scenario.model_phases, tables, marks, strict=True):
            if mark not in self.known:
                alone = replace(scenario, model_phases=(phase,))
                self.known[mark] = build_library(alone, (table,), progress=self.progress).phases[0]
        phases = tuple(self.known[mark] for mark in marks)
        digest = library_digest(scenario, tables)
        return replace(self.library, digest=digest, phases=phases, document=scenario.document), tables


def plan_verified(
    scenario: ResolvedScenario,
    traffic: Traffic | None = None,
    *,
    target: float = 0.99,
    over: str = "all",
    rounds: int = 16,
    config: SimulationConfig | None = None,
    start: Mapping[str, float] | None = None,
    solver: str | None = None,
    options: Mapping[str, Any] | None = None,
    library: Path | None = None,
    progress: Progress | None = None,
    on_round: Callable[[int, Round], None] | None = None,
) -> VerifiedPlanning:
    """The cheapest plan found that keeps its promise when ``traffic`` is played against it.

    Args:
        scenario: The scenario; its own headroom is where the search begins.
        traffic: Requests; Poisson arrivals of 300 s when ``None``.
        target: Share of the requests of each model phase that must meet its SLO, above 0 and at most 1.
        over: ``"all"`` requests, or the ``"possible"`` ones: those that some node of the pool could serve in time.
        rounds: Most plans to make.
        config: What the simulation assumes.
        start: Model phase -> throughput headroom to begin with instead, see
            :func:`coralopt.planning.queueing_headroom`.
        solver, options, library, progress: As :func:`coralopt.planning.plan_with_report`.
        on_round: Told about every round (from 1).

    Raises:
        OptionError: A figure out of range.
        InfeasibleError: The pool cannot meet the demand even without headroom.
        WorkloadError: The requests cannot be used.
        As :func:`coralopt.planning.plan_with_report`.
    """
    if not 0 < target <= 1:
        raise OptionError(f"the attainment is {target!r}; give a share above 0 and at most 1, 0.99 say")
    if over not in ("all", "possible"):
        raise OptionError(f"attainment over {over!r}: choose all or possible")
    if rounds < 1:
        raise OptionError(f"{rounds} rounds: give 1 or more")
    traffic, config = traffic or Traffic(), config or SimulationConfig()
    trace = traffic.requests(scenario)
    possible = possible_requests(scenario, trace, config)
    chosen = solver or scenario.solver
    asked = SolveOptions.from_mapping({**scenario.solver_options, **(options or {})})
    templates = _Templates(scenario, library, progress)
    asks: dict[str, Ask] = {
        phase.key: (1.0 + (start or {}).get(phase.key, phase.throughput_headroom), phase.latency_headroom)
        for phase in scenario.model_phases
    }
    trials: dict[str, list[Trial]] = {key: [] for key in asks}
    state: AllocationState | None = None
    done: list[Round] = []
    best: tuple[Plan, SimulationResult] | None = None
    nearest: tuple[tuple[float, float], Plan, SimulationResult] | None = None
    possible_asks, tried, interrupted = asks, set(), False
    try:
        while len(done) < rounds and tuple(asks.values()) not in tried:
            tried.add(tuple(asks.values()))
            begin = time.perf_counter()
            headroom = {key: (ask[0] - 1.0, ask[1]) for key, ask in asks.items()}
            try:
                now = _with_headroom(scenario, headroom)
                made, tables = templates.of(now)
                problem = allocation_problem(now, made)
                found = solve_allocation(problem, chosen, asked, AllocationSearchOptions(state=state))
            except (InfeasibleError, ScenarioError):
                if not done:
                    # Not even what the scenario itself asks for.
                    raise
                done.append(Round(math.nan, headroom, {}, False, {"plan": time.perf_counter() - begin}))
                if on_round is not None:
                    on_round(len(done), done[-1])
                # Halfway back to what the pool could give.
                asks = {
                    key: (math.sqrt(possible_asks[key][0] * ask[0]), possible_asks[key][1]) for key, ask in asks.items()
                }
                continue
            if found.interrupted:
                raise KeyboardInterrupt
            state, possible_asks = found.state or state, asks
            plan = make_plan(now, made, problem, found, chosen, asked.rel_gap, tables)
            planned = time.perf_counter()
            result = simulate(plan, trace, config=config, duration_s=traffic.window_s, progress=progress)
            attainment = _attainment(result, trace, possible, over)
            passed = all(value >= target for value in attainment.values())
            seconds = {"plan": planned - begin, "play": time.perf_counter() - planned}
            done.append(Round(plan.cost_usd_h, headroom, attainment, passed, seconds))
            if on_round is not None:
                on_round(len(done), done[-1])
            plan = plan.model_copy(
                update={"simulated": _mark(traffic, trace, result, attainment, target, over, passed, len(done))}
            )
            if passed and (best is None or plan.cost_usd_h < best[0].cost_usd_h):
                best = (plan, result)
            shortfall = sum(max(0.0, target - value) for value in attainment.values())
            if nearest is None or (shortfall, plan.cost_usd_h) < nearest[0]:
                nearest = ((shortfall, plan.cost_usd_h), plan, result)
            _note(trials, asks, plan, result, attainment, target)
            asks = _next(asks, trials, 1.0 - target, len(done) + 1 >= rounds, tried)
    except KeyboardInterrupt:
        if nearest is None:
            raise
        interrupted = True
    if best is None:
        assert nearest is not None
        best = nearest[1:]
    impossible = {f"{name}/{kind}": float(1 - flags.mean()) for (name, kind), flags in possible.items() if len(flags)}
    return VerifiedPlanning(best[0], best[1], tuple(done), impossible, interrupted)


def play_again(plan: Plan, trace: Path | None = None) -> tuple[str, ...]:
    """Play the requests a plan was verified with once more.

    Args:
        plan: A plan with ``simulated``.
        trace: The trace file, where that is what it was played against.

    Returns:
        One sentence for everything that is not as the plan says; empty when it holds.

    Raises:
        OptionError: The plan was never played, or the trace file is missing.
        WorkloadError: The requests cannot be made.
    """
    mark = plan.simulated
    if mark is None:
        raise OptionError("the plan was never played against requests")
    if mark.kind == "trace" and trace is None:
        raise OptionError(f"the plan was played against the trace {mark.trace}; give the file with --trace")
    traffic = Traffic(
        mark.kind,
        trace if mark.kind == "trace" else None,
        mark.model,
        mark.rate,
        mark.duration_s,
        mark.seed,
        mark.length_cv,
        # The digest says whether they are the same requests, in whatever order their file has them.
        sort=mark.kind == "trace",
    )
    scenario = scenario_from_mapping(plan.scenario, source="the plan's scenario")
    requests = traffic.requests(scenario)
    if trace_digest(requests) != mark.requests_digest:
        return ("simulated: these are not the requests that the plan was played against",)
    result = simulate(plan, requests, duration_s=traffic.window_s)
    again = {(row.model, row.phase, row.kind): row.attainment for row in result.outcomes}
    wrong = [
        f"{item.model}/{item.phase}: {item.attainment:.4%} met the {item.kind} SLO in the plan, "
        f"{again.get((item.model, item.phase, item.kind), math.nan):.4%} when played again"
        for item in mark.phases
        if not abs(again.get((item.model, item.phase, item.kind), math.nan) - item.attainment) <= SAME
    ]
    attainment = _attainment(result, requests, possible_requests(scenario, requests), mark.over)
    passed = all(value >= mark.target for value in attainment.values())
    if passed != mark.passed:
        wrong.append(f"simulated.passed is {mark.passed}, played again it is {passed}")
    if not passed:
        worst = min(attainment, key=lambda key: attainment[key])
        wrong.append(
            f"the plan fails its own simulation: {attainment[worst]:.2%} of {worst}, {mark.target:.2%} asked for"
        )
    return tuple(wrong)


def _with_headroom(scenario: ResolvedScenario, headroom: Mapping[str, tuple[float, float]]) -> ResolvedScenario:
    document = copy.deepcopy(dict(scenario.document))
    document["headroom"] = {
        key: {"throughput": throughput, "latency": latency}
        for key, (throughput, latency) in headroom.items()
        if throughput > 0 or latency > 0
    }
    if not document["headroom"]:
        del document["headroom"]
    return scenario_from_mapping(document, source=scenario.name)


def _next(
    asks: Mapping[str, Ask],
    trials: Mapping[str, Sequence[Trial]],
    allowed: float,
    last: bool,
    tried: Container[tuple[Ask, ...]],
) -> dict[str, Ask]:
    """What the next round asks for: of each phase what its own trials say, or the best of all phases together."""
    best = {key: best_ask(found) if found else asks[key] for key, found in trials.items()}
    if any(ask is None for ask in best.values()):
        # Phases that pass stay as they are until all do: a trial of theirs would say nothing about the others.
        return {key: (best[key] or next_ask(found, allowed)) if found else asks[key] for key, found in trials.items()}
    together = {key: ask for key, ask in best.items() if ask is not None}
    explored = {key: next_ask(found, allowed) if found else asks[key] for key, found in trials.items()}
    return together if last or tuple(explored.values()) in tried else explored


def _note(
    trials: Mapping[str, list[Trial]],
    asks: Mapping[str, Ask],
    plan: Plan,
    result: SimulationResult,
    attainment: Mapping[str, float],
    target: float,
) -> None:
    """Add what a round said about every phase that had requests."""
    demands = {f"{item.model}/{item.phase}": item for item in plan.demands}
    for key, value in attainment.items():
        rows = [row for row in result.outcomes if f"{row.model}/{row.phase}" == key]
        item = demands[key]
        trials[key].append(
            Trial(
                asks[key],
                item.planned_tokens_s / item.demand_tokens_s if item.demand_tokens_s else 1.0,
                item.cost_usd_h,
                value >= target,
                max(sum(row.causes.get(cause, 0.0) for cause in WAITING) for row in rows),
                max(sum(row.causes.get(cause, 0.0) for cause in INHERENT) for row in rows),
            )
        )


def _attainment(
    result: SimulationResult, trace: Trace, possible: Mapping[tuple[str, str], Bools], over: str
) -> dict[str, float]:
    """Model phase -> share of its requests that met; phases without requests are left out."""
    found: dict[str, float] = {}
    for row in result.outcomes:
        mine = result.requests["model"] == result.models.index(row.model)
        met = result.requests["met_ttft" if row.kind == "prefill" else "met_tpot"][mine]
        if over == "possible":
            # The simulation plays the requests inside its window only: the first ones.
            met = met[possible[row.model, row.kind][: len(met)]]
        if len(met):
            key = f"{row.model}/{row.phase}"
            found[key] = min(found.get(key, 1.0), float(met.mean()))
    return found


def _mark(
    traffic: Traffic,
    trace: Trace,
    result: SimulationResult,
    attainment: Mapping[str, float],
    target: float,
    over: str,
    passed: bool,
    rounds: int,
) -> Simulated:
    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return Simulated(
        kind=traffic.kind,  # type: ignore[arg-type]
        trace=None if traffic.trace is None else traffic.trace.name,
        model=traffic.model,
        rate=traffic.rate,
        duration_s=traffic.duration_s,
        seed=traffic.seed,
        length_cv=traffic.length_cv,
        requests=len(result.requests["status"]),
        requests_digest=trace_digest(trace),
        target=target,
        over=over,  # type: ignore[arg-type]
        passed=passed,
        rounds=rounds,
        phases=tuple(
            SimulatedPhase(
                model=row.model,
                phase=row.phase,  # type: ignore[arg-type]
                kind=row.kind,  # type: ignore[arg-type]
                attainment=row.attainment,
                attainment_feasible=number(row.attainment_feasible),
                p99_ms=number(row.p99_ms),
                causes=row.causes,
            )
            for row in result.outcomes
            if f"{row.model}/{row.phase}" in attainment and not math.isnan(row.attainment)
        ),
    )
