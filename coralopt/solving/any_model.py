"""Any Pyomo model as a problem: disjunctions, logic and piecewise-linear parts become rows by Pyomo's own transformations.

The model itself is left as it is: what has to be transformed is transformed in a copy. Values, prices and staleness come
back to the model, and the answer is held against the model as it was written, not against the rows made of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard

import numpy as np

from coralopt.errors import OptionError, SolverError, UnsupportedError
from coralopt.solving.bridge import matrix_from_pyomo, unused_value
from coralopt.solving.compiled import Compiled
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.problem import Check, Formulation, Violation
from coralopt.solving.verdict import INTEGRALITY_TOLERANCE, ROW_TOLERANCE
from coralopt.types import Floats

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel, Constraint, Var

#: Variable by name -> value.
ModelAnswer = Mapping[str, float]
#: Name under which a copy finds the variables that it was made from.
_ORIGINALS = "_coralopt_originals"


def is_model(thing: object) -> TypeGuard[ConcreteModel]:
    """Whether this is a Pyomo model; does not import Pyomo."""
    return hasattr(thing, "component_data_objects") and hasattr(thing, "clone")


@dataclass(frozen=True, eq=False)
class ModelProblem:
    """A user's Pyomo model as a problem."""

    model: ConcreteModel
    kind: ClassVar[str] = "model"
    default_formulation: ClassVar[str] = "model"

    @property
    def sense(self) -> Literal["min", "max"]:
        """The active objective's; ``"min"`` without one."""
        import pyomo.environ as pyo

        objective = self._objective()
        return "max" if objective is not None and objective.sense == pyo.maximize else "min"

    def formulations(self) -> Mapping[str, Formulation[Any, ModelAnswer]]:
        """None: the model is its own."""
        return {}

    # A component of Pyomo, which has no types.
    def _objective(self) -> Any:
        import pyomo.environ as pyo

        return next(iter(self.model.component_data_objects(pyo.Objective, active=True)), None)

    def _variables(self) -> list[Var]:
        """Numeric variables, those of disjuncts among them, and Boolean ones that have no binary variable yet."""
        import pyomo.environ as pyo
        from pyomo.gdp import Disjunct

        parts = (pyo.Block, Disjunct)
        every = self.model.component_data_objects(pyo.BooleanVar, descend_into=parts)
        booleans = [boolean for boolean in every if boolean.get_associated_binary() is None]
        return [*self.model.component_data_objects(pyo.Var, descend_into=parts), *booleans]

    def compiled(self) -> Compiled[ModelAnswer]:
        """The matrix of the model, and how values come back.

        Raises:
            UnsupportedError: A part of the model is neither linear nor made so by Pyomo's transformations; names it.
            SolverError: A variable is fixed at a value that it must not have.
        """
        started = time.perf_counter()
        _refuse(self.model)
        originals = self._variables()
        transformed, copies = _transformed(self.model, originals)
        matrix, columns = matrix_from_pyomo(transformed)
        position = {id(column): j for j, column in enumerate(columns)}
        # The binary variable of a Boolean one is made by the transformation.
        numeric = [copy if _is_numeric(copy) else copy.get_associated_binary() for copy in copies]
        places = {variable.name: position.get(id(copy)) for variable, copy in zip(originals, numeric, strict=True)}

        def read(x: Floats) -> ModelAnswer:
            values = x.tolist()
            return {
                variable.name: _unused(variable) if place is None else float(values[place])
                for variable, place in zip(originals, places.values(), strict=True)
            }

        def begin(start: Mapping[Any, float]) -> Floats:
            vector = np.full(len(columns), np.nan)
            for name, value in start.items():
                if name not in places:
                    raise OptionError(f"start names {name!r}, but model {self.model.name!r} has no such variable")
                place = places[name]
                if place is not None:
                    vector[place] = value
            return vector

        return Compiled(matrix, self.default_formulation, read, begin, time.perf_counter() - started)

    def check(self, answer: ModelAnswer) -> Check:
        """Every active constraint, disjunction and proposition of the model as written, at the answer."""
        import pyomo.environ as pyo

        variables = self._variables()
        before = [(variable, variable.value, variable.stale) for variable in variables]
        self._set(answer)
        evaluated = self._evaluated()
        try:
            objective = self._objective()
            value = 0.0 if objective is None else float(pyo.value(objective))
            violations = tuple(Violation("answer", name, f"{name}: {text}") for name, text in self._broken())
        finally:
            for part, expression in evaluated:
                part.set_value(expression)
            for variable, old, stale in before:
                variable.set_value(old, skip_validation=True)
                variable.stale = stale
        return Check(not violations, value, violations)

    def _evaluated(self) -> list[tuple[Any, Any]]:
        """Put numbers in the place of piecewise-linear expressions, which Pyomo does not evaluate; (part, what it was)."""
        import pyomo.environ as pyo
        from pyomo.contrib.piecewise import PiecewiseLinearFunction
        from pyomo.contrib.piecewise.piecewise_linear_expression import PiecewiseLinearExpression
        from pyomo.gdp import Disjunct

        parts = []
        inside = (pyo.Block, Disjunct, PiecewiseLinearFunction)
        for part in self.model.component_data_objects(pyo.Expression, descend_into=inside):
            if isinstance(part.expr, PiecewiseLinearExpression):
                parts.append((part, part.expr))
                part.set_value(part.expr.pw_linear_function(*map(pyo.value, part.expr.args)))
        return parts

    def _set(self, answer: ModelAnswer) -> None:
        for variable in self._variables():
            if not variable.fixed:
                value = answer[variable.name]
                variable.set_value(value if _is_numeric(variable) else value > 0.5, skip_validation=True)
                variable.stale = False

    def _broken(self) -> Iterator[tuple[str, str]]:
        """(name, what is wrong) of every part that does not hold at the values that the variables have."""
        import pyomo.environ as pyo
        from pyomo.gdp import Disjunct, Disjunction

        for variable in filter(_is_numeric, self._variables()):
            low, high = variable.bounds
            value, slack = variable.value, ROW_TOLERANCE * max(1.0, abs(variable.value))
            if (low is not None and value < low - slack) or (high is not None and value > high + slack):
                yield variable.name, f"{value!r} is not within {low} to {high}"
            if not variable.is_continuous() and abs(value - round(value)) > INTEGRALITY_TOLERANCE:
                yield variable.name, f"{value!r} is no whole number"
        for group in self.model.component_data_objects(pyo.SOSConstraint, active=True):
            places = [variable for variable, _ in sorted(group.get_items(), key=lambda item: float(item[1]))]
            nonzero = [k for k, variable in enumerate(places) if abs(pyo.value(variable)) > ROW_TOLERANCE]
            if nonzero and nonzero[-1] - nonzero[0] >= group.level:
                yield group.name, "too many of its variables differ from 0"
        chosen = {}
        for disjunct in self.model.component_data_objects(Disjunct, active=True, descend_into=(pyo.Block, Disjunct)):
            chosen[disjunct] = disjunct.binary_indicator_var.value > 0.5
        for block in (self.model, *(disjunct for disjunct, holds in chosen.items() if holds)):
            yield from _broken_rows(block)
            for disjunction in block.component_data_objects(Disjunction, active=True):
                count = sum(chosen.get(disjunct, False) for disjunct in disjunction.disjuncts)
                if count < 1 or (disjunction.xor and count > 1):
                    yield disjunction.name, f"{count} of its disjuncts hold"

    def load(self, answer: ModelAnswer, matrix: MilpMatrix, duals: Floats | None, reduced: Floats | None) -> None:
        """Values into the variables; prices into the suffixes ``dual`` and ``rc``, where the model imports them."""
        import pyomo.environ as pyo

        self._set(answer)
        # A constraint with two sides is two rows, of which one has a price; their names end in the side.
        rows = [name[: -len("_lb")] for name in matrix.row_names]
        for name, prices, owners, kind in (
            ("dual", duals, rows, pyo.Constraint),
            ("rc", reduced, matrix.column_names, pyo.Var),
        ):
            suffix = self.model.component(name)
            if suffix is None or suffix.ctype is not pyo.Suffix or not suffix.import_enabled():
                continue
            suffix.clear()
            if prices is None:
                continue
            known: dict[str, float] = {}
            for owner, price in zip(owners, prices.tolist(), strict=True):
                known[owner] = known.get(owner, 0.0) + price
            for component in self.model.component_data_objects(kind, active=True):
                if component.name in known:
                    suffix[component] = known[component.name]


