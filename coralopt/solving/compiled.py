"""A problem on its way to a back end: the matrix of a formulation, and how to read an answer off its columns.

Two independent routes lead to it. ``pyomo``: build the formulation's model and compile it. ``arrays``: the formulation
makes the matrix straight from the problem's arrays, where it can (``matrix`` and ``read_columns``); much faster for large
problems. Property tests hold both equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np

from coralopt.errors import OptionError, UnsupportedError
from coralopt.solving.bridge import fast_build, matrix_from_pyomo, unused_value
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.problem import (
    A,
    ArrayFormulation,
    ArrayStart,
    Formulation,
    Problem,
    StartingFormulation,
    VariableIndex,
    VariableValues,
    formulation_name,
)
from coralopt.types import Floats

if TYPE_CHECKING:
    from pyomo.environ import Var

ROUTES = ("pyomo", "arrays")


@dataclass(frozen=True, eq=False)
class Compiled(Generic[A]):
    """A problem in the form that back ends see.

    Attributes:
        matrix: The matrix.
        formulation: Name of the formulation.
        read: From column values to an answer.
        begin: From a start, as ``solve`` takes it, to column values, NaN where it says nothing.
        seconds: Wall time of building.
    """

    matrix: MilpMatrix
    formulation: str
    read: Callable[[Floats], A]
    begin: Callable[[VariableValues | A], Floats]
    seconds: float


def compile_problem(
    problem: Problem[A], formulation: str | Formulation[Any, A] | None = None, route: str = "pyomo"
) -> Compiled[A]:
    """Build the matrix of a problem.

    Args:
        problem: A placement or allocation problem.
        formulation: One of ``problem.formulations()`` by name, or one itself; the problem's default when ``None``.
        route: ``"pyomo"`` or ``"arrays"``.

    Raises:
        OptionError: Unknown formulation or route.
        UnsupportedError: The formulation has no array route; names those that have.
    """
    chosen, known = formulation_name(formulation) or problem.default_formulation, problem.formulations()
    if formulation is not None and not isinstance(formulation, str):
        known = {chosen: formulation}
    if chosen not in known:
        raise OptionError(f"unknown formulation {chosen!r} of a {problem.kind} problem; known: {', '.join(known)}")
    if route not in ROUTES:
        raise OptionError(f"unknown route {route!r}; known: {', '.join(ROUTES)}")
    if route == "pyomo":
        return _by_pyomo(problem, known[chosen], chosen)
    by_arrays = known[chosen]
    if not isinstance(by_arrays, ArrayFormulation):
        able = ", ".join(name for name, item in known.items() if isinstance(item, ArrayFormulation)) or "none"
        raise UnsupportedError(f"formulation {chosen!r} has no route from arrays; these have: {able}")
    return _by_arrays(problem, by_arrays, chosen)


def _by_arrays(problem: Problem[A], formulation: ArrayFormulation[Problem[A], A], chosen: str) -> Compiled[A]:
    started = time.perf_counter()
    matrix = formulation.matrix(problem)

    def begin(start: VariableValues | A) -> Floats:
        vector = np.full(len(matrix.c), np.nan)
        if isinstance(formulation, ArrayStart) and not isinstance(start, Mapping):
            known = formulation.start_columns(problem, start)
            vector[: len(known)] = known
            return vector
        columns = {name: j for j, name in enumerate(matrix.column_names)}
        for (name, index), value in _as_mapping(problem, formulation, start).items():
            column = name if index is None else f"{name}[{_plain(index)}]"
            if column not in columns:
                raise _no_variable(formulation, name, index)
            vector[columns[column]] = value
        return vector

    seconds = time.perf_counter() - started
    return Compiled(matrix, chosen, lambda x: formulation.read_columns(problem, x), begin, seconds)


def _plain(index: VariableIndex) -> str:
    """An index as Pyomo writes it."""
    return ",".join(str(part) for part in index) if isinstance(index, tuple) else str(index)


def _by_pyomo(problem: Problem[A], formulation: Formulation[Problem[A], A], chosen: str) -> Compiled[A]:
    started = time.perf_counter()
    with fast_build():
        model = formulation.build(problem)
        matrix, variables = matrix_from_pyomo(model)
    columns = {id(variable): j for j, variable in enumerate(variables)}

    def variable_of(name: str, index: VariableIndex) -> Var:
        component = getattr(model, name)
        return component if index is None else component[index]

    def read(x: Floats) -> A:
        values = x.tolist()

        def value(name: str, index: VariableIndex) -> float:
            variable = variable_of(name, index)
            column = columns.get(id(variable))
            return unused_value(variable) if column is None else float(values[column])

        return formulation.read(problem, value)

    def begin(start: VariableValues | A) -> Floats:
        vector = np.full(len(variables), np.nan)
        for (name, index), value in _as_mapping(problem, formulation, start).items():
            try:
                variable = variable_of(name, index)
            except (AttributeError, KeyError) as error:
                raise _no_variable(formulation, name, index) from error
            if id(variable) in columns:
                vector[columns[id(variable)]] = value
        return vector

    return Compiled(matrix, chosen, read, begin, time.perf_counter() - started)


def _no_variable(formulation: Formulation[Any, object], name: str, index: VariableIndex) -> OptionError:
    return OptionError(
        f"start names {name!r} at index {index!r}, but formulation {formulation.name!r} has no such variable"
    )


def _as_mapping(
    problem: Problem[A], formulation: Formulation[Problem[A], A], start: VariableValues | A
) -> VariableValues:
    """A start as (variable name, index) -> value."""
    if isinstance(start, Mapping):
        return cast("VariableValues", start)
    if not isinstance(formulation, StartingFormulation):
        raise UnsupportedError(
            f"formulation {formulation.name!r} cannot express an answer as a start; "
            "give a mapping from (variable name, index) to value"
        )
    values: VariableValues = formulation.start(problem, start)
    return values
