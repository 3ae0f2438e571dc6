"""Running a bench: every run in its own fresh process, killed when it overstays, its row on disk before the next."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coralopt.benchmark.child import CALLED, thinned
from coralopt.benchmark.instances import Instance
from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.problem_file import problem_digest, save_problem
from coralopt.benchmark.results import ResultsFile, Row
from coralopt.benchmark.task import BenchTask, RunJob, Settings
from coralopt.errors import CoraloptError
from coralopt.machine import machine_data
from coralopt.processes import Child, Ending, Exit, last_words, own_environment
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

    task: BenchTask
    child: Child
    folder: Path
    common: Row
    started: bool = False


def run_bench(
    tasks: Sequence[BenchTask],
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
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        bench = _Bench(settings, results, Path(scratch), jobs, logs, missing, machine_data())
        interrupted = False
        done = kept = len(tasks) - len(todo)
        tell = progress or (lambda *_: None)
        try:
            for instance in dict.fromkeys(task.instance for task in todo if task.arm.solver not in missing):
                # All of them first: a mistake shows at once, and drawing disturbs no run.
                tell(done, len(tasks), f"drawing {instance.name}")
                bench.draw(instance)
            tell(done, len(tasks), "")
            for task in bench.rows(todo):
                done += 1
                tell(done, len(tasks), task.key)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            bench.stop()
    return BenchReport(done, len(tasks), kept, interrupted, time.perf_counter() - clock)


def _is_open(row: Row | None, again: Collection[str], missing: bool) -> bool:
    if row is None or row["outcome"] in again:
        return True
    return row["outcome"] == Outcome.NOT_INSTALLED.value and not missing


def _not_installed(tasks: Iterable[BenchTask]) -> dict[str, str]:
    """Solvers whose package is missing, with what to install."""
    hints = {}
    for solver in dict.fromkeys(task.arm.solver for task in tasks):
        try:
            availability = get_backend(solver).probe()
        except CoraloptError as error:
            hints[solver] = str(error)
            continue
        if not availability.installed:
            hints[solver] = availability.hint
    return hints


@dataclass
class _Bench:
    """The processes of one bench; ``missing`` says what to install for solvers that are not there."""

    settings: Settings
    results: ResultsFile
    scratch: Path
    jobs: int
    logs: Path | None
    missing: Mapping[str, str]
    machine: Mapping[str, object]
    instances: dict[Instance, tuple[Path, str, str]] = field(default_factory=dict)
    running: list[_Run] = field(default_factory=list)
    count: int = 0

    def draw(self, instance: Instance) -> None:
        """Put an instance into a file for the processes to read."""
        problem = instance.problem()
        path = self.scratch / f"instance-{len(self.instances) + 1}.npz"
        save_problem(problem, path)
        self.instances[instance] = (path, problem_digest(problem), problem.sense)

    def rows(self, todo: list[BenchTask]) -> Iterable[BenchTask]:
        """Run everything; yields a task when its row is on disk."""
        waiting = list(reversed(todo))
        while waiting or self.running:
            while waiting and len(self.running) < self.jobs:
                task = waiting.pop()
                if task.arm.solver in self.missing:
                    hint = self.missing[task.arm.solver]
                    self.results.append({**self.common(task), "outcome": Outcome.NOT_INSTALLED.value, "message": hint})
                    yield task
                else:
                    self.start(task)
            for run in list(self.running):
                if not run.started and _has_started(run.folder):
                    run.started = True
                    run.child.allow(self.settings.time_limit + self.settings.grace)
                end = run.child.poll()
                if end is not None:
                    self.running.remove(run)
                    self.finish(run, end)
                    yield run.task
            time.sleep(TICK)

    def common(self, task: BenchTask) -> Row:
        """What a row says whatever happens."""
        instance, arm = task.instance, task.arm
        _, digest, sense = self.instances.get(instance, (None, "", None))
        return {
            "key": task.key,
            "instance": instance.name,
            "kind": instance.kind,
            "size": instance.size,
            "instance_digest": digest,
            "sense": sense,
            "arm": arm.name,
            **asdict(arm),
            "seed": task.seed,
            "settings": self.settings.plain(),
            "jobs": self.jobs,
            "machine": self.machine,
        }

    def start(self, task: BenchTask) -> None:
        """A fresh process in a session of its own, so that Ctrl-C reaches the bench only."""
        problem = self.instances[task.instance][0]
        self.count += 1
        folder = self.scratch / f"run-{self.count}"
        folder.mkdir()
        options = {**self.settings.solve_options(task.seed).to_mapping(), "log": self.logs is not None}
        job = RunJob(str(problem), task.arm, task.seed, self.settings.permute, options)
        (folder / "task.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
        child = Child.start(
            [sys.executable, "-m", "coralopt.benchmark.child", str(folder)],
            env={**own_environment(self.settings.threads), "PYTHONHASHSEED": "0"},
            log=folder / "log.txt",
            seconds=SETUP_LIMIT,
            memory_gib=self.settings.memory_limit,
        )
        self.running.append(_Run(task, child, folder, self.common(task)))

    def finish(self, run: _Run, end: Exit) -> None:
        """Put the row of an ended process on disk."""
        run.child.kill()
        memory = None if end.peak_mib is None else round(end.peak_mib, 1)
        events = thinned(_events(run.folder)[0])
        self.results.append({"memory_mib": memory, **run.common, **_result(run, end), "events": events})
        if self.logs is not None:
            name = "".join(letter if letter.isalnum() or letter in "-=." else "_" for letter in run.task.key)
            (run.folder / "log.txt").replace(self.logs / f"{name}.txt")
        shutil.rmtree(run.folder)

    def stop(self) -> None:
        """End what still runs; it gets no row and is run next time."""
        for run in self.running:
            run.child.kill()
        self.running.clear()


def _has_started(folder: Path) -> bool:
    events = folder / "events.jsonl"
    return events.exists() and events.stat().st_size > 0


def _events(folder: Path) -> tuple[list[list[float]], dict[str, float]]:
    """What a run wrote down: [seconds, objective] of every incumbent, and marks; a torn last line is left out."""
    path = folder / "events.jsonl"
    incumbents: list[list[float]] = []
    marks: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            event = json.loads(line)
            if isinstance(event, dict):
                marks |= event
            else:
                incumbents.append(event)
    return incumbents, marks


def _result(run: _Run, end: Exit) -> Row:
    """What the run said, or what its silence means."""
    path = run.folder / "result.json"
    if path.exists():
        row: Row = json.loads(path.read_text(encoding="utf-8"))
        return row
    seconds = round(end.seconds, 3) if run.started else None
    if end.ending is Ending.OUT_OF_MEMORY:
        return {"outcome": Outcome.MEMORY.value, "message": str(end), "seconds": seconds}
    if end.ending is Ending.OUT_OF_TIME:
        words = f"{end}, {_where(run.folder)}" if run.started else "killed while starting"
        return {"outcome": Outcome.HUNG.value, "message": words, "seconds": seconds}
    words = f"{end}: {last_words(run.folder / 'log.txt', 1, '')[:200]}".rstrip(": ")
    return {"outcome": Outcome.DIED.value, "message": words, "seconds": seconds}


def _where(folder: Path) -> str:
    """Whether a killed run was building its model or inside the solver."""
    called = _events(folder)[1].get(CALLED)
    return "still before the solver's first call" if called is None else f"inside the solver since {called:.1f} s"
