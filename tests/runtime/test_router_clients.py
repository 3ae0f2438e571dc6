"""What clients see of the router itself: errors, ids, limits, names, HTTPS, and what is written down about them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from runtime_backends import PATIENCE_S, Client, FakeBackend, make_certificate, with_router

from coralopt.cli.launch_options import ListenOptions
from coralopt.errors import LaunchError
from coralopt.runtime.router import RouterConfig
from coralopt.runtime.router.clients import Bucket
from coralopt.runtime.router.doors import Doors, Keys
from coralopt.runtime.router.legs import most_output
from coralopt.runtime.router.metrics import Metrics
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.run import open_doors
from coralopt.runtime.router.tracing import Tracing
from coralopt.types import JsonObject


def raw(*headers: str, line: str = "POST /v1/completions HTTP/1.1") -> bytes:
    """A request as it goes over the wire."""
    return "\r\n".join([line, "Host: h", *headers, "", "{}"]).encode()


@pytest.mark.parametrize(
    ("sent", "status", "word"),
    [
        (b"GARBAGE\r\n\r\n", 400, "method"),
        (raw(line="POST / HTTP/9.9"), 400, "version"),
        (raw("X: " + "y" * 20_000), 400, "8190 bytes"),
        (raw(*(f"X{n}: y" for n in range(1000))), 400, "oo many headers"),
        (raw("no colon"), 400, "header"),
        (raw("Content-Length: 2", "Content-Length: 3"), 400, "Content-Length"),
        (raw("Content-Length: 2", "Transfer-Encoding: chunked"), 400, "Content-Length"),
        (raw("Transfer-Encoding: chunked"), 400, "chunk"),
        (raw("Content-Length: 2", "Expect: 200-ok"), 417, "Expectation"),
        (raw("Content-Length: 2", "Expect: 200-ok", line="POST /nowhere HTTP/1.1"), 417, "Expectation"),
    ],
)
def test_what_is_no_request_is_answered_like_one(
    sent: bytes, status: int, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The web server under the router answers these by itself: they were lines of text, without an id and unlogged."""
    log: list[JsonObject] = []

    async def run() -> bytes:
        config = RouterConfig(backends=())
        async with asyncio.timeout(PATIENCE_S), open_doors(Router(config), Doors(port=0, access_log=log.append)) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = head + await reader.readexactly(length)
            writer.close()
            return answer

    head, _, body = asyncio.run(run()).decode().partition("\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
    assert (head.split()[1], fields["Content-Type"]) == (str(status), "application/json; charset=utf-8")
    error = json.loads(body)["error"]
    assert (error["code"], set(error)) == (status, {"message", "type", "param", "code"})
    assert word in error["message"]
    assert len(error["message"]) <= 300
    assert caplog.text == ""
    assert [(line["status"], line["request_id"]) for line in log] == [(status, fields["X-Request-Id"])]


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


NOWHERE = Path("/nowhere/x.pem")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/v1/completions", b"[" * 100_000, {}, 400),
        ("POST", "/v1/completions", b'{"model": "m", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}", {}, 200),
        ("POST", "/v1/completions", b"{", {"Content-Type": "application/json; charset=klingon"}, 400),
        ("POST", "/v1/completions", b'{"model": "\xff"}', {}, 400),
        ("POST", "/v1/completions", b'{"model": "' + b"x" * 10**6 + b'"}', {}, 404),
        ("POST", "/v1/completions", b'{"model": "m"}', {"Authorization": "Bearer \xe9"}, 200),
        ("GET", "/nowhere", b"", {}, 404),
        ("PUT", "/v1/completions", b"", {}, 405),
        ("GET", "/router/backends", b"", {}, 401),
    ],
)
def test_errors_have_one_form(method: str, path: str, body: bytes, headers: dict[str, str], status: int) -> None:
    """Whatever comes in, no answer of the router is a page or a traceback, and each has an id."""

    async def test(client: Client) -> None:
        async with client.session.request(method, client.url + path, data=body, headers=headers) as answer:
            assert answer.status == status, await answer.text()
            assert answer.headers["X-Request-Id"]
            if status >= 400:
                error = (await answer.json())["error"]
                assert len(error["message"]) < 1000
                assert (error["code"], set(error)) == (status, {"message", "type", "param", "code"})

    with_router([FakeBackend("a")], test)


def test_a_number_of_tokens_beyond_floats() -> None:
    """Servers refuse it; the router failed on it."""
    assert most_output({"max_tokens": 10**4000}) == most_output({}) == math.inf


@pytest.mark.parametrize(("given", "kept"), [("r-1", True), (None, False), ("a b", False), ("x" * 200, False)])
@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_has_an_id(given: str | None, kept: bool, stream: bool) -> None:
    """The client's own where it is sound; the server gets the same."""
    backend = FakeBackend("a")

    async def test(client: Client) -> None:
        headers = {} if given is None else {"X-Request-Id": given}
        body = {"model": "m", "prompt": "p", "stream": stream}
        async with client.session.post(f"{client.url}/v1/completions", json=body, headers=headers) as answer:
            told = answer.headers["X-Request-Id"]
        assert (told == given) == kept
        assert told in backend.headers[0].values()

    with_router([backend], test)


def test_other_names_of_models() -> None:
    """An alias is listed, and the server gets the model's own name."""
    backend = FakeBackend("a")

    async def test(client: Client) -> None:
        assert (await client.ask(model="gpt"))[0] == 200
        assert backend.bodies[0]["model"] == "m"
        listed = json.loads((await client.get("/v1/models"))[1])["data"]
        assert [item["id"] for item in listed] == ["m", "gpt"]
        assert (await client.ask(model="lost"))[0] == 404

    with_router([backend], test, aliases={"gpt": "m", "lost": "gone"})


def test_adapters_go_to_the_servers_of_their_model_as_they_are() -> None:
    """An adapter is listed, and its name stays in the request: the server knows it."""
    backend = FakeBackend("a")

    async def test(client: Client) -> None:
        assert (await client.ask(model="sql"))[0] == 200
        assert backend.bodies[0]["model"] == "sql"
        listed = json.loads((await client.get("/v1/models"))[1])["data"]
        assert [item["id"] for item in listed] == ["m", "sql"]

    with_router([backend], test, adapters={"sql": "m"})


def test_limits_by_key() -> None:
    """Requests and tokens a minute, each key for itself; the key of the environment has none."""
    clients: list[dict[str, Any]] = [
        {"name": "few", "key_sha256": sha256("few"), "requests_per_minute": 2},
        {"name": "short", "key_sha256": sha256("short"), "tokens_per_minute": 20},
    ]

    async def test(client: Client) -> None:
        async def ask(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            body = {"model": "m", "prompt": "p", "max_tokens": 8}
            async with client.session.post(f"{client.url}/v1/completions", json=body, headers=headers) as answer:
                assert answer.status != 429 or int(answer.headers["Retry-After"]) >= 1
                return answer.status

        assert [await ask("few") for _ in range(3)] == [200, 200, 429]
        # An answer has 7 + 8 tokens: the second one is begun with 5 left, and more is owed then.
        assert [await ask("short") for _ in range(3)] == [200, 200, 429]
        assert [await ask("free") for _ in range(5)] == [200] * 5
        assert await ask("stranger") == 401

    with_router([FakeBackend("a")], test, api_key="free", clients=clients)


def test_buckets_fill_at_their_rate() -> None:
    now = 0.0
    bucket = Bucket(60.0, lambda: now)
    bucket.take(90.0)
    assert bucket.wait_s(1.0) == pytest.approx(31.0)
    now = 31.0
    assert bucket.wait_s(1.0) == 0.0
    now = 1000.0
    assert bucket.wait_s(60.0) == 0.0
    assert bucket.wait_s(61.0) == 0.0


def test_the_log_has_no_prompts() -> None:
    """A line a request, refused or answered, with what an operator needs and nothing of what was said."""
    backend = FakeBackend("a")
    lines: list[JsonObject] = []

    async def run() -> None:
        server = await backend.start()
        router = Router(RouterConfig(backends=(backend.config(),)))
        listening = Doors(port=0, keys=Keys(client="key"), access_log=lines.append)
        async with open_doors(router, listening) as url, aiohttp.ClientSession() as session:
            body = {"model": "m", "prompt": "a secret", "max_tokens": 3, "stream": True}
            async with session.post(
                f"{url}/v1/completions", json=body, headers={"Authorization": "Bearer key", "X-Request-Id": "r-1"}
            ) as answer:
                await answer.text()
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                assert answer.status == 401
        await server.close()

    asyncio.run(run())
    first, second = lines
    said = {name: first[name] for name in ("request_id", "client", "model", "instance", "status", "completion_tokens")}
    assert said == {
        "request_id": "r-1",
        "client": "default",
        "model": "m",
        "instance": "a",
        "status": 200,
        "completion_tokens": 3,
    }
    assert (second["status"], second["client"]) == (401, None)
    assert "secret" not in json.dumps(lines)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_costs_log_lines_and_no_request() -> None:
    """The access log cannot be written: clients are answered all the same."""
    doors = ListenOptions(port=0, access_log=Path("/dev/full")).doors()

    async def run() -> None:
        async with (
            open_doors(Router(RouterConfig()), doors) as url,
            aiohttp.ClientSession() as session,
            session.get(f"{url}/ping") as answer,
        ):
            assert answer.status == 200

    asyncio.run(run())


def test_https(tmp_path: Path) -> None:
    """With a certificate the router speaks HTTPS only."""
    context, _ = make_certificate(tmp_path)

    async def run() -> None:
        async with (
            open_doors(Router(RouterConfig()), Doors(port=0, tls=context)) as url,
            aiohttp.ClientSession() as session,
        ):
            assert url.startswith("https://")
            async with session.get(f"{url}/ping", ssl=False) as answer:
                assert answer.status == 200

    asyncio.run(run())


def test_the_documented_series_are_those_there_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "router.md").read_text(encoding="utf-8")
    for family in Metrics().registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}`" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ListenOptions(tls_cert=NOWHERE, tls_key=NOWHERE), "--tls-cert .*--tls-key .*: cannot be used"),
        (ListenOptions(tls_key=NOWHERE), "--tls-key needs --tls-cert"),
        (ListenOptions(access_log=NOWHERE), "--access-log .*: cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named(options: ListenOptions, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        options.doors()


def test_traces_tell_where_requests_went() -> None:
    """A span a request and one a leg, in the trace that the client began; servers are told; prompts are in none."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    backends = [FakeBackend(phase, phase=phase, connector="ExampleConnector") for phase in ("prefill", "decode")]
    begun = "0af7651916cd43dd8448eb211c80319c"

    async def run() -> None:
        servers = [await backend.start() for backend in backends]
        router = Router(RouterConfig(backends=tuple(backend.config() for backend in backends)))
        async with (
            open_doors(router, Doors(port=0, tracing=Tracing(provider))) as url,
            aiohttp.ClientSession(headers={"traceparent": f"00-{begun}-b7ad6b7169203331-01"}) as session,
        ):
            body = {"model": "m", "prompt": "a secret", "max_tokens": 3, "stream": True}
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                assert (await answer.text()).endswith("[DONE]\n\n")
        for server in servers:
            await server.close()

    asyncio.run(run())
    prefill, decode, whole = spans.get_finished_spans()
    assert [span.name for span in (prefill, decode, whole)] == ["prefill", "decode", "POST /v1/completions"]
    assert {f"{span.context.trace_id:032x}" for span in (prefill, decode, whole)} == {begun}
    assert {span.parent.span_id for span in (prefill, decode)} == {whole.context.span_id}
    assert (whole.attributes["coralopt.instance"], whole.attributes["gen_ai.usage.output_tokens"]) == ("decode", 3)
    assert [
        f"{span.context.span_id:016x}" in told.headers[0]["traceparent"]
        for span, told in zip((prefill, decode), backends, strict=True)
    ] == [True, True]
    assert "secret" not in "".join(span.to_json() for span in (prefill, decode, whole))
