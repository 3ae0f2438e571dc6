"""The fleet page's endpoints: off by default, behind the admin key, read only; its figures are those of the router."""

from __future__ import annotations

import html
import json
import math
import os
import re
import signal
import time
import urllib.request
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import L4, TWO, Launched, admin
from runtime_backends import ADMIN, AS_ADMIN, Client, FakeBackend, with_router
from runtime_plans import golden_plan, instance, plan

from coralopt.errors import LaunchError
from coralopt.plan.reasons import reasons
from coralopt.report.pages.fleet import draw_fleet
from coralopt.runtime.local import RemoteController
from coralopt.runtime.router.admin import PlanHooks
from coralopt.runtime.router.doors import Doors, Keys
from coralopt.runtime.router.status import Latencies, PlanHistory


def _password(key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"anyone:{key}".encode()).decode()}


def _with_fleet(test: Any, backends: list[FakeBackend], history: PlanHistory | None = None, **limits: Any) -> None:
    doors = Doors(keys=Keys(None, ADMIN), fleet=draw_fleet)
    with_router(backends, test, doors=doors, hooks=PlanHooks(history=history), **limits)


def test_there_is_no_page_unless_it_is_asked_for() -> None:
    async def test(client: Client) -> None:
        for path in ("/fleet", "/fleet/events", "/fleet/status", "/fleet/grafana.json"):
            assert (await client.get(path, headers=AS_ADMIN))[0] == 404

    with_router([FakeBackend("a")], test)


def test_it_needs_an_admin_key() -> None:
    with pytest.raises(LaunchError, match="CORALOPT_ADMIN_KEY"):
        Doors(keys=Keys("client"), fleet=draw_fleet)


def test_only_the_admin_key_opens_it_and_its_password_opens_nothing_else() -> None:
    async def test(client: Client) -> None:
        for path in ("/fleet", "/fleet/events", "/fleet/status", "/fleet/grafana.json"):
            async with client.session.get(client.url + path) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Basic ")
            for wrong in (
                _password("wrong"),
                _password(""),
                {"Authorization": "Basic %%%"},
                {"Authorization": "Basic"},
            ):
                assert (await client.get(path, headers=wrong))[0] == 401
            assert (await client.get(path, headers=_password(ADMIN) | {"Sec-Fetch-Site": "cross-site"}))[0] == 403
            assert (await client.get(path, headers=_password(ADMIN) | {"Host": "stranger.example"}))[0] == 403
        for sent in (_password(ADMIN), AS_ADMIN, _password(ADMIN) | {"Sec-Fetch-Site": "same-origin"}):
            status, text = await client.get("/fleet", headers=sent)
            assert (status, "<!doctype html>" in text) == (200, True)
        # Somebody's link may lead to the page: who follows it sees it, the other site does not.
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
        assert (await client.get("/fleet", headers=_password(ADMIN) | link))[0] == 200
        assert (await client.get("/router/backends", headers=_password(ADMIN)))[0] == 401
        async with client.session.post(f"{client.url}/router/backends/a/drain", headers=_password(ADMIN)) as answer:
            assert answer.status == 401
        async with client.session.get(f"{client.url}/fleet", headers=AS_ADMIN) as answer:
            assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "connect-src 'self'" in html.unescape(await answer.text())

    _with_fleet(test, [FakeBackend("a")])


def test_figures_are_those_of_the_router() -> None:
    """States, shares by weight and by requests, latencies of streams, the queue; and the page says the same."""

    async def test(client: Client) -> None:
        for _ in range(8):
            assert (await client.ask(stream=True))[0] == 200
        client.router.backends["c"].draining = True
        client.router.health.suspect(client.router.backends["b"])
        document = json.loads((await client.get("/fleet/status", headers=AS_ADMIN))[1])
        rows = {row["name"]: row for row in document["instances"]}
        assert {name: row["state"] for name, row in rows.items()} == {"a": "serves", "b": "ill", "c": "draining"}
        assert [rows[name]["wanted"] for name in "abc"] == [0.75, 0.25, 0.0]
        assert [rows[name]["seen"] for name in "abc"] == [0.375, 0.125, 0.5]
        ttft, tpot = document["latencies"]
        assert ttft["answers"] == tpot["answers"] == 8
        assert 0 < ttft["p50_ms"] <= ttft["p99_ms"]
        assert ttft["slo_ms"] is None
        assert document["queues"] == [{"model": "m", "phase": "mixed", "waiting": 0, "in_flight": 0, "slots": 1000}]
        assert document["plans"] == []
        text = (await client.get("/fleet", headers=AS_ADMIN))[1]
        assert "1 of 3 instances serve" in text
        assert "wanted 75.0%, seen 37.5%" in text
        assert "The router knows no plan" in text

    _with_fleet(
        test, [FakeBackend("a", weight=3.0), FakeBackend("b"), FakeBackend("c", weight=4.0)], health_interval_s=60
    )


