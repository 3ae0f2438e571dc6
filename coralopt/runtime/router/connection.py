"""One connection to a server: HTTP/1.1 answers, read from the socket piece by piece."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from time import monotonic
from typing import cast

from coralopt.runtime.router.readers import Readers, plain_socket

#: Bytes of the head of an answer, and of a line between two chunks.
LONGEST_HEAD, LONGEST_LINE = 2**16, 2**12
_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(;.*)?")


class Broken(ConnectionError):
    """The connection ended too early, or what came over it is not HTTP."""


@lru_cache(maxsize=2**14)
def _chunk_head(size: int) -> bytes:
    """The line before a chunk that has ``size`` bytes with it and with its end, as servers write it; else a long one."""
    for digits in range(1, 9):
        if len(head := b"%x\r\n" % max(0, size - digits - 4)) == digits + 2 and size - digits - 4 > 0:
            return head
    return b"no such chunk"


class ServerAnswer:
    """What a server answers; its body comes piece by piece.

    Attributes:
        status: HTTP status.
        headers: By lower-case name.
        ended: Done when the body is whole; fails with :class:`Broken`.
        heard: When something came last, in seconds of ``time.monotonic``.
        take_chunk: Gets chunks that came alone, as they came; false for one that is to be fed as others are.
    """

    def __init__(self, status: int, headers: Mapping[str, str], connection: Connection) -> None:
        self.status, self.headers = status, headers
        self._hasten = connection.hasten
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Whoever has gone does not ask how it ended.
        self.ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.heard = monotonic()
        self.pause, self.resume = connection.pause, connection.resume
        self._pieces: list[bytes] = []
        self._take: Callable[[bytes], None] = self._pieces.append
        self.take_chunk: Callable[[bytes], bool] | None = None

    def feed(self, piece: bytes) -> None:
        self.heard = monotonic()
        self._take(piece)

    def pour(self, take: Callable[[bytes], None], take_chunk: Callable[[bytes], bool]) -> None:
        """Give ``take`` what came and whatever comes that ``take_chunk`` does not take."""
        for piece in self._pieces:
            take(piece)
        self._pieces.clear()
        self._take, self.take_chunk = take, take_chunk
        if not self.ended.done():
            self._hasten()

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            Broken: It did not come whole.
        """
        await self.ended
        return b"".join(self._pieces)


