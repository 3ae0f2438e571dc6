"""Answers of servers as they may arrive: in any pieces, of any length, and not HTTP at all."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.runtime.router.connection import Broken
from coralopt.runtime.router.wire import Wire

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


async def read(pieces: list[bytes], url: str = "/v1/completions") -> tuple[int, bytes]:
    """Status and body of an answer that a server sends in these pieces; then it closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server, wire = await asyncio.start_server(serve, "127.0.0.1", 0), Wire(5.0)
    async with server, asyncio.timeout(120):
        port = server.sockets[0].getsockname()[1]
        try:
            async with wire.ask("GET", f"http://localhost:{port}{url}") as answer:
                return answer.status, await answer.read()
        finally:
            wire.close()


@settings(max_examples=30)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.sets(st.integers(1, 400), max_size=12), st.booleans()
)
def test_chunks_in_any_pieces(chunks: list[bytes], cuts: set[int], extended: bool) -> None:
    """A body arrives whole however it is cut, also inside sizes and ends of chunks."""
    more = b" ; name=x" if extended else b""
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(chunk), more, chunk) for chunk in chunks)
    text = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\nTrailer: x\r\n\r\n"
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    assert asyncio.run(read(pieces)) == (200, b"".join(chunks))


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        (b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (b"Content-Length: 0\r\n\r\n", b""),
        (b"\r\nto the end", b"to the end"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    ],
)
def test_lengths(rest: bytes, body: bytes) -> None:
    assert asyncio.run(read([b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + rest])) == (200, body)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        HEAD,
        HEAD + b"Content-Length: 3\r\n\r\nab",
        HEAD + b"Content-Length: -3\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3zzabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**17,
    ],
)
def test_what_is_no_whole_answer_is_broken(text: bytes) -> None:
    with pytest.raises((Broken, ConnectionError)):
        asyncio.run(read([text]))


def test_no_header_carries_another() -> None:
    async def run() -> None:
        async with Wire(5.0).ask("GET", "http://localhost:1/", {"X-Request-Id": "a\r\nX: b"}):
            pass

    with pytest.raises(ValueError, match="end of a line"):
        asyncio.run(run())
