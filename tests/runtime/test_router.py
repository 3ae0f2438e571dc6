"""The router against backends that answer, fail and die on command."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_backends import AS_ADMIN, PATIENCE_S, Client, FakeBackend, count, send_admin, until, with_router

from coralopt.errors import LaunchError
from coralopt.runtime.router import BackendConfig, RouterConfig, vllm_router_commands
from coralopt.runtime.router.events import EventFilter


def test_weighted_shares_within_5_percent() -> None:
    """Instances get requests in proportion to T(tau) (paper, section 5.1)."""
    backends = [FakeBackend("a", weight=7495.0), FakeBackend("b", weight=2500.0), FakeBackend("c", weight=5.0)]

    async def test(client: Client) -> None:
        answers = await asyncio.gather(*(client.ask() for _ in range(400)))
        assert {status for status, _, _ in answers} == {200}
        shares = Counter(headers["X-Coralopt-Instance"] for _, _, headers in answers)
        for backend in backends:
            assert abs(shares[backend.name] / 400 - backend.weight / 10000) < 0.05

    with_router(backends, test)


@pytest.mark.parametrize(
    ("affinity", "same", "other"),
    [
        ("session", {"user": "me"}, {}),
        ("session", {"headers": {"X-Session-Id": "me"}, "user": "many"}, {}),
        ("prefix", {"prompt": "You are a clerk." * 8 + "One."}, {"prompt": "You are a clerk." * 8 + "Two."}),
        ("prefix", {"prompt": None, "messages": [{"content": "You are a clerk." * 8}, {"content": "1"}]}, {}),
    ],
)
def test_requests_stay_where_their_cache_is(affinity: str, same: dict[str, object], other: dict[str, object]) -> None:
    """One session, or one beginning, one instance of prefill; different ones spread."""
    backends = [FakeBackend(name, phase="prefill", connector="ExampleConnector") for name in "abcd"]
    decode = FakeBackend("z", phase="decode", connector="ExampleConnector")

    async def test(client: Client) -> None:
        for number in range(6):
            assert (await client.ask(**{**same, **(other if number % 2 else {})}))[0] == 200
        assert sorted(len(backend.bodies) for backend in backends) == [0, 0, 0, 6]
        for number in range(30):
            assert (await client.ask(prompt=f"{number} is the number", user=str(number)))[0] == 200
        assert all(len(backend.bodies) > 1 for backend in backends)
        assert len(decode.bodies) == 36

    with_router([*backends, decode], test, affinity=affinity, prefix_characters=100)


def test_requests_are_split_over_both_modes_as_planned() -> None:
    """A model in mode auto: the plan's share is mixed, the rest takes two legs; a mode that is down is passed over."""
    backends = [
        FakeBackend("whole", "mixed"),
        FakeBackend("first", "prefill", connector="NixlConnector"),
        FakeBackend("last", "decode", connector="NixlConnector"),
    ]

    async def test(client: Client) -> None:
        async def shares(asked: int) -> Counter[str]:
            answers = [await client.ask() for _ in range(asked)]
            assert {status for status, _, _ in answers} == {200}
            return Counter(headers["X-Coralopt-Instance"] for _, _, headers in answers)

        assert await shares(40) == {"whole": 10, "last": 30}
        backends[1].answer = 500
        assert await shares(8) == {"whole": 8}
        backends[1].answer, backends[0].answer = "ok", "hang up"
        assert (await shares(8))["last"] == 8

    with_router(backends, test, mixed_share={"m": 0.25}, unhealthy_after=100)


def test_streams_pass_through_as_they_come() -> None:
    """A client sees the first token long before the last one exists."""
    backend = FakeBackend("a", token_s=0.05)

    async def test(client: Client) -> None:
        body = {"model": "m", "prompt": "p", "max_tokens": 5, "stream": True}
        arrivals = []
        async with client.session.post(f"{client.url}/v1/completions", json=body) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    arrivals.append((backend._now, json.loads(line[6:])))
        assert [event["choices"][0]["text"] for _, event in arrivals[:5]] == [f"a:{n} " for n in range(5)]
        assert arrivals[0][0] == 1, "the server is at it still"
        assert count(client, "completion_tokens_total", model="m") == 5

    with_router([backend], test)


