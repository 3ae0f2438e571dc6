"""The allocation ILP as the paper prints it (section 4.3).

::

    min  sum_r sum_tau [ p_r(tau) nu[tau,r] + I[tau,r] ]
    s.t. sum_tau U_c(tau) nu[tau,r] <= A_r(c)                         for every region r, configuration c
         sum_r sum_{tau of m} T(tau) nu[tau,r] >= T_m                 for every model phase m
         I[tau,r] >= (nu[tau,r] - nu'[tau,r]) p_r(tau) K              for every template tau, region r
         nu integer >= 0, I >= 0

Where nodes of new instances are limited, ``fresh[tau,r]`` >= nu - nu' counts those of pairs that run.

``nu[tau,r]``: instances of template tau in region r; ``I``: its initialization penalty in USD/h. Pairs that do not
fit into the region once, or use a configuration without a price there, have nu = 0 and no column. Supply classes,
side constraints and unmet demand add what :mod:`coralopt.allocation.model.pyomo_rows` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from coralopt.allocation.model.columns import usable
from coralopt.allocation.model.pyomo_rows import add_rows
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.solving.problem import VariableIndex


class PaperAllocation:
    """The paper's ILP with its penalty columns and rows; the module docstring has its mathematics."""

    name: ClassVar[str] = "paper"

    def build(self, problem: AllocationProblem) -> Any:
        """Pyomo model with ``nu``, ``I``, ``capacity``, ``demand``, ``initialization``."""
        import pyomo.environ as pyo
        from pyomo.core.expr.numeric_expr import LinearExpression

        template, region, rent, _ = usable(problem)
        listed = problem.template_price()
        pairs = list(zip(template.tolist(), region.tolist(), strict=True))
        model = pyo.ConcreteModel(name="allocation_paper")
        model.nu = pyo.Var(pairs, domain=pyo.NonNegativeIntegers)
        model.I = pyo.Var(pairs, domain=pyo.NonNegativeReals)
        fresh = {pair: model.nu[pair] for pair in pairs}
        if problem.running is not None and any(item.measure == "new_nodes" for item in problem.side_constraints):
            known = [pair for pair in pairs if problem.running[pair]]
            model.fresh = pyo.Var(known, domain=pyo.NonNegativeReals)
            model.started = pyo.Constraint(known)
            for pair in known:
                fresh[pair] = model.fresh[pair]
                model.started[pair] = model.fresh[pair] >= model.nu[pair] - int(problem.running[pair])
        costs, paid = add_rows(model, problem, [(t, r, model.nu[t, r]) for t, r in pairs], fresh)
        model.initialization = pyo.Constraint(pairs)
        for t, r in pairs:
            running = 0 if problem.running is None else int(problem.running[t, r])
            rate = float(listed[t, r]) * float(problem.penalties[t])
            body = LinearExpression(constant=0, linear_coefs=[1.0, -rate], linear_vars=[model.I[t, r], model.nu[t, r]])
            model.initialization[t, r] = body >= -running * rate
        model.objective = pyo.Objective(
            expr=LinearExpression(
                constant=0,
                linear_coefs=[*rent.tolist(), *([1.0] * len(pairs)), *costs],
                linear_vars=[*(model.nu[pair] for pair in pairs), *(model.I[pair] for pair in pairs), *paid],
            )
        )
        return model

    def read(self, problem: AllocationProblem, value: Callable[[str, VariableIndex], float]) -> Allocation:
        """The allocation that ``nu`` says."""
        template, region, _, _ = usable(problem)
        pairs = zip(template.tolist(), region.tolist(), strict=True)
        return Allocation.of({pair: round(value("nu", pair)) for pair in pairs})
