"""What a compliance case is, and the small matrices that cases share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.solving import Capability, MatrixBackend, MilpMatrix
from coralopt.types import Floats

INFINITY = float("inf")
#: What a case does with a back end: raises ``AssertionError`` (or lets an error of coralopt through) when it is not right.
Check = Callable[[MatrixBackend], None]


@dataclass(frozen=True)
class Case:
    """One thing that every back end must do right.

    Attributes:
        name: Short, in words with underscores.
        check: What is done with a back end.
        needs: Capabilities without which the case does not apply.
        why: What goes wrong for users when this fails.
    """

    name: str
    check: Check
    needs: frozenset[Capability]
    why: str


CASES: list[Case] = []


def case(*needs: Capability) -> Callable[[Check], Check]:
    """Register a case; its name is the function's, its reason the docstring."""

    def register(check: Check) -> Check:
        CASES.append(Case(check.__name__, check, frozenset(needs), (check.__doc__ or "").strip()))
        return check

    return register


def matrix(
    c: Sequence[float],
    rows: Sequence[tuple[Sequence[float], float, float]] = (),
    bounds: Sequence[tuple[float, float]] | tuple[float, float] = (0.0, INFINITY),
    integer: bool | Sequence[bool] = True,
    maximize: bool = False,
    offset: float = 0.0,
) -> MilpMatrix:
    """A matrix from plain lists: objective, (coefficients, lower, upper) a row, bounds a column or one pair for all."""
    from scipy.sparse import csc_array

    columns = len(c)
    pairs = [bounds] * columns if isinstance(bounds, tuple) else list(bounds)
    dense = np.array([row[0] for row in rows], dtype=np.float64).reshape(len(rows), columns)
    return MilpMatrix(
        c=np.array(c, dtype=np.float64),
        offset=offset,
        a=csc_array(dense),
        row_lower=np.array([row[1] for row in rows], dtype=np.float64),
        row_upper=np.array([row[2] for row in rows], dtype=np.float64),
        lower=np.array([pair[0] for pair in pairs], dtype=np.float64),
        upper=np.array([pair[1] for pair in pairs], dtype=np.float64),
        integer=np.broadcast_to(np.asarray(integer, dtype=np.bool_), (columns,)).copy(),
        maximize=maximize,
        column_names=[f"x{j}" for j in range(columns)],
        row_names=[f"row{i}" for i in range(len(rows))],
    )


def knapsack(maximize: bool = True, items: int = 14, seed: int = 7, offset: float = 0.0) -> MilpMatrix:
    """Binary knapsack with two weights; ``maximize=False`` is the same problem with the objective turned round."""
    rng = np.random.default_rng(seed)
    value = rng.integers(10, 60, items)
    weights = rng.integers(5, 40, (2, items))
    rows = [(row.tolist(), -INFINITY, float(row.sum() // 2)) for row in weights]
    c = value if maximize else -value
    return matrix(c.tolist(), rows, (0.0, 1.0), maximize=maximize, offset=offset)


def best_by_enumeration(programme: MilpMatrix) -> float | None:
    """Optimum over all points of a small box of whole numbers; ``None`` when no point is feasible."""
    ranges = [np.arange(low, high + 1) for low, high in zip(programme.lower, programme.upper, strict=True)]
    points = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))
    activity = points @ programme.a.toarray().T
    good = ((activity >= programme.row_lower - 1e-9) & (activity <= programme.row_upper + 1e-9)).all(axis=1)
    if not good.any():
        return None
    values = points[good] @ programme.c + programme.offset
    return float(values.max() if programme.maximize else values.min())


def market_split(rows: int = 5, seed: int = 3) -> MilpMatrix:
    """A market split problem with slack: easy to satisfy, out of reach to prove within seconds.

    min sum of slacks subject to A x + s+ - s- = half of the row sums, x binary (Cornuejols and Dawande, 1998). All figures
    are whole, and so are slacks; they are bounded, so that solvers of bounded whole numbers take it, too.
    """
    rng = np.random.default_rng(seed)
    binaries = 10 * (rows - 1)
    a = rng.integers(0, 100, (rows, binaries))
    identity = np.eye(rows)
    entries = np.hstack([a, identity, -identity])
    half = a.sum(axis=1) // 2
    bounds = [(0.0, 1.0)] * binaries + [(0.0, float(a.sum(axis=1).max()))] * (2 * rows)
    return matrix(
        [0.0] * binaries + [1.0] * (2 * rows),
        [(row.tolist(), float(right), float(right)) for row, right in zip(entries, half, strict=True)],
        bounds,
    )


def trivial_start(programme: MilpMatrix) -> Floats:
    """A feasible point of :func:`market_split`: nothing chosen, slack everywhere."""
    rows, columns = programme.shape
    start = np.zeros(columns)
    start[columns - 2 * rows : columns - rows] = programme.row_lower
    return start
