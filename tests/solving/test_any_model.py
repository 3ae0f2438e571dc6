"""Any Pyomo model in one line; back ends, formulations and planners as objects wherever a name is taken."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyomo.environ as pyo
import pyomo.kernel
import pytest
from pyomo.contrib.piecewise import PiecewiseLinearFunction
from pyomo.dae import ContinuousSet, DerivativeVar
from pyomo.gdp import Disjunct, Disjunction

import coralopt
from coralopt.errors import OptionError, SolverError, UnsupportedError, WrongAnswerError
from coralopt.placement import FORMULATIONS, PlacementProblem
from coralopt.planning import CoralPlanner, get_planner
from coralopt.solving import Availability, RawResult, Reason, get_backend
from coralopt.testing.wrong_backends import Honest


def linear() -> Any:
    model = pyo.ConcreteModel("linear")
    model.x = pyo.Var([1, 2], bounds=(0, 6))
    model.idle = pyo.Var(bounds=(2, 5))
    model.limit = pyo.Constraint(expr=(1, model.x[1] + 2 * model.x[2], 8))
    model.gain = pyo.Objective(expr=2 * model.x[1] + 3 * model.x[2], sense=pyo.maximize)
    return model


def disjunctive() -> Any:
    model = pyo.ConcreteModel("disjunctive")
    model.x = pyo.Var(bounds=(0, 10))
    model.inner = pyo.Block()
    model.inner.z = pyo.Var(domain=pyo.Integers, bounds=(0, 7))
    model.low, model.high = Disjunct(), Disjunct()
    model.low.row = pyo.Constraint(expr=model.x <= 3)
    model.high.row = pyo.Constraint(expr=model.x >= 5)
    model.high.few = pyo.Constraint(expr=model.inner.z <= 2)
    model.either = Disjunction(expr=[model.low, model.high])
    model.flag = pyo.BooleanVar()
    model.implied = pyo.LogicalConstraint(expr=model.high.indicator_var.implies(model.flag))
    model.gain = pyo.Objective(expr=model.x + model.inner.z, sense=pyo.maximize)
    return model


@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_values_and_prices_come_back(solver: str) -> None:
    """Into variables and the suffixes that the model imports; a variable that nothing uses gets its value nearest 0."""
    pytest.importorskip({"highs": "highspy", "scip": "pyscipopt"}[solver])
    model = linear()
    model.dual, model.rc = (pyo.Suffix(direction=pyo.Suffix.IMPORT) for _ in range(2))
    solution = coralopt.solve(model, solver)
    assert (solution.termination.reason, solution.objective) == (Reason.OPTIMAL, 15.0)
    assert [model.x[1].value, model.x[2].value, model.idle.value] == pytest.approx([6, 1, 2])
    assert not model.x[1].stale
    assert (model.dual[model.limit], model.rc[model.x[1]]) == pytest.approx((1.5, 0.5))
    assert solution.answer == pytest.approx({"x[1]": 6, "x[2]": 1, "idle": 2})


def test_disjunctions_and_logic_become_rows_of_a_copy() -> None:
    """The model itself stays as it is, and is what the answer is held against."""
    model = disjunctive()
    solution = coralopt.solve(model, "highs")
    assert solution.objective == 12.0
    assert (model.x.value, model.inner.z.value) == (10.0, 2.0)
    assert model.high.indicator_var.value
    assert not model.low.indicator_var.value
    assert model.flag.value
    assert model.either.active
    assert not list(model.component_objects(pyo.LogicalConstraint, active=False))


def test_piecewise_linear_functions() -> None:
    """Pyomo's newer kind by its transformation; the older kind of rows or of an SOS constraint, whose bounds rows prove."""
    model = pyo.ConcreteModel()
    model.x = pyo.Var(bounds=(0, 10))
    model.f = PiecewiseLinearFunction(points=[0, 3, 6, 10], function=lambda x: (x - 4) ** 2)
    model.cost = pyo.Objective(expr=model.f(model.x))
    assert coralopt.solve(model).objective == pytest.approx(1.0)
    assert model.x.value == pytest.approx(3.0)
    for kind in ("MC", "SOS2"):
        model = pyo.ConcreteModel()
        model.x, model.y = pyo.Var(bounds=(0, 10)), pyo.Var()
        model.f = pyo.Piecewise(
            model.y, model.x, pw_pts=[0, 3, 6, 10], f_rule=[16, 1, 4, 36], pw_constr_type="EQ", pw_repn=kind
        )
        model.cost = pyo.Objective(expr=model.y)
        assert coralopt.solve(model).objective == pytest.approx(1.0)