def test_request_ids_reach_every_backend() -> None:
    """`X-Request-Id` and what else names a request goes on, to both legs; cookies and unknown headers stay here."""
    mixed = FakeBackend("a")
    halves = [FakeBackend(phase[0], phase=phase, connector="NixlConnector") for phase in ("prefill", "decode")]
    sent = {"X-Request-Id": "r-1", "X-Correlation-Id": "c-1", "Accept": "text/event-stream"}

    for backends in ([mixed], halves):

        async def test(client: Client) -> None:
            for stream in (False, True):
                body = {"model": "m", "prompt": "p", "max_tokens": 2, "stream": stream}
                headers = {**sent, "Cookie": "a=b", "X-Other": "x"}
                async with client.session.post(f"{client.url}/v1/completions", json=body, headers=headers) as answer:
                    assert (answer.status, await answer.text() != "") == (200, True)

        with_router(backends, test)
    for backend in (mixed, *halves):
        assert len(backend.headers) == 2
        for headers in backend.headers:
            received = {name.lower(): value for name, value in headers.items()}
            assert {name: received.get(name.lower()) for name in sent} == sent
            assert not {"cookie", "x-other"} & set(received)


def test_two_legs() -> None:
    """Prefill answers one token and says where the KV cache lies; decode gets the request and that word."""
    prefill = FakeBackend("p", phase="prefill", connector="NixlConnector")
    decode = FakeBackend("d", phase="decode", connector="NixlConnector")

    async def test(client: Client) -> None:
        status, text, headers = await client.ask(stream=True, tokens=3, stream_options={"include_usage": True})
        assert status == 200
        assert "d:2" in text
        assert headers["X-Coralopt-Instance"] == "d"
        (asked,), (handed,) = prefill.bodies, decode.bodies
        assert asked["max_tokens"] == 1
        assert asked["stream"] is False
        assert "stream_options" not in asked
        assert asked["kv_transfer_params"]["do_remote_decode"] is True
        assert handed["kv_transfer_params"] == {"do_remote_prefill": True, "remote_engine_id": "p"}
        assert handed["max_tokens"] == 3
        assert handed["stream"] is True

    with_router([prefill, decode], test)


def test_caches_stay_where_the_plan_keeps_them() -> None:
    """A decode server in a region that a prefill server may not send to gets none of its requests, busy or not."""
    halves = [
        FakeBackend(
            f"{phase[0]}-{region}", phase=phase, connector="NixlConnector", region=region, decode_regions=regions
        )
        for phase, region, regions in (
            ("prefill", "a", ("a",)),
            ("prefill", "b", ("a", "b")),
            ("decode", "a", ()),
            ("decode", "b", ()),
        )
    ]

    async def test(client: Client) -> None:
        for _ in range(24):
            assert (await client.ask())[0] == 200
        taken = {backend.name: backend.bodies for backend in halves}
        sources = [body["kv_transfer_params"]["remote_engine_id"] for body in taken["d-b"]]
        assert sources
        assert set(sources) == {"p-b"}
        assert taken["p-a"]
        assert len(taken["d-a"]) + len(taken["d-b"]) == 24

    with_router(halves, test)


def test_two_legs_over_mooncake() -> None:
    """Both legs carry one transfer number; the prefill server is asked once who it is, and again after it was ill."""
    prefill = FakeBackend("p", phase="prefill", connector="MooncakeConnector")
    decode = FakeBackend("d", phase="decode", connector="MooncakeConnector")

    async def test(client: Client) -> None:
        for _ in range(2):
            assert (await client.ask())[0] == 200
        for asked, handed in zip(prefill.bodies, decode.bodies, strict=True):
            sent, taken = asked["kv_transfer_params"], handed["kv_transfer_params"]
            assert (sent["do_remote_decode"], taken["do_remote_prefill"]) == (True, True)
            assert sent["transfer_id"] == taken["transfer_id"]
            assert taken["remote_engine_id"] == "engine-p"
            assert taken["remote_bootstrap_addr"] == prefill.url
        assert len({body["kv_transfer_params"]["transfer_id"] for body in prefill.bodies}) == 2
        assert prefill.asked_who == 1
        client.router.health.suspect(client.router.backends["p"])
        await client.router.health.check_all()
        assert (await client.ask())[0] == 200
        assert prefill.asked_who == 2

    with_router([prefill, decode], test)


