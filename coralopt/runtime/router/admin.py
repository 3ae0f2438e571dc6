"""The admin endpoints: backends that come and go, demand, and the plan that is followed.

They are behind a key of their own, or behind a Unix socket; with neither there are none. A web page that its reader's
browser could make call them is refused whatever it sends: by its Origin, by a Host that is a name from outside, or by a
body that is not declared as JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from coralopt.errors import CoraloptError
from coralopt.runtime.router.answers import answer_in_one_form
from coralopt.runtime.router.config import BackendConfig
from coralopt.runtime.router.doors import ADMIN_KEY, Doors
from coralopt.runtime.router.failures import error_response
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.status import PlanHistory
from coralopt.types import JsonObject

PREFIX = "/router/"
#: An address in brackets or a name, and a port.
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]@:/?#\s]+))(?::\d*)?")


@dataclass(frozen=True)
class PlanHooks:
    """Where the router's process also runs the servers: their plan.

    Attributes:
        apply: Behind ``POST /router/plan``: takes a plan document as JSON text, makes the servers follow it, and says what
            changed.
        describe: Behind ``GET /router/plan``: the plan that the servers follow.
        history: Plans that were followed, for the fleet page; also of a router alone whose plan is known.
        state: Instance of the plan -> how many run as a whole; pipelines that were given up -> why.
    """

    apply: Callable[[str], Awaitable[JsonObject]] | None = None
    describe: Callable[[], JsonObject] | None = None
    history: PlanHistory | None = None
    state: Callable[[], tuple[Mapping[str, int], Mapping[str, str]]] | None = None


def add_admin(app: web.Application, router: Router, hooks: PlanHooks, doors: Doors | None) -> None:
    """Serve the admin endpoints below ``/router/``.

    Args:
        app: Gets them.
        router: What they manage.
        hooks: Behind ``/router/plan``.
        doors: Who may come in; ``None`` where all who reach ``app`` may.
    """
    if doors is not None and doors.keys.admin is None:
        app.router.add_route("*", PREFIX + "{rest:.*}", _closed)
        return
    inner = web.Application(middlewares=[] if doors is None else [_guard(router, doors, doors.keys.admin or "")])
    endpoints = _AdminEndpoints(router, hooks)
    inner.add_routes(
        [
            web.get("/demand", endpoints.demand),
            web.get("/backends", endpoints.backends),
            web.post("/backends", endpoints.add),
            web.post("/backends/{name}/drain", endpoints.drain),
            web.delete("/backends/{name}", endpoints.remove),
            *([web.get("/plan", endpoints.describe)] if hooks.describe else []),
            *([web.post("/plan", endpoints.apply)] if hooks.apply else []),
        ]
    )
    app.add_subapp(PREFIX, inner)


def make_admin_app(router: Router, hooks: PlanHooks, doors: Doors) -> web.Application:
    """The admin endpoints alone, for a door that only the right people reach; its log is that of the other ``doors``."""
    app = web.Application()
    answer_in_one_form(app, doors)
    add_admin(app, router, hooks, None)
    return app


def has_key(request: web.Request, key: str) -> bool:
    """Whether a request brings ``key`` as its bearer token."""
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(sent.encode(errors="surrogateescape"), key.encode())


async def _closed(_: web.Request) -> web.StreamResponse:
    return error_response(
        403,
        f"the admin endpoints are closed here: start the router with {ADMIN_KEY} set, or use its Unix socket "
        "(name the folder of `coralopt launch start` instead of its URL)",
    )


def _guard(router: Router, doors: Doors, key: str) -> Middleware:
    names = {doors.host.lower(), *(name.lower() for name in router.config.admin_hosts)}

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            return error_response(403, "the admin endpoints are not for web pages")
        if not is_own_name(request.host, names):
            return error_response(
                403, f"this router is not known as {request.host!r}; list the name in admin_hosts of router.json"
            )
        if not has_key(request, key):
            return error_response(401, "the admin key is missing or wrong")
        if request.body_exists and request.content_type != "application/json":
            return error_response(415, "the body must be sent as Content-Type: application/json")
        return await handler(request)

    return guard


def is_own_name(host: str, names: set[str]) -> bool:
    """Whether ``Host`` cannot be a name that a stranger made point here: an address, a local name, or one of ``names``."""
    if (match := _HOST.fullmatch(host)) is None:
        return False
    address, name = match[1], match[2].lower() if match[2] else ""
    try:
        ipaddress.ip_address(address or name)
    except ValueError:
        return name in names or (name != "" and "." not in name)
    return True


class _AdminEndpoints:
    def __init__(self, router: Router, hooks: PlanHooks) -> None:
        self.router, self.hooks = router, hooks

    async def demand(self, _: web.Request) -> web.Response:
        return web.json_response(self.router.demand.document())

    async def backends(self, _: web.Request) -> web.Response:
        return web.json_response({"backends": [backend.document() for backend in self.router.backends.values()]})

    async def add(self, request: web.Request) -> web.Response:
        try:
            backend = self.router.add(BackendConfig.model_validate_json(await request.text()), trusted=False)
        except (ValueError, CoraloptError) as error:
            return error_response(400, str(error))
        await self.router.health.check(backend)
        return web.json_response({"name": backend.config.name, "healthy": backend.healthy}, status=201)

    async def drain(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            idle = await self.router.drain(name, float(request.query.get("timeout_s", "120")))
        except ValueError:
            return error_response(400, "timeout_s must be a number of seconds")
        except CoraloptError as error:
            return error_response(404, str(error))
        return web.json_response({"name": name, "idle": idle})

    async def remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            self.router.remove(name)
        except CoraloptError as error:
            return error_response(404, str(error))
        return web.json_response({"name": name, "removed": True})

    async def apply(self, request: web.Request) -> web.Response:
        assert self.hooks.apply is not None
        try:
            # A client that goes away must not leave servers half changed.
            return web.json_response(await asyncio.shield(self.hooks.apply(await request.text())))
        except CoraloptError as error:
            return error_response(409, str(error))

    async def describe(self, _: web.Request) -> web.Response:
        assert self.hooks.describe is not None
        return web.json_response(self.hooks.describe())
