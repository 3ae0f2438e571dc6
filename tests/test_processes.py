"""Child processes on real ones: limits, trees, parents that die, and nothing that goes around the supervisor."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import coralopt
from coralopt.processes import Child, Ending, Exit, birth, last_words, output_of, own_environment

PYTHON = sys.executable
#: Starts a sleeping child, one more in a session of its own, writes down their numbers, and waits.
FAMILY = """
import pathlib, subprocess, sys, time
words = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(words), subprocess.Popen(words, start_new_session=True)]
part = pathlib.Path(sys.argv[1] + ".part")
part.write_text(" ".join(str(child.pid) for child in children))
part.rename(sys.argv[1])
"""
WAIT = "import time; time.sleep(600)"


def code(text: str, *arguments: str) -> list[str]:
    return [PYTHON, "-c", text, *arguments]


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def numbers(path: Path) -> list[int]:
    # A file is there a moment before what is written to it.
    assert until(lambda: path.exists() and path.read_text() != "")
    return [int(word) for word in path.read_text().split()]


@pytest.mark.parametrize(
    ("text", "ending", "number", "words"),
    [
        ("print('well')", Ending.FINISHED, 0, "finished"),
        ("raise SystemExit(3)", Ending.FAILED, 3, "ended with exit code 3"),
        ("import os; os.abort()", Ending.SIGNAL, -signal.SIGABRT, "ended by signal SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", Ending.SIGNAL, -9, "ended by signal SIGKILL"),
    ],
)
@pytest.mark.parametrize("outlives", [False, True])
def test_how_it_ended(text: str, ending: Ending, number: int, words: str, outlives: bool, tmp_path: Path) -> None:
    """An end that is not our doing is told as it was, with and without the watcher in between."""
    with Child.start(code(text), log=tmp_path / "log", outlives=outlives) as child:
        exit = child.wait(60)
    assert exit is not None
    assert (exit.ending, exit.code, str(exit)) == (ending, number, words)
    assert child.kill() == exit
    if ending is Ending.FINISHED:
        assert last_words(tmp_path / "log") == "  well"


def test_output_and_environment(tmp_path: Path) -> None:
    """Both streams lie in the log; variables are added; this coralopt is found from anywhere."""
    text = "import os, sys, coralopt; print(os.environ['X'], coralopt.__file__); print('oh', file=sys.stderr)"
    with Child.start(code(text), env={"X": "1", **own_environment(2)}, log=tmp_path / "log") as child:
        exit = child.wait(60)
    assert exit is not None
    assert exit.ending is Ending.FINISHED, last_words(tmp_path / "log")
    assert sorted(last_words(tmp_path / "log", indent="").splitlines()) == [f"1 {coralopt.__file__}", "oh"]
    assert own_environment(2)["OMP_NUM_THREADS"] == "2"
    assert last_words(tmp_path / "log", 1, "    ").startswith("    ")
    assert last_words(tmp_path / "none") == "  (no log)"


@pytest.mark.parametrize("outlives", [False, True])
def test_a_missing_program_is_an_error_at_once(tmp_path: Path, outlives: bool) -> None:
    """Not an exit code of somebody in between."""
    with pytest.raises(FileNotFoundError):
        Child.start(["/does/not/exist"], outlives=outlives)
    (tmp_path / "text").write_text("x")
    with pytest.raises(PermissionError):
        Child.start([str(tmp_path / "text")], outlives=outlives)


def test_time_limit() -> None:
    """Killed at the next look after its time; the clock can be set again."""
    with Child.start(code(WAIT), seconds=0.3) as child:
        child.allow(None)
        assert child.wait(0.6) is None
        child.allow(0.2)
        exit = child.wait(30)
    assert exit is not None
    assert (exit.ending, exit.code) == (Ending.OUT_OF_TIME, -signal.SIGKILL)
    assert 0.2 < exit.seconds < 30
    assert str(exit) == f"killed after {exit.seconds:.1f} s"


def test_memory_limit() -> None:
    """Resident memory counts, of the process itself."""
    text = "import time; hoard = b'x' * (200 << 20); time.sleep(600)"
    with Child.start(code(text), memory_gib=0.1) as child:
        exit = child.wait(60)
    assert exit is not None
    assert exit.ending is Ending.OUT_OF_MEMORY
    assert exit.peak_mib is not None
    assert exit.peak_mib > 102.4
    assert str(exit) == f"killed at {exit.peak_mib:.0f} MiB"


@pytest.mark.parametrize("outlives", [False, True])
def test_the_whole_tree_is_killed(tmp_path: Path, outlives: bool) -> None:
    """Grandchildren too, the one in a session of its own included; no watcher stays either."""
    with Child.start(code(FAMILY + WAIT, str(tmp_path / "pids")), outlives=outlives) as child:
        family = numbers(tmp_path / "pids")
        assert all(birth(pid) is not None for pid in (child.pid, *family))
        group = [process.pid for process in psutil.process_iter() if os.getpgid(process.pid) == child.pid]
        assert len(group) == 2 + (not outlives)
        exit = child.kill()
    assert exit.ending is Ending.KILLED
    assert all(birth(pid) is None for pid in (child.pid, *family))
    assert until(lambda: all(birth(pid) is None for pid in group))


def test_children_of_an_ended_process_are_killed(tmp_path: Path) -> None:
    """What stays in the group of a process that ended by itself is found through the group."""
    with Child.start(code(FAMILY, str(tmp_path / "pids"))) as child:
        same_group, own_session = numbers(tmp_path / "pids")
        exit = child.wait(60)
        assert exit is not None
        assert birth(same_group) is not None
    assert until(lambda: birth(same_group) is None)
    os.kill(own_session, signal.SIGKILL)


def test_grace_before_the_kill(tmp_path: Path) -> None:
    """SIGINT first, to the whole group; who takes too long is killed."""
    text = "import signal, time\ntry:\n    print('up', flush=True); time.sleep(600)\nexcept KeyboardInterrupt:\n    "
    for rest, seconds, ending in (("print('bye')", 30.0, Ending.FINISHED), ("time.sleep(600)", 0.3, Ending.KILLED)):
        with Child.start(code(text + rest), log=tmp_path / "log") as child:
            assert until(lambda: "up" in last_words(tmp_path / "log"))
            assert child.kill(grace_s=seconds).ending is ending
    with Child.start(code("print('up', flush=True);" + WAIT), log=tmp_path / "log") as child:
        assert until(lambda: "up" in last_words(tmp_path / "log"))
        child.send(signal.SIGTERM)
        exit = child.wait(30)
    assert str(exit) == "ended by signal SIGTERM"


@pytest.mark.parametrize("outlives", [False, True])
def test_a_child_of_a_killed_parent(tmp_path: Path, outlives: bool) -> None:
    """`kill -9` of the parent ends the child and its group, unless the child is to outlive us."""
    parent = f"""
