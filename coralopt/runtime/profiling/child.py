"""One long child process of a profile: its progress, its time limit, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coralopt.errors import LaunchError


def run_child(
    argv: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    timeout_s: float,
    on_look: Callable[[str], None] | None = None,
    grace_s: float = 15.0,
) -> None:
    """Run ``argv`` in a process group of its own, output to ``log``; the whole group is gone on return, whatever happens.

    Args:
        argv: Program and arguments.
        env: Environment variables to add.
        log: File for what it prints.
        timeout_s: Longest run, s.
        on_look: Called about twice a second with all that was printed.
        grace_s: Time to stop its own children after SIGTERM, s.

    Raises:
        LaunchError: The program is missing or failed (with the end of what it printed), or time ran out.
    """
    end = time.monotonic() + timeout_s
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                list(argv),
                env={**os.environ, **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{argv[0]}: cannot be run: {error.strerror}") from error
    try:
        while process.poll() is None:
            if time.monotonic() > end:
                raise LaunchError(f"{argv[0]} was not done after {timeout_s:g} s:\n{last_words(log)}")
            time.sleep(0.5)
            if on_look is not None:
                on_look(log.read_text(encoding="utf-8", errors="replace"))
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise LaunchError(f"{argv[0]} failed with code {process.returncode}:\n{last_words(log)}")


def last_words(log: Path, lines: int = 8) -> str:
    """The end of a log, indented."""
    text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(f"  {line}" for line in text[-lines:])
