"""Server-sent events on their way through: cut at their ends, counted, and freed of what only the router asked for."""

from __future__ import annotations

import json
import re

from coralopt.types import JsonObject

_END = re.compile(rb"\r?\n\r?\n")


class EventFilter:
    """Passes whole events on. Usage is asked for in every stream, and taken out again where the client did not ask.

    Args:
        show_usage: Whether the client asked for the usage event itself.
    """

    def __init__(self, show_usage: bool) -> None:
        self._show = show_usage
        self._rest = b""
        #: ``usage`` of the last event that had one.
        self.usage: JsonObject | None = None
        #: Whether the stream has said that it is complete.
        self.done = False

    def feed(self, chunk: bytes) -> bytes:
        """What of ``chunk`` and what was kept back goes to the client now."""
        self._rest += chunk
        passed, start = [], 0
        for end in _END.finditer(self._rest):
            event = self._rest[start : end.end()]
            start = end.end()
            if self._look_at(event):
                passed.append(event)
        self._rest = self._rest[start:]
        return b"".join(passed)

    def flush(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return rest if rest and self._look_at(rest) else b""

    def _look_at(self, event: bytes) -> bool:
        """Whether it goes to the client."""
        data = event.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self.done = True
        elif b'"usage"' in data:
            try:
                document = json.loads(data)
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