import pathlib, time
from coralopt.processes import Child
child = Child.start({code(FAMILY + WAIT, str(tmp_path / "pids"))!r}, outlives={outlives})
pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
time.sleep(600)
"""
    process = subprocess.Popen(code(parent), env={**os.environ, **own_environment()})
    same_group, own_session = numbers(tmp_path / "pids")
    (pid,) = numbers(tmp_path / "child")
    try:
        born = birth(pid)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        if outlives:
            time.sleep(0.5)
            found = Child(pid, born)
            assert found.alive
            assert found.kill().ending is Ending.KILLED
            assert not found.alive
            assert birth(own_session) is None
        else:
            assert until(lambda: birth(pid) is None)
        assert until(lambda: birth(same_group) is None)
    finally:
        for number in (pid, own_session):
            if birth(number) is not None:
                os.kill(number, signal.SIGKILL)


def test_a_stranger_with_the_number_is_left_alone() -> None:
    """A number found in a file may be somebody else's by now."""
    with Child.start(code(WAIT)) as child:
        stranger = Child(child.pid, "12.34")
        assert stranger.poll() == Exit(Ending.GONE)
        stranger.send(signal.SIGTERM)
        assert stranger.kill() == Exit(Ending.GONE)
        assert child.wait(0.3) is None
        again = Child(child.pid, child.born)
        assert again.alive


def test_sigint_reaches_the_child_of_a_background_job(tmp_path: Path) -> None:
    """A shell starts background jobs with SIGINT ignored, and exec hands that down."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Child.start(code("print('up', flush=True);" + WAIT), log=tmp_path / "log") as child:
            assert until(lambda: "up" in last_words(tmp_path / "log"))
            child.send(signal.SIGINT)
            exit = child.wait(30)
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(exit) == "ended by signal SIGINT"


def test_output_of_short_programs(tmp_path: Path) -> None:
    """Their words, or nothing: missing, failed, too slow."""
    assert output_of(code("import os; print(os.getcwd())"), 60, tmp_path) == f"{tmp_path.resolve()}\n"
    assert output_of(["/does/not/exist"], 60) is None
    assert output_of(code("raise SystemExit(1)"), 60) is None
    assert output_of(code(WAIT), 0.2) is None


def test_nobody_else_starts_processes() -> None:
    """Only the supervisor does, and the pool of the template build."""
    root = Path(coralopt.__file__).parent
    exempt = {"processes.py", "templates/executors.py"}
    names = {"subprocess", "multiprocessing", "asyncio.subprocess", "pty"}
    calls = {
        "fork",
        "system",
        "popen",
        "posix_spawn",
        "execv",
        "execvp",
        "create_subprocess_exec",
        "ProcessPoolExecutor",
    }
    offenders = []
    for path in sorted([*root.rglob("*.py"), *(root.parent / "solvers").rglob("*.py")]):
        if path.relative_to(root.parent).as_posix().removeprefix("coralopt/") in exempt:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import) and names & {alias.name for alias in node.names}:
                offenders.append(f"{path}: {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom):
                used = {node.module or "", *(alias.name for alias in node.names)}
                if (names | calls) & used:
                    offenders.append(f"{path}: {ast.unparse(node)}")
            elif (
                isinstance(node, ast.Attribute) and node.attr in calls and ast.unparse(node.value) in ("os", "asyncio")
            ):
                offenders.append(f"{path}: {ast.unparse(node)}")
    assert not offenders, "\n".join(offenders)
