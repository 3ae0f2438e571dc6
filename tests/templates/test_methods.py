"""Any solver may build the library; a build may be sampled, spread over processes, interrupted and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coralopt import load_scenario
from coralopt.errors import LibraryError, OptionError, SolverNotFoundError
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import (
    BuildMethod,
    TemplateLibrary,
    build_library,
    check_library,
    content_digest,
    load_library,
    obtain_library,
    save_library,
    scenario_node_sets,
)
from coralopt.templates import build as build_module
from coralopt.templates.executors import InProcess, ProcessPool, make_executor
from coralopt.templates.parts import Parts
from coralopt.templates.tasks import cut_into_tasks

#: A command line, run in this process.
RunCli = Callable[..., Any]


def test_sample_of_the_sweep_is_part_of_the_whole(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary
) -> None:
    """A sample must hold the very templates that the whole library holds on those node sets."""
    some = build_library(tiny_scenario, method=BuildMethod(sample=20, seed=3))
    assert sum(phase.examined for phase in some.phases) == 20
    for part, whole in zip(some.phases, tiny_library.phases, strict=True):
        for row in range(len(part)):
            there = whole.find(part.usage[row])
            assert there is not None
            assert whole.throughput[there] == part.throughput[row]
            assert whole.placement(there) == part.placement(row)


def test_samples_are_seeded_and_cover_everything(tiny_scenario: ResolvedScenario) -> None:
    """One seed, one sample; a sample as large as the scenario is all of it; tasks never share a node set."""
    families = scenario_node_sets(tiny_scenario)

    def drawn(seed: int, sample: int | None) -> list[tuple[int, bytes]]:
        tasks = cut_into_tasks(families, BuildMethod("highs", sample=sample, seed=seed))
        return [(task.phase, row.tobytes()) for task in tasks for row in task.sets]

    assert drawn(1, 30) == drawn(1, 30)
    assert drawn(1, 30) != drawn(2, 30)
    assert len(set(drawn(1, 30))) == 30
    everything = [(p, row.tobytes()) for p, sets in enumerate(families) for row in sets]
    assert sorted(drawn(1, 10**6)) == sorted(everything)
    assert sorted(drawn(0, None)) == sorted(everything)


def test_milp_library_equals_the_sweep(tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary) -> None:
    """Another solver and formulation, in worker processes or not, the same throughputs; the check command's own way."""
    for formulation, sample, seed, workers in (("tight", 6, 3, 2), ("paper", 1, 2, 1)):
        method = BuildMethod("highs", formulation, sample=sample, seed=seed)
        result = check_library(tiny_library, method=method, workers=workers)
        assert result.ok, result.violations
        assert result.compared == sample


def test_check_finds_a_wrong_template(tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary) -> None:
    """A library with a lowered throughput and a lost template must not pass."""
    phase = tiny_library.phases[0]
    lowered = replace(phase, throughput=phase.throughput * 0.9)
    result = check_library(
        replace(tiny_library, phases=(lowered, *tiny_library.phases[1:])), method=BuildMethod(sample=40)
    )
    assert not result.ok
    assert any("finds" in text for text in result.violations)
    cut = replace(
        phase,
        **{
            name: getattr(phase, name)[:-1]
            for name in ("usage", "throughput", "stage_layers", "node_configuration", "node_stage")
        },
    )
    result = check_library(
        replace(tiny_library, phases=(cut, *tiny_library.phases[1:])), method=BuildMethod(sample=10**6)
    )
    assert [text for text in result.violations if "the library has no placement" in text]


def test_check_that_settles_nothing_fails(tiny_library: TemplateLibrary) -> None:
    """A solver out of time settles nothing in favour of a library, and a check that settled nothing fails."""
    hurried = {"time_limit": 1e-9}
    result = check_library(tiny_library, method=BuildMethod("highs", options=hurried, sample=3, seed=1), workers=1)
    assert not result.ok
    assert "settled none of 3" in result.violations[0]
    assert sum(result.open.values()) == 3


def test_sampled_library_is_not_for_planning(tiny_scenario: ResolvedScenario, tmp_path: Path) -> None:
    """Planning on a sample would lose optima without a word."""
    path = tmp_path / "l.parquet"
    obtain_library(tiny_scenario, path, method=BuildMethod(sample=5))
    with pytest.raises(LibraryError, match="sample"):
        obtain_library(tiny_scenario, path)
    with pytest.raises(LibraryError, match="built by"):
        obtain_library(tiny_scenario, path, method=BuildMethod(sample=5, seed=1))
    assert obtain_library(tiny_scenario, path, method=BuildMethod(sample=5))[1] is True


def test_library_carries_its_scenario_and_method(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary, tmp_path: Path
) -> None:
    """The check and the rankings need nothing but the file."""
    save_library(tiny_library, tmp_path / "l.parquet")
    again = load_library(tmp_path / "l.parquet")
    assert again.document == tiny_scenario.document
    assert again.method["solver"] == "dp"


