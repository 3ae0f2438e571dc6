"""Running a bench: every run in its own fresh process, killed when it overstays, its row on disk before the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coralopt.benchmark.child import CALLED, peak_memory_mib, thinned
from coralopt.benchmark.instances import Instance
from coralopt.benchmark.machine import machine_data
from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.problem_file import problem_digest, save_problem
from coralopt.benchmark.results import ResultsFile, Row
from coralopt.benchmark.task import Settings, Task
from coralopt.errors import CoraloptError
from coralopt.solving import get_backend

#: Seconds for starting, imports and warming up; none of it counts.
SETUP_LIMIT = 180.0
#: Seconds between two looks at the running processes.
TICK = 0.02

#: Told (runs done, runs in all, what is going on).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class BenchReport:
    """What a call of :func:`run_bench` did.

    Attributes:
        done: Runs that have a row now.
        total: Runs asked for.
        kept: Runs that had a row before and were not repeated.
        interrupted: Whether Ctrl-C ended it.
        seconds: Wall seconds.
    """

    done: int
    total: int
    kept: int
    interrupted: bool
    seconds: float


@dataclass
class _Run:
    """A process at work on one task."""

    task: Task
    process: subprocess.Popen[bytes]
    folder: Path
    log: IO[bytes]
    common: Row
    begun: float
    started: float | None = None
    memory: float | None = None
    killed: Outcome | None = None


def run_bench(
    tasks: Sequence[Task],
    settings: Settings,
    output: Path,
    *,
    jobs: int = 1,
    retry: Collection[Outcome] = (),
    logs: Path | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Run all tasks that have no row yet; Ctrl-C keeps every row made so far and says so in the report.

    Args:
        tasks: From :func:`coralopt.benchmark.make_tasks`.
        settings: Equal for all rows of one file.
        output: Results file, JSON lines; continued when it exists.
        jobs: Processes at a time. More than one disturbs the seconds measured.
        retry: Outcomes whose runs are repeated. A solver that was not installed and is now is always tried again.
        logs: Folder for the solvers' own logs, one file a run.
        progress: Told when a run ends.

    Raises:
        BenchmarkError: The results file belongs to other settings, to another running bench, or is broken; or an
            instance cannot be made.
    """
    clock = time.perf_counter()
    with ResultsFile(output, settings) as results, tempfile.TemporaryDirectory(prefix="coralopt-bench-") as scratch:
        missing = _not_installed(tasks)
        again = {outcome.value for outcome in retry}
        todo = [task for task in tasks if _is_open(results.rows.get(task.key), again, task.arm.solver in missing)]
        bench = _Bench(settings, results, Path(scratch), jobs, logs, missing, machine_data())
        interrupted = False
        done = kept = len(tasks) - len(todo)
        say = progress or (lambda *_: None)
        try:
            for instance in dict.fromkeys(task.instance for task in todo if task.arm.solver not in missing):
                # All of them first: a mistake shows at once, and drawing disturbs no run.
                say(done, len(tasks), f"drawing {instance.name}")
                bench.draw(instance)
            say(done, len(tasks), "")
            for task in bench.rows(todo):
                done += 1
                say(done, len(tasks), task.key)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            bench.stop()
    return BenchReport(done, len(tasks), kept, interrupted, time.perf_counter() - clock)


def _is_open(row: Row | None, again: Collection[str], missing: bool) -> bool:
    if row is None or row["outcome"] in again:
        return True
    return row["outcome"] == Outcome.NOT_INSTALLED.value and not missing


def _not_installed(tasks: Iterable[Task]) -> dict[str, str]:
    """Solvers whose package is missing, with what to install."""
    found = {}
    for solver in dict.fromkeys(task.arm.solver for task in tasks):
        try:
            availability = get_backend(solver).probe()
        except CoraloptError as error:
            found[solver] = str(error)
            continue
        if not availability.installed:
            found[solver] = availability.hint
    return found


