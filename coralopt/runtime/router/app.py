"""The router as a web application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from coralopt.runtime.router.admin import PREFIX, PlanHooks, add_admin
from coralopt.runtime.router.answers import CLIENT, answer_in_one_form
from coralopt.runtime.router.clients import Clients
from coralopt.runtime.router.doors import Doors
from coralopt.runtime.router.failures import error_response
from coralopt.runtime.router.fleet import PATH as FLEET
from coralopt.runtime.router.fleet import add_fleet
from coralopt.runtime.router.relay import TOKENS, relay
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.status import PlanHistory

#: Paths that need no key, as in vLLM.
_OPEN = frozenset({"/health", "/ping", "/metrics"})


def make_app(router: Router, doors: Doors | None = None, hooks: PlanHooks | None = None) -> web.Application:
    """The application: OpenAI API, ``/health``, ``/metrics``, ``/router/`` for whoever manages it, and ``/fleet``
    for whoever looks.

    Args:
        router: Started and stopped with the application.
        doors: Who may come in; by default all, but nobody to manage it.
        hooks: Behind ``/router/plan``.
    """
    doors = doors or Doors()
    limits = router.config
    clients = Clients(limits.clients, doors.keys.client)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return error_response(415, "compressed bodies are not accepted")
        if (request.content_length or 0) > limits.largest_body:
            return error_response(413, f"the body is larger than {limits.largest_body} bytes")
        if request.path in _OPEN or request.path.startswith((PREFIX, FLEET)):
            return await handler(request)
        client = clients.find(request.headers.get("Authorization", ""))
        if client is None:
            return error_response(401, "the API key is missing or wrong")
        request[CLIENT] = client.name
        if request.method == "POST" and (wait_s := client.admit()):
            return error_response(429, f"the limits of {client.name} are used up for now", wait_s)
        response = await handler(request)
        client.used(sum(request.get(TOKENS, ())))
        return response

    async def life(_: web.Application) -> AsyncIterator[None]:
        await router.start()
        yield
        await router.stop()

    hooks = hooks or PlanHooks()
    endpoints = _Endpoints(router, hooks.history if doors.fleet else None)
    app = web.Application(middlewares=[guard], client_max_size=limits.largest_body)
    answer_in_one_form(app, doors)
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
    add_admin(app, router, hooks, doors)
    add_fleet(app, router, hooks, doors)
    return app


class _Endpoints:
    def __init__(self, router: Router, history: PlanHistory | None) -> None:
        self.router, self.history = router, history

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
        if (original := limits.aliases.get(model)) is not None:
            model = original
            body["model"] = model
        # A request for an adapter goes to a server of its model as it is.
        model = self.router.adapters.get(model, model)
        if model not in self.router.models():
            known = ", ".join(self._names()) or "none"
            return error_response(404, f"the model {model[:200]!r} is not served here; served are: {known}")
        try:
            return await relay(self.router, request, body, model)
        except RecursionError:
            return error_response(400, "the body is nested too deeply")

    def _names(self) -> list[str]:
        served = self.router.models()
        others = [*self.router.config.aliases.items(), *self.router.adapters.items()]
        return [*served, *(name for name, model in others if model in served)]

    async def models(self, _: web.Request) -> web.Response:
        models = [{"id": name, "object": "model", "owned_by": "coralopt"} for name in self._names()]
        return web.json_response({"object": "list", "data": models})

    async def health(self, _: web.Request) -> web.Response:
        state = {model: self.router.serves(model) for model in self.router.models()}
        return web.json_response({"models": state}, status=200 if state and all(state.values()) else 503)

    async def ping(self, _: web.Request) -> web.Response:
        """Alive, whatever the backends are."""
        return web.json_response({})

    async def metrics(self, _: web.Request) -> web.Response:
        self.router.measure(self.history)
        return web.Response(body=self.router.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})
