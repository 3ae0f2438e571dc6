"""The cheapest plan known that holds, beside a plan that is expected to miss its SLOs for too many requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from coralopt.display import percent
from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError, ScenarioError
from coralopt.plan import Plan
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.promise.certificate import FIRST_SEED, WINDOW_S, Replications, Shares
from coralopt.planning.promise.workers import Workers
from coralopt.planning.request import PlanOutcome, PlanRequest
from coralopt.templates import is_on_demand

#: Share of requests that a plan for mean requests is held against.
USUAL_SHARE = 0.99
#: Seconds of searches, one after another while no plan is known; windows that are simulated with what is known, and how
#: many of them at once; node sets beyond which templates alone take longer.
SECONDS, WINDOWS, AT_ONCE, MOST_NODE_SETS = (4.0, 8.0, 8.0), 20, 4, 200_000


@dataclass(frozen=True)
class Alternative:
    """What is known of plans that hold.

    Attributes:
        share: Share of requests that must meet each SLO; where models ask for different ones, the largest.
        usd_h: Rent and egress of the cheapest plan known that holds, USD/h; ``None`` where none is known.
        met: Model phase -> share of requests that met its SLO with that plan in :data:`WINDOWS` windows of 600 s.
        least_usd_h: What no such plan costs less than, initialization included, as far as is known, USD/h.
        how: What to do to get such a plan, or to learn more.
        reason: Why none is known.
    """

    share: float
    usd_h: float | None = None
    met: Mapping[str, float] | None = None
    least_usd_h: float = 0.0
    how: str = ""
    reason: str = ""

    def compared_with(self, usd_h: float) -> str:
        """A sentence beside a plan of this rent."""
        if self.usd_h is None or self.met is None:
            least = (
                f"; none costs less than {self.least_usd_h:,.4f} USD/h with initialization" if self.least_usd_h else ""
            )
            return f"no plan known that holds for {percent(self.share)} of requests: {self.reason}{least}; {self.how}"
        worst = min(self.met, key=lambda key: (self.met or {})[key])
        more = f" ({self.usd_h / usd_h - 1:+.1%})" if usd_h > 0 else ""
        return (
            f"cheapest known that holds for {percent(self.share)}: {self.usd_h:,.4f} USD/h{more}, at least "
            f"{percent(self.met[worst])} ({worst}, {WINDOWS} windows of {WINDOW_S:g} s); {self.how}"
        )


def cheapest_that_holds(
    request: PlanRequest, outcome: PlanOutcome, expected: Mapping[str, float]
) -> Alternative | None:
    """The cheapest plan known after a few seconds that holds its SLOs, where a plan is expected to miss one of them.

    A plan for mean requests is held against :data:`USUAL_SHARE`. Where a certificate did not confirm a plan, those for half
    as many misses are looked at. What is found out is kept, so that planning for the share itself goes on from there.

    Args:
        request: What was planned.
        outcome: The plan.
        expected: Model phase -> share of requests expected within its SLO.

    Returns:
        ``None`` where the plan is expected to hold, or no other would be known to.
    """
    plan = outcome.plan
    attainment = {phase.key: phase.attainment for phase in plan.resolved.model_phases}
    wanted = {key: attainment.get(key) or USUAL_SHARE for key in expected}
    mark, share = plan.certificate, USUAL_SHARE
    if all(expected[key] >= wanted[key] for key in expected) if mark is None else not mark.failed:
        return None
    answer = Alternative(max(wanted.values()))
    if mark is not None:
        share = (1 + answer.share) / 2
    how = (
        f"`--attainment {share:g}`"
        if mark is not None or None in attainment.values()
        else "the same command with more time"
    )
    answer = replace(answer, how=f"{how} looks on")
    if plan.on_infeasible != "met":
        return replace(answer, reason="the whole demand cannot be met")
    if is_on_demand(request.scenario):
        every = f"`templates: every` with {how}"
        return replace(answer, reason="templates on demand are for mean requests", how=f"{every} looks for one")
    if outcome.library is not None and outcome.library.node_sets > MOST_NODE_SETS:
        return replace(answer, reason="not looked for among so many node sets")
    started = time.monotonic()
    try:
        scenario = request.scenario.with_attainment(share, mean_only=mark is None)
        request = replace(request, scenario=scenario, library=None, on_infeasible="explain", warm=outcome.warm).warmed()
        tried: Plan | None = None
        for limit in SECONDS:
            # What the search knows when its time is over; the next one goes on from there.
            known = _known_after(replace(request, options={**request.options, "time_limit": limit}))
            if known is None:
                continue
            answer = replace(answer, least_usd_h=known.lower_bound_usd_h)
            if tried is not None and known.instances == tried.instances:
                continue
            tried, met = known, shares_met(known, request, wanted)
            if met is not None:
                answer = replace(answer, usd_h=known.provisioning_usd_h + known.egress_usd_h, met=met)
                break
    except ScenarioError as error:
        # Such models are planned for mean requests only.
        first = error.mistakes[0]
        return replace(answer, how="`--simulate` corrects this plan", reason=f"{first.place}: {first.problem}")
    except InfeasibleError:
        return replace(answer, how=f"{how} says why", reason="the pool cannot serve the whole demand then")
    except CoraloptError as error:
        return replace(answer, reason=str(error).splitlines()[0])
    except KeyboardInterrupt:
        return replace(answer, reason="Ctrl-C came first")
    seconds = time.monotonic() - started
    if answer.usd_h is None:
        return replace(answer, reason=f"{seconds:.0f} s were too few")
    return replace(answer, how=f"{how} makes it")


def _known_after(request: PlanRequest) -> Plan | None:
    try:
        return CoralPlanner().plan(replace(request, settings={"certify": False})).plan
    except NoSolutionError:
        return None


def shares_met(plan: Plan, request: PlanRequest, wanted: Mapping[str, float]) -> dict[str, float] | None:
    """Model phase -> mean share of requests that met its SLO in the first windows of a certificate.

    Args:
        plan: What is simulated.
        request: Whose progress is told.
        wanted: Model phase -> share that its requests must meet.

    Returns:
        ``None`` as soon as one phase would be below its share even if all requests of all further windows met their SLO.
    """
    windows, shares = Replications(plan.resolved, FIRST_SEED), Shares()
    models = dict.fromkeys(item.model for item in plan.instances)
    keys = {phase.key for phase in plan.resolved.model_phases}
    met: dict[str, float] = {}
    for first in range(0, WINDOWS, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, WINDOWS))
        pairs = [(number, model) for number in numbers for model in models]
        windows.add(plan, pairs, shares, Workers(request.progress), "windows of fresh requests")
        met, further = {}, WINDOWS - numbers.stop
        for (model, kind), values in shares.items():
            key = key if (key := f"{model}/{kind}") in keys else f"{model}/mixed"
            if (sum(values) + further) / (len(values) + further) < wanted.get(key, 0.0):
                return None
            met[key] = min(met.get(key, 1.0), float(np.mean(values)))
    return met
