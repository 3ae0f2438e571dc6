"""The allocation ILP without auxiliary continuous columns.

An instance count is split into kept and new instances::

    min  sum p_r(tau) kept[tau,r] + sum (1 + K) p_r(tau) new[tau,r]
    s.t. capacity and demand rows of the paper with nu = kept + new
         0 <= kept[tau,r] <= nu'[tau,r], integer          only where nu' > 0
         0 <= new[tau,r], integer

and the rows and columns of supply classes, side constraints and unmet demand
(:mod:`coralopt.allocation.model.pyomo_rows`); with supply classes p is the lowest price where it is rented, and the
list price in the penalty K p.

Equal to the paper's: for K >= 0 an instance is cheaper kept than new, so an optimum fills ``kept`` first and the cost is
p nu + K p max(0, nu - nu'), the paper's objective with I at its lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.model.columns import Columns, usable
from coralopt.allocation.model.pyomo_rows import add_rows
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.solving import MilpMatrix
from coralopt.solving.problem import VariableIndex, VariableValues
from coralopt.types import Floats


class SplitFormulation:
    """Kept and new instances; the module docstring has its mathematics."""

    name: ClassVar[str] = "split"

    def build(self, problem: AllocationProblem) -> Any:
        """Pyomo model with ``new``, ``kept``, ``capacity``, ``demand``."""
        import pyomo.environ as pyo
        from pyomo.core.expr.numeric_expr import LinearExpression

        template, region, rent, fresh = usable(problem)
        pairs = list(zip(template.tolist(), region.tolist(), strict=True))
        rents = dict(zip(pairs, rent.tolist(), strict=True))
        running = [] if problem.running is None else [(t, r) for t, r in pairs if problem.running[t, r] > 0]
        model = pyo.ConcreteModel(name="allocation_split")
        model.new = pyo.Var(pairs, domain=pyo.NonNegativeIntegers)
        model.kept = pyo.Var(running, domain=pyo.NonNegativeIntegers)
        for t, r in running:
            assert problem.running is not None
            model.kept[t, r].setub(int(problem.running[t, r]))
        costs, paid = add_rows(
            model,
            problem,
            [(t, r, model.new[t, r]) for t, r in pairs] + [(t, r, model.kept[t, r]) for t, r in running],
            {pair: model.new[pair] for pair in pairs},
        )
        model.objective = pyo.Objective(
            expr=LinearExpression(
                constant=0,
                linear_coefs=[*fresh.tolist(), *(rents[pair] for pair in running), *costs],
                linear_vars=[*(model.new[pair] for pair in pairs), *(model.kept[pair] for pair in running), *paid],
            )
        )
        return model

    def read(self, problem: AllocationProblem, value: Callable[[str, VariableIndex], float]) -> Allocation:
        """The allocation nu = kept + new."""
        template, region, _, _ = usable(problem)
        counts: dict[tuple[int, int], int] = {}
        for t, r in zip(template.tolist(), region.tolist(), strict=True):
            counts[t, r] = round(value("new", (t, r)))
            if problem.running is not None and problem.running[t, r] > 0:
                counts[t, r] += round(value("kept", (t, r)))
        return Allocation.of(counts)

    def matrix(self, problem: AllocationProblem) -> MilpMatrix:
        """The matrix straight from the problem's arrays: the second, fast route."""
        return split_matrix(problem)

    def read_columns(self, problem: AllocationProblem, x: Floats) -> Allocation:
        """The allocation nu = kept + new from the columns of :meth:`matrix`."""
        columns = Columns.of(problem)
        return columns.allocation(np.rint(x[: len(columns)]).astype(np.int64))

    def start_columns(self, problem: AllocationProblem, answer: Allocation) -> Floats:
        """An allocation by the first columns of :meth:`matrix`: kept as far as instances run, the rest new."""
        return Columns.of(problem).counts(answer).astype(np.float64)

    def start(self, problem: AllocationProblem, answer: Allocation) -> VariableValues:
        """An allocation in the variables of this formulation: kept as far as instances run, the rest new."""
        columns = Columns.of(problem)
        values = zip(
            columns.kept.tolist(),
            columns.template.tolist(),
            columns.region.tolist(),
            columns.counts(answer).tolist(),
            strict=True,
        )
        return {("kept" if kept else "new", (t, r)): count for kept, t, r, count in values}


def split_matrix(problem: AllocationProblem) -> MilpMatrix:
    """The matrix of this formulation straight from the problem's arrays, without Pyomo: the second, fast route.

    Columns: ``new`` for every usable pair, ``kept`` for the running ones, ``extra`` for nodes of dearer supply classes,
    ``shortfall`` for unmet demand that has a price. Rows: capacity, demand, side constraints, those that some column
    reaches.
    """
    matrix = assemble(problem, Columns.of(problem))
    # What no column reaches holds anyway, or makes the model infeasible and must stay.
    reached = np.bincount(matrix.a.indices, minlength=matrix.shape[0]) > 0
    keep = np.flatnonzero(reached | (matrix.row_lower > 0))
    if len(keep) == matrix.shape[0]:
        return matrix
    return replace(
        matrix,
        a=matrix.a.tocsr()[keep],
        row_lower=matrix.row_lower[keep],
        row_upper=matrix.row_upper[keep],
        row_names=[matrix.row_names[k] for k in keep.tolist()],
    )
