"""Requests from plain tables and from the Poisson generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from coralopt import load_scenario
from coralopt.errors import WorkloadError
from coralopt.simulation import at_rate, poisson_requests, read_requests

TABLE = "arrival_s,input_tokens,output_tokens,model\n0,10,2,a\n0.5,20,3,b\n1.5,30,4,a\n"


def test_csv_and_parquet_read_alike(tmp_path: Path) -> None:
    """The same table in either format gives the same trace."""
    (tmp_path / "t.csv").write_text(TABLE)
    pq.write_table(pc.read_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        trace = read_requests(tmp_path / name)
        assert trace.models == ("a", "b")
        assert trace.model.tolist() == [0, 1, 0]
        assert trace.arrival_s.tolist() == [0.0, 0.5, 1.5]
        assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 20, 30], [2, 3, 4])
    assert read_requests(tmp_path / "t.csv", model="c").models == ("c",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,input_tokens\n0,1\n", "no column output_tokens"),
        (TABLE.replace("20,3", "0,3"), "input_tokens must be at least 1: 0 in row 1"),
        (TABLE.replace("0.5,", "2.5,"), "row 2 arrives at 1.5 s"),
        (TABLE.replace("20,3", "x,3"), "input_tokens must hold numbers"),
        (TABLE.replace("20,3", "20,3.5"), "whole numbers"),
        ("", "cannot be read"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """One message that names the file and what is off."""
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(WorkloadError, match=message) as caught:
        read_requests(tmp_path / "t.csv")
    assert "t.csv" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    """No traceback for a wrong name."""
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_requests(tmp_path / "none.csv")


def test_poisson_requests_have_the_demand_planned_for() -> None:
    """Rate, mean lengths and spread are what was asked for; the seed decides the rest."""
    scenario = load_scenario("core")
    trace = poisson_requests(scenario, duration_s=3000.0, seed=4)
    assert len(trace) / 3000 == pytest.approx(30.0, rel=0.02)
    for phase in scenario.model_phases:
        mine = trace.model == trace.models.index(phase.model.name)
        assert trace.input_tokens[mine].mean() == pytest.approx(phase.mean_input_tokens, rel=0.03)
        assert trace.output_tokens[mine].mean() == pytest.approx(phase.mean_output_tokens, rel=0.03)
        lengths = trace.output_tokens[mine]
        assert lengths.std() / lengths.mean() == pytest.approx(1.0, rel=0.06)
    same, other = (poisson_requests(scenario, duration_s=3000.0, seed=seed) for seed in (4, 5))
    assert same.arrival_s.tobytes() == trace.arrival_s.tobytes()
    assert other.arrival_s.tobytes() != trace.arrival_s.tobytes()
    fixed = poisson_requests(scenario, duration_s=50.0, length_cv=0.0)
    assert len(np.unique(fixed.input_tokens[fixed.model == 0])) == 1


def test_at_rate_scales_time_only() -> None:
    """Twice the rate halves every gap and leaves lengths and models."""
    trace = poisson_requests(load_scenario("tiny"), rate=2.0, duration_s=500.0)
    fast = at_rate(trace, 4.0)
    assert fast.arrival_s[-1] == pytest.approx(len(trace) / 8.0)
    assert np.diff(fast.arrival_s) == pytest.approx(np.diff(trace.arrival_s) * fast.arrival_s[-1] / trace.arrival_s[-1])
    assert fast.input_tokens.tolist() == trace.input_tokens.tolist()
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(WorkloadError, match="positive"):
            at_rate(trace, rate)
