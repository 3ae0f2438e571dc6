"""More than one process: routers on one port, HAProxy with the plan's weights, and new configurations without loss."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
from runtime_backends import FakeBackend

from coralopt.errors import LaunchError
from coralopt.runtime.router import BackendConfig, RouterConfig, haproxy_configuration

BODY = {"model": "m", "prompt": "p", "max_tokens": 2}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def served(*names: str) -> AsyncIterator[list[FakeBackend]]:
    backends = [FakeBackend(name, weight=weight, slots=20) for name, weight in zip(names, (300.0, 100.0), strict=False)]
    servers = [await backend.start() for backend in backends]
    try:
        yield backends
    finally:
        for server in servers:
            await server.close()


@asynccontextmanager
async def running(url: str, *argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that routes, from its first good answer on."""
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: ask(url, 1), lambda answers: "200" in answers)
        yield process
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def until(look: Callable[[], Awaitable[Counter[str]]], good: Callable[[Counter[str]], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if good(await look()):
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def ask(url: str, count: int) -> Counter[str]:
    """Statuses of so many requests and who answered them, each on a connection of its own."""
    seen: Counter[str] = Counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        for _ in range(count):
            async with session.post(f"{url}/v1/completions", json=BODY) as answer:
                seen[str(answer.status)] += 1
                if answer.status == 200:
                    seen[(await answer.json())["from"]] += 1
    return seen


def write(path: Path, *backends: FakeBackend) -> None:
    config = RouterConfig(backends=tuple(backend.config() for backend in backends), health_interval_s=0.2)
    path.write_text(config.model_dump_json())


def two_processes(path: Path, port: int) -> tuple[str, ...]:
    return sys.executable, "-m", "coralopt", "route", str(path), "--processes", "2", "--port", str(port)


def test_parts_are_the_whole() -> None:
    """Slots and queue of all processes together are those of the plan; nobody is without a slot."""
    backends = tuple(
        BackendConfig(name=str(n), model="m", phase="mixed", url="http://h", weight=1, max_in_flight=n)
        for n in (1, 7, 64)
    )
    parts = [RouterConfig(backends=backends, queue_size=10).part(number, 3) for number in range(3)]
    assert sum(part.queue_size for part in parts) == 10
    slots = [[backend.max_in_flight for backend in part.backends] for part in parts]
    assert [sum(each) for each in zip(*slots, strict=True)] == [3, 7, 64]


def test_several_processes_and_a_new_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes share port and series; SIGHUP gives both other backends and loses nothing; one that dies comes back.

    The admin endpoints stay closed with a key, too: they would change one process of two.
    """
    monkeypatch.setenv("CORALOPT_ADMIN_KEY", "secret")
    path, port = tmp_path / "router.json", free_port()
    url = f"http://127.0.0.1:{port}"

    async def run() -> None:
        async with served("a", "b") as (first, second):
            write(path, first)
            async with running(url, *two_processes(path, port)) as process:
                done = asyncio.create_task(ask(url, 150))
                write(path, second)
                os.kill(process.pid, signal.SIGHUP)
                await until(lambda: ask(url, 6), lambda answers: answers["b"] == 6)
                assert (await done)["200"] == 150
                total = sum(len(backend.bodies) for backend in (first, second))
                async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                headers = {"Authorization": "Bearer secret"}
                async with aiohttp.ClientSession(headers=headers) as admin, admin.get(f"{url}/router/plan") as answer:
                    assert (answer.status, "closed" in await answer.text()) == (403, True)
                counts = [line.split()[1] for line in lines if line.startswith("coralopt_router_requests_total{")]
                assert sum(map(float, counts)) >= total
                routers = [c for c in psutil.Process(process.pid).children(True) if "--share" in _words(c)]
                assert len({c.cmdline()[c.cmdline().index("--share") + 1] for c in routers}) == 2
                await asyncio.sleep(5)
                routers[-1].kill()
                await asyncio.sleep(1)
                assert (await ask(url, 20))["200"] == 20

    asyncio.run(run())
    assert _routes(path) == []


def test_a_new_configuration_reaches_processes_that_are_starting(tmp_path: Path) -> None:
    """SIGHUP is kept for them: none dies of it, and all have read the file as it is now."""
    path, port = tmp_path / "router.json", free_port()
    url = f"http://127.0.0.1:{port}"

    async def run() -> None:
        async with served("a", "b") as (first, second):
            write(path, first)
            process = await asyncio.create_subprocess_exec(*two_processes(path, port), stderr=subprocess.DEVNULL)
            try:
                async with asyncio.timeout(60):
                    while len(routers := _routes(path)) < 2:
                        await asyncio.sleep(0.01)
                write(path, second)
                os.kill(process.pid, signal.SIGHUP)
                await until(lambda: ask(url, 20), lambda answers: answers["b"] == 20)
                assert set(routers) <= set(_routes(path))
            finally:
                process.terminate()
                await asyncio.wait_for(process.wait(), 30)

    asyncio.run(run())


def _routes(path: Path) -> list[int]:
    """Routers with this configuration; not what starts them, of which some end at once."""
    running = [(p.pid, _words(p)) for p in psutil.process_iter()]
    return [pid for pid, words in running if str(path) in words and "--share" in words and "-c" not in words]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_keeps_weights_and_loses_nothing(tmp_path: Path) -> None:
    """The plan's weights to the request, its slots, one model or two; another plan by SIGUSR2 while requests go on."""
    path, port = tmp_path / "haproxy.cfg", free_port()
    url = f"http://127.0.0.1:{port}"

    async def run() -> None:
        async with served("a", "b") as (first, second):
            configs = [backend.config() for backend in (first, second)]
            both = RouterConfig(backends=tuple(configs), health_interval_s=0.2)
            path.write_text(haproxy_configuration(both, "127.0.0.1", port))
            async with running(url, "haproxy", "-W", "-f", str(path)) as process:
                answers = await ask(url, 80)
                assert (answers["200"], answers["a"]) == (80, 60)
                async with aiohttp.ClientSession() as session:
                    body = {**BODY, "stream": True, "max_tokens": 3}
                    async with session.post(f"{url}/v1/completions", json=body) as answer:
                        assert (await answer.text()).endswith("data: [DONE]\n\n")
                    statuses = []
                    for path_of in ("/v1/models", "/health", "/router/plan", "/metrics"):
                        async with session.get(url + path_of) as answer:
                            statuses.append(answer.status)
                    assert statuses == [200, 200, 404, 404]
                two = (configs[1], configs[0].model_copy(update={"model": "n"}))
                path.write_text(haproxy_configuration(RouterConfig(backends=two), "127.0.0.1", port))
                done = asyncio.create_task(ask(url, 200))
                os.kill(process.pid, signal.SIGUSR2)
                await until(lambda: ask(url, 6), lambda answers: answers["b"] == 6)
                assert (await done)["200"] == 200
                async with aiohttp.ClientSession() as session:
                    for model, known in (("n", 200), ("o", 404)):
                        async with session.post(f"{url}/v1/completions", json={**BODY, "model": model}) as answer:
                            assert answer.status == known

    asyncio.run(run())


def test_what_haproxy_cannot_do_is_said() -> None:
    halves = [FakeBackend(phase, phase=phase, connector="NixlConnector") for phase in ("prefill", "decode")]
    for backend in halves:
        backend.url = "http://h:1"
    config = RouterConfig(backends=tuple(backend.config() for backend in halves), affinity="prefix", aliases={"x": "m"})
    with pytest.raises(LaunchError, match="two requests in order") as refused:
        haproxy_configuration(config, "127.0.0.1", 8000)
    assert "aliases" in str(refused.value)
    assert "prefix" in str(refused.value)
