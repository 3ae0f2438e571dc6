r"""The largest share of the demand within a budget, by what shares cost at least.

A share alpha of every demand can be served within a budget b exactly if its least rent C(alpha), all other constraints as
they are, is at most b. C grows with alpha, so alpha is bracketed: an allocation of rent b or less serves what it serves, and
where the proven bound on C(alpha) is above b nothing serves alpha or more. Coverings of whole instances are behind that
bound, which is what one programme over all shares at once does not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from coralopt.allocation.bounds.relaxation import SHORTFALL
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.search.options import AllocationSearchOptions
from coralopt.allocation.search.solve import solve_allocation
from coralopt.allocation.search.upper_limits import rent_only
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import Backend, SolveOptions
from coralopt.solving.tolerance import TOLERANCE

#: Share of the gap asked for that a proof of a rent may leave, and that shares stay away from where the budget ends.
PART = 0.4
#: Shares closer to each other than that are told apart by nothing but the tolerances of solvers.
CLOSEST = 1e-5
#: Shares asked about at most.
MOST_ROUNDS = 30


@dataclass
class Bracket:
    """What is known of the largest share.

    Attributes:
        served: Some allocation serves it.
        bound: None serves more.
    """

    served: float
    bound: float


def narrow(
    problem: AllocationProblem,
    budget: SideConstraint,
    bracket: Bracket,
    keep: Callable[[Allocation], float],
    backend: Backend,
    options: SolveOptions,
    deadline: float,
) -> None:
    """Narrow a bracket until it is within the gap, or nothing new can be asked, or time is up.

    Args:
        problem: The problem; money counts in its limits only.
        budget: One of its limits.
        bracket: What is known; narrowed in place.
        keep: Looks at an allocation, and says which share it serves within all constraints; -1 where it breaks one.
        backend: The back end.
        options: ``rel_gap`` is that of the share.
        deadline: Value of ``time.perf_counter()`` to stop at.
    """
    paid = rent_only(problem, budget)
    limit, step = budget.bound, PART * options.rel_gap
    # By share: rent of an allocation, and what any allocation's is at least.
    rents, least = dict[float, float](), dict[float, float]()
    for _ in range(MOST_ROUNDS):
        narrow_enough = bracket.served >= bracket.bound * (1 - max(options.rel_gap, CLOSEST))
        # A share as small as that is too little for a solver's numbers.
        if narrow_enough or bracket.bound <= SHORTFALL or time.perf_counter() >= deadline:
            break
        width = bracket.bound - bracket.served
        share = _next_share(rents, least, limit, bracket, step * bracket.bound)
        if share in least:
            break
        left = max(0.5, (deadline - time.perf_counter()) / 2)
        # Far from the budget a coarse proof says on which side a share is.
        goal = replace(options, rel_gap=max(step, min(0.01, width / bracket.bound / 8)), time_limit=left)
        scaled = paid.scaled(share * paid.demand, share)
        try:
            search = AllocationSearchOptions(explained=False, enough=limit * (1 + TOLERANCE))
            result = solve_allocation(scaled, backend, goal, search)
        except InfeasibleError:
            bracket.bound = share
            continue
        except NoSolutionError:
            break
        if result.interrupted:
            break
        least[share] = result.bound_usd_h
        bracket.served = max(bracket.served, keep(result.allocation))
        if result.bound_usd_h > limit * (1 + TOLERANCE):
            # The search ended there, with whatever allocation it had.
            bracket.bound = share
        else:
            rents[share] = result.cost_usd_h


def _next_share(
    rents: Mapping[float, float], least: Mapping[float, float], limit: float, bracket: Bracket, step: float
) -> float:
    """What should narrow the bracket most, well within it.

    A share a step below the one whose rent should be the budget, to be served; or a step above the one whose least rent
    should be, to be ruled out. Where rents are not proven to the last, these are far apart.
    """
    served, ruled_out = _crossing(rents, limit), _crossing(least, limit)
    width = bracket.bound - bracket.served
    if served is None or ruled_out is None:
        guess = bracket.served + 0.85 * width
        guess += step if bracket.bound - guess > guess - bracket.served else -step
    elif bracket.bound - (ruled_out + step) > served - step - bracket.served:
        guess = ruled_out + step
    else:
        # Rents of coarse proofs are too high.
        guess = max(served - step, bracket.served + 0.3 * width)
    return min(max(guess, bracket.served + 0.1 * width), bracket.bound - 0.1 * width)


def _crossing(rents: Mapping[float, float], limit: float) -> float | None:
    """The share whose rent should be the limit, by those next to it; ``None`` where none is known."""
    below = max(((share, rent) for share, rent in rents.items() if rent <= limit), default=None)
    above = min(((share, rent) for share, rent in rents.items() if rent > limit), default=None)
    if below and above and above[1] > below[1] and above[0] > below[0]:
        return below[0] + (above[0] - below[0]) * (limit - below[1]) / (above[1] - below[1])
    known = below or above
    return None if known is None else known[0] * limit / max(known[1], 1e-9)
