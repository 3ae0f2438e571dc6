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
from typing import Any

import numpy as np

from coralopt.allocation.check import check_allocation
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.side_constraints import SideRow
from coralopt.solving import Check
from coralopt.types import Ints

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
        whole = {item.name: getattr(problem, item.name) for item in fields(AllocationProblem)}
        whole.update(
            usage=problem.usage[templates],
            throughput=problem.throughput[templates],
            phase=problem.phase[templates],
            running=None if problem.running is None else problem.running[templates],
        )
        return Part(**whole, floor=floor, margin=margin)

    def raised(self) -> AllocationProblem:
        """The plain problem with its demand raised by the margin."""
        plain = AllocationProblem(**{item.name: getattr(self, item.name) for item in fields(AllocationProblem)})
        if not self.margin:
            return plain
        demand = plain.demand * (1 + self.margin)
        alone = plain.throughput >= plain.demand[plain.phase]
        throughput = np.where(alone, np.maximum(plain.throughput, demand[plain.phase]), plain.throughput)
        return replace(plain, demand=demand, throughput=throughput, rows=eased_rows(plain.rows, -self.margin))

    def formulations(self) -> Mapping[str, Any]:
        """The formulations of the plain problem, with the floor as one more row."""
        return {name: _Floored(name, inner) for name, inner in super().formulations().items()}

    def check(self, answer: Allocation) -> Check:
        """Feasibility with every demand and limit on USD/h eased by ``TOLERANCE``; the true cost."""
        eased = replace(self, demand=self.demand * (1 - TOLERANCE), rows=eased_rows(self.rows, TOLERANCE))
        found = check_allocation(eased, answer)
        return (
            found
            if self.shortfall_price is None
            else replace(found, objective=check_allocation(self, answer).objective)
        )


def eased_rows(rows: tuple[SideRow, ...], share: float) -> tuple[SideRow, ...]:
    """Limits on USD/h moved by a share; nodes and instances are whole numbers, tokens/s move with the demand."""
    return tuple(replace(row, bound=row.bound * (1 + share)) if row.measure == "usd_h" else row for row in rows)


@dataclass(frozen=True)
class _Floored:
    name: str
    inner: Any

    def build(self, problem: Part) -> Any:
        import pyomo.environ as pyo

        model = self.inner.build(problem.raised())
        if problem.floor > 0:
            model.floor = pyo.Constraint(expr=model.objective.expr >= problem.floor)
        return model

    def read(self, problem: Part, value: Callable[[str, Any], float]) -> Allocation:
        answer: Allocation = self.inner.read(problem.raised(), value)
        return answer
