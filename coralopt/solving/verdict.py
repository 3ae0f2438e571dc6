"""The core's own verdict on what a back end claims: solution, objective, bound and reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from coralopt.errors import WrongAnswerError
from coralopt.solving.backend import RawResult
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.status import BOUND_TOLERANCE, PROOF_ROUNDING, Reason, Termination, gap_reached, relative_gap
from coralopt.types import Floats

#: Largest distance from a whole number that a solver's integer column may have.
INTEGRALITY_TOLERANCE = 1e-4
#: Largest violation of a row, relative to the size of its terms, that counts as rounding of the solver.
ROW_TOLERANCE = 1e-6
#: Largest difference, relative to the size of the terms, between a solver's objective and that of its own values.
CLAIM_TOLERANCE = 1e-6

#: Reasons that never come with a solution.
WITHOUT_SOLUTION = frozenset({Reason.INFEASIBLE, Reason.UNBOUNDED, Reason.INFEASIBLE_OR_UNBOUNDED})


def weak_bound(maximize: bool) -> float:
    """The bound that says nothing."""
    return math.inf if maximize else -math.inf


@dataclass(frozen=True)
class ObjectiveScale:
    """What tolerances of an objective count in.

    Attributes:
        unit: Size of an ordinary objective.
        slack: By how much a checked solution may pass the solver's bound, relative to the larger of unit and objective.
    """

    unit: float = 1.0
    slack: float = BOUND_TOLERANCE


@dataclass(frozen=True)
class Verdict:
    """What is proven of a solve: how it ended, the bound (``None`` when infeasible), and the gap (infinite without one)."""

    termination: Termination
    bound: float | None
    gap: float


def proven(
    claim: Termination,
    objective: float | None,
    bound: float | None,
    maximize: bool,
    options: SolveOptions,
    solver: str,
    scale: ObjectiveScale = ObjectiveScale(),
) -> Verdict:
    """The verdict on a checked solution with this objective, or on none; a claim of optimality alone proves nothing.

    Args:
        claim: What the solver says.
        objective: Of the checked solution.
        bound: The solver's.
        maximize: Sense of the objective.
        options: What was asked for.
        solver: Its name.
        scale: What tolerances count in.

    Raises:
        WrongAnswerError: A solution is claimed and none is there, or one that is there passes the bound.
    """
    if bound is None or math.isnan(bound) or claim.reason in WITHOUT_SOLUTION:
        bound = weak_bound(maximize)
    if objective is None:
        if claim.has_solution:
            raise WrongAnswerError(f"solver {solver!r} claims {claim.reason.value} but gives no solution")
        return Verdict(claim, None if claim.reason is Reason.INFEASIBLE else bound, math.inf)
    beyond = objective - bound if maximize else bound - objective
    if beyond > scale.slack * max(scale.unit, abs(objective)):
        raise WrongAnswerError(
            f"solver {solver!r} claims the bound {bound!r}, but a checked solution has the objective {objective!r}"
        )
    # Within the solver's tolerances a re-evaluation may pass the bound by a hair; a bound never is behind a solution.
    bound = max(bound, objective) if maximize else min(bound, objective)
    gap = relative_gap(objective / scale.unit, bound / scale.unit)
    within = gap_reached(objective, bound, options.rel_gap, options.abs_gap * min(1.0, scale.unit))
    # What the solver proved within its tolerances stays proven when the exact re-evaluation moves the last digits.
    within = within or (claim.reason is Reason.OPTIMAL and gap <= options.rel_gap + PROOF_ROUNDING)
    return Verdict(replace(claim, reason=Reason.OPTIMAL if within else Reason.FEASIBLE), bound, gap)


def best_of(matrix: MilpMatrix, raw: RawResult, start: Floats | None, solver: str) -> tuple[Floats | None, float]:
    """The checked solution and its objective: the solver's, or the start where that is better or the only one."""
    x, objective = None, math.nan
    if raw.x is not None and raw.reason not in WITHOUT_SOLUTION:
        unrounded = np.asarray(raw.x, dtype=np.float64)
        x, wrong = examine(matrix, unrounded)
        if wrong:
            raise WrongAnswerError(f"solver {solver!r} returned a wrong solution: {wrong}")
        terms = matrix.terms(unrounded)
        own = float(terms.sum()) + matrix.offset
        claimed = own if raw.objective is None else raw.objective
        if not abs(claimed - own) <= CLAIM_TOLERANCE * max(1.0, float(np.abs(terms).sum()) + abs(matrix.offset)):
            raise WrongAnswerError(f"solver {solver!r} claims the objective {claimed!r}, but its solution has {own!r}")
        objective = matrix.objective(x)
    if start is None or np.isnan(start).any():
        return x, objective
    begin, wrong = examine(matrix, start)
    if wrong:
        return x, objective
    if raw.reason is Reason.INFEASIBLE:
        raise WrongAnswerError(f"solver {solver!r} claims that there is no solution, but the start is one")
    if raw.reason in WITHOUT_SOLUTION:
        return None, math.nan
    value = matrix.objective(begin)
    better = value - objective if matrix.maximize else objective - value
    if x is None or better > BOUND_TOLERANCE * max(1.0, abs(objective)):
        return begin, value
    return x, objective