def test_demand_is_what_clients_asked_for() -> None:
    """Whole answers with their tokens, streamed or not; refused for want of room counts, the client's mistakes do not."""
    backend = FakeBackend("a", slots=1, token_s=0.02)

    async def test(client: Client) -> None:
        assert (await client.ask(tokens=3))[0] == 200
        status, text, _ = await client.ask(stream=True, tokens=5)
        assert status == 200
        assert "usage" not in text
        assert text.endswith("data: [DONE]\n\n")
        shown = (await client.ask(stream=True, tokens=2, stream_options={"include_usage": True}))[1]
        assert '"completion_tokens": 2' in shown
        told = json.loads((await client.get("/router/demand", headers=AS_ADMIN))[1])
        sums = {"requests": 3, "answered": 3, "prompt_tokens": 21, "completion_tokens": 10}
        assert told["models"] == {"m": sums}
        answers = await asyncio.gather(*(client.ask(tokens=10) for _ in range(4)))
        assert sorted(status for status, _, _ in answers) == [200, 200, 429, 429]
        backend.answer = 400
        assert (await client.ask())[0] == 400
        assert (await client.ask(model="other"))[0] == 404
        told = json.loads((await client.get("/router/demand", headers=AS_ADMIN))[1])
        assert told["models"] == {"m": {"requests": 7, "answered": 5, "prompt_tokens": 35, "completion_tokens": 30}}
        assert told["seconds"] > 0

    with_router([backend], test, queue_size=1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.booleans(), st.sampled_from(["\n\n", "\r\n\r\n"]))
def test_streams_survive_any_cutting(cuts: list[int], shown: bool, end: str) -> None:
    """However the network cuts a stream, the client gets the same events, less the usage it did not ask for."""
    said = [
        'data: {"choices": [{"text": "\\"usage\\""}]}',
        ": ping",
        'data: {"choices": [{"text": "x"}], "usage": null}',
    ]
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}'
    whole = end.join([*said, usage, "data: [DONE]", ""]).encode()
    events = EventFilter(shown)
    passed, start = b"", 0
    for cut in cuts:
        passed += events.feed(whole[start : start + cut])
        start += cut
    passed += events.feed(whole[start:]) + events.flush()
    wanted = [*said, *([usage] if shown else []), "data: [DONE]", ""]
    assert passed == end.join(wanted).encode()
    assert (events.done, events.usage) == (True, {"prompt_tokens": 7, "completion_tokens": 2})


def test_two_legs_through_files() -> None:
    """ExampleConnector finds caches by the prompt, so the decode server gets the request as it came."""
    backends = [
        FakeBackend("p", phase="prefill", connector="ExampleConnector"),
        FakeBackend("d", phase="decode", connector="ExampleConnector"),
    ]

    async def test(client: Client) -> None:
        assert (await client.ask())[0] == 200
        assert backends[1].bodies == [{"model": "m", "prompt": "p", "max_tokens": 4}]

    with_router(backends, test)


@pytest.mark.parametrize("failure", ["hang up", 500, 503, 429])
@pytest.mark.parametrize("stream", [False, True])
def test_retry_before_the_first_token(failure: object, stream: bool) -> None:
    """An instance that dies or refuses work costs no request while another one is up."""
    bad, good = FakeBackend("bad", weight=10.0, answer=failure), FakeBackend("good")

    async def test(client: Client) -> None:
        answers = await asyncio.gather(*(client.ask(stream=stream) for _ in range(20)))
        assert {status for status, _, _ in answers} == {200}
        assert all("good:3" in text for _, text, _ in answers)
        assert count(client, "retries_total", model="m") >= 1

    with_router([bad, good], test)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_retry_of_either_leg(phase: str) -> None:
    """Both legs are tried elsewhere; after a lost decode leg prefill is done again, since its cache may be gone."""
    names = {"prefill": "p", "decode": "d"}
    backends = [FakeBackend(f"{names[p]}{n}", phase=p, connector="NixlConnector") for p in names for n in (1, 2)]
    broken = next(backend for backend in backends if backend.phase == phase)
    broken.answer = "hang up"

    async def test(client: Client) -> None:
        answers = [await client.ask(stream=True) for _ in range(6)]
        assert [status for status, _, _ in answers] == [200] * 6
        assert len(broken.bodies) == 1

    with_router(backends, test, health_interval_s=60.0, unhealthy_after=1)


def test_non_streaming_answers_are_retried_whole() -> None:
    """Nothing of it has reached the client, so a break in the middle is invisible."""

    async def test(client: Client) -> None:
        answers = [await client.ask() for _ in range(4)]
        assert all(status == 200 and "good" in text for status, text, _ in answers)

    with_router([FakeBackend("bad", answer="break"), FakeBackend("good")], test)


