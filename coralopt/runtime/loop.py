"""The loop of the paper, closed: measured demand makes the next epoch's plan, and running servers follow it (section 5.1).

At the end of every epoch the router is asked what clients wanted. A forecast turns that, and the epochs before, into the
next epoch's demand; it is planned with what runs at that moment, so that the initialization penalty weighs what would have
to start; and the controller reconciles its servers to the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coralopt.errors import InfeasibleError, LaunchError, OptionError
from coralopt.plan import Plan
from coralopt.planning import (
    CoralPlanner,
    EpochInputs,
    Forecast,
    LastValue,
    PlanRequest,
    epoch_inputs,
    epoch_scenario,
    planned_instances,
)
from coralopt.planning.rolling.forecast import foretold
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.types import Floats
from coralopt.workload import EpochDemand, read_demand, write_demand

#: Measured demand by epoch, a table as `coralopt adapt --demand` reads it.
DEMAND_FILE = "demand.csv"
#: Mean lengths that are further than this from the scenario's are reported: throughput tables count on those.
LENGTHS_OFF = 0.25


class Servers(Protocol):
    """Whatever runs the servers: :class:`coralopt.runtime.local.RemoteController`, or one of your own."""

    def plan(self) -> tuple[Plan | None, dict[str, int]]:
        """The plan that is followed, and instance name -> how many of it run."""
        ...

    def demand(self) -> dict[str, Any]:
        """Seconds, and sums by model, since some start; see :class:`coralopt.runtime.router.demand.DemandMeter`."""
        ...

    def apply(self, plan: Plan) -> dict[str, Any]:
        """Follow ``plan``; names of pipelines ``kept``, ``started``, ``stopped``."""
        ...


@dataclass(frozen=True)
class LoopEpoch:
    """What happened at the end of one epoch.

    Attributes:
        epoch: From 0.
        measured_tokens_s: float64 (P,), in the order of the scenario's model phases.
        planned_tokens_s: float64 (P,): what the next epoch was planned for.
        plan: The plan; ``None`` when there is none for this demand.
        changes: Pipelines ``kept``, ``started`` and ``stopped``; ``None`` when the servers go on as they are.
        problem: Why they do.
        remarks: What is worth knowing, in sentences.
    """

    epoch: int
    measured_tokens_s: Floats
    planned_tokens_s: Floats
    plan: Plan | None
    changes: dict[str, Any] | None
    problem: str | None
    remarks: tuple[str, ...] = ()


def measured_demand(
    scenario: ResolvedScenario, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Floats, tuple[str, ...]]:
    """Tokens/s that clients asked for between two looks at the router.

    Requests/s times the mean tokens of answered requests; the scenario's mean lengths where none was answered. A router
    that was started anew between the looks counts from its start.

    Returns:
        float64 (P,) tokens/s in the order of the scenario's model phases, and remarks about mean lengths.

    Raises:
        LaunchError: The looks are not what a router says.
    """
    try:
        fresh = after["seconds"] < before.get("seconds", 0.0)
        seconds = after["seconds"] - (0.0 if fresh else before.get("seconds", 0.0))
        demand = np.zeros(len(scenario.model_phases))
        remarks = []
        for p, phase in enumerate(scenario.model_phases):
            name = phase.served
            now = after["models"].get(name, {})
            then = {} if fresh else before.get("models", {}).get(name, {})
            grown = {key: max(0, now.get(key, 0) - then.get(key, 0)) for key in _SUMS}
            if not grown["requests"] or seconds <= 0:
                continue
            prompt = phase.phase == "prefill"
            expected = phase.mean_input_tokens if prompt else phase.mean_output_tokens
            mean = expected
            if grown["answered"] and phase.request_class is None:
                mean = grown["prompt_tokens" if prompt else "completion_tokens"] / grown["answered"]
                if expected > 0 and abs(mean / expected - 1) > LENGTHS_OFF:
                    what = "input" if prompt else "output"
                    remarks.append(
                        f"{name}: {mean:.0f} {what} tokens a request, the scenario says {expected:.0f}; its throughput "
                        "tables count on that"
                    )
            demand[p] = grown["requests"] / seconds * mean * _class_share(scenario, phase)
    except (KeyError, TypeError, AttributeError) as error:
        raise LaunchError(f"the router does not say what was asked of it ({error}); is it another version?") from error
    return demand, tuple(dict.fromkeys(remarks))


def _class_share(scenario: ResolvedScenario, phase: ModelPhase) -> float:
    """Share of a model's requests that are of this phase's class: the scenario's, since a router counts by model."""
    if phase.request_class is None:
        return 1.0
    alike = [other for other in scenario.model_phases if (other.served, other.phase) == (phase.served, phase.phase)]
    return phase.requests_s / max(sum(other.requests_s for other in alike), 1e-300)


