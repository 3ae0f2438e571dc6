"""A walk through epochs: every epoch is planned anew, what runs is kept where that is cheaper (paper sections 4.3, 5.1).

Epoch e is planned for its demand, or for what a forecast makes of the epochs before; with its availability and prices;
and with the instances of epoch e - 1 running. Every added instance is charged K times its price, the initialization
penalty, and the plan's cost in USD/h holds it, as the paper's hourly cost does.

With an output folder every finished epoch is on disk before the next begins: ``epoch-0003.json`` the plan,
``epoch-0003-changes.json`` what to start, stop and keep, ``walk.json`` the list of both. A walk with the same inputs goes
on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import (
    AllocationProblem,
    AllocationSearchOptions,
    AllocationState,
    OnInfeasible,
    solve_or_serve_less,
)
from coralopt.errors import InfeasibleError, PlanError
from coralopt.plan import InstanceChange, Plan, PlanDifference, difference
from coralopt.plan.files import write_text
from coralopt.planning.coral import allocation_problem, instance_name, make_plan
from coralopt.planning.operators import operator_terms, unmet_prices
from coralopt.planning.rolling.epochs import EpochInputs, epoch_scenario
from coralopt.planning.rolling.forecast import Forecast, foretold
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario, RunningInstances
from coralopt.solving import SolveOptions
from coralopt.templates import TemplateLibrary, obtain_library, scenario_tables
from coralopt.templates.build import library_digest
from coralopt.types import Progress

#: Name of the list of finished epochs in the output folder.
WALK = "walk.json"


@dataclass(frozen=True)
class EpochSummary:
    """One epoch in figures.

    Attributes:
        epoch: From 0.
        cost_usd_h: Provisioning and initialization.
        provisioning_usd_h: Price of all nodes.
        initialization_usd_h: K times the price of the added instances.
        lower_bound_usd_h: No plan of this epoch, with what was running, costs less.
        gap: (cost - bound) / cost.
        instances: Serving instances.
        nodes: Nodes of these.
        start: Instances added.
        stop: Instances stopped.
        keep: Instances that went on.
        started_usd_h: Price of the added instances.
        served_share: Least over model phases of planned throughput over the epoch's true demand, at most 1; below 1 only
            when a forecast was too low.
        seconds: Time for the allocation.
    """

    epoch: int
    cost_usd_h: float
    provisioning_usd_h: float
    initialization_usd_h: float
    lower_bound_usd_h: float
    gap: float
    instances: int
    nodes: int
    start: int
    stop: int
    keep: int
    started_usd_h: float
    served_share: float
    seconds: float


@dataclass(frozen=True)
class Epoch:
    """A planned epoch.

    Attributes:
        summary: Its figures.
        plan: Its plan.
        changes: What to do to get there from the epoch before.
        resumed: Whether it was read from the output folder.
    """

    summary: EpochSummary
    plan: Plan
    changes: PlanDifference
    resumed: bool = False


def adapt(
    scenario: ResolvedScenario,
    inputs: EpochInputs,
    *,
    penalty: float | None = None,
    forecast: Forecast | None = None,
    forecast_name: str = "given",
    headroom: float = 0.0,
    solver: str | None = None,
    options: Mapping[str, Any] | None = None,
    library: Path | TemplateLibrary | None = None,
    output: Path | None = None,
    restart: bool = False,
    warm: bool = True,
    on_infeasible: OnInfeasible = "explain",
    progress: Progress | None = None,
) -> Iterator[Epoch]:
    """Plan every epoch in turn; an iterator, so that each one can be used as soon as it is there.

    Args:
        scenario: Models, SLOs and pool; its running instances run before epoch 0.
        inputs: From :func:`coralopt.planning.epoch_inputs`.
        penalty: K; the scenario's own when ``None``.
        forecast: Plans epoch e > 0 from the demand of the epochs before it; ``None`` plans for its own.
        forecast_name: What the output folder's list calls it.
        headroom: Share added to what the forecast says, dimensionless.
        solver: MILP back end; the scenario's own when ``None``.
        options: Common solver options over the scenario's.
        library: Template library, or its file; the user's cache directory when ``None``.
        output: Folder for plans and differences; an interrupted walk with the same inputs goes on there.
        restart: Begin anew in a folder that holds another walk.
        warm: Whether an epoch begins from the capacity prices of the last one; the answer is proven either way.
        on_infeasible: What to do in an epoch whose demand cannot be met; see
            :func:`coralopt.planning.plan_with_report`.
        progress: Told about the library's progress.

    Raises:
        InfeasibleError: An epoch's pool cannot meet its demand; says which epoch and why. The epochs before stay.
        PlanError: The folder holds another walk, or cannot be read or written.
        KeyboardInterrupt: Ctrl-C; the epoch at hand is dropped, those before it stay.
    """
    chosen = solver or scenario.solver
    asked = SolveOptions.from_mapping({**scenario.solver_options, **(options or {})})
    k = scenario.initialization_penalty if penalty is None else penalty
    walk = _digest(scenario, k, forecast_name, headroom, chosen, asked, warm, on_infeasible)
    folder = None if output is None else _Folder(output, walk, inputs, restart)
    templates = (
        library if isinstance(library, TemplateLibrary) else obtain_library(scenario, library, progress=progress)[0]
    )
    base = allocation_problem(replace(scenario, running=()), templates)
    tables = scenario_tables(scenario)
    running: tuple[RunningInstances, ...] = scenario.running
    before: Plan | None = None
    state: AllocationState | None = None
    if folder is not None:
        for epoch in folder.finished():
            before, running = epoch.plan, _running(epoch.plan)
            yield epoch
        state = folder.state
    for e in range(0 if folder is None else len(folder.entries), len(inputs)):
        demand = inputs.demand[e]
        if forecast is not None and e > 0:
            demand = foretold(forecast, inputs.demand[:e]) * (1 + headroom)
        now = epoch_scenario(
            scenario, demand, inputs.availability[e], inputs.price[e], running, k, f"{scenario.name}-epoch-{e}"
        )
        problem = _problem(base, now, templates)
        started = time.perf_counter()
        try:
            served = solve_or_serve_less(
                replace(problem, shortfall_price=unmet_prices(now)),
                on_infeasible,
                chosen,
                asked,
                AllocationSearchOptions(state=state if warm else None),
            )
        except InfeasibleError as error:
            raise InfeasibleError(f"epoch {e}: {error}", error.explanation) from error
        result = served.result
        if result.interrupted:
            raise KeyboardInterrupt
        seconds = time.perf_counter() - started
        plan = make_plan(now, templates, served.problem, result, chosen, asked.rel_gap, tables, served.factor)
        if not (now.availability > 0).any(axis=0).all():
            # Read anywhere else, the epoch's scenario has fewer configurations, so its library is a part of this one.
            alone = scenario_from_mapping(now.document)
            digest = library_digest(alone, scenario_tables(alone))
            plan = plan.model_copy(update={"library_digest": digest})
        changes = difference(before, plan) if before is not None else _first(scenario, plan)
        # A solve that needed no prices leaves those before it as they are.
        state = result.state or state
        planned = np.array([item.planned_tokens_s for item in plan.demands])
        needed = inputs.demand[e] > 0
        summary = EpochSummary(
            epoch=e,
            cost_usd_h=plan.cost_usd_h,
            provisioning_usd_h=plan.provisioning_usd_h,
            initialization_usd_h=plan.initialization_usd_h,
            lower_bound_usd_h=plan.lower_bound_usd_h,
            gap=plan.gap,
            instances=sum(item.count for item in plan.instances),
            nodes=sum(item.count * sum(item.nodes().values()) for item in plan.instances),
            start=changes.start,
            stop=changes.stop,
            keep=changes.keep,
            started_usd_h=changes.started_usd_h,
            served_share=float(np.minimum(1.0, planned[needed] / inputs.demand[e][needed]).min(initial=1.0)),
            seconds=seconds,
        )
        epoch = Epoch(summary, plan, changes)
        if folder is not None:
            folder.add(epoch, state)
        before, running = plan, _running(plan)
        yield epoch


def _problem(base: AllocationProblem, now: ResolvedScenario, templates: TemplateLibrary) -> AllocationProblem:
    """The library's problem with one epoch's figures; the arrays of the library are shared between epochs."""
    running = None
    if now.running:
        running = np.zeros((len(templates), len(now.regions)), dtype=np.int64)
        keys = [phase.key for phase in now.model_phases]
        for entry in now.running:
            phase = keys.index(entry.key)
            usage = [int(entry.nodes.get(name, 0)) for name in templates.configurations]
            row = templates.phases[phase].find(usage)
            if row is None or set(entry.nodes) - set(templates.configurations):
                # The scenario's own entries are checked with a message that names the field.
                return allocation_problem(now, templates)
            running[templates.offsets[phase] + row, now.regions.index(entry.region)] += entry.count
    return replace(
        base,
        demand=np.array([phase.needed_tokens_s for phase in now.model_phases]),
        availability=now.availability,
        price=now.price_usd_h,
        running=running,
        penalty=now.initialization_penalty,
        **operator_terms(now, templates.configurations),
    )


def _running(plan: Plan) -> tuple[RunningInstances, ...]:
    return tuple(
        RunningInstances(f"{item.model}/{item.phase}", item.region, item.nodes(), item.count) for item in plan.instances
    )


def _first(scenario: ResolvedScenario, plan: Plan) -> PlanDifference:
    """What changes before epoch 0, where the scenario says what runs."""
    phases = {phase.key: phase for phase in scenario.model_phases}
    before: dict[str, int] = {}
    gone: dict[str, InstanceChange] = {}
    for entry in scenario.running:
        nodes = {c.name: entry.nodes[c.name] for c in scenario.configurations if entry.nodes.get(c.name)}
        name = instance_name(phases[entry.key], entry.region, nodes)
        before[name] = before.get(name, 0) + entry.count
        r = scenario.regions.index(entry.region)
        price = sum(
            nodes.get(c.name, 0) * float(scenario.price_usd_h[r, k])
            for k, c in enumerate(scenario.configurations)
            if c.name in nodes
        )
        gone[name] = InstanceChange(
            name=name,
            model=phases[entry.key].model.name,
            phase=phases[entry.key].phase,
            region=entry.region,
            nodes=nodes,
            before=before[name],
            after=0,
            price_usd_h=0.0 if math.isnan(price) else price,
            start=0,
            stop=before[name],
            keep=0,
        )
    for item in plan.instances:
        gone[item.name] = InstanceChange.of(item, before.get(item.name, 0), item.count)
    return PlanDifference(changes=tuple(gone[name] for name in sorted(gone)))


def _digest(
    scenario: ResolvedScenario,
    penalty: float,
    forecast: str,
    headroom: float,
    solver: str,
    asked: SolveOptions,
    warm: bool,
    on_infeasible: str,
) -> str:
    """What decides the plans, but for the tables: those are compared epoch by epoch, so that a walk can be made longer."""
    facts = [scenario.digest, repr(penalty), forecast, repr(headroom), solver, repr(asked.to_mapping()), repr(warm)]
    if on_infeasible != "explain":
        facts.append(on_infeasible)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _epoch_digest(inputs: EpochInputs, epoch: int) -> str:
    parts = (inputs.demand[: epoch + 1], inputs.availability[: epoch + 1], inputs.price[: epoch + 1])
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


class _Folder:
    """The output folder: finished epochs, and the capacity prices to go on from."""

    def __init__(self, path: Path, digest: str, inputs: EpochInputs, restart: bool) -> None:
        self.path, self.digest, self.inputs = path, digest, inputs
        self.entries: list[dict[str, Any]] = []
        self.state: AllocationState | None = None
        source = path / WALK
        if restart or not source.exists():
            return
        try:
            data = json.loads(source.read_text(encoding="utf-8"))
            mine, entries, prices = data["digest"], list(data["epochs"]), data["capacity_prices_usd_h"]
            marks = [entry.pop("inputs") for entry in entries]
            self.state = None if prices is None else AllocationState(np.array(prices, dtype=np.float64))
            # Only to see that it can be read.
            _ = [EpochSummary(**entry) for entry in entries]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"{source}: not the list of a walk ({error}); use another folder, or --restart") from error
        same = all(mark == _epoch_digest(inputs, e) for e, mark in enumerate(marks[: len(inputs)]))
        if mine != digest or not same:
            raise PlanError(
                f"{path}: holds a walk with another scenario, tables or options; use another folder, or begin anew "
                "with --restart"
            )
        self.entries = entries

    def finished(self) -> Iterator[Epoch]:
        """The epochs already there, as far as they are asked for."""
        for e, entry in enumerate(self.entries[: len(self.inputs)]):
            name = f"epoch-{e:04d}"
            plan = Plan.load(self.path / f"{name}.json")
            changes = PlanDifference.load(self.path / f"{name}-changes.json")
            yield Epoch(EpochSummary(**entry), plan, changes, resumed=True)

    def add(self, epoch: Epoch, state: AllocationState | None) -> None:
        """Write a finished epoch; the list last, so that it never names what is not there."""
        name = f"epoch-{epoch.summary.epoch:04d}"
        epoch.plan.save(self.path / f"{name}.json")
        epoch.changes.save(self.path / f"{name}-changes.json")
        self.entries.append(asdict(epoch.summary))
        data = {
            "format": "coralopt-walk",
            "version": 1,
            "digest": self.digest,
            "capacity_prices_usd_h": None if state is None else state.capacity_prices.tolist(),
            "epochs": [entry | {"inputs": _epoch_digest(self.inputs, e)} for e, entry in enumerate(self.entries)],
        }
        write_text(self.path / WALK, json.dumps(data, indent=2) + "\n", "the list of epochs")
