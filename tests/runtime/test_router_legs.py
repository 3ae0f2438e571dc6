"""The two legs of a disaggregated request: the time between them, both at once, and what cannot be handed over."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from runtime_backends import Client, FakeBackend, until, with_router

PUSH = "NixlPushConnector"


def halves(connector: str) -> list[FakeBackend]:
    return [
        FakeBackend("p", phase="prefill", connector=connector),
        FakeBackend("d", phase="decode", connector=connector),
    ]


def test_the_longest_pause_inside_an_answer() -> None:
    """It counts from the first byte on, however long the first byte may take, and also for a client that does not read."""
    backend = FakeBackend("a", token_s=0.6, first_s=0.6)

    async def test(client: Client) -> None:
        status, text, _ = await client.ask(stream=True)
        assert (status, '"code": 502' in text, "a:1" in text) == (200, True, False)
        backend.token_s = 0.0
        assert (await client.ask(stream=True))[1].endswith("[DONE]\n\n")
        assert client.router.backends["a"].healthy
        backend.padding = "x" * 2**20
        body = {"model": "m", "prompt": "p", "max_tokens": 40, "stream": True}
        async with client.session.post(f"{client.url}/v1/completions", json=body) as answer:
            await until(lambda: client.router.backends["a"].in_flight == 0)
            answer.close()

    with_router([backend], test, idle_timeout_s=0.3, first_token_timeout_s=5)


@pytest.mark.parametrize(
    ("connector", "prefills"), [("NixlConnector", 3), ("MooncakeConnector", 3), ("ExampleConnector", 2)]
)
def test_a_cache_that_waited_too_long_is_made_again(connector: str, prefills: int) -> None:
    """A prefill server frees its blocks after a while; a decode slot that comes later than the limit gets new ones."""
    prefill, decode = halves(connector)
    decode.slots, decode.first_s = 1, 1.2

    async def test(client: Client) -> None:
        answers = await asyncio.gather(client.ask(), client.ask(prompt="q"))
        assert [status for status, _, _ in answers] == [200, 200]
        assert len(prefill.bodies) == prefills
        assert len(decode.bodies) == 2
        if connector == "MooncakeConnector":
            last = prefill.bodies[-1]["kv_transfer_params"]["transfer_id"]
            assert decode.bodies[-1]["kv_transfer_params"]["transfer_id"] == last

    with_router([prefill, decode], test, kv_wait_s=0.6)


def test_push_legs_go_at_once() -> None:
    """Once a prefill server has said who it is, decode waits for the push while prefill works; both carry one number."""
    prefill, decode = halves(PUSH)

    async def test(client: Client) -> None:
        assert (await client.ask())[0] == 200
        # The prefill server answers only after the decode server was asked.
        prefill.pushed = asyncio.Event()
        task = asyncio.create_task(client.ask(stream=True))
        await until(lambda: len(decode.bodies) == 2)
        prefill.pushed.set()
        decode_first = decode.bodies[-1]["kv_transfer_params"]
        assert (await task)[0] == 200
        asked = prefill.bodies[-1]["kv_transfer_params"]
        assert decode_first["transfer_id"] == asked["transfer_id"]
        assert (decode_first["remote_engine_id"], decode_first["do_remote_prefill"]) == ("p", True)
        ids = {
            value for b in (prefill, decode) for name, value in b.headers[-1].items() if name.lower() == "x-request-id"
        }
        assert ids == {decode_first["remote_request_id"]}
        await until(lambda: client.router.backends["p"].in_flight == 0)

    with_router([prefill, decode], test)


@pytest.mark.parametrize("failure", [500, 400, "hang up", "restarted"])
def test_a_push_that_fails(failure: Any) -> None:
    """A prefill server that fails takes the waiting decode leg back; one that is another engine now gets a new one."""
    prefill, decode = halves(PUSH)

    async def test(client: Client) -> None:
        assert (await client.ask())[0] == 200
        decode.pushed = asyncio.Event()
        if failure == "restarted":
            prefill.engine_id, prefill.first_s = "new", 0.1
            task = asyncio.create_task(client.ask())
            await until(lambda: len(decode.bodies) == 3)
            decode.pushed.set()
            assert (await task)[0] == 200
            assert decode.bodies[-1]["kv_transfer_params"]["remote_engine_id"] == "new"
            assert len(prefill.bodies) == 2
        else:
            prefill.answer, prefill.first_s = failure, 0.1
            assert (await client.ask())[0] == (502 if failure == "hang up" else failure)
        assert [b.in_flight for b in client.router.backends.values()] == [0, 0]
        decode.pushed.set()

    with_router([prefill, decode], test)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": [[1, 2], [3]]}, "several prompts"),
        ({"prompt_embeds": ["YQ==", "Yg=="]}, "several prompts"),
        ({"n": 2}, "n = 2"),
        ({"n": "2"}, "n = 2"),
        ({"n": 2.0}, "n = 2.0"),
        ({"best_of": 3}, "best_of = 3"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt": ["a"]}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"n": 1}, None),
    ],
)
def test_what_cannot_be_handed_over_is_refused(more: dict[str, Any], words: str | None) -> None:
    """Several sequences would share blocks that are handed over once; a mixed instance serves them."""

    async def test(client: Client) -> None:
        status, text, _ = await client.ask(**more)
        assert status == (200 if words is None else 400)
        assert words is None or words in json.loads(text)["error"]["message"]

    with_router(halves("NixlConnector"), test)

    async def mixed(client: Client) -> None:
        assert (await client.ask(**more))[0] == 200

    with_router([FakeBackend("a")], mixed)
