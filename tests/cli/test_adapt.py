"""``coralopt adapt`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

#: A command line, run in this process unless ``process=True``.
RunCli = Callable[..., Any]


@pytest.fixture
def adapt(run_cli: RunCli) -> RunCli:
    """``coralopt adapt`` in the test's folder."""
    return partial(run_cli, "adapt")


def test_walk_resumes_and_speaks_json(tmp_path: Path, adapt: RunCli) -> None:
    """Prices from a table, two epochs, then a third in the same folder; the plans are documents like any other."""
    rows = [f"{e},us-east-2,1xL4,{0.8 + e / 10}" for e in range(3)]
    (tmp_path / "prices.csv").write_text("epoch,region,configuration,usd_h\n" + "\n".join(rows) + "\n")
    first = adapt("tiny", "--prices", "prices.csv", "--epochs", "2", "-o", "horizon")
    assert first.returncode == 0, first.stderr
    assert "initialization" in first.stdout
    again = adapt("tiny", "--prices", "prices.csv", "-o", "horizon", "--json")
    assert again.returncode == 0, again.stderr
    epochs = json.loads(again.stdout)["horizons"][0]["epochs"]
    assert [epoch["resumed"] for epoch in epochs] == [True, True, False]
    assert (tmp_path / "horizon" / "epoch-0002.json").exists()


def test_mistakes_are_said_in_words(tmp_path: Path, adapt: RunCli) -> None:
    """A table with a hole, no epochs at all, several penalties with a folder: exit code 2 and no traceback."""
    (tmp_path / "holes.csv").write_text("epoch,region,configuration,usd_h\n0,us-east-2,1xL4,1\n2,us-east-2,1xL4,1\n")
    (tmp_path / "nan.csv").write_text("epoch,region,configuration,count\n0,us-east-2,1xL4,nan\n")
    (tmp_path / "negative.csv").write_text("epoch,region,configuration,count\n0,us-east-2,1xL4,-1\n")
    (tmp_path / "falls.csv").write_text("arrival_s,input_tokens,output_tokens\n5,1,1\n0,1,1\n")
    for arguments in (
        ("tiny", "--availability", "nan.csv"),
        ("tiny", "--availability", "negative.csv"),
        ("tiny", "--demand", "falls.csv", "--trace-model", "phi4-14b"),
        ("tiny", "--epochs", "2", "--epoch", "600,1200"),
        ("tiny", "--prices", "holes.csv"),
        ("tiny",),
        ("tiny", "--epochs", "2", "--penalty", "0,1", "-o", "horizon"),
        ("tiny", "--epochs", "2", "--penalty", "x"),
    ):
        result = adapt(*arguments)
        assert result.returncode == 2, result.stdout
        assert "Traceback" not in result.stderr
        assert result.stderr.startswith("error: ")


def test_trace_intervals_and_budget(tmp_path: Path, adapt: RunCli) -> None:
    """A trace read directly, at two interval lengths; a budget that one epoch cannot meet ends with code 3 or is shared."""
    rows = "".join(f"{k},{200 if k < 100 else 900},20\n" for k in range(0, 200, 2))
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    trace = ("tiny", "--demand", "trace.csv", "--trace-model", "phi4-14b")
    result = adapt(*trace, "--epoch", "50,100", "--json")
    assert result.returncode == 0, result.stderr
    horizons = json.loads(result.stdout)["horizons"]
    assert [(run["epoch_s"], run["penalty"], len(run["epochs"])) for run in horizons] == [(50, 7.2, 4), (100, 3.6, 2)]
    poor = adapt(*trace, "--epoch", "100", "--budget", "1")
    assert poor.returncode == 3, poor.stderr
    assert "limits.max_usd_h" in poor.stderr
    assert "Traceback" not in poor.stderr
    priced = adapt(*trace, "--epoch", "100", "--budget", "1", "--on-infeasible", "shortfall", "--unmet-price", "1")
    assert priced.returncode == 0, priced.stderr


def test_bursts_and_the_perfect_system(tmp_path: Path, adapt: RunCli, run_cli: RunCli) -> None:
    """Plans for the busiest windows rent more than those for the mean, and no less than the perfect system."""
    rows = "".join(f"{k / 10},{400 if k < 450 else 3000},20\n" for k in range(0, 500, 5))
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    trace = ("tiny", "--demand", "trace.csv", "--trace-model", "phi4-14b", "--epoch", "50", "--penalty", "0", "--json")
    mean, peak = (json.loads(adapt(*trace, "--perfect", *more).stdout)["horizons"][0] for more in ((), ("--peak", "1")))
    assert mean["perfect_usd_h"] == peak["perfect_usd_h"]
    costs = [run["mean"]["provisioning_usd_h"] for run in (mean, peak)]
    assert costs[0] < costs[1]
    assert peak["perfect_usd_h"] <= costs[1] * (1 + 1e-4)
    planned = run_cli(
        "plan", "tiny", "--trace", "trace.csv", "--model", "phi4-14b", "--peak", "1", "--perfect", "--no-play"
    )
    assert planned.returncode == 0, planned.stderr
    said = " ".join((planned.stdout + planned.stderr).split())
    assert f"at least {peak['perfect_usd_h']:.4f} USD/h; the rent here is" in said
    for command in (
        ("plan", "tiny", "--peak", "0.9"),
        ("plan", "tiny", "--trace", "trace.csv"),
        ("adapt", *trace[:5], "--peak", "2"),
    ):
        refused = run_cli(*command)
        assert refused.returncode == 2, refused.stdout
        assert refused.stderr.startswith("error: ")
