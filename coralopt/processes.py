"""Child processes: started in a session of their own, watched, limited, and ended together with all that they started.

The one place that starts processes; only :mod:`coralopt.templates.executors` keeps a pool of its own. psutil is imported
where it is used: workers in another interpreter import this module too, and watch nobody.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

#: Seconds between two looks while waiting.
LOOK_S = 0.05
#: Seconds to wait until the killed descendants are gone; the kernel may hold one that is deep in a driver.
BURIAL_S = 2.0

#: Runs in the child before the program. A second process stays in the new session and reads a pipe whose other end only the
#: parent holds: when that closes, however the parent ended, the process group goes, reader included. It is forked twice, so
#: that the program never has a child it does not know. Ctrl-C works even where a shell started the parent with it ignored.
_LAUNCHER = """
import os, signal, sys
pipe, argv = int(sys.argv[1]), sys.argv[2:]
if os.fork() == 0:
    if os.fork() == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, pipe)
        os.closerange(pipe + 1, pipe + 1024)
        os.read(pipe, 1)
        os.kill(0, signal.SIGKILL)
    os._exit(0)
os.wait()
os.set_inheritable(pipe, False)
signal.signal(signal.SIGINT, signal.SIG_DFL)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    print(f"{argv[0]}: cannot be run: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""


class Ending(Enum):
    """Why a child is no more."""

    FINISHED = "finished"
    FAILED = "failed"
    SIGNAL = "signal"
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "killed"
    GONE = "gone"


@dataclass(frozen=True)
class Exit:
    """How a child ended; as text, the end of a sentence about it.

    Attributes:
        ending: Why. ``GONE``: it was not started here, so nobody knows.
        code: Exit code; minus the signal's number when one ended it; ``None`` when unknown.
        seconds: From its start, or the last :meth:`Child.allow`, to its end as seen from here.
        peak_mib: Largest resident memory seen, MiB; ``None`` when it was never looked at.
    """

    ending: Ending
    code: int | None = None
    seconds: float = 0.0
    peak_mib: float | None = None

    def __str__(self) -> str:
        match self.ending:
            case Ending.FAILED:
                return f"ended with exit code {self.code}"
            case Ending.SIGNAL:
                number = -(self.code or 0)
                known = number in set(signal.Signals)
                return f"ended by signal {signal.Signals(number).name if known else number}"
            case Ending.OUT_OF_TIME:
                return f"killed after {self.seconds:.1f} s"
            case Ending.OUT_OF_MEMORY:
                return f"killed at {self.peak_mib:.0f} MiB"
        return str(self.ending.value)


def birth(pid: int) -> str | None:
    """When a process was started, so that a reused number is not taken for it; ``None`` when it is gone."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            # Seconds after the machine's start: they do not move when its clock is set.
            return f"{process.create_time() - psutil.boot_time():.2f}"
    return None


class Child:
    """A process started by :meth:`start`, or found again by its number.

    As a context manager it is killed with all it started when the block ends.

    Args:
        pid: Its number; also that of its process group.
        born: From :func:`birth`; a process of another birth is somebody else's.
        log: File with what it prints.

    Attributes:
        peak_mib: Largest resident memory seen so far, MiB.
        memory_gib: More resident memory than this, and the next look kills it.
    """

    def __init__(self, pid: int, born: str | None, log: Path | None = None) -> None:
        self.pid, self.born, self.log = pid, born, log
        self.peak_mib: float | None = None
        self.memory_gib: float | None = None
        self._handle: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()
        self._begun = time.monotonic()
        self._seconds: float | None = None
        self._exit: Exit | None = None
        self._why = Ending.SIGNAL
        self._buried = False

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        seconds: float | None = None,
        memory_gib: float | None = None,
        outlives: bool = False,
    ) -> Child:
        """Start a program in a session of its own, so that Ctrl-C in the terminal reaches only this process.

        Args:
            argv: Program and arguments.
            env: Variables added to this process's environment.
            log: File for what it prints; without one, it prints where this process does.
            seconds: Longest run, s.
            memory_gib: Most resident memory of the process itself, GiB.
            outlives: It goes on when this process dies. Otherwise its process group is killed then, whatever ended us
                (on Windows, which has no process groups, only :meth:`kill` ends it).

        Raises:
            OSError: The program is missing or may not be run.
        """
        _require_program(argv[0])
        with ExitStack() as held:
            # Appending, so that whoever empties the file while the child writes gets no hole.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            output = None if log is None else held.enter_context(os.fdopen(os.open(log, flags, 0o644), "wb"))
            error = None if log is None else subprocess.STDOUT
            words, pipes, lifeline = list(argv), [], None
            if not outlives and hasattr(os, "fork"):
                reading, writing = os.pipe()
                held.callback(os.close, reading)
                lifeline = os.fdopen(writing, "wb")
                pipes = [reading]
                words = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(reading), *argv]
            handle = subprocess.Popen(
                words,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                start_new_session=True,
                pass_fds=pipes,
            )
        child = cls(handle.pid, birth(handle.pid), log)
        child._handle, child.memory_gib = handle, memory_gib
        if lifeline is not None:
            child._held.enter_context(lifeline)
        child.allow(seconds)
        return child

    def allow(self, seconds: float | None) -> None:
        """Give it so many seconds from now on, or all it wants."""
        self._begun, self._seconds = time.monotonic(), seconds

    def poll(self) -> Exit | None:
        """How it ended, or ``None`` while it runs. Every look enforces its limits."""
        if self._exit is None:
            if self._handle is None:
                self._exit = None if self.born is not None and birth(self.pid) == self.born else Exit(Ending.GONE)
            elif (code := self._handle.poll()) is not None:
                self._exit = self._ended(code)
            else:
                self._look()
        return self._exit

    @property
    def alive(self) -> bool:
        return self.poll() is None

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """How it ended; ``None`` when it still runs after ``timeout_s``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self.poll() is None:
            left = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
            if left <= 0:
                break
            if self._handle is None:
                time.sleep(left)
            else:
                with suppress(subprocess.TimeoutExpired):
                    self._handle.wait(left)
        return self._exit

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; engines and solvers pass it on to their workers in their own order."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self, grace_s: float = 0.0) -> Exit:
        """End it and all it started, also in sessions of their own; a second time, nothing happens.

        Args:
            grace_s: Time to end by itself after SIGINT, s.
        """
        if not self._buried:
            family = self._family()
            if grace_s > 0 and self.alive:
                self._why = Ending.KILLED
                self._send_group(signal.SIGINT)
                self.wait(grace_s)
            self._end(Ending.KILLED, family)
        return self._exit or Exit(Ending.KILLED)

    @property
    def leaves(self) -> bool:
        """Whether anything of it is left: itself, or what it started in its session."""
        return self.alive or bool(_session(self.pid, self.born))

    def _family(self) -> list[psutil.Process]:
        """Itself and all it started. A process found again may be gone, and its number somebody else's."""
        mine = self._handle is not None or self.alive
        return list({*(_family(self.pid) if mine else ()), *_session(self.pid, self.born)})

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _look(self) -> None:
        self.peak_mib = max(self.peak_mib or 0.0, _resident_mib(self.pid)) or None
        if self._seconds is not None and time.monotonic() - self._begun > self._seconds:
            self._end(Ending.OUT_OF_TIME, self._family())
        elif self.memory_gib is not None and (self.peak_mib or 0.0) > 1024 * self.memory_gib:
            self._end(Ending.OUT_OF_MEMORY, self._family())

    def _send_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if hasattr(os, "killpg") else os.kill)(self.pid, number)

    def _end(self, why: Ending, family: Sequence[psutil.Process]) -> None:
        """Kill the group and whoever left it, and wait until they are gone."""
        self._why, self._buried = why, True
        # Without anybody left, the number may be another group's by now.
        if family:
            self._send_group(getattr(signal, "SIGKILL", signal.SIGTERM))
        _bury(family)
        if self._handle is not None:
            self._handle.wait()
            self._exit = self._exit or self._ended(self._handle.returncode)
        self._held.close()

    def _ended(self, code: int) -> Exit:
        ending = self._why if code < 0 else Ending.FAILED if code else Ending.FINISHED
        return Exit(ending, code, time.monotonic() - self._begun, self.peak_mib)