class _Bench:
    """The processes of one bench."""

    def __init__(
        self,
        settings: Settings,
        results: ResultsFile,
        scratch: Path,
        jobs: int,
        logs: Path | None,
        missing: dict[str, str],
        machine: dict[str, Any],
    ) -> None:
        self.settings, self.results, self.scratch, self.jobs = settings, results, scratch, jobs
        self.logs, self.missing, self.machine = logs, missing, machine
        self.instances: dict[Instance, tuple[Path, str]] = {}
        self.running: list[_Run] = []
        self.count = 0
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)

    def draw(self, instance: Instance) -> None:
        """Put an instance into a file for the processes to read."""
        problem = instance.problem()
        path = self.scratch / f"instance-{len(self.instances) + 1}.npz"
        save_problem(problem, path)
        self.instances[instance] = (path, problem_digest(problem))

    def rows(self, todo: list[Task]) -> Iterable[Task]:
        """Run everything; yields a task when its row is on disk."""
        waiting = list(reversed(todo))
        while waiting or self.running:
            while waiting and len(self.running) < self.jobs:
                task = waiting.pop()
                if task.arm.solver in self.missing:
                    hint = self.missing[task.arm.solver]
                    self.results.append(
                        {**self.common(task, ""), "outcome": Outcome.NOT_INSTALLED.value, "message": hint}
                    )
                    yield task
                else:
                    self.start(task)
            for run in list(self.running):
                self.watch(run)
                if run.process.poll() is not None:
                    self.running.remove(run)
                    self.finish(run)
                    yield run.task
            time.sleep(TICK)

    def common(self, task: Task, digest: str) -> Row:
        """What a row says whatever happens."""
        instance, arm = task.instance, task.arm
        return {
            "key": task.key,
            "instance": instance.name,
            "kind": instance.kind,
            "size": instance.size,
            "instance_digest": digest,
            "arm": arm.name,
            "solver": arm.solver,
            "formulation": arm.formulation,
            "reductions": arm.reductions,
            "restrict": arm.restrict,
            "arrays": arm.arrays,
            "seed": task.seed,
            "settings": self.settings.plain(),
            "jobs": self.jobs,
            "machine": self.machine,
        }

    def start(self, task: Task) -> None:
        """A fresh process in a session of its own, so that Ctrl-C reaches the bench only."""
        problem, digest = self.instances[task.instance]
        self.count += 1
        folder = self.scratch / f"run-{self.count}"
        folder.mkdir()
        options = self.settings.solve_options(task.seed).to_mapping()
        data = {
            "problem": str(problem),
            "solver": task.arm.solver,
            "formulation": task.arm.formulation,
            "reductions": task.arm.reductions,
            "restrict": task.arm.restrict,
            "arrays": task.arm.arrays,
            "seed": task.seed,
            "permute": self.settings.permute,
            "options": {**options, "log": self.logs is not None},
        }
        (folder / "task.json").write_text(json.dumps(data), encoding="utf-8")
        # Open until the process has ended; its last line may say why it died.
        log = (folder / "log.txt").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "coralopt.benchmark.child", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(self.settings.threads),
            start_new_session=True,
        )
        self.running.append(_Run(task, process, folder, log, self.common(task, digest), time.perf_counter()))

    def watch(self, run: _Run) -> None:
        """Kill a run that overstays or takes too much memory."""
        now = time.perf_counter()
        if run.started is None and _has_started(run.folder):
            run.started = now
        memory = peak_memory_mib(run.process.pid)
        run.memory = memory if run.memory is None else max(memory or 0.0, run.memory)
        limit = self.settings.memory_limit
        if limit is not None and run.memory is not None and run.memory > 1024 * limit:
            run.killed = Outcome.MEMORY
        elif run.started is None:
            if now - run.begun > SETUP_LIMIT:
                run.killed = Outcome.HUNG
        elif now - run.started > self.settings.time_limit + self.settings.grace:
            run.killed = Outcome.HUNG
        if run.killed is not None:
            _kill(run.process)

    def finish(self, run: _Run) -> None:
        """Put the row of an ended process on disk."""
        said = _result(run)
        events = [event for event in _events(run.folder) if isinstance(event, list)]
        row = {"memory_mib": run.memory, **run.common, **said, "events": thinned(events)}
        self._close(run)
        self.results.append(row)
        if self.logs is not None:
            name = "".join(letter if letter.isalnum() or letter in "-=." else "_" for letter in run.task.key)
            (run.folder / "log.txt").replace(self.logs / f"{name}.txt")
        for path in run.folder.iterdir():
            path.unlink()
        run.folder.rmdir()

    def stop(self) -> None:
        """End what still runs; it gets no row and is run next time."""
        for run in self.running:
            _kill(run.process)
            self._close(run)
        self.running.clear()

    def _close(self, run: _Run) -> None:
        run.process.wait()
        run.log.close()
        if run.process.stdin is not None:
            run.process.stdin.close()


def _environment(threads: int) -> dict[str, str]:
    """The environment of a run: this coralopt, and no library with more threads than the solver may have."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    limited = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONHASHSEED": "0",
        **dict.fromkeys(limited, str(threads)),
    }


def _has_started(folder: Path) -> bool:
    events = folder / "events.jsonl"
    return events.exists() and events.stat().st_size > 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and whatever it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        process.kill()


def _events(folder: Path) -> list[Any]:
    """What a run wrote down: [seconds, objective] of every incumbent, and marks; a torn last line is left out."""
    path = folder / "events.jsonl"
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def _result(run: _Run) -> Row:
    """What the run said, or what its silence means."""
    path = run.folder / "result.json"
    if path.exists():
        said: Row = json.loads(path.read_text(encoding="utf-8"))
        return said
    waited = None if run.started is None else round(time.perf_counter() - run.started, 3)
    if run.killed is Outcome.MEMORY:
        words = f"killed at {run.memory:.0f} MiB"
    elif run.killed is Outcome.HUNG:
        words = f"killed {'while starting' if waited is None else f'after {waited:.1f} s, {_where(run.folder)}'}"
    else:
        code = run.process.returncode
        how = f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = f"{how}: {_last_words(run.folder)}".rstrip(": ")
    return {"outcome": (run.killed or Outcome.DIED).value, "message": words, "seconds": waited}


def _where(folder: Path) -> str:
    """Whether a killed run was building its model or inside the solver."""
    called = [event[CALLED] for event in _events(folder) if isinstance(event, dict) and CALLED in event]
    return f"inside the solver since {called[0]:.1f} s" if called else "still before the solver's first call"


def _last_words(folder: Path) -> str:
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else ""
