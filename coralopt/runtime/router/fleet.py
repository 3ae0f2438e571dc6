"""The fleet page: a look at the router and its servers, drawn by whoever gives :class:`Doors` a drawer; none without.

It is behind the admin key, which a browser asks its user for (HTTP Basic, any name), and it can only be read: its password
opens no endpoint that changes anything.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files

from aiohttp import web

from coralopt.runtime.router.admin import PlanHooks, has_key, is_own_name
from coralopt.runtime.router.doors import Doors, DrawnFleet
from coralopt.runtime.router.failures import error_response
from coralopt.runtime.router.pool import Backend
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.status import FleetStatus, InstanceStatus, LatencyStatus, QueueStatus

PATH = "/fleet"
#: Seconds between two events of a page that is open, and the most such pages.
EVERY_S, MOST_PAGES = 2.0, 16
#: No frame of another site, no copy on disk, and its address is nobody else's business.
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class FleetView:
    """What the page shows, collected from a router and from what is known of its plans.

    Args:
        router: Whose servers.
        hooks: Plans followed, and what of them runs.
    """

    def __init__(self, router: Router, hooks: PlanHooks) -> None:
        self.router, self.hooks, self.since = router, hooks, time.time()

    def status(self) -> FleetStatus:
        """A look at everything now."""
        router, hooks = self.router, self.hooks
        history = hooks.history
        running, given_up = hooks.state() if hooks.state else ({}, {})
        plan = None if history is None else history.plan
        planned = {} if plan is None or hooks.state is None else {item.name: item.count for item in plan.instances}
        pools = [(model, phase, pool) for model in router.models() for phase, pool in router.pools(model).items()]
        return FleetStatus(
            at=time.time(),
            since=self.since,
            instances=tuple(row for _, _, pool in pools for row in _instances(pool.backends)),
            queues=tuple(
                QueueStatus(model, phase, pool.waiting, sum(b.in_flight for b in pool.backends), pool.slots)
                for model, phase, pool in pools
            ),
            latencies=tuple(row for model in router.models() for row in self._latencies(model)),
            plans=() if history is None else tuple(reversed(history.entries)),
            spent_usd=math.nan if history is None else history.spent_usd,
            short={name: (running.get(name, 0), n) for name, n in planned.items() if running.get(name, 0) < n},
            given_up=given_up,
        )

    def _latencies(self, model: str) -> tuple[LatencyStatus, LatencyStatus]:
        slo = None if self.hooks.history is None else self.hooks.history.slo(model)
        ttft_ms, tpot_ms, target = slo or (math.nan, math.nan, math.nan)
        latencies = self.router.latencies
        return (
            latencies.status(model, "time to first token", ttft_ms, target),
            latencies.status(model, "time per output token", tpot_ms, target),
        )


def _instances(backends: list[Backend]) -> list[InstanceStatus]:
    weights = sum(b.weight for b in backends if not b.draining)
    taken = sum(b.taken for b in backends)
    return [
        InstanceStatus(
            name=b.config.name,
            model=b.config.model,
            phase=b.config.phase,
            region=b.config.region,
            state="draining" if b.draining else "ill" if not b.healthy else "on trial" if b.on_trial else "serves",
            in_flight=b.in_flight,
            slots=b.config.max_in_flight,
            wanted=0.0 if b.draining else b.weight / weights,
            seen=b.taken / taken if taken else math.nan,
        )
        for b in backends
    ]


def add_fleet(app: web.Application, router: Router, hooks: PlanHooks, doors: Doors) -> None:
    """Serve ``/fleet`` and what is below it; nothing where ``doors`` has no drawer."""
    if doors.fleet is None:
        return
    endpoints = _FleetEndpoints(FleetView(router, hooks), doors)
    app.add_routes(
        [
            web.get(PATH, endpoints.page),
            web.get(f"{PATH}/events", endpoints.events),
            web.get(f"{PATH}/status", endpoints.status),
            web.get(f"{PATH}/grafana.json", endpoints.dashboard),
        ]
    )
    app.on_shutdown.append(endpoints.close)


class _FleetEndpoints:
    def __init__(self, fleet: FleetView, doors: Doors) -> None:
        assert doors.fleet is not None, "nothing draws the page"
        self.fleet, self.doors, self.draw = fleet, doors, doors.fleet
        self._names = {doors.host.lower(), *(name.lower() for name in fleet.router.config.admin_hosts)}
        self._drawn: tuple[float, DrawnFleet] | None = None
        self._drawing = asyncio.Lock()
        self._closing = asyncio.Event()
        self._open = 0

    async def close(self, _: web.Application) -> None:
        """End the pages that are open, so that nobody waits for them."""
        self._closing.set()

    async def page(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        return refused or _answer((await self._look()).html, "text/html")

    async def status(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        return refused or _answer(json.dumps(_finite(asdict(self.fleet.status()))), "application/json")

    async def dashboard(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        return refused or _answer(dashboard_text(), "application/json")

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the parts of the page that changed, every so often, at once the first time."""
        if refused := self._refused(request):
            return refused
        if self._open >= MOST_PAGES:
            return error_response(503, f"{MOST_PAGES} fleet pages are open already", int(EVERY_S))
        self._open += 1
        try:
            stream = web.StreamResponse(
                headers={**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await stream.prepare(request)
            sent: dict[str, str] = {}
            while not self._closing.is_set():
                parts = (await self._look()).parts
                changed = {name: html for name, html in parts.items() if sent.get(name) != html}
                # Whoever does not read is let go.
                async with asyncio.timeout(5 * EVERY_S):
                    await stream.write(f"data: {json.dumps(changed)}\n\n".encode())
                sent |= changed
                try:
                    async with asyncio.timeout(EVERY_S):
                        await self._closing.wait()
                except TimeoutError:
                    pass
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._open -= 1
        return stream

    async def _look(self) -> DrawnFleet:
        """The page as of now, or of a moment ago: however many look, it is drawn once, and beside the event loop."""
        async with self._drawing:
            if self._drawn is None or time.monotonic() - self._drawn[0] > EVERY_S / 2:
                drawn = await asyncio.to_thread(self.draw, self.fleet.status())
                self._drawn = time.monotonic(), drawn
            return self._drawn[1]

    def _refused(self, request: web.Request) -> web.Response | None:
        """Why this request gets nothing: a page of another site, a foreign name, no key."""
        site = request.headers.get("Sec-Fetch-Site", "none")
        followed_link = request.path == PATH and request.headers.get("Sec-Fetch-Dest") == "document"
        if site not in ("none", "same-origin") and not followed_link:
            return error_response(403, "the fleet page is not for other web pages")
        if not is_own_name(request.host, self._names):
            return error_response(
                403, f"this router is not known as {request.host!r}; list the name in admin_hosts of router.json"
            )
        key = self.doors.keys.admin or ""
        if has_key(request, key) or _has_password(request, key):
            return None
        refused = error_response(401, "the admin key is missing or wrong; a browser asks for it as the password")
        refused.headers["WWW-Authenticate"] = 'Basic realm="coralopt fleet", charset="UTF-8"'
        return refused


def dashboard_text() -> str:
    """A Grafana dashboard of the router's metrics, as JSON."""
    return files("coralopt.runtime.router").joinpath("grafana.json").read_text(encoding="utf-8")


def _answer(text: str, kind: str) -> web.Response:
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=_HEADERS)


def _has_password(request: web.Request, key: str) -> bool:
    """Whether a request brings ``key`` as the password of HTTP Basic authentication."""
    kind, _, words = request.headers.get("Authorization", "").partition(" ")
    try:
        password = base64.b64decode(words, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return False
    return kind.lower() == "basic" and key != "" and hmac.compare_digest(password, key.encode())


def _finite(value: object) -> object:
    """NaN is no JSON: ``null``."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