def _resident_mib(pid: int) -> float:
    import psutil

    with suppress(psutil.Error):
        resident: int = psutil.Process(pid).memory_info().rss
        return resident / 2**20
    return 0.0


def _family(pid: int) -> list[psutil.Process]:
    """The process and its descendants; to be asked before anything is killed: who loses its parent becomes the system's."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def sessions(leaders: Collection[int]) -> dict[int, list[psutil.Process]]:
    """Who lives in the sessions that these processes began, themselves included; one look at the machine for all of them."""
    import psutil

    members: dict[int, list[psutil.Process]] = {leader: [] for leader in leaders}
    for pid in psutil.pids() if hasattr(os, "getsid") else ():
        with suppress(OSError, psutil.Error):
            if (session := os.getsid(pid)) in members and birth(pid) is not None:
                members[session].append(psutil.Process(pid))
    return members


def _session(pid: int, born: str | None) -> list[psutil.Process]:
    """Who lives in the session of a process, though that one be gone: while they do, its number is nobody else's."""
    members = sessions((pid,))[pid]
    stranger = any(member.pid == pid and birth(pid) != born for member in members)
    # Nobody is older than the one who began it.
    return [] if stranger or born is None else [m for m in members if float(birth(m.pid) or 0) >= float(born)]


def machine_boot() -> str:
    """Which start of this machine it is: numbers of processes from before the last one mean nothing."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _bury(family: Sequence[psutil.Process]) -> None:
    """Kill the processes and wait until they are gone."""
    import psutil

    for member in family:
        with suppress(psutil.Error):
            member.kill()
    until = time.monotonic() + BURIAL_S
    for member in family:
        with suppress(psutil.Error):
            while member.is_running() and member.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
                time.sleep(0.005)


def _require_program(program: str) -> None:
    if shutil.which(program) is None:
        number = errno.EACCES if Path(program).exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), program)


def output_of(argv: Sequence[str], timeout_s: float, cwd: Path | None = None) -> str | None:
    """What a short program prints; ``None`` when it is missing, fails, or takes too long."""
    try:
        ended = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout


def own_environment(threads: int | None = None) -> dict[str, str]:
    """Variables with which another interpreter finds this coralopt, and numeric libraries use so many threads."""
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    libraries = ("OMP", "OPENBLAS", "MKL", "NUMBA") if threads is not None else ()
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        **{f"{library}_NUM_THREADS": str(threads) for library in libraries},
    }


def last_words(log: Path, lines: int = 8, indent: str = "  ") -> str:
    """The end of a log, indented, without blank lines."""
    try:
        with log.open(encoding="utf-8", errors="replace") as stream:
            said = deque((line.rstrip() for line in stream if line.strip()), maxlen=lines)
            return "\n".join(f"{indent}{line}" for line in said)
    except OSError:
        return f"{indent}(no log)"
