"""What the fleet page shows, as plain data, and the two things that must be kept for it: latencies and plans."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coralopt.errors import ScenarioError
from coralopt.plan import Plan
from coralopt.plan.reasons import reasons
from coralopt.scenario.facts.phases import ModelPhase

#: Seconds of answers that latencies are told of, and the most answers of a model that are kept for that.
WINDOW_S, MOST_ANSWERS = 600.0, 5000
#: Changes of plan that are told.
MOST_PLANS = 20


@dataclass(frozen=True)
class InstanceStatus:
    """One backend.

    Attributes:
        name, model, phase, region: As in ``router.json``.
        state: ``"serves"``, ``"ill"``, ``"on trial"`` (one request at a time after a failure) or ``"draining"``.
        in_flight, slots: Requests it has, and most that it may have.
        wanted, seen: Shares of the requests of its model phase, by the plan and since its pool changed last; NaN where none.
    """

    name: str
    model: str
    phase: str
    region: str | None
    state: str
    in_flight: int
    slots: int
    wanted: float
    seen: float


@dataclass(frozen=True)
class QueueStatus:
    """Requests of one model phase: at instances, and waiting for one."""

    model: str
    phase: str
    waiting: int
    in_flight: int
    slots: int


@dataclass(frozen=True)
class LatencyStatus:
    """Latencies of one model's streamed answers in the last :data:`WINDOW_S` seconds, as the router saw them.

    Attributes:
        model: Its name.
        kind: ``"time to first token"`` or ``"time per output token"``.
        slo_ms: What the plan promises; NaN without a plan.
        target: Share of requests that must meet it; NaN where the plan is for mean requests.
        answers: How many there were.
        met: Share within the SLO; NaN where there is nothing to tell.
        p50_ms, p99_ms: Quantiles, ms.
    """

    model: str
    kind: str
    slo_ms: float
    target: float
    answers: int
    met: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class FollowedPlan:
    """A plan that servers began to follow.

    Attributes:
        at: When, seconds since 1970.
        usd_h: Its rent, USD/h.
        why: What changed since the plan before, in sentences.
        started, stopped, kept: Names of pipelines.
    """

    at: float
    usd_h: float
    why: tuple[str, ...]
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetStatus:
    """A look at the router and its servers.

    Attributes:
        at, since: Now, and when the router started, seconds since 1970.
        instances, queues, latencies: One row each.
        plans: The newest first.
        spent_usd: Rent of the plans since the start; NaN without a plan.
        short: Instance of the plan -> how many of it run as a whole and how many should, where these differ.
        given_up: Pipelines that died too often -> why.
    """

    at: float
    since: float
    instances: tuple[InstanceStatus, ...] = ()
    queues: tuple[QueueStatus, ...] = ()
    latencies: tuple[LatencyStatus, ...] = ()
    plans: tuple[FollowedPlan, ...] = ()
    spent_usd: float = math.nan
    short: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    given_up: Mapping[str, str] = field(default_factory=dict)


class PlanHistory:
    """Plans followed one after another, what they cost, and why each came.

    Args:
        clock: Seconds since 1970.

    Attributes:
        plan: The one that is followed; ``None`` before the first.
        entries: The newest last, :data:`MOST_PLANS` at most.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.plan: Plan | None = None
        self.entries: deque[FollowedPlan] = deque(maxlen=MOST_PLANS)
        self._clock, self._spent_usd = clock, 0.0
        self._slos: dict[str, tuple[float, float, float]] = {}

    def follow(
        self, plan: Plan, started: Sequence[str] = (), stopped: Sequence[str] = (), kept: Sequence[str] = ()
    ) -> None:
        """``plan`` is followed from now on; the names are those of pipelines."""
        self._spent_usd = self.spent_usd if self.entries else 0.0
        phases = _phases(plan)
        if phases is None or (self.plan is not None and _phases(self.plan) is None):
            why: tuple[str, ...] = ("The scenario of this plan, or of the one before, cannot be read.",)
        else:
            why = reasons(self.plan, plan)
        self._slos = {
            phase.model.name: (
                phase.prefill_ms,
                phase.decode_ms,
                math.nan if phase.attainment is None else phase.attainment,
            )
            for phase in phases or ()
        }
        names = tuple(started), tuple(stopped), tuple(kept)
        self.entries.append(FollowedPlan(self._clock(), plan.provisioning_usd_h, why, *names))
        self.plan = plan

    def slo(self, model: str) -> tuple[float, float, float] | None:
        """Time to first token, time per output token, ms, and the share of requests asked for, of the plan's model."""
        return self._slos.get(model)

    @property
    def spent_usd(self) -> float:
        """Rent of the plans since the first one, USD; NaN before it."""
        if not self.entries:
            return math.nan
        newest = self.entries[-1]
        return self._spent_usd + newest.usd_h * (self._clock() - newest.at) / 3600


def _phases(plan: Plan) -> Sequence[ModelPhase] | None:
    """``None`` where the scenario cannot be read: a plan launched unseen (--no-verify) is followed all the same."""
    try:
        return plan.resolved.model_phases
    except ScenarioError:
        return None


class Latencies:
    """Latencies of whole streamed answers by model, for a while.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: defaultdict[str, deque[tuple[float, float, float]]] = defaultdict(
            lambda: deque(maxlen=MOST_ANSWERS)
        )

    def add(self, model: str, ttft_s: float, tpot_s: float) -> None:
        """One answer; ``tpot_s`` is NaN where its tokens were not told, or it had one only."""
        self._answers[model].append((self._clock(), ttft_s, tpot_s))

    def status(self, model: str, kind: str, slo_ms: float, target: float) -> LatencyStatus:
        """A row of the fleet page."""
        position = 1 if kind == "time to first token" else 2
        oldest = self._clock() - WINDOW_S
        values = [row[position] * 1000 for row in self._answers.get(model, ()) if row[0] >= oldest]
        values = sorted(value for value in values if not math.isnan(value))
        if not values:
            return LatencyStatus(model, kind, slo_ms, target, 0, math.nan, math.nan, math.nan)
        met = math.nan if math.isnan(slo_ms) else sum(value <= slo_ms for value in values) / len(values)
        return LatencyStatus(
            model, kind, slo_ms, target, len(values), met, _quantile(values, 0.5), _quantile(values, 0.99)
        )


def _quantile(values: Sequence[float], share: float) -> float:
    """The least of the sorted values that at least ``share`` of them do not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]
