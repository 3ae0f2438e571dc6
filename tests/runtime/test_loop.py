"""The closed loop: measured demand, new plans, servers that follow; and servers that come back when they die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_vllm import tokens
from launched import TWO, Launched, admin, ask, backends, gone, strays, until
from runtime_plans import MODEL, instance, plan

from coralopt.errors import LaunchError, OptionError
from coralopt.plan import Plan
from coralopt.planning import CoralPlanner, PlanOutcome, PlanRequest, plan_scenario
from coralopt.runtime.loop import LoopSettings, follow_demand, measured_demand
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario

#: A command line, run in this process.
RunCli = Callable[..., Any]


def scenario(available: int = 12, **fields: Any) -> ResolvedScenario:
    """One small model in mixed mode on nodes of one GPU; demand and supply are what a test says."""
    document = {
        "mode": "mixed",
        "models": {
            "tiny": {
                "model": MODEL,
                "slo": {"ttft_ms": 1000, "tpot_ms": 100, "attainment": "mean"},
                "demand": {"requests_s": 1, "input_tokens": 10, "output_tokens": 5},
            }
        },
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL4": {"available": available, "price_usd_h": 1.0}}}}},
        "pruning": {"max_nodes": 1, "memory_ratio": 1e6},
        **fields,
    }
    return scenario_from_mapping(document, source="test")


def capacity() -> float:
    """Tokens/s of one instance."""
    return plan_scenario(scenario()).instances[0].tokens_s


class Servers:
    """Servers that do as they are told, and a router that measures what a test says."""

    def __init__(self, rates: list[float], refuse: int | None = None) -> None:
        self.rates = rates
        self.looks = 0
        self.sums = {"requests": 0, "answered": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self.followed: Plan | None = None
        self.applied: list[Plan] = []
        self.refuse = refuse

    def demand(self) -> dict[str, Any]:
        if 0 < self.looks <= len(self.rates):
            requests = round(self.rates[self.looks - 1] * 10 / 5)
            self.sums["requests"] += requests
            self.sums["answered"] += requests
            self.sums["prompt_tokens"] += 10 * requests
            self.sums["completion_tokens"] += 5 * requests
        self.looks += 1
        return {"seconds": 10.0 * self.looks, "models": {"tiny": dict(self.sums)}}

    def plan(self) -> tuple[Plan | None, dict[str, int]]:
        alive = {} if self.followed is None else {item.name: item.count for item in self.followed.instances}
        return self.followed, alive

    def apply(self, plan: Plan) -> dict[str, Any]:
        if self.refuse == len(self.applied):
            self.refuse = None
            raise LaunchError("no room for it")
        self.followed = plan
        self.applied.append(plan)
        return {"started": [], "stopped": [], "kept": []}


def test_demand_drives_the_plans(tmp_path: Path) -> None:
    """Up, up beyond the pool, down, silence: instances follow, running ones are known, a plan is skipped with a word."""
    one = capacity()
    servers = Servers([0.5 * one, 2.5 * one, 50 * one, 1.5 * one, 0.0])
    waits: list[float] = []
    settings = LoopSettings(10, 5, output=tmp_path / "loop")
    walk = list(follow_demand(PlanRequest(scenario()), servers, settings, wait=waits.append))
    assert waits == [10.0] * 5
    counts = [None if e.plan is None else sum(item.count for item in e.plan.instances) for e in walk]
    assert counts == [1, 3, None, 2, 1]
    assert "the servers go on as they are" in (walk[2].problem or "")
    assert walk[3].plan is not None
    assert [item.kept for item in walk[3].plan.instances] == [2]
    np.testing.assert_allclose([e.measured_tokens_s[0] for e in walk[:2]], [0.5 * one, 2.5 * one], rtol=0.01)
    assert walk[4].planned_tokens_s[0] == pytest.approx(0.05)  # the floor: 1 % of 1 request/s of 5 tokens
    settings = LoopSettings(1, output=tmp_path / "loop")
    more = next(follow_demand(PlanRequest(scenario()), Servers([one]), settings, wait=lambda s: None))
    assert more.epoch == 5
    assert (tmp_path / "loop" / "epoch-0005.json").exists()


def test_more_demand_than_the_pool_holds_may_be_served_in_part() -> None:
    """`on_infeasible="scale"`: all nodes of the pool rather than the plan before."""
    one = capacity()
    request = PlanRequest(scenario(), on_infeasible="scale")
    (epoch,) = follow_demand(request, Servers([50 * one]), LoopSettings(1, 1), wait=lambda s: None)
    assert epoch.problem is None
    assert epoch.plan is not None
    assert [item.count for item in epoch.plan.instances] == [12]


def test_a_plan_that_is_refused_is_reported() -> None:
    """The controller's own words, and the loop goes on with the plan before."""
    one = capacity()
    servers = Servers([one, 2.5 * one], refuse=0)
    walk = list(follow_demand(PlanRequest(scenario()), servers, LoopSettings(1, 2), wait=lambda s: None))
    assert "no room for it" in (walk[0].problem or "")
    assert walk[1].problem is None


