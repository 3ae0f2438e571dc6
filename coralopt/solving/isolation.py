"""A solve in a process of its own: a deadline that holds, and an incumbent that outlives its solver.

The child runs ``python -m coralopt.solving.worker FOLDER``. Both sides talk through files of a private temporary folder:
the matrix and the request go in; events (one JSON object a line), the latest incumbent and the result come out. Nothing
is pickled, and what a dying solver leaves half-written is never read.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from coralopt.errors import (
    LicenseLimitError,
    OptionError,
    SolverError,
    SolverNotFoundError,
    UnsupportedError,
    WrongAnswerError,
)
from coralopt.processes import LOOK_S, Child, Ending, Exit
from coralopt.solving.backend import Basis, Listener, MatrixBackend, RawResult, SolveProgress
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import SolveOptions
from coralopt.solving.status import Limit, Reason
from coralopt.solving.transfer import result_from, write_request
from coralopt.solving.verdict import weak_bound
from coralopt.threads import heed_interrupt
from coralopt.types import Floats

#: What a back end may raise, by name.
RAISED = {
    kind.__name__: kind
    for kind in (LicenseLimitError, OptionError, SolverNotFoundError, UnsupportedError, WrongAnswerError)
}
#: Seconds that a solver may take beyond its time limit to stop by itself before it is killed.
GRACE = 1.0
#: Seconds that a solver may take to stop after Ctrl-C.
PATIENCE = 5.0


def solve_isolated(
    matrix: MilpMatrix,
    backend: MatrixBackend,
    options: SolveOptions,
    start: Floats | Basis | None,
    on_progress: Listener | None,
    begun: float,
) -> RawResult:
    """Run ``backend.solve`` in a process of its own.

    The clock of ``time_limit`` starts when the child has read the matrix; where nobody asked for a process, at ``begun``,
    but never leaves the solver less than two fifths of the limit. ``GRACE`` seconds after the limit, or when its
    resident memory passes ``memory_limit``, the child is killed; the best incumbent it reported is the answer then, as
    it is when the solver crashes.

    Raises:
        UnsupportedError: The back end has neither a registered name nor a class that another process can import.
        SolverError: What the back end raised, under the same class.
    """
    with tempfile.TemporaryDirectory(prefix="coralopt-") as name:
        folder = Path(name)
        # Who did not ask for a process has a limit for its start as well.
        write_request(folder, matrix, _address(backend), options, start, math.inf if options.isolate else begun)
        argv = [sys.executable, "-m", "coralopt.solving.worker", str(folder)]
        with Child.start(argv, memory_gib=options.memory_limit) as child:
            watch = _Watch(folder, child, options, on_progress)
            limit, words = watch.to_the_end()
        watch.read_events()
        if (folder / "result.json").exists():
            return result_from(folder)
        return _from_incumbent(folder, matrix, watch, limit, words)


def _address(backend: MatrixBackend) -> str:
    """How the child finds the back end: ``name NAME`` of a registered one, or ``class module:class``."""
    from coralopt.solving.registry import get_backend

    with contextlib.suppress(SolverError):
        if type(get_backend(backend.name)) is type(backend):
            return f"name {backend.name}"
    kind = type(backend)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        raise UnsupportedError(
            f"solver {backend.name!r} cannot be isolated: {kind.__qualname__} is not importable by another process; "
            "define it in a module, or register it under the entry-point group coralopt.solvers"
        )
    return f"class {kind.__module__}:{kind.__qualname__}"


class _Watch:
    """The parent's eye on the child."""

    def __init__(
        self,
        folder: Path,
        child: Child,
        options: SolveOptions,
        on_progress: Listener | None,
    ) -> None:
        self.folder, self.child, self.options, self.on_progress = folder, child, options, on_progress
        self.ready: float | None = None
        self.bound: float | None = None
        self._events = folder / "events.jsonl"
        self._read = 0

    def to_the_end(self) -> tuple[Limit | None, str]:
        """Wait for the child; which limit made us kill it, and in words how it ended."""
        interrupted: float | None = None
        while True:
            try:
                if (end := self.child.wait(LOOK_S)) is not None:
                    return self._verdict(end, interrupted is not None)
                heed_interrupt()
                self.read_events()
                if interrupted is not None and time.perf_counter() - interrupted > PATIENCE:
                    return Limit.INTERRUPTED, "killed after Ctrl-C"
            except KeyboardInterrupt:
                if interrupted is not None:
                    raise
                interrupted = time.perf_counter()
                self.child.send(signal.SIGINT)

    def _verdict(self, end: Exit, interrupted: bool) -> tuple[Limit, str]:
        if interrupted:
            return Limit.INTERRUPTED, "stopped by Ctrl-C"
        if end.ending is Ending.OUT_OF_TIME:
            return Limit.TIME, f"killed {GRACE:g} s after its time limit of {self.options.time_limit:g} s"
        if end.ending is Ending.OUT_OF_MEMORY:
            return Limit.MEMORY, f"killed at its memory limit of {self.options.memory_limit:g} GiB"
        return Limit.OTHER, f"the solver's process {end}"

    def read_events(self) -> None:
        """Take in the whole lines that the child has written since the last time."""
        if not self._events.exists():
            return
        with self._events.open("rb") as stream:
            stream.seek(self._read)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if "ready" in event:
                self.ready = time.perf_counter()
                if event["ready"] is not None:
                    self.child.allow(event["ready"] + GRACE)
                continue
            objective, bound = event["objective"], event["bound"]
            self.bound = self.bound if bound is None else bound
            if self.on_progress is not None:
                self.on_progress(SolveProgress(objective, bound, event["seconds"]))


def _from_incumbent(folder: Path, matrix: MilpMatrix, watch: _Watch, limit: Limit | None, words: str) -> RawResult:
    """What remains of a solve without a result: an error to raise, or the last incumbent and bound."""
    failed = folder / "error.json"
    if failed.exists():
        said = json.loads(failed.read_text(encoding="utf-8"))
        raise RAISED.get(said["kind"], SolverError)(said["message"])
    incumbent = folder / "incumbent.npy"
    x = np.load(incumbent, allow_pickle=False) if incumbent.exists() else None
    bound = weak_bound(matrix.maximize) if watch.bound is None else watch.bound
    reason = Reason.FEASIBLE if x is not None else Reason.NO_SOLUTION_FOUND
    if x is None and limit is Limit.OTHER:
        reason = Reason.OTHER_ERROR
    seconds = math.nan if watch.ready is None else time.perf_counter() - watch.ready
    return RawResult(reason, limit, words, x, bound, solve_seconds=seconds)
