"""The router as a web application."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from coralopt.errors import CoraloptError
from coralopt.runtime.router.config import BackendConfig
from coralopt.runtime.router.relay import error_response, relay
from coralopt.runtime.router.router import Router
from coralopt.types import JsonObject

#: Largest request body, bytes.
LARGEST_BODY = 32 * 2**20
#: Paths that need no key, as in vLLM.
_OPEN = frozenset({"/health", "/ping", "/metrics"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: Takes a plan document as JSON text, makes the servers follow it, and says what changed.
Apply = Callable[[str], Awaitable[JsonObject]]
#: The plan that the servers follow, as JSON data.
Describe = Callable[[], JsonObject]


def make_app(
    router: Router, api_key: str | None = None, apply: Apply | None = None, describe: Describe | None = None
) -> web.Application:
    """The application: OpenAI API, ``/health``, ``/metrics``, and ``/router/backends`` for whoever manages it.

    Args:
        router: Started and stopped with the application.
        api_key: Asked of every client when given; without one, backends are managed from this machine only.
        apply: Behind ``POST /router/plan``, where the router's process also runs the servers.
        describe: Behind ``GET /router/plan``, likewise.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if api_key is not None and request.path not in _OPEN:
            key = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(key.encode(), api_key.encode()):
                return error_response(401, "the API key is missing or wrong")
        elif request.path.startswith("/router/") and not _is_local(request):
            return error_response(403, "without an API key only this machine may manage backends")
        return await handler(request)

    async def life(_: web.Application) -> AsyncIterator[None]:
        await router.start()
        yield
        await router.stop()

    endpoints = _Endpoints(router)
    app = web.Application(middlewares=[guard], client_max_size=LARGEST_BODY)
    app.cleanup_ctx.append(life)
    app.add_routes(
        [
            web.post("/v1/completions", endpoints.complete),
            web.post("/v1/chat/completions", endpoints.complete),
            web.get("/v1/models", endpoints.models),
            web.get("/health", endpoints.health),
            web.get("/ping", endpoints.ping),
            web.get("/metrics", endpoints.metrics),
            web.get("/router/demand", endpoints.demand),
            web.get("/router/backends", endpoints.backends),
            web.post("/router/backends", endpoints.add),
            web.post("/router/backends/{name}/drain", endpoints.drain),
            web.delete("/router/backends/{name}", endpoints.remove),
        ]
    )
    if apply is not None:
        app.router.add_post("/router/plan", _applying(apply))
    if describe is not None:
        app.router.add_get("/router/plan", _describing(describe))
    return app


def _is_local(request: web.Request) -> bool:
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False


class _Endpoints:
    def __init__(self, router: Router) -> None:
        self.router = router

    async def complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            return error_response(400, "the body is not JSON")
        model = body.get("model") if isinstance(body, dict) else None
        if not isinstance(model, str):
            return error_response(400, "the body must be a JSON object with a model name")
        if model not in self.router.models():
            known = ", ".join(self.router.models()) or "none"
            return error_response(404, f"the model {model!r} is not served here; served are: {known}")
        return await relay(self.router, request, body, model)

    async def models(self, _: web.Request) -> web.Response:
        models = [{"id": name, "object": "model", "owned_by": "coralopt"} for name in self.router.models()]
        return web.json_response({"object": "list", "data": models})

    async def health(self, _: web.Request) -> web.Response:
        state = {model: self.router.serves(model) for model in self.router.models()}
        return web.json_response({"models": state}, status=200 if state and all(state.values()) else 503)

    async def ping(self, _: web.Request) -> web.Response:
        """Alive, whatever the backends are."""
        return web.json_response({})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.router.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def demand(self, _: web.Request) -> web.Response:
        return web.json_response(self.router.demand.document())

    async def backends(self, _: web.Request) -> web.Response:
        return web.json_response({"backends": [backend.document() for backend in self.router.backends.values()]})

    async def add(self, request: web.Request) -> web.Response:
        try:
            backend = self.router.add(BackendConfig.model_validate_json(await request.text()))
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


def _applying(apply: Apply) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            # A client that goes away must not leave servers half changed.
            return web.json_response(await asyncio.shield(apply(await request.text())))
        except CoraloptError as error:
            return error_response(409, str(error))

    return handle


def _describing(describe: Describe) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(describe())

    return handle
