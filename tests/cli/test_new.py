"""``scenario new``, ``init`` and ``doctor``: files that check, logs that are recognised or told what to rename."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coralopt import load_scenario
from coralopt.cli import doctor as doctor_module
from coralopt.workload import read_trace_file

RunCli = Callable[..., Any]
LOG = [
    {"created": 1763790000, "model": "gpt-oss-20b", "usage": {"prompt_tokens": 1200, "completion_tokens": 210}},
    {"created": 1763790004, "model": "served-32b", "usage": {"prompt_tokens": 300, "completion_tokens": 80}},
    {"created": 1763790006, "model": "gpt-oss-20b", "usage": None},
    {"created": 1763790008, "model": "gpt-oss-20b", "usage": {"prompt_tokens": 900, "completion_tokens": 400}},
    {"created": 1763790010, "model": "served-32b", "usage": {"prompt_tokens": 500, "completion_tokens": 90}},
]


def _lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_new_writes_a_file_that_checks(run_cli: RunCli, tmp_path: Path) -> None:
    """Comments, own nodes and rented ones; an existing file stays."""
    flags = ["--model", "qwen3-32b", "--model", "gpt-oss-20b", "--requests-s", "2", "--own", "8xH100=2"]
    flags += ["--region", "us-east-2", "--node", "1xL40S=6", "--node", "us-central1:1xH100=4", "--attainment", "mean"]
    made = run_cli("scenario", "new", *flags, "-o", "new.yaml")
    assert made.returncode == 0, made.stderr
    assert "# time to first token, ms" in (tmp_path / "new.yaml").read_text()
    scenario = load_scenario(tmp_path / "new.yaml")
    assert scenario.regions == ("own", "us-east-2", "us-central1")
    names = [item.name for item in scenario.configurations]
    assert scenario.availability[:, names.index("1xL40S")].tolist() == [0, 6, 0]
    assert scenario.operations.classes[0].name == "reserved"
    again = run_cli("scenario", "new", *flags, "-o", "new.yaml")
    assert again.returncode == 2
    assert "--force" in again.stderr
    twice = ("--model", "qwen3-8b", "--model", "Qwen/Qwen3-8B", "--requests-s", "1", "-o", "twice.yaml")
    assert run_cli("scenario", "new", *twice).returncode == 0
    assert {phase.model.name for phase in load_scenario(tmp_path / "twice.yaml").model_phases} == {"qwen3-8b"}
    assert (
        "input_tokens: must be above 0" in run_cli("scenario", "new", *twice, "--input-tokens", "0", "--force").stderr
    )
    assert "at least one --model" in run_cli("scenario", "new", "-o", "other.yaml").stderr
    assert "nosuch" in run_cli("scenario", "new", "--model", "nosuch", "--requests-s", "1", "-o", "other.yaml").stderr


def test_init_takes_rates_and_lengths_from_a_usage_log(run_cli: RunCli, tmp_path: Path) -> None:
    """Models as the log calls them are mapped; failed requests are left out."""
    _lines(tmp_path / "usage.jsonl", LOG)
    refused = run_cli("init", "usage.jsonl", "-o", "s.yaml")
    assert refused.returncode == 2
    assert "--model served-32b=NAME" in refused.stderr
    made = run_cli("init", "usage.jsonl", "-o", "s.yaml", "--model", "served-32b=qwen3-32b", "--region", "us-east-2")
    assert made.returncode == 0, made.stderr
    assert "1 failed" in made.stderr
    scenario = load_scenario(tmp_path / "s.yaml")
    prefill = {phase.model.name: phase for phase in scenario.model_phases if phase.phase == "prefill"}
    assert set(prefill) == {"gpt-oss-20b", "qwen3-32b"}
    assert prefill["qwen3-32b"].demand_tokens_s == pytest.approx(0.2 * prefill["qwen3-32b"].mean_input_tokens)
    assert "no such requests" in run_cli("init", "usage.jsonl", "-o", "t.yaml", "--model", "x=qwen3-8b").stderr


def test_names_of_one_model_and_paths_of_checkpoints(run_cli: RunCli, tmp_path: Path) -> None:
    """Requests of two names that stand for one model are its requests; a path is relative to the scenario's folder."""
    _lines(tmp_path / "usage.jsonl", LOG)
    flags = ("--model", "served-32b=gpt-oss-20b")
    assert run_cli("init", "usage.jsonl", *flags, "-o", "s.yaml").returncode == 0
    (phase,) = [p for p in load_scenario(tmp_path / "s.yaml").model_phases if p.phase == "prefill"]
    served = [row for row in LOG if row["usage"]]
    assert f"mean of {len(served):,} requests" in (tmp_path / "s.yaml").read_text()
    assert phase.model.name == "gpt-oss-20b"
    config = {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    (tmp_path / "mine").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    made = run_cli("scenario", "new", "--model", "mine/config.json", "--requests-s", "1", "-o", "new/s.yaml")
    assert made.returncode == 0, made.stderr
    assert load_scenario(tmp_path / "new" / "s.yaml").model_phases[0].model.name == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"created": 1}]', "jq -c"),
        (
            "start_time,num_model_requests,input_tokens,output_tokens\n1,3,4,5\n",
            "sums over requests (num_model_requests)",
        ),
        (
            "(APIServer pid=7) INFO 11-22 12:00:00 [api_server.py:1839] vLLM API server version\n",
            "holds no token counts",
        ),
    ],
)
def test_logs_that_cannot_serve_say_why(run_cli: RunCli, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "log").write_text(text)
    refused = run_cli("init", "log")
    assert refused.returncode == 2
    assert words in refused.stderr


