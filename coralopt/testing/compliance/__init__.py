"""The compliance suite: what every back end must do right, whoever wrote it.

One line in a test file runs it under pytest, a test a case::

    test_compliance = coralopt.testing.compliance.tests("mine")

``python -m coralopt.testing.compliance NAME`` runs it without pytest and prints a table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coralopt.errors import UnsupportedError
from coralopt.solving import Backend, Capability, MatrixBackend, get_backend, is_matrix_backend
from coralopt.testing.compliance import answers as answers
from coralopt.testing.compliance import dialogue as dialogue
from coralopt.testing.compliance import limits as limits
from coralopt.testing.compliance import parts as parts
from coralopt.testing.compliance.case import CASES, Case


@dataclass(frozen=True)
class CaseOutcome:
    """How one case went.

    Attributes:
        case: The case.
        status: ``"passed"``, ``"failed"`` or ``"skipped"`` (the back end does not declare what the case needs).
        message: Why it failed or was skipped.
        seconds: Wall time.
    """

    case: Case
    status: str
    message: str
    seconds: float


def cases() -> tuple[Case, ...]:
    """All cases."""
    return tuple(CASES)


def run_case(item: Case, backend: MatrixBackend) -> CaseOutcome:
    """One case; never raises for a failure."""
    # What takes any integer programme takes those between finite bounds.
    implied = {Capability.BOXED} if Capability.MILP in backend.capabilities else set()
    missing = sorted(need.value for need in item.needs - backend.capabilities - implied)
    if missing:
        return CaseOutcome(item, "skipped", f"does not declare {', '.join(missing)}", 0.0)
    begun = time.perf_counter()
    try:
        item.check(backend)
    except (Exception, KeyboardInterrupt) as error:
        # A back end may raise anything; a Ctrl-C that escapes it is a failure of the interrupt case.
        message = f"{type(error).__name__}: {error}"
        return CaseOutcome(item, "failed", message, time.perf_counter() - begun)
    return CaseOutcome(item, "passed", "", time.perf_counter() - begun)


def run(solver: str | Backend, only: Iterable[str] | None = None) -> list[CaseOutcome]:
    """Run all cases, or those named, against a back end.

    Args:
        solver: Name of a registered back end or a back end itself.
        only: Names of cases.
    """
    backend = _matrix_backend(solver)
    chosen = None if only is None else set(only)
    return [run_case(item, backend) for item in CASES if chosen is None or item.name in chosen]


def _matrix_backend(solver: str | Backend) -> MatrixBackend:
    backend = get_backend(solver)
    if not is_matrix_backend(backend):
        raise UnsupportedError(f"solver {backend.name!r} takes whole problems; the suite is for back ends of matrices")
    return backend


def tests(solver: str | Backend) -> Callable[..., None]:
    """A parametrised pytest function, a test a case; skipped as a whole, visibly, when the solver is not installed."""
    import pytest

    def test(item: Case) -> None:
        backend = _matrix_backend(solver)
        availability = backend.probe()
        if not availability.installed:
            pytest.skip(f"{backend.name} is not installed: {availability.hint}")
        outcome = run_case(item, backend)
        if outcome.status == "skipped":
            pytest.skip(outcome.message)
        assert outcome.status == "passed", f"{item.why}\n{outcome.message}"

    return pytest.mark.parametrize("item", CASES, ids=[item.name for item in CASES])(test)


__all__ = ["Case", "Outcome", "cases", "run", "run_case", "tests"]
