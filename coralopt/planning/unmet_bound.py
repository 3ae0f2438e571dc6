"""Allocation where some demand may go unmet: the bound by branching on shares, once the search for itself takes long.

Where limits bind beside unmet demand, no single prices of nodes and limits fit all shares that a model may leave, and a tree
over templates closes the gap slowly. Branching on the shares does quickly (:mod:`coralopt.templates.unmet_branches`). Its
bound is over node sets of any size, so it holds for any library.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coralopt.allocation import (
    AllocationProblem,
    AllocationResult,
    AllocationSearchOptions,
    solve_allocation,
    was_interrupted,
)
from coralopt.errors import LibraryError, NoSolutionError
from coralopt.planning.on_demand_bound import BoundSearch, DemandSteps
from coralopt.planning.on_demand_objective import LeastCost
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Backend, SolveOptions
from coralopt.templates import AnySizeBounds
from coralopt.throughput import ThroughputTables

#: Seconds of a search before shares are branched on; share of the time left that this may take, and seconds at most.
QUICK_S, SHARE, MOST_S = 5.0, 0.5, 60.0


@dataclass(frozen=True)
class UnmetSolver:
    """Solves allocation problems of a scenario in which demand may go unmet.

    Attributes:
        scenario: The scenario.
        tables: Its throughput tables.
    """

    scenario: ResolvedScenario
    tables: Sequence[ThroughputTables]

    def solve(
        self, problem: AllocationProblem, solver: Backend | str, options: SolveOptions, search: AllocationSearchOptions
    ) -> AllocationResult:
        """As :func:`coralopt.allocation.solve_allocation`, with the better of both bounds.

        Raises:
            InfeasibleError, NoSolutionError: As that.
        """
        deadline = math.inf if options.time_limit is None else time.perf_counter() + options.time_limit
        try:
            first = solve_allocation(problem, solver, _within(options, QUICK_S, deadline), search)
        except NoSolutionError as error:
            if was_interrupted(error) or time.perf_counter() >= deadline:
                raise
            return solve_allocation(problem, solver, _within(options, math.inf, deadline), search)
        if first.gap <= options.rel_gap or first.interrupted:
            return first
        left_s = deadline - time.perf_counter()
        if left_s <= 0:
            return first
        try:
            bound = self.bound(problem, first, options.rel_gap, time.perf_counter() + min(MOST_S, SHARE * left_s))
        except KeyboardInterrupt:
            return replace(first, interrupted=True)
        better = first.with_bound(bound)
        if better.gap <= options.rel_gap:
            return better
        again = replace(search, start=first.allocation, state=first.state or search.state)
        second = solve_allocation(problem, solver, _within(options, math.inf, deadline), again)
        return second.with_bound(bound)

    def bound(self, problem: AllocationProblem, known: AllocationResult, rel_gap: float, deadline: float) -> float:
        """A bound on the cost of any allocation, USD/h; 0 where there is none for such a scenario."""
        objective = LeastCost()
        try:
            bounds = AnySizeBounds(self.scenario, self.tables, objective.terms(problem))
        except LibraryError:
            return 0.0
        search, ceiling = BoundSearch(bounds, DemandSteps.of(objective, rel_gap)), known.cost_usd_h
        search.price(bounds.supply.free_of_charge)
        duals = bounds.column_generation(1e-3)[0]
        if duals.any():
            search.price(duals)
        for _ in search.towards(ceiling, objective.enough(ceiling, rel_gap)):
            if time.perf_counter() >= deadline:
                break
        return search.value


def _within(options: SolveOptions, most_s: float, deadline: float) -> SolveOptions:
    seconds = min(most_s, max(0.1, deadline - time.perf_counter()))
    return replace(options, time_limit=None if math.isinf(seconds) else seconds)
