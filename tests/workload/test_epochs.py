"""Tables per epoch come back as written, and a broken one says everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coralopt.errors import WorkloadError
from coralopt.workload import (
    EpochAvailability,
    EpochDemand,
    read_availability,
    read_demand,
    read_prices,
    write_availability,
    write_demand,
)
from coralopt.workload.series.epochs import PRICES


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_tables_come_back(tmp_path: Path, suffix: str) -> None:
    """All three tables survive each file format bit for bit."""
    random = np.random.default_rng(1)
    demand = EpochDemand(("m/prefill", "m/decode"), random.random((3, 2)) * 1e4)
    write_demand(demand, tmp_path / f"d{suffix}")
    again = read_demand(tmp_path / f"d{suffix}")
    assert again.keys == demand.keys
    assert np.array_equal(again.tokens_s, demand.tokens_s)
    count = random.integers(0, 9, (3, 2, 2))
    write_availability(EpochAvailability(("r", "s"), ("1xL4", "4xL40S"), count), tmp_path / f"a{suffix}")
    assert np.array_equal(read_availability(tmp_path / f"a{suffix}").count, count)
    usd_h = random.random((3, 2, 2))
    usd_h[:, 1, 0] = np.nan
    named = [("r", "1xL4"), ("r", "4xL40S"), ("s", "4xL40S")]
    PRICES.write(tmp_path / f"p{suffix}", named, np.delete(usd_h.reshape(3, 4), 2, axis=1))
    assert np.array_equal(read_prices(tmp_path / f"p{suffix}").usd_h, usd_h, equal_nan=True)


@given(hnp.arrays(np.float64, (2, 3), elements=st.floats(0, 1e300, allow_subnormal=True)))
@settings(max_examples=50, deadline=None)
def test_demand_is_exact(tmp_path_factory: pytest.TempPathFactory, tokens_s: np.ndarray) -> None:
    """CSV holds enough digits for every float64."""
    path = tmp_path_factory.mktemp("d") / "d.csv"
    write_demand(EpochDemand(("a/prefill", "a/decode", "b/mixed"), tokens_s), path)
    assert np.array_equal(read_demand(path).tokens_s, tokens_s)


def test_columns_in_any_order(tmp_path: Path) -> None:
    """A spreadsheet may move columns, and write 3.0 for 3."""
    path = tmp_path / "a.csv"
    path.write_text("count,region,epoch,configuration\n3.0,r,0,1xL4\n\n2,r,1,1xL4\n")
    assert read_availability(path).count[:, 0, 0].tolist() == [3, 2]


def test_every_mistake_at_once(tmp_path: Path) -> None:
    """One run shows all of them, each with its line."""
    path = tmp_path / "d.csv"
    path.write_text(
        "epoch,model,phase,tokens_s\n0,m,prefill,-1\nx,m,prefill,1\n0,m,decoding,1\n0,,decode,nan\n"
        "0,m,decode,2\n0,m,decode,2\n"
    )
    with pytest.raises(WorkloadError) as caught:
        read_demand(path)
    text = str(caught.value)
    assert "6 mistakes" in text
    for words in (
        "line 2: tokens_s must be a number of tokens/s, at least 0, not '-1'",
        "line 3: epoch must be a whole number from 0, not 'x'",
        "line 4: phase must be prefill, decode or mixed, not 'decoding'",
        "line 5: model is empty",
        "not 'nan'",
        "line 7: epoch 0, m, decode again (first line 6)",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty file"),
        ("epoch,region,configuration,count\n", "no rows"),
        ("epoch,region,configuration\n0,r,c\n", "no column count"),
        ("epoch,region,configuration,count,x\n0,r,c,1,1\n", "unknown column 'x'"),
        ("epoch,region,configuration,count\n0,r,c\n", "line 2: 3 fields"),
        ("epoch,region,configuration,count\n0,r,c,1.5\n", "whole number of nodes"),
        ("epoch,region,configuration,count\n0,r,c,1\n2,r,c,1\n", "epoch 1: no rows"),
        ("epoch,region,configuration,count\n0,r,c,1\n0,r,d,1\n1,r,c,1\n", "epoch 1: no row for r, d"),
        ("epoch,region,configuration,count\n999999,r,c,1\n", "without holes"),
    ],
)
def test_broken_availability(tmp_path: Path, text: str, words: str) -> None:
    """No broken table reaches the planner, and the message says what to do."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        read_availability(path)
    assert words in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing, binary or broken file is a message, not a traceback."""
    with pytest.raises(WorkloadError, match="no such file"):
        read_prices(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(WorkloadError, match="UTF-8"):
        read_prices(tmp_path / "b.csv")
    (tmp_path / "b.csv.gz").write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(WorkloadError, match="gzip"):
        read_prices(tmp_path / "b.csv.gz")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(WorkloadError, match="Parquet"):
        read_prices(tmp_path / "b.parquet")


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A write that fails leaves what was there and no debris."""
    path = tmp_path / "d.csv"
    path.write_text("old")
    from coralopt.workload.files.tables import replaced

    def interrupted() -> None:
        with replaced(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
