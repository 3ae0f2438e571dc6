"""One long child process of a profile: its progress, its time limit, and no process left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.processes import Child, Ending, last_words


def run_child(
    argv: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    timeout_s: float,
    on_look: Callable[[str], None] | None = None,
    grace_s: float = 15.0,
) -> None:
    """Run ``argv``, output to ``log``; it and all it started are gone on return, whatever happens.

    Args:
        argv: Program and arguments.
        env: Environment variables to add.
        log: File for what it prints.
        timeout_s: Longest run, s.
        on_look: Called about twice a second with all that was printed.
        grace_s: Time to stop its own children after SIGINT, s.

    Raises:
        LaunchError: The program is missing or failed (with the end of what it printed), or time ran out.
    """
    end = time.monotonic() + timeout_s
    try:
        child = Child.start(argv, env=env, log=log)
    except OSError as error:
        raise LaunchError(
            f"{argv[0]}: cannot be run: {error.strerror}; install it, or say where it is (--vllm, --python)"
        ) from error
    try:
        with _sigterm_interrupts():
            while child.wait(0.5) is None:
                if time.monotonic() > end:
                    raise LaunchError(f"{argv[0]} was not done after {timeout_s:g} s:\n{last_words(log)}")
                if on_look is not None:
                    on_look(log.read_text(encoding="utf-8", errors="replace"))
    finally:
        exit = child.kill(grace_s)
    if exit.ending is not Ending.FINISHED:
        raise LaunchError(f"{argv[0]} failed with code {exit.code}:\n{last_words(log)}")


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """A plain kill interrupts this process like Ctrl-C, so that servers in sessions of their own end, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
