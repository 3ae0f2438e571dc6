"""Sockets that are read all in one go: a token costs one receiving and one sending system call, and little between them.

An event loop makes an object for each socket that has something, and calls the transport's and the protocol's layers with
it: half of what a token costs. Here the sockets of running streams are in a set of their own, which the event loop watches
as one file.
"""

from __future__ import annotations

import asyncio
import os
import select
from typing import Protocol

#: Bytes taken from a socket at once.
ROOM = 2**16


class Reader(Protocol):
    """Whom what comes over a socket is for."""

    def arrived(self, data: bytes) -> None:
        """Take what came; nothing at the end."""

    def broke(self, error: OSError) -> None:
        """Learn that nothing comes any more, and why."""


class Readers:
    """The set, empty until a socket is added, for one event loop."""

    def __init__(self) -> None:
        self._set: select.epoll | None = None
        self.sockets: dict[int, Reader] = {}

    def add(self, fd: int, reader: Reader) -> None:
        """Read a socket that does not block from now on; nobody else may."""
        if self._set is None:
            self._set = select.epoll()
            asyncio.get_running_loop().add_reader(self._set.fileno(), self._read)
        self._set.register(fd, select.EPOLLIN)
        self.sockets[fd] = reader

    def remove(self, fd: int) -> None:
        """Leave this one alone; has to come before it is closed, since its number may be that of another one then."""
        if self.sockets.pop(fd, None) is not None and self._set is not None:
            self._set.unregister(fd)

    def close(self) -> None:
        """Read nothing any more."""
        if self._set is not None:
            asyncio.get_running_loop().remove_reader(self._set.fileno())
            self._set.close()
        self._set = None
        self.sockets.clear()

    def _read(self) -> None:
        assert self._set is not None
        for fd, _ in self._set.poll(0):
            # One before it may have removed it.
            if (reader := self.sockets.get(fd)) is None:
                continue
            try:
                data = os.read(fd, ROOM)
            except BlockingIOError:
                continue
            except OSError as error:
                reader.broke(error)
                continue
            reader.arrived(data)


def plain_socket(transport: asyncio.BaseTransport) -> int | None:
    """The socket behind a transport, if what goes over it is not encrypted and the system has epoll."""
    if not hasattr(select, "epoll") or transport.get_extra_info("ssl_object") is not None:
        return None
    behind = transport.get_extra_info("socket")
    return None if behind is None else int(behind.fileno())
