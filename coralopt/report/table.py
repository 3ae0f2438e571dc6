"""One way to build tables for the terminal: columns with a format each, rows of values."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coralopt.display import NOTHING


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: Its heading.
        form: Format of its values, such as ``"{:,.4f}"``; a column with a format is set to the right. ``None`` for words,
            which are set to the left.
    """

    head: str
    form: str | None = None

    def cell(self, value: object) -> str:
        """The value as text; words stay as they are, ``None``, NaN and infinity are a dash."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return NOTHING
        if self.form is None or isinstance(value, str):
            return escape(str(value))
        text = self.form.format(value)
        # What is rounded to nothing has no sign.
        return text if re.search("[1-9]", text) else text.removeprefix("-")


def numbers(form: str, *heads: str) -> tuple[Column, ...]:
    """Columns of numbers with one format."""
    return tuple(Column(head, form) for head in heads)


class FittingTable(Table):
    """A table that keeps every name and digit at any width: words may be broken between them, and where that is not
    enough, each row becomes a list of its values."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [[Text.from_markup(str(cell)) for cell in (column.header, *column.cells)] for column in self.columns]
        full = [max(text.cell_len for text in column) for column in texts]
        least = [max((cell_len(word) for text in column for word in text.plain.split()), default=1) for column in texts]
        # A number is one word, whatever its unit.
        least = [
            max(low, max((text.cell_len for text in column[1:]), default=1)) if head.justify == "right" else low
            for low, column, head in zip(least, texts, self.columns, strict=True)
        ]
        # Without the blanks beside its cells a table needs two columns less for each of its own.
        tight = sum(least) > options.max_width - 3 * len(full) - 1
        room = options.max_width - (1 if tight else 3) * len(full) - 1
        if sum(full) <= room and not tight:
            yield from super().__rich_console__(console, options)
        elif sum(least) <= room:
            spare = room - sum(least)
            widths = []
            for low, high in zip(least, full, strict=True):
                more = min(high - low, spare)
                widths.append(low + more)
                spare -= more
            fitted = copy.copy(self)
            if tight:
                fitted.padding = (0, 0)
            fitted.columns = [replace(column, width=w) for column, w in zip(self.columns, widths, strict=True)]
            yield from Table.__rich_console__(fitted, console, options)
        else:
            yield Text.from_markup(f"[italic]{self.title or ''}[/]")
            for row in zip(*(column[1:] for column in texts), strict=True):
                values = Table.grid(padding=(0, 1))
                values.add_column(overflow="fold", style="bold")
                values.add_column(overflow="fold")
                for column, value in zip(texts, row, strict=True):
                    if value.plain:
                        values.add_row(column[0], value)
                yield values
                yield Text()
            if self.caption:
                yield Text.from_markup(str(self.caption))


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
    table = FittingTable(title=escape(title), caption=None if caption is None else escape(caption))
    for column in typed:
        table.add_column(
            escape(column.head),
            justify="left" if column.form is None else "right",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(column.cell(value) for column, value in zip(typed, row, strict=False)))
    if footer is not None:
        table.add_section()
        table.add_row(*(column.cell(value) for column, value in zip(typed, footer, strict=True)))
    return table


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Names and what holds for them, without headings."""
    table = FittingTable(title=escape(title), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, text in facts:
        table.add_row(escape(name), escape(text))
    return table