class Connection(asyncio.BufferedProtocol):
    """One connection: one question at a time.

    Args:
        room: Where what arrives is put; it is read before anything else can arrive, so all connections share it.
        readers: Read it while a stream comes.
    """

    def __init__(self, room: bytearray, readers: Readers) -> None:
        self._room, self._seen, self._readers = room, memoryview(room), readers
        #: Its socket, while ``readers`` have it.
        self._hastened: int | None = None
        self.idle_since = 0.0
        #: Those that wait beside it for a question.
        self.idle: list[Connection] = []
        #: Whether it may be asked again.
        self.sound = True
        self.transport: asyncio.Transport
        self._head: asyncio.Future[ServerAnswer] | None = None
        self._answer: ServerAnswer | None = None
        self._rest = b""
        #: Reads what arrives: the head, or a body of one of three kinds.
        self._read: Callable[[bytes], None] = self._read_head
        self._left = 0
        #: What comes between two chunks: a size, the end of one, or lines behind the last one; nothing yet.
        self._expected = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop are of no class of asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    @property
    def reusable(self) -> bool:
        """Whether it waits for a question, with nothing of an answer left in it."""
        return self.sound and self._head is None and not self.transport.is_closing()

    async def ask(self, request: bytes) -> ServerAnswer:
        """The head of the answer.

        Raises:
            Broken: There was none.
        """
        self._head = asyncio.get_running_loop().create_future()
        self._answer, self._rest, self._read = None, b"", self._read_head
        self.transport.write(request)
        return await self._head

    def hasten(self) -> None:
        """What comes of this answer costs as little as it can."""
        if (fd := plain_socket(self.transport)) is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._hastened = fd
            self._readers.add(fd, self)

    def _slow_down(self) -> None:
        """The transport reads again, and sees the other side close."""
        if self._hastened is not None:
            self._readers.remove(self._hastened)
            self._hastened = None
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def pause(self) -> None:
        if self._hastened is not None:
            self._readers.remove(self._hastened)
        else:
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._hastened is not None:
            self._readers.add(self._hastened, self)
        else:
            self.transport.resume_reading()

    def arrived(self, data: bytes) -> None:
        """From ``readers``."""
        answer = self._answer
        if (
            answer is not None
            and answer.take_chunk is not None
            and self._expected == "size"
            and not self._rest
            and data.endswith(b"\r\n")
            and data.startswith(_chunk_head(len(data)))
            and answer.take_chunk(data)
        ):
            # One whole chunk, as a token comes.
            answer.heard = monotonic()
        elif data:
            self._arrived(data)
        else:
            self._slow_down()

    def broke(self, error: OSError) -> None:
        self._fail(f"the server closed the connection ({error})")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived(bytes(self._seen[:nbytes]))

    def _arrived(self, data: bytes) -> None:
        if self._head is None:
            self._fail("the server said something that nobody asked")
            return
        try:
            self._read(data)
        except Broken as error:
            self._fail(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and self._read == self._read_to_end and error is None:
            self.sound = False
            self._finish()
        if self in self.idle:
            self.idle.remove(self)
        self._fail(f"the server closed the connection{f' ({error})' if error else ''}")

    def abort(self) -> None:
        self._slow_down()
        self.transport.abort()

    def _fail(self, why: str) -> None:
        self._slow_down()
        self.sound = False
        waiting = self._head if self._answer is None else self._answer.ended
        if waiting is not None and not waiting.done():
            waiting.set_exception(Broken(why))
        self.transport.close()

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.ended.done():
            self._answer.ended.set_result(None)
        self._slow_down()
        self._head = None

    def _read_head(self, data: bytes) -> None:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > LONGEST_HEAD:
                raise Broken(f"the head of the answer is longer than {LONGEST_HEAD} bytes")
            self._rest = data
            return
        self._rest = b""
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise Broken("the answer is not HTTP/1")
        status = int(rest[:3])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if 100 <= status < 200:
            self._read_head(data[end + 4 :])
            return
        assert self._head is not None
        if self._head.cancelled():
            self.transport.close()
            return
        connection = headers.get("connection", "").lower()
        self.sound = connection != "close" and (version == "HTTP/1.1" or connection == "keep-alive")
        self._answer = ServerAnswer(status, headers, self)
        self._head.set_result(self._answer)
        self._begin_body(status, headers)
        if self._head is not None and end + 4 < len(data):
            self._read(data[end + 4 :])

    def _begin_body(self, status: int, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            self._expected, self._left, self._read = "size", 0, self._read_chunks
        elif "transfer-encoding" in headers or (length is not None and not (length.isascii() and length.isdecimal())):
            raise Broken("the length of the answer cannot be understood")
        elif length is not None or status in (204, 304):
            self._left, self._read = int(length or 0), self._read_length
            if self._left == 0:
                self._finish()
        else:
            self.sound, self._read = False, self._read_to_end

    def _read_to_end(self, data: bytes) -> None:
        assert self._answer is not None
        self._answer.feed(data)

    def _read_length(self, data: bytes) -> None:
        assert self._answer is not None
        self.sound &= len(data) <= self._left
        self._answer.feed(data[: self._left])
        self._left -= min(self._left, len(data))
        if self._left == 0:
            self._finish()

    def _read_chunks(self, data: bytes) -> None:
        assert self._answer is not None
        if self._rest:
            data, self._rest = self._rest + data, b""
        pieces, start, size = [], 0, len(data)
        while start < size:
            if self._left:
                piece = data[start : start + self._left]
                pieces.append(piece)
                start += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\r\n", start)
            if end < 0:
                self._rest = data[start:]
                if len(self._rest) > LONGEST_LINE:
                    raise Broken("a line between two chunks does not end")
                break
            line, start = data[start:end], end + 2
            if self._expected == "size":
                if (match := _SIZE.fullmatch(line)) is None:
                    raise Broken("a chunk has no size")
                self._left = int(match[1], 16)
                self._expected = "end" if self._left else "trailer"
            elif self._expected == "end":
                if line:
                    raise Broken("a chunk is longer than it says")
                self._expected = "size"
            elif not line:
                self.sound &= start == size
                if pieces:
                    self._answer.feed(b"".join(pieces))
                self._finish()
                return
        if pieces:
            self._answer.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces))