def test_usage_in_the_words_of_newer_interfaces(tmp_path: Path) -> None:
    """input_tokens and output_tokens, the first request failed; a spend log's startTime."""
    lines = [{"created_at": 10 + k, "model": "m", "usage": {"input_tokens": 5, "output_tokens": 2}} for k in range(3)]
    file = read_trace_file(_lines(tmp_path / "r.jsonl", [{"created_at": 9, "model": "m", "usage": None}, *lines]))
    assert (len(file.trace), file.failed) == (3, 1)
    (tmp_path / "spend.csv").write_text("startTime,model,input_tokens,output_tokens\n2025-11-22T05:00:00Z,m,5,2\n")
    assert read_trace_file(tmp_path / "spend.csv").format == "usage"


def test_other_columns_are_named(run_cli: RunCli, tmp_path: Path) -> None:
    """CSV with stamps, JSON with keys inside keys, and what is said of files that are not understood."""
    (tmp_path / "gateway.csv").write_text("timestamp,in,out\n2025-11-22 05:00:00,10,5\n2025-11-22 05:00:10,30,7\n")
    assert "--column" in run_cli("init", "gateway.csv").stderr
    named = {"arrival": "timestamp", "input": "in", "output": "out"}
    flags = [part for name, column in named.items() for part in ("--column", f"{name}={column}")]
    assert "say --model NAME" in run_cli("init", "gateway.csv", *flags).stderr
    made = run_cli("init", "gateway.csv", *flags, "--model", "qwen3-8b", "-o", "g.yaml")
    assert made.returncode == 0, made.stderr
    trace = read_trace_file(tmp_path / "gateway.csv", columns=named).trace
    assert trace.arrival_s.tolist() == [0.0, 10.0]
    assert "no column nosuch" in run_cli("init", "gateway.csv", *flags[:-1], "output=nosuch").stderr
    assert "missing is input and output" in run_cli("init", "gateway.csv", "--column", "arrival=timestamp").stderr
    rows = [{"t": 1763790000000, "n": {"in": 10, "out": 5}}, {"t": 1763790010000, "n": {"in": 30, "out": 7}}]
    path = _lines(tmp_path / "own.jsonl", rows)
    assert "of no known format" in run_cli("init", "own.jsonl").stderr
    nested = read_trace_file(path, columns={"arrival": "t", "input": "n.in", "output": "n.out"}).trace
    assert nested.arrival_s.tolist() == [0.0, 10.0]
    assert nested.input_tokens.tolist() == [10, 30]
    (tmp_path / "access.log").write_text('INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n')
    assert "holds no token counts" in run_cli("init", "access.log").stderr


def test_usage_logs_as_csv_and_of_the_router(tmp_path: Path) -> None:
    """A header with prompt_tokens; lines of the router's access log, some without tokens."""
    table = tmp_path / "usage.csv"
    table.write_text("created_at,model,prompt_tokens,completion_tokens\n1763790000,a,10,5\n1763790002,b,20,6\n")
    file = read_trace_file(table)
    assert (file.format, file.trace.models) == ("usage", ("a", "b"))
    rows = [
        {"time": "2025-11-22T05:00:00.000+00:00", "model": "a", "prompt_tokens": 9, "completion_tokens": 3},
        {"time": "2025-11-22T05:00:01.500+00:00", "model": None, "prompt_tokens": None, "completion_tokens": None},
        {"time": "2025-11-22T05:00:02.500+00:00", "model": "a", "prompt_tokens": 8, "completion_tokens": 2},
    ]
    routed = read_trace_file(_lines(tmp_path / "access.jsonl", rows))
    assert routed.failed == 1
    assert routed.trace.arrival_s.tolist() == [0.0, 2.5]


def test_doctor_says_what_there_is(run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready solvers, the cache, what is missing and how it is had; a cache that cannot be is no failure."""
    rows = {row["what"]: row for row in json.loads(run_cli("doctor", "--json").stdout)}
    assert rows["solver highs"]["state"].startswith("ready")
    assert "GB free" in rows["cache"]["state"]
    monkeypatch.setenv("CORALOPT_CACHE", "/dev/null/x")
    answer = run_cli("doctor", "--json")
    rows = {row["what"]: row for row in json.loads(answer.stdout)}
    assert answer.returncode == 0
    assert "kept in memory" in rows["cache"]["advice"]
    monkeypatch.setattr(doctor_module, "_solvers", lambda: [("solver highs", "not installed", "")])
    assert run_cli("doctor").returncode == 1


def test_h_is_help_and_the_shell_completes(run_cli: RunCli) -> None:
    """-h everywhere; completion of commands."""
    assert "--solver" in run_cli("plan", "-h").stdout
    assert "Usage" in run_cli("workload", "fit", "-h").stdout
    asked = {"_CORALOPT_COMPLETE": "complete_bash", "COMP_WORDS": "coralopt sce", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['coralopt']; from coralopt.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["scenario"]
