"""A matrix as a Pyomo model, and a Pyomo model's values as a vector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.rows import row_terms
from coralopt.types import Floats


def model_of_matrix(matrix: MilpMatrix) -> Any:
    """A ``ConcreteModel`` with columns ``x[j]``, rows ``row[i]`` (one object a side) and ``objective``."""
    import pyomo.environ as pyo
    from pyomo.core.expr.numeric_expr import LinearExpression

    columns = range(matrix.shape[1])
    model = pyo.ConcreteModel(name="matrix")
    model.x = pyo.Var(columns)
    for j in columns:
        variable = model.x[j]
        variable.domain = pyo.Integers if matrix.integer[j] else pyo.Reals
        low, high = float(matrix.lower[j]), float(matrix.upper[j])
        # GLPK refuses integer columns with fractional bounds.
        whole = bool(matrix.integer[j])
        variable.setlb(None if low == -math.inf else math.ceil(low - 1e-9) if whole else low)
        variable.setub(None if high == math.inf else math.floor(high + 1e-9) if whole else high)
    model.row = pyo.Constraint(pyo.Any)
    rows = zip(matrix.row_lower.tolist(), matrix.row_upper.tolist(), row_terms(matrix), strict=True)
    for i, (low, high, (positions, factors)) in enumerate(rows):
        # A row without coefficients is a constant to Pyomo; one with coefficient 0 is not.
        terms = {"linear_coefs": factors or [0.0], "linear_vars": [model.x[j] for j in positions or [0]]}
        body = LinearExpression(constant=0, **terms)
        if low == high:
            model.row[i, "eq"] = body == low
            continue
        if low != -math.inf:
            model.row[i, "lb"] = body >= low
        if high != math.inf:
            model.row[i, "ub"] = body <= high
    model.objective = pyo.Objective(
        expr=LinearExpression(
            constant=float(matrix.offset),
            linear_coefs=matrix.c.tolist(),
            linear_vars=[model.x[j] for j in columns],
        ),
        sense=pyo.maximize if matrix.maximize else pyo.minimize,
    )
    return model


def values_of(model: Any) -> Floats:
    """float64 (n,): the incumbent loaded into the model; a column that the solver never saw gets its value nearest 0."""
    values = np.zeros(len(model.x))
    for j, variable in model.x.items():
        if variable.value is not None:
            values[j] = float(variable.value)
        else:
            low, high = variable.bounds
            values[j] = min(max(0.0, -math.inf if low is None else low), math.inf if high is None else high)
    return values