@pytest.mark.parametrize("solver", ["highs", "scip", "gurobi"])
def test_quadratic_objectives_and_sets(solver: str) -> None:
    """Values and prices come back, and the model is as it was; of a set that is switched off nothing is seen."""
    pytest.importorskip({"highs": "highspy", "scip": "pyscipopt", "gurobi": "gurobipy"}[solver])
    model = pyo.ConcreteModel()
    model.x, model.y, model.k = pyo.Var(bounds=(0, 5)), pyo.Var(bounds=(0, 5)), pyo.Var()
    model.k.fix(2)
    model.row = pyo.Constraint(expr=model.x + model.y <= 2)
    model.cost = pyo.Objective(
        expr=model.x**2 + model.y**2 + model.x * model.y - model.k * (2 * model.x + 1.5 * model.y)
    )
    model.sets = pyo.SOSConstraint([1, 2], var=pyo.Reference([model.x, model.y]), sos=1, index={1: [0, 1], 2: [0, 1]})
    model.sets[2].deactivate()
    model.sets[1].deactivate()
    model.dual = pyo.Suffix(direction=pyo.Suffix.IMPORT)
    written = str(model.cost.expr)
    assert coralopt.solve(model, solver).objective == pytest.approx(-4.25, abs=1e-5)
    assert model.x.value == pytest.approx(1.5, abs=1e-3)
    if solver != "scip":
        assert model.dual[model.row] == pytest.approx(-0.5, abs=1e-4)
    model.sets[1].activate()
    if solver == "highs":
        with pytest.raises(UnsupportedError, match="quadratic objective beside"):
            coralopt.solve(model, solver)
    else:
        assert coralopt.solve(model, solver).objective == pytest.approx(-4.0, abs=1e-5)
    assert str(model.cost.expr) == written
    assert model.sets[1].active
    assert not model.sets[2].active


def test_what_is_not_linear_is_refused_by_name() -> None:
    model = linear()
    model.extra = pyo.Constraint(expr=model.x[1] * model.x[2] <= 3)
    with pytest.raises(UnsupportedError, match="extra"):
        coralopt.solve(model)
    model = disjunctive()
    model.x.setub(None)
    with pytest.raises(UnsupportedError, match=r"gdp\.bigm fails"):
        coralopt.solve(model)


def test_without_a_solution_the_values_stay() -> None:
    model = linear()
    model.x[1].value = 4.5
    model.impossible = pyo.Constraint(expr=model.x[1] >= 7)
    assert coralopt.solve(model).termination.reason is Reason.INFEASIBLE
    assert model.x[1].value == 4.5


def test_a_start_is_by_name() -> None:
    model = linear()
    model.x.domain = pyo.Integers
    assert coralopt.solve(model, start={"x[1]": 6, "x[2]": 1, "idle": 3}).objective == 15.0
    with pytest.raises(OptionError, match=r"no such variable"):
        coralopt.solve(model, start={"y": 1})


class Mine(Honest):
    """A back end that is registered nowhere."""

    name: ClassVar[str] = "mine"

    def probe(self) -> Availability:
        return Availability(True, "7.1", "mine")


class Wrong(Mine):
    """Chooses the dearest column; the claim is as wrong as the rest."""

    def after(self, matrix: Any, result: RawResult) -> RawResult:
        x = np.zeros(len(matrix.c))
        return RawResult(Reason.OPTIMAL, None, "done", x, float(matrix.offset), objective=float(matrix.offset))


def test_a_wrong_answer_is_held_against_the_rows() -> None:
    with pytest.raises(WrongAnswerError, match="limit"):
        coralopt.solve(linear(), Wrong())


def test_models_that_compile_to_something_else_are_refused() -> None:
    """Pyomo's compiler sees an abstract model as an empty one, and a derivative without a grid as a free variable."""

    def build(**parts: Any) -> Any:
        model = pyo.ConcreteModel()
        for name, part in parts.items():
            setattr(model, name, part)
        return model

    abstract: Any = pyo.AbstractModel()
    abstract.x = pyo.Var(bounds=(1, 4))
    abstract.cost = pyo.Objective(rule=lambda m: m.x)
    grid = ContinuousSet(bounds=(0, 1))
    moving = build(t=grid, x=pyo.Var(grid), cost=pyo.Objective(expr=0))
    moving.speed = DerivativeVar(moving.x, wrt=moving.t)
    beyond, half, empty = (build(x=pyo.Var(domain=pyo.Binary), cost=pyo.Objective(expr=0)) for _ in range(3))
    beyond.x.fix(2, skip_validation=True)
    half.x.fix(0.5, skip_validation=True)
    empty.x.fix()
    for model, words in (
        (abstract, "create_instance"),
        (moving, "speed is a DerivativeVar"),
        (pyomo.kernel.block(), "pyomo.kernel"),
        (beyond, "x is fixed at 2"),
        (half, "x is fixed at 0.5 and must be whole"),
        (empty, "no value"),
        (None, "neither a problem nor a Pyomo model"),
    ):
        with pytest.raises(SolverError, match=words):
            coralopt.solve(model)
    assert coralopt.solve(abstract.create_instance()).objective == 1.0


def test_a_plan_by_an_unregistered_back_end_verifies() -> None:
    """From solving to verification, in this process; the plan says which it was."""
    plan = coralopt.plan_scenario(coralopt.load_scenario("tiny"), solver=Mine())
    assert (plan.solver, plan.solver_version) == ("mine", "7.1")
    verification = coralopt.verify_plan(plan)
    assert verification.ok, verification.sentences


def test_formulations_and_planners_as_objects() -> None:
    """Where a name is taken, so is the thing itself."""
    values = np.zeros((2, 3, 1, 5))
    values[..., 1:] = [100.0, 50.0, 30.0, 10.0]
    problem = PlacementProblem(values=values, node_set=(2,), configurations=("4xL4",), stages=2)
    solution = coralopt.solve(problem, get_backend("highs"), FORMULATIONS["paper"])
    assert (solution.objective, solution.formulation) == (50.0, "paper")
    planner = CoralPlanner()
    assert get_planner(planner) is planner
