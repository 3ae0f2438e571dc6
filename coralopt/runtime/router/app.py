"""The router as a web application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from coralopt.runtime.router.admin import PREFIX, PlanHooks, add_admin, has_key
from coralopt.runtime.router.doors import Doors
from coralopt.runtime.router.relay import error_response, relay
from coralopt.runtime.router.router import Router

#: Connections that have sent a whole head; whoever listens closes the others after a while.
HEARD: web.AppKey[set[object]] = web.AppKey("heard")
#: Paths that need no key, as in vLLM.
_OPEN = frozenset({"/health", "/ping", "/metrics"})


def make_app(router: Router, doors: Doors | None = None, hooks: PlanHooks | None = None) -> web.Application:
    """The application: OpenAI API, ``/health``, ``/metrics``, and ``/router/`` for whoever manages it.

    Args:
        router: Started and stopped with the application.
        doors: Who may come in; by default all, but nobody to manage it.
        hooks: Behind ``/router/plan``.
    """
    doors = doors or Doors()
    client_key = doors.keys.client

    limits = router.config

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        app[HEARD].add(request.protocol)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return error_response(415, "compressed bodies are not accepted")
        if (request.content_length or 0) > limits.largest_body:
            return error_response(413, f"the body is larger than {limits.largest_body} bytes")
        free = client_key is None or request.path in _OPEN or request.path.startswith(PREFIX)
        if free or has_key(request, client_key or ""):
            return await handler(request)
        return error_response(401, "the API key is missing or wrong")

    async def life(_: web.Application) -> AsyncIterator[None]:
        await router.start()
        yield
        await router.stop()

    endpoints = _Endpoints(router)
    app = web.Application(middlewares=[guard], client_max_size=limits.largest_body)
    app[HEARD] = set()
    app.cleanup_ctx.append(life)
    app.add_routes(
        [
            web.post("/v1/completions", endpoints.complete),
            web.post("/v1/chat/completions", endpoints.complete),
            web.get("/v1/models", endpoints.models),
            web.get("/health", endpoints.health),
            web.get("/ping", endpoints.ping),
            web.get("/metrics", endpoints.metrics),
        ]
    )
    add_admin(app, router, hooks or PlanHooks(), doors)
    return app


class _Endpoints:
    def __init__(self, router: Router) -> None:
        self.router = router

    async def complete(self, request: web.Request) -> web.StreamResponse:
        limits = self.router.config
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                body = json.loads(await request.read())
        except TimeoutError:
            return error_response(408, f"the body did not arrive within {limits.body_timeout_s:g} s")
        except web.HTTPRequestEntityTooLarge:
            return error_response(413, f"the body is larger than {limits.largest_body} bytes")
        except (ValueError, RecursionError):
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
        return web.Response(body=self.router.metrics_text(), headers={"Content-Type": "text/plain; version=0.0.4"})
