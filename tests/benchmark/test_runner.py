"""Runs in processes of their own: whatever a solver does, there is a row that says so, and nothing runs twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coralopt.benchmark import (
    Arm,
    Outcome,
    Settings,
    conflicts,
    make_tasks,
    parse_instance,
    read_rows,
    recheck,
    report_markdown,
    run_bench,
    summarise,
)
from coralopt.solving import get_backend

RunCli = Callable[..., Any]

INSTANCE = "placement:gpt-oss-20b/prefill:nodes=2:seed=0:scenario=tiny"

#: Solvers that misbehave once the clock runs; the toy problem of the warm-up has less than 60 columns.
PLUGIN = '''
import math, os, signal, time
from coralopt.errors import LicenseLimitError
from coralopt.solving import Availability, RawResult, Reason
from coralopt_highs import HighsBackend


class Tame(HighsBackend):
    def solve(self, matrix, options, *, start=None, on_progress=None):
        if len(matrix.c) < 60:
            return super().solve(matrix, options, start=start, on_progress=on_progress)
        return self.misbehave(matrix, options, on_progress)


class Sleeper(Tame):
    name = "sleeper"

    def misbehave(self, matrix, options, on_progress):
        time.sleep(3600)


class Crasher(Tame):
    name = "crasher"

    def misbehave(self, matrix, options, on_progress):
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(3600)


class Quitter(Tame):
    name = "quitter"

    def misbehave(self, matrix, options, on_progress):
        print("out of coffee", flush=True)
        os._exit(3)


class Glutton(Tame):
    name = "glutton"

    def misbehave(self, matrix, options, on_progress):
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1024)) * 16384)
            time.sleep(0.005)


class Thrower(Tame):
    name = "thrower"

    def misbehave(self, matrix, options, on_progress):
        raise ZeroDivisionError("by nothing")


class Small(Tame):
    name = "small"

    def misbehave(self, matrix, options, on_progress):
        raise LicenseLimitError("the licence of 'small' ends at 60 columns; use highs")


class Lazy(Tame):
    """Calls everything infeasible: only another solver's checked answer can tell."""

    name = "lazy"

    def misbehave(self, matrix, options, on_progress):
        return RawResult(Reason.INFEASIBLE, None, "no way", None, math.nan)


class Absent(Tame):
    name = "absent"

    def probe(self):
        here = os.environ.get("ABSENT_IS_HERE") == "1"
        return Availability(here, "1", "MIT", "pip install absent")

    def misbehave(self, matrix, options, on_progress):
        return HighsBackend().solve(matrix, options)