def test_a_break_after_the_first_token_is_said_clearly() -> None:
    """The rest cannot be made up by another instance: the stream ends with an error that names the instance."""

    async def test(client: Client) -> None:
        status, text, _ = await client.ask(stream=True, tokens=9)
        assert status == 200
        assert "a:1" in text
        assert "[DONE]" not in text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert events[-1]["error"]["code"] == 502
        assert "instance a failed" in events[-1]["error"]["message"]
        labels = {"backend": "a", "model": "m", "phase": "mixed", "outcome": "broken"}
        assert count(client, "backend_requests_total", **labels) == 1

    with_router([FakeBackend("a", answer="break")], test)


def test_a_refused_request_is_not_retried() -> None:
    """A prompt too long is too long everywhere."""
    backends = [FakeBackend("a", answer=400), FakeBackend("b", answer=400)]

    async def test(client: Client) -> None:
        status, text, _ = await client.ask()
        assert status == 400
        assert "says 400" in text
        assert len(backends[0].bodies) + len(backends[1].bodies) == 1
        assert all(backend.healthy for backend in client.router.backends.values())

    with_router(backends, test)


def test_the_last_failure_is_passed_on() -> None:
    """With nothing left to try the client learns what the server said, or that it hung up."""

    async def says(client: Client) -> None:
        status, text, _ = await client.ask()
        assert (status, "says 500" in text) == (500, True)

    async def silent(client: Client) -> None:
        status, text, _ = await client.ask()
        assert status == 502
        assert "instance a" in json.loads(text)["error"]["message"]

    with_router([FakeBackend("a", answer=500)], says)
    with_router([FakeBackend("a", answer="hang up")], silent)


def test_slots_queue_and_back_pressure() -> None:
    """Two slots, a queue of three: of ten at once five are answered, five told to come again."""
    backend = FakeBackend("a", slots=2, token_s=0.05)

    async def test(client: Client) -> None:
        answers = await asyncio.gather(*(client.ask() for _ in range(10)))
        assert Counter(status for status, _, _ in answers) == {200: 5, 429: 5}
        assert all(int(headers["Retry-After"]) >= 1 for status, _, headers in answers if status == 429)
        assert backend.most_at_once == 2
        assert client.router.backends["a"].in_flight == 0
        assert (await client.ask())[0] == 200

    with_router([backend], test, queue_size=3)


def test_waiting_too_long_is_a_503() -> None:
    """A queue that does not move must not hold clients for ever."""

    async def test(client: Client) -> None:
        answers = await asyncio.gather(*(client.ask() for _ in range(3)))
        assert Counter(status for status, _, _ in answers) == {200: 1, 503: 2}
        assert all("Retry-After" in headers for status, _, headers in answers if status == 503)
        assert client.router.pools("m")["mixed"].waiting == 0

    with_router([FakeBackend("a", slots=1, token_s=0.1)], test, queue_timeout_s=0.1)


def test_the_queue_is_served_in_order() -> None:
    """First come, first served."""
    backend = FakeBackend("a", slots=1, token_s=0.01)

    async def test(client: Client) -> None:
        tasks, pool = [], client.router.pools("m")["mixed"]
        for index in range(6):
            tasks.append(asyncio.create_task(client.ask(tokens=1, prompt=str(index))))
            await until(lambda arrived=index + 1: len(backend.bodies) + pool.waiting == arrived)
        await asyncio.gather(*tasks)
        assert [body["prompt"] for body in backend.bodies] == list("012345")

    with_router([backend], test)


def test_health_takes_backends_out_and_in_again() -> None:
    """No request meets an instance that says it is ill; when all are, clients are told so at once."""
    a, b = FakeBackend("a"), FakeBackend("b")

    async def test(client: Client) -> None:
        a.healthy = False
        known = client.router.backends
        await until(lambda: not known["a"].healthy)
        assert {(await client.ask())[2]["X-Coralopt-Instance"] for _ in range(4)} == {"b"}
        b.healthy = False
        await until(lambda: not known["b"].healthy)
        status, text, headers = await client.ask()
        assert (status, "no instance" in text, "Retry-After" in headers) == (503, True, True)
        assert (await client.get("/health"))[0] == 503
        a.healthy = True
        await until(lambda: known["a"].healthy)
        assert (await client.ask())[0] == 200
        assert (await client.get("/health"))[0] == 200

    with_router([a, b], test, unhealthy_after=2)


