"""One request's way: admission, legs, retries, and the answer passed on as it comes."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

from aiohttp import web

from coralopt.routing import work_of
from coralopt.runtime.router.config import RouterConfig
from coralopt.runtime.router.connection import Broken, ServerAnswer
from coralopt.runtime.router.events import EventFilter, asks_for_usage, with_usage
from coralopt.runtime.router.failures import Lost, Refused, error_body, error_response, words_of
from coralopt.runtime.router.legs import (
    PUSH,
    beginning,
    decode_body,
    holds_cache,
    most_output,
    not_transferable,
    prefill_body,
    prompt_tokens,
    push_identity,
    pushed_body,
)
from coralopt.runtime.router.passage import Passage
from coralopt.runtime.router.pool import Backend, BackendPool, Busy, Need
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.tracing import Tracing
from coralopt.types import JsonObject

#: Header that names the instance an answer came from.
INSTANCE_HEADER = "X-Coralopt-Instance"
#: Headers of a request that backends may use; ``X-Request-Id`` always goes with them.
_FORWARDED = ("X-Correlation-Id", "Accept")
#: What is known of a request, for the answer and the log: its id, its model, its tokens (prompt, completion).
ID = web.RequestKey("id", str)
MODEL = web.RequestKey("model", str)
TOKENS: web.RequestKey[tuple[int, int]] = web.RequestKey("tokens")
#: Who makes spans of requests to servers; not there where nobody does.
TRACING = web.RequestKey("tracing", Tracing)


async def relay(router: Router, request: web.Request, body: JsonObject, model: str) -> web.StreamResponse:
    """Answer one request for ``model``; never raises for anything a backend does."""
    journey = _Journey(router, request, body, model)
    request[MODEL] = model
    router.demand.arrived(model)
    try:
        router.admit(model)
        answer = await journey.run()
    except Busy as busy:
        router.metrics.rejected.labels(model, str(busy.status)).inc()
        answer = error_response(busy.status, str(busy), busy.retry_after_s)
    except Refused as refused:
        router.demand.withdrawn(model)
        answer = refused.answer
    except Lost as lost:
        answer = lost.answer
    router.metrics.requests.labels(model, str(answer.status)).inc()
    router.metrics.duration.labels(model).observe(time.monotonic() - journey.started)
    return answer


class _Journey:
    def __init__(self, router: Router, request: web.Request, body: JsonObject, model: str) -> None:
        self.router, self.request, self.body, self.model = router, request, body, model
        self.started = time.monotonic()
        self.headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        self.headers["X-Request-Id"] = request[ID]
        #: Those it failed on, for which it counts once it succeeds elsewhere.
        self.blamed: list[Backend] = []
        self.client_gone = False
        self.first_s = math.nan
        self.key = self._home_key(router.config)
        self.prompt_tokens = prompt_tokens(body)
        self.kind = router.class_of(model, self.prompt_tokens, most_output(body))

    def _home_key(self, config: RouterConfig) -> str | None:
        """What its KV cache is likely to be shared by: the session, or the beginning of the prompt."""
        if config.affinity == "session":
            session = self.request.headers.get(config.session_header) or self.body.get("user")
            return f"{self.model}\n{session}" if isinstance(session, str) else None
        if config.affinity == "prefix":
            return f"{self.model}\n{beginning(self.body, config.prefix_characters)}"
        return None

    async def run(self) -> web.StreamResponse:
        """Try instances until one answers; those that failed are not tried again.

        Raises:
            Lost: The last failure, when nothing is left to try.
            Refused: The request itself is at fault.
            Busy: No instance is up or free in time.
        """
        failed: frozenset[str] = frozenset()
        attempt = 0
        while True:
            try:
                return await self._attempt(failed)
            except Lost as lost:
                failed |= {lost.backend.config.name}
                attempt += 1
                pool = self.router.pools(lost.backend.config.model).get(lost.backend.config.phase)
                others = (pool is not None and pool.up(failed)) or self.router.serves(self.model, failed)
                if attempt > self.router.config.retries or not others:
                    raise
                self.router.metrics.retries.labels(self.model).inc()

    async def _attempt(self, failed: frozenset[str]) -> web.StreamResponse:
        name, mixed = self.router.way_of(self.model, failed)
        pools, wait_s = self.router.pools(name), self.router.config.queue_timeout_s
        if mixed:
            need = self._need("mixed", failed)
            async with pools["mixed"].slot(need, wait_s) as backend:
                return await self._answer(backend, self.body, need)
        self._need_halves(pools)
        connector = pools["prefill"].backends[0].config.connector
        if why := not_transferable(self.body, connector):
            raise Refused(error_response(400, why))
        async with AsyncExitStack() as slots:
            source = await slots.enter_async_context(pools["prefill"].slot(self._need("prefill", failed), wait_s))
            abroad = failed | {b.config.name for b in pools["decode"].backends if not source.config.reaches(b.config)}
            if source.push_identity and pools["decode"].ready(abroad):
                async with pools["decode"].slot(self._need("decode", abroad), wait_s) as backend:
                    return await self._push(slots, source, backend, source.push_identity)
            body = await self._prefilled(source)
        since = time.monotonic()
        async with pools["decode"].slot(self._need("decode", abroad), wait_s) as backend:
            if holds_cache(connector) and time.monotonic() - since > self.router.config.kv_wait_s:
                # The prefill server frees the blocks soon, or has done so.
                far = {b.config.name for b in pools["prefill"].backends if not b.config.reaches(backend.config)}
                async with pools["prefill"].slot(self._need("prefill", failed | far), wait_s) as source:
                    body = await self._prefilled(source)
            return await self._answer(backend, body)

    def _need(self, phase: str, avoid: frozenset[str]) -> Need:
        # A cache comes to a decode instance wherever its session is at home.
        return Need(avoid, *work_of(phase, self.prompt_tokens), None if phase == "decode" else self.key, self.kind)

    async def _prefilled(self, source: Backend) -> JsonObject:
        """The first leg; what the second one is to be asked."""
        connector = source.config.connector
        request = prefill_body(self.body, connector)
        answer = await self._prefill(source, request)
        return decode_body(self.body, connector, request, answer, await self._place(source))

    async def _push(
        self, slots: AsyncExitStack, source: Backend, target: Backend, identity: JsonObject
    ) -> web.StreamResponse:
        """Both legs at once: the decode server waits with its blocks for what the prefill server will write there."""
        request = prefill_body(self.body, PUSH)
        handed = pushed_body(self.body, identity, request, self.headers["X-Request-Id"])
        legs = prefill, decode = (
            asyncio.create_task(self._prefill(source, request)),
            asyncio.create_task(self._answer(target, handed)),
        )
        try:
            await asyncio.wait(legs, return_when=asyncio.FIRST_COMPLETED)
            if not decode.done():
                answer = prefill.result()
                await slots.aclose()
                if source.push_identity != identity:
                    # Another engine under this name since: nobody would write to those blocks.
                    decode.cancel()
                    await asyncio.wait({decode})
                    return await self._answer(target, decode_body(self.body, PUSH, request, answer, {}))
            return await decode
        except Lost:
            source.push_identity = None
            raise
        finally:
            for leg in legs:
                leg.cancel()
            await asyncio.gather(*legs, return_exceptions=True)

    def _need_halves(self, pools: Mapping[str, BackendPool]) -> None:
        for phase in ("prefill", "decode"):
            pool = pools.get(phase)
            if pool is None or not pool.up():
                raise Busy(f"no {phase} instance of this model is up", pool.retry_after_s() if pool else 5, 503)

    async def _prefill(self, backend: Backend, body: JsonObject) -> JsonObject:
        limit = self.router.config.first_token_timeout_s
        try:
            async with backend.within(limit), self._post(backend, body) as answer:
                content = await answer.read()
                self._look_at(backend, answer, content)
        except OSError as error:
            raise self._lost(backend, error) from error
        try:
            first = json.loads(content)
        except ValueError:
            first = None
        if not isinstance(first, dict):
            raise self._failed(backend, "the prefill answer is not a JSON object")
        backend.push_identity = push_identity(backend.config.connector, first)
        self._answered(backend)
        self._count(backend, "ok")
        return first

    async def _place(self, backend: Backend) -> JsonObject:
        """Where a Mooncake prefill server keeps caches; it says so once for all requests."""
        url = backend.config.kv_url
        if url is None:
            return {}
        if backend.engine_id is None:
            try:
                limit_s = self.router.config.health_timeout_s
                async with asyncio.timeout(limit_s), self.router.wire.ask("GET", f"{url}/query") as answer:
                    engines = json.loads(await answer.read())
                    backend.engine_id = str(next(iter(engines.values()))["engine_id"])
            except OSError as error:
                raise self._lost(backend, error) from error
            except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
                raise self._failed(backend, f"{url}/query does not name an engine") from error
        return {"remote_engine_id": backend.engine_id, "remote_bootstrap_addr": url}

    async def _answer(self, backend: Backend, body: JsonObject, need: Need | None = None) -> web.StreamResponse:
        """The leg whose answer the client reads. Before its first byte everything can be tried elsewhere.

        ``need`` is that of a backend that makes the first token, too: work is less once it has.
        """
        limits = self.router.config
        patience_s = limits.first_token_timeout_s if body.get("stream") else limits.answer_timeout_s
        stream: web.StreamResponse | None = None
        try:
            async with backend.within(patience_s) as limit, self._post(backend, with_usage(body)) as answer:
                if answer.status >= 400 or "text/event-stream" not in answer.headers.get("content-type", ""):
                    # Nothing reaches the client before the whole answer is here, so all of it may be tried again.
                    content = await answer.read()
                    self._look_at(backend, answer, content)
                    self._answered(backend)
                    self._seen_first_byte()
                    self._count(backend, "ok")
                    self._count_tokens(_usage_of(content))
                    return _passed_on(backend, answer, content)
                events = EventFilter(asks_for_usage(self.body))
                passage = Passage(answer, events)
                await passage.begin()
                self._answered(backend)
                if need is not None:
                    backend.begun(need)
                backend.waits.discard(limit)
                limit.reschedule(None)
                stream = web.StreamResponse(
                    headers={
                        "Content-Type": "text/event-stream; charset=utf-8",
                        "Cache-Control": "no-cache",
                        "X-Accel-Buffering": "no",
                        INSTANCE_HEADER: backend.config.name,
                    }
                )
                async with self._to_client(limits.idle_timeout_s):
                    await stream.prepare(self.request)
                    self._seen_first_byte()
                    await passage.give_first(stream)
                if not await passage.pour(self.request, limits.idle_timeout_s):
                    self.client_gone = True
                    raise TimeoutError
                if not events.done:
                    raise Broken("the stream ended before its last token")
                async with self._to_client(limits.idle_timeout_s):
                    await stream.write_eof(passage.held())
                self._count(backend, "ok")
                self._count_tokens(events.usage)
                self._count_latencies()
                return stream
        except OSError as error:
            if stream is None:
                raise self._lost(backend, error) from error
            if self.client_gone:
                # It hung up, or does not read: its backend is not to blame.
                if self.request.transport is not None:
                    self.request.transport.abort()
                return stream
            if not isinstance(error, TimeoutError):
                self.router.health.check(backend, doubt=True)
            self._count(backend, "broken")
            await self._break_off(stream, backend, error)
            return stream

    @asynccontextmanager
    async def _to_client(self, seconds: float) -> AsyncIterator[None]:
        """What fails or takes too long here is the client's side, not the backend's."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except OSError:
            self.client_gone = True
            raise

    async def _break_off(self, stream: web.StreamResponse, backend: Backend, error: Exception) -> None:
        """After the first token nothing can be tried again: say so inside the stream, and end it."""
        message = f"instance {backend.config.name} failed in the middle of the answer: {words_of(error)}"
        event = f"data: {json.dumps(error_body(502, message))}\n\n"
        try:
            # The break may have come inside a line.
            await stream.write(b"\n\n" + event.encode())
            await stream.write_eof()
        except ConnectionError:
            pass

    @asynccontextmanager
    async def _post(self, backend: Backend, body: JsonObject) -> AsyncIterator[ServerAnswer]:
        headers = {**self.headers, **self.router.key_header(backend)}
        url, tracing = backend.config.url + self.request.path, self.request.get(TRACING)
        with nullcontext() if tracing is None else tracing.leg(backend.config.phase, backend.config.name, headers):
            async with self.router.wire.ask("POST", url, headers, json.dumps(body).encode()) as answer:
                yield answer

    def _look_at(self, backend: Backend, answer: ServerAnswer, content: bytes) -> None:
        if answer.status < 400:
            return
        passed_on = _passed_on(backend, answer, content)
        if answer.status in (429, 503):
            # An overloaded server is well.
            self._count(backend, "failed")
            raise Lost(backend, f"answered {answer.status}", passed_on)
        if answer.status >= 500:
            raise self._failed(backend, f"answered {answer.status}", passed_on)
        self._answered(backend)
        self._count(backend, "refused")
        raise Refused(passed_on)

    def _answered(self, backend: Backend) -> None:
        self.router.health.answered(backend)
        for failed in self.blamed:
            self.router.health.strike(failed)
        self.blamed.clear()

    def _lost(self, backend: Backend, error: Exception) -> Lost:
        """Its connection broke, or it did not answer in time; being slow is no failure of its."""
        name = backend.config.name
        if isinstance(error, TimeoutError):
            self._count(backend, "failed")
            return Lost(backend, "late", error_response(504, f"instance {name}: {words_of(error)}"))
        self.router.health.check(backend, doubt=True)
        return self._failed(backend, words_of(error))

    def _failed(self, backend: Backend, why: str, answer: web.Response | None = None) -> Lost:
        self._count(backend, "failed")
        self.blamed.append(backend)
        return Lost(backend, why, answer)

    def _count(self, backend: Backend, outcome: str) -> None:
        config = backend.config
        self.router.metrics.legs.labels(config.name, config.model, config.phase, outcome).inc()

    def _seen_first_byte(self) -> None:
        self.first_s = time.monotonic() - self.started
        self.router.metrics.first_byte.labels(self.model).observe(self.first_s)

    def _count_latencies(self) -> None:
        """Of a whole streamed answer: time to first token, and time per output token where its tokens were told."""
        tokens = self.request.get(TOKENS, (0, 0))[1]
        tpot_s = math.nan
        if tokens > 1:
            tpot_s = (time.monotonic() - self.started - self.first_s) / (tokens - 1)
            self.router.metrics.output_token.labels(self.model).observe(tpot_s)
        self.router.latencies.add(self.model, self.first_s, tpot_s)

    def _count_tokens(self, usage: JsonObject | None) -> None:
        values = [(usage or {}).get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
        counts = [value for value in values if isinstance(value, int)]
        if len(counts) < 2:
            return
        prompt, completion = self.request[TOKENS] = (counts[0], counts[1])
        self.router.metrics.prompt_tokens.labels(self.model).inc(prompt)
        self.router.metrics.completion_tokens.labels(self.model).inc(completion)
        if usage is not None:
            self.router.demand.answered(self.model, prompt, completion)


def _passed_on(backend: Backend, answer: ServerAnswer, content: bytes) -> web.Response:
    """A whole answer of a backend, as the client gets it."""
    headers = {
        "Content-Type": answer.headers.get("content-type", "application/json"),
        INSTANCE_HEADER: backend.config.name,
        **{name: answer.headers[name.lower()] for name in ("Retry-After",) if name.lower() in answer.headers},
    }
    return web.Response(body=content, status=answer.status, headers=headers)


def _usage_of(content: bytes) -> JsonObject | None:
    try:
        usage = json.loads(content).get("usage")
    except (ValueError, AttributeError):
        return None
    return usage if isinstance(usage, dict) else None
