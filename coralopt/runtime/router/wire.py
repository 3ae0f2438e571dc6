"""HTTP/1.1 to the servers behind the router, cheap enough for one token at a time.

The streams of a client library wake a task, move a timer and copy for every piece that arrives, which costs three times
what a token may. Here a piece goes from the socket to whoever takes it in one call.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlsplit

from coralopt.runtime.router.connection import Connection, ServerAnswer
from coralopt.runtime.router.readers import Readers

#: Seconds after which a connection is not used again: servers close theirs after 5 (uvicorn) and cannot say so in time.
REUSE_S = 3.0
#: Bytes that are taken from a socket at once.
ROOM = 2**18


class Place(NamedTuple):
    """Where a URL leads."""

    host: str
    port: int
    tls: bool
    path: str
    authority: str


@lru_cache(maxsize=4096)
def place_of(url: str) -> Place:
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.hostname or "", parts.port or (443 if tls else 80), tls, path, parts.netloc.rpartition("@")[2])


class Wire:
    """Connections to servers, kept for a short while.

    Args:
        connect_timeout_s: Longest time for a new one, s.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[Place, list[Connection]] = {}
        self._room, self._readers = bytearray(ROOM), Readers()
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> AsyncIterator[ServerAnswer]:
        """An answer, as soon as its head is here; what is not read of it until the context ends is never read.

        Raises:
            OSError: No connection, or it broke before the head was here.
            TimeoutError: No connection in time.
        """
        place = place_of(url)
        request = _request(method, place, headers or {}, body)
        root = place._replace(path="", authority="")
        connection = self._from_idle(root) or await self._connect(root)
        try:
            yield await connection.ask(request)
        finally:
            if connection.reusable:
                connection.idle_since = monotonic()
                connection.idle = self._idle.setdefault(root, [])
                connection.idle.append(connection)
            else:
                connection.abort()

    def close(self) -> None:
        """Those that are in use end with their contexts."""
        for connection in [connection for connections in self._idle.values() for connection in connections]:
            connection.abort()
        self._readers.close()

    def _from_idle(self, root: Place) -> Connection | None:
        connections = self._idle.get(root, [])
        oldest = monotonic() - REUSE_S
        while connections:
            connection = connections.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, root: Place) -> Connection:
        loop = asyncio.get_running_loop()
        if root.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        async with asyncio.timeout(self._connect_timeout_s):
            failure: OSError = OSError(f"{root.host} has no address")
            for address in await _addresses(root):
                try:
                    _, connection = await loop.create_connection(
                        lambda: Connection(self._room, self._readers),
                        address,
                        root.port,
                        ssl=self._tls if root.tls else None,
                        server_hostname=root.host if root.tls else None,
                    )
                    return connection
                except OSError as error:
                    failure = error
            raise failure


async def _addresses(root: Place) -> list[str]:
    try:
        return [str(ipaddress.ip_address(root.host))]
    except ValueError:
        infos = await asyncio.get_running_loop().getaddrinfo(root.host, root.port, type=socket.SOCK_STREAM)
        return [str(info[4][0]) for info in infos]


def _request(method: str, place: Place, headers: Mapping[str, str], body: bytes | None) -> bytes:
    fields = {"Host": place.authority, **headers}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"{method} {place.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds the end of a line")
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + (body or b"")
