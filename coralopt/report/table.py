"""One way to build tables for the terminal: columns with a format each, rows of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

#: What stands for a value that does not exist.
NOTHING = "-"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: Its heading.
        form: Format of its values, such as ``"{:,.4f}"``; a column with a format is set to the right. ``None`` for words,
            which are set to the left.
        fold: Break words that are too long for the terminal rather than cutting them off.
    """

    head: str
    form: str | None = None
    fold: bool = False

    def cell(self, value: object) -> str:
        """The value as text; words stay as they are, ``None``, NaN and infinity are a dash."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return NOTHING
        if self.form is None or isinstance(value, str):
            return escape(str(value))
        return self.form.format(value)


def numbers(form: str, *heads: str) -> tuple[Column, ...]:
    """Columns of numbers with one format."""
    return tuple(Column(head, form) for head in heads)


def make_table(
    title: str,
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[object]],
    *,
    footer: Sequence[object] | None = None,
    caption: str | None = None,
) -> Table:
    """A table with a heading over every column.

    Args:
        title: Stands above it.
        columns: A plain text is a column of words.
        rows: The values of each row; one that ends early leaves the last cells empty.
        footer: One more row, below a line.
        caption: Stands below it.
    """
    typed = [Column(column) if isinstance(column, str) else column for column in columns]
    table = Table(title=escape(title), caption=caption)
    for column in typed:
        table.add_column(
            escape(column.head),
            justify="left" if column.form is None else "right",
            overflow="fold" if column.fold else "ellipsis",
        )
    for row in rows:
        table.add_row(*(column.cell(value) for column, value in zip(typed, row, strict=False)))
    if footer is not None:
        table.add_section()
        table.add_row(*(column.cell(value) for column, value in zip(typed, footer, strict=True)))
    return table


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Names and what holds for them, without headings."""
    table = Table(title=escape(title), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, text in facts:
        table.add_row(escape(name), escape(text))
    return table
