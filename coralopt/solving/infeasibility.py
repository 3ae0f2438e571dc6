"""Why a model has no solution: an irreducible conflict, and the smallest relaxation that would make it feasible.

A *conflict* is a set of row sides and column bounds that no point satisfies together, while any of them may be dropped
to leave a feasible rest. A back end's own search (capability ``conflict``) makes the first guess where there is one; a
deletion filter, which solves the model once a member, makes it irreducible and proves it (Chinneck and Dravnieks, 1991).

The *smallest relaxation* lets chosen rows be missed at a price: min sum of w_i s_i with s_i >= 0 added to each side.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving.backend import Backend, Capability, ConflictBackend, Member
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.registry import require_backend
from coralopt.solving.solve_matrix import solve_matrix
from coralopt.solving.status import Reason
from coralopt.types import Floats


@dataclass(frozen=True)
class Conflict:
    """Row sides and column bounds that cannot hold together.

    Attributes:
        rows: (row name, ``"lower"`` or ``"upper"``).
        bounds: (column name, ``"lower"`` or ``"upper"``).
        irreducible: Whether every member is needed; ``False`` when time ran out before that was shown.
        seconds: Wall time.
    """

    rows: tuple[tuple[str, str], ...]
    bounds: tuple[tuple[str, str], ...]
    irreducible: bool
    seconds: float


@dataclass(frozen=True)
class SmallestRelaxation:
    """The cheapest way to make a model feasible.

    Attributes:
        amounts: Row name -> by how much a side must be moved; rows that may stay are absent.
        total: Weighted sum of the amounts.
        bound: Proven lower bound of that sum.
    """

    amounts: Mapping[str, float]
    total: float
    bound: float


def find_conflict(
    matrix: MilpMatrix, solver: str | Backend = "highs", options: SolveOptions | None = None, *, native: bool = True
) -> Conflict:
    """An irreducible conflict of an infeasible model.

    Args:
        matrix: The model.
        solver: Name of a back end or a back end itself.
        options: ``time_limit`` is for the whole search, which then returns what it has.
        native: ``False`` leaves the back end's own search out.

    Raises:
        SolverError: The model is feasible, or the back end cannot tell.
        UnsupportedError: It has sets, indicators or semi-continuous columns, which are no sides of rows.
    """
    _refuse_parts(matrix)
    begun = time.perf_counter()
    options = options or SolveOptions()
    backend = require_backend(solver)
    everything = _members(matrix)

    def infeasible(members: Sequence[Member]) -> bool:
        left = None if options.time_limit is None else max(0.1, options.time_limit - (time.perf_counter() - begun))
        result = solve_matrix(_only(matrix, members), backend, replace(options, time_limit=left))
        return result.termination.reason is Reason.INFEASIBLE

    if not infeasible(everything):
        raise SolverError(f"solver {backend.name!r} does not find the model infeasible, so there is no conflict")
    kept = list(everything)
    if native and Capability.CONFLICT in backend.capabilities and isinstance(backend, ConflictBackend):
        guess = [member for member in backend.conflict(matrix, options) if member in set(everything)]
        # A guess that is feasible by itself is no conflict, whoever made it.
        kept = guess if guess and infeasible(guess) else kept
    irreducible = True
    step = max(1, len(kept) // 2)
    while step >= 1:
        position = 0
        while position < len(kept):
            if options.time_limit is not None and time.perf_counter() - begun > options.time_limit:
                irreducible = False
                break
            rest = kept[:position] + kept[position + step :]
            if infeasible(rest):
                kept = rest
            else:
                position += step
        if not irreducible or step == 1:
            break
        step //= 2
    return Conflict(
        rows=tuple((matrix.row_names[i], side) for kind, i, side in kept if kind == "row"),
        bounds=tuple((matrix.column_names[j], side) for kind, j, side in kept if kind == "column"),
        irreducible=irreducible,
        seconds=time.perf_counter() - begun,
    )


def smallest_relaxation(
    matrix: MilpMatrix,
    solver: str | Backend = "highs",
    options: SolveOptions | None = None,
    weights: Mapping[str, float] | None = None,
) -> SmallestRelaxation:
    """The least weighted sum of violations over all points within the column bounds.

    Args:
        matrix: The model; its objective does not count.
        solver: Name of a back end or a back end itself.
        options: Common options.
        weights: Row name -> price of moving one of its sides by 1; rows left out may not move. ``None`` is 1 for all.

    Raises:
        SolverError: Even so there is no solution, or a limit came first.
        UnsupportedError: It has sets, indicators or semi-continuous columns, which are no sides of rows.
    """
    _refuse_parts(matrix)
    from scipy.sparse import csc_array, hstack

    rows, columns = matrix.shape
    price = np.array([1.0 if weights is None else weights.get(name, np.nan) for name in matrix.row_names])
    lower = np.flatnonzero(np.isfinite(matrix.row_lower) & ~np.isnan(price))
    upper = np.flatnonzero(np.isfinite(matrix.row_upper) & ~np.isnan(price))
    moved = np.concatenate([lower, upper])
    signs = np.concatenate([np.ones(len(lower)), -np.ones(len(upper))])
    slacks = csc_array((signs, (moved, np.arange(len(moved)))), shape=(rows, len(moved)))
    elastic = MilpMatrix(
        c=np.concatenate([np.zeros(columns), price[moved]]),
        offset=0.0,
        a=hstack([matrix.a, slacks]).tocsc(),
        row_lower=matrix.row_lower,
        row_upper=matrix.row_upper,
        lower=np.concatenate([matrix.lower, np.zeros(len(moved))]),
        upper=np.concatenate([matrix.upper, np.full(len(moved), np.inf)]),
        integer=np.concatenate([matrix.integer, np.zeros(len(moved), dtype=np.bool_)]),
        maximize=False,
        column_names=[*matrix.column_names, *(f"slack{k}" for k in range(len(moved)))],
        row_names=matrix.row_names,
    )
    result = solve_matrix(elastic, solver, options)
    if result.x is None or result.bound is None:
        raise SolverError(
            f"no relaxation of these rows was found ({result.termination.reason.value}: {result.termination.raw}); "
            "let more rows move, or raise time_limit"
        )
    # What the point itself misses, not what the solver's tolerances let the slacks be.
    point = np.where(matrix.integer, np.rint(result.x[:columns]), result.x[:columns])
    activity = matrix.a @ point
    missing = np.maximum(np.maximum(matrix.row_lower - activity, activity - matrix.row_upper), 0.0)
    free = ~np.isnan(price)
    amounts: dict[str, float] = {}
    for row in np.flatnonzero(free & (missing > 1e-9)).tolist():
        amounts[matrix.row_names[row]] = amounts.get(matrix.row_names[row], 0.0) + float(missing[row])
    total = float(price[free] @ missing[free])
    return SmallestRelaxation(amounts, total, min(result.bound, total))


def _refuse_parts(matrix: MilpMatrix) -> None:
    if matrix.extras.discrete:
        raise UnsupportedError("rows that cannot hold together are told apart only where all parts are linear")


def _sides(matrix: MilpMatrix) -> dict[tuple[str, str], Floats]:
    """The four vectors of sides and bounds by kind and side, columns first."""
    return {
        ("column", "lower"): matrix.lower,
        ("column", "upper"): matrix.upper,
        ("row", "lower"): matrix.row_lower,
        ("row", "upper"): matrix.row_upper,
    }


def _members(matrix: MilpMatrix) -> list[Member]:
    """All finite sides; bounds first, so that they are dropped first: a conflict of few rows says more."""
    sides = _sides(matrix).items()
    return [(kind, int(k), side) for (kind, side), values in sides for k in np.flatnonzero(np.isfinite(values))]


def _only(matrix: MilpMatrix, members: Sequence[Member]) -> MilpMatrix:
    """The model with these sides and no others, and without an objective."""
    whole = _sides(matrix)
    kept = {key: np.full_like(values, -np.inf if key[1] == "lower" else np.inf) for key, values in whole.items()}
    for kind, position, side in members:
        kept[kind, side][position] = whole[kind, side][position]
    return replace(
        matrix,
        c=np.zeros_like(matrix.c),
        offset=0.0,
        row_lower=kept["row", "lower"],
        row_upper=kept["row", "upper"],
        lower=kept["column", "lower"],
        upper=kept["column", "upper"],
    )
