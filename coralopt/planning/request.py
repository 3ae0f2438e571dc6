"""What every planner is: a request in, an outcome out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from coralopt.allocation import OnInfeasible, check_on_infeasible
from coralopt.errors import OptionError
from coralopt.plan import Plan
from coralopt.planning.warm import WarmState
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Backend, SolveOptions, require_backend, unknown_option
from coralopt.templates import LibraryAhead, TemplateLibrary, is_on_demand, obtain_library
from coralopt.types import Progress


@dataclass(frozen=True)
class PlanRequest:
    """What a planner is asked for; a variant is ``dataclasses.replace(request, scenario=..., warm=outcome.warm)``.

    Attributes:
        scenario: What to serve and what can be rented.
        solver: MILP back end of planners that use one, by name or itself; the scenario's own when ``None``.
        options: Common solver options over the scenario's (``rel_gap``, ``time_limit`` in s, ...).
        library: Template library file of planners that use the whole library; the cache directory when ``None``.
        on_infeasible: What to do when the demand cannot be met: ``"explain"`` raises and says why, ``"scale"`` serves the
            largest common share of all demands, ``"shortfall"`` leaves demand unmet at the scenario's prices. Planner
            coral knows all three, the others only the first.
        warm: What an earlier outcome left; the answer is as exact without it.
        settings: The planner's own settings, by name; see its ``settings``.
        seed: Seed of planners that draw at random.
        progress: Told about long steps.
    """

    scenario: ResolvedScenario
    solver: str | Backend | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    library: Path | None = None
    on_infeasible: OnInfeasible = "explain"
    warm: WarmState = field(default_factory=WarmState)
    settings: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    progress: Progress | None = None

    @property
    def backend(self) -> str | Backend:
        """The MILP back end: the request's, or else the scenario's."""
        return self.solver or self.scenario.solver

    @cached_property
    def solve_options(self) -> SolveOptions:
        """The scenario's solver options with the request's over them.

        Raises:
            OptionError: An unknown name, or a value of the wrong type or out of range.
        """
        options = SolveOptions.from_mapping({**self.scenario.solver_options, **self.options})
        if options.rel_gap >= 1:
            # Nothing costs less than 0, so it would be met by any plan.
            raise OptionError(f"option rel_gap is {options.rel_gap!r}; the gap of a plan must be below 1")
        return options

    def check(self) -> None:
        """Refuse what no planner could use, before any work.

        Raises:
            SolverError: The solver is unknown or not installed.
            OptionError: A solver option or ``on_infeasible`` is unknown, or out of range.
        """
        require_backend(self.backend)
        _ = self.solve_options
        check_on_infeasible(self.on_infeasible)

    def templates(self) -> tuple[TemplateLibrary, bool, WarmState]:
        """The template library of the scenario, whether it was at hand, and the warm state that holds it.

        Raises:
            ScenarioError: An SLO no node can meet.
            LibraryError: The library file is stale, foreign or corrupt.
        """
        path = self.library if self.warm.library is not None else LibraryAhead(self.scenario, self.library)
        warm = self.warm.covering(self.scenario)
        known = warm.known_library(self.scenario, self.progress)
        if known is not None:
            return known, True, warm.with_library(self.scenario, known)
        library, reused = obtain_library(
            self.scenario, path, tables=warm.tables_of(self.scenario), progress=self.progress
        )
        return library, reused, warm.with_library(self.scenario, library)

    def warmed(self) -> PlanRequest:
        """The same request with tables and templates at hand, for a scenario that is planned several times.

        Templates on demand depend on prices and supply: of these there are the tables only.
        """
        if is_on_demand(self.scenario):
            return replace(self, warm=self.warm.covering(self.scenario))
        return replace(self, warm=self.templates()[2])


@dataclass(frozen=True)
class LibraryUse:
    """The template library that a plan came from.

    Attributes:
        templates: Number of templates.
        node_sets: Number of node sets examined for it.
        reused: Whether the library was there rather than built.
    """

    templates: int
    node_sets: int
    reused: bool


@dataclass(frozen=True)
class PlanOutcome:
    """A plan and how it came about; what may differ between two equal runs stays here, out of the plan.

    Attributes:
        plan: The plan. Its lower bound is 0 unless the planner proves one over every template.
        steps: Seconds by step, ``library``, ``allocation`` and ``plan`` where a planner has these.
        warm: For the next, similar request.
        own_gap: Relative gap that the planner's own integer programme proved among the plans it considers, or ``None``
            for planners that prove nothing. It says nothing about plans outside.
        notes: Sentences that a reader of the plan should know.
        interrupted: Whether Ctrl-C cut the search short: the plan is the best so far.
        library: The template library, for planners that use the whole one.
    """

    plan: Plan
    steps: Mapping[str, float]
    warm: WarmState = field(default_factory=WarmState, repr=False)
    own_gap: float | None = None
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    library: LibraryUse | None = None


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
    settings: Mapping[str, object]

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """Plan the scenario.

        Raises:
            InfeasibleError: It finds no plan that meets every demand; says what falls short.
            ScenarioError: The scenario asks for something that this planner has no words for.
            OptionError: An unknown setting, or a value out of range.
            SolverError: As :func:`coralopt.solving.solve`.
        """
        ...


class StepClock:
    """Seconds of named steps, one after the other; some come several times.

    Attributes:
        seconds: Seconds by the name of the step.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def end(self, step: str) -> None:
        """The step of this name ends here, and the next begins."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._since
        self._since = now


def setting(planner: Planner, request: PlanRequest, name: str) -> Any:  # whatever value a user wrote; see callers
    """The value of one setting, the default when it was not given.

    Raises:
        OptionError: The request holds a setting that the planner does not have.
    """
    for key in request.settings:
        if key not in planner.settings:
            raise OptionError(unknown_option(f"setting of planner {planner.name!r}", key, planner.settings))
    return request.settings.get(name, planner.settings[name])


def count_setting(planner: Planner, request: PlanRequest, name: str, least: int = 1) -> int:
    """As :func:`setting`, for a whole number.

    Raises:
        OptionError: Not a whole number of at least ``least``.
    """
    value = setting(planner, request, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return value


def truth_setting(planner: Planner, request: PlanRequest, name: str) -> bool:
    """As :func:`setting`, for a truth value.

    Raises:
        OptionError: Neither true nor false.
    """
    value = setting(planner, request, name)
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be true or false")
    return value


def demand_met(plan: Plan) -> float:
    """The least share of its demand that any model phase is given, at most 1."""
    return min(
        (min(1.0, d.planned_tokens_s / d.demand_tokens_s) for d in plan.demands if d.demand_tokens_s > 0), default=1.0
    )