def test_ctrl_c_while_a_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver stops early and gives its best so far; that is not applied, and the loop ends."""

    class Stopped(CoralPlanner):
        def plan(self, request: PlanRequest) -> PlanOutcome:
            return replace(super().plan(request), interrupted=True)

    monkeypatch.setattr("coralopt.runtime.loop.CoralPlanner", Stopped)
    servers = Servers([capacity()])
    with pytest.raises(KeyboardInterrupt):
        next(follow_demand(PlanRequest(scenario()), servers, LoopSettings(1), wait=lambda s: None))
    assert servers.applied == []


def test_epochs_are_planned_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second epoch plans from the first one's tables, templates and prices; nothing of the kind is made again."""
    requests: list[PlanRequest] = []
    outcomes: list[PlanOutcome] = []

    class Watched(CoralPlanner):
        def plan(self, request: PlanRequest) -> PlanOutcome:
            requests.append(request)
            outcomes.append(super().plan(request))
            return outcomes[-1]

    monkeypatch.setattr("coralopt.runtime.loop.CoralPlanner", Watched)
    one = capacity()
    servers = Servers([0.5 * one, 2.5 * one])
    list(follow_demand(PlanRequest(scenario()), servers, LoopSettings(1, 2), wait=lambda s: None))
    first, second = requests
    assert first.warm.library is None
    assert second.warm is outcomes[0].warm
    assert second.warm.library is not None
    assert outcomes[1].warm.tables is outcomes[0].warm.tables
    assert outcomes[1].warm.library is outcomes[0].warm.library
    assert outcomes[1].library is not None
    assert outcomes[1].library.reused


@pytest.mark.parametrize("wrong", [{"every_s": 0}, {"every_s": -1}, {"every_s": 1, "headroom": -1}])
def test_senseless_options(wrong: dict[str, Any]) -> None:
    """Before anybody waits."""
    with pytest.raises(OptionError):
        LoopSettings(**wrong)


def test_measured_demand() -> None:
    """Rates are requests/s times mean tokens; refused requests count; a restarted router counts from its start."""
    sums = {"requests": 30, "answered": 20, "prompt_tokens": 200, "completion_tokens": 100}
    before = {"seconds": 5.0, "models": {"tiny": dict.fromkeys(sums, 0)}}
    demand, remarks = measured_demand(scenario(), before, {"seconds": 15.0, "models": {"tiny": sums}})
    assert demand.tolist() == [15.0]
    assert remarks == ()
    late = {"seconds": 100.0, "models": {"tiny": {**sums, "requests": 99}}}
    assert measured_demand(scenario(), late, {"seconds": 10.0, "models": {"tiny": sums}})[0].tolist() == [15.0]
    long = {"seconds": 15.0, "models": {"tiny": {**sums, "completion_tokens": 400}}}
    demand, remarks = measured_demand(scenario(), before, long)
    assert demand.tolist() == [60.0]
    assert "20 output tokens a request, the scenario says 5" in remarks[0]
    assert measured_demand(scenario(), before, {"seconds": 15.0, "models": {}})[0].tolist() == [0.0]
    with pytest.raises(LaunchError, match="another version"):
        measured_demand(scenario(), before, {"models": {}})