def test_clients_that_wait_learn_when_the_last_backend_dies() -> None:
    """They must not sit out the queue's time for nothing."""
    backend = FakeBackend("a", slots=1, token_s=0.5)

    async def test(client: Client) -> None:
        first = asyncio.create_task(client.ask(stream=True, tokens=400))
        await until(lambda: count(client, "first_byte_seconds_count", model="m"))
        second = asyncio.create_task(client.ask())
        await until(lambda: client.router.pools("m")["mixed"].waiting)
        client.router.health.suspect(client.router.backends["a"])
        status, _, headers = await second
        assert (status, "Retry-After" in headers) == (503, True)
        backend.token_s = 0.0
        assert (await first)[0] == 200

    with_router([backend], test, health_interval_s=60.0)


def test_drain_waits_for_requests_in_flight() -> None:
    """Scaling down: no new request, none lost."""
    a, b = FakeBackend("a", token_s=0.05), FakeBackend("b", token_s=0.05)

    async def test(client: Client) -> None:
        running = [asyncio.create_task(client.ask(stream=True, tokens=4000)) for _ in range(6)]
        await until(lambda: len(a.bodies) + len(b.bodies) == 6)
        assert await client.router.drain("a", 0.01) is False
        a.token_s = b.token_s = 0.0
        assert await client.router.drain("a", PATIENCE_S) is True
        before = len(a.bodies)
        assert before == 3
        await asyncio.gather(*(client.ask() for _ in range(4)))
        assert len(a.bodies) == before
        client.router.remove("a")
        assert {(await task)[0] for task in running} == {200}
        with pytest.raises(LaunchError, match="no backend is called 'a'"):
            await client.router.drain("a")

    with_router([a, b], test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_backend_may_break_after_it_was_removed(stream: bool) -> None:
    """A pipeline that dies is forgotten while requests are still at it; each of them ends as it should."""
    only = FakeBackend("a", answer="break", token_s=0.1)

    async def test(client: Client) -> None:
        running = asyncio.create_task(client.ask(stream=stream))
        await until(lambda: only.bodies)
        client.router.remove("a")
        status, text, _ = await running
        assert (status, "instance a" in text) == (200 if stream else 502, True)
        assert (await client.ask())[0] == 404

    with_router([only], test)


def test_backends_are_managed_over_http() -> None:
    """A controller in another process adds, drains and removes."""
    a, b = FakeBackend("a"), FakeBackend("b")

    async def test(client: Client) -> None:
        send = partial(send_admin, client)
        client.router.remove("b")
        async with send("POST", "", json=b.config().model_dump()) as answer:
            assert (answer.status, (await answer.json())["healthy"]) == (201, True)
        assert {(await client.ask())[2]["X-Coralopt-Instance"] for _ in range(2)} == {"a", "b"}
        async with send("POST", "/a/drain?timeout_s=1") as answer:
            assert (await answer.json())["idle"] is True
        async with send("DELETE", "/a") as answer:
            assert answer.status == 200
        listed = json.loads((await client.get("/router/backends", headers=AS_ADMIN))[1])["backends"]
        assert [item["name"] for item in listed] == ["b"]
        async with send("POST", "", json={"name": "c"}) as answer:
            assert answer.status == 400
        async with send("DELETE", "/a") as answer:
            assert answer.status == 404

    with_router([a, b], test)


def test_api_key() -> None:
    """Without the key nothing but health and metrics answers; backends never see it."""
    backend = FakeBackend("a")

    async def test(client: Client) -> None:
        assert (await client.ask())[0] == 401
        assert (await client.get("/router/backends"))[0] == 401
        assert (await client.get("/health"))[0] == 200
        assert (await client.get("/metrics"))[0] == 200
        headers = {"Authorization": "Bearer secret"}
        body = {"model": "m", "prompt": "p"}
        async with client.session.post(f"{client.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
        assert "Authorization" not in backend.headers[-1]

    with_router([backend], test, api_key="secret")


def test_bad_requests() -> None:
    """The router's own errors have the form of the OpenAI API."""

    async def test(client: Client) -> None:
        for body, status in ((b"{", 400), (b"[]", 400), (b'{"model": 3}', 400), (b'{"model": "x"}', 404)):
            async with client.session.post(f"{client.url}/v1/completions", data=body) as answer:
                assert answer.status == status
                assert (await answer.json())["error"]["code"] == status
        listed = json.loads((await client.get("/v1/models"))[1])
        assert [item["id"] for item in listed["data"]] == ["m"]

    with_router([FakeBackend("a")], test)


def test_a_client_that_leaves_frees_its_slot_and_its_server() -> None:
    """Tokens nobody reads are expensive."""
    backend = FakeBackend("a", slots=1, token_s=0.05)

    async def test(client: Client) -> None:
        leaving = asyncio.create_task(client.ask(stream=True, tokens=10_000))
        await until(lambda: backend.bodies)
        leaving.cancel()
        await until(lambda: client.router.backends["a"].in_flight == 0 and backend.cancelled)
        assert backend.cancelled == 1
        assert (await client.ask())[0] == 200
        assert client.router.backends["a"].healthy

    with_router([backend], test)


def test_metrics_are_prometheus_text() -> None:
    """What a dashboard reads."""

    async def test(client: Client) -> None:
        await client.ask()
        status, text = await client.get("/metrics")
        assert status == 200
        assert 'coralopt_router_requests_total{code="200",model="m"} 1.0' in text
        assert 'coralopt_router_backend_up{backend="a",model="m",phase="mixed"} 1.0' in text

    with_router([FakeBackend("a")], test)


def test_prefill_alone_cannot_serve() -> None:
    """A model with one half is told apart from one that is busy."""

    async def test(client: Client) -> None:
        status, text, _ = await client.ask()
        assert (status, "no decode instance" in text) == (503, True)

    with_router([FakeBackend("p", phase="prefill")], test)


def test_configuration_files(tmp_path: object) -> None:
    """Every mistake is named."""
    from pathlib import Path

    path = Path(str(tmp_path)) / "router.json"
    backend = {"name": "a", "model": "m", "phase": "mixed", "url": "ftp://x", "weight": -1, "max_in_flight": 1}
    path.write_text(json.dumps({"backends": [backend], "retires": 3}))
    with pytest.raises(LaunchError) as caught:
        RouterConfig.load(path)
    assert all(word in str(caught.value) for word in ("url", "weight", "retires"))
    good = BackendConfig(name="a", model="m", phase="mixed", url="http://h:1/", weight=1, max_in_flight=1)
    assert good.url == "http://h:1"
    with pytest.raises(ValueError, match="two backends"):
        RouterConfig(backends=(good, good))


def test_unreachable_backends_do_not_stop_the_router() -> None:
    """Servers may come up after the router."""
    backend = FakeBackend("a")

    async def test(client: Client) -> None:
        ghost = BackendConfig(name="g", model="m", phase="mixed", url="http://127.0.0.1:9", weight=9, max_in_flight=9)
        client.router.add(ghost, healthy=True)
        answers = [await client.ask() for _ in range(3)]
        assert {status for status, _, _ in answers} == {200}
        with pytest.raises(LaunchError, match="there already"):
            client.router.add(ghost)

    with_router([backend], test)


def test_vllms_own_router_where_no_weights_are_needed() -> None:
    """A command a model when all instances of a phase are equal; else every model that needs more is named."""

    def backend(name: str, phase: str = "mixed", weight: float = 100.0, **more: object) -> BackendConfig:
        fields = {"model": "m", "url": f"http://{name}:8000", "max_in_flight": 8, **more}
        return BackendConfig(name=name, phase=phase, weight=weight, **fields)  # type: ignore[arg-type]

    equal = RouterConfig(backends=(backend("a"), backend("b", weight=104.0), backend("c", model="n")))
    commands = vllm_router_commands(equal, port=9000)
    assert list(commands) == ["m", "n"]
    assert commands["m"][5:8] == ("--worker-urls", "http://a:8000", "http://b:8000")
    ports = [argv[argv.index(flag) + 1] for argv in commands.values() for flag in ("--port", "--prometheus-port")]
    assert sorted(ports) == ["9000", "9001", "9002", "9003"]
    halves = (
        backend("p", "prefill", connector="MooncakeConnector", kv_url="http://p:5600"),
        backend("d", "decode", connector="MooncakeConnector"),
    )
    words = " ".join(vllm_router_commands(RouterConfig(backends=halves))["m"])
    assert "--kv-connector mooncake --prefill http://p:8000 5600 --decode http://d:8000" in words
    unfit = (backend("a"), backend("b", weight=300.0), backend("x", "prefill", model="n", connector="ExampleConnector"))
    with pytest.raises(LaunchError) as caught:
        vllm_router_commands(RouterConfig(backends=unfit))
    assert "m: its mixed instances need weights (100, 300 tokens/s)" in str(caught.value)
    assert "n: has only prefill instances" in str(caught.value)
    assert "ExampleConnector" in str(caught.value)
    with pytest.raises(LaunchError, match="no backends"):
        vllm_router_commands(RouterConfig())
