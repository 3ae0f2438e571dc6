"""Whom the router takes for ill, and whom not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from runtime_backends import Client, FakeBackend, until, with_router

NEVER = 60.0


@pytest.mark.parametrize("stream", [False, True])
def test_poison_harms_nobody_else(stream: bool) -> None:
    """A request that every instance answers with 500 takes no instance out: others never see a 503."""

    async def test(client: Client) -> None:
        others: list[int] = []

        async def poison() -> None:
            while len(others) < 300:
                assert (await client.ask(stream=stream, prompt="poison"))[0] == 500

        async def asks() -> None:
            while len(others) < 300:
                others.append((await client.ask(stream=stream, tokens=2))[0])

        await asyncio.gather(poison(), *(asks() for _ in range(4)))
        assert Counter(others)[200] == len(others)
        assert all(backend.healthy for backend in client.router.backends.values())

    with_router([FakeBackend(name) for name in "abc"], test, health_interval_s=NEVER)


def test_poison_leaves_the_only_instance_in_place() -> None:
    """Nobody else can say whose fault it is, so it is the request's."""

    async def test(client: Client) -> None:
        statuses = [(await client.ask(prompt=prompt))[0] for prompt in ["poison"] * 5 + ["p"]]
        assert statuses == [500] * 5 + [200]

    with_router([FakeBackend("a")], test, health_interval_s=NEVER)


def test_slow_answers_are_no_illness() -> None:
    """A whole answer may take longer than a first token; a late first token goes elsewhere and counts against nobody."""
    slow, quick = FakeBackend("slow", weight=100.0, token_s=0.1), FakeBackend("quick")

    async def test(client: Client) -> None:
        status, text, _ = await client.ask(tokens=4)
        assert (status, "slow:3" in text) == (200, True)
        slow.first_s = 0.5
        statuses = [await client.ask(stream=True, tokens=1) for _ in range(4)]
        assert [status for status, _, _ in statuses] == [200] * 4
        assert client.router.backends["slow"].healthy
        quick.first_s = 0.5
        assert (await client.ask(stream=True))[0] == 504

    with_router([slow, quick], test, first_token_timeout_s=0.1, health_interval_s=NEVER)


@pytest.mark.parametrize("failure", ["hang up", 500])
def test_an_instance_that_fails_where_others_succeed_is_left_out(failure: object) -> None:
    """Three requests in a row open its circuit; a good check lets one at a time through, until one is answered."""
    bad, good = FakeBackend("bad", weight=10.0, answer=failure), FakeBackend("good")

    async def test(client: Client) -> None:
        assert [(await client.ask())[0] for _ in range(8)] == [200] * 8
        assert len(bad.bodies) == 3
        state = client.router.backends["bad"]
        assert not state.healthy
        await client.router.health.check_all()
        assert (state.healthy, state.on_trial) == (True, True)
        bad.token_s = 0.05
        assert [status for status, _, _ in await asyncio.gather(*(client.ask() for _ in range(8)))] == [200] * 8
        assert (len(bad.bodies), state.healthy) == (4, False)
        bad.answer = "ok"
        await client.router.health.check_all()
        await asyncio.gather(*(client.ask() for _ in range(8)))
        assert (bad.most_at_once, state.healthy, state.on_trial) == (1, True, False)
        await asyncio.gather(*(client.ask() for _ in range(8)))
        assert bad.most_at_once > 1

    with_router([bad, good], test, health_interval_s=NEVER)


def test_failures_apart_do_not_open_a_circuit() -> None:
    """Only failures in a row count."""
    flaky, good = FakeBackend("flaky"), FakeBackend("good")

    async def test(client: Client) -> None:
        for number in range(20):
            flaky.answer = "ok" if number % 4 < 2 else 500
            assert (await client.ask())[0] == 200
        assert client.router.backends["flaky"].healthy

    with_router([flaky, good], test, health_interval_s=NEVER)


def test_who_waits_for_an_instance_that_hangs_goes_elsewhere() -> None:
    """A stopped process keeps its connections; the health checks that it does not answer end the waiting."""
    hung, good = FakeBackend("hung", weight=10.0), FakeBackend("good")

    async def test(client: Client) -> None:
        hung.first_s = hung.health_s = NEVER
        answers = await asyncio.gather(*(client.ask(stream=bool(n % 2)) for n in range(6)))
        assert {(status, headers["X-Coralopt-Instance"]) for status, _, headers in answers} == {(200, "good")}
        hung.first_s = hung.health_s = 0.0

    with_router([hung, good], test, health_timeout_s=0.1)


def test_nobody_listening_is_seen_at_once() -> None:
    """A dead process refuses connections: no request but the one that notices meets it."""
    dead, good = FakeBackend("dead", weight=10.0), FakeBackend("good")

    async def test(client: Client) -> None:
        await dead.server.close()
        assert (await client.ask())[0] == 200
        await until(lambda: not client.router.backends["dead"].healthy)

    with_router([dead, good], test, health_interval_s=NEVER)
