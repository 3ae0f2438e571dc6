"""The results file: whole rows or none, nothing run twice, nothing compared that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coralopt.benchmark import Settings, read_rows, read_whole_rows, write_rows
from coralopt.benchmark.results import ResultsFile
from coralopt.errors import BenchmarkError

pytest.importorskip("fcntl")


def row(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "settings": Settings().plain(), "outcome": "optimal", "objective": 1.5, **more}


def test_rows_survive_and_the_last_one_counts(tmp_path: Path) -> None:
    """Appended rows are there for the next bench; a repeated run replaces its row."""
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, Settings()) as results:
        results.append(row("a", outcome="died"))
        results.append(row("b"))
    with ResultsFile(path, Settings()) as results:
        assert set(results.rows) == {"a", "b"}
        results.append(row("a"))
    assert {item["key"]: item["outcome"] for item in read_rows(path)} == {"a": "optimal", "b": "optimal"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "x"}, "seed is 'x', and must be a whole number"),
        ({"outcome": "good"}, "outcome is 'good', and must be one of optimal"),
        ({"settings": True}, "settings is True, and must be an object"),
        ({"settings": {}}, "settings.time_limit must be a number"),
        ({"solve_seconds": {}}, "solve_seconds is {}, and must be a number"),
        ({"check_seconds": None, "objective": []}, r"objective is \[\], and must be a number"),
    ],
)
def test_edited_rows_are_refused_by_what_makes_figures(change: dict[str, object], message: str, tmp_path: Path) -> None:
    """A report of rows that no bench wrote is no report."""
    whole = dict.fromkeys(("key", "instance", "kind", "size", "arm", "solver"), "x")
    times = {f"{step}seconds": 1.0 for step in ("", "cpu_", "build_", "handover_", "solve_", "check_", "other_")}
    row = {"format": 1, **whole, **times, "outcome": "optimal", "seed": 0, "jobs": 1, "machine": {}}
    row["settings"] = {"time_limit": 1.0}
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert read_whole_rows(path) == [row]
    path.write_text(json.dumps({**row, **change}) + "\n")
    with pytest.raises(BenchmarkError, match=message):
        read_whole_rows(path)
    path.write_text("[" * 100_000)
    with pytest.raises(BenchmarkError, match="line 1 is nested too deeply"):
        read_whole_rows(path)


def test_a_torn_line_is_a_run_not_done(tmp_path: Path) -> None:
    """Power lost in the middle of a write costs that row only, and the next row starts on a line of its own."""
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, Settings()) as results:
        results.append(row("a"))
        results.append(row("b"))
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    assert [item["key"] for item in read_rows(path)] == ["a"]
    with ResultsFile(path, Settings()) as results:
        assert set(results.rows) == {"a"}
        results.append(row("c"))
    assert [item["key"] for item in read_rows(path)] == ["a", "c"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    """Rows with different limits do not compare; the message names the field and both values."""
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, Settings(time_limit=20)) as results:
        results.append(row("a", settings=Settings(time_limit=20).plain()))
    with pytest.raises(BenchmarkError, match=r"time_limit=20.*30"):
        ResultsFile(path, Settings(time_limit=30))


def test_two_benches_do_not_share_a_file(tmp_path: Path) -> None:
    """The second one says so instead of running everything twice."""
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, Settings()), pytest.raises(BenchmarkError, match="another bench"):
        ResultsFile(path, Settings())


@pytest.mark.parametrize(
    "text", ["[1, 2]\n", '{"a": 1}\n', "no json\n{}\n", "my notes", "my notes\nmore", '{"format": 99, "key": "a"}\n']
)
def test_foreign_files_are_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    """A file that is no results file is not written to."""
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(BenchmarkError):
        ResultsFile(path, Settings())
    assert path.read_text() == text


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    """Structures, numbers and absent values come back as they were."""
    rows = [
        {"format": 1, **row("a", events=[[0.5, 2.0]], answer=[[3, [1, 2]]], machine={"cpu": "x"}, gap=None)},
        {"format": 1, **row("b", message="m", steps={"solver": 1.0}, gap=0.25)},
    ]
    write_rows(rows, tmp_path / "r.parquet")
    back = read_rows(tmp_path / "r.parquet")
    for before, after in zip(rows, back, strict=True):
        assert {name: value for name, value in after.items() if value is not None} == {
            name: value for name, value in before.items() if value is not None
        }
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(BenchmarkError):
        read_rows(tmp_path / "bad.parquet")


def test_wrong_settings_are_refused() -> None:
    """A limit must be positive; the bench's own options cannot be smuggled in as solver options."""
    for wrong in ({"time_limit": 0}, {"grace": -1.0}, {"memory_limit": 0.0}, {"options": {"seed": 3}}):
        with pytest.raises(BenchmarkError):
            Settings(**wrong)  # type: ignore[arg-type]
