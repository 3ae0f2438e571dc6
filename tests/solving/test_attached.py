"""Checks and formulations attached to problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from coralopt.errors import SolverError
from coralopt.solving import AttachedProblem, Check, Violation, attach, solve


@dataclass(frozen=True)
class Cover(AttachedProblem[int]):
    """The least number of at least ``need``."""

    need: int
    kind: ClassVar[str] = "cover"
    sense: ClassVar[Literal["min"]] = "min"
    default_formulation: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Derived(Cover):
    """Finds what its base class has."""


@dataclass(frozen=True)
class Bare(AttachedProblem[int]):
    """Nothing is attached to it."""


class Plain:
    """One integer variable."""

    name = "plain"

    def build(self, problem):
        """min x, x >= need."""
        import pyomo.environ as pyo

        model = pyo.ConcreteModel()
        model.x = pyo.Var(domain=pyo.NonNegativeIntegers)
        model.enough = pyo.Constraint(expr=model.x >= problem.need)
        model.objective = pyo.Objective(expr=model.x)
        return model

    def read(self, problem, value):
        """The value of x."""
        return round(value("x", None))


def check(problem: Cover, answer: int) -> Check:
    """At least ``need``."""
    short = (Violation("demand", "x", f"{answer} is less than {problem.need}"),) if answer < problem.need else ()
    return Check(not short, float(answer), short)


@pytest.fixture(autouse=True)
def attached() -> None:
    attach(Cover, check, {"plain": Plain()})


def test_what_is_attached_serves_the_class_and_those_derived_from_it() -> None:
    """A solve needs nothing else of a problem."""
    for problem in (Cover(3), Derived(4)):
        assert solve(problem).answer == problem.need
        wrong = problem.check(1)
        assert (wrong.feasible, wrong.violations[0].kind, wrong.sentences) == (
            False,
            "demand",
            (f"1 is less than {problem.need}",),
        )


def test_a_problem_without_attachment_says_what_is_missing() -> None:
    """Its package was not imported."""
    with pytest.raises(SolverError, match="nothing is attached to Bare"):
        Bare().check(1)
