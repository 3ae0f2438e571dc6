"""Server-sent events on their way through: cut at their ends, counted, and freed of what only the router asked for."""

from __future__ import annotations

import json
import re

from coralopt.types import JsonObject

_NEWLINE = ord("\n")
#: An object under that key; the same words inside a text have backslashes.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_DONE = b"[DONE]"


class EventFilter:
    """Passes whole events on. Usage is asked for in every stream, and taken out again where the client did not ask.

    Args:
        show_usage: Whether the client asked for the usage event itself.
    """

    def __init__(self, show_usage: bool) -> None:
        self._show = show_usage
        self._rest = bytearray()
        #: Up to here ``_rest`` has no end of an event.
        self._seen = 0
        #: ``usage`` of the last event that had one.
        self.usage: JsonObject | None = None
        #: Whether the stream has said that it is complete.
        self.done = False

    def passes(self, chunk: bytes, end: bytes = b"\n\n") -> bool:
        """Whether it goes to the client as it is, with nothing in it to be seen: whole events, up to such an end."""
        return not self._rest and chunk.endswith(end) and _DONE not in chunk and b'"usage"' not in chunk

    def feed(self, chunk: bytes) -> bytes:
        """What of ``chunk`` and what was kept back goes to the client now."""
        if self.passes(chunk):
            return chunk
        self._rest += chunk
        passed, start = [], 0
        for end in self._ends():
            event = bytes(self._rest[start:end])
            start = end
            if self._look_at(event):
                passed.append(event)
        del self._rest[:start]
        # The beginning of an end may be here already.
        self._seen = max(0, len(self._rest) - 3)
        return b"".join(passed)

    def _ends(self) -> list[int]:
        """Where events end in what is new: behind an empty line, with or without carriage returns."""
        ends, start = [], self._seen
        while (line := self._rest.find(b"\n", start)) >= 0:
            start = line + 1
            if self._rest.startswith((b"\n", b"\r\n"), start):
                start += 1 if self._rest[start] == _NEWLINE else 2
                ends.append(start)
        return ends

    def flush(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._rest, self._seen = bytes(self._rest), bytearray(), 0
        return rest if rest and self._look_at(rest) else b""

    def _look_at(self, event: bytes) -> bool:
        """Whether it goes to the client."""
        if event.startswith(b"data:") and len(event) < 64 and event[5:].strip() == _DONE:
            self.done = True
        elif _USAGE.search(event):
            try:
                document = json.loads(event.strip().removeprefix(b"data:"))
            except ValueError:
                return True
            usage = document.get("usage") if isinstance(document, dict) else None
            if isinstance(usage, dict):
                self.usage = usage
                return self._show or bool(document.get("choices"))
        return True


def asks_for_usage(body: JsonObject) -> bool:
    """Whether a streamed request wants the usage event."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def with_usage(body: JsonObject) -> JsonObject:
    """A streamed request that asks for the usage event, whether its client did or not; any other as it is."""
    if not body.get("stream") or asks_for_usage(body):
        return body
    options = body.get("stream_options")
    return {**body, "stream_options": {**(options if isinstance(options, dict) else {}), "include_usage": True}}
