"""The workload commands as a user meets them: exit codes, no tracebacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coralopt.workload import read_availability, read_demand, read_trace

#: A command line, run in this process unless ``process=True``.
RunCli = Callable[..., Any]


@pytest.fixture
def workload(run_cli: RunCli) -> RunCli:
    """``coralopt workload`` in the test's folder."""
    return partial(run_cli, "workload")


def test_from_scenario_to_tables(tmp_path: Path, workload: RunCli) -> None:
    """The way to `adapt`: a trace for a scenario, its demand per epoch, availability for its pool."""
    (tmp_path / "out").mkdir()
    made = workload("mix", "core", "--duration", "720", "--seed", "1", "-o", "out/core.parquet")
    assert made.returncode == 0, made.stderr
    assert "requests written to" in made.stderr
    asked = workload("demand", "out/core.parquet", "-o", "demand.csv", "--json")
    assert asked.returncode == 0, asked.stderr
    assert len(json.loads(asked.stdout)["epochs"]) == 2
    assert (tmp_path / "demand.csv").read_text().splitlines()[0] == "epoch,model,phase,tokens_s"
    demand = read_demand(tmp_path / "demand.csv")
    assert set(demand.keys) >= {"qwen3-32b/prefill", "phi4-14b/decode"}
    free = workload(
        "availability",
        "core",
        "--epochs",
        "2",
        "--required",
        "30",
        "--rule",
        "scarce-core",
        "-o",
        "a.csv",
    )
    assert free.returncode == 0, free.stderr
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "epoch,region,configuration,count"
    table = read_availability(tmp_path / "a.csv")
    assert table.count.shape == (2, 2, 12)


def test_fit_generate_describe(tmp_path: Path, workload: RunCli) -> None:
    """A generated trace can be fitted, and the fitted generator generates."""
    workload("generate", "azure-conv-2023", "--duration", "300", "--seed", "1", "-o", "t.csv.gz")
    fitted = workload("fit", "t.csv.gz", "-o", "g.json", "--json")
    assert fitted.returncode == 0, fitted.stderr
    assert "BIC" in json.loads(fitted.stdout)["why"]
    again = workload("generate", "g.json", "--rate", "20", "--duration", "60", "--exact-rate", "-o", "u.csv")
    assert again.returncode == 0, again.stderr
    assert len(read_trace(tmp_path / "u.csv")) == 1200
    told = workload("describe", "u.csv")
    assert "1,200" in told.stdout
    shown = workload("show", "g.json")
    assert "Token lengths" in shown.stdout


def test_list_and_convert(tmp_path: Path, workload: RunCli) -> None:
    """Every packaged generator is listed; convert applies its options in the order that help states."""
    listed = json.loads(workload("list", "--json").stdout)
    assert {"azure-code-2023", "azure-conv-2023", "burstgpt"} <= {row["name"] for row in listed}
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,2,2\n2,3,3\n3,4,4\n")
    made = workload(
        "convert",
        "t.csv",
        "--start",
        "1",
        "--repeat",
        "3",
        "--rate",
        "2",
        "--share",
        "m=1",
        "-o",
        "u.csv",
    )
    assert made.returncode == 0, made.stderr
    trace = read_trace(tmp_path / "u.csv")
    assert trace.models == ("m",)
    assert trace.input_tokens.tolist() == [2, 3, 4] * 3
    assert trace.rate_s == pytest.approx(2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["describe", "none.csv"], "no such file"),
        (["describe", "bad.csv"], "line 2: input tokens must be a whole number, at least 0 and below 2^31, not '-1'"),
        (["fit", "bad.csv", "-o", "g.json"], "2 mistakes"),
        (["show", "nosuch"], "azure-code-2023"),
        (["generate", "burstgpt", "--rate", "0", "-o", "x.csv"], "rate must be positive"),
        (["mix", "core", "--imbalance", "odd", "-o", "x.csv"], "unknown imbalance 'odd'"),
        (["mix", "core", "--generator", "qwen3-32b", "-o", "x.csv"], "expected MODEL=GEN"),
        (["availability", "core", "--epochs", "3", "-o", "x.csv"], "--plan plan.json"),
        (["availability", "core", "--epochs", "3", "--required", "9", "--rule", "odd", "-o", "x.csv"], "unknown rule"),
        (["convert", "good.csv", "--only", "m", "-o", "x.csv"], "no requests for model 'm'"),
        (["convert", "good.csv", "--share", "m=x", "-o", "x.csv"], "'x' is no number"),
        (["demand", "good.csv"], "--model"),
    ],
)
def test_bad_input(tmp_path: Path, workload: RunCli, arguments: list[str], words: str) -> None:
    """Exit code 2, one clear message, no traceback, and no file left behind."""
    (tmp_path / "bad.csv").write_text("arrival_s,input_tokens,output_tokens\n0,-1,1\n5,1,x\n")
    (tmp_path / "good.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,1,1\n")
    before = {path.name for path in tmp_path.iterdir()}
    result = workload(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == before


def test_prefix_hits_prints_the_share(workload: RunCli, tmp_path: Path) -> None:
    """What goes into a scenario as ``prefix_hit``, for caches of several sizes."""
    rows = [{"timestamp": 0, "input_length": 1024, "hash_ids": [0, 1]}] * 2
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    small, whole = json.loads(workload("prefix-hits", str(path), "--cache", "512", "--json").stdout)
    assert (small["cache_tokens"], small["hit_tokens"]) == (512, 512)
    assert (whole["cache_tokens"], whole["hit_tokens"]) == (None, 1023)
    assert "0.4995" in workload("prefix-hits", str(path)).stdout
