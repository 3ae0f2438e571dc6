"""What to do when demand cannot be met: say why, serve an equal share of everything, or price what stays unmet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from coralopt.allocation.largest_factor import LargestFactor, largest_factor
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.routes import Flow
from coralopt.allocation.search.options import DEFAULT_OPTIONS, AllocationSearchOptions
from coralopt.allocation.search.result import AllocationResult, was_interrupted
from coralopt.allocation.search.solve import solve_allocation
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.solving import Backend, SolveOptions
from coralopt.types import Floats

OnInfeasible = Literal["explain", "scale", "shortfall"]


def check_on_infeasible(choice: str) -> None:
    """Refuse anything else.

    Raises:
        OptionError: It is none of these.
    """
    if choice not in get_args(OnInfeasible):
        raise OptionError(f"on_infeasible is {choice!r}; choose from: {', '.join(get_args(OnInfeasible))}")


def check_shortfall(choice: str, unmet_price: Floats | None) -> None:
    """Refuse ``"shortfall"`` without a price for any demand.

    Args:
        choice: What to do when demand cannot be met.
        unmet_price: float64 (P,), as of :class:`coralopt.allocation.AllocationProblem`.

    Raises:
        OptionError: There is none.
    """
    if choice == "shortfall" and (unmet_price is None or not np.isfinite(unmet_price).any()):
        raise OptionError(
            "shortfall needs a price for unmet demand: give `unmet` for some models in the scenario, or --unmet-price"
        )


@dataclass(frozen=True, eq=False)
class Served:
    """An allocation, and what it was asked to serve in the end.

    Attributes:
        result: The allocation and its proof.
        problem: The problem that ``result`` solves: the given one, or with less demand, or with prices of unmet demand.
        factor: Where demand was scaled: by how much, and the proof that no larger factor can be served.
        flows: How requests of models with routes go, where that is not the cheapest flow in ``problem``.
    """

    result: AllocationResult
    problem: AllocationProblem
    factor: LargestFactor | None = None
    flows: tuple[Flow, ...] | None = None


#: As :func:`coralopt.allocation.solve_allocation`.
SolveAllocation = Callable[[AllocationProblem, Backend | str, SolveOptions, AllocationSearchOptions], AllocationResult]


def solve_or_serve_less(
    problem: AllocationProblem,
    on_infeasible: OnInfeasible = "explain",
    solver: Backend | str = "highs",
    options: SolveOptions | None = None,
    search: AllocationSearchOptions = AllocationSearchOptions(),
    solve_unmet: SolveAllocation = solve_allocation,
) -> Served:
    """Meet every demand at least cost; where that cannot be done, do what ``on_infeasible`` says.

    Args:
        problem: The problem. Its ``unmet_price`` counts only for ``"shortfall"``, and only where the demand cannot be
            met: demand that can be met is.
        on_infeasible: ``"explain"`` raises with the reasons; ``"scale"`` serves the largest common factor of all demands, at
            least cost; ``"shortfall"`` leaves demand unmet where that is cheapest at its prices.
        solver: Name of a MILP back end or a back end itself.
        options: Common options; ``time_limit`` (s) is for the whole call.
        search: How :func:`coralopt.allocation.solve_allocation` searches.
        solve_unmet: Solves it where demand may go unmet.

    Raises:
        InfeasibleError: The demand cannot be met, and nothing else was asked for or helps.
        OptionError: Unknown ``on_infeasible``, or ``"shortfall"`` without a price for any demand.
    """
    check_on_infeasible(on_infeasible)
    prices = problem.unmet_price
    check_shortfall(on_infeasible, prices)
    options, started = options or DEFAULT_OPTIONS, time.perf_counter()
    if problem.unmet_tiers:
        if on_infeasible != "explain":
            raise OptionError("tiers of unmet demand say what may go unmet at what price: leave on_infeasible out")
        return Served(solve_unmet(problem, solver, options, search), problem)

    def rest_of_time() -> SolveOptions:
        if options.time_limit is None:
            return options
        return replace(options, time_limit=max(1.0, options.time_limit - (time.perf_counter() - started)))

    strict = problem if prices is None else replace(problem, unmet_price=None)
    explained = on_infeasible == "explain"
    try:
        return Served(solve_allocation(strict, solver, options, replace(search, explained=explained)), strict)
    except InfeasibleError:
        if explained:
            raise
    except NoSolutionError as error:
        # Perhaps it can be met, but that was not found in time; less can be asked for all the same.
        if explained or was_interrupted(error):
            raise
    left = rest_of_time()
    if on_infeasible == "shortfall":
        return Served(solve_unmet(problem, solver, left, search), problem)
    # A second programme follows, which begins with what the first one found.
    most = left if left.time_limit is None else replace(left, time_limit=0.7 * left.time_limit)
    factor = largest_factor(strict, solver, most)
    scaled = strict.scaled(factor.demand, float(factor.factor))
    result = solve_allocation(scaled, solver, rest_of_time(), replace(search, start=factor.allocation))
    return Served(result, scaled, factor)
