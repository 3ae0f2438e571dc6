"""Planning with templates on demand, and what to do where the demand cannot be met."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from coralopt.allocation import AllocationSearchOptions, LargestFactor, Served, check_shortfall, was_interrupted
from coralopt.allocation.search.upper_limits import PART, beyond_limit, rent_only, without_rent_limit
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.planning.on_demand import Best, OnDemandSearch, ProblemOf
from coralopt.planning.on_demand_objective import LargestShare
from coralopt.planning.operators import unmet_prices
from coralopt.planning.request import PlanRequest
from coralopt.solving import relative_gap
from coralopt.solving.tolerance import TOLERANCE
from coralopt.templates import TemplateLibrary
from coralopt.throughput import ThroughputTables

#: Shares of a time limit: for an allocation of the whole demand, where less may be served; and of what is left for the
#: largest factor, before its least cost.
FIRST, FACTOR = 0.5, 0.7


def solve_on_demand(
    request: PlanRequest,
    tables: Sequence[ThroughputTables],
    problem_of: ProblemOf,
    search: AllocationSearchOptions,
) -> tuple[TemplateLibrary, Served]:
    """Meet every demand at least cost; where that cannot be done, do what the request says.

    Args:
        request, tables, problem_of, search: As of :class:`OnDemandSearch`.

    Returns:
        Templates, and an allocation of them whose gap is over node sets of any size.

    Raises:
        InfeasibleError: The demand cannot be met, and nothing else was asked for or helps.
        LibraryError, OptionError: As :class:`OnDemandSearch`; or no demand has a price.
    """
    prices = unmet_prices(request.scenario)
    check_shortfall(request.on_infeasible, prices)
    started, limit = time.perf_counter(), request.solve_options.time_limit

    def rest_of_time(share: float = 1.0) -> PlanRequest:
        if limit is None:
            return request
        return replace(request, options={**request.options, "time_limit": share * _left(started, limit)})

    explained = request.on_infeasible == "explain"

    def whole(share: float, problem_of: ProblemOf, explained: bool) -> OnDemandSearch:
        this = OnDemandSearch(rest_of_time(share), tables, problem_of, replace(search, explained=explained))
        if request.on_infeasible != "explain" and limit is not None:
            this.first_by = min(this.first_by, started + FIRST * limit)
        return this

    try:
        return _within_rent(whole, problem_of, explained)
    except (InfeasibleError, NoSolutionError):
        # Perhaps it can be met, but that was not known in time; less can be served all the same.
        if explained:
            raise
    if request.on_infeasible == "shortfall":
        return least_cost(
            OnDemandSearch(
                rest_of_time(), tables, lambda library: replace(problem_of(library), unmet_price=prices), search
            )
        )
    # A second search follows, which begins with what the first one found.
    shares = OnDemandSearch(rest_of_time(FACTOR), tables, problem_of, search, LargestShare())
    best, factor = largest_share(shares)
    scaled = OnDemandSearch(
        rest_of_time(),
        tables,
        lambda library: problem_of(library).scaled(factor.demand, float(factor.factor)),
        search,
    )
    scaled.begin_with(shares, best)
    library, served = least_cost(scaled)
    return library, replace(served, factor=factor)


def _within_rent(
    whole: Callable[[float, ProblemOf, bool], OnDemandSearch], problem_of: ProblemOf, explained: bool
) -> tuple[TemplateLibrary, Served]:
    """The least cost, a limit on the rent of everything left out as long as that settles it, as with a library.

    See :mod:`coralopt.allocation.search.upper_limits`.

    Raises:
        InfeasibleError, NoSolutionError: As :meth:`OnDemandSearch.run`.
        KeyboardInterrupt: Ctrl-C came before any allocation within the limit was known.
    """
    search = whole(1.0, problem_of, explained)
    limit = search.rent_limit
    if limit is None:
        return least_cost(search)
    try:
        library, served = least_cost(whole(PART, lambda library: without_rent_limit(problem_of(library)), False))
    except InfeasibleError:
        if not explained:
            raise
        # What is said of it is about all limits.
        return least_cost(search)
    except NoSolutionError as error:
        if was_interrupted(error):
            raise
        return least_cost(search)
    problem, allocation = problem_of(library), served.result.allocation
    if problem.check(allocation).feasible:
        return library, replace(served, problem=problem)
    if served.result.interrupted:
        raise KeyboardInterrupt
    if problem.running is None and problem.start_penalty is None and not problem.routes:
        # All cost is rent, and K times the same.
        least = served.result.bound_usd_h / (1 + problem.penalty)
        if least > limit.bound * (1 + TOLERANCE):
            raise beyond_limit(limit, rent_only(problem, limit).check(allocation).objective, least)
    return least_cost(search)


def _left(started: float, limit: float) -> float:
    return max(1.0, limit - (time.perf_counter() - started))


def least_cost(search: OnDemandSearch) -> tuple[TemplateLibrary, Served]:
    """Run a search for the least cost.

    Raises:
        InfeasibleError, NoSolutionError: As :meth:`OnDemandSearch.run`.
    """
    (library, answer), bound = search.run()
    assert answer.result is not None
    result = replace(answer.result, bound_usd_h=bound, gap=relative_gap(answer.value, bound))
    return library, Served(result, search.problem_of(library))


def largest_share(search: OnDemandSearch) -> tuple[Best, LargestFactor]:
    """Run a search for the largest common share of all demands.

    Raises:
        InfeasibleError, NoSolutionError: As :meth:`OnDemandSearch.run`.
    """
    best, bound = search.run()
    factor = best[1].factor
    assert factor is not None
    return best, replace(factor, bound=min(1.0, max(1.0 - bound, float(factor.factor))))
