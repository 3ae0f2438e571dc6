"""From a Pyomo model to the matrix that back ends see."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from coralopt.solving.matrix import MilpMatrix


@contextmanager
def fast_build() -> Iterator[None]:
    """Pause the garbage collector: Pyomo makes millions of small objects, none of them garbage yet."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def matrix_from_pyomo(model: Any) -> tuple[MilpMatrix, list[Any]]:
    """Compile a linear Pyomo model through Pyomo's own standard-form compiler.

    Args:
        model: A ``ConcreteModel`` with linear constraints and at most one active objective.

    Returns:
        The matrix and its columns' variables, in order. Variables in no active constraint or objective are absent.
    """
    import pyomo.environ as pyo
    from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler
    from scipy.sparse import csc_array

    objectives = list(model.component_data_objects(pyo.Objective, active=True))
    # The compiler insists on an objective; a model without one is a feasibility problem.
    added = None
    if not objectives:
        added = pyo.Objective(expr=0.0)
        model.add_component(pyo.unique_component_name(model, "no_objective"), added)
    try:
        with fast_build():
            form = LinearStandardFormCompiler().write(model, mixed_form=True, set_sense=None)
    finally:
        if added is not None:
            model.del_component(added)
    columns = list(form.columns)
    maximize = bool(objectives) and objectives[0].sense == pyo.maximize
    rows, count = len(form.rows), len(columns)
    rhs = np.asarray(form.rhs, dtype=np.float64).reshape(rows)
    kinds = np.array([row.bound_type for row in form.rows], dtype=np.int64)
    cost = np.asarray(form.c.toarray() if hasattr(form.c, "toarray") else form.c, dtype=np.float64).reshape(-1)
    # Bound types of the compiler: 1 is <=, -1 is >=, 0 is ==.
    return (
        MilpMatrix(
            c=cost if len(cost) == count else np.zeros(count),
            offset=float(np.asarray(form.c_offset).reshape(-1)[0]) if np.size(form.c_offset) else 0.0,
            a=csc_array(form.A, shape=(rows, count)) if rows and count else csc_array((rows, count)),
            row_lower=np.where(kinds == 1, -np.inf, rhs) if rows else np.zeros(0),
            row_upper=np.where(kinds == -1, np.inf, rhs) if rows else np.zeros(0),
            lower=np.array([-np.inf if v.lb is None else v.lb for v in columns], dtype=np.float64),
            upper=np.array([np.inf if v.ub is None else v.ub for v in columns], dtype=np.float64),
            integer=np.array([not v.is_continuous() for v in columns], dtype=np.bool_),
            maximize=maximize,
            column_names=[v.name for v in columns],
            row_names=[_row_name(row) for row in form.rows],
        ),
        columns,
    )


def _row_name(row: Any) -> str:
    # A range constraint is split in two; the suffix keeps the names unique.
    suffix = {1: "_ub", -1: "_lb", 0: "_eq"}[int(row.bound_type)]
    return f"{row.constraint.name}{suffix}"
