"""``coralopt compare`` and the planners of ``plan`` and ``place``, as a user meets them."""

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

#: A command line, run in this process unless ``process=True``.
RunCli = Callable[..., Any]


def test_compare_prints_writes_and_simulates(tmp_path: Path, run_cli: RunCli) -> None:
    """One command: a row a planner, plans that verify, simulated figures, a picture."""
    made = run_cli(
        *("compare", "tiny", "--planners", "coral,homo:homogeneous=node,helix", "--simulate", "--duration", "20"),
        *("--plot", "cost.svg", "-o", "plans", "--json"),
    )
    assert made.returncode == 0, made.stderr
    rows = {row["label"]: row for row in json.loads(made.stdout)["rows"]}
    assert list(rows) == ["coral", "homo:homogeneous=node", "helix"]
    assert rows["helix"]["error"]
    assert rows["coral"]["verified"]
    assert rows["homo:homogeneous=node"]["cost_usd_h"] >= rows["coral"]["bound_usd_h"]
    assert 0 < rows["coral"]["simulated"]["attainment"] <= 1
    attained = rows["coral"]["attained"]["phi4-14b/prefill"]
    assert attained["low"] < attained["attainment"] < attained["high"]
    assert attained["requests"] > 0
    assert (tmp_path / "cost.svg").read_text().startswith("<?xml")
    checked = run_cli("verify", "plans/homo_homogeneous_node.json")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_misspelt_planners_exit_2(run_cli: RunCli) -> None:
    """A wrong name is one line with the choices, before anything is planned."""
    for arguments in (("compare", "tiny", "--planners", "coral,homoo"), ("plan", "tiny", "--planner", "homoo")):
        failed = run_cli(*arguments)
        assert failed.returncode == 2
        assert "did you mean homo" in failed.stderr
        assert "Traceback" not in failed.stderr


def test_what_cannot_be_used_is_said_before_planning(tmp_path: Path, run_cli: RunCli) -> None:
    """Nobody waits for plans that cannot be compared, simulated or drawn as asked."""
    head = "arrival_s,input_tokens,output_tokens"
    (tmp_path / "falls.csv").write_text(f"{head}\n5,100,10\n2,200,20\n")
    (tmp_path / "other.csv").write_text(f"{head},model\n5,100,10,nobody\n")
    cases = (
        (["--planners", ","], "names no planner"),
        (["--plot", "cost.xyz"], "not the name of a picture"),
        (["--trace", "falls.csv"], "before the line above"),
        (["--trace", "falls.csv", "--sort"], "names no model"),
        (["--trace", "other.csv"], "has requests for nobody; the scenario has gpt-oss-20b, phi4-14b"),
        (["--model", "phi4-14b"], "give a --trace"),
    )
    for arguments, words in cases:
        failed = run_cli("compare", "tiny", *arguments)
        assert failed.returncode == 2
        assert words in failed.stderr
        assert "..." not in failed.stderr
        assert "Traceback" not in failed.stderr
    asked = ("--planners", "single-best", "--trace", "falls.csv", "--sort", "--model", "phi4-14b", "--json")
    done = run_cli("compare", "tiny", *asked)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["simulated"]["requests"] == 2


def test_place_by_others(run_cli: RunCli) -> None:
    """Helix says its gap, HexGen its pipelines; neither pretends a proof."""
    helix = run_cli("place", "helix-10", "--planner", "helix", "--start", "pool", "--time-limit", "1", "--json")
    assert helix.returncode == 0, helix.stderr
    document = json.loads(helix.stdout)
    assert document["tokens_s"] > 286.5
    assert document["proven"] is False
    assert len(document["ranges"]) == 10
    hexgen = run_cli("place", "helix-10", "--planner", "hexgen", "--generations", "5")
    assert hexgen.returncode == 0
    assert "286.587 tokens/s in all" in hexgen.stderr
    homo = run_cli("place", "helix-10", "--planner", "homo")
    assert homo.returncode == 2
    assert "choose coral, helix or hexgen" in homo.stderr


def test_ctrl_c_keeps_finished_rows(tmp_path: Path) -> None:
    """Rows that are done are printed when Ctrl-C ends the comparison."""
    process = subprocess.Popen(
        [sys.executable, "-m", "coralopt", "compare", "core", "--planners", ",".join(["homo"] * 400)],
        cwd=tmp_path,
        env={**os.environ, "CORALOPT_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = 0
    deadline = time.monotonic() + 120
    while seen < 2 and time.monotonic() < deadline:
        seen += process.stderr.readline().startswith("homo ...")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert output.count("verified") >= 1
    assert "the finished rows are kept" in errors
