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
