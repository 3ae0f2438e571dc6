"""What the documents and the help screens say of the command line is what the command line knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from coralopt.cli.app import make_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "solvers" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    ROOT / "Makefile",
]
#: A command in running text or in a table, and one on a line of its own in a block of code.
IN_TEXT = re.compile(r"`\$? ?coralopt ([^`\n]+)`")
ON_A_LINE = re.compile(r"^(?: {4}|\t)?(?:\$ |[\w/.]*bin/)?coralopt (.+)$", re.M)
BLOCK = re.compile(r"^```(?:sh|bash|console|text)?\n(.*?)^```", re.M | re.S)
#: More options than these do not stand on a help screen outside of panels.
MOST_OPTIONS = 15

# Any: typer brings its own copy of click in some versions, so its commands have no type that is known here.
TREE: Any = typer.main.get_command(make_app())


def documented(text: str) -> Iterator[str]:
    """The words after ``coralopt`` of every command that a page shows."""
    yield from IN_TEXT.findall(text)
    code = "\n".join([*BLOCK.findall(text), *re.findall(r"^(?: {4}|\t).*$", text, re.M)])
    for line in ON_A_LINE.findall(code):
        first, *others = re.split(r"\s+(?:&&|\|)\s+(?=coralopt )", re.sub(r"\s+#\s.*|\s+\\$", "", line))
        yield first
        yield from (other.removeprefix("coralopt ") for other in others)


def words_of(command: str) -> list[str]:
    """The words of a documented command; what is optional there counts, and ``a / b / c`` are choices."""
    plain = re.sub(r"[\[\]]", " ", command.replace("\\|", "|")).replace(" / ", "/")
    return shlex.split(plain, posix=True)


def check(command: str) -> str | None:
    """What is wrong with a documented command; ``None`` when nothing is."""
    place, names = TREE, "coralopt"
    words = words_of(command)
    while hasattr(place, "commands") and words and not words[0].startswith("-"):
        choices = words.pop(0).split("/")
        unknown = [name for name in choices if name not in place.commands]
        if unknown:
            return f"`{names}` has no command {unknown[0]!r}"
        place, names = place.commands[choices[0]], f"{names} {choices[0]}"
    known = {"--help", *(name for item in place.params for name in (*item.opts, *item.secondary_opts))}
    for word in words:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", option) and option not in known:
            return f"`{names}` has no option {option}"
    return None


SHOWN = [
    pytest.param(command, id=f"{page.relative_to(ROOT)}: {command[:60]}")
    for page in PAGES
    for command in dict.fromkeys(documented(page.read_text(encoding="utf-8")))
    # `coralopt NAME` where a sentence goes on is no command line; these begin with a lower-case word that is one.
    if re.match(r"[a-z-]+(?:\s|$|/)|--", command)
]


@pytest.mark.parametrize("command", SHOWN)
def test_documented_commands_exist(command: str) -> None:
    """Every command that a page shows exists, with every option that it shows."""
    assert check(command) is None, command


def test_the_pages_show_commands() -> None:
    """The test above sees what it should, and sees through what it should not."""
    assert len(SHOWN) > 100
    assert check("plan core --solvr highs") == "`coralopt plan` has no option --solvr"
    assert check("library info / chekc LIB") == "`coralopt library` has no command 'chekc'"
    assert list(documented("text\n    coralopt plan core   # all of it\n`coralopt show p.json`\n")) == [
        "show p.json",
        "plan core",
    ]


def commands(place: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""
    yield name, place
    for child, command in getattr(place, "commands", {}).items():
        yield from commands(command, f"{name} {child}")


@pytest.mark.parametrize(("name", "command"), list(commands(TREE, "coralopt")))
def test_help_screens(name: str, command: Any) -> None:
    """No command has more than a screen of options of its own; the others stand in panels, and each is explained."""
    options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    own = [item for item in options if getattr(item, "rich_help_panel", None) is None]
    assert len(own) <= MOST_OPTIONS, f"{name} has {len(own)} options on its first help screen"
    assert [item.opts[0] for item in options if not item.help and item.opts[0] != "--help"] == [], name
