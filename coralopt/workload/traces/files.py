"""Files of this floor: text that may be gzipped, CSV and Parquet tables, and writing that never leaves half a file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from coralopt.errors import Mistake, WorkloadError
from coralopt.replacing import replacing

#: Most mistakes one message lists.
_MOST_MISTAKES = 20
#: A list of plain numbers as ``json.dumps`` spreads it over lines.
_NUMBERS = re.compile(r"\[\s*((?:[-+0-9.eE]+,?\s*)+)\]")
_SPECIAL = re.compile(r'[",\r\n]')
_GZIP_MAGIC = b"\x1f\x8b"


def refuse(source: str, mistakes: Sequence[Mistake], more: int = 0) -> None:
    """Raise one error that lists the mistakes, if there are any.

    Args:
        source: The file, as the user named it.
        mistakes: What was found.
        more: Mistakes that were counted but not kept.

    Raises:
        WorkloadError: ``mistakes`` is not empty.
    """
    if not mistakes:
        return
    count = len(mistakes) + more
    lines = [f"{source}: {count} mistake{'s' if count != 1 else ''}"]
    lines += [f"  - {mistake}" for mistake in mistakes[:_MOST_MISTAKES]]
    if count > _MOST_MISTAKES:
        lines.append(f"  - and {count - _MOST_MISTAKES} more")
    raise WorkloadError("\n".join(lines))


_Document = TypeVar("_Document", bound=BaseModel)


def parse_json(kind: type[_Document], what: str, content: str, source: str) -> _Document:
    """A JSON document of a pydantic model; all mistakes at once.

    Args:
        kind: The model.
        what: What it is called in messages, ``"generator"``.
        content: The text.
        source: Where it comes from, as the user named it.

    Raises:
        WorkloadError: Not JSON, or not such a document.
    """
    try:
        return kind.model_validate(json.loads(content))
    except (json.JSONDecodeError, RecursionError) as error:
        raise WorkloadError(f"{source}: not a {what} in JSON ({error})") from error
    except ValidationError as error:
        refuse(
            source,
            [
                Mistake(".".join(str(part) for part in item["loc"]) or "document", item["msg"])
                for item in error.errors(include_url=False)
            ],
        )
        raise AssertionError from error


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
            binary: Any = gzip.GzipFile(fileobj=raw) if packed else raw
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


def write_json(path: Path, data: Any) -> None:
    """Write one JSON document, atomically; lists of numbers stay on one line."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    text = _NUMBERS.sub(lambda match: f"[{','.join(match[1].replace(',', ' ').split())}]", text)
    with replaced(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
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
        if path.suffix == ".parquet":
            pq.write_table(table, temporary, compression="zstd")
        elif path.suffix == ".gz":
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
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, columns)
        return
    with open_text(path) as text:
        reader = csv.reader(text)
        try:
            header = next(reader, None)
            if header is None:
                raise WorkloadError(f"{path}: empty file; expected the header {','.join(columns)}")
            names = [name.strip() for name in header]
            _check_header(path, names, columns)
            for row in reader:
                if not row:
                    continue
                place = f"line {reader.line_num}"
                if len(row) != len(names):
                    raise WorkloadError(f"{path}: {place}: {len(row)} fields where the header has {len(names)}")
                yield place, dict(zip(names, (field.strip() for field in row), strict=True))
        except csv.Error as error:
            raise WorkloadError(f"{path}: line {reader.line_num}: not CSV: {error}") from error


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    table = read_parquet(path)
    _check_header(path, table.column_names, columns)
    values = [table.column(name).to_pylist() for name in columns]
    for index, row in enumerate(zip(*values, strict=True)):
        texts = ("" if value is None else str(value) for value in row)
        yield f"row {index}", dict(zip(columns, texts, strict=True))


def read_parquet(path: Path) -> Any:
    """A whole Parquet file as a pyarrow table.

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
    missing = [name for name in columns if name not in names]
    unknown = [name for name in names if name not in columns]
    twice = sorted({name for name in names if list(names).count(name) > 1})
    problems = []
    if missing:
        problems.append(f"no column {', '.join(missing)}")
    if unknown:
        problems.append(f"unknown column {', '.join(repr(name) for name in unknown)}")
    if twice:
        problems.append(f"column twice: {', '.join(twice)}")
    if problems:
        raise WorkloadError(f"{path}: {'; '.join(problems)}; expected the header {','.join(columns)}")
