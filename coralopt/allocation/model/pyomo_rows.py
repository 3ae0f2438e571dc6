r"""Rows that both Pyomo formulations share: capacity, demand, side constraints; columns of supply classes and unmet demand.

::

    sum U_c nu - sum_k extra[r,c,k] <= A_r,1(c)             every region r, configuration c
    sum T nu + T_m s[g(m)] >= T_m                            every model phase m
    sum a nu (+ a_k extra[r,c,k]) (+ b s[g])  <= or >= b     every side constraint
    0 <= extra[r,c,k] <= A_r,k(c),  0 <= s[g] <= 1

``extra``: nodes of the dearer supply classes (:mod:`coralopt.allocation.supply`), in rent limits at their surcharge.
``shortfall``, s: unmet share of the phases of a group, only where it has a price; in rows of tokens/s with their bound.
Side constraints: :mod:`coralopt.allocation.side_constraints`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints

#: One column as formulations see it: template, region, Pyomo variable.
Column = tuple[int, int, Any]


def add_rows(model: Any, problem: AllocationProblem, columns: list[Column]) -> tuple[list[float], list[Any]]:
    """Add ``model.capacity[r, c]``, ``model.demand[p]`` and ``model.side[i]`` over the given columns.

    A row that no column can reach is left out when it holds anyway, and kept as an impossible one when it does not.

    Returns:
        Coefficients and variables that belong in the objective: surcharges and unmet demand.
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
    pieces = problem.segments
    cells = [divmod(cell, configurations) for cell in pieces.cell.tolist()]
    costs: list[float] = pieces.surcharge.tolist()
    paid: list[Any] = []
    if cells:
        model.extra = pyo.Var([(r, c, k) for k, (r, c) in enumerate(cells)], domain=pyo.NonNegativeReals)
    for k, (r, c) in enumerate(cells):
        model.extra[r, c, k].setub(int(pieces.nodes[k]))
        paid.append(model.extra[r, c, k])
        coefficients, variables = usage.setdefault((r, c), ([], []))
        coefficients.append(-1.0)
        variables.append(paid[k])
    unmet: dict[int, Any] = {}
    groups = problem.unmet_groups()
    if groups:
        model.shortfall = pyo.Var(range(len(groups)), bounds=(0, 1))
    for g, (together, price) in enumerate(groups):
        costs.append(price)
        paid.append(model.shortfall[g])
        for p in together:
            unmet[p] = model.shortfall[g]
            coefficients, variables = serve.setdefault(p, ([], []))
            coefficients.append(float(problem.demand[p]))
            variables.append(unmet[p])
    model.capacity = pyo.Constraint(range(regions), range(configurations))
    for (r, c), (coefficients, variables) in sorted(usage.items()):
        body = LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
        model.capacity[r, c] = body <= int(pieces.first[r, c])
    model.demand = pyo.Constraint(range(phases))
    for p in range(phases):
        if p in serve:
            body = LinearExpression(constant=0, linear_coefs=serve[p][0], linear_vars=serve[p][1])
            model.demand[p] = body >= float(problem.demand[p])
        elif problem.demand[p] > 0:
            model.nothing_serves = pyo.Var(bounds=(0, 0))
            model.demand[p] = float(problem.demand[p]) * model.nothing_serves >= float(problem.demand[p])
            break
    constraints = open_constraints(problem)
    model.side = pyo.Constraint(range(len(constraints)))
    template = np.array([t for t, _, _ in columns], dtype=np.int64)
    region = np.array([r for _, r, _ in columns], dtype=np.int64)
    for i, item in enumerate(constraints):
        values = item.coefficients(problem, template, region)
        used = np.flatnonzero(values)
        coefficients = values[used].tolist()
        variables = [columns[k][2] for k in used.tolist()]
        if item.is_rent:
            for k, (r, _) in enumerate(cells):
                if item.regions is None or r in item.regions:
                    coefficients.append(float(pieces.surcharge[k]))
                    variables.append(paid[k])
        if item.measure == "tokens_s" and item.phases is not None and item.phases[0] in unmet and item.bound > 0:
            coefficients.append(item.limit(problem))
            variables.append(unmet[item.phases[0]])
        limit = item.limit(problem)
        if variables:
            body = LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
            model.side[i] = body <= limit if item.sense == "most" else body >= limit
        elif item.sense == "least" and limit > 0:
            model.nothing_counts = pyo.Var(bounds=(0, 0))
            model.side[i] = limit * model.nothing_counts >= limit
            break
    return costs, paid