_SUMS = ("requests", "answered", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True)
class LoopSettings:
    """How the loop is run.

    Attributes:
        every_s: Length of an epoch, seconds.
        epochs: How many; for ever when ``None``.
        forecast: From measured epochs to the next one.
        headroom: Share added to what the forecast says, dimensionless.
        floor: Least demand of a model phase that is planned for, as a share of the scenario's: a model that nobody asks
            for keeps an instance, or it could not be asked for.
        penalty: K; the scenario's own when ``None``.
        inputs: Availability and prices by epoch; the last row stays. The scenario's own when ``None``.
        output: Folder for plans and the table of measured demand; a loop goes on after the epochs it finds there.

    Raises:
        OptionError: A time that is not positive, or a negative share.
    """

    every_s: float
    epochs: int | None = None
    forecast: Forecast = field(default_factory=LastValue)
    headroom: float = 0.0
    floor: float = 0.01
    penalty: float | None = None
    inputs: EpochInputs | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise OptionError(f"an epoch of {self.every_s:g} s; it must be longer than 0")
        if self.headroom < 0 or self.floor < 0:
            raise OptionError(f"headroom {self.headroom:g} and floor {self.floor:g} must not be negative")


def follow_demand(
    request: PlanRequest, servers: Servers, settings: LoopSettings, *, wait: Callable[[float], None] = time.sleep
) -> Iterator[LoopEpoch]:
    """Measure, plan, apply: an iterator over epochs. Servers go on when it ends, however it ends.

    Args:
        request: Models, SLOs and pool, and how to plan them. With ``on_infeasible="explain"`` a demand that the pool cannot
            meet is reported with the reasons, and the servers go on as they are.
        servers: What runs them.
        settings: How the loop is run.
        wait: Lets seconds pass.

    Raises:
        LaunchError: The servers cannot be asked. A plan they cannot follow is reported, and they go on.
        OptionError: A forecast that says nonsense.
        KeyboardInterrupt: Ctrl-C, also while a plan is made; that one is not applied.
        ScenarioError, SolverError, LibraryError: As planning.
    """
    scenario, output = request.scenario, settings.output
    keys = [phase.key for phase in scenario.model_phases]
    least = settings.floor * np.array([phase.demand_tokens_s for phase in scenario.model_phases])
    supply = settings.inputs or epoch_inputs(scenario, epochs=1)
    history = _read_history(output, keys) if output is not None else []
    before = servers.demand()
    started = len(history)
    while settings.epochs is None or len(history) - started < settings.epochs:
        wait(settings.every_s)
        epoch = len(history)
        after = servers.demand()
        measured, remarks = measured_demand(scenario, before, after)
        before = after
        history.append(measured)
        expected = foretold(settings.forecast, np.array(history)) * (1 + settings.headroom)
        demand = np.maximum(expected, least)
        row = min(epoch, len(supply) - 1)
        next_epoch = epoch_scenario(
            scenario,
            demand,
            supply.availability[row],
            supply.price[row],
            planned_instances(*servers.plan()),
            settings.penalty,
            f"{scenario.name}-epoch-{epoch}",
        )
        plan, changes, problem = None, None, None
        try:
            outcome = CoralPlanner().plan(replace(request, scenario=next_epoch))
            if outcome.interrupted:
                # A solver takes Ctrl-C as the wish to stop early; here it is the wish to end the loop.
                raise KeyboardInterrupt
            request, plan = replace(request, warm=outcome.warm), outcome.plan
            changes = servers.apply(plan)
        except InfeasibleError as error:
            problem = f"no plan for this demand, the servers go on as they are: {error}"
        except LaunchError as error:
            # The servers still answer? Then they have said why this plan cannot be followed.
            servers.demand()
            problem = f"the plan was not followed, the servers go on as they are: {error}"
        if output is not None:
            _write(output, epoch, keys, history, plan)
        yield LoopEpoch(epoch, measured, demand, plan, changes, problem, remarks)


def _read_history(folder: Path, keys: list[str]) -> list[Floats]:
    """The epochs measured already, from the folder's own table."""
    path = folder / DEMAND_FILE
    if not path.exists():
        return []
    table = read_demand(path)
    if sorted(table.keys) != sorted(keys):
        raise OptionError(f"{path}: is about {', '.join(table.keys)}; use another folder for {', '.join(keys)}")
    return [np.array([row[table.keys.index(key)] for key in keys]) for row in table.tokens_s]


def _write(folder: Path, epoch: int, keys: list[str], history: list[Floats], plan: Plan | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        plan.save(folder / f"epoch-{epoch:04d}.json")
    write_demand(EpochDemand(tuple(keys), np.array(history)), folder / DEMAND_FILE)
