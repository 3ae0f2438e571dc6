"""What the commands share: where text goes, the progress bar, option parsing."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from coralopt.errors import CoraloptError, OptionError
from coralopt.types import Progress

#: Endings of names that say what is in a file.
_FORMATS = {".csv", ".gz", ".json", ".jsonl", ".lp", ".mps", ".parquet", ".sol", ".yaml", ".yml", ".zip"}
_FORMATS |= {".htm", ".html", ".md", ".pdf", ".png", ".svg", ".tex"}

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines instead of tables.")]
ScenarioArgument = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="A built-in scenario (`coralopt scenario list`) or a YAML or JSON file."),
]
OptionList = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="Solver option, e.g. rel_gap=0.0001 or time_limit=30; may be repeated."
    ),
]


def file_to_write(path: Path | None) -> Path | None:
    """Callback of an option that names a file to write: refused before any work where it cannot be one.

    Raises:
        OptionError: A folder, something that cannot be replaced, or no folder around it that can be written to.
    """
    if path is not None:
        if path.is_dir():
            raise OptionError(f"{path}: is a folder; name a file")
        if path.exists() and not path.is_file():
            raise OptionError(f"{path}: is no regular file, and output replaces the file it goes to; name another")
        if not path.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.parent}; make it, or name another place")
        if not os.access(path.parent, os.W_OK):
            raise OptionError(f"{path}: the folder {path.parent} cannot be written to; name another place")
    return path


def file_to_write_as(*endings: str) -> Callable[[Path | None], Path | None]:
    """Callback of an option that names a file of one format, or of one of several: whatever reads it tells by its name.

    Args:
        endings: Of names of such files, with their dots, the usual one first, which is also the one that may stand before
            ``.gz``. A name without an ending of a known format is taken, and one of YAML for JSON, which is YAML, too.
    """
    right = (*endings, ".yaml", ".yml") if ".json" in endings else endings

    def check(path: Path | None) -> Path | None:
        if path is not None:
            packed = path.suffix.lower() == ".gz" and ".gz" in endings
            said = (path.with_suffix("") if packed else path).suffix.lower()
            if said in _FORMATS and said not in (endings[:1] if packed else right):
                raise OptionError(f"{path}: its name says {said}, which is not what is written; end it in {endings[0]}")
        return file_to_write(path)

    return check


def keep_apart(read: Iterable[str | Path | None], *written: Path | None) -> None:
    """Refuse to write over a file that the command reads, or two things into one file.

    Raises:
        OptionError: Names the file.
    """
    taken = {Path(path).resolve() for path in read if path is not None and Path(path).exists()}
    for path in written:
        if path is not None:
            if path.resolve() in taken:
                raise OptionError(f"{path}: is read, or written otherwise, by the same command; name another file")
            taken.add(path.resolve())


def folder_to_write(path: Path | None) -> Path | None:
    """Callback of an option that names a folder to fill; it is made when there is something to put into it.

    Raises:
        OptionError: A file, or no folder can be made there.
    """
    if path is not None:
        if path.exists() and not path.is_dir():
            raise OptionError(f"{path}: is a file; name a folder")
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise OptionError(f"{path}: {nearest} cannot be written to; name another place")
    return path


def print_json(document: object) -> None:
    """One JSON document on standard output; see :func:`plain` for what it may hold."""
    sys.stdout.write(json.dumps(plain(document), indent=2, ensure_ascii=False).translate(_ESCAPED) + "\n")


def plain(value: object) -> object:
    """The value in JSON's own types: a dataclass is an object, an array a list, a path its text, NaN and infinity null."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def print_rich(renderable: RenderableType) -> None:
    """Tables and drawings on standard output; 140 columns when it is not a terminal."""
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=140)
    console.print(Harmless(renderable), highlight=False)


def say(text: str) -> None:
    """A line about what is going on, on standard error."""
    Console(stderr=True, highlight=False).print(harmless(text), markup=False, soft_wrap=True)


