"""The errors a user of coralopt can meet.

Every error says what is wrong, which value, where, and what to do. The command line prints
``str(error)`` and never a traceback for a :class:`CoraloptError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class CoraloptError(Exception):
    """Base of every error that coralopt raises on purpose."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in an input file.

    Attributes:
        place: Where, as a dotted path with list positions, for example ``models.qwen3-32b.slo.tpot_ms``.
        problem: What is wrong, with the value that was found.
        hint: What to do, usually the choices; may be empty.
    """

    place: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.place}: {self.problem}"
        return f"{text} ({self.hint})" if self.hint else text


class ScenarioError(CoraloptError):
    """A scenario is not usable; carries every mistake found, not only the first one."""

    def __init__(self, source: str, mistakes: Sequence[Mistake]) -> None:
        self.source = source
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        head = f"{source}: {count} mistake{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  - {mistake}" for mistake in self.mistakes)]))


class CacheWarning(UserWarning):
    """The cache cannot be used; all goes on without it."""


class LongBuildWarning(UserWarning):
    """What was asked for takes minutes or more; says how long, and what would be shorter."""


class LibraryError(CoraloptError):
    """A template library file is missing, corrupt, foreign or stale."""


class PlanError(CoraloptError):
    """A plan document cannot be read or does not hold what it promises."""


class WorkloadError(CoraloptError):
    """A trace, a generator, or a table of demand, availability or prices cannot be used."""


class LaunchError(CoraloptError):
    """A plan cannot be started as asked: program, GPUs, ports, files or options are not as needed."""


class SolverError(CoraloptError):
    """Base of the errors of the solver-agnostic core."""


class SolverNotFoundError(SolverError):
    """No installed plugin answers to this solver name, or its package is not installed."""


class OptionError(SolverError):
    """An option is unknown or has a wrong type or value; names the nearest ones."""


class UnsupportedError(SolverError):
    """The chosen solver lacks a capability; names the solvers that have it."""


class LicenseLimitError(SolverError):
    """The licence at hand does not cover a model of this size."""


class WrongAnswerError(SolverError):
    """A solver returned an answer that fails the problem's own exact check."""


class NoSolutionError(SolverError):
    """A solution was required and there is none; ``result`` holds what the solver did say."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class InfeasibleError(SolverError):
    """The allocation cannot meet every demand; ``explanation`` says in words why."""

    def __init__(self, message: str, explanation: Any = None) -> None:
        super().__init__(message)
        self.explanation = explanation


class BenchmarkError(CoraloptError):
    """A benchmark cannot be run or read: an unknown instance, a results file of other settings, a broken row."""
