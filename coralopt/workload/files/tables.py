"""Tables in CSV (perhaps gzipped) and Parquet: read with the place of every mistake, written whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from coralopt.errors import Mistake, WorkloadError
from coralopt.numbers import read_number
from coralopt.replacing import replacing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

#: Most mistakes one message lists.
MOST_MISTAKES = 20
#: Numbers of steps are below this: a typing slip must not ask for the memory of a million epochs.
MOST_STEPS = 1_000_000
_SPECIAL = re.compile(r'[",\r\n]')
_COMMA = re.compile(r"^(\s*-?\d+),(\d+\s*)$")
_GZIP_MAGIC = b"\x1f\x8b"


def refuse(source: str, mistakes: Sequence[Mistake], more: int = 0) -> None:
    """Raise one error that lists the mistakes, if there are any.

    Args:
        source: The file, as the user named it.
        mistakes: What is wrong in it.
        more: Mistakes that were counted but not kept.

    Raises:
        WorkloadError: ``mistakes`` is not empty.
    """
    if not mistakes:
        return
    count = len(mistakes) + more
    lines = [f"{source}: {count} mistake{'s' if count != 1 else ''}"]
    lines += [f"  - {mistake}" for mistake in mistakes[:MOST_MISTAKES]]
    if count > MOST_MISTAKES:
        lines.append(f"  - and {count - MOST_MISTAKES} more")
    raise WorkloadError("\n".join(lines))


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file, gzipped or not (told by its first two bytes, not by its name).

    Raises:
        WorkloadError: No such file, unreadable, broken gzip, or not UTF-8; also while it is being read.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            binary = cast("IO[bytes]", gzip.GzipFile(fileobj=raw) if packed else raw)
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
                yield text
    except FileNotFoundError as error:
        raise WorkloadError(f"{path}: no such file") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: broken gzip file ({error}); fetch it again") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and goes when it does not.

    Raises:
        WorkloadError: The folder or the file cannot be written.
    """
    try:
        # As readable as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        with replacing(path, 0o666 & ~mask) as temporary:
            yield temporary
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_columns(path: Path, columns: Mapping[str, pa.Array | npt.NDArray[np.generic] | Sequence[str]]) -> None:
    """Write a table, atomically: Parquet when the name ends in ``.parquet``, else CSV, gzipped under ``.gz``.

    Floats are written with the digits that bring the same number back.

    Raises:
        WorkloadError: The file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    arrays = {name: v if isinstance(v, pa.Array) else pa.array(v) for name, v in columns.items()}
    table = pa.table(arrays)
    # Arrow quotes every text or none; none is what people expect to read, where it is safe.
    texts = [text for v in arrays.values() if pa.types.is_string(v.type) for text in v.unique().to_pylist()]
    special = any(_SPECIAL.search(text) for text in texts)
    options = pc.WriteOptions(quoting_style="needed" if special else "none", quoting_header="none")
    with replaced(path) as temporary:
        if path.suffix.lower() == ".parquet":
            pq.write_table(table, temporary, compression="zstd")
        elif path.suffix.lower() == ".gz":
            # No file name and no time in the header: equal tables give equal bytes.
            with temporary.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                pc.write_csv(table, packed, options)
        else:
            pc.write_csv(table, temporary, options)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a small CSV or Parquet table with exactly these columns, in any order: (place, column -> text).

    Raises:
        WorkloadError: The file cannot be read, has no header, lacks a column, or has one too many.
    """
    if path.suffix.lower() == ".parquet":
        table = read_parquet(path)
        _check_header(path, table.column_names, columns)
        for index, values in enumerate(zip(*(table.column(name).to_pylist() for name in columns), strict=True)):
            texts = ("" if value is None else str(value) for value in values)
            yield f"row {index}", dict(zip(columns, texts, strict=True))
        return
    with open_text(path) as text:
        rows = csv_rows(path, text)
        _, header = next(rows, (0, None))
        if header is None:
            raise WorkloadError(f"{path}: empty file; expected the header {','.join(columns)}")
        names = [name.strip() for name in header]
        _check_header(path, names, columns)
        for line, row in rows:
            yield f"line {line}", dict(zip(names, (field.strip() for field in row), strict=True))


def csv_rows(path: Path, lines: Iterable[str], before: int = 0) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every row of CSV text that is not blank, the header first; all are as long as the header.

    The header tells whether commas, semicolons or tabs part the fields; among semicolons 0,5 is 0.5.

    Args:
        path: The file, for messages.
        lines: Its text.
        before: Lines of the file that stand before this text.

    Raises:
        WorkloadError: A row of another length, or not CSV.
    """
    lines = iter(lines)
    first = next(lines, "")
    separator = max(",;\t", key=first.count)
    reader = csv.reader(itertools.chain([first], lines), delimiter=separator)
    width = 0
    try:
        for row in reader:
            if not row:
                continue
            line = reader.line_num + before
            width = width or len(row)
            if len(row) != width:
                raise WorkloadError(f"{path}: line {line}: {len(row)} fields where the header has {width}")
            yield line, [_COMMA.sub(r"\1.\2", field) for field in row] if separator == ";" else row
    except csv.Error as error:
        raise WorkloadError(f"{path}: line {reader.line_num + before}: not CSV: {error}") from error


def read_parquet(path: Path) -> pa.Table:
    """A whole Parquet file.

    Raises:
        WorkloadError: No such file, or not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise WorkloadError(f"{path}: no such file")
    try:
        return pq.read_table(path, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise WorkloadError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from error


def _check_header(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    problems = {
        "no column": [name for name in columns if name not in names],
        "unknown column": [repr(name) for name in names if name not in columns],
        "column twice:": sorted({name for name in names if list(names).count(name) > 1}),
    }
    text = "; ".join(f"{words} {', '.join(named)}" for words, named in problems.items() if named)
    if text:
        raise WorkloadError(f"{path}: {text}; expected the header {','.join(columns)}")


def shown(value: object) -> str:
    """A value as messages quote it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def name_cell(text: str) -> str:
    """A text that must not be empty; raises :class:`ValueError` in words, as all readers of cells do."""
    if not text:
        raise ValueError("is empty")
    return text


def step_cell(text: str) -> int:
    """A whole number from 0, in digits alone."""
    if not (text.isascii() and text.isdigit()) or int(text) >= MOST_STEPS:
        raise ValueError(f"must be a whole number from 0, not {shown(text)}")
    return int(text)


def number_cell(
    words: str, *, whole: bool = False, most: float = math.inf, above: bool = False
) -> Callable[[object], float]:
    """A reader of finite numbers from 0 (or ``above`` it) to ``most``; ``words`` say what must be there."""

    def read(cell: object) -> float:
        try:
            value = math.nan if isinstance(cell, bool) else read_number(cell)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not (0 <= value <= most and value < math.inf) or (above and value == 0) or (whole and value % 1):
            raise ValueError(f"{words}, not {shown(cell)}")
        return value

    return read
