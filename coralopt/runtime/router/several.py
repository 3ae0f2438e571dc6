"""Several routers on one port: processes that the system hands connections to, each with its part of the slots."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from prometheus_client.multiprocess import mark_process_dead

from coralopt.errors import LaunchError
from coralopt.processes import Child
from coralopt.runtime.router.doors import ADMIN_KEY, Doors
from coralopt.runtime.router.metrics import SHARED
from coralopt.runtime.router.run import DRAIN_S, require_free_port

#: Seconds between two looks at the processes; less than this after its start, one that ended is not started again.
LOOK_S, TOO_SOON_S = 0.5, 5.0


def run_routers(
    words: Sequence[str], doors: Doors, count: int, on_event: Callable[[str], None] = lambda text: None
) -> None:
    """Run ``coralopt`` with these words ``count`` times on one port until SIGINT or SIGTERM; SIGHUP is passed on.

    One that dies is started again. Series are added up: any process answers ``/metrics`` for all. The admin endpoints are
    closed: they would change one process of several.

    Args:
        words: The command of one process, without its port.
        doors: Where they listen.
        count: How many.
        on_event: Told in words what happens.

    Raises:
        LaunchError: The port is taken, this system does not share ports, or a process ends as soon as it is started.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise LaunchError("--processes: this system has no SO_REUSEPORT; run one process, or a proxy (--haproxy)")
    if doors.port:
        require_free_port(doors.host, doors.port)
    told: list[int] = []
    with ExitStack() as held:
        # Bound, not listening: it keeps the port, and gets no connections.
        place = held.enter_context(socket.socket(socket.AF_INET6 if ":" in doors.host else socket.AF_INET))
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind((doors.host, doors.port))
        port = int(place.getsockname()[1])
        series = held.enter_context(TemporaryDirectory())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            held.callback(signal.signal, number, signal.signal(number, lambda caught, _: told.append(caught)))

        def start(number: int) -> tuple[Child, float]:
            program = [sys.executable, "-m", "coralopt", *words, "--port", str(port)]
            # Held back until the process can read its configuration anew: before that it would die of the signal.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            try:
                child = Child.start([*program, "--share", str(number), str(count)], env={SHARED: series, ADMIN_KEY: ""})
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            held.callback(child.kill)
            return child, time.monotonic()

        routers = [start(number) for number in range(count)]
        on_event(f"{count} processes route at {doors.url(port)}/v1; Ctrl-C ends them")
        while not {signal.SIGINT, signal.SIGTERM} & set(told):
            if told:
                told.clear()
                for child, _ in routers:
                    child.send(signal.SIGHUP)
            for which, (child, begun) in enumerate(routers):
                if (ended := child.poll()) is None:
                    continue
                mark_process_dead(child.pid, series)  # type: ignore[no-untyped-call]
                if time.monotonic() - begun < TOO_SOON_S:
                    raise LaunchError(f"a router {ended} as soon as it was started")
                on_event(f"router {which} {ended}; it is started again")
                routers[which] = start(which)
            time.sleep(LOOK_S)
        told.clear()
        for child, _ in routers:
            child.send(signal.SIGTERM)
        until = time.monotonic() + DRAIN_S
        while not told and time.monotonic() < until and any(child.alive for child, _ in routers):
            time.sleep(LOOK_S / 5)
