"""One server process in a process group of its own: start, watch, stop, kill what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coralopt.errors import LaunchError

#: Seconds between two looks at a process.
POLL_S = 0.05


def birth(pid: int) -> str | None:
    """When the kernel started a process, so that a reused number is not taken for it; ``None`` when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else fields[19]


class ServerProcess:
    """A process started here, or found again after the controller was restarted.

    Args:
        name: For messages.
        pid: Its number; also that of its process group.
        born: From :func:`birth`.
        log: File with what it prints.
        child: The handle when it was started here.
    """

    def __init__(
        self, name: str, pid: int, born: str | None, log: Path, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.name = name
        self.pid = pid
        self.born = born
        self.log = log
        self._child = child

    @staticmethod
    def start(name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> ServerProcess:
        """Start ``argv`` with this process's environment and ``env``; output goes to ``log``.

        Raises:
            LaunchError: The program is missing or cannot be run.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as output:
                child = subprocess.Popen(
                    list(argv),
                    env={**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"{name}: {argv[0]!r} cannot be started: {error.strerror or error}") from error
        return ServerProcess(name, child.pid, birth(child.pid), log, child)

    @property
    def code(self) -> int | None:
        """Exit code, when it ended and was started here."""
        return None if self._child is None else self._child.poll()

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self.born is not None and birth(self.pid) == self.born

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; engines pass it on to their workers in their own order."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """End whatever is left of its process group."""
        if self._child is None and not self.alive:
            # Found in a state file and gone since: the number may belong to somebody else by now.
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()

    async def ended(self, timeout_s: float) -> bool:
        """Whether it ends within ``timeout_s``."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + timeout_s
        while self.alive:
            if loop.time() >= limit:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def last_lines(self, count: int = 15) -> str:
        try:
            with self.log.open(encoding="utf-8", errors="replace") as lines:
                return "".join(f"    {line.rstrip()}\n" for line in deque(lines, maxlen=count)).rstrip("\n")
        except OSError:
            return "    (no log)"
