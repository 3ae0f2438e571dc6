"""The integer programme over GPU combos that the planner ``cauchy`` solves: plain data, two formulations, a checker.

A combo is one prefill replica and k >= 1 decode replicas of one model in one region, each replica homogeneous. It serves
g requests/s, the less of what its prefill replica and its decode replicas can, for c USD/h; its cost efficiency is
eta = g * (input + output tokens) * 3600 / c, Token/USD. With n[k] combos of kind k::

    min  sum_k n[k] w[k]
    s.t. sum_{k of m} g[k] n[k] >= G_m                     for every model m, requests/s
         sum_k U[k, r, c] n[k] <= A_r(c)                   for every region r, node configuration c
         n integer >= 0

The weight w is the objective: ``efficiency`` has w = c * (eta*_m / eta), the price of a combo, raised by how far it lies
below the best of its model; ``cost`` has w = c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coralopt.errors import SolverError
from coralopt.solving import Check, Formulation, Violation
from coralopt.solving.problem import VariableIndex
from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from pyomo.core.expr.numeric_expr import LinearExpression as Linear
    from pyomo.environ import ConcreteModel

OBJECTIVES = ("efficiency", "cost")


@dataclass(frozen=True, eq=False)
class ComboProblem:
    """How many of each GPU combo to deploy.

    Attributes:
        price: float64 (K,), USD/h of a combo.
        goodput: float64 (K,), requests/s of a combo, positive.
        efficiency: float64 (K,), Token/USD of a combo, positive.
        model: int64 (K,), model that a combo serves.
        usage: int64 (K, R * C), nodes of each region and configuration.
        demand: float64 (M,), requests/s.
        availability: int64 (R * C,), nodes.
        objective: ``"efficiency"`` or ``"cost"``.

    Raises:
        SolverError: The parts do not fit together.
    """

    price: Floats
    goodput: Floats
    efficiency: Floats
    model: Ints
    usage: Ints
    demand: Floats
    availability: Ints
    objective: str = "efficiency"

    kind: ClassVar[str] = "combos"
    sense: ClassVar[Literal["min", "max"]] = "min"
    default_formulation: ClassVar[str] = "combos"

    def __post_init__(self) -> None:
        combos = len(self.price)
        if not all(len(part) == combos for part in (self.goodput, self.efficiency, self.model, self.usage)):
            raise SolverError("price, goodput, efficiency, model and usage must have one entry a combo")
        if self.usage.ndim != 2 or self.usage.shape[1] != len(self.availability):
            raise SolverError(f"usage has shape {self.usage.shape}, availability {self.availability.shape}")
        if self.objective not in OBJECTIVES:
            raise SolverError(f"objective is {self.objective!r}; choose one of: {', '.join(OBJECTIVES)}")
        if combos and min(self.goodput.min(), self.efficiency.min()) <= 0:
            raise SolverError("goodput and efficiency of a combo must be positive")

    def weights(self) -> Floats:
        """float64 (K,): cost of one combo in the objective."""
        if self.objective == "cost":
            return self.price
        best = np.zeros(len(self.demand))
        np.maximum.at(best, self.model, self.efficiency)
        weights: Floats = self.price * (best[self.model] / self.efficiency)
        return weights

    def formulations(self) -> Mapping[str, Formulation[ComboProblem, Ints]]:
        """Formulations by name."""
        return {"combos": ComboFormulation()}

    def check(self, answer: Ints) -> Check:
        """Demand and capacity in exact arithmetic, and the objective."""
        wrong = []
        if len(answer) != len(self.price) or (answer < 0).any():
            return Check.no_answer("one count of at least 0 a combo is expected")
        for m, demand in enumerate(self.demand.tolist()):
            mine = np.flatnonzero((self.model == m) & (answer > 0))
            served = sum((int(answer[k]) * Fraction(float(self.goodput[k])) for k in mine), Fraction(0))
            if served < Fraction(demand):
                text = f"model {m} gets {float(served)!r} requests/s, its demand is {demand!r}"
                wrong.append(Violation("demand", f"model {m}", text))
        used = answer @ self.usage
        wrong += [
            Violation(
                "capacity",
                f"place {place}",
                f"{used[place]} nodes in place {place}, {self.availability[place]} are available",
            )
            for place in np.flatnonzero(used > self.availability).tolist()
        ]
        weights = self.weights()
        value = sum((int(answer[k]) * Fraction(float(weights[k])) for k in np.flatnonzero(answer)), Fraction(0))
        return Check(not wrong, float(value), tuple(wrong))


class ComboFormulation:
    """The programme of the module docstring."""

    name: ClassVar[str] = "combos"

    def build(self, problem: ComboProblem) -> ConcreteModel:
        """Pyomo model with ``n``, ``goodput``, ``capacity``."""
        import pyomo.environ as pyo
        from pyomo.core.expr.numeric_expr import LinearExpression

        combos = range(len(problem.price))
        model = pyo.ConcreteModel(name="cauchy_combos")
        model.n = pyo.Var(combos, domain=pyo.NonNegativeIntegers)

        def row(indices: list[int], coefficients: list[float]) -> Linear:
            return LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=[model.n[k] for k in indices])

        model.goodput = pyo.Constraint(range(len(problem.demand)))
        for m, demand in enumerate(problem.demand.tolist()):
            mine = np.flatnonzero(problem.model == m).tolist()
            if demand <= 0:
                continue
            if not mine:
                model.nothing_serves = pyo.Var(bounds=(0, 0))
                model.goodput[m] = model.nothing_serves >= demand
                break
            # In units of the demand: rates of some requests/s beside prices of some USD/h.
            model.goodput[m] = row(mine, (problem.goodput[mine] / demand).tolist()) >= 1
        model.capacity = pyo.Constraint(range(len(problem.availability)))
        for place, have in enumerate(problem.availability.tolist()):
            users = np.flatnonzero(problem.usage[:, place]).tolist()
            if users:
                model.capacity[place] = row(users, problem.usage[users, place].astype(float).tolist()) <= have
        model.objective = pyo.Objective(expr=row(list(combos), problem.weights().tolist()))
        return model

    def read(self, problem: ComboProblem, value: Callable[[str, VariableIndex], float]) -> Ints:
        """Counts by combo."""
        return np.array([round(value("n", k)) for k in range(len(problem.price))], dtype=np.int64)
