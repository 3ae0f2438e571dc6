"""Plan, simulate, correct: the cheapest plan found that keeps its promise in a simulation.

Each round plans the scenario with a headroom per model phase, simulates the requests against the plan, and corrects: a phase
that failed because requests waited gets more throughput, one whose requests were too slow by themselves a smaller latency
budget; once all passed, less of either is tried. What a round says about one phase is kept by itself, since phases hardly
touch each other, so that every round is an experiment for each of them; at the end the best of all are put together. The
rules are in :mod:`coralopt.planning.headroom`. A plan whose every model phase passed is *verified*; the cheapest one found
is returned.

Rounds share the template library, the throughput tables of phases whose latency budget did not change, and the capacity
prices of the last allocation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from coralopt.errors import InfeasibleError, OptionError, ScenarioError
from coralopt.plan import Plan, Simulated
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.headroom import Ask, Trial, best_ask, next_ask
from coralopt.planning.request import PlanRequest
from coralopt.planning.simulated import attainment_of, simulated_phases
from coralopt.simulation import SimulationConfig, SimulationResult, simulate
from coralopt.simulation.possible import possible_requests
from coralopt.workload import Traffic, trace_digest

#: Causes of a miss that more throughput does away with; the others need nodes that are quicker by themselves.
WAITING = ("instance", "startup", "memory", "burst", "queue", "transfer")


INHERENT = ("length", "batch", "transfer")


@dataclass(frozen=True)
class Round:
    """One plan that was made and simulated.

    Attributes:
        cost_usd_h: Its cost, NaN where the pool could not give what was asked for.
        headroom: Model phase -> (throughput headroom, latency headroom) planned with.
        attainment: Model phase -> share of its requests that met, the lower of both kinds for mixed ones.
        passed: Whether every model phase reached the target.
        seconds: Seconds by step: ``plan``, ``simulate``.
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


@dataclass(frozen=True)
class VerifiedSettings:
    """How long to search, and for what.

    Attributes:
        target: Share of the requests of each model phase that must meet its SLO, above 0 and at most 1.
        over: ``"all"`` requests, or the ``"possible"`` ones: those that some node of the pool could serve in time.
        rounds: Most plans to make.
        simulation: What the simulation assumes.
        start: Model phase -> throughput headroom to begin with instead of the scenario's, see
            :func:`coralopt.planning.queueing_headroom`.

    Raises:
        OptionError: A figure out of range.
    """

    target: float = 0.99
    over: str = "all"
    rounds: int = 16
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    start: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise OptionError(f"the attainment is {self.target!r}; give a share above 0 and at most 1, 0.99 say")
        if self.over not in ("all", "possible"):
            raise OptionError(f"attainment over {self.over!r}: choose all or possible")
        if self.rounds < 1:
            raise OptionError(f"{self.rounds} rounds: give 1 or more")


def plan_verified(
    request: PlanRequest,
    traffic: Traffic | None = None,
    settings: VerifiedSettings | None = None,
    *,
    on_round: Callable[[int, Round], None] | None = None,
) -> VerifiedPlanning:
    """The cheapest plan found that keeps its promise when ``traffic`` is simulated on it.

    Args:
        request: What to plan; the scenario's own headroom is where the search begins.
        traffic: Requests; Poisson arrivals of 300 s when ``None``.
        settings: How long to search, and for what.
        on_round: Told about every round (from 1).

    Raises:
        InfeasibleError: The pool cannot meet the demand even without headroom.
        WorkloadError: The requests cannot be used.
        CoraloptError: As :meth:`coralopt.planning.CoralPlanner.plan`.
    """
    return _Search(request, traffic or Traffic(), settings or VerifiedSettings(), on_round).run()


