"""Start all servers of a launch and the router in front of them; stop everything in order."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.engine import Engine
from coralopt.runtime.local.addresses import require_free_port
from coralopt.runtime.local.cluster import LocalCluster
from coralopt.runtime.local.controller import Controller, RestartPolicy
from coralopt.runtime.local.reconcile import Pace, wanted
from coralopt.runtime.local.state import only_controller
from coralopt.runtime.router.app import make_app
from coralopt.runtime.router.config import RouterConfig
from coralopt.runtime.router.router import Router


@dataclass(frozen=True)
class LocalOptions:
    """How a launch runs on this machine.

    Attributes:
        directory: Logs and state.
        host: Address the router binds to.
        port: Its port; 0 for a free one.
        api_key: Asked of clients when given.
        backend_key: API key of the servers themselves, if they have one.
        pace: How servers start and stop.
        restarts: What happens to servers that die.
        limits: Fields of :class:`coralopt.runtime.router.RouterConfig`.
    """

    directory: Path
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    backend_key: str | None = None
    pace: Pace = field(default_factory=Pace)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    limits: dict[str, Any] = field(default_factory=dict)


async def serve_locally(
    plan: Plan,
    engine: Engine,
    program: str,
    options: LocalOptions,
    *,
    on_event: Callable[[str], None] = lambda text: None,
    on_ready: Callable[[str, LocalCluster, Router], None] = lambda url, cluster, router: None,
) -> bool:
    """Run until SIGINT or SIGTERM, or until the last pipeline has died; then drain and stop everything.

    Servers that an earlier controller left are found in the state file; those of the plan are kept, others are drained.
    A signal while servers start stops at once; a second signal ends the draining.

    Args:
        plan: What to run.
        engine: With what.
        program: The engine's program, looked for before anything starts.
        options: Where and how.
        on_event: Told in words what happens.
        on_ready: Told the router's URL when all servers are ready.

    Returns:
        Whether it served; false when a signal came before everything was ready.

    Raises:
        LaunchError: A missing program, a taken port, another controller, too few GPUs, or a server that does not start.
    """
    if shutil.which(program) is None:
        raise LaunchError(
            f"{program!r} is not a program on this machine; install the engine or say where it is (--vllm)"
        )
    if options.port:
        require_free_port(options.host, options.port)
    wanted(plan, engine, options.pace.partial)
    with only_controller(options.directory):
        cluster = LocalCluster(options.directory, on_event)
        for name, pipeline in cluster.running.items():
            on_event(f"{name} of an earlier run is {'alive' if pipeline.alive else 'half dead'}")
        router = Router(RouterConfig(**options.limits), options.backend_key)
        controller = Controller(engine, cluster, router, options.pace, options.restarts, on_event)
        signals = _Signals()
        try:
            await signals.unless(controller.follow(plan))
            if signals.count:
                on_event("interrupted while servers were starting")
                return False
            await _route(controller, options, signals, on_ready)
            return True
        finally:
            await _stop_all(cluster, signals, on_event)
            signals.close()


async def _stop_all(cluster: LocalCluster, signals: _Signals, on_event: Callable[[str], None]) -> None:
    draining = asyncio.create_task(cluster.stop_all(at_once=not signals.orderly))
    impatient = asyncio.create_task(signals.more_than(signals.count))
    await asyncio.wait({draining, impatient}, return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if not draining.done():
        on_event("stopping at once")
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        await cluster.stop_all(at_once=True)
    else:
        draining.result()


async def _route(
    controller: Controller,
    options: LocalOptions,
    signals: _Signals,
    on_ready: Callable[[str, LocalCluster, Router], None],
) -> None:
    router, cluster = controller.router, controller.cluster
    app = make_app(router, options.api_key, controller.apply, controller.describe)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port)
        try:
            await site.start()
        except OSError as error:
            raise LaunchError(f"the router cannot listen on {options.host}:{options.port}: {error.strerror}") from error
        port = runner.addresses[0][1]
        on_ready(f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{port}", cluster, router)
        while not signals.count and not controller.hopeless:
            await signals.unless(controller.look_after())
            await signals.wait(0.5)
        await controller.close()
        if not cluster.running:
            if signals.count:
                return
            raise LaunchError("the last pipeline died; nothing is left to route to")
        signals.orderly = True
        controller.say("draining: no new requests; waiting for those in flight")
        patience = max(pipeline.drain_s for pipeline in cluster.running.values())
        await signals.unless(asyncio.wait_for(_drain(router), patience))
    finally:
        await runner.cleanup()


async def _drain(router: Router) -> None:
    await asyncio.gather(*(router.drain(name) for name in list(router.backends)))


class _Signals:
    """SIGINT and SIGTERM as a count that can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        #: Whether everything was up and requests in flight deserve their time.
        self.orderly = False
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._seen)

    def _seen(self) -> None:
        self.count += 1
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Until a signal has come, or ``timeout_s`` passed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)

    async def more_than(self, count: int) -> None:
        while self.count <= count:
            self._event.clear()
            await self._event.wait()

    async def unless(self, work: Any) -> None:
        """Do ``work``, but give it up at the next signal."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self.more_than(self.count))
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        else:
            with suppress(TimeoutError):
                task.result()

    def close(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)
