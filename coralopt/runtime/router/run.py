"""A router that listens: its doors opened and shut, and the router alone, in the foreground."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from coralopt.errors import LaunchError
from coralopt.runtime.router.admin import PlanHooks, make_admin_app
from coralopt.runtime.router.answers import answer_fault
from coralopt.runtime.router.app import make_app
from coralopt.runtime.router.config import RouterConfig
from coralopt.runtime.router.doors import Doors, socket_address
from coralopt.runtime.router.listener import Listener
from coralopt.runtime.router.router import Router

Result = TypeVar("Result")
#: New objects between two looks for those that nobody holds any more.
GARBAGE = 20_000
#: Seconds that requests in flight are given when it is told to stop.
DRAIN_S = 120.0


def run_loop(work: Coroutine[None, None, Result]) -> Result:
    """Carry ``work`` out to its end; on uvloop where that is installed, on which a request and a token cost less."""
    # What was imported lives as long as the process; nobody needs to look through it again and again. Requests leave few
    # cycles behind, and looking for them at every 700th object takes a tenth of the time.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    fast = importlib.import_module("uvloop").new_event_loop if importlib.util.find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=fast) as runner:
        return runner.run(work)


def run_router(
    path: Path,
    doors: Doors,
    hooks: PlanHooks | None = None,
    *,
    share: tuple[int, int] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> None:
    """Route until SIGINT or SIGTERM; then no new requests, and those in flight are finished. A second signal ends at once.

    SIGHUP reads ``path`` anew: backends, weights and shares; the rest of it when the router starts.

    Args:
        path: A router configuration.
        doors: Where it listens.
        hooks: Behind ``/router/plan``.
        share: Which of how many processes with the same port this is: it gets its part of slots and of queue.
        on_event: Told in words what happens.

    Raises:
        LaunchError: No such configuration, the port is taken, or there is no place for the admin socket.
    """
    config = RouterConfig.load(path)
    if doors.port and share is None:
        require_free_port(doors.host, doors.port)
    part = config if share is None else config.part(*share)
    run_loop(_route(path, Router(part, doors.keys.servers), doors, hooks, share, on_event))


async def _route(
    path: Path,
    router: Router,
    doors: Doors,
    hooks: PlanHooks | None,
    share: tuple[int, int] | None,
    on_event: Callable[[str], None],
) -> None:
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    reloading: set[asyncio.Task[None]] = set()

    def reload() -> None:
        try:
            new = RouterConfig.load(path)
        except LaunchError as error:
            on_event(f"{error}\nthe configuration before stays")
            return
        reloading.add(task := asyncio.create_task(router.follow(new if share is None else new.part(*share))))
        task.add_done_callback(reloading.discard)
        on_event(f"{path} is read anew")

    loop.add_signal_handler(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with open_doors(router, doors, hooks, drain_s=DRAIN_S, shares_port=share is not None) as url:
        on_event(f"routing at {url}/v1; Ctrl-C ends it")
        while not told.is_set():
            # Whichever process is asked for metrics tells what the others wrote down.
            router.measure()
            with suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), None if share is None else 1.0)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def open_doors(
    router: Router,
    doors: Doors,
    hooks: PlanHooks | None = None,
    *,
    drain_s: float = 60.0,
    shares_port: bool = False,
) -> AsyncIterator[str]:
    """The router listens; at the end it takes no new requests, and those in flight get ``drain_s`` seconds.

    Args:
        router: What answers.
        doors: Where, and to whom.
        hooks: Behind ``/router/plan``.
        drain_s: See above.
        shares_port: Whether other processes listen on the same port.

    Yields:
        Its URL.

    Raises:
        LaunchError: It cannot listen.
    """
    hooks, fault = hooks or PlanHooks(), partial(answer_fault, doors)
    runner = Listener(make_app(router, doors, hooks), fault, drain_s)
    admin = Listener(make_admin_app(router, hooks, doors), fault)
    await runner.setup()
    closing = asyncio.create_task(runner.close_silent(router.config.head_timeout_s))
    try:
        site = web.TCPSite(runner, doors.host, doors.port, ssl_context=doors.tls, reuse_port=shares_port or None)
        try:
            await site.start()
        except OSError as error:
            raise LaunchError(f"the router cannot listen on {doors.host}:{doors.port}: {error.strerror}") from error
        port = runner.addresses[0][1]
        if doors.admin_socket is not None:
            await admin.setup()
            await web.SockSite(admin, _private_socket(doors.admin_socket)).start()
        yield doors.url(port)
    finally:
        closing.cancel()
        await runner.cleanup()
        await admin.cleanup()
        if doors.admin_socket is not None and doors.admin_socket.is_socket():
            doors.admin_socket.unlink()


def _private_socket(path: Path) -> socket.socket:
    """Bound, and open to its owner only from the first moment."""
    if path.is_socket():
        path.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            mask = os.umask(0o177)
            try:
                server.bind(address)
            finally:
                os.umask(mask)
    except OSError as error:
        server.close()
        raise LaunchError(f"{path}: the admin socket cannot be made there: {error.strerror or error}") from error
    return server


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
