"""A stream on its way from a server to a client: each event goes on in the call that brought it."""

from __future__ import annotations

import asyncio
import os
from time import monotonic

from aiohttp import HttpVersion11, web

from coralopt.runtime.router.connection import Broken, ServerAnswer
from coralopt.runtime.router.events import EventFilter
from coralopt.runtime.router.readers import plain_socket

#: Bytes that a client may be behind before its server is not read any more; seconds between two looks whether it caught up.
MOST_BEHIND, LOOK_S = 2**18, 0.05


class Passage:
    """One stream.

    Args:
        answer: Where it comes from; not read yet.
        events: What of it the client gets.
    """

    def __init__(self, answer: ServerAnswer, events: EventFilter) -> None:
        self._answer, self._events = answer, events
        self._held: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        #: The client's socket, where chunks can be written to it.
        self._socket: int | None = None
        self._chunked = True
        #: Done when something has come, and later when the client is too far behind.
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.pour(self._take, self._take_chunk)

    def _take(self, piece: bytes) -> None:
        passed = self._events.feed(piece)
        if not passed:
            return
        transport = self._transport
        if transport is None:
            self._held.append(passed)
            self._wake()
            return
        if transport.is_closing():
            self._wake()
            return
        transport.write(b"%x\r\n%b\r\n" % (len(passed), passed) if self._chunked else passed)
        if transport.get_write_buffer_size() > MOST_BEHIND:
            self._answer.pause()
            self._wake()

    def _take_chunk(self, chunk: bytes) -> bool:
        """Pass a chunk on as it is, where it is whole events of no interest and the client has all that came before."""
        transport = self._transport
        if (
            self._socket is None
            or transport is None
            or not self._events.passes(chunk, b"\n\n\r\n")
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            return False
        try:
            sent = os.write(self._socket, chunk)
        except OSError:
            # The transport waits until it can be written to, or finds out that it never can.
            return False
        if sent < len(chunk):
            transport.write(chunk[sent:])
        return True

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def held(self) -> bytes:
        """What waits to be given to the client; the last of it once the stream has ended."""
        held = b"".join(self._held) + (self._events.flush() if self._answer.ended.done() else b"")
        self._held.clear()
        return held

    async def begin(self) -> None:
        """Wait for the first event.

        Raises:
            Broken: There is none.
        """
        await asyncio.wait((self._woken, self._answer.ended), return_when=asyncio.FIRST_COMPLETED)
        if not self._held:
            await self._answer.ended
            raise Broken("the stream ended before its first token")

    async def give_first(self, stream: web.StreamResponse) -> None:
        """Write what has come meanwhile, with the head of the answer."""
        while held := b"".join(self._held):
            self._held.clear()
            await stream.write(held)

    async def pour(self, request: web.Request, idle_s: float) -> bool:
        """Pass everything on, to the end.

        Args:
            request: The client's.
            idle_s: Longest pause.

        Returns:
            False when the client did not read for so long, or has gone.

        Raises:
            Broken: The server broke off.
            TimeoutError: The server said nothing for so long.
        """
        answer, loop = self._answer, asyncio.get_running_loop()
        self._transport, self._chunked = request.transport, request.version >= HttpVersion11
        if self._transport is None:
            return False
        self._socket = plain_socket(self._transport) if self._chunked else None
        wait_s, behind = idle_s, False
        while not answer.ended.done():
            self._woken = loop.create_future()
            await asyncio.wait((answer.ended, self._woken), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if self._transport.is_closing():
                return False
            size = self._transport.get_write_buffer_size()
            if behind and size <= MOST_BEHIND / 2:
                answer.resume()
                answer.heard = monotonic()
            behind = size > MOST_BEHIND / (2 if behind else 1)
            left_s = answer.heard + idle_s - monotonic()
            if left_s <= 0 and not answer.ended.done():
                if behind:
                    return False
                raise TimeoutError
            wait_s = LOOK_S if behind else left_s
        await answer.ended
        return True
