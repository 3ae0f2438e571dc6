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
from coralopt.runtime.launch import Launch
from coralopt.runtime.local.addresses import LocalAddresses, gpus_here, require_free_port
from coralopt.runtime.local.cluster import LocalCluster
from coralopt.runtime.lower import lower
from coralopt.runtime.router.app import make_app
from coralopt.runtime.router.config import RouterConfig, router_config
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
        ready_timeout_s: Longest wait for a server, seconds.
        starts_at_once: Pipelines that start at the same time; all when ``None``.
        limits: Fields of :class:`coralopt.runtime.router.RouterConfig`.
        needs_gpus: Whether the engine needs the plan's GPUs; an engine on CPU does not.
    """

    directory: Path
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    backend_key: str | None = None
    ready_timeout_s: float = 1800.0
    starts_at_once: int | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    needs_gpus: bool = True


def lower_locally(plan: Plan, engine: Engine, *, needs_gpus: bool = True) -> tuple[Launch, LocalAddresses]:
    """A launch with free ports and this machine's devices; release the addresses right before the start.

    Raises:
        LaunchError: Nothing of the plan can run, or it needs more GPUs than there are.
    """
    addresses = LocalAddresses()
    launch = lower(plan, engine, addresses)
    if not launch.pipelines:
        why = "\n".join(f"  - {v.instance}: {r.code}: {r.text}" for v in launch.refused for r in v.reasons)
        raise LaunchError(f"{engine.name} runs no instance of this plan:\n{why}")
    if needs_gpus:
        found = gpus_here()
        if addresses.gpus_needed > len(found):
            wanted = sorted({node.configuration for node in launch.nodes})
            raise LaunchError(
                f"the plan needs {addresses.gpus_needed} GPUs ({', '.join(wanted)}), this machine has "
                f"{len(found)}{f' ({found[0]})' if found else ''}; plan for a smaller pool, choose another --target, or "
                "try it with --cpu and vLLM's CPU build"
            )
    return launch, addresses


async def serve_locally(
    launch: Launch,
    addresses: LocalAddresses,
    options: LocalOptions,
    *,
    on_event: Callable[[str], None] = lambda text: None,
    on_ready: Callable[[str, LocalCluster, Router], None] = lambda url, cluster, router: None,
) -> bool:
    """Run until SIGINT or SIGTERM, or until the last pipeline has died; then drain and stop everything.

    A signal while servers start stops at once; a second signal ends the draining.

    Args:
        launch: From :func:`lower_locally`.
        addresses: From the same.
        options: Where and how.
        on_event: Told in words what happens.
        on_ready: Told the router's URL when all servers are ready.

    Returns:
        Whether it served; false when a signal came before everything was ready.

    Raises:
        LaunchError: A missing program, a taken port, servers of an earlier run, or a server that does not start.
    """
    program = launch.nodes[0].argv[0]
    if shutil.which(program) is None:
        raise LaunchError(
            f"{program!r} is not a program on this machine; install the engine or say where it is (--vllm)"
        )
    if options.port:
        require_free_port(options.host, options.port)
    cluster = LocalCluster(options.directory, on_event)
    if cluster.running:
        raise LaunchError(
            f"servers of an earlier run are alive: {', '.join(cluster.running)} (see {options.directory}/state.json); "
            "stop them with --stop, or choose another directory with -o"
        )
    signals = _Signals()
    try:
        await signals.unless(_start_all(launch, addresses, cluster, options))
        if signals.count:
            on_event("interrupted while servers were starting")
            return False
        config = router_config(launch, **options.limits)
        await _route(config, cluster, options, signals, on_event, on_ready)
        return True
    finally:
        draining = asyncio.create_task(cluster.stop_all(at_once=not signals.orderly))
        while not draining.done():
            seen = signals.count
            await asyncio.wait({draining, asyncio.create_task(signals.more_than(seen))}, return_when="FIRST_COMPLETED")
            if not draining.done():
                on_event("stopping at once")
                draining.cancel()
                with suppress(asyncio.CancelledError):
                    await draining
                await cluster.stop_all(at_once=True)
                break
        signals.close()


async def _start_all(launch: Launch, addresses: LocalAddresses, cluster: LocalCluster, options: LocalOptions) -> None:
    gate = asyncio.Semaphore(options.starts_at_once or len(launch.pipelines))
    addresses.release()

    async def one(index: int) -> None:
        async with gate:
            await cluster.start(launch.pipelines[index], options.ready_timeout_s)

    tasks = [asyncio.create_task(one(index)) for index in range(len(launch.pipelines))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _route(
    config: RouterConfig,
    cluster: LocalCluster,
    options: LocalOptions,
    signals: _Signals,
    on_event: Callable[[str], None],
    on_ready: Callable[[str, LocalCluster, Router], None],
) -> None:
    router = Router(config, options.backend_key)
    runner = web.AppRunner(make_app(router, options.api_key), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port)
        try:
            await site.start()
        except OSError as error:
            raise LaunchError(f"the router cannot listen on {options.host}:{options.port}: {error.strerror}") from error
        port = runner.addresses[0][1]
        on_ready(f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{port}", cluster, router)
        while not signals.count and cluster.running:
            for pipeline in cluster.failed():
                dead = next(process for process in pipeline.processes if not process.alive)
                on_event(f"{dead.name} died with code {dead.code}; see {dead.log}. The rest of its pipeline is stopped")
                router.remove(pipeline.name)
                await cluster.stop(pipeline.name, at_once=True)
            await signals.wait(0.5)
        if not cluster.running:
            raise LaunchError("the last pipeline died; nothing is left to route to")
        signals.orderly = True
        on_event("draining: no new requests; waiting for those in flight")
        await signals.unless(asyncio.wait_for(_drain(router), max(p.drain_s for p in cluster.running.values())))
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
