"""What a search with templates on demand looks for: the least cost, or the largest common share of all demands.

Both are minimised: USD/h, or the share of every demand that is not served. The second one is a programme in which nodes cost
nothing and all models leave equal shares unmet, at a price of 1 for all (:mod:`coralopt.templates.unmet`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from coralopt.allocation import (
    Allocation,
    AllocationProblem,
    AllocationResult,
    AllocationSearchOptions,
    AllocationState,
    LargestFactor,
    UnmetGroup,
    largest_factor,
    priced_groups,
    solve_allocation,
)
from coralopt.solving import Backend, SolveOptions, relative_gap
from coralopt.templates import DemandTerms


@dataclass(frozen=True, eq=False)
class RatedAllocation:
    """An allocation of some templates.

    Attributes:
        allocation: The allocation.
        value: What it costs, USD/h; or the share of every demand that it does not serve.
        bound: No allocation of these templates has less.
        state: For solving a similar problem next.
        result: It as a result, where cost is the objective.
        factor: It as a factor, where the share is.
    """

    allocation: Allocation
    value: float
    bound: float
    state: AllocationState | None = None
    result: AllocationResult | None = None
    factor: LargestFactor | None = None

    def in_terms_of(self, allocation: Allocation) -> RatedAllocation:
        """The same allocation of another library."""
        result, factor = self.result, self.factor
        return replace(
            self,
            allocation=allocation,
            result=None if result is None else replace(result, allocation=allocation),
            factor=None if factor is None else replace(factor, allocation=allocation),
        )


class Objective(Protocol):
    """What is looked for."""

    #: Steps of each demand, the most where it is cut finer, and what an allocation does, in words.
    grid: int
    most_steps: int
    wanted: str
    #: A value that no allocation is worth having with.
    worst: float

    def terms(self, problem: AllocationProblem) -> DemandTerms:
        """What node sets are to serve, and what not serving it costs."""

    def solve(
        self, problem: AllocationProblem, solver: Backend | str, options: SolveOptions, search: AllocationSearchOptions
    ) -> RatedAllocation:
        """The best allocation of some templates.

        Raises:
            InfeasibleError: There is none.
            NoSolutionError: A limit passed before any was known.
        """

    def gap(self, value: float, bound: float) -> float:
        """The relative gap between a value and a bound on it."""

    def enough(self, value: float, gap: float) -> float:
        """The bound that leaves a value such a gap."""


class LeastCost:
    """USD/h; some demand may go unmet at a price that counts."""

    grid, most_steps, wanted, worst = 1000, 16_000, "meets every demand", math.inf

    def terms(self, problem: AllocationProblem) -> DemandTerms:
        """The problem's demand, and its prices of unmet demand."""
        return DemandTerms(problem.demand, priced_groups(problem, problem.unmet_prices()))

    def solve(
        self, problem: AllocationProblem, solver: Backend | str, options: SolveOptions, search: AllocationSearchOptions
    ) -> RatedAllocation:
        """The cheapest allocation."""
        result = solve_allocation(problem, solver, options, search)
        return RatedAllocation(result.allocation, result.cost_usd_h, result.bound_usd_h, result.state, result)

    def gap(self, value: float, bound: float) -> float:
        """(cost - bound) / cost."""
        return relative_gap(value, bound)

    def enough(self, value: float, gap: float) -> float:
        """As :meth:`gap` has it."""
        return value * (1 - gap)


class LargestShare:
    """The share of every demand that is not served; money counts in limits only."""

    grid, most_steps, wanted, worst = 4000, 4000, "serves a share of every demand", 1.0

    def terms(self, problem: AllocationProblem) -> DemandTerms:
        """All demands, of which equal shares go unmet."""
        needed = tuple(np.flatnonzero(problem.demand > 0).tolist())
        groups = (UnmetGroup(needed, ((1.0, 1.0),)),) if needed else ()
        return DemandTerms(problem.demand, groups, charged=False)

    def solve(
        self, problem: AllocationProblem, solver: Backend | str, options: SolveOptions, search: AllocationSearchOptions
    ) -> RatedAllocation:
        """An allocation of the largest factor."""
        factor = largest_factor(problem, solver, options)
        return RatedAllocation(factor.allocation, 1.0 - float(factor.factor), 1.0 - factor.bound, factor=factor)

    def gap(self, value: float, bound: float) -> float:
        """(bound - factor) / bound, as of :class:`coralopt.allocation.LargestFactor`."""
        return max(0.0, value - bound) / (1.0 - bound) if bound < 1.0 else 0.0

    def enough(self, value: float, gap: float) -> float:
        """As :meth:`gap` has it."""
        return (value - gap) / (1 - gap) if gap < 1 else 0.0
