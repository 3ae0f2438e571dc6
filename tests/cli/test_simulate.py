"""``coralopt simulate`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``coralopt`` in its own process with its cache below ``cwd``."""
    return subprocess.run(
        [sys.executable, "-m", "coralopt", *arguments],
        cwd=cwd,
        env={**os.environ, "CORALOPT_CACHE": str(cwd / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan in it."""
    path = tmp_path_factory.mktemp("simulate")
    made = run("plan", "tiny", "-o", "plan.json", cwd=path)
    assert made.returncode == 0, made.stderr
    return path


def test_tables_requests_and_json(folder: Path) -> None:
    """Tables for people, a file of requests, and the same figures for machines."""
    said = run("simulate", "plan.json", "--duration", "60", "-o", "requests.parquet", cwd=folder)
    assert said.returncode == 0, said.stderr
    for words in ("Promise and outcome", "met both SLOs", "phi4-14b/decode", "KV peak"):
        assert words in said.stdout
    document = json.loads(run("simulate", "plan.json", "--duration", "60", "--json", cwd=folder).stdout)
    assert document["requests"] == pq.read_table(folder / "requests.parquet").num_rows == document["finished"]
    assert {row["phase"] for row in document["outcomes"]} == {"prefill", "decode"}
    again = run("simulate", "plan.json", "--duration", "60", "--json", cwd=folder)
    assert json.loads(again.stdout) == document


def test_trace_and_epochs(folder: Path) -> None:
    """A trace from a file, stretched to a rate, over two plans with epochs of half a minute."""
    rows = "\n".join(f"{i * 0.5},500,20,phi4-14b" for i in range(200))
    (folder / "trace.csv").write_text(f"arrival_s,input_tokens,output_tokens,model\n{rows}\n")
    said = run(
        "simulate", "plan.json", "60=plan.json", "--trace", "trace.csv", "--rate", "1", "--epoch", "30", cwd=folder
    )
    assert said.returncode == 0, said.stderr
    assert "Epochs" in said.stdout
    assert "200" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch.json"], "nosuch.json"),
        (["plan.json", "--trace", "nosuch.csv"], "nosuch.csv"),
        (["plan.json", "--rate", "-1"], "rate"),
        (["plan.json", "--noise", "-1"], "noise"),
        (["5=plan.json"], "must start at 0"),
        (["plan.json", "--trace", "trace-of-others.csv"], "gpt-5"),
        (["plan.json", "--model", "phi4-14b"], "--trace"),
    ],
)
def test_bad_input(folder: Path, arguments: list[str], words: str) -> None:
    """Exit code 2, the reason, and never a traceback."""
    (folder / "trace-of-others.csv").write_text("arrival_s,input_tokens,output_tokens,model\n0,5,5,gpt-5\n")
    said = run("simulate", *arguments, cwd=folder)
    assert said.returncode == 2
    assert words in said.stderr
    assert "Traceback" not in said.stderr