def _is_numeric(variable: Var) -> bool:
    return hasattr(variable, "bounds")


def _unused(variable: Var) -> float:
    """Value of a variable that no row needs: the one nearest 0, or false."""
    return unused_value(variable) if _is_numeric(variable) else float(bool(variable.value))


def _broken_rows(block: ConcreteModel) -> Iterator[tuple[str, str]]:
    import pyomo.environ as pyo

    for constraint in block.component_data_objects(pyo.Constraint, active=True):
        body, low, high = (pyo.value(part) for part in (constraint.body, constraint.lower, constraint.upper))
        slack = ROW_TOLERANCE * max(1.0, abs(body), *_sizes(constraint))
        if (low is not None and body < low - slack) or (high is not None and body > high + slack):
            yield constraint.name, f"{body!r} is not within {low} to {high}"
    for proposition in block.component_data_objects(pyo.LogicalConstraint, active=True):
        if pyo.value(proposition.body, exception=False) is False:
            yield proposition.name, "does not hold"


def _sizes(constraint: Constraint) -> Iterator[float]:
    """Sizes of the terms of a linear constraint: what a solver's tolerance is relative to."""
    from pyomo.repn import generate_standard_repn

    terms = generate_standard_repn(constraint.body, compute_values=True, quadratic=False)
    for coefficient, variable in zip(terms.linear_coefs, terms.linear_vars, strict=True):
        yield abs(coefficient * variable.value)


