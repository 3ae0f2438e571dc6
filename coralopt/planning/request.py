"""What every planner is: a scenario in, a plan out, and what it has to say about the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from coralopt.errors import OptionError
from coralopt.plan import Plan
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import unknown_option
from coralopt.types import Progress


@dataclass(frozen=True)
class PlanRequest:
    """What a planner is asked for.

    Attributes:
        scenario: What to serve and what can be rented.
        solver: MILP back end of planners that use one; the scenario's own when ``None``.
        options: Common solver options that override the scenario's (``rel_gap``, ``time_limit`` in s, ...).
        library: Template library file of planners that use the whole library; the cache directory when ``None``.
        seed: Seed of planners that draw at random.
        settings: The planner's own settings, by name; see its ``settings``.
        progress: Told about long steps.
    """

    scenario: ResolvedScenario
    solver: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    library: Path | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None


@dataclass(frozen=True)
class PlanOutcome:
    """A plan and how it came about; what may differ between two equal runs stays here, out of the plan.

    Attributes:
        plan: The plan. Its lower bound is 0 unless the planner proves one over every template.
        seconds: Seconds by step.
        own_gap: Relative gap that the planner's own integer programme proved among the plans it considers, or ``None``
            for planners that prove nothing. It says nothing about plans outside.
        notes: Sentences that a reader of the plan should know.
    """

    plan: Plan
    seconds: Mapping[str, float]
    own_gap: float | None = None
    notes: tuple[str, ...] = ()


class Planner(Protocol):
    """A planner.

    Attributes:
        name: What it is called on the command line.
        summary: One line: what it decides and what it leaves out.
        source: Where it is published.
        settings: Its own settings: name -> default.
    """

    name: str
    summary: str
    source: str
    settings: Mapping[str, Any]

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """Plan the scenario.

        Raises:
            InfeasibleError: It finds no plan that meets every demand; says what falls short.
            ScenarioError: The scenario asks for something that this planner has no words for.
            OptionError: An unknown setting, or a value out of range.
            SolverError: As :func:`coralopt.solving.solve`.
        """
        ...


def setting(planner: Planner, request: PlanRequest, name: str) -> Any:
    """The value of one setting, the default when it was not given.

    Raises:
        OptionError: The request holds a setting that the planner does not have.
    """
    for given in request.settings:
        if given not in planner.settings:
            raise OptionError(unknown_option(f"setting of planner {planner.name!r}", given, planner.settings))
    return request.settings.get(name, planner.settings[name])


def demand_met(plan: Plan) -> float:
    """The least share of its demand that any model phase is given, at most 1."""
    return min(
        (min(1.0, d.planned_tokens_s / d.demand_tokens_s) for d in plan.demands if d.demand_tokens_s > 0), default=1.0
    )
