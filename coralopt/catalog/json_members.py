"""JSON documents of any size, member by member: in memory is one member at a time."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, TextIO

#: Keys and list positions from the top of the document.
Place = tuple[str | int, ...]
_WHITE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
#: Characters that are read at once. A text within the document is shorter.
_PIECE = 1 << 20


def members(stream: TextIO, containers: Collection[str]) -> Iterator[tuple[Place, Any]]:  # Any: JSON
    """Members of the document and, in their place, those of the members with these names, and so on down.

    Args:
        stream: A JSON document.
        containers: Names of lists and mappings that are too large to be read whole.

    Raises:
        ValueError: It is no JSON; members before the mistake have been given.
    """
    yield from _walk(_Text(stream), (), containers)


def _walk(text: _Text, place: Place, containers: Collection[str]) -> Iterator[tuple[Place, Any]]:
    first = text.next_character()
    # The elements of a list of documents are documents.
    entered = not place or place[-1] in containers or (len(place) == 1 and isinstance(place[0], int))
    if first not in ("{", "[") or not entered:
        yield place, text.value()
        return
    closing = "}" if first == "{" else "]"
    text.take(first)
    if text.next_character() == closing:
        yield place, {} if first == "{" else []
    else:
        for position in itertools.count():
            key: str | int = position
            if first == "{":
                key = str(text.value())
                text.take(":")
            yield from _walk(text, (*place, key), containers)
            if text.next_character() == closing:
                break
            text.take(",")
    text.take(closing)


class _Text:
    """A stream read in pieces; what has been taken from it is forgotten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text, self._at = stream, "", 0

    def next_character(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            white = _WHITE.match(self._text, self._at)
            assert white is not None
            self._at = white.end()
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def take(self, wanted: str) -> None:
        """Go past this character.

        Raises:
            ValueError: The next one is another.
        """
        character = self.next_character()
        if character != wanted:
            raise ValueError(f"{wanted!r} expected, {repr(character) if character else 'but it ends'} is there")
        self._at += 1

    def value(self) -> Any:  # JSON
        """Go past the next value.

        Raises:
            ValueError: There is none.
        """
        self.next_character()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # What is cut off breaks near the end of the text.
                if error.pos < len(self._text) - _PIECE or not self._read():
                    raise ValueError(error.msg) from error
                continue
            # A number at the end of the text may go on.
            if end < len(self._text) or not self._read():
                self._at = end
                return value

    def _read(self) -> bool:
        """Forget what has been taken and read on; whether there was more."""
        piece = self._stream.read(_PIECE)
        if piece:
            self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)
