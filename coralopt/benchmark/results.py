"""The results file: one row a run, appended whole or not at all.

JSON lines while a bench runs, Parquet for keeping. A bench that was interrupted finds its rows here and runs none of
them again. When a run is repeated, its last row counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.task import Settings
from coralopt.errors import BenchmarkError
from coralopt.replacing import replacing

#: Bumped whenever the meaning of a field changes.
FORMAT = 1
#: Fields that hold structures; in Parquet they are JSON text.
_STRUCTURES = ("settings", "machine", "events", "answer", "steps")

#: Fields of every row, by kind, and fields that are numbers or null.
_TEXTS, _PARTS = ("key", "instance", "kind", "size", "arm", "solver", "outcome"), ("settings", "machine")
_TIMES = tuple(f"{step}seconds" for step in ("", "cpu_", "build_", "handover_", "solve_", "check_", "other_"))
_FIGURES = ("objective", "bound", "gap", "nodes", "iterations", "load_before", "load_after", "memory_mib")

#: One run, as in JSON. Any: which fields a row has, and of what type, depends on how the run ended.
Row = dict[str, Any]
#: How every line begins; a torn one begins with it or a part of it.
_HEAD = f'{{"format":{FORMAT},'


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file, the last one of every run.

    Raises:
        BenchmarkError: No such file, or not a results file of this version; says which line.
    """
    if not path.is_file():
        raise BenchmarkError(f"{path}: no such results file; make one with `coralopt bench -o {path}`")
    rows = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_lines(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row.get("format") != FORMAT or "key" not in row:
            raise BenchmarkError(
                f"{path}: row {number} is no benchmark row of format {FORMAT}; give a file that `coralopt bench` wrote"
            )
    return list({row["key"]: row for row in rows}.values())


def read_whole_rows(path: Path) -> list[Row]:
    """The same where every row has the fields that figures are made from.

    Raises:
        BenchmarkError: Also where a field is missing or of another kind.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows, 1):
        wrong = next(_strange(row), "")
        if wrong:
            raise BenchmarkError(f"{path}: run {number}: {wrong}; the file was changed since `coralopt bench` wrote it")
    return rows


def _strange(row: Row) -> Iterator[str]:
    """What no run writes in the fields that every row has, and in its figures."""
    for names, kind, what in (
        (_TEXTS, str, "text"),
        (("seed", "jobs"), int, "a whole number"),
        (_PARTS, dict, "an object"),
    ):
        for name in names:
            if not isinstance(row.get(name), kind) or isinstance(row[name], bool):
                yield f"{name} is {row.get(name)!r}, and must be {what}"
    outcomes = [outcome.value for outcome in Outcome]
    if row.get("outcome") not in outcomes:
        yield f"outcome is {row.get('outcome')!r}, and must be one of {', '.join(outcomes)}"
    if not isinstance(row["settings"].get("time_limit"), int | float):
        yield "settings.time_limit must be a number"
    for name, value in row.items():
        if (name.endswith("seconds") or name in _FIGURES) and not isinstance(value, int | float | None):
            yield f"{name} is {value!r}, and must be a number"
    if row["outcome"] in outcomes and Outcome(row["outcome"]).was_run:
        yield from (f"{name} is missing" for name in _TIMES if name not in row)


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows to a new file, Parquet or JSON lines by its suffix, beside its place and renamed."""
    with replacing(path, None) as temporary:
        if path.suffix.lower() == ".parquet":
            _write_parquet(list(rows), temporary)
        else:
            temporary.write_text("".join(_line(row) for row in rows), encoding="utf-8")


class ResultsFile:
    """A results file in JSON lines, open for one bench at a time.

    Raises:
        BenchmarkError: Another bench writes to it, it is broken, or its rows were made with other settings.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        if path.suffix.lower() == ".parquet":
            raise BenchmarkError(f"{path}: a running bench writes JSON lines; name it .jsonl and pack it afterwards")
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self.rows = {row["key"]: row for row in read_rows(path)}
            for row in self.rows.values():
                _same_settings(path, row, settings)
            # Only now is it sure that the file is one of ours.
            _drop_torn_line(path)
        except BaseException:
            os.close(self._handle)
            raise

    def append(self, row: Row) -> None:
        """Add one row; it is on disk when this returns."""
        line = _line({"format": FORMAT, **row}).encode()
        # One write: another reader sees the whole line or none of it.
        os.write(self._handle, line)
        os.fsync(self._handle)
        self.rows[row["key"]] = {"format": FORMAT, **row}

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BenchmarkError(
                f"{self.path}: another bench writes to this file; wait for it or name another"
            ) from None


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end: the power went while it was written, so its run is not done."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)


def _read_lines(path: Path) -> list[Row]:
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{path}: not readable as a results file: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except RecursionError as error:
            raise BenchmarkError(f"{path}: line {number} is nested too deeply; is this a results file?") from error
        except json.JSONDecodeError as error:
            if number == len(lines) and line.startswith(_HEAD[: len(line)]):
                continue  # torn: the bench was killed while it wrote
            raise BenchmarkError(f"{path}: line {number} is not JSON ({error.msg}); is this a results file?") from error
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.read_table(path, use_threads=False).to_pylist()
        for row in rows:
            for name in _STRUCTURES:
                if row.get(name) is not None:
                    row[name] = json.loads(row[name])
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise BenchmarkError(f"{path}: not readable as a results file: {str(error).splitlines()[0]}") from error
    return rows


def _write_parquet(rows: list[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    flat = [
        {
            name: json.dumps(row[name], separators=(",", ":"))
            if name in _STRUCTURES and row.get(name) is not None
            else row.get(name)
            for name in names
        }
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(flat), path, compression="zstd")


def _same_settings(path: Path, row: Row, settings: Settings) -> None:
    before = row["settings"]
    for name, value in json.loads(json.dumps(settings.plain())).items():
        if before.get(name) != value:
            raise BenchmarkError(
                f"{path} was made with {name}={before.get(name)!r}, this bench asks for {value!r}; rows of different "
                "settings cannot be compared: name another results file or ask for the same"
            )
