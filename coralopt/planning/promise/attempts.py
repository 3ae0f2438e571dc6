"""The cheapest plan that its certificate confirms: models that it does not confirm get other instances.

Each attempt is a search of its own, to which the instances refused so far are no designs; what earlier searches simulated is
remembered. Its certificate simulates windows that no search and no attempt before it had.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coralopt.allocation import Served
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.placement import Placement
from coralopt.plan import Plan
from coralopt.plan.certificate import RefusedInstances
from coralopt.planning.promise.certificate import ERRORS, certify, instances_of, refused_by_now
from coralopt.planning.promise.search import PromiseSearch
from coralopt.planning.request import PlanRequest, StepClock


@dataclass(frozen=True)
class Promised:
    """A plan for a share of requests.

    Attributes:
        plan: With its certificate, if it has one.
        served: Its allocation.
        cut_short: What ended the search for it, or for one in its place; empty where nothing did.
        unconfirmed: Its models whose instances were not seen to hold in the search.
        attempts: Plans that were certified.
    """

    plan: Plan
    served: Served
    cut_short: str = ""
    unconfirmed: tuple[str, ...] = ()
    attempts: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the plan should know."""
        mark = self.plan.certificate
        if mark is None and self.cut_short:
            note = (
                f"{self.cut_short} came first: the best plan known by then, without a certificate; `certify` makes one"
            )
            if self.unconfirmed:
                models = ", ".join(self.unconfirmed)
                note += f". Its instances were not seen to serve the share asked for: {models}"
            return (note,)
        if mark is None or mark.holds:
            return ()
        if not mark.failed:
            few = ", ".join(dict.fromkeys(phase.model for phase in mark.phases if phase.verdict == "open"))
            return (f"no request missed, but there are too few to confirm the share asked for: {few}",)
        if self.attempts == len(ERRORS):
            ending = "there are no more attempts"
        else:
            ending = f"{self.cut_short} came first" if self.cut_short else "no other one was found"
        return (f"of {self.attempts} certified plans this one is nearest to what was asked for; {ending}",)

    @property
    def margin(self) -> float:
        """How far the mean shares of its certificate are above those asked for, at least."""
        phases = () if self.plan.certificate is None else self.plan.certificate.phases
        told = (phase.mean - phase.target for phase in phases if phase.target is not None and phase.shares)
        return min(told, default=math.inf)


@dataclass(frozen=True)
class Attempts:
    """Searches and certificates of one request, in turn.

    Attributes:
        request: What to plan.
        search_for: Makes the search without some instances, of a request that says how much time is left.
        document: Makes the plan of an allocation, placements of rows that are not the library's, and unconfirmed models.
        steps: Notes how long each step takes.
    """

    request: PlanRequest
    search_for: Callable[[PlanRequest, Sequence[RefusedInstances]], PromiseSearch]
    document: Callable[[Served, Mapping[int, Placement], tuple[str, ...]], Plan]
    steps: StepClock
    _started: float = field(default_factory=time.monotonic)

    def run(self, certified: bool) -> Promised:
        """The first plan that is confirmed, or of all attempts the one that came nearest.

        Args:
            certified: Whether plans get certificates; without them the first is taken.

        Raises:
            InfeasibleError, NoSolutionError, KeyboardInterrupt: As :meth:`PromiseSearch.run`, in the first attempt.
        """
        one = self._found(self.search_for(self.request, ()))
        if not certified or one.cut_short:
            return one
        seen: list[Promised] = []
        while True:
            before = seen[-1].plan if seen else None
            try:
                mark = certify(one.plan, progress=self.request.progress, before=before)
            except KeyboardInterrupt:
                return _nearest(seen, "Ctrl-C") if seen else replace(one, cut_short="Ctrl-C")
            self.steps.end("certificate")
            one = replace(one, plan=one.plan.with_certificate(mark))
            seen.append(one)
            if mark.holds or len(seen) == len(ERRORS) or not mark.failed:
                return _nearest(seen, "")
            following, ended = self._following(one)
            if following is None:
                return _nearest(seen, ended)
            one = following

    def _following(self, one: Promised) -> tuple[Promised | None, str]:
        """The cheapest plan without what a certificate did not confirm; or ``None``, and what ended the search for it."""
        request, limit = self.request, self.request.solve_options.time_limit
        if limit is not None:
            left = max(limit - (time.monotonic() - self._started), 1e-3)
            request = replace(request, options={**request.options, "time_limit": left})
        try:
            search = self.search_for(request, refused_by_now(one.plan))
            try:
                cheapest = self._found(search)
            except (InfeasibleError, NoSolutionError):
                return None, search.cut_short
        except KeyboardInterrupt:
            return None, "Ctrl-C"
        models = dict.fromkeys(item.model for item in cheapest.plan.instances)
        is_new = all(search.races.refused(instances_of(cheapest.plan, model)) is None for model in models)
        return (cheapest if is_new and not cheapest.cut_short else None), cheapest.cut_short

    def _found(self, search: PromiseSearch) -> Promised:
        """The plan of a search."""
        served, placements = search.run()
        self.steps.end("allocation")
        plan = self.document(served, placements, search.unconfirmed)
        self.steps.end("plan")
        return Promised(plan, served, search.cut_short, search.unconfirmed)


def _nearest(seen: Sequence[Promised], cut_short: str) -> Promised:
    """The last one where it is confirmed, else that whose mean shares are the farthest above those asked for."""
    mark = seen[-1].plan.certificate
    best = seen[-1] if mark is not None and mark.holds else max(seen, key=lambda one: one.margin)
    return replace(best, cut_short=cut_short, attempts=len(seen))
