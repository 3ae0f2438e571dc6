"""Who may come in: keys, and the address of the admin door."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.runtime.router.status import FleetStatus
from coralopt.runtime.router.tracing import Tracing
from coralopt.types import JsonObject

#: Environment variables with the router's own keys; servers never get them.
ROUTER_KEY, ADMIN_KEY = "CORALOPT_API_KEY", "CORALOPT_ADMIN_KEY"
#: The admin door of `coralopt launch start`, below its folder.
ADMIN_SOCKET = "admin.sock"
#: Longest path of a Unix socket that every system takes, bytes.
_LONGEST_PATH = 100


@dataclass(frozen=True)
class Keys:
    """API keys.

    Attributes:
        client: Asked of clients when given.
        admin: Opens the admin endpoints under the router's address; closed there when ``None``.
        servers: What the servers behind the router ask for, if anything.

    Raises:
        LaunchError: Clients would have the admin's key.
    """

    client: str | None = None
    admin: str | None = None
    servers: str | None = None

    def __post_init__(self) -> None:
        if self.admin is not None and self.admin == self.client:
            raise LaunchError(
                f"{ADMIN_KEY} is the same as {ROUTER_KEY}: every client could manage servers; choose another"
            )


@dataclass(frozen=True)
class DrawnFleet:
    """The fleet page, and the parts of it that may change: ``id`` of an element -> what is inside, as HTML."""

    html: str
    parts: Mapping[str, str]


@dataclass(frozen=True)
class Doors:
    """Where a router listens, and to whom.

    Attributes:
        host: Address for clients.
        port: Its port; 0 for a free one.
        keys: Who may come in.
        admin_socket: Unix socket through which whoever owns it manages the router, without a key.
        tls: Certificate and key for clients; plain HTTP when ``None``.
        access_log: Told of every request, without what was asked or answered.
        fleet: Draws the page at ``/fleet``, behind the admin key; there is none without it.
        tracing: Makes a span of every request; none when ``None``.

    Raises:
        LaunchError: A fleet page without an admin key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Keys = field(default_factory=Keys)
    admin_socket: Path | None = None
    tls: ssl.SSLContext | None = None
    access_log: Callable[[JsonObject], None] | None = None
    fleet: Callable[[FleetStatus], DrawnFleet] | None = None
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        if self.fleet is not None and self.keys.admin is None:
            raise LaunchError(f"the fleet page is behind the admin key, and there is none: set {ADMIN_KEY}")

    def url(self, port: int) -> str:
        return f"http{'s' if self.tls else ''}://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """``path`` for bind and connect, which take short ones only: a long one goes by a link to its folder."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    # Not the usual place for temporary files, which is long itself on some systems.
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp") as folder:
        link = Path(folder) / "f"
        link.symlink_to(path.parent.absolute())
        yield str(link / path.name)
