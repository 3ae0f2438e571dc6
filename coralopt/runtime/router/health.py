"""Who is well: by what ``/health`` says, and by requests that failed on one instance and succeeded on another.

A request that fails everywhere is at fault itself, and a slow answer says nothing: neither counts against an instance.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping

from coralopt.runtime.router.config import RouterConfig
from coralopt.runtime.router.pool import Backend
from coralopt.runtime.router.wire import Wire

#: Failures of this machine, not of the one that was called.
_OUR_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Health:
    """Health checks and a circuit breaker for every backend.

    An instance is ill when nobody listens at its address, or when ``unhealthy_after`` checks in a row fail. Its circuit
    opens after as many requests in a row that failed on it and succeeded elsewhere. The next good check lets one request
    at a time through: the first answer, or another good check, closes the circuit, and a failure opens it again.

    Args:
        limits: Times and counts.
        wire: How backends are reached.
        backends: Those to judge; may change.
        on_change: Called when a backend may get requests again, or no more.
    """

    def __init__(
        self, limits: RouterConfig, wire: Wire, backends: Mapping[str, Backend], on_change: Callable[[Backend], None]
    ) -> None:
        self._limits, self._wire, self._backends, self._on_change = limits, wire, backends, on_change
        self._tasks: dict[Backend, asyncio.Task[None]] = {}
        self._rounds: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Check every backend once, then keep checking."""
        await self.check_all()
        self._rounds = asyncio.create_task(self._keep_checking())

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *([self._rounds] if self._rounds else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def check_all(self) -> None:
        await asyncio.gather(*(self.check(backend) for backend in list(self._backends.values())))

    def check(self, backend: Backend, *, doubt: bool = False) -> asyncio.Task[None]:
        """Ask for its health now; a check that is under way is not repeated.

        Args:
            backend: Whom.
            doubt: A connection to it broke: a bad answer counts, a good one proves nothing.
        """
        if backend not in self._tasks:
            self._tasks[backend] = asyncio.create_task(self._check(backend, doubt))
            self._tasks[backend].add_done_callback(lambda _: self._tasks.pop(backend))
        return self._tasks[backend]

    def answered(self, backend: Backend) -> None:
        """It has begun to answer a request: its circuit is closed."""
        backend.strikes = 0
        if backend.on_trial:
            backend.on_trial = False
            self._on_change(backend)

    def strike(self, backend: Backend) -> None:
        """A request failed on it that succeeded elsewhere."""
        backend.strikes += 1
        if backend.on_trial or backend.strikes >= self._limits.unhealthy_after:
            self.suspect(backend)

    def suspect(self, backend: Backend) -> None:
        """Open its circuit: no more requests until a health check answers, then one at a time."""
        if backend.healthy:
            backend.tripped = True
            self._become(backend, healthy=False)

    def _become(self, backend: Backend, *, healthy: bool) -> None:
        was = (backend.healthy, backend.on_trial)
        backend.healthy, backend.on_trial = healthy, healthy and backend.tripped
        if healthy:
            backend.tripped = False
        else:
            # A server that comes back under its name is another engine.
            backend.engine_id, backend.push_identity, backend.strikes = None, None, 0
        if (backend.healthy, backend.on_trial) != was:
            self._on_change(backend)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._limits.health_interval_s)
            for backend in self._backends.values():
                self.check(backend)

    async def _check(self, backend: Backend, doubt: bool) -> None:
        refused, tripped = False, backend.tripped
        try:
            async with (
                asyncio.timeout(self._limits.health_timeout_s),
                self._wire.ask("GET", backend.config.url + backend.config.health_path) as answer,
            ):
                good = answer.status == 200
                await answer.read()
        except OSError as error:
            if getattr(error, "errno", None) in _OUR_OWN:
                return
            good = False
            refused = getattr(error, "errno", None) == errno.ECONNREFUSED
        backend.failures = 0 if good else backend.failures + 1
        if good:
            # Where requests opened its circuit meanwhile, the next check decides.
            if not doubt and backend.tripped == tripped:
                self._become(backend, healthy=True)
        elif refused or backend.failures >= self._limits.unhealthy_after:
            self._become(backend, healthy=False)
            # A server that hangs keeps its connections: whoever still waits for its first byte goes elsewhere.
            for limit in backend.waits:
                limit.reschedule(asyncio.get_running_loop().time())
