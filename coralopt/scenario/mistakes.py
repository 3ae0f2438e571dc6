"""Collecting the mistakes of one scenario, with dotted places, line numbers and hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from coralopt.errors import Mistake, ScenarioError

#: A place inside a document: keys and list positions.
Path = tuple[str | int, ...]
#: More mistakes than these are not looked for; then only the first ones are told.
MOST_MISTAKES, TOLD_OF_MANY = 200, 10
#: Choices that a hint lists.
MOST_CHOICES = 16


@dataclass(frozen=True)
class LocatedMistake(Mistake):
    """A mistake that knows its line.

    Attributes:
        file: Name of the file, empty when the scenario is no file.
        line: Line in the file, from 1; 0 when it is not known.
    """

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.file}:{self.line}: {text}" if self.line else text


def dotted(path: Path) -> str:
    """``("running", 0, "nodes") -> "running[0].nodes"``; the whole document is ``"scenario"``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "scenario"


def suggest(word: str, choices: Iterable[str], what: str = "") -> str:
    """The nearest choice, or else what there is to choose from."""
    known = {choice.lower(): choice for choice in choices}
    nearest = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean '{known[nearest[0]]}'?"
    listed = [*known.values()][:MOST_CHOICES]
    more = f" and {len(known) - len(listed)} more" if len(known) > len(listed) else ""
    return f"choose{' ' + what if what else ''} from {', '.join(listed)}{more}" if known else ""


class MistakeList:
    """The mistakes found so far, in the order of the file when lines are known."""

    def __init__(self, source: str, lines: Mapping[Path, int] | None = None) -> None:
        self.source = source
        self._lines: Mapping[Path, int] = {} if lines is None else lines
        self._mistakes: dict[LocatedMistake, None] = {}
        self._positions: dict[Path, list[int]] = {}

    def __len__(self) -> int:
        return len(self._mistakes)

    def about(self, path: Path) -> bool:
        """Whether something is wrong there or inside."""
        return any(f"{mistake.place}.".startswith(f"{dotted(path)}.") for mistake in self._mistakes)

    def add(self, path: Path, problem: str, hint: str = "", line: int = 0) -> None:
        """Note a mistake; a place without a line of its own gets that of what contains it."""
        path = tuple(
            self._positions[path[:depth]][part] if isinstance(part, int) and path[:depth] in self._positions else part
            for depth, part in enumerate(path)
        )
        for depth in range(len(path), -1, -1):
            line = line or self._lines.get(path[:depth], 0)
        self._mistakes[LocatedMistake(dotted(path), problem, hint, self.source if line else "", line)] = None
        if len(self._mistakes) > MOST_MISTAKES:
            # Nobody reads on, and looking for the nearest word takes its time with each.
            first = list(self._mistakes)[:TOLD_OF_MANY]
            raise ScenarioError(self.source, [*first, Mistake("scenario", "has many more; mend these first")])

    def forget_item(self, path: Path, position: int, length: int) -> None:
        """Leave an item of the list at ``path`` out: places noted later still count by its position in the file."""
        del self._positions.setdefault(path, list(range(length)))[position]

    def raise_any(self) -> None:
        """Raise ``ScenarioError`` with every mistake if there is one."""
        if self._mistakes:
            in_order: list[LocatedMistake] = sorted(self._mistakes, key=lambda mistake: mistake.line)
            raise ScenarioError(self.source, in_order)
