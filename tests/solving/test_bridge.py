"""From Pyomo to the matrix, and through a solver, against enumeration in exact fractions."""

from __future__ import annotations

import gc
import itertools
from fractions import Fraction

import numpy as np
import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError, UnsupportedError
from coralopt.solving import Reason, matrix_from_pyomo, solve_matrix

small = st.integers(-4, 4)


@st.composite
def programmes(draw):
    """Small bounded integer programmes as plain data; every number is a multiple of 1/4, exact in binary."""
    n, m = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    quarter = small.map(lambda k: k / 4)
    lower = draw(st.lists(st.integers(-2, 1), min_size=n, max_size=n))
    upper = [low + draw(st.integers(0, 3)) for low in lower]
    rows = []
    for _ in range(m):
        sides = sorted((draw(quarter) * 4, draw(quarter) * 4))
        kind = draw(st.sampled_from(["le", "ge", "eq", "range"]))
        rows.append((kind, sides, draw(st.lists(quarter, min_size=n, max_size=n))))
    return {
        "c": draw(st.lists(quarter, min_size=n, max_size=n)),
        "offset": draw(quarter),
        "lower": lower,
        "upper": upper,
        "rows": rows,
        "maximize": draw(st.booleans()),
    }


def limits(row):
    """(lower, upper) of a row, None where there is none."""
    kind, (low, high), _ = row
    return {"le": (None, high), "ge": (low, None), "eq": (high, high), "range": (low, high)}[kind]


def pyomo_model(data):
    model = pyo.ConcreteModel()
    n = len(data["c"])
    model.x = pyo.Var(range(n), domain=pyo.Integers, bounds=lambda _, i: (data["lower"][i], data["upper"][i]))

    def body(coefficients):
        return sum(float(a) * model.x[i] for i, a in enumerate(coefficients))

    @model.Constraint(range(len(data["rows"])))
    def row(_, k):
        low, high = limits(data["rows"][k])
        return pyo.inequality(low, body(data["rows"][k][2]), high) if low != high else body(data["rows"][k][2]) == low

    model.cost = pyo.Objective(
        expr=body(data["c"]) + data["offset"], sense=pyo.maximize if data["maximize"] else pyo.minimize
    )
    return model


def best_by_enumeration(data):
    """Optimum in exact fractions, None when infeasible."""
    values = []
    for point in itertools.product(*(range(a, b + 1) for a, b in zip(data["lower"], data["upper"], strict=True))):
        activities = [sum(Fraction(a) * x for a, x in zip(row[2], point, strict=True)) for row in data["rows"]]
        sides = [limits(row) for row in data["rows"]]
        if all(
            (low is None or low <= value) and (high is None or value <= high)
            for (low, high), value in zip(sides, activities, strict=True)
        ):
            values.append(
                sum(Fraction(c) * x for c, x in zip(data["c"], point, strict=True)) + Fraction(data["offset"])
            )
    return (max if data["maximize"] else min)(values, default=None)


@settings(max_examples=150, deadline=None)
@given(programmes())
def test_bridge_and_solver_match_exact_enumeration(data):
    """The whole way from Pyomo to a checked optimum, with no tolerance: all numbers are exact in binary."""
    matrix, columns = matrix_from_pyomo(pyomo_model(data))
    best = best_by_enumeration(data)
    found = solve_matrix(matrix, options={"rel_gap": 0.0})
    if best is None:
        assert found.termination.reason is Reason.INFEASIBLE
        return
    assert found.termination.reason is Reason.OPTIMAL
    assert Fraction(found.objective) == best
    assert len(columns) == len(found.x)


@settings(max_examples=100, deadline=None)
@given(programmes())
def test_bridge_equals_the_matrix_made_by_hand(data):
    """Row by row and column by column, by name: nothing is lost, doubled or turned round on the way."""
    matrix, columns = matrix_from_pyomo(pyomo_model(data))
    assert matrix.maximize == data["maximize"]
    assert matrix.offset == data["offset"]
    order = [column.index() for column in columns]
    for name, wanted in (("c", data["c"]), ("lower", data["lower"]), ("upper", data["upper"])):
        assert getattr(matrix, name).tolist() == [wanted[i] for i in order]
    assert matrix.integer.all()
    dense = matrix.a.toarray()
    seen = {}
    for k, name in enumerate(matrix.row_names):
        seen[name] = (dense[k].tolist(), matrix.row_lower[k], matrix.row_upper[k])
    wanted = {}
    for k, row in enumerate(data["rows"]):
        if not any(row[2]):
            # Constant rows are left out when they hold and say 0 >= 1 when they do not.
            low, high = limits(row)
            if not (low is None or low <= 0) or not (high is None or high >= 0):
                wanted[f"row[{k}]_lb"] = ([0.0] * len(order), 1.0, np.inf)
            continue
        low, high = limits(row)
        coefficients = [row[2][i] for i in order]
        if low is not None and low == high:
            wanted[f"row[{k}]_eq"] = (coefficients, low, high)
        else:
            if high is not None:
                wanted[f"row[{k}]_ub"] = (coefficients, -np.inf, high)
            if low is not None:
                wanted[f"row[{k}]_lb"] = (coefficients, low, np.inf)
    assert seen == wanted


