"""A matrix and a basis in Gurobi's own form, and its basis in ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from coralopt.solving import Basis, MilpMatrix
from coralopt.solving.plugin import lazy
from coralopt.solving.rows import by_sense, row_terms
from coralopt.types import Ints

if TYPE_CHECKING:
    from gurobipy import LinExpr, Model

gurobipy = lazy("gurobipy")
#: A block of columns or rows, of whose attributes gurobipy's hints know nothing.
Block: TypeAlias = Any
#: Rows of one sense: their positions in the matrix, and Gurobi's block.
Part: TypeAlias = "tuple[Ints, Block]"


def pass_model(model: Model, matrix: MilpMatrix) -> tuple[Block, list[Part]]:
    """The model's columns and its rows."""
    extras, codes = matrix.extras, gurobipy.GRB
    kinds = np.where(matrix.integer, codes.INTEGER, codes.CONTINUOUS)
    kinds[[part.column for part in extras.indicators]] = codes.BINARY
    semi = list(extras.semicontinuous)
    kinds[semi] = np.where(matrix.integer[semi], codes.SEMIINT, codes.SEMICONT)
    x = model.addMVar(matrix.shape[1], lb=matrix.lower, ub=matrix.upper, obj=matrix.c, vtype=kinds)
    model.ModelSense = sense = gurobipy.GRB.MAXIMIZE if matrix.maximize else gurobipy.GRB.MINIMIZE
    model.ObjCon = float(matrix.offset)
    if extras.quadratic is not None:
        model.setMObjective(0.5 * extras.quadratic, matrix.c, float(matrix.offset), sense=sense)
    for group in extras.sos:
        model.addSOS(group.kind, [x[j].item() for j in group.columns], list(group.weights))
    by_row, switches = matrix.a.tocsr(), {part.row: part for part in extras.indicators}
    parts = []
    for sense, rows, sides in by_sense(matrix):
        switched = np.isin(rows, list(switches))
        for i, side, terms in zip(rows[switched], sides[switched], row_terms(matrix, rows[switched]), strict=True):
            part = switches[i]
            row = expression(x, *terms)
            model.addGenConstrIndicator(x[part.column].item(), bool(part.value), row, sense, float(side))
        if not switched.all():
            always = rows[~switched]
            parts.append((always, model.addMConstr(by_row[always], x, sense, sides[~switched])))
    return x, parts


def expression(columns: Block, positions: Iterable[int], factors: Iterable[float]) -> LinExpr:
    """A linear expression in these columns."""
    linear: LinExpr = gurobipy.LinExpr(list(factors), [columns[j].item() for j in positions])
    return linear


def pass_basis(columns: Block, parts: list[Part], basis: Basis) -> None:
    """Where the simplex method begins."""
    codes = np.empty(4, dtype=np.int32)
    codes[[Basis.BASIC, Basis.LOWER, Basis.UPPER, Basis.FREE]] = 0, -1, -2, -3
    columns.VBasis = codes[basis.columns]
    for which, rows in parts:
        # A row with two sides is two rows here, of which the one that does not hold it back is basic.
        sides = {"<": (Basis.UPPER,), ">": (Basis.LOWER,)}.get(str(rows.Sense[0]), (Basis.LOWER, Basis.UPPER))
        rows.CBasis = np.where(np.isin(basis.rows[which], sides), -1, 0)


def basis_of(columns: Block, parts: list[Part], count: int) -> Basis | None:
    """Where the simplex method ended, of ``count`` rows; ``None`` where it did not run."""
    try:
        numbers = np.array([Basis.BASIC, Basis.FREE, Basis.UPPER, Basis.LOWER], dtype=np.int8)
        status = numbers[np.asarray(columns.VBasis)]
        rows_status = np.full(count, Basis.BASIC, dtype=np.int8)
        for which, rows in parts:
            side = Basis.UPPER if str(rows.Sense[0]) == "<" else Basis.LOWER
            rows_status[which[np.asarray(rows.CBasis) < 0]] = side
    except (AttributeError, gurobipy.GurobiError):
        # The barrier method without crossover has none.
        return None
    return Basis(status, rows_status)