'''
NAMES = ("Sleeper", "Crasher", "Quitter", "Glutton", "Thrower", "Small", "Lazy", "Absent")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with badly behaved solvers, registered as any third-party plugin is."""
    folder = tmp_path / "site"
    information = folder / "bad_solvers-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "bad_solvers.py").write_text(PLUGIN)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-solvers\nVersion: 1.0\n")
    entries = "".join(f"{name.lower()} = bad_solvers:{name}\n" for name in NAMES)
    (information / "entry_points.txt").write_text(f"[coralopt.solvers]\n{entries}")
    monkeypatch.syspath_prepend(str(folder))
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), inherited])))
    return folder


def bench(path: Path, names: list[str], **settings: Any) -> dict[str, dict[str, Any]]:
    """Row by solver, after a bench of one placement instance."""
    arms = [Arm(name, "" if name == "dp" else "tight") for name in names]
    tasks = make_tasks([parse_instance(INSTANCE)], arms, [0])
    run_bench(tasks, Settings(**{"time_limit": 20.0, "grace": 5.0, **settings}), path, jobs=2)
    return {row["solver"]: row for row in read_rows(path)}


@pytest.mark.usefixtures("plugins")
def test_every_end_has_its_row(tmp_path: Path) -> None:
    """A crash, an exit, an exception, a licence and an honest solve each end in a row of their own kind."""
    names = ["dp", "highs", "crasher", "quitter", "thrower", "small", "lazy", "absent"]
    path = tmp_path / "r.jsonl"
    rows = bench(path, names)
    assert {name: rows[name]["outcome"] for name in names} == {
        "dp": "optimal",
        "highs": "optimal",
        "crasher": "died",
        "quitter": "died",
        "thrower": "error",
        "small": "not run: licence",
        "lazy": "infeasible",
        "absent": "not run: not installed",
    }
    assert "SIGSEGV" in rows["crasher"]["message"]
    assert "exit code 3: out of coffee" in rows["quitter"]["message"]
    assert "ZeroDivisionError: by nothing" in rows["thrower"]["message"]
    assert "60 columns" in rows["small"]["message"]
    assert rows["absent"]["message"] == "pip install absent"
    for name in ("dp", "highs"):
        row = rows[name]
        assert row["objective"] == pytest.approx(rows["dp"]["objective"], rel=1e-6)
        assert 0 < row["solve_seconds"] <= row["seconds"]
        assert row["memory_mib"] > 20
    # The lazy one claims what is not true: said loudly, and it counts as unsolved.
    wrong = conflicts(list(rows.values()))
    assert [item.key for item in wrong] == [rows["lazy"]["key"]]
    assert recheck(list(rows.values())) == []
    data = summarise(list(rows.values()))
    solved = {arm["arm"]: arm["solved"] for arm in data["sections"][0]["arms"]}
    assert solved == {"dp": 1, "highs/tight": 1, **{f"{n}/tight": 0 for n in names[2:]}}
    text = report_markdown(data)
    assert "**WRONG ANSWERS: 1.**" in text
    assert "not run: licence (1)" in text
    assert "not run: not installed (1)" in text
    assert "SIGSEGV" in text


@pytest.mark.usefixtures("plugins")
def test_hanging_and_hungry_solvers_are_killed(tmp_path: Path) -> None:
    """After limit and grace, or over the memory limit, the process is killed; its row says which."""
    rows = bench(tmp_path / "r.jsonl", ["sleeper", "glutton"], time_limit=1.0, grace=0.5, memory_limit=0.5)
    assert rows["sleeper"]["outcome"] == Outcome.HUNG.value
    assert 1.5 <= rows["sleeper"]["seconds"] < 20
    assert "inside the solver since" in rows["sleeper"]["message"]
    assert rows["glutton"]["outcome"] in (Outcome.MEMORY.value, Outcome.HUNG.value)
    if rows["glutton"]["outcome"] == Outcome.MEMORY.value:
        # The row's figure is rounded.
        assert rows["glutton"]["memory_mib"] >= 512


@pytest.mark.usefixtures("plugins")
def test_done_runs_are_not_repeated_but_installed_ones_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming runs nothing twice, except what was not installed then and is now, and what one asks for."""
    path = tmp_path / "r.jsonl"
    bench(path, ["dp", "absent"])
    before = path.read_bytes()
    bench(path, ["dp", "absent"])
    assert path.read_bytes() == before
    monkeypatch.setenv("ABSENT_IS_HERE", "1")
    assert get_backend("absent").probe().installed
    rows = bench(path, ["dp", "absent"])
    assert path.read_bytes().startswith(before)
    assert rows["absent"]["outcome"] == "optimal"
    tasks = make_tasks([parse_instance(INSTANCE)], [Arm("dp")], [0])
    report = run_bench(tasks, Settings(time_limit=20.0, grace=5.0), path, retry=[Outcome.OPTIMAL])
    assert (report.done, report.kept) == (1, 0)


def command(*arguments: str, cwd: Path) -> list[str]:
    return [sys.executable, "-m", "coralopt", "bench", *arguments, "-o", str(cwd / "r.jsonl")]


#: Two runs of a solver that needs no time, so that a signal comes in between.
TWO = ("-i", INSTANCE, "-s", "dp", "--seeds", "2", "--time-limit", "20")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_bench_resumes(tmp_path: Path, kind: signal.Signals, run_cli: RunCli) -> None:
    """Ctrl-C or a kill in the middle keeps every row that was made; the same command makes only the others."""
    path = tmp_path / "r.jsonl"
    with subprocess.Popen(command(*TWO, cwd=tmp_path), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 120
        while not (path.exists() and path.read_bytes().count(b"\n") >= 1) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(kind)
        _, words = process.communicate(timeout=60)
    before = path.read_bytes()
    made = before.count(b"\n")
    assert made == 1
    if kind is signal.SIGINT:
        assert process.returncode == 130
        assert b"continues" in words
    again = run_cli("bench", *TWO, "--json", "-o", "r.jsonl")
    said = json.loads(again.stdout)
    assert (said["done"], said["total"], said["kept"]) == (2, 2, 1)
    assert path.read_bytes().startswith(before)
    assert len(read_rows(path)) == 2
    assert len(path.read_text().splitlines()) == 2


def test_commands_in_words_and_json(run_cli: RunCli) -> None:
    """Listing without running, reporting, packing, mistakes: exit codes and one message each."""
    dry = run_cli("bench", "-i", INSTANCE, "-s", "dp", "-s", "highs", "--seeds", "2", "--dry-run", "--json")
    keys = json.loads(dry.stdout)["runs"]
    assert len(keys) == 2 * 3
    assert f"{INSTANCE} highs/tight #1" in keys
    nothing = run_cli("bench")
    assert nothing.returncode == 2
    assert "--instance" in nothing.stderr
    for arguments in (
        ("-i", "nosuch"),
        ("--suite", "nosuch"),
        ("report", "nosuch.jsonl"),
        ("-i", INSTANCE, "-a", "x/y"),
    ):
        wrong = run_cli("bench", *arguments)
        assert wrong.returncode in (2, 4), wrong.stderr
        assert "Traceback" not in wrong.stderr
