"""Capacity and demand rows, shared by the Pyomo formulations."""

from __future__ import annotations

from typing import Any

import numpy as np

from coralopt.allocation.problem import AllocationProblem

#: One column as formulations see it: template, region, Pyomo variable.
Column = tuple[int, int, Any]


def add_rows(model: Any, problem: AllocationProblem, columns: list[Column]) -> None:
    """Add ``model.capacity[r, c]`` and ``model.demand[p]`` over the given columns.

    A row that no column can reach is left out when it holds anyway, and kept as an impossible one when it does not.
    """
    import pyomo.environ as pyo
    from pyomo.core.expr.numeric_expr import LinearExpression

    _, regions, configurations, phases = problem.shape
    usage: dict[tuple[int, int], tuple[list[float], list[Any]]] = {}
    serve: dict[int, tuple[list[float], list[Any]]] = {}
    for t, r, variable in columns:
        for c in np.flatnonzero(problem.usage[t]).tolist():
            coefficients, variables = usage.setdefault((r, c), ([], []))
            coefficients.append(float(problem.usage[t, c]))
            variables.append(variable)
        coefficients, variables = serve.setdefault(int(problem.phase[t]), ([], []))
        coefficients.append(float(problem.throughput[t]))
        variables.append(variable)
    model.capacity = pyo.Constraint(range(regions), range(configurations))
    for (r, c), (coefficients, variables) in sorted(usage.items()):
        body = LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
        model.capacity[r, c] = body <= int(problem.availability[r, c])
    model.demand = pyo.Constraint(range(phases))
    for p in range(phases):
        if p in serve:
            body = LinearExpression(constant=0, linear_coefs=serve[p][0], linear_vars=serve[p][1])
            model.demand[p] = body >= float(problem.demand[p])
        elif problem.demand[p] > 0:
            model.nothing_serves = pyo.Var(bounds=(0, 0))
            model.demand[p] = float(problem.demand[p]) * model.nothing_serves >= float(problem.demand[p])
            break


def usable(problem: AllocationProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(template, region) pairs that have a price and fit at least once, and their prices in USD/h."""
    price = problem.template_price()
    fits = (problem.most_instances() > 0) & ~np.isnan(price)
    template, region = np.nonzero(fits)
    return template, region, price[template, region]
