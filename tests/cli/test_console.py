"""Progress without a terminal: a line on standard error now and then."""

from __future__ import annotations

import pytest

from coralopt.cli.console import progress_bar


@pytest.mark.parametrize(("seconds", "lines"), [(-1.0, 2), (60.0, 0)])
def test_plain_progress(
    seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coralopt.cli.console.PLAIN_S", seconds)
    with progress_bar("templates") as progress:
        progress("m/prefill", 1_000, 2_000)
        progress("m/decode", 2_000, 2_000)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == lines
    assert not lines or printed[0] == "templates: 1,000 of 2,000 after 0 s, m/prefill"


@pytest.mark.parametrize(("shown_beside", "bar"), [(False, True), (True, False)])
def test_the_bar_of_a_document_for_machines(
    shown_beside: bool, bar: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A document that goes to a file leaves the terminal to the bar; nothing of it comes into the document."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: shown_beside)
    with progress_bar("simulation", quiet=True) as progress:
        progress("requests", 1_000, 2_000)
    printed = capsys.readouterr()
    assert ("simulation" in printed.err) == bar
    assert printed.out == ""
