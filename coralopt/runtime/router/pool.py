"""Backends of one model and phase: who may be picked, who must wait."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coralopt.routing import Routing, choose, choose_by_key
from coralopt.runtime.router.config import BackendConfig
from coralopt.types import JsonObject


class Busy(Exception):
    """No slot for this request; ``retry_after_s`` says when to come again."""

    def __init__(self, message: str, retry_after_s: int, status: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status


@dataclass(eq=False)
class Need:
    """What a request wants of a backend.

    Attributes:
        avoid: Names of backends that are not to be chosen.
        prompt: Work that it brings until its first token is made, as :mod:`coralopt.routing` counts it.
        answer: Work that it brings until it leaves.
        key: Requests with the same key go to the same backend while its load allows; ``None``: any backend will do.
        kind: Its class, where requests come in some.
    """

    avoid: frozenset[str] = frozenset()
    prompt: float = 0.0
    answer: float = 1.0
    key: str | None = None
    kind: str | None = None

    @property
    def own(self) -> float:
        """All work that it brings now."""
        return self.prompt + self.answer


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
        parts: What it is to each class of requests.
        draining: Whether it gets no new requests.
        in_flight: Requests it has at the moment.
        taken: Requests it got since its pool changed last.
        work: What they are, as :mod:`coralopt.routing` counts, in prompt tokens.
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
    taken: int = 0
    work: float = 0.0
    failures: int = 0
    credit: float = 0.0
    engine_id: str | None = None
    push_identity: JsonObject | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    waits: set[asyncio.Timeout] = field(default_factory=set)
    parts: dict[str, BackendPart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle.set()

    def document(self) -> JsonObject:
        """Its configuration and its state."""
        state = {"healthy": self.healthy, "draining": self.draining, "in_flight": self.in_flight}
        return {**self.config.model_dump(mode="json"), **state}

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def weight(self) -> float:
        return self.config.weight

    @property
    def rate(self) -> float:
        """Planned rate of all that it does."""
        return self.config.weight

    def part(self, kind: str) -> BackendPart:
        """The backend as requests of a class see it."""
        if kind not in self.parts:
            self.parts[kind] = BackendPart(self, kind)
        return self.parts[kind]

    @property
    def usable(self) -> bool:
        return self.healthy and not self.draining

    @property
    def free(self) -> bool:
        return self.usable and self.in_flight < (1 if self.on_trial else self.config.max_in_flight)

    def begun(self, need: Need) -> None:
        """The first token of a request is made."""
        self.work -= need.prompt
        need.prompt = 0.0

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


@dataclass(eq=False)
class BackendPart:
    """A backend as one class of requests sees it: the rate planned of that, with a credit of its own."""

    backend: Backend
    kind: str
    credit: float = 0.0

    @property
    def weight(self) -> float:
        return self.backend.config.classes[self.kind]

    @property
    def rate(self) -> float:
        return self.backend.rate

    @property
    def work(self) -> float:
        return self.backend.work

    @property
    def taken(self) -> int:
        return self.backend.taken

    @property
    def name(self) -> str:
        return self.backend.name


class BackendPool:
    """Backends of one model phase and the queue in front of them, first come first served.

    Args:
        uniform: Random numbers inside (0, 1), for power of two.

    Attributes:
        routing: How a backend is chosen, one of :mod:`coralopt.routing`.
    """

    def __init__(self, uniform: Callable[[], float] = random.random) -> None:
        self.backends: list[Backend] = []
        self.routing: Routing = "weighted-round-robin"
        self._uniform = uniform
        #: Requests that wait; those that failed somewhere waited before and go first.
        self._again: OrderedDict[asyncio.Future[Backend], Need] = OrderedDict()
        self._queue: OrderedDict[asyncio.Future[Backend], Need] = OrderedDict()
        #: Mean seconds a request holds a slot, exponentially forgotten; for Retry-After.
        self._hold_s = 1.0

    @property
    def waiting(self) -> int:
        return len(self._again) + len(self._queue)

    @property
    def slots(self) -> int:
        return sum(backend.config.max_in_flight for backend in self.backends if backend.usable)

    def up(self, avoid: frozenset[str] = frozenset()) -> bool:
        """Whether any backend but those to ``avoid`` may get requests."""
        return any(backend.usable and backend.config.name not in avoid for backend in self.backends)

    def ready(self, avoid: frozenset[str] = frozenset()) -> bool:
        """Whether a request would get a slot at once."""
        return not self.waiting and any(b.free and b.config.name not in avoid for b in self.backends)

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
            backend.credit, backend.taken = 0.0, 0
            backend.parts.clear()
        self.changed()

    def _take(self, need: Need) -> Backend | None:
        able = [backend for backend in self.backends if backend.usable and backend.config.name not in need.avoid]
        # Where all that were planned for its class are down, a request goes to any.
        mine = [b for b in able if need.kind in b.config.classes] if need.kind is not None else []
        items: Sequence[Backend | BackendPart] = [backend for backend in mine or able if backend.free]
        if mine and need.kind is not None:
            items = [backend.part(need.kind) for backend in mine if backend.free]
        if need.key is not None:
            item = choose_by_key(items, need.key, need.own)
        else:
            item = choose(self.routing, items, need.own, self._uniform)
        chosen = item.backend if isinstance(item, BackendPart) else item
        if chosen is not None:
            chosen.in_flight += 1
            chosen.taken += 1
            chosen.work += need.own
            chosen.idle.clear()
        return chosen

    @asynccontextmanager
    async def slot(self, need: Need, timeout_s: float) -> AsyncIterator[Backend]:
        """A backend for the length of the context, chosen by key or by ``routing``; waits while all are busy.

        Args:
            need: What the request wants.
            timeout_s: Longest wait, s.

        Raises:
            Busy: No backend is up, or none became free within ``timeout_s``.
        """
        # Nobody overtakes the queue, unless all who wait are avoiding the backend that is free, or are of other classes.
        alike = any(need.kind == other.kind for other in self._queue.values()) if need.kind else bool(self._queue)
        backend = None if alike else self._take(need)
        if backend is None:
            backend = await self._wait(need, timeout_s)
        started = time.monotonic()
        try:
            yield backend
        finally:
            self._hold_s += 0.1 * (time.monotonic() - started - self._hold_s)
            self._give_back(backend, need)

    async def _wait(self, need: Need, timeout_s: float) -> Backend:
        if not self.up(need.avoid):
            raise self._down()
        queue, loop = self._again if need.avoid else self._queue, asyncio.get_running_loop()
        future: asyncio.Future[Backend] = loop.create_future()
        queue[future] = need
        if need.avoid:
            # The others cannot have what those before them could not.
            self.wake()
        limit = loop.call_later(timeout_s, self._give_up, future, f"no slot became free in {timeout_s:g} s")
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # Chosen at the very moment of giving up: hand the slot on.
                self._give_back(future.result(), need)
            raise
        finally:
            queue.pop(future, None)
            limit.cancel()

    def _give_up(self, future: asyncio.Future[Backend], why: str) -> None:
        if not future.done():
            future.set_exception(Busy(why, self.retry_after_s(), 503))

    def _down(self) -> Busy:
        return Busy("no instance of this model is up", self.retry_after_s(), 503)

    def _give_back(self, backend: Backend, need: Need) -> None:
        backend.in_flight -= 1
        backend.work -= need.own
        if backend.in_flight == 0:
            backend.idle.set()
        self.wake()

    def wake(self) -> None:
        """Hand out slots that became free; takes as long as there are such slots, however many wait."""
        for future, need in list(self._again.items()):
            if not future.done() and (chosen := self._take(need)) is not None:
                del self._again[future]
                future.set_result(chosen)
        while self._queue:
            future, need = next(iter(self._queue.items()))
            if not future.done():
                if (chosen := self._take(need)) is None:
                    break
                future.set_result(chosen)
            del self._queue[future]
        # Those of one class wait for each other only.
        stuck = {next(iter(self._queue.values())).kind} if self._queue else set()
        for future, need in list(self._queue.items()) if stuck - {None} else ():
            if need.kind not in stuck and not future.done():
                if (chosen := self._take(need)) is None:
                    stuck.add(need.kind)
                    continue
                future.set_result(chosen)
                del self._queue[future]

    def changed(self) -> None:
        """A backend came, went, fell ill or got well: tell those whose last one went down, and hand out slots."""
        for queue in (self._again, self._queue):
            for future, need in list(queue.items()):
                if not future.done() and not self.up(need.avoid):
                    del queue[future]
                    future.set_exception(self._down())
        self.wake()