def test_the_loop_on_one_machine(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """Real processes: load makes `follow` start servers, silence stops them, and no request fails meanwhile."""
    base = scenario()
    (tmp_path / "scenario.yaml").write_text(json.dumps(base.document))
    run = Launched(plan_scenario(base), tmp_path, "--restarts", "0", FAKE_TOKEN_S="0.005").ready()
    launched.append(run)
    assert len(backends(run.url)) == 1
    stop, answers = threading.Event(), []

    def load() -> None:
        while not stop.is_set():
            text, _, status = ask(run.url, prompt="0123456789", count=200, stream=True)
            answers.append((status, text == "".join(tokens("0123456789", 200))))

    workers = [threading.Thread(target=load) for _ in range(4)]
    for worker in workers:
        worker.start()
    # Four clients get at most 800 tokens/s of the stand-in; the headroom makes 150 of them worth one instance.
    command = ["follow", "scenario.yaml", "--router", run.url, "--every", "2", "--epochs", "1"]
    command += ["--headroom", str(capacity() / 150), "--json", "-o", "loop"]
    up = run_cli(*command)
    assert up.returncode == 0, up.stderr
    grown = len(backends(run.url))
    stop.set()
    for worker in workers:
        worker.join()
    down = run_cli(*command)
    assert down.returncode == 0, down.stderr
    (first,), (second,) = json.loads(up.stdout)["epochs"], json.loads(down.stdout)["epochs"]
    assert first["measured_tokens_s"]["tiny/mixed"] > 100
    assert (first["epoch"], second["epoch"]) == (0, 1)
    assert grown > 1
    assert len(first["changes"]["started"]) == grown - 1
    assert any("output tokens a request" in remark for remark in first["remarks"])
    assert second["measured_tokens_s"]["tiny/mixed"] == 0
    assert len(backends(run.url)) == 1
    assert len(answers) > 8
    assert set(answers) == {(200, True)}
    assert Plan.load(tmp_path / "run" / "plan.json").instances[0].count == 1
    assert run.interrupt()[0] == 0


def test_plans_of_tables_are_carried_out(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """`follow --demand TABLE`: the walk through known epochs, each applied in its time."""
    one = capacity()
    (tmp_path / "scenario.yaml").write_text(json.dumps(scenario().document))
    rows = [f"{e},tiny,mixed,{share * one}" for e, share in enumerate((0.5, 2.5, 0.5))]
    (tmp_path / "demand.csv").write_text("epoch,model,phase,tokens_s\n" + "\n".join(rows) + "\n")
    run = Launched(plan_scenario(scenario()), tmp_path).ready()
    launched.append(run)
    done = run_cli("follow", "scenario.yaml", "--demand", "demand.csv", "--router", run.url, "--every", "0.5")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if " runs: " in line]
    assert ["started" in line for line in said] == [False, True, False]
    assert ["stopped" in line for line in said] == [False, False, True]
    assert len(backends(run.url)) == 1
    # Ctrl-C ends the loop, not the servers.
    command = [sys.executable, "-m", "coralopt", "follow", "scenario.yaml", "--router", run.url, "--every", "100"]
    loop = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert loop.stderr is not None
    assert "measuring demand" in loop.stderr.readline()
    time.sleep(0.5)
    loop.send_signal(signal.SIGINT)
    _, said_last = loop.communicate(timeout=120)
    assert loop.returncode == 130
    assert "Traceback" not in said_last
    assert len(backends(run.url)) == 1
    assert run.interrupt()[0] == 0


def test_the_dead_are_started_again(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """`kill -9` of a head: its pipeline comes back by itself, the other one is not touched."""
    run = Launched(TWO, tmp_path).ready()
    launched.append(run)
    before = run.pids()
    victim = next(p["pids"] for p in run.told["pipelines"] if "1xl40s" in p["name"])
    os.kill(victim[0], signal.SIGKILL)
    until(lambda: len(run.pids()) == 3 and not set(victim) & set(run.pids()))
    until(lambda: [item["healthy"] for item in backends(run.url)] == [True, True])
    assert len(set(before) & set(run.pids())) == 1

    def followed() -> Any:
        with urllib.request.urlopen(admin(f"{run.url}/router/plan"), timeout=10) as answer:
            return json.load(answer)

    until(lambda: set(followed()["running"].values()) == {1})
    assert followed()["given_up"] == {}
    code, said = run.interrupt()
    assert (code, "died: ended by signal SIGKILL" in said) == (0, True)


def test_what_keeps_dying_is_given_up(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """A server that ends after a moment is restarted so many times and then reported; nothing is left."""
    document = plan(instance("mixed", (8, {"1xL4": (1, 300.0)})))
    run = Launched(document, tmp_path, "--restarts", "1", FAKE_LIFE_S="0.3")
    launched.append(run)
    code, said = run.end()
    assert code == 2, said
    assert said.count("died: ended with exit code 9; see") == 2
    assert "is given up: 1 restarts in 600 s" in said
    assert "the last pipeline died" in said
    assert "Traceback" not in said
    assert run.pids() == []


def test_ctrl_c_while_a_new_plan_starts(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """The controller is stopped in the middle of an apply: neither old nor half-started servers are left."""
    # Servers that start after the file exists never become ready.
    vllm.write_text(vllm.read_text().replace("exec", f"[ -e {tmp_path}/slow ] && export FAKE_START_S=60\nexec"))
    run = Launched(TWO, tmp_path, "--starts-at-once", "1").ready()
    launched.append(run)
    (tmp_path / "slow").touch()
    more = [instance("mixed", (8, {name: (1, 300.0)})) for name in ("1xA100", "1xL40S")]
    plan(*more).save(tmp_path / "new.json")
    command = [sys.executable, "-m", "coralopt", "launch", "apply", "new.json", run.url, "--no-verify"]
    applying = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until(lambda: len(run.pids()) == 4)
    pids = run.pids()
    code, said = run.interrupt()
    assert code == 0, said
    assert "Traceback" not in said
    assert gone(pids)
    assert run.pids() == []
    _, words = applying.communicate(timeout=120)
    assert applying.returncode == 2
    assert "Traceback" not in words
    assert strays(tmp_path) == []


def test_nobody_to_apply_to(run_cli: RunCli) -> None:
    """A wrong URL, or nobody there: said at once, not after an epoch."""
    for url, words in (("localhost:8000", "must be the URL of a router"), ("http://127.0.0.1:9", "no running")):
        done = run_cli("follow", "tiny", "--router", url)
        assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
