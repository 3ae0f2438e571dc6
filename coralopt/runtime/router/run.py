"""The router alone, in the foreground."""

from __future__ import annotations

import socket
from collections.abc import Callable

from aiohttp import web

from coralopt.errors import LaunchError
from coralopt.runtime.router.app import make_app
from coralopt.runtime.router.config import RouterConfig
from coralopt.runtime.router.router import Router

#: Seconds that requests in flight are given when it is told to stop.
DRAIN_S = 120.0


def run_router(
    config: RouterConfig,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    backend_key: str | None = None,
    *,
    on_event: Callable[[str], None] = lambda text: None,
) -> None:
    """Route until SIGINT or SIGTERM; then no new requests, and those in flight are finished.

    Raises:
        LaunchError: The port is taken.
    """
    if port:
        require_free_port(host, port)
    web.run_app(
        make_app(Router(config, backend_key), api_key),
        host=host,
        port=port,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=DRAIN_S,
        print=lambda text: on_event(str(text)),
    )


def require_free_port(host: str, port: int) -> None:
    """Say so now rather than after minutes of loading weights.

    Raises:
        LaunchError: The address is not ours or the port is taken.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LaunchError(f"the router cannot listen on {host}:{port}: {why}; choose another with --port") from error
