"""Anyone's model files as instances, known values, and the tables for spreadsheets and papers."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coralopt.benchmark import (
    KnownValue,
    conflicts,
    expand,
    load_problem,
    read_rows,
    read_solu,
    recheck,
    save_problem,
    summarise,
    summary_csv,
    summary_latex,
)
from coralopt.benchmark.files import ModelFile
from coralopt.cli.bench import app
from coralopt.errors import BenchmarkError

ONE = "Maximize\n obj: 3 x + 2 y\nSubject To\n c: 2 x + 3 y <= 7\nBounds\n y <= 1.5\nGeneral\n x\nEnd\n"
TWO = "Minimize\n obj: x + y\nSubject To\n c: x + y >= 2\n d: x + y <= 1\nEnd\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A maximum of 29/3 and a model without an answer."""
    (tmp_path / "one.lp").write_text(ONE)
    (tmp_path / "two.lp").write_text(TWO)
    return tmp_path


def test_files_run_and_are_held_against_known_values(folder: Path) -> None:
    """As the shell spreads ``*.lp``: right values agree, a wrong optimum is said and ends with exit code 1."""
    models = [str(folder / name) for name in ("one.lp", "two.lp")]
    (folder / "right.solu").write_text("=opt= one 9.666666666667\n=inf= two\n=unkn= other\n")
    words = ["-i", *models, "-s", "highs", "--seeds", "1", "--time-limit", "10", "-o", str(folder / "r.jsonl")]
    done = CliRunner().invoke(app, [*words, "--solu", str(folder / "right.solu")])
    assert done.exit_code == 0, done.output
    rows = {row["instance"]: row for row in read_rows(folder / "r.jsonl")}
    one, two = (rows[f"file:{path}"] for path in models)
    assert (one["outcome"], one["objective"], one["sense"]) == ("optimal", pytest.approx(29 / 3), "max")
    assert (two["outcome"], two["sense"], one["arm"]) == ("infeasible", "min", "highs/file")
    assert recheck([one, two]) == []
    # One that takes linear programmes only is warmed up by one.
    words = ["-i", models[1], "-s", "highs:ipx", "--seeds", "1", "-o", str(folder / "linear.jsonl")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [row["outcome"] for row in read_rows(folder / "linear.jsonl")] == ["infeasible"]
    (folder / "wrong.solu").write_text("=opt= one 8.5\n=best= two 1\n")
    report = ["report", str(folder / "r.jsonl"), "-o", str(folder / "out"), "--no-plots"]
    done = CliRunner().invoke(app, [*report, "--solu", str(folder / "wrong.solu")])
    assert done.exit_code == 1
    assert "better than the known optimum 8.5" in (folder / "out" / "report.md").read_text()
    assert {"table.csv", "table.tex"} <= {path.name for path in (folder / "out").iterdir()}


def test_model_files_keep_their_content(folder: Path) -> None:
    """Saved and loaded, a model is the same and checks answers; a pattern of none is refused."""
    (instance, _) = expand(str(folder / "*.lp"))
    problem = instance.problem()
    save_problem(problem, folder / "p.npz")
    again = load_problem(folder / "p.npz")
    assert isinstance(again, ModelFile)
    assert again.check({"x": 2.0, "y": 1.0}).objective == 8.0
    assert not again.check({"x": 3.0, "y": 1.0}).feasible
    with pytest.raises(BenchmarkError, match="no such model file"):
        expand(str(folder / "*.mps"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("=opt= a 1\n=inf= a\n", "line 2: a is there twice"),
        ("=opt= a\n", "line 1: '=opt= a'"),
        ("=sure= a 1\n", "line 1"),
        ("\n=best= a x\n", "line 2: 'x' is no finite number"),
    ],
)
def test_known_values_are_read_strictly(tmp_path: Path, text: str, words: str) -> None:
    """A mistake is said with its line."""
    path = tmp_path / "k.solu"
    path.write_text(text)
    with pytest.raises(BenchmarkError, match=words):
        read_solu(path)


def row(arm: str, outcome: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A row of the model m, a minimum."""
    steps = {f"{step}_seconds": 0.0 for step in ("build", "handover", "solve", "check", "other")}
    return {
        **{"key": f"file:m.mps {arm} #0", "instance": "file:m.mps", "kind": "file", "size": "100 bytes at most"},
        **{"arm": arm, "solver": arm, "formulation": "file", "seed": 0, "sense": "min", "jobs": 1, "machine": {}},
        **{"settings": {"time_limit": 10.0}, "outcome": outcome, "seconds": seconds, "cpu_seconds": seconds},
        **steps,
        **more,
    }


@pytest.mark.parametrize(
    ("known", "wrong"),
    [
        (KnownValue("=opt=", 5.0), []),
        (KnownValue("=opt=", 4.0), ["a"]),  # a proves 5, where 4 is known to be had
        (KnownValue("=opt=", 6.0), ["a", "b"]),  # both have better answers than can be
        (KnownValue("=best=", 6.0), []),
        (KnownValue("=best=", 4.0), ["a"]),
        (KnownValue("=inf="), ["a", "b"]),
        (KnownValue("=unkn="), []),
    ],
)
def test_every_kind_of_known_value(known: KnownValue, wrong: list[str]) -> None:
    """a proves 5, b has an answer of 5.5 and the bound 3."""
    rows = [
        row("a", "optimal", 1.0, objective=5.0, bound=5.0),
        row("b", "feasible", 10.0, objective=5.5, bound=3.0, events=[[2.0, 5.5]]),
    ]
    assert [item.key.split()[1] for item in conflicts(rows, {"m": known})] == wrong


def test_virtual_best_times_to_gaps_and_tables() -> None:
    """a is solved in 1 s; b is 1/11 off from second 2 on: within 10 %, never within 1 %."""
    rows = [
        row("a_1", "optimal", 1.0, objective=5.0, bound=5.0),
        row("b", "feasible", 10.0, objective=5.5, bound=3.0, events=[[2.0, 5.5]]),
    ]
    data = summarise(rows)
    section = data["sections"][0]
    assert (section["virtual_best"]["solved_of_run"], section["virtual_best"]["sgm_1"]) == (1, pytest.approx(1.0))
    assert section["primal"][1]["seconds_to"] == [pytest.approx(2.0), pytest.approx(10.0), pytest.approx(10.0)]
    assert section["primal"][1]["reached"] == [1, 0, 0]
    lines = list(csv.DictReader(io.StringIO(summary_csv(data))))
    assert [line["arm"] for line in lines] == ["a_1", "b", "virtual best"]
    assert [line["to 10 % s"] for line in lines] == ["1.0", "2.0", ""]
    latex = summary_latex(data)
    assert r"file & a\_1 & 1 & 1 &" in latex
    assert r"to 10 \% s" in latex
    assert len({line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\")}) == 1