def examine(matrix: MilpMatrix, x: Floats, tolerance: float = ROW_TOLERANCE) -> tuple[Floats, str]:
    """``x`` with whole integer columns, and what is wrong with it by more than the tolerance, empty when nothing is."""
    if x.shape != matrix.c.shape:
        return x, f"{x.shape} values for {len(matrix.c)} columns"
    if not np.isfinite(x).all():
        worst = int((~np.isfinite(x)).argmax())
        return x, f"column {matrix.column_names[worst]} has value {float(x[worst])!r}, which is not finite"
    # Adding 0 turns -0.0 into 0.0.
    whole = np.where(matrix.integer, np.rint(x), x) + 0.0
    if not len(x):
        off = beyond = np.zeros(1)
    else:
        off = np.abs(whole - x)
        slack = tolerance * np.maximum(1.0, np.abs(whole))
        beyond = np.maximum(matrix.lower - whole - slack, whole - matrix.upper - slack)
        beyond[[j for j in matrix.extras.semicontinuous if abs(whole[j]) <= tolerance]] = 0.0
    if off.max() > max(INTEGRALITY_TOLERANCE, tolerance):
        worst = int(off.argmax())
        return whole, f"integer column {matrix.column_names[worst]} has value {float(x[worst])!r}"
    if beyond.max() > 0:
        worst = int(beyond.argmax())
        return whole, f"column {matrix.column_names[worst]} = {float(x[worst])!r} is out of bounds"
    if len(matrix.row_lower):
        activity = matrix.a @ whole
        slack = tolerance * np.maximum(1.0, abs(matrix.a) @ np.abs(whole))
        beyond = np.maximum(matrix.row_lower - activity - slack, activity - matrix.row_upper - slack)
        beyond[[part.row for part in matrix.extras.indicators if round(whole[part.column]) != part.value]] = 0.0
        if beyond.max() > 0:
            worst = int(beyond.argmax())
            return whole, (
                f"row {matrix.row_names[worst]} has activity {float(activity[worst])!r}, "
                f"allowed is {float(matrix.row_lower[worst])!r} to {float(matrix.row_upper[worst])!r}"
            )
    for group in matrix.extras.sos:
        nonzero = [k for k, j in enumerate(group.columns) if abs(whole[j]) > tolerance]
        if group.spans(nonzero):
            values = ", ".join(f"{matrix.column_names[j]} = {float(whole[j])!r}" for j in group.columns)
            return whole, f"set {group.name} of kind {group.kind} has too many columns that differ from 0: {values}"
    return whole, ""
