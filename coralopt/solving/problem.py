"""What a problem and a formulation are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from coralopt.solving.matrix import MilpMatrix
from coralopt.types import Floats

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel

P_contra = TypeVar("P_contra", contravariant=True)
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

#: Index of a variable of a formulation; ``None`` of one without indices.
VariableIndex = int | str | tuple[int | str, ...] | None
#: What every variable of a formulation is: (name, index) -> value.
VariableValues = Mapping[tuple[str, VariableIndex], float]

#: What a violation is about: no answer of this problem at all (``answer``), a rule that it breaks, a figure that is
#: stated otherwise than it is recomputed (``figure``), or where it comes from (``origin``).
ViolationKind = Literal[
    "answer",
    "capacity",
    "demand",
    "engine",
    "figure",
    "latency",
    "memory",
    "optimality",
    "origin",
    "placement",
    "price",
    "scenario",
    "side constraint",
]


@dataclass(frozen=True)
class Violation:
    """One condition that does not hold.

    Attributes:
        kind: What it is about; programs select by it.
        subject: The part concerned, by name: ``"stage 2 of 3"``, ``"qwen3-32b/prefill"``, an instance, an option.
        text: A whole sentence with the figures.
    """

    kind: ViolationKind
    subject: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Check:
    """The problem's own verdict on an answer, from first principles.

    Attributes:
        feasible: Whether the answer satisfies every condition.
        objective: Objective of the answer, recomputed; NaN when it makes no sense.
        violations: Every condition that fails.
    """

    feasible: bool
    objective: float
    violations: tuple[Violation, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The violations in words."""
        return tuple(map(str, self.violations))

    @classmethod
    def no_answer(cls, text: str, objective: float = float("nan")) -> Check:
        """The verdict on something that is no answer of the problem at all."""
        return cls(False, objective, (Violation("answer", "answer", text),))


class Formulation(Protocol[P_contra, A_co]):
    """Turns a problem into a Pyomo model and reads an answer back."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def build(self, problem: P_contra, /) -> ConcreteModel:
        """The model of the problem."""
        ...

    def read(self, problem: P_contra, value: Callable[[str, VariableIndex], float], /) -> A_co:
        """The answer; ``value(name, index)`` gives a variable's value, integers rounded.

        A fixed variable has its fixed value, one that no row and no objective uses the value nearest 0 in its bounds.
        """
        ...


def formulation_name(formulation: str | Formulation[Any, object] | None) -> str:
    """What a formulation is called that is given by name or itself; empty for none."""
    return formulation or "" if isinstance(formulation, (str, type(None))) else formulation.name


@runtime_checkable
class ArrayFormulation(Formulation[P_contra, A_co], Protocol[P_contra, A_co]):
    """A formulation that makes its matrix straight from the problem's arrays, too."""

    def matrix(self, problem: P_contra, /) -> MilpMatrix:
        """The matrix of :meth:`build`'s model, in any order of rows and columns."""
        ...

    def read_columns(self, problem: P_contra, x: Floats, /) -> A_co:
        """The answer that the columns of :meth:`matrix` say."""
        ...


@runtime_checkable
class StartingFormulation(Protocol[P_contra, A_contra]):
    """A formulation that can express an answer in its own variables, for starts."""

    def start(self, problem: P_contra, answer: A_contra, /) -> VariableValues:
        """(variable name, index) -> value; variables left out are for the solver to find."""
        ...


@runtime_checkable
class RangedProblem(Protocol):
    """A problem to maximise whose figures may lie too far apart for floating-point solvers."""

    @property
    def ceiling(self) -> float:
        """A figure that no objective exceeds."""
        ...

    def within(self, ceiling: float, /) -> tuple[Any, float] | None:
        """The problem in figures of ordinary size, if it needs that, and the unit of its objective.

        It has the same answers and is no worse in any of them, up to ``ceiling``, which no answer's objective exceeds.
        """
        ...


@runtime_checkable
class ArrayStart(Protocol[P_contra, A_contra]):
    """A formulation that can express an answer in the columns of its matrix, too."""

    def start_columns(self, problem: P_contra, answer: A_contra, /) -> Floats:
        """float64 (k,): values of the first k columns; those behind are for the solver to find."""
        ...


class Problem(Protocol[A]):
    """Plain data with no solver in it."""

    @property
    def kind(self) -> str:
        """What it is called in messages: ``"placement"``, ``"allocation"``, ..."""
        ...

    @property
    def sense(self) -> Literal["min", "max"]:
        """Whether the least or the greatest objective is looked for."""
        ...

    @property
    def default_formulation(self) -> str:
        """Name of the formulation that is used when none is asked for."""
        ...

    # The class of problem that its formulations take is the class itself, which no bound of a protocol can say.
    def formulations(self) -> Mapping[str, Formulation[Any, A]]:
        """The formulations of this problem by name."""
        ...

    def check(self, answer: A, /) -> Check:
        """Recompute feasibility and objective of an answer."""
        ...
