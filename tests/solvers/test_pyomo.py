"""Solvers behind Pyomo's factories: what is installed is found, and what goes wrong is told."""

from __future__ import annotations

import pytest

from coralopt.errors import SolverNotFoundError
from coralopt.solving import get_backend, require_backend


@pytest.mark.parametrize("name", ["pyomo:highs", "pyomo:appsi_highs"])
def test_an_installed_solver_is_found(name: str) -> None:
    """HiGHS comes with coralopt; were it not found, its compliance cases would be skipped without a word."""
    probe = get_backend(name).probe()
    assert probe.installed, probe.hint
    assert probe.version


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("pyomo:highs", "pyomo.contrib.solver.solvers.highs.Highs.available"),
        ("pyomo:appsi_highs", "pyomo.contrib.appsi.solvers.highs.Highs.available"),
    ],
)
def test_an_error_while_looking_is_told(monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    """What Pyomo raises is the reason, not "install it"."""

    def broken(*_: object, **__: object) -> bool:
        raise RuntimeError("libhighs.so is damaged")

    try:
        monkeypatch.setattr(path, broken)
    except (ImportError, AttributeError):
        pytest.fail(f"Pyomo has no {path}: name where this version keeps it")
    probe = get_backend(name).probe()
    assert not probe.installed
    assert "RuntimeError: libhighs.so is damaged" in probe.hint
    with pytest.raises(SolverNotFoundError, match="damaged"):
        require_backend(name)
