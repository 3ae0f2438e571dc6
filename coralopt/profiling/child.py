"""One long child process of a profile: its progress, its time limit, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    """Run ``argv`` in a process group of its own, output to ``log``; it and all it started are gone on return.

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
    with log.open("wb") as output:
        try:
            with _handled(signal.SIGINT):
                process = subprocess.Popen(
                    list(argv),
                    env={**os.environ, **env},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(
                f"{argv[0]}: cannot be run: {error.strerror}; install it, or say where it is (--vllm, --python)"
            ) from error
    try:
        with _handled(signal.SIGTERM):
            while process.poll() is None:
                if time.monotonic() > end:
                    raise LaunchError(f"{argv[0]} was not done after {timeout_s:g} s:\n{last_words(log)}")
                time.sleep(0.5)
                if on_look is not None:
                    on_look(log.read_text(encoding="utf-8", errors="replace"))
    finally:
        _stop(process, grace_s)
    if process.returncode:
        raise LaunchError(f"{argv[0]} failed with code {process.returncode}:\n{last_words(log)}")


@contextmanager
def _handled(number: signal.Signals) -> Iterator[None]:
    """The signal interrupts this process like Ctrl-C; a child that starts meanwhile does not inherit that it is ignored.

    A shell's background jobs ignore SIGINT, and so would vLLM's bench, which then could not stop its server.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask the child to stop, then kill what it started, also in sessions of their own (vLLM's bench starts servers so)."""
    family = _descendants(process.pid)
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pid, born in family.items():
        if _stat(pid).get("born") == born:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> dict[int, str]:
    """Process -> when it was started, of all children and their children."""
    known = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = str(waiting.pop())
        for child, stat in known.items():
            if stat.get("parent") == parent and child not in found:
                found[child] = stat["born"]
                waiting.append(child)
    return found


def _stat(pid: int) -> dict[str, str]:
    """Parent and start time of a process; empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return {}
    return {"parent": fields[1], "born": fields[19]}


def last_words(log: Path, lines: int = 8) -> str:
    """The end of a log, indented."""
    text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(f"  {line}" for line in text[-lines:])