class _Search:
    """Rounds of plan and simulate.

    Attributes:
        rounds: Finished rounds.
        trials: What each of them said about each model phase.
        tried: Asks of these rounds.
        best: The cheapest plan that passed.
        nearest: The plan that came nearest, with what it lacked.
    """

    def __init__(
        self,
        request: PlanRequest,
        traffic: Traffic,
        settings: VerifiedSettings,
        on_round: Callable[[int, Round], None] | None,
    ) -> None:
        self.request, self.traffic, self.settings, self.on_round = request, traffic, settings, on_round
        self.trace = traffic.requests(request.scenario)
        self.possible = possible_requests(request.scenario, self.trace, settings.simulation)
        self.rounds: list[Round] = []
        phases = request.scenario.model_phases
        self.trials: dict[str, list[Trial]] = {phase.key: [] for phase in phases}
        self.tried: set[tuple[Ask, ...]] = set()
        self.best: tuple[Plan, SimulationResult] | None = None
        self.nearest: tuple[tuple[float, float], Plan, SimulationResult] | None = None

    def run(self) -> VerifiedPlanning:
        """Rounds until nothing new is asked for, there are enough, or Ctrl-C."""
        start = self.settings.start
        asks: dict[str, Ask] = {
            phase.key: (1.0 + start.get(phase.key, phase.throughput_headroom), phase.latency_headroom)
            for phase in self.request.scenario.model_phases
        }
        last_planned, interrupted = asks, False
        try:
            while len(self.rounds) < self.settings.rounds and tuple(asks.values()) not in self.tried:
                self.tried.add(tuple(asks.values()))
                if self.round(asks):
                    last_planned = asks
                    asks = self.next_asks(asks)
                else:
                    # Halfway back to what the pool could give.
                    asks = {
                        key: (math.sqrt(last_planned[key][0] * ask[0]), last_planned[key][1])
                        for key, ask in asks.items()
                    }
        except KeyboardInterrupt:
            if self.nearest is None:
                raise
            interrupted = True
        best = self.best
        if best is None:
            assert self.nearest is not None
            best = self.nearest[1:]
        impossible = {
            f"{name}/{kind}": float(1 - flags.mean()) for (name, kind), flags in self.possible.items() if len(flags)
        }
        return VerifiedPlanning(best[0], best[1], tuple(self.rounds), impossible, interrupted)

    def round(self, asks: Mapping[str, Ask]) -> bool:
        """Plan what is asked for and simulate it; ``False`` where the pool cannot give it."""
        settings, begin = self.settings, time.perf_counter()
        headroom = {key: (ask[0] - 1.0, ask[1]) for key, ask in asks.items()}
        try:
            scenario = self.request.scenario.with_headroom(headroom)
            outcome = CoralPlanner().plan(replace(self.request, scenario=scenario))
        except (InfeasibleError, ScenarioError):
            if not self.rounds:
                # Not even what the scenario itself asks for.
                raise
            self.finish(Round(math.nan, headroom, {}, False, {"plan": time.perf_counter() - begin}))
            return False
        if outcome.interrupted:
            raise KeyboardInterrupt
        self.request = replace(self.request, warm=outcome.warm)
        plan, planned = outcome.plan, time.perf_counter()
        result = simulate(
            plan,
            self.trace,
            config=settings.simulation,
            duration_s=self.traffic.window_s,
            progress=self.request.progress,
        )
        attainment = attainment_of(result, self.request.scenario, self.possible, settings.over)
        passed = all(value >= settings.target for value in attainment.values())
        seconds = {"plan": planned - begin, "simulate": time.perf_counter() - planned}
        self.finish(Round(plan.cost_usd_h, headroom, attainment, passed, seconds))
        plan = plan.model_copy(update={"simulated": self.simulated(result, attainment, passed)})
        if passed and (self.best is None or plan.cost_usd_h < self.best[0].cost_usd_h):
            self.best = (plan, result)
        shortfall = sum(max(0.0, settings.target - value) for value in attainment.values())
        if self.nearest is None or (shortfall, plan.cost_usd_h) < self.nearest[0]:
            self.nearest = ((shortfall, plan.cost_usd_h), plan, result)
        self.note(asks, plan, result, attainment)
        return True

    def finish(self, item: Round) -> None:
        """Keep a round and tell about it."""
        self.rounds.append(item)
        if self.on_round is not None:
            self.on_round(len(self.rounds), item)

    def next_asks(self, asks: Mapping[str, Ask]) -> dict[str, Ask]:
        """What the next round asks for: of each phase what its own trials say, or the best of all phases together."""
        allowed, last = 1.0 - self.settings.target, len(self.rounds) + 1 >= self.settings.rounds
        best = {key: best_ask(trials) if trials else asks[key] for key, trials in self.trials.items()}
        explored = {key: next_ask(trials, allowed) if trials else asks[key] for key, trials in self.trials.items()}
        if any(ask is None for ask in best.values()):
            # Phases that pass stay as they are until all do: a trial of theirs would say nothing about the others.
            return {key: best[key] or ask for key, ask in explored.items()}
        together = {key: ask for key, ask in best.items() if ask is not None}
        return together if last or tuple(explored.values()) in self.tried else explored

    def note(
        self, asks: Mapping[str, Ask], plan: Plan, result: SimulationResult, attainment: Mapping[str, float]
    ) -> None:
        """Add what a round said about every phase that had requests."""
        demands = {item.key: item for item in plan.demands}
        for key, value in attainment.items():
            rows = [row for row in result.outcomes if row.key == key]
            item = demands[key]
            self.trials[key].append(
                Trial(
                    asks[key],
                    item.planned_tokens_s / item.demand_tokens_s if item.demand_tokens_s else 1.0,
                    item.cost_usd_h,
                    value >= self.settings.target,
                    max(sum(row.causes.get(cause, 0.0) for cause in WAITING) for row in rows),
                    max(sum(row.causes.get(cause, 0.0) for cause in INHERENT) for row in rows),
                )
            )

    def simulated(self, result: SimulationResult, attainment: Mapping[str, float], passed: bool) -> Simulated:
        """What the plan says about the round."""
        traffic = self.traffic
        return Simulated(
            kind=traffic.kind,  # type: ignore[arg-type]
            trace=None if traffic.trace is None else traffic.trace.name,
            model=traffic.model,
            rate=traffic.rate,
            duration_s=traffic.duration_s,
            seed=traffic.seed,
            length_cv=traffic.length_cv,
            requests=len(result.requests["status"]),
            requests_digest=trace_digest(self.trace),
            target=self.settings.target,
            over=self.settings.over,  # type: ignore[arg-type]
            passed=passed,
            rounds=len(self.rounds),
            phases=simulated_phases(result, attainment),
        )