def model_with(**parts):
    model = pyo.ConcreteModel(name="toy")
    model.x = pyo.Var(bounds=(0, 5))
    model.y = pyo.Var(domain=pyo.Integers, bounds=(0, 3))
    model.cost = pyo.Objective(expr=model.x + model.y)
    return model


def test_fixed_variables_are_constants():
    """A fixed variable moves into the constants and leaves no column."""
    model = model_with()
    model.x.fix(2.5)
    model.row = pyo.Constraint(expr=model.x + model.y >= 4)
    matrix, columns = matrix_from_pyomo(model)
    assert [column.name for column in columns] == ["y"]
    assert solve_matrix(matrix).objective == 4.5


@pytest.mark.parametrize("how", ["fixed", "infeasible", "cancelled"])
def test_a_constraint_that_cannot_hold_is_infeasible_not_a_crash(how):
    """Pyomo raises there; for a loop over models infeasibility must be an answer."""
    model = model_with()
    if how == "fixed":
        model.x.fix(3)
        model.row = pyo.Constraint(expr=model.x <= 2)
    elif how == "cancelled":
        model.row = pyo.Constraint(expr=model.x - model.x >= 1)
    else:
        model.row = pyo.Constraint(rule=lambda _: pyo.Constraint.Infeasible)
    matrix, _ = matrix_from_pyomo(model)
    assert solve_matrix(matrix).termination.reason is Reason.INFEASIBLE
    assert matrix.row_names == ["row_lb"]


@pytest.mark.parametrize("side", ["above", "below", "equal"])
def test_only_the_constant_constraint_that_cannot_hold_stays(side):
    """Satisfied ones beside it say nothing and leave no row; the model itself is as it was."""
    model = pyo.ConcreteModel()
    model.x = pyo.Var(bounds=(0, 5))
    model.y = pyo.Var(initialize=1.0)
    model.y.fix(1.0)
    model.holds_above = pyo.Constraint(expr=model.y <= 2)
    model.holds_below = pyo.Constraint(expr=model.y >= 0)
    model.holds_tight = pyo.Constraint(expr=pyo.inequality(1, model.y, 1))
    model.wrong = pyo.Constraint(expr={"above": model.y <= 0.5, "below": model.y >= 2, "equal": model.y == 3}[side])
    model.real = pyo.Constraint(expr=model.x + model.y >= 3)
    model.objective = pyo.Objective(expr=model.x)
    matrix, _ = matrix_from_pyomo(model)
    assert list(matrix.row_names) == ["real_lb", "wrong_lb"]
    assert matrix.a.toarray().tolist() == [[1.0], [0.0]]
    assert (matrix.row_lower.tolist(), matrix.row_upper.tolist()) == ([2.0, 1.0], [np.inf, np.inf])
    assert all(constraint.active for constraint in model.component_data_objects(pyo.Constraint))
    assert solve_matrix(matrix).termination.reason is Reason.INFEASIBLE
    model.wrong.deactivate()
    assert solve_matrix(matrix_from_pyomo(model)[0]).objective == 2.0


def test_models_without_objective_or_rows():
    """No objective means any feasible point; the model itself is left as it was."""
    model = model_with()
    model.del_component("cost")
    model.row = pyo.Constraint(expr=model.x + model.y >= 4)
    model.always = pyo.Constraint(rule=lambda _: pyo.Constraint.Feasible)
    before = [component.name for component in model.component_objects()]
    matrix, _ = matrix_from_pyomo(model)
    assert solve_matrix(matrix).termination.reason is Reason.OPTIMAL
    assert [component.name for component in model.component_objects()] == before
    empty = pyo.ConcreteModel()
    assert solve_matrix(matrix_from_pyomo(empty)[0]).objective == 0.0


def test_what_no_matrix_can_say_is_refused_in_words():
    """Nonlinear terms, holes in a domain and several objectives would otherwise be dropped or crash deep inside."""
    model = model_with()
    model.row = pyo.Constraint(expr=model.x * model.y <= 3)
    with pytest.raises(UnsupportedError, match="not linear"):
        matrix_from_pyomo(model)
    model.row.deactivate()
    model.z = pyo.Var(domain=[0, 5, 7])
    model.other = pyo.Constraint(expr=model.z >= 1)
    with pytest.raises(UnsupportedError, match="domain"):
        matrix_from_pyomo(model)
    model.other.deactivate()
    model.second = pyo.Objective(expr=model.x)
    with pytest.raises(SolverError, match="cost, second"):
        matrix_from_pyomo(model)


def test_the_garbage_collector_is_left_as_it_was():
    """It is paused while compiling, also when that fails."""
    assert gc.isenabled()
    model = model_with()
    model.row = pyo.Constraint(expr=model.x**2 <= 3)
    with pytest.raises(UnsupportedError):
        matrix_from_pyomo(model)
    assert gc.isenabled()
    gc.disable()
    try:
        matrix_from_pyomo(model_with())
        assert not gc.isenabled()
    finally:
        gc.enable()
