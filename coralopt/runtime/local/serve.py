"""Start all servers of a launch and the router in front of them; stop everything in order."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime.engine import Engine
from coralopt.runtime.local.cluster import LocalCluster
from coralopt.runtime.local.controller import Controller, RestartPolicy
from coralopt.runtime.local.reconcile import Pace, wanted
from coralopt.runtime.local.state import only_controller
from coralopt.runtime.router.admin import PlanHooks
from coralopt.runtime.router.config import RouterConfig
from coralopt.runtime.router.doors import ADMIN_SOCKET, Doors
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.run import open_doors, require_free_port

#: Most seconds between two looks at the servers; one that ends here is looked at when it does.
LOOK_S = 0.5


@dataclass(frozen=True)
class LocalOptions:
    """How a launch runs on this machine.

    Attributes:
        directory: Logs and state.
        doors: Where the router listens, and to whom. Who owns the directory manages it by the socket there.
        pace: How servers start and stop.
        restarts: What happens to servers that die.
        router: What the router is told beside its backends.
    """

    directory: Path
    doors: Doors = field(default_factory=Doors)
    pace: Pace = field(default_factory=Pace)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    router: RouterConfig = field(default_factory=RouterConfig)


async def serve_locally(
    plan: Plan,
    engine: Engine,
    program: str,
    options: LocalOptions,
    *,
    on_event: Callable[[str], None] = lambda text: None,
    on_ready: Callable[[str, LocalCluster, Router], None] = lambda url, cluster, router: None,
) -> bool:
    """Run until SIGINT, SIGTERM or SIGHUP, or until the last pipeline has died; then drain and stop everything.

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
    if options.doors.port:
        require_free_port(options.doors.host, options.doors.port)
    wanted(plan, engine, options.pace.partial)
    with only_controller(options.directory):
        cluster = LocalCluster(options.directory, on_event)
        for name, pipeline in cluster.running.items():
            cluster.say(f"{name} of an earlier run is {'alive' if pipeline.alive else 'half dead'}")
        router = Router(options.router, options.doors.keys.servers)
        controller = Controller(engine, cluster, router, options.pace, options.restarts)
        signals = _Signals()
        try:
            await signals.unless(controller.follow(plan))
            if signals.count:
                cluster.say("interrupted while servers were starting")
                return False
            await _route(controller, options, signals, on_ready)
            return True
        finally:
            if not await signals.unless(cluster.stop_all(at_once=not signals.orderly)):
                cluster.say("stopping at once")
                await cluster.stop_all(at_once=True)
            signals.close()


async def _route(
    controller: Controller,
    options: LocalOptions,
    signals: _Signals,
    on_ready: Callable[[str, LocalCluster, Router], None],
) -> None:
    router, cluster = controller.router, controller.cluster
    doors = replace(options.doors, admin_socket=options.directory / ADMIN_SOCKET)
    async with open_doors(
        router, doors, PlanHooks(controller.apply, controller.describe, controller.history, controller.state)
    ) as url:
        on_ready(url, cluster, router)
        while not signals.count and not controller.hopeless:
            signals.child_ended.clear()
            if await signals.unless(controller.look_after()):
                with suppress(TimeoutError):
                    await signals.unless(asyncio.wait_for(signals.child_ended.wait(), LOOK_S))
        await controller.close()
        if not cluster.running:
            if signals.count:
                return
            raise LaunchError("the last pipeline died; nothing is left to route to")
        signals.orderly = True
        controller.say("draining: no new requests; waiting for those in flight")
        patience = max(pipeline.drain_s for pipeline in cluster.running.values())
        draining = asyncio.gather(*(router.drain(name, patience) for name in list(router.backends)))
        await signals.unless(draining)


def _ending() -> list[signal.Signals]:
    """The signals that end a launch; under nohup the terminal may go."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


class _Signals:
    """SIGINT, SIGTERM and SIGHUP, which end whatever is being done; SIGCHLD, when a server ended that was started here."""

    def __init__(self) -> None:
        self.count = 0
        #: Whether everything was up and requests in flight deserve their time.
        self.orderly = False
        self.child_ended = ended = asyncio.Event()
        self._event = asyncio.Event()
        self._numbers = _ending()
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.add_signal_handler(number, self._seen)
        # uvloop keeps this one to itself.
        self._before = signal.signal(signal.SIGCHLD, lambda *_: loop.call_soon_threadsafe(ended.set))

    def _seen(self) -> None:
        self.count += 1
        self._event.set()

    async def unless(self, work: Awaitable[object]) -> bool:
        """Do ``work``, but give it up at the next signal; whether it came to its end."""
        self._event.clear()
        task, stop = asyncio.ensure_future(work), asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return False

    def close(self) -> None:
        signal.signal(signal.SIGCHLD, self._before)
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)
