"""Backends of one model and phase: who may be picked, who must wait."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coralopt.routing import Routing, choose
from coralopt.runtime.router.config import BackendConfig
from coralopt.types import JsonObject


class Busy(Exception):
    """No slot for this request; ``retry_after_s`` says when to come again."""

    def __init__(self, message: str, retry_after_s: int, status: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status


@dataclass(eq=False)
class Backend:
    """One server and what the router knows about it.

    Attributes:
        config: Name, address, weight.
        trusted: Whether it gets the servers' key.
        healthy: Whether it is well, as :class:`coralopt.runtime.router.health.Health` judges.
        tripped: Whether requests opened its circuit and no health check has been good since.
        on_trial: Whether it gets one request at a time, after its circuit was open.
        strikes: Requests in a row that failed on it and succeeded elsewhere.
        waits: Limits of requests that wait for its first byte.
        draining: Whether it gets no new requests.
        in_flight: Requests it has at the moment.
        work: What they are, as :mod:`coralopt.routing` counts: prompt tokens (prefill) or requests.
        failures: Health checks that failed in a row.
        credit: State of the weighted round robin.
        engine_id: What a Mooncake prefill server calls itself, once asked.
        push_identity: What a pushing prefill server says about itself, once it has answered.
    """

    config: BackendConfig
    trusted: bool = True
    healthy: bool = False
    tripped: bool = False
    on_trial: bool = False
    strikes: int = 0
    draining: bool = False
    in_flight: int = 0
    work: float = 0.0
    failures: int = 0
    credit: float = 0.0
    engine_id: str | None = None
    push_identity: JsonObject | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    waits: set[asyncio.Timeout] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.idle.set()

    def document(self) -> JsonObject:
        """Its configuration and its state."""
        state = {"healthy": self.healthy, "draining": self.draining, "in_flight": self.in_flight}
        return {**self.config.model_dump(mode="json"), **state}

    @property
    def weight(self) -> float:
        return self.config.weight

    @property
    def usable(self) -> bool:
        return self.healthy and not self.draining

    @property
    def free(self) -> bool:
        return self.usable and self.in_flight < (1 if self.on_trial else self.config.max_in_flight)

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Wait for its first byte for so long at most, or until it falls ill; the limit may be moved then.

        Raises:
            TimeoutError: Either happened.
        """
        async with asyncio.timeout(seconds) as limit:
            self.waits.add(limit)
            try:
                yield limit
            finally:
                self.waits.discard(limit)


class BackendPool:
    """Backends of one model phase and the queue in front of them, first come first served.

    Args:
        on_change: Called after every change of queue or load, for metrics.
        uniform: Random numbers inside (0, 1), for power of two.

    Attributes:
        routing: How a backend is chosen, one of :mod:`coralopt.routing`.
    """

    def __init__(
        self,
        on_change: Callable[[BackendPool], None] = lambda pool: None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.backends: list[Backend] = []
        self.routing: Routing = "weighted-round-robin"
        self._waiting: deque[tuple[asyncio.Future[Backend], frozenset[str], float]] = deque()
        self._on_change, self._uniform = on_change, uniform
        #: Mean seconds a request holds a slot, exponentially forgotten; for Retry-After.
        self._hold_s = 1.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def slots(self) -> int:
        return sum(backend.config.max_in_flight for backend in self.backends if backend.usable)

    def up(self, avoid: frozenset[str] = frozenset()) -> bool:
        """Whether any backend but those to ``avoid`` may get requests."""
        return any(backend.usable and backend.config.name not in avoid for backend in self.backends)

    def ready(self, avoid: frozenset[str] = frozenset()) -> bool:
        """Whether a request would get a slot at once."""
        return not self._waiting and any(b.free and b.config.name not in avoid for b in self.backends)

    def retry_after_s(self) -> int:
        """Seconds until the queue should have moved: its length times the time a slot is held, over the slots."""
        return min(60, max(1, math.ceil(self._hold_s * (self.waiting + 1) / max(1, self.slots))))

    def add(self, backend: Backend) -> None:
        self._become([*self.backends, backend])

    def remove(self, backend: Backend) -> None:
        self._become([other for other in self.backends if other is not backend])

    def _become(self, backends: list[Backend]) -> None:
        self.backends = backends
        for backend in backends:
            backend.credit = 0.0
        self.wake()

    def _pick(self, avoid: frozenset[str], own: float) -> Backend | None:
        free = [backend for backend in self.backends if backend.free and backend.config.name not in avoid]
        picked = choose(self.routing, free, own, self._uniform)
        if picked is not None:
            picked.in_flight += 1
            picked.work += own
            picked.idle.clear()
        return picked

    @asynccontextmanager
    async def slot(self, avoid: frozenset[str], timeout_s: float, own: float = 1.0) -> AsyncIterator[Backend]:
        """A backend for the length of the context, chosen by ``routing``; waits while all are busy.

        Args:
            avoid: Names of backends that are not to be chosen.
            timeout_s: Longest wait, s.
            own: Work that the request brings.

        Raises:
            Busy: No backend is up, or none became free within ``timeout_s``.
        """
        backend = await self._acquire(avoid, timeout_s, own)
        started = time.monotonic()
        try:
            yield backend
        finally:
            self._hold_s += 0.1 * (time.monotonic() - started - self._hold_s)
            self._give_back(backend, own)

    async def _acquire(self, avoid: frozenset[str], timeout_s: float, own: float) -> Backend:
        if not self.up(avoid):
            raise Busy("no instance of this model is up", self.retry_after_s(), 503)
        # Nobody overtakes the queue, unless all who wait are avoiding the backend that is free.
        if (picked := None if self._waiting else self._pick(avoid, own)) is None:
            future: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()
            entry = (future, avoid, own)
            self._waiting.append(entry)
            self.wake()
            try:
                async with asyncio.timeout(timeout_s):
                    picked = await future
            except BaseException as error:
                if future.done() and not future.cancelled() and future.exception() is None:
                    # Picked at the very moment of giving up: hand the slot on.
                    self._give_back(future.result(), own)
                elif entry in self._waiting:
                    self._waiting.remove(entry)
                self._on_change(self)
                if isinstance(error, TimeoutError):
                    raise Busy(f"no slot became free in {timeout_s:g} s", self.retry_after_s(), 503) from None
                raise
        self._on_change(self)
        return picked

    def _give_back(self, backend: Backend, own: float) -> None:
        backend.in_flight -= 1
        backend.work -= own
        if backend.in_flight == 0:
            backend.idle.set()
        self.wake()

    def wake(self) -> None:
        """Hand out slots that became free; tell those whose last backend went down."""
        for entry in list(self._waiting):
            future, avoid, own = entry
            if future.done():
                self._waiting.remove(entry)
            elif not self.up(avoid):
                self._waiting.remove(entry)
                future.set_exception(Busy("no instance of this model is up", self.retry_after_s(), 503))
            elif (picked := self._pick(avoid, own)) is not None:
                self._waiting.remove(entry)
                future.set_result(picked)
        self._on_change(self)
