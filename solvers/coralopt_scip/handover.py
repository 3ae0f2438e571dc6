"""A matrix and a start in SCIP's own form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from coralopt.solving import MilpMatrix
from coralopt.solving.plugin import lazy
from coralopt.solving.rows import row_terms, with_infinity
from coralopt.types import Floats

if TYPE_CHECKING:
    from pyscipopt import Constraint, Model, Variable

pyscipopt = lazy("pyscipopt")


def pass_model(model: Model, matrix: MilpMatrix) -> tuple[list[Variable], list[Constraint]]:
    """SCIP's columns, and its rows; not those that indicators switch."""
    matrix = with_infinity(matrix, model.infinity())
    new_row, empty = pyscipopt.scip.ExprCons, pyscipopt.scip.Expr
    kinds = np.where(matrix.integer, "I", "C").tolist()
    columns = zip(kinds, matrix.lower.tolist(), matrix.upper.tolist(), matrix.c.tolist(), strict=True)
    variables = [
        model.addVar(name=f"c{j}", vtype=kind, lb=lower, ub=upper, obj=cost)
        for j, (kind, lower, upper, cost) in enumerate(columns)
    ]
    if matrix.maximize:
        model.setMaximize()
    model.addObjoffset(float(matrix.offset))
    switched = _pass_extras(model, matrix, variables)
    rows = []
    sides = zip(matrix.row_lower.tolist(), matrix.row_upper.tolist(), strict=True)
    for i, ((low, high), terms) in enumerate(zip(sides, row_terms(matrix), strict=True)):
        if i in switched:
            continue
        row = model.addCons(new_row(empty({}), lhs=low, rhs=high), name=f"r{i}")
        # Adding coefficients one by one is linear in the row's length; summing expressions is quadratic.
        for j, factor in zip(*terms, strict=True):
            model.addCoefLinear(row, variables[j], factor)
        rows.append(row)
    return variables, rows


def _pass_extras(model: Model, matrix: MilpMatrix, variables: list[Variable]) -> set[int]:
    """What is no linear row; the rows that indicators switch."""
    extras, infinity = matrix.extras, model.infinity()
    for group in extras.sos:
        add = model.addConsSOS1 if group.kind == 1 else model.addConsSOS2
        add([variables[j] for j in group.columns], list(group.weights), name=group.name)
    rows = [part.row for part in extras.indicators]
    for part, (columns, factors) in zip(extras.indicators, row_terms(matrix, rows), strict=True):
        for sign, side in ((-1.0, -matrix.row_lower[part.row]), (1.0, matrix.row_upper[part.row])):
            if side < infinity:
                terms = (sign * factor * variables[j] for j, factor in zip(columns, factors, strict=True))
                row = pyscipopt.quicksum(terms) <= float(side)
                model.addConsIndicator(row, variables[part.column], activeone=part.value == 1)
    if extras.quadratic is not None:
        value = model.addVar(name="quadratic", lb=None, ub=None, obj=1.0)
        q = extras.quadratic.tocoo()
        products = zip(q.row, q.col, q.data.tolist(), strict=True)
        whole = pyscipopt.quicksum(0.5 * factor * variables[i] * variables[j] for i, j, factor in products)
        model.addCons(whole >= value if matrix.maximize else whole <= value)
    return set(rows)


def pass_start(model: Model, variables: list[Variable], start: Floats) -> bool | None:
    """Hand over a start, complete or with NaN where unknown; whether SCIP finds it feasible, ``None`` for a partial."""
    partial = bool(np.isnan(start).any())
    solution = model.createPartialSol() if partial else model.createSol()
    for variable, value in zip(variables, start, strict=True):
        if not math.isnan(value):
            model.setSolVal(solution, variable, float(value))
    feasible = None if partial else bool(model.checkSol(solution, printreason=False, original=True))
    model.addSol(solution)
    return feasible
