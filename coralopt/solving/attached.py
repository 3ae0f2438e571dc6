"""Checks and formulations attached to problems by a registry.

A problem is plain data at the bottom of its package; its check and its formulations import it. So that it can offer them
all the same, without importing what lies above it, the package attaches them when it is imported::

    attach(PlacementProblem, check_placement, FORMULATIONS)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coralopt.errors import SolverError
from coralopt.solving.problem import A, Check, Formulation

P = TypeVar("P")


@dataclass(frozen=True)
class _Attachment(Generic[P, A]):
    check: Callable[[P, A], Check]
    formulations: Mapping[str, Formulation[P, A]]


# One registry for every class of problem: what belongs together is checked where it is attached.
_ATTACHED: dict[type, _Attachment[Any, Any]] = {}


def attach(problem: type[P], check: Callable[[P, A], Check], formulations: Mapping[str, Formulation[P, A]]) -> None:
    """Give a class of problems, and every class derived from it, its check and its formulations by name."""
    _ATTACHED[problem] = _Attachment(check, formulations)


class AttachedProblem(Generic[A]):
    """Base of a problem whose check and formulations are attached to it by :func:`attach`."""

    def formulations(self) -> Mapping[str, Formulation[Any, A]]:
        """The formulations of this problem by name."""
        return self._attached().formulations

    def check(self, answer: A) -> Check:
        """Feasibility and objective of ``answer`` from first principles, by the attached check."""
        return self._attached().check(self, answer)

    def _attached(self) -> _Attachment[Any, A]:
        for kind in type(self).__mro__:
            if kind in _ATTACHED:
                return _ATTACHED[kind]
        raise SolverError(f"nothing is attached to {type(self).__name__}; import its package, which attaches its check")
