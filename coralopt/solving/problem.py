"""What a problem and a formulation are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

#: What a violation is about: no answer of this problem at all (``answer``), a rule that it breaks, or a figure that is
#: stated otherwise than it is recomputed (``figure``).
ViolationKind = Literal[
    "answer",
    "capacity",
    "demand",
    "engine",
    "figure",
    "latency",
    "memory",
    "optimality",
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


class Formulation(Protocol):
    """Turns a problem into a Pyomo model and reads an answer back."""

    name: str

    def build(self, problem: Any) -> Any:
        """A ``pyomo.environ.ConcreteModel`` of the problem."""
        ...

    def read(self, problem: Any, value: Callable[[str, Any], float]) -> Any:
        """The answer; ``value(name, index)`` gives a variable's value, integers rounded.

        A fixed variable has its fixed value, one that no row and no objective uses the value nearest 0 in its bounds.
        """
        ...


class StartingFormulation(Formulation, Protocol):
    """A formulation that can express an answer in its own variables, for starts."""

    def start(self, problem: Any, answer: Any) -> Mapping[tuple[str, Any], float]:
        """(variable name, index) -> value; variables left out are for the solver to find."""
        ...


class Problem(Protocol):
    """Plain data with no solver in it."""

    kind: ClassVar[str]
    sense: ClassVar[Literal["min", "max"]]
    default_formulation: ClassVar[str]

    def formulations(self) -> Mapping[str, Formulation]:
        """The formulations of this problem by name."""
        ...

    def check(self, answer: Any) -> Check:
        """Recompute feasibility and objective of an answer."""
        ...