def test_events_bring_all_parts_once_and_then_what_changed() -> None:
    async def test(client: Client) -> None:
        async with client.session.get(f"{client.url}/fleet/events", headers=AS_ADMIN) as answer:
            assert answer.content_type == "text/event-stream"
            first = json.loads((await answer.content.readuntil(b"\n\n")).removeprefix(b"data: "))
            assert set(first) == {"summary", "answers", "traffic", "latency", "queues", "instances", "plans"}
            client.router.health.suspect(client.router.backends["a"])
            later = json.loads((await answer.content.readuntil(b"\n\n")).removeprefix(b"data: "))
            assert "0 of 1 instances serve" in later["answers"]
            assert "latency" not in later

    _with_fleet(test, [FakeBackend("a")], health_interval_s=60)


def test_open_pages_are_few_and_do_not_keep_a_router_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coralopt.runtime.router.fleet.MOST_PAGES", 2)

    async def test(client: Client) -> None:
        pages = [await client.session.get(f"{client.url}/fleet/events", headers=AS_ADMIN) for _ in range(3)]
        assert [page.status for page in pages] == [200, 200, 503]
        # What a router does first when it ends.
        await client.app.shutdown()
        for page in pages:
            await page.read()

    _with_fleet(test, [FakeBackend("a")])


def test_a_plan_gives_slos_cost_and_reasons() -> None:
    """Two plans one after the other: rent so far, what changed in words, shares within the SLO."""
    now = [1000.0]
    history = PlanHistory(clock=lambda: now[0])
    assert math.isnan(history.spent_usd)
    first = golden_plan()
    history.follow(first, started=("x",))
    now[0] += 1800
    demand = first.resolved.with_demand(np.array([phase.demand_tokens_s * 2 for phase in first.resolved.model_phases]))
    second = first.model_copy(update={"scenario": dict(demand.document), "provisioning_usd_h": 10.0})
    history.follow(second, started=("y",), kept=("x",))
    now[0] += 3600
    assert history.spent_usd == pytest.approx(first.provisioning_usd_h / 2 + 10.0)
    oldest, newest = history.entries
    assert oldest.why == ("It is the first plan.",)
    assert newest.why[0].startswith(f"Demand: {first.demands[0].key} from ")
    assert newest.started == ("y",)
    assert reasons(first, first) == ("Demand, SLOs, supply and prices are those of the plan before.",)
    model = first.resolved.model_phases[0].model.name

    async def test(client: Client) -> None:
        await client.ask(stream=True, model=model)
        document = json.loads((await client.get("/fleet/status", headers=AS_ADMIN))[1])
        assert [row["met"] for row in document["latencies"]] == [1.0, 1.0]
        assert document["spent_usd"] == pytest.approx(history.spent_usd)
        text = (await client.get("/fleet", headers=AS_ADMIN))[1]
        assert "10.0000 USD/h" in text
        assert f"{history.spent_usd:,.2f} USD so far" in text
        assert newest.why[0] in text.replace("&#39;", "'")
        samples = (await client.get("/metrics"))[1]
        assert "coralopt_router_rent_usd_per_hour 10.0" in samples
        assert f'coralopt_router_slo_seconds{{latency="ttft",model="{model}"}}' in samples

    _with_fleet(test, [FakeBackend("a", model=model)], history)


def test_a_plan_whose_scenario_cannot_be_read_is_followed_all_the_same() -> None:
    """Whoever launches with --no-verify may have one; the servers run already."""
    history = PlanHistory()
    history.follow(golden_plan().model_copy(update={"scenario": {}}))
    assert history.entries[-1].usd_h == golden_plan().provisioning_usd_h
    assert history.slo("tiny") is None
    history.follow(golden_plan())
    assert history.entries[-1].why == ("The scenario of this plan, or of the one before, cannot be read.",)
    assert history.slo(golden_plan().demands[0].model) is not None


