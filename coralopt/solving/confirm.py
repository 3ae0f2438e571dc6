"""Two solvers about one problem: do they say the same, within the gap?"""

from __future__ import annotations

from typing import Any, TypeVar

from coralopt.errors import WrongAnswerError
from coralopt.solving.options import SolveOptions
from coralopt.solving.solution import MatrixResult, Solution
from coralopt.solving.status import BOUND_TOLERANCE, Proof, Reason, gap_reached

# A solution of any problem.
S = TypeVar("S", MatrixResult, Solution[Any])


def confirmed(first: S, second: S, names: tuple[str, str], maximize: bool, options: SolveOptions) -> Proof | None:
    """The proof that the second result is for the first, ``None`` when it shows nothing.

    Args:
        first: A checked result.
        second: That of another solver.
        names: Of the solvers.
        maximize: Sense of the objective.
        options: What was asked for.

    Raises:
        WrongAnswerError: One says that there is no solution, or none so good, and the other has one.
    """
    for one, other, (name, rival) in ((first, second, names), (second, first, names[::-1])):
        if not other.termination.has_solution:
            continue
        claim = f"solver {name!r} claims"
        if one.termination.reason is Reason.INFEASIBLE:
            raise WrongAnswerError(f"{claim} that there is no solution, but {rival!r} has one: {other.objective!r}")
        if one.bound is None:
            continue
        beyond = other.objective - one.bound if maximize else one.bound - other.objective
        if beyond > BOUND_TOLERANCE * max(1.0, abs(other.objective)):
            raise WrongAnswerError(
                f"{claim} the bound {one.bound!r}, but {rival!r} has a solution of {other.objective!r}"
            )
    if first.termination.reason is Reason.INFEASIBLE and second.termination.reason is Reason.INFEASIBLE:
        return Proof.SECOND_SOLVER
    if not first.termination.has_solution or second.bound is None:
        return None
    reached = gap_reached(first.objective, second.bound, options.rel_gap + BOUND_TOLERANCE, options.abs_gap)
    return Proof.SECOND_SOLVER if reached else None
