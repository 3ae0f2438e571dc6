"""What the commands share: where text goes, the progress bar, option parsing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from coralopt.errors import OptionError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines instead of tables.")]
ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A built-in scenario (tiny, core, extended) or a YAML or JSON file.")
]
OptionList = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="Solver option, e.g. rel_gap=0.0001 or time_limit=30; may be repeated."
    ),
]


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_rich(renderable: RenderableType) -> None:
    """Tables and drawings on standard output; 120 columns when it is not a terminal."""
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=140)
    console.print(renderable, highlight=False)


def say(text: str) -> None:
    """A line about what is going on, on standard error."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


@contextmanager
def library_progress(quiet: bool, title: str = "templates") -> Iterator[Any]:
    """A progress bar with an estimate of what is left, on standard error; yields the callback that moves it."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        TextColumn(title),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
        transient=True,
    )
    task: Any = None

    def move(what: str, done: int, total: int) -> None:
        nonlocal task
        if task is None:
            progress.start()
            task = progress.add_task(what, total=total)
        progress.update(task, description=what, completed=done, total=total)

    try:
        yield move
    finally:
        if task is not None:
            progress.stop()


def parse_options(
    items: list[str] | None, *, time_limit: float | None = None, rel_gap: float | None = None
) -> dict[str, Any]:
    """``["rel_gap=0.001"]`` -> ``{"rel_gap": 0.001}``; values are read as JSON, else as text.

    Args:
        items: What ``--option`` was given.
        time_limit: What ``--time-limit`` was given, stronger than an item; ``None`` when it was not.
        rel_gap: The same of ``--rel-gap``.

    Raises:
        OptionError: An item is not of the form NAME=VALUE.
    """
    options: dict[str, Any] = {}
    for item in items or []:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise OptionError(f"--option {item!r}: expected NAME=VALUE, for example --option rel_gap=0.001")
        try:
            options[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            options[name.strip()] = value
    said = {"time_limit": time_limit, "rel_gap": rel_gap}
    return {**options, **{name: value for name, value in said.items() if value is not None}}
