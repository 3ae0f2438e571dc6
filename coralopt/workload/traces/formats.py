"""Formats of trace files, told by their headers or keys, and their rows as the files have them.

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

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO

from coralopt.errors import WorkloadError
from coralopt.workload.files.tables import csv_rows

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
_ACCESS_LINE = re.compile(r'"(?:POST|GET) /v1/\S* HTTP/|^(\(\S+ pid=\d+\) )?(INFO|WARNING|DEBUG)(:|  *\d\d-\d\d) ')
#: Line of a file, and (arrival, input, output, model) as the file has them.
TraceRow = tuple[int, tuple[object, object, object, object]]


def checked_columns(columns: Mapping[str, str] | None) -> tuple[str, str, str, str | None] | None:
    """Columns or keys of arrival, input, output and model, as the user named them.

    Raises:
        WorkloadError: One is missing, or a name is none of these.
    """
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


def rows_of(
    path: Path, text: IO[str], columns: tuple[str, str, str, str | None] | None
) -> tuple[str, Iterator[TraceRow]]:
    """The format of a file, told by its first line, and its rows.

    Raises:
        WorkloadError: Empty, or of no known format; while the rows are read also: one of another length, or no request.
    """
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


def _json_rows(
    path: Path, lines: Iterable[str], start: int, keys: tuple[str, str, str, str | None]
) -> Iterator[TraceRow]:
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
