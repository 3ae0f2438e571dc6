"""Looking over a solve's shoulder: its incumbents, its seconds, and the same model in another order.

Solvers react to the order of rows and columns by tens of percent to orders of magnitude (performance variability), so
every seed but the first one also permutes the matrix. Both happen around the back end, where neither formulation nor
solver can tell.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.solving import (
    Availability,
    Capability,
    Check,
    MatrixBackend,
    MilpMatrix,
    RawResult,
    SolveOptions,
    SolveProgress,
)
from coralopt.types import Floats

#: Told the objective of every better incumbent.
Tell = Callable[[float], None]


class ObservedBackend:
    """A matrix back end that adds up seconds, tells incumbents, and permutes its matrices.

    Attributes:
        seconds: ``handover`` and ``solve``, summed over all calls, and ``permute``, which is no work of the arm's.

    ``begins`` is called whenever a matrix is about to be handed over.
    """

    kind = "matrix"

    def __init__(
        self, inner: MatrixBackend, permute: int | None, tell: Tell | None, begins: Callable[[], None] = lambda: None
    ) -> None:
        self._inner, self._permute, self._tell, self._begins = inner, permute, tell, begins
        self.name = inner.name
        # What speaks of single rows and columns is not told in another order.
        self.capabilities = inner.capabilities - {Capability.LP_BASIS, Capability.LAZY, Capability.POOL}
        self.seconds = {"handover": 0.0, "solve": 0.0, "permute": 0.0}

    def probe(self) -> Availability:
        """What the back end itself says."""
        return self._inner.probe()

    def solve(
        self,
        matrix: MilpMatrix,
        options: SolveOptions,
        *,
        start: Floats | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
    ) -> RawResult:
        """Solve as the back end does, in permuted order."""
        begun = time.perf_counter()
        order = None if self._permute is None else Permutation.of(matrix, self._permute)
        permuted = matrix if order is None else order.apply(matrix)
        permuted_start = start if order is None or start is None else start[order.columns]
        self.seconds["permute"] += time.perf_counter() - begun
        listen = on_progress if self._tell is None or not matrix.is_mip else self._heard(on_progress)
        if Capability.PROGRESS not in self.capabilities:
            listen = None
        self._begins()
        raw = self._inner.solve(permuted, options, start=permuted_start, on_progress=listen)
        self.seconds["handover"] += raw.handover_seconds
        self.seconds["solve"] += raw.solve_seconds
        return raw if order is None else order.undo(raw)

    def _heard(self, also: Callable[[SolveProgress], None] | None) -> Callable[[SolveProgress], None]:
        def listen(event: SolveProgress) -> None:
            if event.objective is not None and self._tell is not None:
                self._tell(event.objective)
            if also is not None:
                also(event)

        return listen


@dataclass(frozen=True, eq=False)
class Permutation:
    """Another order of the same rows and columns."""

    rows: np.ndarray
    columns: np.ndarray

    @staticmethod
    def of(matrix: MilpMatrix, seed: int) -> Permutation:
        """The order that ``seed`` draws."""
        rng = np.random.default_rng(seed)
        rows, columns = matrix.shape
        return Permutation(rng.permutation(rows), rng.permutation(columns))

    def apply(self, matrix: MilpMatrix) -> MilpMatrix:
        """The matrix in this order."""
        return replace(
            matrix,
            c=matrix.c[self.columns],
            a=matrix.a.tocsr()[self.rows].tocsc()[:, self.columns],
            row_lower=matrix.row_lower[self.rows],
            row_upper=matrix.row_upper[self.rows],
            lower=matrix.lower[self.columns],
            upper=matrix.upper[self.columns],
            integer=matrix.integer[self.columns],
            column_names=[matrix.column_names[k] for k in self.columns],
            row_names=[matrix.row_names[k] for k in self.rows],
            extras=matrix.extras.permuted(self.rows, self.columns),
        )

    def undo(self, raw: RawResult) -> RawResult:
        """A result of the permuted matrix in the order of the original one."""
        return replace(
            raw,
            x=_back(raw.x, self.columns),
            reduced_costs=_back(raw.reduced_costs, self.columns),
            row_duals=_back(raw.row_duals, self.rows),
        )


def _back(values: Floats | None, order: np.ndarray) -> Floats | None:
    if values is None or np.shape(values) != order.shape:
        return values  # of the wrong length: for the core to refuse
    original = np.empty_like(np.asarray(values, dtype=np.float64))
    original[order] = values
    return original


@dataclass(frozen=True, eq=False)
class ObservedAllocation(AllocationProblem):
    """An allocation problem that tells the cost of every allocation that passes its exact check.

    With reductions the back end solves parts of the problem, whose incumbents mean little; what the search itself
    checks and keeps are allocations of the whole.
    """

    tell: Tell = field(default=lambda _: None)

    @staticmethod
    def of(problem: AllocationProblem, tell: Tell) -> ObservedAllocation:
        """The same problem, observed."""
        parts = {item.name: getattr(problem, item.name) for item in fields(AllocationProblem)}
        return ObservedAllocation(**parts, tell=tell)

    def check(self, answer: Allocation) -> Check:
        """The exact check, told when it passes."""
        check = super().check(answer)
        if check.feasible and math.isfinite(check.objective):
            self.tell(check.objective)
        return check
