"""Read request traces of any format that :mod:`coralopt.workload.traces.formats` knows, and name every mistake in them."""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coralopt.errors import Mistake, WorkloadError
from coralopt.numbers import read_number
from coralopt.types import Progress
from coralopt.workload.files.tables import MOST_MISTAKES, number_cell, open_text, read_parquet, refuse, shown
from coralopt.workload.traces.formats import PLAIN_COLUMNS, TraceRow, checked_columns, rows_of
from coralopt.workload.traces.trace import UNNAMED, Trace

_REPORT_EVERY = 100_000
_read_tokens = number_cell("must be a whole number, at least 0 and below 2^31", whole=True, most=2**31 - 1)


@dataclass(frozen=True)
class TraceFile:
    """What a trace file held.

    Attributes:
        trace: The requests, sorted by arrival.
        format: Its name in :mod:`coralopt.workload.traces.formats`, or ``columns`` where these were named.
        failed: Requests left out because the log gives them 0 input or output tokens.
        out_of_order: Rows that arrived before the row above them, and were sorted.
    """

    trace: Trace
    format: str
    failed: int
    out_of_order: int


def read_trace(path: str | Path, *, sort: bool | None = None, progress: Progress | None = None) -> Trace:
    """Read the requests of a trace file; see :func:`read_trace_file`."""
    return read_trace_file(path, sort=sort, progress=progress).trace


