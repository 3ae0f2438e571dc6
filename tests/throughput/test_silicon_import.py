"""The maker of the packaged table of measured layer times: from a CSV, and from aiconfigurator-core where installed."""

from __future__ import annotations

import csv
import gzip
import itertools
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from coralopt.errors import CoraloptError
from coralopt.throughput import silicon_import
from coralopt.throughput.aiconfigurator_rows import rows_of_aiconfigurator
from coralopt.throughput.silicon_import import COLUMNS, rows_of_csv, write_table

HEADER = (
    "model,weights,system,backend,version,tp,phase,tokens_per_seq,batch,total_ms,nonlayer_ms,per_layer_ms,mode,note"
)
LINES = (
    "b/model,bf16,l40s,vllm,0.24.0,2,prefill,128,1,10.5,0.5,0.25,SILICON,",
    'a/model,fp8,h100_sxm,vllm,0.24.0,1,decode,1024,16,4.25,0.25,0.125,SILICON,"a note, with a comma"',
    "b/model,bf16,l40s,vllm,0.24.0,2,prefill,64,1,8.5,0.5,0.2,SILICON,",
)
PACKAGED = Path(silicon_import.__file__).parent / "data" / "silicon.parquet"
KEY = tuple(name for name in COLUMNS if name not in ("nonlayer_ms", "per_layer_ms"))


def write_csv(path: Path, *lines: str) -> Path:
    text = "\n".join((HEADER, *lines)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_csv_becomes_the_table(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_csv(tmp_path / name, *LINES), tmp_path / "silicon.parquet"
    monkeypatch.setattr(sys, "argv", ["silicon_import", "--from-csv", str(source), "-o", str(target)])
    assert silicon_import.main() == 0
    assert capsys.readouterr().out.startswith("3 rows: ")
    table = pq.read_table(target)
    packaged = pq.read_schema(PACKAGED)
    assert (tuple(table.column_names), table.schema.types) == (COLUMNS, packaged.types)
    rows = table.to_pylist()
    assert [(row["model"], row["tokens"]) for row in rows] == [("a/model", 1024), ("b/model", 64), ("b/model", 128)]
    assert rows[0] == {
        "model": "a/model",
        "weights": "fp8",
        "system": "h100_sxm",
        "version": "vllm 0.24.0 tables",
        "tp": 1,
        "phase": "decode",
        "tokens": 1024,
        "batch": 16,
        "nonlayer_ms": 0.25,
        "per_layer_ms": 0.125,
        "note": "a note, with a comma",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((name, target.name))


@pytest.mark.parametrize(
    "line",
    [
        "b/model,bf16,l40s,vllm,0.24.0,two,prefill,128,1,10.5,0.5,0.25,SILICON,",
        "b/model,bf16,l40s,vllm,0.24.0,2,prefill,128,1,10.5,,0.25,SILICON,",
        "b/model,bf16,l40s,vllm",
    ],
    ids=["not a number", "empty", "too few fields"],
)
def test_a_bad_row_is_told_with_its_line(line: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", LINES[0], line)
    with pytest.raises(CoraloptError, match=r"rows\.csv: line 3: "):
        list(rows_of_csv(path))


def test_a_csv_without_a_column_or_a_file_or_rows(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    with pytest.raises(CoraloptError, match="cannot be read"):
        list(rows_of_csv(path))
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("model", "tp"), ("a/model", 1)])
    with pytest.raises(CoraloptError, match="weights"):
        list(rows_of_csv(path))
    with pytest.raises(CoraloptError, match="no rows"):
        write_table(rows_of_csv(write_csv(path)), tmp_path / "silicon.parquet")
    assert not (tmp_path / "silicon.parquet").exists()


@pytest.mark.parametrize("content", [b"model,tp\n", gzip.compress(b"model,tp\n" * 99)[:-12]], ids=["plain", "cut"])
def test_a_damaged_gz_file_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(content)
    with pytest.raises(CoraloptError, match=r"rows\.csv\.gz: "):
        list(rows_of_csv(path))


def test_a_bad_csv_writes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_csv(tmp_path / "rows.csv", "b/model"), tmp_path / "silicon.parquet"
    monkeypatch.setattr(sys, "argv", ["silicon_import", "--from-csv", str(source), "-o", str(target)])
    assert silicon_import.main() == 2
    assert capsys.readouterr().err.startswith(f"error: {source}: line 2: ")
    assert not target.exists()


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "silicon.parquet"
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setattr(sys, "argv", ["silicon_import", "-o", str(target)])
    assert silicon_import.main() == 2
    assert capsys.readouterr().err == (
        "error: aiconfigurator-core is not installed; install the extra: pip install 'coralopt[silicon]'\n"
    )
    assert not target.exists()


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs the extra silicon")
def test_the_packaged_table_is_what_the_package_gives() -> None:
    packaged = {tuple(row[name] for name in KEY): row for row in pq.read_table(PACKAGED).to_pylist()}
    rows = list(itertools.islice(rows_of_aiconfigurator(), 1000))
    assert len(rows) == 1000
    for row in rows:
        assert tuple(row) == COLUMNS
        expected = packaged[tuple(row[name] for name in KEY)]
        assert row["nonlayer_ms"] == pytest.approx(expected["nonlayer_ms"], rel=1e-6)
        assert row["per_layer_ms"] == pytest.approx(expected["per_layer_ms"], rel=1e-6)
