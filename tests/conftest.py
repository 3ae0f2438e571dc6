"""What holds for all tests: Ctrl-C, places to write, how many examples, and one tiny plan and library for the whole run."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import psutil
import pytest
from hypothesis import settings
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from coralopt import Plan, load_scenario, plan_scenario
from coralopt.scenario import ResolvedScenario
from coralopt.templates import TemplateLibrary, load_library

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that: tests of Ctrl-C would never see it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same of SIGHUP and `nohup`.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Tests start hundreds of processes; without kept bytecode each would compile the library anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: Hypothesis profile -> examples of a property, as a multiple of what its test states (100 where it states nothing). Every
#: run draws others: two runs of `dev` see what one would.
EXAMPLES = {"dev": 0.25, "mutants": 0.5, "full": 10.0}
#: `dev` makes no fewer where the test states more.
LEAST_EXAMPLES = 10
# The machine decides how long an example takes, so there are no deadlines.
for profile in EXAMPLES:
    settings.register_profile(profile, deadline=None)
settings.load_profile("dev")


def pytest_configure() -> None:
    """Each kernel is compiled by one worker: the others wait and load what it kept, where all of them would compile it."""
    compile_or_load, locked = Dispatcher.compile, set[str]()

    def compile_once(dispatcher: Dispatcher, signature: object) -> object:
        source = dispatcher.py_func.__code__.co_filename
        if "coralopt" not in dispatcher.py_func.__module__ or source in locked:
            return compile_or_load(dispatcher, signature)
        with global_compiler_lock, Path(source).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            locked.add(source)
            try:
                return compile_or_load(dispatcher, signature)
            finally:
                locked.remove(source)

    Dispatcher.compile = compile_once


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """One worker collects, then all others: they load the bytecode that it kept, assertions rewritten, half the work."""
    with Path(__file__).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What mostly waits begins first; every property has as many examples as the profile says."""
    items.sort(key=lambda item: item.get_closest_marker("soak") is None)
    # Hypothesis keeps the settings of a test here; there is no public way to change them.
    name = "_hypothesis_internal_use_settings"
    functions = {item.function for item in items if isinstance(item, pytest.Function)}
    tests = {function for function in functions if getattr(function, "is_hypothesis_test", False)}
    assert all(hasattr(test, name) for test in tests), f"Hypothesis does not keep settings in {name} any more"
    factor = EXAMPLES.get(settings.get_current_profile_name(), 1.0)
    for test in tests:
        chosen = getattr(test, name)
        count = max(int(factor * chosen.max_examples), min(LEAST_EXAMPLES, chosen.max_examples))
        setattr(test, name, settings(chosen, max_examples=count))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What stays for the whole run, modules and tests, is not looked through again at every collection of garbage.

    Collections are rarer, too: compiling kernels and making models allocates millions of objects, few of them in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes into the home directory or the cache of whoever runs it; processes that tests start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("CORALOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        yield


@pytest.fixture(autouse=True)
def _nothing_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test found installed may be missing in this one."""
    monkeypatch.setattr("coralopt.solving.registry._INSTALLED", set())


#: What :func:`interrupt_at` is: the line, and which code's lines count -> whether so many lines came.
InterruptAt = Callable[[int, Callable[[CodeType], bool]], AbstractContextManager[Callable[[], bool]]]


@pytest.fixture
def interrupt_at() -> InterruptAt:
    """Ctrl-C at the n-th line of some code that this thread comes to, wherever that is."""

    @contextmanager
    def pressed(line: int, counts: Callable[[CodeType], bool]) -> Iterator[Callable[[], bool]]:
        left = line

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if not counts(frame.f_code):
                return None
            left -= event == "line"
            if left == 0 and event == "line":
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield lambda: left <= 0
        finally:
            sys.settrace(before)

    return pressed


@pytest.fixture(scope="session")
def tiny_scenario() -> ResolvedScenario:
    """The smallest built-in scenario."""
    return load_scenario("tiny")


@pytest.fixture(scope="session")
def tiny_library_file(tmp_path_factory: pytest.TempPathFactory, tiny_scenario: ResolvedScenario) -> Path:
    """Its template library as a file. Tests that change the file copy it first."""
    from coralopt.templates import obtain_library

    path = tmp_path_factory.mktemp("library") / "tiny.parquet"
    obtain_library(tiny_scenario, path)
    return path


@pytest.fixture(scope="session")
def tiny_library(tiny_library_file: Path) -> TemplateLibrary:
    """Its template library."""
    return load_library(tiny_library_file)


@pytest.fixture(scope="session")
def tiny_plan(tiny_scenario: ResolvedScenario, tiny_library_file: Path) -> Plan:
    """Its plan: one instance for each of four model phases."""
    return plan_scenario(tiny_scenario, library=tiny_library_file)


@pytest.fixture
def tiny_plan_file(tiny_plan: Plan, tmp_path: Path) -> Path:
    """Its plan as ``plan.json`` in the test's own folder."""
    path = tmp_path / "plan.json"
    tiny_plan.save(path)
    return path


@dataclass(frozen=True)
class Finished:
    """What a command printed and how it ended."""

    returncode: int
    stdout: str
    stderr: str


RunningProcesses = Callable[[], list[str]]


@pytest.fixture
def running_processes(monkeypatch: pytest.MonkeyPatch) -> RunningProcesses:
    """Command lines of what this test started and what that started, and so on: whoever inherited the test's mark.

    Those that left their session or lost their parent are seen, too; other tests' processes never are.
    """
    mark = uuid.uuid4().hex
    monkeypatch.setenv("CORALOPT_TEST_MARK", mark)

    def running() -> list[str]:
        lines = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("CORALOPT_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                    lines.append(" ".join(process.cmdline()))
        return lines

    return running


@pytest.fixture
def nothing_runs(running_processes: RunningProcesses) -> Callable[[], bool]:
    """Whether everything that this test started is gone, or is within a minute: the kernel needs a moment."""

    def wait() -> bool:
        end = time.monotonic() + 60
        while running_processes() and time.monotonic() < end:
            time.sleep(0.05)
        return not running_processes()

    return wait


RunCli = Callable[..., Finished]


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    """``run_cli("plan", "tiny")``: the command line in this process, in the test's folder; ends as the command would.

    Give ``process=True`` where a process of its own is the point: Ctrl-C, pipes, what is imported.
    """
    from coralopt.cli import main

    def run(*arguments: str, cwd: Path = tmp_path, process: bool = False, **environment: str) -> Finished:
        if process:
            command = [sys.executable, "-m", "coralopt", *arguments]
            ended = subprocess.run(
                command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
            )
            return Finished(ended.returncode, ended.stdout, ended.stderr)
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["coralopt", *arguments])
            for name, value in environment.items():
                patch.setenv(name, value)
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended_by:
                main()
        printed = capsys.readouterr()
        code = ended_by.value.code
        return Finished(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run
