"""Streams from socket to socket: whatever a server sends, and however a client reads, its bytes are the server's."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from runtime_backends import PATIENCE_S, make_certificate, until

from coralopt.runtime.router import BackendConfig, RouterConfig, passage
from coralopt.runtime.router.doors import Doors
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.run import open_doors

DONE = b"data: [DONE]\n\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(size: int) -> bytes:
    return b'data: {"choices":[{"text":"%b"}]}\n\n' % (b"x" * size)


def chunk(body: bytes, size: bytes = b"%x") -> bytes:
    return size % len(body) + b"\r\n" + body + b"\r\n"


class RawServer:
    """Sends an answer in these pieces, one of which may be a wait; then it closes the connection, or stays."""

    def __init__(self, pieces: list[bytes | asyncio.Event], *, stays: bool = False, reset: bool = False) -> None:
        self.pieces, self.stays, self.reset = pieces, stays, reset

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                for piece in self.pieces:
                    if isinstance(piece, asyncio.Event):
                        await piece.wait()
                        continue
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if not self.stays:
                    break
            if self.reset:
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def routed(answers: RawServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Router, int]]:
    """A router in front of that server, and its port."""
    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    backend = BackendConfig(name="a", model="m", phase="mixed", url=url, weight=1, max_in_flight=9)
    config = RouterConfig(backends=(backend,), health_interval_s=1e3)
    async with server, asyncio.timeout(PATIENCE_S), open_doors(router := Router(config), Doors(port=0, tls=tls)) as at:
        yield router, int(at.rsplit(":", 1)[1])


async def ask(
    port: int, tls: ssl.SSLContext | None = None, version: str = "1.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=2**26)
    body = b'{"model": "m", "prompt": "p", "stream": true}'
    head = f"POST /v1/completions HTTP/{version}\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The body, of which each chunk is as long as it says."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.split(b" ", 2)[1] == b"200"
    if b"chunked" not in head.lower():
        return await reader.read()
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return body


EVENTS = [event(size) for size in (1, 3, 14, 170, 171, 200, 4000, 70_000)]
CHUNKED = STREAM + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = b"".join([*EVENTS, DONE])
TEXT = b"".join(map(chunk, EVENTS)) + chunk(DONE) + b"0\r\n\r\n"
WAYS: dict[str, list[bytes]] = {
    "a chunk an event": [*map(chunk, EVENTS), chunk(DONE), b"0\r\n\r\n"],
    "capital sizes": [*(chunk(one, b"%X") for one in EVENTS), chunk(DONE), b"0\r\n\r\n"],
    "leading zeros": [*(chunk(one, b"00%x") for one in EVENTS), chunk(DONE), b"0\r\n\r\n"],
    "extensions": [*(chunk(one, b"%x;a=b") for one in EVENTS), chunk(DONE), b"0\r\n\r\n"],
    "all at once": [TEXT],
    "cut anywhere": [TEXT[i:j] for i, j in pairwise([*range(0, 700, 7), *range(700, len(TEXT), 9001), len(TEXT)])],
    "two events a chunk": [chunk(EVENTS[0] + EVENTS[1]), chunk(b"".join(EVENTS[2:]) + DONE), b"0\r\n\r\n"],
    "an event in two chunks": [c for e in EVENTS for c in (chunk(e[:9]), chunk(e[9:]))] + [chunk(DONE), b"0\r\n\r\n"],
}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("way", WAYS)
def test_the_bytes_are_the_servers(way: str, version: str) -> None:
    async def run() -> None:
        async with routed(RawServer([CHUNKED, *WAYS[way]])) as (_, port):
            reader, writer = await ask(port, version=version)
            assert await answer(reader) == WHOLE
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("way", ["a chunk an event", "cut anywhere"])
def test_without_epoll_they_are_too(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: the event loop's own layers read."""
    monkeypatch.delattr("select.epoll", raising=False)
    test_the_bytes_are_the_servers(way, "1.1")


@pytest.mark.parametrize("length", [False, True])
def test_what_looks_like_a_chunk_may_be_none(length: bool) -> None:
    """In an answer without chunks these are words of it."""
    body = [EVENTS[0], chunk(b"data: {}\n\n"), b"data: {}\n\n" + DONE]
    more = b"Content-Length: %d\r\n" % len(b"".join(body)) if length else b""

    async def run() -> None:
        async with routed(RawServer([STREAM + more + b"\r\n", *body])) as (_, port):
            reader, writer = await ask(port)
            assert await answer(reader) == b"".join(body)
            writer.close()

    asyncio.run(run())


def test_a_token_goes_from_socket_to_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one event are written as they came, without the layers between; those around the ends are not."""
    written: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        written.append(data)
        return os.write(fd, data)

    monkeypatch.setattr(passage, "os", SimpleNamespace(write=write))
    chunks = [chunk(event(i)) for i in range(60)]

    async def run() -> None:
        async with routed(RawServer([CHUNKED, *chunks, chunk(DONE), b"0\r\n\r\n"], stays=True)) as (router, port):
            for _ in range(2):
                reader, writer = await ask(port)
                await answer(reader)
                writer.close()
            assert not router.wire._readers.sockets

    asyncio.run(run())
    assert set(written) <= set(chunks)
    assert len(written) > len(chunks)


@pytest.mark.parametrize("reset", [False, True])
def test_a_break_is_said(reset: bool) -> None:
    async def run() -> None:
        async with routed(RawServer([CHUNKED, *map(chunk, EVENTS[:3])], reset=reset)) as (router, port):
            reader, writer = await ask(port)
            body = await answer(reader)
            assert body.startswith(EVENTS[0])
            assert b"failed in the middle of the answer" in body
            writer.close()
            assert not router.wire._readers.sockets

    asyncio.run(run())


def test_a_client_that_is_behind_gets_everything() -> None:
    """Its server is not read meanwhile; another stream goes on."""
    many = [chunk(event(60_000)) for _ in range(200)]
    go = asyncio.Event()

    async def run() -> None:
        answers = RawServer([CHUNKED, chunk(EVENTS[0]), go, *many, chunk(DONE), b"0\r\n\r\n"])
        async with routed(answers) as (router, port):
            reader, writer = await ask(port)
            writer.transport.pause_reading()
            await until(lambda: router.wire._readers.sockets)
            go.set()
            await until(lambda: not router.wire._readers.sockets)
            other, second = await ask(port)
            assert len(await answer(other)) == len(EVENTS[0] + DONE) + 200 * len(event(60_000))
            writer.transport.resume_reading()
            assert len(await answer(reader)) == len(EVENTS[0] + DONE) + 200 * len(event(60_000))
            for each in (writer, second):
                each.close()

    asyncio.run(run())


def test_over_https(tmp_path: Path) -> None:
    """What is encrypted goes through the layer that encrypts."""
    server_side, client_side = make_certificate(tmp_path)

    async def run() -> None:
        async with routed(RawServer([CHUNKED, *WAYS["a chunk an event"]]), server_side) as (_, port):
            reader, writer = await ask(port, client_side)
            assert await answer(reader) == WHOLE
            writer.close()

    asyncio.run(run())
