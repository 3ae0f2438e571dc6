"""What the router costs: throughput with and without a queue, CPU a token, large events, uploads, half-open requests.

Router, server and clients are processes of their own that share the cores, so throughputs are lower bounds; CPU times
are the router's own. Beside it, in the same run and in turns: several processes, HAProxy and vllm-router where they are
on the path. What CPU a request costs says how many two cores of their own would answer.

    python benchmarks/router_load.py [--seconds S] [--ways]
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import multiprocessing
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import psutil

from coralopt.runtime.router.events import EventFilter

TOKENS, TOKEN_S, STREAMS = 200, 0.02, 100
BODY = {"model": "m", "prompt": "word " * 50, "max_tokens": 8}
ANSWER = json.dumps({"choices": [{"text": "word"}], "usage": {"prompt_tokens": 50, "completion_tokens": 8}}).encode()
EVENT = b'data: {"id":"cmpl-0123456789","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'


class Server(asyncio.Protocol):
    """Answers every POST at once, or as a stream at a steady pace."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.rest = transport, b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            if len(self.rest) < end + 4 + length:
                return
            body, self.rest = self.rest[end + 4 : end + 4 + length], self.rest[end + 4 + length :]
            if b'"stream": true' in body or b'"stream":true' in body:
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                self._token(int(json.loads(body)["max_tokens"]))
            else:
                answer = ANSWER if body else b"{}"
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(answer), answer)
                )

    def _token(self, left: int) -> None:
        if self.transport.is_closing():
            return
        if left:
            self.transport.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_later(TOKEN_S, self._token, left - 1)
        else:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def serve(port: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        await (await loop.create_server(Server, "127.0.0.1", port, backlog=4096)).serve_forever()

    asyncio.run(run())


def request(body: dict[str, object], path: str = "/v1/completions") -> bytes:
    """One POST as it goes over the wire."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def short_answers(
    port: int, clients: int, seconds: float, cpu_s: Callable[[], float] = lambda: 0.0, warm_s: float = 0.0
) -> tuple[float, float]:
    """Answers/s that ``clients`` connections get, each asking again as soon as it has one, and CPU seconds an answer.

    Both once ``warm_s`` seconds have passed, when all are connected and whoever has to wait does.
    """
    sent, done, end = request(dict(BODY)), 0, time.monotonic() + warm_s + seconds

    async def one() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            done += 1
        writer.close()

    asking = asyncio.gather(*(one() for _ in range(clients)))
    await asyncio.sleep(warm_s)
    begun, first, cpu = time.monotonic(), done, cpu_s()
    await asyncio.sleep(seconds)
    answered, took, cpu = done - first, time.monotonic() - begun, cpu_s() - cpu
    await asking
    return answered / took, cpu / max(1, answered)


async def streams(port: int, count: int, tokens: int = TOKENS) -> None:
    """So many streams at the same time, each read to its end."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request({**BODY, "stream": True, "max_tokens": tokens}))
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()

    await asyncio.gather(*(one() for _ in range(count)))


async def uploads(port: int) -> list[bytes]:
    """Six compressed bodies at once of 100 MB each; the status lines that came back."""
    body = gzip.compress(b" " * (100 * 2**20))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        line = await reader.readline()
        writer.close()
        return line

    return await asyncio.gather(*(one() for _ in range(6)))


async def half_open(port: int, count: int, patience_s: float) -> int:
    """Connections of ``count`` with half a head that are still open after ``patience_s``."""
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in pairs:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: ")

    async def closed(reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                await reader.read()
            return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    states = await asyncio.gather(*(closed(reader) for reader, _ in pairs))
    for _, writer in pairs:
        writer.close()
    return states.count(False)


def large_event_s() -> float:
    """Seconds that an event of 16 MB in pieces of 64 KB takes."""
    event = b'data: {"choices": [{"text": "' + b"x" * 16 * 2**20 + b'"}]}\n\n'
    events, start = EventFilter(show_usage=False), time.perf_counter()
    passed = b"".join(events.feed(event[i : i + 2**16]) for i in range(0, len(event), 2**16))
    assert passed == event
    return time.perf_counter() - start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_of(way: str, configuration: Path, port: int) -> list[str]:
    """What listens at ``port``, for a router's configuration."""
    arguments = ["route", str(configuration), "--port", str(port)]
    route = [sys.executable, "-m", "coralopt", *arguments]
    match way:
        case "coralopt route --processes 2":
            return [*route, "--processes", "2"]
        case "coralopt route without uvloop":
            hidden = (
                "import runpy, sys; sys.modules['uvloop'] = None; runpy.run_module('coralopt', run_name='__main__')"
            )
            return [sys.executable, "-c", hidden, *arguments]
        case "haproxy":
            written = configuration.with_name("haproxy.cfg")
            written.write_bytes(subprocess.run([*route, "--haproxy"], check=True, capture_output=True).stdout)
            return ["haproxy", "-f", str(written)]
        case "vllm-router":
            said = subprocess.run([*route, "--vllm-router"], check=True, capture_output=True, text=True).stdout
            return shlex.split(said.partition("\n")[2].replace("\\\n", " "))
        case "relay":
            server = json.loads(configuration.read_text())["backends"][0]["url"].rpartition(":")[2]
            return [sys.executable, "-m", "benchmarks.token_cost", "--relay", str(port), server]
    return route


class RouterUnderTest:
    """A way from clients to one server, with so many slots."""

    def __init__(self, slots: int, server_port: int, way: str = "coralopt route") -> None:
        backend = {"name": "a", "model": "m", "phase": "mixed", "url": f"http://127.0.0.1:{server_port}", "weight": 1}
        document = {"backends": [{**backend, "max_in_flight": slots}], "queue_size": 4096, "queue_timeout_s": 60}
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "router.json"
        path.write_text(json.dumps(document))
        self._start(way, path)
        for _ in range(600):
            if self.process.poll() is not None:
                # Somebody else may have taken the port.
                self._start(way, path)
            try:
                asyncio.run(short_answers(self.port, 1, 0.05))
                break
            except (OSError, AssertionError, asyncio.IncompleteReadError):
                time.sleep(0.1)
        else:
            raise SystemExit(f"{way} does not answer at port {self.port}")

    def _start(self, way: str, configuration: Path) -> None:
        self.port = free_port()
        command = command_of(way, configuration, self.port)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _all(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> float:
        # The clock of another process (clock_getcpuclockid), which is finer than the hundredths of a second in /proc.
        return sum(time.clock_gettime(~p.pid << 3 | 2) for p in self._all())

    def cpu_of(self, work: Callable[[int], Awaitable[object]]) -> float:
        """CPU seconds that it takes for ``work``."""
        before = self.cpu_s()
        self.run(work)
        return self.cpu_s() - before

    def rss_mb(self) -> float:
        return sum(p.memory_info().rss for p in self._all()) / 2**20

    def run(self, work: Callable[[int], Awaitable[object]]) -> object:
        return asyncio.run(_awaited(work(self.port)))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.folder.cleanup()


def queue(server_port: int, seconds: float, rounds: int = 5) -> None:
    """With and without a standing queue, in turns on one router: the middle one of the rounds' ratios."""
    router = RouterUnderTest(32, server_port)
    # Each pair beside each other, once in each order, so that a machine whose load drifts favours neither.
    measured = [
        {
            c: asyncio.run(short_answers(router.port, c, seconds, router.cpu_s, 2.0))
            for c in (32, 532)[:: 1 - 2 * (n % 2)]
        }
        for n in range(rounds)
    ]
    router.stop()
    for name, clients in (("no queue, 32 clients", 32), ("standing queue of 500", 532)):
        rate, cpu = (median(figures) for figures in zip(*(pair[clients] for pair in measured), strict=True))
        print(f"{name}: {rate:.0f} requests/s, {cpu * 1e6:.0f} us CPU a request")
    rates = [pair[532][0] / pair[32][0] for pair in measured]
    costs = [pair[32][1] / pair[532][1] for pair in measured]
    print(f"throughput with the queue: {median(rates):.0%} by the clock ({listed(rates)}), by CPU {median(costs):.0%}")


def listed(ratios: list[float]) -> str:
    return " ".join(f"{ratio:.0%}" for ratio in ratios)


def ways(server_port: int, seconds: float, rounds: int = 3) -> None:
    """Every way there is, one after another and again: the least CPU that a short answer and a token cost."""
    names = ["coralopt route", "coralopt route --processes 2"]
    names += [name for name in ("haproxy", "vllm-router") if shutil.which(name)]
    requests: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    tokens: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            router = RouterUnderTest(4096, server_port, name)
            rate, cpu = asyncio.run(short_answers(router.port, 32, seconds, router.cpu_s, 1.0))
            rates[name].append(rate)
            requests[name].append(cpu * 1e6)
            tokens[name].append(router.cpu_of(lambda p: streams(p, STREAMS)) / (STREAMS * TOKENS) * 1e6)
            router.stop()
    for name in names:
        least = min(requests[name])
        print(
            f"{name}: {max(rates[name]):.0f} requests/s here, {least:.0f} us CPU a request "
            f"({2e6 / least:.0f}/s on two cores), "
            f"{min(tokens[name]):.1f} us a token"
        )


async def _awaited(work: Awaitable[object]) -> object:
    return await work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ways", action="store_true", help="beside other routers")
    arguments = parser.parse_args()
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    server.start()
    seconds = arguments.seconds
    print(f"{os.cpu_count()} cores")
    if arguments.ways:
        ways(port, seconds)
        server.kill()
        return

    queue(port, seconds)

    router = RouterUnderTest(4096, port)
    cpu = router.cpu_of(lambda p: streams(p, STREAMS)) / (STREAMS * TOKENS)
    print(f"streams: {STREAMS} at {1 / TOKEN_S:.0f} tokens/s each: {cpu * 1e6:.1f} us CPU a token")
    rss = router.rss_mb()
    lines = router.run(uploads)
    print(f"six compressed uploads of 100 MB: {router.rss_mb() - rss:.1f} MB more, {lines[0]!r}")  # type: ignore[index]
    left = router.run(lambda p: half_open(p, 500, 30.0))
    print(f"half-open requests left after 30 s: {left} of 500")
    router.stop()
    server.kill()
    print(f"an event of 16 MB: {large_event_s():.3f} s")


if __name__ == "__main__":
    main()
