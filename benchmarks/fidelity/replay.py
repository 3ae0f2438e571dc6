"""Play a request trace against a server with an OpenAI API and take the times of every token."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass

import aiohttp
import numpy as np

from coralopt.types import Floats, Ints, Progress
from coralopt.workload import Trace


@dataclass(frozen=True)
class Replay:
    """What became of the requests of a trace, one entry a request.

    Attributes:
        sent_s: float64 (n,), when each was really sent, s after the start.
        ttft_ms: float64 (n,), first token - sending, ms; NaN when it failed.
        tpot_ms: float64 (n,), (last token - first token) / (tokens - 1), ms; NaN for one token or a failure.
        tokens: int64 (n,), tokens that came; 0 when it failed.
        errors: Number of the request -> what went wrong.
    """

    sent_s: Floats
    ttft_ms: Floats
    tpot_ms: Floats
    tokens: Ints
    errors: dict[int, str]


async def replay(
    url: str,
    model: str,
    trace: Trace,
    vocabulary: int,
    *,
    seed: int = 0,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> Replay:
    """Send every request of ``trace`` at its time, with random token numbers as prompt, and read the answer as a stream.

    Args:
        url: Base address of the server or router, without ``/v1``.
        model: Name to ask for.
        trace: Arrivals and lengths; answers are made exactly as long (``ignore_eos``).
        vocabulary: Token numbers are drawn below it.
        seed: Of the prompts.
        api_key: Sent as bearer token when given.
        timeout_s: Longest answer, s.
        progress: Called with (what, done, total).
    """
    draw = random.Random(seed)
    count = len(trace.arrival_s)
    prompts = [[draw.randrange(1, vocabulary) for _ in range(int(n))] for n in trace.input_tokens]
    sent, ttft, tpot = (np.full(count, np.nan) for _ in range(3))
    tokens = np.zeros(count, dtype=np.int64)
    errors: dict[int, str] = {}
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = aiohttp.ClientTimeout(total=timeout_s)
    answered = 0

    async def one(session: aiohttp.ClientSession, number: int, start: float) -> None:
        nonlocal answered
        await asyncio.sleep(max(0.0, start + float(trace.arrival_s[number]) - time.perf_counter()))
        body = {"model": model, "prompt": prompts[number], "max_tokens": int(trace.output_tokens[number])}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        begun = time.perf_counter()
        sent[number] = begun - start
        try:
            async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                if answer.status != 200:
                    errors[number] = f"status {answer.status}: {(await answer.text())[:200]}"
                    return
                first, last, received = await _read(answer.content)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            errors[number] = f"{type(error).__name__}: {error}"
            return
        finally:
            answered += 1
            if progress is not None:
                progress("requests answered", answered, count)
        if received < 1:
            errors[number] = "the stream ended without a token"
            return
        tokens[number], ttft[number] = received, 1e3 * (first - begun)
        if received > 1:
            tpot[number] = 1e3 * (last - first) / (received - 1)

    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.perf_counter() + 0.5
        await asyncio.gather(*(one(session, number, start) for number in range(count)))
    return Replay(sent, ttft, tpot, tokens, errors)


async def _read(stream: aiohttp.StreamReader) -> tuple[float, float, int]:
    """(time of the first token, of the last, tokens) of a stream of server-sent events."""
    first = last = 0.0
    tokens = 0
    async for line in stream:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        data = json.loads(line[6:])
        if "error" in data:
            raise ValueError(f"the server broke off: {str(data['error'])[:200]}")
        if data.get("choices"):
            last = time.perf_counter()
            first = first or last
        if data.get("usage"):
            tokens = int(data["usage"]["completion_tokens"])
    return first, last, tokens
