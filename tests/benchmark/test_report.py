"""The report from rows made by hand: every figure can be counted on fingers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coralopt.benchmark import Settings, conflicts, draw_plots, report_markdown, summarise, write_rows
from coralopt.benchmark.markdown import one_thing_apart

RunCli = Callable[..., Any]


def row(
    instance: str, arm: str, outcome: str, seconds: float | None = None, seed: int = 0, **more: Any
) -> dict[str, Any]:
    """A row as a bench would write it."""
    solver, _, formulation = arm.partition("/")
    steps = {f"{step}_seconds": (seconds or 0.0) / 5 for step in ("build", "handover", "solve", "check", "other")}
    return {
        "format": 1,
        "key": f"{instance} {arm} #{seed}",
        "instance": instance,
        "kind": instance.partition(":")[0],
        "size": "3 nodes" if instance.startswith("placement") else "10 columns, ample",
        "instance_digest": "0",
        "arm": arm,
        "solver": solver,
        "formulation": formulation,
        "seed": seed,
        "settings": Settings(time_limit=10).plain(),
        "jobs": 1,
        "machine": {"cpu": "made up"},
        "outcome": outcome,
        "seconds": seconds,
        "cpu_seconds": seconds,
        "events": [],
        **(steps if seconds is not None else {}),
        **more,
    }


def three_by_two() -> list[dict[str, Any]]:
    """Instances 1 to 3; a is solved in 1 and 3 s and times out, b in 2 s, has no licence, fails."""
    name = "allocation:tiny:columns=10:supply=ample:seed={}".format
    return [
        row(name(1), "a/split", "optimal", 1.0, objective=10.0, bound=10.0, events=[[0.5, 20.0]]),
        row(name(2), "a/split", "optimal", 3.0, objective=5.0, bound=5.0),
        row(name(3), "a/split", "feasible", 10.0, objective=8.0, bound=4.0, events=[[4.0, 8.0]]),
        row(name(1), "b/split", "optimal", 2.0, objective=10.0, bound=10.0),
        row(name(2), "b/split", "not run: licence", message="too large"),
        row(name(3), "b/split", "hung", 25.0, message="killed after 25.0 s"),
    ]


def test_counts_and_times() -> None:
    """Unsolved runs count at the limit, runs that were not run count nowhere and are shown."""
    section = summarise(three_by_two())["sections"][0]
    a, b = section["arms"]
    assert (a["solved"], a["run"], a["outcomes"]["feasible"]) == (2, 3, 1)
    assert (b["solved"], b["run"], b["outcomes"]["not run: licence"], b["outcomes"]["hung"]) == (1, 2, 1, 1)
    assert a["par10"] == pytest.approx((1 + 3 + 100) / 3)
    assert b["par10"] == pytest.approx((2 + 100) / 2)
    assert a["sgm_1"] == pytest.approx((2 * 4 * 11) ** (1 / 3) - 1, abs=1e-6)
    assert b["sgm_10"] == pytest.approx((12 * 20) ** 0.5 - 10, abs=1e-6)
    assert section["common"]["runs"] == 2
    assert [item["par10"] for item in section["common"]["figures"]] == [pytest.approx(50.5), pytest.approx(51.0)]
    assert [arm["shares"][:2] for arm in section["profile"]["arms"]] == [[0.5, 0.5], [0.0, 0.5]]
    pair = section["pairwise"][0]
    assert (pair["runs"], pair["first_faster"], pair["second_faster"], pair["equal"], pair["neither"]) == (
        2,
        1,
        0,
        0,
        1,
    )


def test_primal_gaps() -> None:
    """a on 1: no answer for 0.5 s, then 50 % off until 1 s; a killed run has delivered nothing."""
    section = summarise(three_by_two())["sections"][0]
    a, b = section["primal"]
    assert (a["runs"], b["runs"]) == (3, 2)
    assert a["integral"] == pytest.approx(((0.5 + 0.25) + 3.0 + 4.0) / 3)
    assert b["integral"] == pytest.approx((2.0 + 10.0) / 2)
    assert b["gaps"][-1] == pytest.approx(0.5)
    assert a["found_best"] == 3


def test_late_proofs_do_not_count_as_solved() -> None:
    """A proof after the limit (a long build, say) is shown as late and counts at the limit."""
    rows = [row("placement:m/decode:nodes=3:seed=0", "a/tight", "optimal", 12.0, objective=1.0, bound=1.0)]
    arm = summarise(rows)["sections"][0]["arms"][0]
    assert (arm["solved"], arm["late"], arm["par10"]) == (0, 1, 100.0)
    assert "proven too late" in report_markdown(summarise(rows))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"outcome": "optimal", "objective": 5.5, "bound": 5.5}, "proves the bound 5.5"),
        ({"outcome": "infeasible"}, "says infeasible"),
        ({"outcome": "no solution", "bound": 7.0}, "proves the bound 7.0"),
        ({"outcome": "wrong answer", "message": "row 3"}, "row 3"),
    ],
)
def test_wrong_answers_are_found_and_said_first(wrong: dict[str, Any], words: str) -> None:
    """A minimum of 5 is known: whoever proves more, or says there is none, is wrong and counts as unsolved."""
    name = "allocation:tiny:columns=10:supply=ample:seed=1"
    good = row(name, "a/split", "optimal", 1.0, objective=5.0, bound=5.0)
    bad = row(name, "b/split", wrong["outcome"], 1.0, **{k: v for k, v in wrong.items() if k != "outcome"})
    found = conflicts([good, bad])
    assert [item.key for item in found] == [bad["key"]]
    assert words in found[0].text
    text = report_markdown(summarise([good, bad]))
    assert text.index("WRONG ANSWERS: 1") < text.index("## Allocation")
    assert [arm["solved"] for arm in summarise([good, bad])["sections"][0]["arms"]] == [1, 0]


def test_rounding_is_no_wrong_answer() -> None:
    """Bounds of floating-point solvers may pass an exact answer in the last digits, for either sense."""
    for name, bound in (("allocation:t:columns=10", 5.0 + 1e-7), ("placement:m/decode:nodes=3", 5.0 - 1e-7)):
        good = row(name, "a/x", "optimal", 1.0, objective=5.0, bound=5.0)
        assert conflicts([good, row(name, "b/x", "no solution", 1.0, bound=bound)]) == []


def test_seeds_spread() -> None:
    """Longest over shortest, only where every seed was solved."""
    name = "placement:m/decode:nodes=3:seed={}".format
    rows = [
        *(row(name(1), "a/tight", "optimal", t, s, objective=1.0, bound=1.0) for s, t in enumerate((1.0, 4.0, 2.0))),
        row(name(2), "a/tight", "optimal", 1.0, 0, objective=1.0, bound=1.0),
        row(name(2), "a/tight", "feasible", 10.0, 1, objective=1.0, bound=2.0),
    ]
    spread = summarise(rows)["sections"][0]["spread"][0]
    assert (spread["instances"], spread["median"], spread["some_seeds_only"]) == (1, 4.0, 1)


def test_pairs_that_differ_in_one_thing() -> None:
    """Solver, formulation or reductions; a solver without a formulation stands against everything."""
    assert one_thing_apart("a/split", "b/split")
    assert one_thing_apart("a/split", "a/split+reductions")
    assert one_thing_apart("dp", "a/tight")
    assert not one_thing_apart("a/split", "b/paper")
    assert not one_thing_apart("a/split", "b/split+reductions")


def test_plots(tmp_path: Path) -> None:
    """One profile and one picture of gaps a section."""
    pytest.importorskip("matplotlib")
    rows = three_by_two()
    names = draw_plots(summarise(rows), rows, tmp_path)
    assert names == ["profile-allocation.svg", "primal-gap-allocation.svg"]
    assert all((tmp_path / name).stat().st_size > 5000 for name in names)


def test_report_command(tmp_path: Path, run_cli: RunCli) -> None:
    """Words, JSON, files; a wrong answer is loud and exits 1."""
    rows = three_by_two()
    write_rows(rows, tmp_path / "r.jsonl")
    assert run_cli("bench", "pack", "r.jsonl", "-o", "r.parquet").returncode == 0
    made = run_cli("bench", "report", "r.parquet", "-o", "out", "--no-plots")
    assert made.returncode == 0, made.stderr
    assert "not run: licence (1)" in (tmp_path / "out" / "report.md").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"] == 6
    rows.append(row(rows[0]["instance"], "c/split", "infeasible", 1.0))
    write_rows(rows, tmp_path / "w.jsonl")
    wrong = run_cli("bench", "report", "w.jsonl", "--json")
    assert wrong.returncode == 1
    assert len(json.loads(wrong.stdout)["conflicts"]) == 1
    assert "WRONG ANSWERS: 1" in wrong.stderr
