"""Old spellings of commands, each refused by a sentence that names the new one."""

from __future__ import annotations

from collections.abc import Sequence

from coralopt.errors import OptionError

#: (words that the command line begins with, an option that must be there or ``None``, what to write instead).
MOVED: tuple[tuple[tuple[str, ...], str | None, str], ...] = (
    (("adapt",), "--apply", "`adapt --apply URL` is a command of its own: coralopt follow SCENARIO --router URL"),
    (("templates", "check"), None, "`templates check LIB` is: coralopt library check LIB"),
)


def refuse_moved(arguments: Sequence[str]) -> None:
    """Say what an old spelling is called today.

    Raises:
        OptionError: The command line is an old spelling.
    """
    for words, option, sentence in MOVED:
        if tuple(arguments[: len(words)]) == words and (
            option is None or any(argument.partition("=")[0] == option for argument in arguments)
        ):
            raise OptionError(sentence)
