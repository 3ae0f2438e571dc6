"""One row of the fidelity table, and the table's place in a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coralopt.replacing import replacing

BEGIN, END = "<!-- python -m benchmarks.fidelity -->\n", "<!-- end -->\n"
HEAD = "| against | case | TTFT | TPOT | bar | kept | remarks |\n| --- | --- | --- | --- | --- | --- | --- |\n"


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        against: The other tool or system.
        case: What was compared.
        off: Deviations of TTFT and TPOT, shares of the other's figure; ``None``: not, or something else, was compared.
        bar: Largest deviations wanted.
        note: Everything else worth telling.
    """

    against: str
    case: str
    off: tuple[float | None, float | None] = (None, None)
    bar: tuple[float, float] | None = None
    note: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the bar is kept; ``None`` where there is nothing to tell."""
        if self.bar is None:
            return None
        known = [value <= bar for value, bar in zip(self.off, self.bar, strict=True) if value is not None]
        return all(known) if known else None

    def line(self) -> str:
        """The row in Markdown."""
        shares = ["" if value is None else f"{value:.1%}" for value in self.off]
        bar = " / ".join(f"{limit:.0%}" for limit in self.bar) if self.bar else ""
        kept = {True: "yes", False: "**no**", None: ""}[self.kept]
        return "| " + " | ".join([self.against, self.case, *shares, bar, kept, self.note]) + " |\n"


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    return HEAD + "".join(row.line() for row in rows)


def put_into(path: Path, rows: Sequence[Row]) -> None:
    """Replace the table between the marks of a document.

    Raises:
        ValueError: The document has no marks.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: no place for the table between {BEGIN.strip()} and {END.strip()}")
    with replacing(path) as draft:
        draft.write_text(before + begin + "\n" + table(rows) + "\n" + end + after, encoding="utf-8")
