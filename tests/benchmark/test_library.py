"""The library of instances: its models, solutions and values fit one another, and can be drawn again."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coralopt.benchmark import read_solu, write_library
from coralopt.benchmark.instances import expand_all
from coralopt.benchmark.library import PATTERNS, RANDOM_ALLOCATIONS, RANDOM_PLACEMENTS, ROWS, _origins, _problem
from coralopt.solving.files import check_solution_file

RunCli = Callable[..., Any]


def test_there_are_enough_instances() -> None:
    """240 at least, of every kind."""
    assert len(expand_all(PATTERNS)) + RANDOM_PLACEMENTS + RANDOM_ALLOCATIONS + 2 * len(ROWS) >= 240
    assert len(dict(_origins())) == 296


def test_every_allocation_comes_from_one_scenario() -> None:
    """ "core,extended" was taken for the name of one, and the library ended there."""
    sources = {origin.split(":")[1] for _, origin in _origins() if origin.startswith("allocation:")}
    assert sources == {"tiny", "core", "core-slo", "extended"}


@pytest.mark.parametrize("rows", [row for row in ROWS if row != "auto"])
def test_every_kind_of_row_makes_a_problem(rows: str) -> None:
    """In core, which has two regions."""
    assert _problem(f"rows:core:{rows}").kind == "allocation"


@pytest.mark.parametrize("scenario", ["tiny", pytest.param("core", marks=pytest.mark.slow)])
def test_models_of_either_mode_make_a_problem(scenario: str) -> None:
    assert _problem(f"rows:{scenario}:auto").kind == "allocation"


@pytest.mark.parametrize("scenario", ["routes", "operator"])
def test_scenarios_are_in_it_as_they_are(scenario: str) -> None:
    assert _problem(f"scenario:{scenario}").kind == "allocation"


def test_files_of_the_library_fit_one_another(tmp_path: Path, run_cli: RunCli) -> None:
    """Every solution holds in exact fractions with the value that is told; what has none is told infeasible."""
    written = run_cli(
        "bench", "library", "lib", "--only", "*-random-0?", "--time-limit", "60", "--archive", "lib.tar.gz"
    )
    assert written.returncode == 0, written.stderr
    assert "20 instances" in written.stderr
    folder = tmp_path / "lib"
    known = read_solu(folder / "library.solu")
    with (folder / "library.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == len(known) == 20
    for line in lines:
        model, solution = folder / f"{line['name']}.mps", folder / f"{line['name']}.sol"
        assert hashlib.sha256(model.read_bytes()).hexdigest() == line["sha256"]
        assert "highs" in line["proof"]
        if known[line["name"]].mark == "=inf=":
            assert not solution.exists()
            continue
        check = check_solution_file(model, solution)
        assert check.holds, check.violations
        assert float(check.objective) == pytest.approx(known[line["name"]].value)
    again = run_cli(
        "bench", "library", "again", "--only", "*-random-0?", "--time-limit", "60", "--archive", "again.tar.gz"
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "lib.tar.gz").read_bytes() == (tmp_path / "again.tar.gz").read_bytes()
    assert run_cli("bench", "library", "none", "--only", "no-such").returncode == 2


def test_instances_without_a_placement_have_a_model(tmp_path: Path) -> None:
    """Four nodes of which no order holds the model: infeasible by the dynamic programme, and by HiGHS where it ends."""
    (entry,) = write_library(tmp_path, "placement-qwen3-235b-prefill-nodes-4-seed-0", time_limit=1.0)
    assert entry.mark == "=inf="
    assert "dp" in entry.proof
    assert not (tmp_path / f"{entry.name}.sol").exists()


def test_a_name_draws_the_same_model_again(tmp_path: Path) -> None:
    """From scenarios, with one more kind of row, and at random."""
    for name in ("placement-gpt-oss-20b-prefill-nodes-2-seed-0-scenario-tiny", "allocation-tiny-max-gpus"):
        (first,) = write_library(tmp_path / "a", name)
        (second,) = write_library(tmp_path / "b", name)
        assert first == second
        model = tmp_path / "a" / f"{name}.mps"
        written = model.stat().st_mtime_ns
        assert write_library(tmp_path / "a", name) == [first]
        assert model.stat().st_mtime_ns == written
        assert first.mark == "=opt="
        assert check_solution_file(tmp_path / "a" / f"{name}.mps", tmp_path / "a" / f"{name}.sol").holds
