"""How a solve ended, on two axes: the reason and the limit that was hit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why the solver stopped."""

    #: The proven gap is within the one asked for.
    OPTIMAL = "optimal"
    #: A solution, but not proven to the gap asked for.
    FEASIBLE = "feasible"
    #: A limit came before any solution.
    NO_SOLUTION_FOUND = "no_solution_found"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    INFEASIBLE_OR_UNBOUNDED = "infeasible_or_unbounded"
    NUMERICAL_ERROR = "numerical_error"
    OTHER_ERROR = "other_error"


class Limit(Enum):
    """The limit that ended the solve, if one did."""

    TIME = "time"
    NODE = "node"
    SOLUTION = "solution"
    MEMORY = "memory"
    INTERRUPTED = "interrupted"
    WORK = "work"
    OTHER = "other"


class Proof(Enum):
    """What the claim of a solve rests on: optimality, the bound, or that there is no solution."""

    #: Prices of the rows bound the objective, recomputed with all rounding accounted for.
    DUAL_BOUND = "dual bound"
    #: Prices of the rows show that they cannot hold together (or bounds exclude each other), recomputed likewise.
    FARKAS = "Farkas vector"
    #: A second solver, asked by ``confirm``, proved the same within the gap.
    SECOND_SOLVER = "second solver"
    #: A bound of coralopt's own on problems of this kind, or its exact dynamic programme.
    OWN_BOUND = "own bound"
    #: The solver's word; its answer, if there is one, is checked.
    SOLVER = "solver's word"


@dataclass(frozen=True)
class Termination:
    """Reason, limit and the solver's own words. A solution exists iff the reason is OPTIMAL or FEASIBLE."""

    reason: Reason
    limit: Limit | None
    raw: str

    @property
    def has_solution(self) -> bool:
        return self.reason in (Reason.OPTIMAL, Reason.FEASIBLE)


def relative_gap(objective: float, bound: float) -> float:
    """Our single gap formula: |objective - bound| / max(|objective|, 1e-9); 0 when they are equal."""
    if objective == bound:
        return 0.0
    return abs(objective - bound) / max(abs(objective), 1e-9)


#: Largest relative amount by which a bound may pass a checked solution before the solver is called wrong.
BOUND_TOLERANCE = 1e-6
#: Relative gap by which an exact re-evaluation may miss what the solver proved within its own tolerances.
PROOF_ROUNDING = 1e-7


def gap_met(gap: float, requested: float) -> bool:
    """Whether a proven relative gap is the one asked for, apart from the hair by which bounds stay below what is proven.

    Back ends that are asked for a gap of 0 end with bounds up to some 1e-8 below the optimum.
    """
    return gap <= requested + PROOF_ROUNDING


def gap_reached(objective: float, bound: float, rel_gap: float, abs_gap: float) -> bool:
    """Whether the proven gap is within the one asked for, up to the last digits of floating point."""
    return abs(objective - bound) <= max(abs_gap, rel_gap * abs(objective), 1e-12 * abs(objective))
