"""A problem on its way to a back end: the matrix of a formulation, and how to read an answer off its columns.

Two independent routes lead to it. ``pyomo``: build the formulation's model and compile it. ``arrays``: the formulation
makes the matrix straight from the problem's arrays, where it can (``matrix`` and ``read_columns``); much faster for large
problems. Property tests hold both equal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coralopt.errors import OptionError, UnsupportedError
from coralopt.solving.bridge import fast_build, matrix_from_pyomo
from coralopt.solving.matrix import MilpMatrix
from coralopt.types import Floats

ROUTES = ("pyomo", "arrays")


@dataclass(frozen=True, eq=False)
class Compiled:
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
    read: Callable[[Floats], Any]
    begin: Callable[[Any], Floats]
    seconds: float


def compile_problem(problem: Any, formulation: str | None = None, route: str = "pyomo") -> Compiled:
    """Build the matrix of a problem.

    Args:
        problem: A placement or allocation problem.
        formulation: One of ``problem.formulations()``; its default when ``None``.
        route: ``"pyomo"`` or ``"arrays"``.

    Raises:
        OptionError: Unknown formulation or route.
        UnsupportedError: The formulation has no array route; names those that have.
    """
    chosen = formulation or problem.default_formulation
    known = problem.formulations()
    if chosen not in known:
        raise OptionError(f"unknown formulation {chosen!r} of a {problem.kind} problem; known: {', '.join(known)}")
    if route not in ROUTES:
        raise OptionError(f"unknown route {route!r}; known: {', '.join(ROUTES)}")
    return _by_arrays(problem, known, chosen) if route == "arrays" else _by_pyomo(problem, known[chosen], chosen)


def _by_arrays(problem: Any, known: Mapping[str, Any], chosen: str) -> Compiled:
    formulation = known[chosen]
    if not hasattr(formulation, "matrix"):
        able = ", ".join(name for name, item in known.items() if hasattr(item, "matrix")) or "none"
        raise UnsupportedError(f"formulation {chosen!r} has no route from arrays; these have: {able}")
    started = time.perf_counter()
    matrix = formulation.matrix(problem)

    def begin(start: Any) -> Floats:
        places = {name: j for j, name in enumerate(matrix.column_names)}
        vector = np.full(len(matrix.c), np.nan)
        for (name, index), value in _as_mapping(problem, formulation, start).items():
            column = name if index is None else f"{name}[{_plain(index)}]"
            if column not in places:
                raise _no_variable(formulation, name, index)
            vector[places[column]] = value
        return vector

    return Compiled(
        matrix, chosen, lambda x: formulation.read_columns(problem, x), begin, time.perf_counter() - started
    )


def _plain(index: Any) -> str:
    """An index as Pyomo writes it."""
    return ",".join(str(part) for part in index) if isinstance(index, tuple) else str(index)


def _by_pyomo(problem: Any, formulation: Any, chosen: str) -> Compiled:
    started = time.perf_counter()
    with fast_build():
        model = formulation.build(problem)
        matrix, columns = matrix_from_pyomo(model)

    def read(x: Floats) -> Any:
        values = {id(column): float(value) for column, value in zip(columns, x, strict=True)}

        def value(name: str, index: Any) -> float:
            variable = _variable(model, name, index)
            found = values.get(id(variable))
            return _unused(variable) if found is None else found

        return formulation.read(problem, value)

    def begin(start: Any) -> Floats:
        places = {id(column): position for position, column in enumerate(columns)}
        vector = np.full(len(columns), np.nan)
        for (name, index), value in _as_mapping(problem, formulation, start).items():
            try:
                variable = _variable(model, name, index)
            except (AttributeError, KeyError) as error:
                raise _no_variable(formulation, name, index) from error
            if id(variable) in places:
                vector[places[id(variable)]] = value
        return vector

    return Compiled(matrix, chosen, read, begin, time.perf_counter() - started)


def _no_variable(formulation: Any, name: str, index: Any) -> OptionError:
    return OptionError(
        f"start names {name!r} at index {index!r}, but formulation {formulation.name!r} has no such variable"
    )


def _as_mapping(problem: Any, formulation: Any, start: Any) -> Mapping[tuple[str, Any], float]:
    """A start as (variable name, index) -> value."""
    if isinstance(start, Mapping):
        return start
    if not hasattr(formulation, "start"):
        raise UnsupportedError(
            f"formulation {formulation.name!r} cannot express an answer as a start; "
            "give a mapping from (variable name, index) to value"
        )
    found: Mapping[tuple[str, Any], float] = formulation.start(problem, start)
    return found


def _variable(model: Any, name: str, index: Any) -> Any:
    component = getattr(model, name)
    return component if index is None else component[index]


def _unused(variable: Any) -> float:
    """Value of a variable that the matrix does not hold: the fixed one, or the one nearest 0 within its bounds."""
    if variable.fixed:
        return float(variable.value)
    low, high = variable.bounds
    return float(min(max(0.0, -math.inf if low is None else low), math.inf if high is None else high))
