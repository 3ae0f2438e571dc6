"""What one client, or one answer, can cost the router."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from runtime_backends import Client, FakeBackend, with_router

from coralopt.runtime.router import BackendConfig, RouterConfig
from coralopt.runtime.router.doors import Doors
from coralopt.runtime.router.events import EventFilter
from coralopt.runtime.router.pool import Backend, BackendPool, Need
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.run import open_doors


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_large_event_is_searched_once(end: bytes) -> None:
    """16 MB in small pieces took 9.8 s when every piece was searched from the start."""
    event = b'data: {"choices": [{"text": "' + b"x" * 16 * 2**20 + b'"}]}' + end
    events, passed = EventFilter(show_usage=False), b""
    for i in range(0, len(event), 2**14):
        passed += events.feed(event[i : i + 2**14])
        assert len(events._rest) - events._seen <= 3
    assert passed == event


def test_a_slot_is_handed_on_whatever_the_queue() -> None:
    """One that becomes free costs one choice, with 2,000 requests waiting as with none."""

    async def run() -> None:
        pool, choices = BackendPool(), 0
        config = BackendConfig(name="a", model="m", phase="mixed", url="http://h:1", weight=1, max_in_flight=1)
        pool.add(Backend(config, healthy=True))
        take = pool._take

        def counted(need: Need) -> Backend | None:
            nonlocal choices
            choices += 1
            return take(need)

        served: list[int] = []

        async def one(number: int) -> None:
            async with pool.slot(Need(), 60.0):
                served.append(number)
                await asyncio.sleep(0)

        pool._take = counted  # type: ignore[method-assign]
        tasks = [asyncio.create_task(one(number)) for number in range(2000)]
        tasks.append(asyncio.create_task(asyncio.sleep(0)))
        tasks[1000].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [number for number in range(2000) if number != 1000]
        assert choices < 5 * 2000
        assert (pool.waiting, pool.backends[0].in_flight) == (0, 0)

    asyncio.run(run())


def test_uploads_are_bounded() -> None:
    """A compressed body is refused unread, one too large before or while it comes."""

    async def test(client: Client) -> None:
        url = f"{client.url}/v1/completions"
        squeezed = gzip.compress(json.dumps({"model": "m", "prompt": "x" * 10**6}).encode())

        async def pieces() -> object:  # type: ignore[misc]
            for _ in range(40):
                yield b" " * 100

        for body, headers, status in (
            (squeezed, {"Content-Encoding": "gzip"}, 415),
            (b" " * 5000, {}, 413),
            (pieces(), {}, 413),
        ):
            async with client.session.post(url, data=body, headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (status, status)
        assert (await client.ask())[0] == 200

    with_router([FakeBackend("a")], test, largest_body=2000)


def test_what_is_no_http_is_refused_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each of these had a trace of forty lines in the log."""

    async def run() -> None:
        async with open_doors(Router(RouterConfig()), Doors(port=0)) as url:
            for words in (
                b"\x16\x03\x01\r\n\r\n",
                b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
                b"GET / HTTP/1.1\r\nContent-Length: -5",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
                writer.write(words + b"\r\n\r\n")
                assert b" 400 " in await reader.readline()
                writer.close()

    asyncio.run(run())
    assert caplog.text == ""


def test_slow_senders_do_not_stay() -> None:
    """Half a head is closed after its time, half a body is answered; who has asked before may pause."""

    async def run() -> None:
        router = Router(RouterConfig(head_timeout_s=0.4, body_timeout_s=0.4))
        async with open_doors(router, Doors(port=0)) as url:
            port = int(url.rsplit(":", 1)[1])
            half = await asyncio.open_connection("127.0.0.1", port)
            half[1].write(b"POST /v1/completions HTTP/1.1\r\nHost: ")
            body = await asyncio.open_connection("127.0.0.1", port)
            body[1].write(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{")
            polite = await asyncio.open_connection("127.0.0.1", port)
            ping = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
            polite[1].write(ping)
            assert (await polite[0].readuntil(b"{}")).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(120):
                assert await half[0].read() == b""
                assert (await body[0].readline()).startswith(b"HTTP/1.1 408")
            polite[1].write(ping)
            assert (await polite[0].readuntil(b"{}")).startswith(b"HTTP/1.1 200")
            for _, writer in (half, body, polite):
                writer.close()

    asyncio.run(run())
