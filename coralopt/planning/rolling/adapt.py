"""The rolling horizon: every epoch is planned anew, what runs is kept where that is cheaper (paper sections 4.3, 5.1).

Epoch e is planned for its demand, or for what a forecast makes of the epochs before; with its availability and prices;
and with the instances of epoch e - 1 running. Every added instance is charged K times its price, the initialization
penalty, and the plan's cost in USD/h holds it, as the paper's hourly cost does.

With an output folder every finished epoch is on disk before the next begins: ``epoch-0003.json`` the plan,
``epoch-0003-changes.json`` what to start, stop and keep, ``epochs.json`` the list of both. A run with the same
inputs goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import AllocationState
from coralopt.errors import InfeasibleError, OptionError, PlanError
from coralopt.plan import InstanceChange, Plan, PlanDifference, difference
from coralopt.plan.files import write_text
from coralopt.plan.parts import share_of
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.request import PlanRequest
from coralopt.planning.rolling.epochs import EpochInputs, epoch_scenario
from coralopt.planning.rolling.forecast import Forecast, foretold
from coralopt.planning.stages import instance_name
from coralopt.scenario.facts.facts import RunningInstances
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import get_backend
from coralopt.types import Floats

#: Name of the list of finished epochs in the output folder.
LIST = "epochs.json"


#: Figures that are those of the plan.
OF_PLANS = ("cost_usd_h", "provisioning_usd_h", "initialization_usd_h", "lower_bound_usd_h", "gap")


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

    @classmethod
    def of(cls, epoch: int, plan: Plan, changes: PlanDifference, served_share: float, seconds: float) -> EpochSummary:
        """The figures that a plan and its changes give."""
        return cls(
            epoch=epoch,
            **{name: getattr(plan, name) for name in OF_PLANS},
            instances=sum(item.count for item in plan.instances),
            nodes=plan.rented_nodes().total(),
            **{name: getattr(changes, name) for name in ("start", "stop", "keep", "started_usd_h")},
            served_share=served_share,
            seconds=seconds,
        )


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


@dataclass(frozen=True)
class RollingSettings:
    """How a rolling horizon is planned.

    Attributes:
        penalty: K; the scenario's own when ``None``.
        forecast: Plans epoch e > 0 from the demand of the epochs before it; ``None`` plans for its own.
        forecast_name: What the output folder's list calls it.
        headroom: Share added to what the forecast says, dimensionless.
        output: Folder for plans and differences; an interrupted run with the same inputs goes on there.
        restart: Begin anew in a folder that holds another run.
        warm: Whether an epoch begins from the capacity prices of the last one; the answer is proven either way.
    """

    penalty: float | None = None
    forecast: Forecast | None = None
    forecast_name: str = "given"
    headroom: float = 0.0
    output: Path | None = None
    restart: bool = False
    warm: bool = True


def adapt(request: PlanRequest, inputs: EpochInputs, settings: RollingSettings | None = None) -> Iterator[Epoch]:
    """Plan every epoch in turn; an iterator, so that each one can be used as soon as it is there.

    Args:
        request: Models, SLOs and pool, and how to plan them; the scenario's running instances run before epoch 0. A
            request that is :meth:`~coralopt.planning.PlanRequest.warmed` keeps its library over several runs.
        inputs: From :func:`coralopt.planning.epoch_inputs`.
        settings: How the epochs follow each other.

    Raises:
        OptionError: A penalty beside start costs by template.
        InfeasibleError: An epoch's pool cannot meet its demand; says which epoch and why. The epochs before stay.
        PlanError: The folder holds another run, or cannot be read or written.
        KeyboardInterrupt: Ctrl-C; the epoch at hand is dropped, those before it stay.
    """
    settings = settings or RollingSettings()
    scenario = request.scenario
    if settings.penalty is not None and scenario.operations.start is not None:
        raise OptionError("the scenario's `start` says what starting costs; leave out --penalty and --initialization")
    k = scenario.initialization_penalty if settings.penalty is None else settings.penalty
    folder = None
    if settings.output is not None:
        folder = _Folder(settings.output, _digest(request, settings, k), inputs, settings.restart)
    request = request.warmed()
    running: tuple[RunningInstances, ...] = scenario.running
    before: Plan | None = None
    if folder is not None:
        for epoch in folder.finished():
            before, running = epoch.plan, planned_instances(epoch.plan)
            yield epoch
        request = replace(request, warm=replace(request.warm, prices=folder.state))
    for e in range(0 if folder is None else len(folder.entries), len(inputs)):
        demand = inputs.demand[e]
        if settings.forecast is not None and e > 0:
            demand = foretold(settings.forecast, inputs.demand[:e]) * (1 + settings.headroom)
        epoch_of = epoch_scenario(
            scenario, demand, inputs.availability[e], inputs.price[e], running, k, f"{scenario.name}-epoch-{e}"
        )
        prices = request.warm.prices if settings.warm else None
        try:
            outcome = CoralPlanner().plan(
                replace(request, scenario=epoch_of, warm=replace(request.warm, prices=prices))
            )
        except InfeasibleError as error:
            raise InfeasibleError(f"epoch {e}: {error}", error.explanation) from error
        if outcome.interrupted:
            raise KeyboardInterrupt
        plan = outcome.plan
        changes = difference(before, plan) if before is not None else _first(scenario, plan)
        request = replace(request, warm=outcome.warm)
        served = _served_share(plan, inputs.demand[e])
        epoch = Epoch(EpochSummary.of(e, plan, changes, served, outcome.steps["allocation"]), plan, changes)
        if folder is not None:
            folder.add(epoch, outcome.warm.prices)
        before, running = plan, planned_instances(plan)
        yield epoch


def _served_share(plan: Plan, demand: Floats) -> float:
    """Least over model phases of planned throughput over true demand (tokens/s by model phase), at most 1."""
    # In mode auto a phase serves the requests that go its way.
    demand = demand * np.array([share_of(plan.modes, item.key) for item in plan.demands])
    planned, needed = np.array([item.planned_tokens_s for item in plan.demands]), demand > 0
    return float(np.minimum(1.0, planned[needed] / demand[needed]).min(initial=1.0))


def planned_instances(plan: Plan | None, alive: Mapping[str, int] | None = None) -> tuple[RunningInstances, ...]:
    """The instances of a plan that have nodes of their own, as the next plan's scenario says that they run.

    Args:
        plan: The plan; ``None`` when nothing runs.
        alive: Instance name -> how many of it run; as planned when ``None``.
    """
    counts = (
        {} if plan is None else {i.name: i.count if alive is None else alive.get(i.name, 0) for i in plan.instances}
    )
    return tuple(
        RunningInstances(item.key, item.region, item.nodes(), counts[item.name])
        for item in (() if plan is None else plan.instances)
        if counts[item.name] and item.shared is None
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


def _digest(request: PlanRequest, settings: RollingSettings, penalty: float) -> str:
    """What decides the plans, but for the tables: those are compared epoch by epoch, so that more epochs can follow."""
    facts = [
        request.scenario.digest,
        repr(penalty),
        settings.forecast_name,
        repr(settings.headroom),
        get_backend(request.backend).name,
        repr(request.solve_options.to_mapping()),
        repr(settings.warm),
    ]
    if request.on_infeasible != "explain":
        facts.append(request.on_infeasible)
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
        source = path / LIST
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
            raise PlanError(f"{source}: not a list of epochs ({error}); use another folder, or --restart") from error
        same = all(mark == _epoch_digest(inputs, e) for e, mark in enumerate(marks[: len(inputs)]))
        if mine != digest or not same:
            raise PlanError(
                f"{path}: holds epochs of another scenario, other tables or options; use another folder, or begin anew with "
                "--restart"
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
            "format": "coralopt-epochs",
            "version": 1,
            "digest": self.digest,
            "capacity_prices_usd_h": None if state is None else state.capacity_prices.tolist(),
            "epochs": [entry | {"inputs": _epoch_digest(self.inputs, e)} for e, entry in enumerate(self.entries)],
        }
        write_text(self.path / LIST, json.dumps(data, indent=2) + "\n", "the list of epochs")
