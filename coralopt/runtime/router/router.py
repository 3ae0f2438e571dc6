"""The router's state: pools, and backends that come and go. Knows no web framework but the client's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from coralopt.errors import LaunchError
from coralopt.routing import Routing, smooth_weighted_round_robin
from coralopt.runtime.router.config import BackendConfig, ClassConfig, RouterConfig
from coralopt.runtime.router.demand import DemandMeter
from coralopt.runtime.router.health import Health
from coralopt.runtime.router.metrics import Metrics
from coralopt.runtime.router.pool import Backend, BackendPool, Busy
from coralopt.runtime.router.status import Latencies, PlanHistory
from coralopt.runtime.router.wire import Wire


@dataclass
class _Way:
    """Instances of one mode of a model or variant: whose, their phases, and the plan's share of requests for them."""

    model: str
    phases: tuple[str, ...]
    weight: float
    credit: float = 0.0


class Router:
    """Pools by model and phase.

    Args:
        config: Backends and limits.
        backend_key: API key the backends ask for, if any.
    """

    def __init__(self, config: RouterConfig, backend_key: str | None = None) -> None:
        self.config = config
        self.metrics = Metrics()
        self.demand = DemandMeter()
        self.latencies = Latencies()
        self.backends: dict[str, Backend] = {}
        self._pools: dict[tuple[str, str], BackendPool] = {}
        self._routing: Routing = config.routing
        self._ways: dict[str, tuple[_Way, ...]] = {}
        self._served: dict[str, str] = {}
        self.adapters: Mapping[str, str] = config.adapters
        self._key_header = {"Authorization": f"Bearer {backend_key}"} if backend_key else {}
        self.wire = Wire(config.connect_timeout_s)
        self.health = Health(config, self.wire, self.backends, self._changed)
        self.route_by(config.routing, config.mixed_share, config.variants, config.classes)
        for backend in config.backends:
            self.add(backend)

    async def start(self) -> None:
        """Check every backend once, then keep checking."""
        await self.health.start()

    async def stop(self) -> None:
        await self.health.stop()
        self.wire.close()

    def route_by(
        self,
        routing: Routing,
        mixed_share: Mapping[str, float],
        variants: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        classes: Mapping[str, Sequence[ClassConfig]] = MappingProxyType({}),
    ) -> None:
        """Choose instances by another rule from now on, split requests over modes and variants, tell classes otherwise."""
        self._routing, self._classes = routing, dict(classes)
        self._served = {name: model for model, shares in variants.items() for name in shares}
        parts = {name: {name: 1.0} for name in mixed_share if name not in self._served} | dict(variants)
        self._ways = {}
        for model, shares in parts.items():
            ways: list[_Way] = []
            for name, share in shares.items():
                # Of a variant with one mode, instances of the other one are never up.
                mixed = mixed_share.get(name)
                apart, together = (share, share) if mixed is None else (share * (1.0 - mixed), share * mixed)
                ways += [_Way(name, ("prefill", "decode"), apart), _Way(name, ("mixed",), together)]
            self._ways[model] = tuple(ways)
        for pool in self._pools.values():
            pool.routing = routing

    def class_of(self, model: str, input_tokens: float, most_output: float) -> str | None:
        """The class of a request: the first one that holds it; ``None`` where its model has none.

        Args:
            model: What the request asks for.
            input_tokens: About how long its prompt is.
            most_output: Tokens that it asks for at most.
        """
        for part in self._classes.get(model, ()):
            if input_tokens <= (part.most_input or math.inf) and most_output <= (part.most_output or math.inf):
                return part.name
        return None

    def models(self) -> tuple[str, ...]:
        """What requests may ask for."""
        return tuple(dict.fromkeys(self._served.get(model, model) for model, _ in self._pools))

    def _names(self, model: str) -> tuple[str, ...]:
        """The model itself, or its variants."""
        return tuple(name for name, served in self._served.items() if served == model) or (model,)

    def pools(self, model: str) -> Mapping[str, BackendPool]:
        """Pools of a model, or of one variant, by phase."""
        return {phase: pool for (name, phase), pool in self._pools.items() if name == model}

    def serves(self, model: str, avoid: frozenset[str] = frozenset()) -> bool:
        """Whether a request for ``model`` could be answered now by others than the backends to ``avoid``."""
        for name in self._names(model):
            usable = {phase for phase, pool in self.pools(name).items() if pool.up(avoid)}
            if "mixed" in usable or {"prefill", "decode"} <= usable:
                return True
        return False

    def way_of(self, model: str, avoid: frozenset[str]) -> tuple[str, bool]:
        """The variant that the next request goes to, or the model itself, and whether to a mixed instance.

        By the plan's shares, over the modes and variants that are up.
        """
        ways = [way for way in self._ways.get(model, ()) if self._up(way, avoid)]
        way = smooth_weighted_round_robin([way for way in ways if way.weight > 0] or ways)
        if way is None:
            return model, "mixed" in self.pools(model)
        return way.model, "mixed" in way.phases

    def _up(self, way: _Way, avoid: frozenset[str]) -> bool:
        pools = self.pools(way.model)
        return all(phase in pools and pools[phase].up(avoid) for phase in way.phases)

    def admit(self, model: str) -> None:
        """Back-pressure.

        Raises:
            Busy: As many requests as may wait for this model do.
        """
        pools = [pool for name in self._names(model) for pool in self.pools(name).values()]
        waiting = sum(pool.waiting for pool in pools)
        full = any(pool.slots and not any(b.free for b in pool.backends) for pool in pools)
        if full and waiting >= self.config.queue_size:
            raise Busy(
                f"{waiting} requests wait for this model already",
                max(pool.retry_after_s() for pool in pools),
                429,
            )

    def key_header(self, backend: Backend) -> Mapping[str, str]:
        """The servers' key, for those that may have it."""
        return self._key_header if backend.trusted else {}

    def add(self, config: BackendConfig, *, healthy: bool = False, trusted: bool = True) -> Backend:
        """Route to one more backend as soon as it is healthy.

        Args:
            config: Its name, which is new, and its address.
            healthy: Whether it is known to be well already.
            trusted: Whether it gets the servers' key.

        Raises:
            LaunchError: The name is taken.
        """
        if config.name in self.backends:
            raise LaunchError(f"a backend called {config.name!r} is there already")
        backend = Backend(config, healthy=healthy, trusted=trusted)
        self.backends[config.name] = backend
        key = (config.model, config.phase)
        if key not in self._pools:
            self._pools[key] = BackendPool()
            self._pools[key].routing = self._routing
        self._pools[key].add(backend)
        return backend

    async def follow(self, config: RouterConfig) -> None:
        """Route to the backends of another configuration, by its rule and shares; requests in flight go on.

        New ones are asked for their health before the others go, so that a model is never without any.
        """
        wanted = {backend.name: backend for backend in config.backends}
        for name, new in wanted.items():
            old = self.backends.get(name)
            if old is None:
                self.add(new)
            elif (old.config.url, old.config.model, old.config.phase) == (new.url, new.model, new.phase):
                old.config = new
                self._pool(old).changed()
            else:
                self.remove(name)
                self.add(new)
        await self.health.check_all()
        for name in [name for name in self.backends if name not in wanted]:
            self.remove(name)
        self.route_by(config.routing, config.mixed_share, config.variants, config.classes)
        self.adapters = config.adapters

    async def drain(self, name: str, timeout_s: float | None = None) -> bool:
        """Send no new requests to a backend and wait for those it has.

        Returns:
            Whether it is idle now; false when the time ran out.

        Raises:
            LaunchError: No such backend.
        """
        backend = self._named(name)
        backend.draining = True
        self._pool(backend).changed()
        try:
            async with asyncio.timeout(timeout_s):
                await backend.idle.wait()
        except TimeoutError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Forget a backend; requests in flight go on.

        Raises:
            LaunchError: No such backend.
        """
        backend = self._named(name)
        pool = self._pool(backend)
        pool.remove(backend)
        del self.backends[name]
        self.metrics.forget(name, backend.config.model, backend.config.phase)
        if not pool.backends:
            del self._pools[backend.config.model, backend.config.phase]

    def _changed(self, backend: Backend) -> None:
        # It may have been removed while it answered.
        if self.backends.get(backend.config.name) is backend:
            self._pool(backend).changed()

    def _named(self, name: str) -> Backend:
        if name not in self.backends:
            raise LaunchError(f"no backend is called {name!r}; there are {', '.join(sorted(self.backends)) or 'none'}")
        return self.backends[name]

    def _pool(self, backend: Backend) -> BackendPool:
        return self._pools[backend.config.model, backend.config.phase]

    def measure(self, history: PlanHistory | None = None) -> None:
        """Write down queues and load as they are now, and what the plans that were followed say."""
        if history is not None and history.entries:
            self.metrics.rent.set(history.entries[-1].usd_h)
            self.metrics.spent.set(history.spent_usd)
            self.metrics.plans.set(history.entries[-1].at)
            for model in self.models():
                for latency, ms in zip(("ttft", "tpot"), (history.slo(model) or ()), strict=False):
                    self.metrics.slo.labels(model, latency).set(ms / 1000)
        for (model, phase), pool in self._pools.items():
            self.metrics.waiting.labels(model, phase).set(pool.waiting)
            for backend in pool.backends:
                labels = (backend.config.name, model, phase)
                self.metrics.in_flight.labels(*labels).set(backend.in_flight)
                self.metrics.up.labels(*labels).set(backend.healthy)
                self.metrics.weight.labels(*labels).set(backend.weight)
