"""Helpers beside the tests are imported by name; fixtures of those that launch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launched import HERE, Launched


@pytest.fixture(autouse=True)
def admin_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are managed under their URL."""
    monkeypatch.setenv("CORALOPT_ADMIN_KEY", "admin")


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """The stand-in as a program."""
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_vllm.py"} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def launched() -> Iterator[list[Launched]]:
    """Launches of a test; whatever it leaves is killed."""
    running: list[Launched] = []
    yield running
    for item in running:
        if item.process.poll() is None:
            for pid in item.pids():
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            item.process.kill()
            item.process.communicate()
