"""From a Pyomo model to the matrix that back ends see."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving.extras import Extras, SosSet
from coralopt.solving.matrix import MilpMatrix

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel, Constraint, Objective, SOSConstraint, Var


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


#: Bound types of the compiler as suffixes of row names: <=, >=, ==.
_SUFFIX = {1: "_ub", -1: "_lb", 0: "_eq"}


def matrix_from_pyomo(model: ConcreteModel) -> tuple[MilpMatrix, list[Var]]:
    """Compile a Pyomo model through Pyomo's own standard-form compiler.

    Args:
        model: A ``ConcreteModel`` with linear constraints, SOS constraints, and at most one active objective, linear or
            quadratic.

    Returns:
        The matrix and its columns' variables, in order. Fixed variables are constants and absent, and so are variables
        in no active constraint or objective. A constraint without free variables is left out when it holds, and is
        the empty row 0 >= 1 when it does not.

    Raises:
        UnsupportedError: The model is not linear, or a variable's domain is neither real, integer nor binary.
        SolverError: The model has several active objectives.
    """
    import pyomo.environ as pyo
    from pyomo.common.errors import InfeasibleConstraintException, InvalidConstraintError, InvalidExpressionError
    from pyomo.common.modeling import unique_component_name
    from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler
    from scipy.sparse import csc_array

    objectives = list(model.component_data_objects(pyo.Objective, active=True))
    if len(objectives) > 1:
        names = ", ".join(objective.name for objective in objectives)
        raise SolverError(
            f"model {model.name!r} has {len(objectives)} active objectives ({names}); deactivate all but one"
        )
    # The compiler insists on an objective; a model without one is a feasibility problem.
    added = None
    if not objectives:
        added = pyo.Objective(expr=0.0)
        model.add_component(unique_component_name(model, "no_objective"), added)
    impossible: list[Constraint] = []
    squares = _quadratic_part(objectives[0]) if objectives else None
    try:
        with fast_build(), _linear_only(model, objectives, squares) as sets:
            try:
                form = LinearStandardFormCompiler().write(model, mixed_form=True, set_sense=None)
            except InfeasibleConstraintException:
                # The compiler stops at such a constraint; infeasibility is an answer, so compile the others.
                impossible = _impossible(model)
                for constraint in impossible:
                    constraint.deactivate()
                form = LinearStandardFormCompiler().write(model, mixed_form=True, set_sense=None)
    except (InvalidConstraintError, InvalidExpressionError, ValueError) as error:
        raise UnsupportedError(f"model {model.name!r} is not linear with bounded domains: {error}") from error
    finally:
        for constraint in impossible:
            constraint.activate()
        if added is not None:
            model.del_component(added)
    columns = list(form.columns)
    position = {id(column): j for j, column in enumerate(columns)}
    used = [variable for _, pair in (squares.products if squares else []) for variable in pair]
    for variable in [*used, *(variable for group in sets for variable, _ in group.get_items())]:
        if position.setdefault(id(variable), len(columns)) == len(columns):
            columns.append(variable)
    rows = [(row.constraint.name, int(row.bound_type)) for row in form.rows]
    rows += [(constraint.name, -1) for constraint in impossible]
    rhs = np.concatenate([np.asarray(form.rhs, dtype=np.float64).reshape(-1), np.ones(len(impossible))])
    # Bound types of the compiler: 1 is <=, -1 is >=, 0 is ==.
    kinds = np.array([kind for _, kind in rows], dtype=np.int64)
    a = csc_array(form.A)
    a.resize((len(rows), len(columns)))
    cost = np.zeros(len(columns))
    cost[: form.c.shape[1]] = np.asarray(form.c.toarray(), dtype=np.float64).reshape(-1)
    bounds = [column.bounds for column in columns]
    matrix = MilpMatrix(
        c=cost,
        offset=float(np.asarray(form.c_offset, dtype=np.float64).sum()),
        a=a,
        row_lower=np.where(kinds == 1, -np.inf, rhs),
        row_upper=np.where(kinds == -1, np.inf, rhs),
        lower=np.array([-np.inf if low is None else low for low, _ in bounds], dtype=np.float64),
        upper=np.array([np.inf if high is None else high for _, high in bounds], dtype=np.float64),
        integer=np.array([_is_integer(column) for column in columns], dtype=np.bool_),
        maximize=bool(objectives) and objectives[0].sense == pyo.maximize,
        column_names=[column.name for column in columns],
        # A range constraint is split in two; the suffix keeps the names unique.
        row_names=[name + _SUFFIX[kind] for name, kind in rows],
        extras=_extras(squares, sets, position),
    )
    return matrix, columns


class _Quadratic(NamedTuple):
    """An objective of squares and products: its constant, linear terms, and factors of two variables each."""

    constant: float
    linear: list[tuple[float, Var]]
    products: list[tuple[float, tuple[Var, Var]]]


def _quadratic_part(objective: Objective) -> _Quadratic | None:
    """The parts of an objective that is quadratic, ``None`` of any other."""
    from pyomo.repn import generate_standard_repn

    parts = generate_standard_repn(objective.expr, compute_values=True, quadratic=True)
    if not parts.quadratic_vars or parts.nonlinear_expr is not None:
        return None
    linear = list(zip(parts.linear_coefs, parts.linear_vars, strict=True))
    return _Quadratic(parts.constant, linear, list(zip(parts.quadratic_coefs, parts.quadratic_vars, strict=True)))


@contextmanager
def _linear_only(
    model: ConcreteModel, objectives: list[Objective], squares: _Quadratic | None
) -> Iterator[list[SOSConstraint]]:
    """The model without its SOS constraints, which are given, and without the quadratic part of its objective."""
    import pyomo.environ as pyo

    sets = list(model.component_data_objects(pyo.SOSConstraint, active=True))
    owners = list(model.component_objects(pyo.SOSConstraint, active=True))
    expression = objectives[0].expr if squares is not None else None
    for owner in owners:
        owner.deactivate()
    if squares is not None:
        objectives[0].set_value(
            squares.constant + pyo.quicksum(factor * variable for factor, variable in squares.linear)
        )
    try:
        yield sets
    finally:
        for owner in owners:
            owner.activate()
            for part in owner.values():
                if not any(part is group for group in sets):
                    part.deactivate()
        if squares is not None:
            objectives[0].set_value(expression)


def _extras(squares: _Quadratic | None, sets: list[SOSConstraint], position: Mapping[int, int]) -> Extras:
    from scipy.sparse import csc_array

    quadratic, groups = None, []
    if squares is not None:
        rows, columns = np.array([[position[id(v)] for v in pair] for _, pair in squares.products]).T
        values = np.array([factor for factor, _ in squares.products], dtype=np.float64)
        half = csc_array((values, (rows, columns)), (len(position), len(position)))
        quadratic = (half + half.T).tocsc()
    for group in sets:
        members = sorted((float(weight), position[id(variable)], variable) for variable, weight in group.get_items())
        for _, _, variable in members:
            if variable.fixed:
                raise UnsupportedError(
                    f"{group.name} has the variable {variable.name}, which is fixed; bound it instead"
                )
        weights, columns, _ = zip(*members, strict=True) if members else ((), (), ())
        groups.append(SosSet(group.name, 1 if group.level == 1 else 2, columns, weights))
    return Extras(quadratic, tuple(groups))


def _is_integer(column: Var) -> bool:
    if column.is_continuous():
        return False
    if column.is_integer():
        return True
    raise UnsupportedError(f"variable {column.name} has domain {column.domain}; use Reals, Integers or Binary")


def _impossible(model: ConcreteModel) -> list[Constraint]:
    """Active constraints that have no free variable with a coefficient and do not hold."""
    import pyomo.environ as pyo
    from pyomo.repn import generate_standard_repn

    impossible = []
    for constraint in model.component_data_objects(pyo.Constraint, active=True):
        body = generate_standard_repn(constraint.body)
        if body.is_nonlinear() or any(coefficient != 0 for coefficient in body.linear_coefs):
            continue
        low, high = pyo.value(constraint.lower), pyo.value(constraint.upper)
        if (low is not None and body.constant < low) or (high is not None and body.constant > high):
            impossible.append(constraint)
    return impossible


def unused_value(variable: Var) -> float:
    """Value of a variable that the matrix does not hold: the fixed one, or the one nearest 0 within its bounds."""
    if variable.fixed:
        return float(variable.value)
    low, high = variable.bounds
    return float(min(max(0.0, -math.inf if low is None else low), math.inf if high is None else high))