def test_interrupted_build_goes_on(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done before the interruption is not done again, the result is the same, and nothing is left behind."""
    path = tmp_path / "l.parquet"
    run = InProcess.run
    done: list[int] = []

    def stop_after_one(self, function, context, tasks):
        for position, result in run(self, function, context, tasks):
            if done:
                raise KeyboardInterrupt
            done.append(position)
            yield position, result

    monkeypatch.setattr(InProcess, "run", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        obtain_library(tiny_scenario, path)
    assert not path.exists()
    monkeypatch.undo()
    asked: list[int] = []
    monkeypatch.setattr(InProcess, "run", lambda s, f, c, tasks: (asked.append(len(tasks)), run(s, f, c, tasks))[1])
    again, reused = obtain_library(tiny_scenario, path)
    assert not reused
    assert asked == [len(tiny_scenario.model_phases) - 1]
    assert content_digest(again) == content_digest(tiny_library)
    assert [item.name for item in tmp_path.iterdir()] == ["l.parquet"]


def test_damaged_and_foreign_parts_are_not_used(tiny_scenario: ResolvedScenario, tmp_path: Path) -> None:
    """A half-written part, or one of another scenario, must be made anew."""
    parts = Parts(tmp_path / "l.parquet", "key")
    method = BuildMethod(sample=4)
    build_library(tiny_scenario, method=method, keep_parts_for=tmp_path / "l.parquet")
    folder = next(tmp_path.glob(".l.parquet.*.parts"))
    folder.rename(parts.folder)
    assert len(parts.load(2)) == 2
    (parts.folder / "000000.npz").write_bytes((parts.folder / "000000.npz").read_bytes()[:100])
    (parts.folder / "000001.npz").write_bytes(b"PK")
    assert parts.load(2) == {}
    assert Parts(tmp_path / "l.parquet", "other key").load(2) == {}


def test_a_full_disk_is_one_sentence(
    tiny_scenario: ResolvedScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback and no half-written part when the parts do not fit."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(LibraryError, match="No space left"):
        obtain_library(tiny_scenario, tmp_path / "l.parquet")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_dead_worker_is_one_sentence() -> None:
    """`kill -9` of a worker, or the kernel's choice when memory runs out."""
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(LibraryError, match="run the same command again"):
        list(ProcessPool(1).run(exec, kill, [{}]))  # type: ignore[arg-type]


def test_ctrl_c_while_workers_start_prints_no_traceback(tmp_path: Path) -> None:
    """The terminal sends it to all of the group; a worker may still be importing then."""
    (tmp_path / "slow.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(1)\ndef work(context, task):\n    return task\n"
    )
    (tmp_path / "start.py").write_text(
        "import slow\nfrom coralopt.templates.executors import ProcessPool\n"
        "if __name__ == '__main__':\n"
        "    try:\n        print(list(ProcessPool(1).run(slow.work, None, [1])))\n"
        "    except KeyboardInterrupt:\n        print('interrupted')\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "start.py"], cwd=tmp_path, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["importing\n"] * 2
        os.killpg(process.pid, signal.SIGINT)
        said, troubles = process.communicate(timeout=60)
    assert said == "interrupted\n"
    assert troubles == ""


def test_killed_command_is_finished_by_the_next(tmp_path: Path, run_cli: RunCli) -> None:
    """`kill -9` of the whole build midway: no library file, workers end by themselves, the next run completes it."""
    command = ["templates", "tiny", "--solver", "highs", "--sample", "12", "--seed", "3", "--workers", "1"]
    command += ["-o", "l.parquet", "--json"]
    argv = [sys.executable, "-m", "coralopt", *command]
    first = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".l.parquet.*.parts/*.npz")) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = len(list(tmp_path.glob(".l.parquet.*.parts/*.npz")))
    assert kept > 0
    assert not (tmp_path / "l.parquet").exists()
    second = run_cli(*command)
    assert second.returncode == 0, second.stderr
    assert load_library(tmp_path / "l.parquet").method["solver"] == "highs"
    assert not list(tmp_path.glob(".l.parquet.*"))


def test_names_are_checked() -> None:
    """Unknown executors and solvers, and a formulation for the dynamic programme, are refused before any work."""
    with pytest.raises(OptionError, match="ray"):
        make_executor("slurm", None, False)
    with pytest.raises(OptionError, match="dynamic programme"):
        BuildMethod(formulation="tight")
    with pytest.raises(OptionError, match="sample"):
        BuildMethod(sample=0)
    with pytest.raises(SolverNotFoundError):
        build_module.build_library(load_scenario("tiny"), method=BuildMethod("nosuch"))


def test_ray_missing_is_one_sentence(tiny_scenario: ResolvedScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that has to be installed is named."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"coralopt\[ray\]"):
        build_library(tiny_scenario, executor="ray")


def test_a_ray_that_does_not_start_is_one_sentence(
    tiny_scenario: ResolvedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises exceptions of any class."""

    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(LibraryError, match=r"could not be started or reached: The current node timed out .*startup\.$"):
        build_library(tiny_scenario, executor="ray")
