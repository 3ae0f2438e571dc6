"""Backends inside the test process that answer, fail and die on command."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coralopt.runtime.router import BackendConfig, RouterConfig
from coralopt.runtime.router.admin import PlanHooks
from coralopt.runtime.router.app import make_app
from coralopt.runtime.router.doors import Doors, Keys
from coralopt.runtime.router.router import Router

#: The admin key of routers under test.
ADMIN = "admin"
#: Longest time for whatever a test waits for; much more than it takes on an idle machine.
PATIENCE_S = 120.0
AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}


@dataclass
class FakeBackend:
    """An OpenAI server of a few lines.

    Attributes:
        name: Written into its answers.
        phase: ``"mixed"``, ``"prefill"`` or ``"decode"``.
        weight: For the router.
        slots: For the router.
        answer: ``"ok"``; an HTTP status to answer with; ``"hang up"`` before the answer; ``"break"`` after two tokens. The
            prompt ``"poison"`` is always answered with 500.
        token_s: Seconds a token.
        first_s: Seconds before anything is answered.
        health_s: Seconds before ``/health`` is answered.
        healthy: Whether ``/health`` answers 200.
        padding: Put into every token.
        engine_id: What a prefill server calls itself; its name by default.
        pushed: Waited for before anything is answered, as for a push.
        region, decode_regions: As in :class:`BackendConfig`.
        bodies: Requests seen.
        most_at_once: Largest number of requests at the same time.
        cancelled: Requests whose client went away.
    """

    name: str
    phase: str = "mixed"
    weight: float = 1.0
    slots: int = 1000
    model: str = "m"
    connector: str | None = None
    answer: Any = "ok"
    token_s: float = 0.0
    first_s: float = 0.0
    health_s: float = 0.0
    healthy: bool = True
    padding: str = ""
    engine_id: str | None = None
    pushed: asyncio.Event | None = None
    region: str | None = None
    decode_regions: tuple[str, ...] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    cancelled: int = 0
    asked_who: int = 0
    _now: int = 0

    async def start(self) -> TestServer:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/query", self._query)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        server = TestServer(app)
        await server.start_server()
        self.url = str(server.make_url("")).rstrip("/")
        self.server = server
        return server

    def config(self) -> BackendConfig:
        return BackendConfig(
            name=self.name,
            model=self.model,
            phase=self.phase,  # type: ignore[arg-type]
            url=self.url,
            weight=self.weight,
            max_in_flight=self.slots,
            connector=self.connector,
            region=self.region,
            decode_regions=self.decode_regions,
            kv_url=self.url if (self.connector, self.phase) == ("MooncakeConnector", "prefill") else None,
        )

    async def _health(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.health_s)
        return web.Response(status=200 if self.healthy else 503)

    async def _query(self, request: web.Request) -> web.Response:
        """As Mooncake's bootstrap server answers."""
        self.asked_who += 1
        return web.json_response({"0": {"engine_id": f"engine-{self.name}", "worker_addr": {"0": {"0": "x"}}}})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await self._respond(request, body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._now -= 1

    async def _respond(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(self.first_s)
        if self.pushed is not None:
            await self.pushed.wait()
        if body.get("prompt") == "poison":
            return web.json_response({"error": {"message": "poison"}}, status=500)
        if isinstance(self.answer, int):
            return web.json_response({"error": {"message": f"{self.name} says {self.answer}"}}, status=self.answer)
        if self.answer == "hang up":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        count = int(body.get("max_tokens", 4))
        words = [f"{self.name}:{index} {self.padding}" for index in range(count)]
        if not body.get("stream"):
            await asyncio.sleep(self.token_s * count)
            if self.answer == "break":
                assert request.transport is not None
                request.transport.close()
            document: dict[str, Any] = {"choices": [{"text": "".join(words)}], "from": self.name}
            document["usage"] = {"prompt_tokens": 7, "completion_tokens": count}
            if self.phase == "prefill":
                params = {"do_remote_prefill": True, "remote_engine_id": self.engine_id or self.name}
                if self.connector == "NixlPushConnector":
                    params |= {"transfer_mode": "push", "remote_host": "h", "remote_port": 5600, "tp_size": 1}
                document["kv_transfer_params"] = params
            return web.json_response(document)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for index, word in enumerate(words):
            if self.answer == "break" and index == 2:
                assert request.transport is not None
                request.transport.close()
                return stream
            await stream.write(f"data: {json.dumps({'choices': [{'text': word}]})}\n\n".encode())
            await asyncio.sleep(self.token_s)
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 7, "completion_tokens": count}
            await stream.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        return stream


@dataclass
class Client:
    """A client of the router under test."""

    session: aiohttp.ClientSession
    url: str
    router: Router
    app: web.Application

    async def ask(self, stream: bool = False, tokens: int = 4, **more: Any) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers of one completion."""
        body = {"model": "m", "prompt": "p", "max_tokens": tokens, **({"stream": True} if stream else {}), **more}
        headers = body.pop("headers", None)
        async with self.session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            return answer.status, await answer.text(), dict(answer.headers)

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self.session.get(self.url + path, **more) as answer:
            return answer.status, await answer.text()


async def until(holds: Callable[[], object]) -> None:
    """Wait until that is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def send_admin(client: Client, method: str, path: str, **more: Any) -> Any:
    """A request about backends, with the admin key."""
    return client.session.request(method, f"{client.url}/router/backends{path}", headers=AS_ADMIN, **more)


def with_router(
    backends: list[FakeBackend],
    test: Callable[[Client], Awaitable[None]],
    api_key: str | None = None,
    *,
    doors: Doors | None = None,
    hooks: PlanHooks | None = None,
    **limits: Any,
) -> None:
    """Run ``test`` against a router in front of ``backends``, everything on ports the system picks."""

    async def run() -> None:
        servers = [await backend.start() for backend in backends]
        config = RouterConfig(
            backends=tuple(backend.config() for backend in backends), **{"health_interval_s": 0.05, **limits}
        )
        router = Router(config)
        app = make_app(router, doors or Doors(keys=Keys(api_key, ADMIN)), hooks)
        server = TestServer(app)
        try:
            await server.start_server()
            async with aiohttp.ClientSession() as session:
                await test(Client(session, str(server.make_url("")).rstrip("/"), router, app))
        finally:
            await server.close()
            for each in servers:
                await each.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def make_certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server, and of a client that believes anybody; skips the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    names = [str(folder / name) for name in ("key.pem", "cert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*command, "-keyout", names[0], "-out", names[1]], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(names[1], names[0])
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


def count(client: Client, name: str, **labels: str) -> float:
    """A metric's value; 0 when it has none yet."""
    return client.router.metrics.registry.get_sample_value(f"coralopt_router_{name}", labels) or 0.0