def _refuse(model: ConcreteModel) -> None:
    """Refuse models that Pyomo would compile to something else than they say.

    Raises:
        UnsupportedError: A model of ``pyomo.kernel``, one that is not constructed, or derivatives without a grid.
        SolverError: A variable is fixed at a value that it must not have.
    """
    if not hasattr(model, "is_constructed"):
        raise UnsupportedError("models of pyomo.kernel are not supported; write it with pyomo.environ")
    if not model.is_constructed():
        raise UnsupportedError(f"model {model.name!r} is abstract; solve what its create_instance() returns")
    import pyomo.environ as pyo

    for component in model.component_objects():
        if component.ctype.__name__ in ("DerivativeVar", "Integral"):
            words = f"model {model.name!r}: {component.name} is a {component.ctype.__name__}"
            raise UnsupportedError(f"{words}; discretise the model first: TransformationFactory('dae.collocation')")
    for variable in model.component_data_objects(pyo.Var):
        value, (low, high) = variable.value, variable.bounds
        if not variable.fixed:
            continue
        if value is None:
            raise SolverError(f"variable {variable.name} is fixed and has no value")
        slack = ROW_TOLERANCE * max(1.0, abs(value))
        if (low is not None and value < low - slack) or (high is not None and value > high + slack):
            raise SolverError(f"variable {variable.name} is fixed at {value}, its bounds are {low} and {high}")
        if not variable.is_continuous() and abs(value - round(value)) > INTEGRALITY_TOLERANCE:
            raise SolverError(f"variable {variable.name} is fixed at {value} and must be whole")


def _transformed(model: ConcreteModel, originals: list[Var]) -> tuple[ConcreteModel, list[Var]]:
    """The model without what Pyomo can turn into rows, and its variables in the same order; a copy where needed."""
    import pyomo.environ as pyo
    from pyomo.contrib.piecewise import PiecewiseLinearFunction
    from pyomo.gdp import Disjunct, Disjunction

    def has(*kinds: type) -> bool:
        components = model.component_data_objects(kinds, descend_into=(pyo.Block, Disjunct))
        return any(component.active for component in components if hasattr(component, "active"))

    steps = []
    if (
        next(iter(model.component_objects(PiecewiseLinearFunction, descend_into=(pyo.Block, Disjunct))), None)
        is not None
    ):
        steps.append("contrib.piecewise.disaggregated_logarithmic")
    if has(pyo.LogicalConstraint, Disjunction):
        steps += ["contrib.logical_to_disjunctive", "gdp.bigm"]
    if not steps:
        return model, originals
    setattr(model, _ORIGINALS, originals)
    try:
        copy = model.clone()
    finally:
        delattr(model, _ORIGINALS)
    for step in steps:
        try:
            pyo.TransformationFactory(step).apply_to(copy)
        except Exception as error:
            # Every transformation raises errors of its own: no big-M without bounds, an operator that it does not know.
            raise UnsupportedError(f"model {model.name!r}: Pyomo's transformation {step} fails: {error}") from error
    return copy, getattr(copy, _ORIGINALS)
