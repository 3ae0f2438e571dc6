"""What a solve gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from coralopt.display import Shown
from coralopt.errors import NoSolutionError
from coralopt.solving.backend import Basis
from coralopt.solving.certificate import ClaimCertificate
from coralopt.solving.options import OptionValue
from coralopt.solving.status import Proof, Termination
from coralopt.types import Floats

A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class Solution(Shown, Generic[A]):
    """A checked answer and how good it is.

    Attributes:
        answer: In the problem's terms; ``None`` unless the reason is OPTIMAL or FEASIBLE.
        termination: Reason, limit, the solver's own words.
        objective: Exact re-evaluation of the answer by the problem's check; NaN without an answer.
        bound: Proven bound; infinite in the weak direction when unknown, ``None`` when infeasible.
        gap: abs(objective - bound) / abs(objective); infinite without an answer.
        requested_gap: Relative gap asked for.
        solver: Name of the back end.
        formulation: Name of the formulation, empty for solvers that take whole problems.
        seconds: Seconds by step: ``build``, ``handover``, ``solve``, ``check``.
        nodes: Branch-and-bound nodes.
        iterations: Simplex iterations.
        requested: Options asked for.
        effective: Options in force, in the solver's own names.
        shape: (rows, columns) of the matrix, ``None`` for solvers that take whole problems.
        start_accepted: Whether a start was taken; ``None`` when none was given or it is unknown.
        row_duals, reduced_costs: float64 (m,) and (n,), of a linear programme, by rows and columns of the matrix.
        grounds: What the claim rests on, or what it takes to find out; see :attr:`proof`.
    """

    answer: A | None
    termination: Termination
    objective: float
    bound: float | None
    gap: float
    requested_gap: float
    solver: str
    formulation: str
    seconds: Mapping[str, float]
    nodes: int = 0
    iterations: int = 0
    requested: Mapping[str, object] = field(default_factory=dict)
    effective: Mapping[str, OptionValue] = field(default_factory=dict)
    shape: tuple[int, int] | None = None
    start_accepted: bool | None = None
    row_duals: Floats | None = None
    reduced_costs: Floats | None = None
    grounds: Proof | ClaimCertificate = Proof.SOLVER

    @cached_property
    def proof(self) -> Proof:
        """What the claim rests on; made when it is asked for."""
        return self.grounds if isinstance(self.grounds, Proof) else self.grounds.proof()

    def __repr__(self) -> str:
        return (
            f"<Solution {self.termination.reason.value} by {self.solver}: objective {self.objective:.10g}, "
            f"bound {self.bound if self.bound is None else format(self.bound, '.10g')}, gap {self.gap:.3g}>"
        )

    def require_solution(self) -> A:
        """The answer.

        Raises:
            NoSolutionError: There is none; carries this result.
        """
        if self.answer is None:
            limit = f", limit: {self.termination.limit.value}" if self.termination.limit else ""
            raise NoSolutionError(
                f"solver {self.solver!r} gave no solution: {self.termination.reason.value}{limit} "
                f"(its own words: {self.termination.raw})",
                self,
            )
        return self.answer


@dataclass(frozen=True, eq=False)
class MatrixResult:
    """Result of solving a bare matrix: like :class:`Solution`, with the column values and LP duals.

    Attributes:
        x: float64 (n,) or ``None``; integer columns hold whole numbers.
        row_duals: float64 (m,) for an LP: d objective / d right-hand side, for min and max alike.
        reduced_costs: float64 (n,) for an LP: c - A'y.
        unit: Size of an ordinary objective, in which tolerances on it count.
        grounds: What the claim rests on, or what it takes to find out; see :attr:`proof`.
        basis: Of an LP with an optimum, where the back end tells; a start for the next one.
        pool: Checked solutions, best first, as many as the option ``solutions`` asks for and there are.
    """

    x: Floats | None
    termination: Termination
    objective: float
    bound: float | None
    gap: float
    row_duals: Floats | None
    reduced_costs: Floats | None
    nodes: int
    iterations: int
    effective: Mapping[str, OptionValue]
    handover_seconds: float
    solve_seconds: float
    start_accepted: bool | None = None
    check_seconds: float = 0.0
    unit: float = 1.0
    grounds: Proof | ClaimCertificate = Proof.SOLVER
    basis: Basis | None = None
    pool: tuple[Floats, ...] = ()

    @cached_property
    def proof(self) -> Proof:
        """What the claim rests on; made when it is asked for."""
        return self.grounds if isinstance(self.grounds, Proof) else self.grounds.proof()
