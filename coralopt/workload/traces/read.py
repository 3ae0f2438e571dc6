"""Read request traces: Azure, BurstGPT, Mooncake, usage logs, plain CSV and Parquet; the format is told by the header.

Formats, by the columns that name them (the case of a name and the order of the columns do not matter):

=========== ============================================================ =======================================
format      columns                                                      source
=========== ============================================================ =======================================
``azure``   TIMESTAMP, ContextTokens, GeneratedTokens                    AzurePublicDataset, LLM inference traces
                                                                         2023 and 2024 (same columns; 2024 stamps
                                                                         carry a UTC offset)
``burstgpt`` Timestamp, Model, Request tokens, Response tokens           HPMLL/BurstGPT (seconds)
``mooncake`` JSON lines: timestamp (ms), input_length, output_length     kvcache-ai/Mooncake
``usage``   timestamp or created, prompt_tokens, completion_tokens (or   usage logs of OpenAI-style servers: CSV, or
            input_tokens, output_tokens), model                          JSON lines with them or a ``usage`` object
``plain``   arrival_s, input_tokens, output_tokens[, model]              this project; CSV or Parquet
=========== ============================================================ =======================================

Any other file is read when told which columns, or which keys of its JSON lines, hold what (``columns``).

The data sets' formats start at 0 with their first request, and log failed requests with 0 tokens: those are left out
and counted. ``plain`` files are taken as they are; every oddity is a mistake.
"""

from __future__ import annotations

import array
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from coralopt.errors import Mistake, WorkloadError
from coralopt.numbers import read_number
from coralopt.types import Progress
from coralopt.workload.files.tables import (
    MOST_MISTAKES,
    csv_rows,
    number_cell,
    open_text,
    read_parquet,
    refuse,
    shown,
)
from coralopt.workload.traces.trace import UNNAMED, Trace

FORMATS = ("azure", "burstgpt", "mooncake", "usage", "columns", "plain")
PLAIN_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")

#: Columns of each CSV format, in lower case: arrival, input, output, model (or None).
_COLUMNS: dict[str, tuple[str, str, str, str | None]] = {
    "plain": (*PLAIN_COLUMNS, "model"),
    "azure": ("timestamp", "contexttokens", "generatedtokens", None),
    "burstgpt": ("timestamp", "request tokens", "response tokens", "model"),
}
_MOONCAKE = ("timestamp", "input_length", "output_length", None)
#: What ``columns`` may name, in this order.
PARTS = ("arrival", "input", "output", "model")
#: Where usage logs have the time of a request, and its tokens.
_USAGE_TIMES = ("created", "created_at", "timestamp", "time", "arrival_s", "start_time", "starttime", "startTime")
_USAGE_TOKENS = ("prompt_tokens", "completion_tokens")
#: How newer interfaces call them.
_NEW_TOKENS = dict(zip(_USAGE_TOKENS, ("input_tokens", "output_tokens"), strict=True))
#: Columns of exports whose rows are sums over requests.
_SUMS = ("num_model_requests", "n_requests", "num_requests", "request_count")
_REPORT_EVERY = 100_000
_ACCESS_LINE = re.compile(r'"(?:POST|GET) /v1/\S* HTTP/|^(\(\S+ pid=\d+\) )?(INFO|WARNING|DEBUG)(:|  *\d\d-\d\d) ')
#: Line of a file, and (arrival, input, output, model) as the file has them.
_Row = tuple[int, tuple[object, object, object, object]]
_read_tokens = number_cell("must be a whole number, at least 0 and below 2^31", whole=True, most=2**31 - 1)


