"""A page and how it becomes one HTML file: no request to any host, nothing of a file's own text taken for markup.

A page is a few answers, then sections of blocks. Its policy allows the one style sheet and the one script that stand in it,
by their SHA-256, and nothing else; a page with events may ask its own host for those. Without the script everything is
there to read; it adds tooltips, filters and a player.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.table import Table
from rich.text import Text

from coralopt._version import __version__
from coralopt.report.svg import element, stylesheet

#: Characters from which on a text in a table may be broken into lines.
BROKEN = 24


@dataclass(frozen=True)
class Words:
    """Sentences, or a line of small print."""

    text: str
    small: bool = False
    kind: ClassVar[str] = "words"

    @property
    def html(self) -> Markup:
        """The text, what stands between two backticks as code."""
        parts = self.text.split("`")
        if len(parts) % 2 == 0:
            return escape(self.text)
        return Markup("").join(element("code", part) if k % 2 else escape(part) for k, part in enumerate(parts))


@dataclass(frozen=True)
class HtmlTable:
    """A table; ``filtered`` puts a field above it that hides rows without the words in it."""

    table: Table
    filtered: bool = False
    kind: ClassVar[str] = "table"

    @property
    def title(self) -> str:
        return _plain(self.table.title)

    @property
    def html(self) -> Markup:
        return table_html(self.table)

    @property
    def note(self) -> str:
        return _plain(self.table.caption)


@dataclass(frozen=True)
class Figure:
    """A drawing with what it shows below it."""

    drawing: Markup
    caption: str
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Grid:
    """Blocks side by side where there is room."""

    blocks: tuple[Block, ...]
    kind: ClassVar[str] = "grid"


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens."""

    summary: str
    blocks: tuple[Block, ...]
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Frames:
    """Blocks of which one is shown at a time, with a slider and a button that plays them; all without the script."""

    label: str
    frames: tuple[tuple[str, tuple[Block, ...]], ...]
    kind: ClassVar[str] = "frames"


@dataclass(frozen=True)
class SeriesChoice:
    """A box for every line of the figures in this section; without its tick the line is hidden."""

    names: tuple[str, ...]
    kind: ClassVar[str] = "series"


Block = Words | HtmlTable | Figure | Grid | Folded | Frames | SeriesChoice


@dataclass(frozen=True)
class PageAnswer:
    """A question of the first screen, its short answer, and what belongs to it.

    Attributes:
        question: The question.
        headline: The answer.
        blocks: More.
        verdict: ``"good"``, ``"bad"`` or nothing.
    """

    question: str
    headline: str
    blocks: tuple[Block, ...] = ()
    verdict: str = ""


@dataclass(frozen=True)
class PageSection:
    """A section; ``key`` is its address on the page."""

    key: str
    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: Its heading.
        summary: A line below it.
        answers: The first screen.
        sections: What follows; those without blocks are left out.
        broken: What in the files does not hold, a sentence each; stands above everything else.
        events: Address below the page's own of server-sent events that renew its parts; empty for a page that stays.
    """

    title: str
    summary: str
    answers: tuple[PageAnswer, ...]
    sections: Sequence[PageSection]
    broken: tuple[str, ...] = ()
    events: str = ""

    @property
    def shown(self) -> list[PageSection]:
        """The sections that have blocks."""
        return [section for section in self.sections if section.blocks]


def render_page(page: Page) -> str:
    """The page as one HTML file."""
    web = files("coralopt.report.pages").joinpath("web")
    style = stylesheet() + web.joinpath("page.css").read_text(encoding="utf-8")
    script = web.joinpath("page.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{_source(style)}'; script-src '{_source(script)}'; "
        "base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if page.events else "")
    )
    template = _environment().get_template("page.html.j2")
    return template.render(page=page, style=Markup(style), script=Markup(script), policy=policy, version=__version__)


def page_parts(page: Page) -> dict[str, str]:
    """What is inside the summary, the answers and each section, by the ``id`` of its element, for a page that is renewed."""
    inside = _environment().get_template("blocks.html.j2").module
    parts = {"summary": str(escape(page.summary)), "answers": str(inside.answers(page.answers))}  # type: ignore[attr-defined]
    return parts | {section.key: str(inside.section(section)) for section in page.shown}  # type: ignore[attr-defined]


def blocks_html(blocks: tuple[Block, ...]) -> Markup:
    """Blocks without a page, for a notebook."""
    show = _environment().get_template("blocks.html.j2").module.show  # type: ignore[attr-defined]
    return Markup("").join(show(block) for block in blocks)


def table_html(table: Table) -> Markup:
    """A table of the terminal as HTML, without its title; text only, whatever its cells hold."""
    columns = table.columns
    aligned = ["number" if column.justify == "right" else None for column in columns]
    head = [element("th", _plain(c.header), scope="col", class_=a) for c, a in zip(columns, aligned, strict=True)]
    rows = list(zip(*(column.cells for column in columns), strict=True)) if columns else []
    ends = [k for k, row in enumerate(table.rows) if row.end_section]
    body: list[Markup] = []
    for k, row in enumerate(rows):
        cells = []
        for position, (cell, align) in enumerate(zip(row, aligned, strict=True)):
            name, scope = ("td", None) if position else ("th", "row")
            text = _plain(cell)
            long = "long" if len(text) > BROKEN else None
            cells.append(element(name, text, scope=scope, class_=align or long))
        footer = bool(ends) and k > ends[-1]
        body.append(element("tr", *cells, class_="total" if footer else None))
    parts = [element("thead", element("tr", *head))] if table.show_header else []
    return element("table", *parts, element("tbody", *body), class_=None if table.show_header else "facts")


def _plain(cell: object) -> str:
    """Text of a cell, its terminal markup undone."""
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell or "")


def _source(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("coralopt.report.pages", "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
