"""The router as a web application."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from coralopt.errors import CoraloptError, LaunchError
from coralopt.runtime.router.config import BackendConfig
from coralopt.runtime.router.relay import error_response, relay
from coralopt.runtime.router.router import Router

ROUTER = web.AppKey("router", Router)
#: Largest request body, bytes.
LARGEST_BODY = 32 * 2**20
#: Paths that need no key, as in vLLM.
_OPEN = frozenset({"/health", "/ping", "/metrics"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


#: Takes a plan document as JSON text, makes the servers follow it, and says what changed.
Apply = Callable[[str], Awaitable[dict[str, Any]]]
#: The plan that the servers follow, as JSON data.
Describe = Callable[[], dict[str, Any]]


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
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), api_key.encode()):
                return error_response(401, "the API key is missing or wrong", "authentication_error")
        elif request.path.startswith("/router/") and not _is_local(request):
            return error_response(403, "without an API key only this machine may manage backends", "permission_error")
        return await handler(request)

    app = web.Application(middlewares=[guard], client_max_size=LARGEST_BODY)
    app[ROUTER] = router

    async def life(_: web.Application) -> Any:
        await router.start()
        yield
        await router.stop()

    app.cleanup_ctx.append(life)
    if apply is not None:
        app.router.add_post("/router/plan", _applying(apply))
    if describe is not None:
        app.router.add_get("/router/plan", _describing(describe))
    app.router.add_post("/v1/completions", _complete)
    app.router.add_post("/v1/chat/completions", _complete)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _health)
    app.router.add_get("/ping", _ping)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/router/demand", _demand)
    app.router.add_get("/router/backends", _backends)
    app.router.add_post("/router/backends", _add)
    app.router.add_post("/router/backends/{name}/drain", _drain)
    app.router.add_delete("/router/backends/{name}", _remove)
    return app


def _is_local(request: web.Request) -> bool:
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False


async def _complete(request: web.Request) -> web.StreamResponse:
    router = request.app[ROUTER]
    try:
        body = await request.json()
    except (ValueError, UnicodeDecodeError):
        return error_response(400, "the body is not JSON", "invalid_request_error")
    model = body.get("model") if isinstance(body, dict) else None
    if not isinstance(model, str):
        return error_response(400, "the body must be a JSON object with a model name", "invalid_request_error")
    if model not in router.models():
        known = ", ".join(router.models()) or "none"
        return error_response(404, f"the model {model!r} is not served here; served are: {known}", "not_found_error")
    return await relay(router, request, body, model)


async def _models(request: web.Request) -> web.Response:
    models = [{"id": name, "object": "model", "owned_by": "coralopt"} for name in request.app[ROUTER].models()]
    return web.json_response({"object": "list", "data": models})


async def _health(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    state = {model: router.serves(model) for model in router.models()}
    return web.json_response({"models": state}, status=200 if state and all(state.values()) else 503)


async def _ping(request: web.Request) -> web.Response:
    """Alive, whatever the backends are."""
    return web.json_response({})


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[ROUTER].metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


async def _demand(request: web.Request) -> web.Response:
    return web.json_response(request.app[ROUTER].demand.document())


async def _backends(request: web.Request) -> web.Response:
    states = [
        {
            **backend.config.model_dump(mode="json"),
            "healthy": backend.healthy,
            "draining": backend.draining,
            "in_flight": backend.in_flight,
        }
        for backend in request.app[ROUTER].backends.values()
    ]
    return web.json_response({"backends": states})


async def _add(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    try:
        backend = router.add(BackendConfig.model_validate(json.loads(await request.text())))
    except (ValueError, ValidationError, LaunchError) as error:
        return error_response(400, str(error), "invalid_request_error")
    await router.check_all()
    return web.json_response({"name": backend.config.name, "healthy": backend.healthy}, status=201)


def _applying(apply: Apply) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            # A client that goes away must not leave servers half changed.
            changes = await asyncio.shield(apply(await request.text()))
        except CoraloptError as error:
            return error_response(409, str(error), "conflict_error")
        return web.json_response(changes)

    return handle


def _describing(describe: Describe) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(describe())

    return handle


async def _drain(request: web.Request) -> web.Response:
    try:
        seconds = float(request.query.get("timeout_s", "120"))
        idle = await request.app[ROUTER].drain(request.match_info["name"], seconds)
    except ValueError:
        return error_response(400, "timeout_s must be a number of seconds", "invalid_request_error")
    except LaunchError as error:
        return error_response(404, str(error), "not_found_error")
    return web.json_response({"name": request.match_info["name"], "idle": idle})


async def _remove(request: web.Request) -> web.Response:
    try:
        request.app[ROUTER].remove(request.match_info["name"])
    except LaunchError as error:
        return error_response(404, str(error), "not_found_error")
    return web.json_response({"name": request.match_info["name"], "removed": True})
