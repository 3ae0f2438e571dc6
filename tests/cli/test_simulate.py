"""``coralopt simulate`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

#: A command line, run in this process unless ``process=True``.
RunCli = Callable[..., Any]


@pytest.fixture
def folder(tiny_plan_file: Path) -> Path:
    """A folder with a plan in it."""
    return tiny_plan_file.parent


def test_tables_requests_and_json(folder: Path, run_cli: RunCli) -> None:
    """Tables for people, a file of requests, and the same figures for machines."""
    said = run_cli("simulate", "plan.json", "--duration", "60", "-o", "requests.parquet")
    assert said.returncode == 0, said.stderr
    for words in ("Promise and outcome", "met both SLOs", "phi4-14b/decode", "KV peak"):
        assert words in said.stdout
    document = json.loads(run_cli("simulate", "plan.json", "--duration", "60", "--json").stdout)
    assert document["requests"] == pq.read_table(folder / "requests.parquet").num_rows == document["finished"]
    assert {row["phase"] for row in document["outcomes"]} == {"prefill", "decode"}
    again = run_cli("simulate", "plan.json", "--duration", "60", "--json")
    assert json.loads(again.stdout) == document


def test_trace_and_epochs(folder: Path, run_cli: RunCli) -> None:
    """A trace from a file, stretched to a rate, over two plans with epochs of half a minute."""
    rows = "\n".join(f"{i * 0.5},500,20,phi4-14b" for i in range(200))
    (folder / "trace.csv").write_text(f"arrival_s,input_tokens,output_tokens,model\n{rows}\n")
    said = run_cli("simulate", "plan.json", "60=plan.json", "--trace", "trace.csv", "--rate", "1", "--epoch", "30")
    assert said.returncode == 0, said.stderr
    assert "Epochs" in said.stdout
    assert "200" in said.stdout


def test_equal_times_are_remarked_on(folder: Path, run_cli: RunCli) -> None:
    """A coarse clock is no mistake, rows that came twice may be one: both are counted."""
    rows = "1,5,3,phi4-14b\n1,5,3,phi4-14b\n1,6,3,phi4-14b\n"
    (folder / "ticks.csv").write_text("arrival_s,input_tokens,output_tokens,model\n" + rows)
    said = run_cli("simulate", "plan.json", "--trace", "ticks.csv")
    assert said.returncode == 0
    assert "2 of 3 requests arrive at the same instant" in said.stderr
    assert "1 of these are equal" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch.json"], "nosuch.json"),
        (["plan.json", "--trace", "nosuch.csv"], "nosuch.csv"),
        (["plan.json", "--rate", "-1"], "rate"),
        (["plan.json", "--noise", "-1"], "noise"),
        (["5=plan.json"], "must start at 0"),
        (["plan.json", "360=plan.json"], "longer --duration"),
        (["plan.json", "--trace", "trace-of-others.csv"], "gpt-5"),
        (["plan.json", "--model", "phi4-14b"], "--trace"),
        (["plan.json", "--sort"], "--trace"),
        (["plan.json", "--traffic", "storm"], "storm"),
        (["plan.json", "--epochs", "."], "either plans, or --epochs"),
        (["--epochs", "."], "epoch-0000.json"),
        (["plan.json", "--lead", "5"], "--epochs"),
    ],
)
def test_bad_input(folder: Path, run_cli: RunCli, arguments: list[str], words: str) -> None:
    """Exit code 2, the reason, and never a traceback."""
    (folder / "trace-of-others.csv").write_text("arrival_s,input_tokens,output_tokens,model\n0,5,5,gpt-5\n")
    said = run_cli("simulate", *arguments)
    assert said.returncode == 2
    assert words in said.stderr
    assert "Traceback" not in said.stderr


def test_a_walk_and_its_pictures(folder: Path, run_cli: RunCli) -> None:
    """Plans of `adapt` one after the other, each with its own demand, and three pictures."""
    rows = [
        f"{epoch},{key},{tokens * factor}"
        for epoch, factor in enumerate((1.0, 3.0))
        for key, tokens in (
            ("gpt-oss-20b,prefill", 2000),
            ("gpt-oss-20b,decode", 30),
            ("phi4-14b,prefill", 1200),
            ("phi4-14b,decode", 200),
        )
    ]
    (folder / "demand.csv").write_text("epoch,model,phase,tokens_s\n" + "\n".join(rows) + "\n")
    assert run_cli("adapt", "tiny", "--demand", "demand.csv", "-o", "horizon").returncode == 0
    said = run_cli("simulate", "--epochs", "horizon", "--epoch", "60", "--plot", "pictures", "--json")
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    assert document["window_s"] == 120.0
    first, second = (sum(document["epochs"]["requests"][e : e + 2]) for e in (0, 2))
    assert 2 < second / first < 4.5
    for name in ("latency", "goodput", "utilisation"):
        assert (folder / "pictures" / f"{name}.svg").read_text().startswith("<?xml")
    early = run_cli("simulate", "--epochs", "horizon", "--epoch", "60", "--lead", "50", "--json")
    assert json.loads(early.stdout)["cost_usd"] > document["cost_usd"]


def test_plan_simulate(folder: Path, run_cli: RunCli) -> None:
    """A verified plan is marked, shown, and verifies; one that fails ends with exit code 1 and is marked as failed."""
    good = run_cli("plan", "tiny", "--simulate", "--attainment", "0.8", "--duration", "60", "-o", "good.json", "--json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["verified"]
    assert "VERIFIED by simulation" in run_cli("show", "good.json").stdout
    assert "requests simulated again" in run_cli("verify", "good.json").stdout
    bad = run_cli(
        *("plan", "tiny", "--simulate", "--attainment", "0.9999", "--rounds", "1", "--duration", "60"),
        *("-o", "bad.json"),
    )
    assert bad.returncode == 1
    assert "NOT VERIFIED" in bad.stderr
    again = run_cli("verify", "bad.json")
    assert again.returncode == 1
    assert "fails its own simulation" in again.stdout
