"""Allocation within upper limits, which are left out as long as that settles it.

Let C be the least cost without some limits. With them nothing costs less, so an allocation of cost C that keeps them is
the best there is. Limits that bind nothing so cost next to nothing, while their rows would hold all model phases
together: bounds are those of coverings of whole instances, and large libraries are looked at near prices only.

A limit on the rent of everything hardly ever binds in any other way than that nothing is affordable: what is cheap has
little rent. Where an allocation breaks it, the least rent decides: if its proven bound is above the limit, no allocation
meets every demand within it. Only what remains, cost against rent where instances run already, needs the row.

Demand that may go unmet at a price takes what limits leave, so all of that is of no use then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from coralopt.allocation.explain import Explanation, explain
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.search.options import AllocationSearchOptions
from coralopt.allocation.search.result import AllocationResult, was_interrupted
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import Backend, SolveOptions, gap_reached
from coralopt.solving.tolerance import TOLERANCE

#: Share of the time left that each of the searches without a limit on rent may take, and one without all upper limits.
PART, BRIEF = 0.5, 0.05

Solve = Callable[[AllocationProblem, SolveOptions, AllocationSearchOptions], AllocationResult]


def rent_limit(problem: AllocationProblem) -> SideConstraint | None:
    """The tightest limit on the rent of everything, or ``None``."""
    rows = [row for row in problem.side_constraints if row.is_rent and row.sense == "most" and row.regions is None]
    return min(rows, key=lambda row: row.bound, default=None)


def loose_limits(problem: AllocationProblem) -> tuple[SideConstraint, ...]:
    """Upper limits that may bind nothing; those on what is started take no rows of all columns, and bans none at all."""
    return tuple(
        row for row in problem.side_constraints if row.sense == "most" and not row.is_ban and row.measure != "new_nodes"
    )


def rent_only(problem: AllocationProblem, without: SideConstraint) -> AllocationProblem:
    """A problem whose cost is rent, neither starts nor transfers, without one of its side constraints."""
    free = tuple(model.scaled(0.0) for model in problem.routes)
    return replace(_without(problem, (without,)), penalty=0.0, start_penalty=None, routes=free)


def _without(problem: AllocationProblem, rows: Sequence[SideConstraint]) -> AllocationProblem:
    """A problem without some side constraints; who watches the given one hears nothing of its allocations."""
    parts = {item.name: getattr(problem, item.name) for item in fields(AllocationProblem)}
    left_out = {id(row) for row in rows}
    others = tuple(row for row in problem.side_constraints if id(row) not in left_out)
    return AllocationProblem(**(parts | {"side_constraints": others}))


def without_rent_limit(problem: AllocationProblem) -> AllocationProblem:
    """A problem without its tightest limit on the rent of everything."""
    limit = rent_limit(problem)
    return problem if limit is None else _without(problem, (limit,))


def beyond_limit(limit: SideConstraint, enough: float, needed: float) -> InfeasibleError:
    """That rent is limited to less than every demand needs.

    Args:
        limit: The limit.
        enough: Rent of some allocation that meets every demand, USD/h.
        needed: What the rent of every such allocation is at least, USD/h.
    """
    explanation = Explanation.of_limit(limit.name, enough, needed)
    return InfeasibleError(str(explanation), explanation)


@dataclass(frozen=True)
class UpperLimitSearch:
    """Allocation within upper limits.

    Attributes:
        problem: The problem, without prices of unmet demand.
        backend: The back end.
        options: Common options; ``time_limit`` (s) is for the whole search.
        search: How to search.
        solve: Solves a problem as it is.
    """

    problem: AllocationProblem
    backend: Backend
    options: SolveOptions
    search: AllocationSearchOptions
    solve: Solve

    def run(self) -> AllocationResult:
        """The best allocation within the limits.

        Raises:
            InfeasibleError: None meets every demand.
            NoSolutionError: A limit of the search passed before any was known.
        """
        started = time.perf_counter()

        def left(share: float) -> SolveOptions:
            if self.options.time_limit is None:
                return self.options
            seconds = self.options.time_limit - (time.perf_counter() - started)
            return replace(self.options, time_limit=max(0.1, share * seconds))

        loose, limit = loose_limits(self.problem), rent_limit(self.problem)
        brief: AllocationResult | None = None
        if any(row is not limit for row in loose):
            brief = self._solve_without(loose, left(BRIEF), self.search)
            if brief is not None and self._holds(brief) and (brief.interrupted or self._settled(brief)):
                return brief
            self._stop_if_interrupted(brief)
        within = self.solve(self.problem, left(1.0), self.search) if limit is None else self._within(limit, left)
        return within if brief is None else within.with_bound(brief.bound_usd_h, brief.proof)

    def _solve_without(
        self, rows: Sequence[SideConstraint], options: SolveOptions, search: AllocationSearchOptions
    ) -> AllocationResult | None:
        """The best allocation without some limits; ``None`` where its time was too short.

        Raises:
            InfeasibleError: There is none; what is said of it is about the whole problem, all limits included.
        """
        try:
            return self._solve_in_time(_without(self.problem, rows), options, search)
        except InfeasibleError:
            if not search.explained:
                raise
            explanation = explain(self.problem, self.backend, self.options)
            raise InfeasibleError(str(explanation), explanation) from None

    def _solve_in_time(
        self, problem: AllocationProblem, options: SolveOptions, search: AllocationSearchOptions
    ) -> AllocationResult | None:
        try:
            return self.solve(problem, options, replace(search, explained=False))
        except NoSolutionError as error:
            if was_interrupted(error):
                raise
            return None

    def _within(self, limit: SideConstraint, left: Callable[[float], SolveOptions]) -> AllocationResult:
        """The best allocation within a limit on rent; options for a share of the time left."""
        search = self.search
        without = self._solve_without((limit,), left(PART), search)
        if without is None:
            return self.solve(self.problem, left(1.0), search)
        search = replace(search, state=without.state or search.state)
        if self._holds(without):
            if without.interrupted or self._settled(without):
                return without
            search = replace(search, start=without.allocation)
            further = self._solve_without((limit,), left(1.0), search) or without
            return further.with_bound(without.bound_usd_h, without.proof)
        self._stop_if_interrupted(without)
        least = self._least_rent(limit, left(PART), search)
        self._stop_if_interrupted(least)
        if least is not None and self._holds(least):
            search = replace(search, start=least.allocation)
        return self.solve(self.problem, left(1.0), search).with_bound(without.bound_usd_h, without.proof)

    def _settled(self, result: AllocationResult) -> bool:
        gap = gap_reached(result.cost_usd_h, result.bound_usd_h, self.options.rel_gap, self.options.abs_gap)
        return gap or result.bound_usd_h > self.search.enough

    def _holds(self, result: AllocationResult) -> bool:
        return self.problem.check(result.allocation).feasible

    def _least_rent(
        self, limit: SideConstraint, options: SolveOptions, search: AllocationSearchOptions
    ) -> AllocationResult | None:
        """What is known of the least rent; without reasons only whether it is above the limit.

        Raises:
            InfeasibleError: It is.
        """
        most = limit.bound * (1 + TOLERANCE)
        enough = math.inf if search.explained else most
        least = self._solve_in_time(rent_only(self.problem, limit), options, replace(search, enough=enough))
        if least is None or least.bound_usd_h <= most:
            return least
        if not search.explained:
            raise InfeasibleError(f"no allocation meets every demand within {limit.name}")
        raise beyond_limit(limit, least.cost_usd_h, least.bound_usd_h)

    @staticmethod
    def _stop_if_interrupted(result: AllocationResult | None) -> None:
        if result is not None and result.interrupted:
            raise KeyboardInterrupt
