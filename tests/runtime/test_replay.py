"""Replaying a trace: a server with known times must be measured as it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from aiohttp import web

from benchmarks.fidelity.replay import Replay, replay
from coralopt.workload import Trace

#: Seconds to the first token and between tokens.
FIRST_S, STEP_S = 0.2, 0.05


def play(trace: Trace, answer: Any) -> tuple[Replay, list[dict[str, Any]]]:
    """Replay against a server on a free port whose answers ``answer`` writes."""
    seen: list[dict[str, Any]] = []

    async def handle(request: Any) -> Any:
        body = await request.json()
        seen.append({**body, "key": request.headers.get("Authorization")})
        return await answer(request, body)

    async def run() -> Replay:
        app = web.Application()
        app.router.add_post("/v1/completions", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            return await replay(f"http://127.0.0.1:{port}", "m", trace, 64, api_key="secret")
        finally:
            await runner.cleanup()

    return asyncio.run(run()), seen


async def stream(request: Any, body: dict[str, Any]) -> Any:
    """Tokens at known times, one without text, then the count, as vLLM streams them."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await asyncio.sleep(FIRST_S)
    for n in range(body["max_tokens"]):
        if n:
            await asyncio.sleep(STEP_S)
        data = {"choices": [{"text": "" if n == 1 else "x"}]}
        await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")
    usage = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
    await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
    return response


def test_times_are_the_servers() -> None:
    """First token after 0.2 s, the others every 0.05 s; requests go out at their times, with the lengths asked for."""
    trace = Trace(np.array([0.0, 0.3, 0.3]), np.array([5, 1, 9]), np.array([6, 1, 11]))
    found, seen = play(trace, stream)
    assert not found.errors
    assert found.tokens.tolist() == [6, 1, 11]
    # Bounds from below are exact; a busy machine is late, never early.
    assert (found.ttft_ms >= 1e3 * FIRST_S - 1).all()
    assert np.isnan(found.tpot_ms[1])
    assert (found.tpot_ms[[0, 2]] >= 1e3 * STEP_S * 0.8).all()
    assert (found.sent_s >= trace.arrival_s - 1e-3).all()
    assert sorted(len(body["prompt"]) for body in seen) == [1, 5, 9]
    assert all(body["ignore_eos"] and body["key"] == "Bearer secret" and max(body["prompt"]) < 64 for body in seen)


def test_failures_are_kept_apart() -> None:
    """A refusal, a broken stream and an empty one have no latencies, and say what happened."""

    async def fail(request: Any, body: dict[str, Any]) -> Any:
        if body["max_tokens"] == 1:
            return web.Response(status=503, text="full")
        text = b'data: {"error": "engine died"}\n\n' if body["max_tokens"] == 2 else b"data: [DONE]\n\n"
        return web.Response(body=text, content_type="text/event-stream")

    found, _ = play(Trace(np.zeros(3), np.ones(3), np.array([1, 2, 3])), fail)
    assert np.isnan(found.ttft_ms).all()
    assert [found.errors[n].split(":")[0] for n in range(3)] == [
        "status 503",
        "ValueError",
        "the stream ended without a token",
    ]