def read_trace_file(
    path: str | Path,
    *,
    sort: bool | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> TraceFile:
    """Read a trace file and say what was in it.

    Args:
        path: A CSV, JSON-lines or Parquet file; gzip is recognised by its content.
        sort: Whether rows out of order are sorted. By default they are for the data sets, whose loggers write
            concurrently, and are a mistake in a plain file.
        columns: ``arrival``, ``input``, ``output`` and, where there is one, ``model`` -> column of a CSV file, or key of
            JSON lines, with dots for keys inside keys. Times are seconds (or ms, where they are that large) or stamps.
        progress: Called now and then.

    Raises:
        WorkloadError: Lists the mistakes with their lines: unknown header, missing columns, values that are no
            numbers, negative or not whole lengths, times that fall; or the file is empty or unreadable.
    """
    source = Path(path)
    if source.suffix.lower() == ".parquet":
        if columns:
            raise WorkloadError(f"{source}: columns are named for CSV and JSON lines; rename them in a Parquet file")
        return _from_parquet(source, bool(sort))
    with open_text(source) as text:
        name, rows = rows_of(source, text, checked_columns(columns))
        return _gather(source, name, rows, sort if sort is not None else name != "plain", progress)


def _gather(path: Path, name: str, rows: Iterator[TraceRow], sort: bool, progress: Progress | None) -> TraceFile:
    read_time: Callable[[object], float] = {
        "azure": _stamp,
        "mooncake": _milliseconds,
        "usage": _moment,
        "columns": _moment,
    }.get(name, _seconds)
    mistakes: list[Mistake] = []
    count = failed = out_of_order = 0
    # Compact arrays: a week of Azure's 2024 traces has 44 million requests.
    times, inputs, outputs, model = array.array("d"), array.array("q"), array.array("q"), array.array("i")
    models: dict[str, int] = {}
    last = -math.inf
    for line, (arrival, input_text, output_text, model_text) in rows:
        if progress is not None and (len(times) + failed) % _REPORT_EVERY == 0:
            progress("requests read", len(times) + failed, 0)
        problems = []
        time, lengths = 0.0, [0, 0]
        try:
            time = read_time(arrival)
        except ValueError as error:
            problems.append(f"arrival {error}, not {shown(arrival)}")
        for position, (what, text) in enumerate((("input tokens", input_text), ("output tokens", output_text))):
            try:
                lengths[position] = int(_read_tokens(text))
            except ValueError as error:
                problems.append(f"{what} {error}")
        named = UNNAMED if model_text is None else str(model_text).strip()
        if not problems and name == "plain":
            if min(lengths) == 0:
                problems.append("a request needs at least 1 input and 1 output token")
            if model_text is not None and not named:
                problems.append("model is empty")
            if time < 0:
                problems.append(f"arrival must be at least 0 s, not {shown(arrival)}")
        hint = ""
        if not problems and time < last:
            out_of_order += 1
            if not sort:
                problems = [f"arrives at {shown(arrival)}, before the line above"]
                hint = "sort the file, or ask for sorting with --sort"
        if problems:
            count += len(problems)
            room = MOST_MISTAKES - len(mistakes)
            mistakes += [Mistake(f"line {line}", problem, hint) for problem in problems[:room]]
            last = time if hint else last
            continue
        last = time
        if min(lengths) == 0:
            failed += 1
            continue
        times.append(time)
        inputs.append(lengths[0])
        outputs.append(lengths[1])
        model.append(models.setdefault(named, len(models)))
    refuse(str(path), mistakes, more=count - len(mistakes))
    if not times:
        what = f"only failed requests ({failed})" if failed else "no requests below the header"
        raise WorkloadError(f"{path}: {what}")
    arrivals = np.array(times)
    if name != "plain":
        arrivals -= arrivals.min()
    with _said_of(path):
        trace = Trace.in_order(arrivals, np.asarray(inputs), np.asarray(outputs), np.asarray(model), tuple(models))
    return TraceFile(trace, name, failed, out_of_order)


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    """What is wrong with the requests of a trace is said of its file."""
    try:
        yield
    except (WorkloadError, TypeError) as error:
        raise WorkloadError(f"{path}: {str(error).removeprefix('trace: ')}") from error


def _from_parquet(path: Path, sort: bool) -> TraceFile:
    table = read_parquet(path)
    missing = [name for name in PLAIN_COLUMNS if name not in table.column_names]
    if missing:
        raise WorkloadError(f"{path}: no column {', '.join(missing)}; expected {','.join(PLAIN_COLUMNS)}[,model]")
    if table.num_rows == 0:
        raise WorkloadError(f"{path}: no requests")
    nulls = [name for name in table.column_names if table.column(name).null_count]
    if nulls:
        raise WorkloadError(f"{path}: empty values in column {', '.join(nulls)}")
    columns = [table.column(name).to_numpy() for name in PLAIN_COLUMNS]
    model: npt.NDArray[np.int32] = np.zeros(table.num_rows, dtype=np.int32)
    models: tuple[str, ...] = (UNNAMED,)
    if "model" in table.column_names:
        encoded = table.column("model").combine_chunks().dictionary_encode()
        model = np.asarray(encoded.indices, dtype=np.int32)
        models = tuple(str(name) for name in encoded.dictionary.to_pylist())
    with _said_of(path):
        falls = int(np.count_nonzero(np.diff(columns[0]) < 0))
        arrival, inputs, outputs = columns
        trace = (Trace.in_order if sort else Trace)(arrival, inputs, outputs, model, models)
    return TraceFile(trace, "plain", 0, falls)


def _seconds(value: object) -> float:
    try:
        seconds = read_number(value)
    except (TypeError, ValueError):
        raise ValueError("must be seconds") from None
    except OverflowError:
        raise ValueError("must be finite seconds") from None
    if not math.isfinite(seconds):
        raise ValueError("must be finite seconds")
    return seconds


def _moment(value: object) -> float:
    """Seconds, of seconds or ms since anything, or of a stamp."""
    try:
        seconds = _seconds(value)
    except ValueError:
        return _stamp(value)
    # Since 1970, 1e11 s are the year 5138.
    return seconds if seconds < 1e11 else seconds / 1e3


def _milliseconds(value: object) -> float:
    if isinstance(value, bool):
        raise ValueError("must be milliseconds")
    return _seconds(value) / 1e3


def _stamp(text: object) -> float:
    """Seconds since 1970 of ``2023-11-16 18:17:03.9799600``, with or without an offset; without one it is UTC."""
    content = str(text).strip()
    head, dot, tail = content.partition(".")
    # The 2023 files have seven digits after the point; datetime reads at most six.
    digits = len(tail) - len(tail.lstrip("0123456789"))
    try:
        moment = datetime.fromisoformat(head + tail[digits:])
    except ValueError:
        raise ValueError("must be a time like 2023-11-16 18:17:03.979960") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() + (float(f"0.{tail[:digits]}") if dot and digits else 0.0)
