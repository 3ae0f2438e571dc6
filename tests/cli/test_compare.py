"""``coralopt compare`` and the planners of ``plan`` and ``place``, as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


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


def test_compare_prints_writes_and_simulates(tmp_path: Path) -> None:
    """One command: a row a planner, plans that verify, simulated figures, a picture."""
    made = run(
        *("compare", "tiny", "--planners", "coral,homo:homogeneous=node,helix", "--simulate", "--duration", "20"),
        *("--plot", "cost.svg", "-o", "plans", "--json"),
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    rows = {row["label"]: row for row in json.loads(made.stdout)["rows"]}
    assert list(rows) == ["coral", "homo:homogeneous=node", "helix"]
    assert rows["helix"]["error"]
    assert rows["coral"]["verified"]
    assert rows["homo:homogeneous=node"]["cost_usd_h"] >= rows["coral"]["bound_usd_h"]
    assert 0 < rows["coral"]["simulated"]["attainment"] <= 1
    assert (tmp_path / "cost.svg").read_text().startswith("<?xml")
    checked = run("verify", "plans/homo_homogeneous_node.json", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_misspelt_planners_exit_2(tmp_path: Path) -> None:
    """A wrong name is one line with the choices, before anything is planned."""
    for arguments in (("compare", "tiny", "--planners", "coral,homoo"), ("plan", "tiny", "--planner", "homoo")):
        failed = run(*arguments, cwd=tmp_path)
        assert failed.returncode == 2
        assert "did you mean homo" in failed.stderr
        assert "Traceback" not in failed.stderr


def test_place_by_others(tmp_path: Path) -> None:
    """Helix says its gap, HexGen its pipelines; neither pretends a proof."""
    helix = run(
        "place", "helix-10", "--planner", "helix", "--start", "pool", "--time-limit", "1", "--json", cwd=tmp_path
    )
    assert helix.returncode == 0, helix.stderr
    document = json.loads(helix.stdout)
    assert document["tokens_s"] > 286.5
    assert document["proven"] is False
    assert len(document["ranges"]) == 10
    hexgen = run("place", "helix-10", "--planner", "hexgen", "--generations", "5", cwd=tmp_path)
    assert hexgen.returncode == 0, hexgen.stderr
    assert "286.587 tokens/s in all" in hexgen.stderr
    wrong = run("place", "helix-10", "--planner", "homo", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "choose coral, helix or hexgen" in wrong.stderr


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