def test_latencies_are_forgotten_and_their_quantiles_hold() -> None:
    now = [0.0]
    latencies = Latencies(clock=lambda: now[0])
    for k in range(100):
        latencies.add("m", k / 1000, math.nan if k < 50 else 0.01)
    row = latencies.status("m", "time to first token", 49.0, math.nan)
    assert (row.answers, row.met, row.p50_ms, row.p99_ms) == (100, 0.5, 49.0, 98.0)
    assert latencies.status("m", "time per output token", 10.0, 0.9).answers == 50
    now[0] = 601.0
    assert latencies.status("m", "time to first token", 49.0, math.nan).answers == 0


def test_names_with_markup_stay_text() -> None:
    """Names of backends come from whoever manages the router."""

    async def test(client: Client) -> None:
        evil = "<script>alert(1)</script>"
        body = {
            "name": evil,
            "model": "m",
            "phase": "mixed",
            "url": "http://127.0.0.1:9",
            "weight": 1,
            "max_in_flight": 1,
        }
        async with client.session.post(f"{client.url}/router/backends", headers=AS_ADMIN, json=body) as answer:
            assert answer.status == 201
        text = (await client.get("/fleet", headers=AS_ADMIN))[1]
        assert evil not in text
        assert "&lt;script&gt;alert(1)" in text

    _with_fleet(test, [FakeBackend("a")])


def test_the_dashboard_asks_for_series_and_labels_that_exist() -> None:
    """Every query of the Grafana dashboard against what a router that has answered, failed and refused tells Prometheus."""
    dashboard = json.loads(files("coralopt.runtime.router").joinpath("grafana.json").read_text())
    history = PlanHistory()
    history.follow(golden_plan())
    model = golden_plan().resolved.model_phases[0].model.name

    async def test(client: Client) -> None:
        await client.ask(stream=True, model=model)
        for name in ("retries", "rejected"):
            getattr(client.router.metrics, name).labels(*(model, "429")[: 1 + (name == "rejected")]).inc()
        text = (await client.get("/metrics"))[1]
        known: dict[str, set[str]] = {}
        for line in text.splitlines():
            if match := re.match(r"(\w+)(?:\{(.*)\})? ", line):
                known.setdefault(match[1], set()).update(re.findall(r"(\w+)=\"", match[2] or ""))
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        queries += [
            re.sub(
                r"label_values\((\w+), (\w+)\)",
                r"sum by (\2) (\1)",
                dashboard["templating"]["list"][1]["query"]["query"],
            )
        ]
        assert len(queries) > 15
        for query in queries:
            names = re.findall(r"coralopt_router_\w+", query)
            assert names, query
            labels = set(re.findall(r"(\w+)=~?\"", query))
            for group in re.findall(r"(?:by|on) \(([^)]*)\)", query):
                labels |= set(re.split(r", *", group))
            for name in names:
                assert name in known, name
                assert labels <= known[name], (query, name, known[name])
        assert (await client.get("/fleet/grafana.json", headers=AS_ADMIN))[1] == json.dumps(dashboard, indent=1) + "\n"

    _with_fleet(test, [FakeBackend("a", model=model)], history)


def test_the_page_of_a_launch_tells_its_plans_and_what_is_missing(
    tmp_path: Path, vllm: Path, launched: list[Launched]
) -> None:
    """Another plan is followed: which pipelines were started, stopped and kept; a server that died for good is missing."""

    def status() -> Any:
        with urllib.request.urlopen(admin(f"{run.url}/fleet/status"), timeout=20) as answer:
            return json.load(answer)

    run = Launched(TWO, tmp_path, "--fleet", "--restarts", "0").ready()
    launched.append(run)
    first = status()
    assert len(first["plans"][0]["started"]) == 2
    assert first["short"] == {}
    changes = RemoteController(run.url, os.environ["CORALOPT_ADMIN_KEY"]).apply(
        plan(instance("mixed", (8, L4)), TWO.instances[1])
    )
    newest = status()["plans"][0]
    assert {name: newest[name] for name in changes} == changes
    victim = json.loads((tmp_path / "run" / "state.json").read_text())["pipelines"][0]
    os.kill(victim["processes"][0]["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 120
    while not (after := status())["given_up"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert list(after["given_up"])
    assert list(after["short"].values()) == [[0, 1]]
    assert run.interrupt()[0] == 0