#: Characters that make a terminal do something, or show text in another order than it has; line ends and tabs may.
_CONTROLS = frozenset(
    [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
_HARMLESS = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}")
#: The same for JSON, which keeps them as they are.
_ESCAPED = {code: f"\\u{code:04x}" for code in _CONTROLS}


def harmless(text: str) -> str:
    """Text of files and servers without what a terminal would obey."""
    return text.translate(_HARMLESS)


class Harmless:
    """Whatever is printed, with harmless text in the styles of its own."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


#: Seconds between two lines of progress where there is no terminal.
PLAIN_S = 60.0


@contextmanager
def progress_bar(title: str, *, quiet: bool = False, estimate_s: float = 30.0) -> Iterator[Progress]:
    """A progress bar with an estimate of what is left, on standard error; yields the callback that moves it.

    Args:
        title: Stands before the bar.
        quiet: A document for machines follows: no lines in a log, and no bar where the document goes to a terminal, too.
        estimate_s: The estimate looks back so many seconds; steps that differ a lot in length need more.
    """
    from rich import progress
    from rich.table import Column

    console = Console(stderr=True)
    bar = progress.Progress(
        progress.TextColumn(title),
        progress.BarColumn(bar_width=16),
        progress.TaskProgressColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        # The description gives way on a narrow terminal, the estimate does not.
        progress.TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        expand=True,
        console=console,
        speed_estimate_period=estimate_s,
        disable=not console.is_terminal or (quiet and sys.stdout.isatty()),
        transient=True,
    )
    task: progress.TaskID | None = None
    last = started = time.monotonic()

    def move(what: str, count: int, total: int) -> None:
        nonlocal task, last
        if not console.is_terminal and not quiet and time.monotonic() - last > PLAIN_S:
            # In a log a line now and then is all the progress there is.
            last = time.monotonic()
            done = f"{count:,} of {total:,} " if total else ""
            after = f"after {last - started:,.0f} s" + (f", {what}" if what else "")
            console.print(f"{title}: {done}{after}", markup=False)
        if task is None:
            bar.start()
            task = bar.add_task(what, total=total or None, completed=count)
        bar.update(task, description=what, completed=count, total=total or None)

    try:
        yield move
    finally:
        if task is not None:
            bar.stop()


def parse_options(
    items: list[str] | None, *, time_limit: float | None = None, rel_gap: float | None = None
) -> dict[str, object]:
    """``["rel_gap=0.001"]`` -> ``{"rel_gap": 0.001}``; values are read as JSON, else as text.

    Args:
        items: What ``--option`` was given.
        time_limit: What ``--time-limit`` was given, stronger than an item; ``None`` when it was not.
        rel_gap: The same of ``--rel-gap``.

    Raises:
        OptionError: An item is not of the form NAME=VALUE.
    """
    options: dict[str, object] = {}
    for item in items or []:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise OptionError(f"--option {item!r}: expected NAME=VALUE, for example --option rel_gap=0.001")
        try:
            options[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            options[name.strip()] = value
    limits = {"time_limit": time_limit, "rel_gap": rel_gap}
    return {**options, **{name: value for name, value in limits.items() if value is not None}}


def parse_pairs(
    option: str, items: Iterable[str] | None, form: str = "NAME=VALUE", error: type[CoraloptError] = OptionError
) -> dict[str, str]:
    """``["a=b"]`` -> ``{"a": "b"}``.

    Raises:
        CoraloptError: An item is not of this form; of the type ``error``.
    """
    pairs = {}
    for item in items or ():
        name, separator, value = item.partition("=")
        if not separator or not name or not value:
            raise error(f"{option} {item!r}: expected {form}")
        pairs[name] = value
    return pairs


def parse_whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """``"2,4,8"`` -> ``(2, 4, 8)``.

    Raises:
        OptionError: Something else than whole numbers with commas between them.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(
            f"{option} {text!r}: expected whole numbers with commas between them, for example 2,4,8"
        ) from None


def parse_numbers(option: str, text: str, least: float, most: float) -> list[float]:
    """``"0.1,2"`` -> ``[0.1, 2.0]``.

    Raises:
        OptionError: A part is no number, or one below ``least`` or above ``most``.
    """
    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise OptionError(f"{option} {text!r}: {part!r} is not a number from {least:g} to {most:g}")
        values.append(value)
    return values