@dataclass(frozen=True)
class TraceFile:
    """What a trace file held.

    Attributes:
        trace: The requests, sorted by arrival.
        format: One of ``FORMATS``.
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
        name, rows = _rows(source, text, _checked_columns(columns))
        return _gather(source, name, rows, sort if sort is not None else name != "plain", progress)


def _checked_columns(columns: Mapping[str, str] | None) -> tuple[str, str, str, str | None] | None:
    if not columns:
        return None
    unknown = sorted(set(columns) - set(PARTS))
    missing = [name for name in PARTS[:3] if name not in columns]
    if unknown or missing:
        raise WorkloadError(
            f"columns are named by {', '.join(PARTS)}, all but model are needed: "
            + (f"{unknown[0]} is none of these" if unknown else f"missing is {' and '.join(missing)}")
        )
    return (columns["arrival"], columns["input"], columns["output"], columns.get("model"))


def _rows(path: Path, text: IO[str], columns: tuple[str, str, str, str | None] | None) -> tuple[str, Iterator[_Row]]:
    """The format and the rows."""
    start, first = 1, text.readline()
    while first and not first.strip():
        start, first = start + 1, text.readline()
    if not first:
        raise WorkloadError(f"{path}: empty file; expected a trace with the header {','.join(PLAIN_COLUMNS)}[,model]")
    lines = chain([first], text)
    if first.lstrip().startswith("{"):
        name, keys = ("columns", columns) if columns else _json_format(path, first, start)
        return name, _json_rows(path, lines, start, keys)
    if first.lstrip().startswith("["):
        raise WorkloadError(
            f"{path}: a JSON array; write one object a line: jq -c '.[]' {path.name} > {path.stem}.jsonl"
        )
    if not columns and _ACCESS_LINE.search(first):
        raise WorkloadError(
            f"{path}: a log of vLLM's server, which holds no token counts. Take the usage log of your gateway, or have "
            "clients log `usage` of every answer: JSON lines with created, model, prompt_tokens and completion_tokens"
        )
    rows = csv_rows(path, lines, start - 1)
    _, header = next(rows)
    names = [name.strip().lower() for name in header]
    formats = dict(_COLUMNS)
    time = next((column for column in _USAGE_TIMES if column in names), None)
    if time is not None:
        tokens = _USAGE_TOKENS if _USAGE_TOKENS[0] in names else tuple(_NEW_TOKENS.values())
        formats["usage"] = (time, tokens[0], tokens[1], "model")
    sums = next((column for column in _SUMS if column in names), None)
    if sums is not None:
        raise WorkloadError(f"{path}: its rows are sums over requests ({sums}); a log with one row a request is needed")
    if columns:
        lower = [None if column is None else column.lower() for column in columns]
        absent = [
            column for column, name in zip(columns, lower, strict=True) if column is not None and name not in names
        ]
        if absent:
            raise WorkloadError(f"{path}: no column {', '.join(map(str, absent))}; it has {', '.join(header)[:500]}")
        formats = {"columns": (str(lower[0]), str(lower[1]), str(lower[2]), lower[3])}
    for name, (*needed, model) in formats.items():
        if set(needed) <= set(names):
            arrival, inputs, outputs = (names.index(column) for column in needed)
            last = names.index(model) if model in names else None
            return name, (
                (line, (row[arrival], row[inputs], row[outputs], None if last is None else row[last]))
                for line, row in rows
            )
    raise WorkloadError(f"{path}: {_unknown_header(header, names)}")


def _unknown_header(header: Sequence[str], names: Sequence[str]) -> str:
    """Words about a header that fits no format: what the nearest one lacks."""
    overlaps = {name: sum(column in names for column in columns[:3]) for name, columns in _COLUMNS.items()}
    nearest = max(overlaps, key=lambda name: overlaps[name])
    if overlaps[nearest]:
        missing = [column for column in _COLUMNS[nearest][:3] if column not in names]
        return (
            f"the header {','.join(header)!r:.200} looks like the format {nearest!r} "
            f"but has no column {', '.join(missing)}; `coralopt init` takes --column arrival=..., input=..., output=..."
        )
    return (
        f"the header {','.join(header)!r:.200} is of no known trace format; expected "
        f"{','.join(PLAIN_COLUMNS)}[,model], the columns of an Azure or BurstGPT trace or of a usage log, or JSON lines. "
        "`coralopt init` takes --column arrival=..., input=..., output=..., model=..."
    )


def _json_format(path: Path, first: str, line: int) -> tuple[str, tuple[str, str, str, str | None]]:
    """Format of JSON lines by their first one, and the keys of arrival, input, output, model."""
    try:
        row = json.loads(first)
    except (json.JSONDecodeError, RecursionError):
        return "mooncake", _MOONCAKE
    inside = "usage." if "usage" in row else ""
    if inside or "prompt_tokens" in row or set(_NEW_TOKENS.values()) <= set(row):
        time = next((key for key in _USAGE_TIMES if key in row), None)
        if time is None:
            raise WorkloadError(
                f"{path}: line {line}: a usage log without the time of a request ({', '.join(_USAGE_TIMES)}); say "
                "which key it is, --column arrival=KEY"
            )
        prompt, answer = (inside + name for name in _USAGE_TOKENS)
        return "usage", (time, prompt, answer, "model" if "model" in row else None)
    if not set(_MOONCAKE[:3]) & set(row):
        raise WorkloadError(
            f"{path}: line {line}: JSON lines with the keys {', '.join(map(str, row))[:300]} are of no known format: "
            "name them, --column arrival=..., input=..., output=..., model=... (dots for keys inside keys)"
        )
    return "mooncake", _MOONCAKE


def _inside(row: object, key: str) -> object:
    """Value at a key with dots, ``None`` where there is none."""
    for part in key.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _json_rows(path: Path, lines: Iterable[str], start: int, keys: tuple[str, str, str, str | None]) -> Iterator[_Row]:
    for line, content in enumerate(lines, start=start):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except json.JSONDecodeError as error:
            what = f"not JSON: {error.msg}; a trace in JSON has one request a line"
            raise WorkloadError(f"{path}: line {line}: {what}") from error
        except RecursionError as error:
            raise WorkloadError(f"{path}: line {line}: not a request: nested too deeply") from error
        values = [None if key is None else _inside(row, key) for key in keys]
        if str(keys[1]).endswith(_USAGE_TOKENS[0]) and isinstance(row, dict):
            # A request that failed has no usage.
            others = [
                str(key).replace(old, new) for key, (old, new) in zip(keys[1:3], _NEW_TOKENS.items(), strict=True)
            ]
            values[1:3] = [value or _inside(row, key) or 0 for value, key in zip(values[1:3], others, strict=True)]
        missing = [str(key) for key, value in zip(keys[:3], values, strict=False) if value is None]
        if missing:
            what = "Mooncake's JSON lines" if keys is _MOONCAKE else f"the keys {', '.join(map(str, keys[:3]))}"
            raise WorkloadError(f"{path}: line {line}: no {', '.join(missing)}; expected {what}")
        yield line, (values[0], values[1], values[2], values[3])


def _gather(path: Path, name: str, rows: Iterator[_Row], sort: bool, progress: Progress | None) -> TraceFile:
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
