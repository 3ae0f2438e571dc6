"""A part of an allocation problem on its way to a back end: fewer templates, a known bound, room for rounding.

Three things separate it from a problem of its own:

- ``floor``: no allocation of the *whole* problem costs less. The row ``objective >= floor`` is then valid, and lets a
  back end stop as soon as its incumbent is within the gap of the floor instead of proving the floor again.
- Its own check lets a demand row be missed by ``TOLERANCE``, as back ends do; the caller holds the answer against the
  exact problem. A bound from it stands, since it allows more.
- ``margin``: demand rows raised by this share, to ask again for an answer that does not need the tolerance. Templates
  that serve a whole demand alone keep doing so. A bound from a part with a margin says nothing about the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.check import check_allocation
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions.chain import some_templates
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.solving import Check, Formulation, MilpMatrix
from coralopt.solving.problem import ArrayFormulation, VariableIndex
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel

#: Largest share of a demand that back ends may miss within their feasibility tolerances.
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Part(AllocationProblem):
    """A problem over some templates of another one; the module docstring says what sets it apart.

    Attributes:
        floor: USD/h; a lower bound on the cost of the whole problem, 0 for none.
        margin: Share by which the demand rows are raised.
    """

    floor: float = 0.0
    margin: float = 0.0

    @staticmethod
    def of(problem: AllocationProblem, templates: Ints, floor: float = 0.0, margin: float = 0.0) -> Part:
        """The part over the given templates, which become its templates 0, 1, ..."""
        some = some_templates(problem, templates)
        return Part(
            **{item.name: getattr(some, item.name) for item in fields(AllocationProblem)}, floor=floor, margin=margin
        )

    def raised(self) -> AllocationProblem:
        """The plain problem with its demand raised by the margin."""
        plain = AllocationProblem(**{item.name: getattr(self, item.name) for item in fields(AllocationProblem)})
        if not self.margin:
            return plain
        demand = plain.demand * (1 + self.margin)

        def still_alone(tokens_s: Floats, phase: npt.NDArray[np.int32]) -> Floats:
            return np.where(tokens_s >= plain.demand[phase], np.maximum(tokens_s, demand[phase]), tokens_s)

        return replace(
            plain.with_throughputs(still_alone),
            demand=demand,
            side_constraints=eased_limits(plain.side_constraints, -self.margin),
        )

    # Its own formulations take parts, not the problems of the base class.
    def formulations(self) -> Mapping[str, Formulation[Any, Allocation]]:
        """The formulations of the plain problem, with the floor as one more row."""
        return {
            name: (_FlooredArrays if isinstance(inner, ArrayFormulation) else _Floored)(name, inner)
            for name, inner in super().formulations().items()
        }

    def check(self, answer: Allocation) -> Check:
        """Feasibility with every demand and limit on USD/h eased by ``TOLERANCE``; the true cost."""
        limits = eased_limits(self.side_constraints, TOLERANCE)
        eased = replace(self, demand=self.demand * (1 - TOLERANCE), side_constraints=limits)
        check = check_allocation(eased, answer)
        if self.unmet_price is None and not self.routes:
            return check
        return replace(check, objective=check_allocation(self.raised(), answer).objective)


def eased_limits(constraints: tuple[SideConstraint, ...], share: float) -> tuple[SideConstraint, ...]:
    """Limits on USD/h moved by a share; nodes and instances are whole numbers, tokens/s move with the demand."""
    return tuple(
        replace(item, bound=item.bound * (1 + share)) if item.measure == "usd_h" else item for item in constraints
    )


@dataclass(frozen=True)
class _Floored:
    name: str
    inner: Formulation[AllocationProblem, Allocation]

    def build(self, problem: Part) -> ConcreteModel:
        import pyomo.environ as pyo

        model = self.inner.build(problem.raised())
        if problem.floor > 0:
            model.floor = pyo.Constraint(expr=model.objective.expr >= problem.floor)
        return model

    def read(self, problem: Part, value: Callable[[str, VariableIndex], float]) -> Allocation:
        return self.inner.read(problem.raised(), value)


class _FlooredArrays(_Floored):
    """The same for a formulation that needs no Pyomo, whose import takes longer than most parts."""

    inner: ArrayFormulation[AllocationProblem, Allocation]

    def matrix(self, problem: Part) -> MilpMatrix:
        from scipy.sparse import csr_array, vstack

        matrix = self.inner.matrix(problem.raised())
        if problem.floor <= 0:
            return matrix
        return replace(
            matrix,
            a=vstack([matrix.a, csr_array(matrix.c[None, :])]).tocsc(),
            row_lower=np.append(matrix.row_lower, problem.floor - matrix.offset),
            row_upper=np.append(matrix.row_upper, np.inf),
            row_names=[*matrix.row_names, "floor"],
        )

    def read_columns(self, problem: Part, x: Floats) -> Allocation:
        return self.inner.read_columns(problem.raised(), x)
