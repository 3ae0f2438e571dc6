"""The life of servers on one machine: whatever dies, hangs or fills the disk, the others serve, and nothing is left over."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_vllm import tokens
from launched import L4, TWO, Launched, ask, gone, strays, until
from runtime_plans import instance, plan

from coralopt.runtime import VllmEngine
from coralopt.runtime.local import LocalCluster, Pace, reconcile
from coralopt.runtime.local.cluster import LOG_BYTES
from coralopt.runtime.router import RouterConfig
from coralopt.runtime.router.router import Router

#: A command line, run in this process.
RunCli = Callable[..., Any]
LEFT, RIGHT = instance("mixed", (8, L4), batch=5), instance("mixed", (8, {"1xL40S": (1, 900.0)}), batch=7)


def of(run: Launched, name: str) -> list[int]:
    """Processes on record of the pipelines with ``name`` in their names."""
    state = json.loads((run.folder / "run" / "state.json").read_text())
    return [p["pid"] for item in state["pipelines"] if name in item["backend"]["name"] for p in item["processes"]]


def when(vllm: Path, condition: str, then: str) -> None:
    """From now on the stand-in does something else where the condition, about its arguments ``$*``, holds."""
    vllm.write_text(vllm.read_text().replace("exec", f"if {condition}; then {then}; fi\nexec", 1))


@pytest.mark.parametrize("drain_first", [True, False])
def test_a_relaunch_over_a_half_dead_pipeline(tmp_path: Path, vllm: Path, drain_first: bool) -> None:
    """What is gone is retired as what it is: the new start of the same name stays."""

    async def scene() -> None:
        engine = VllmEngine(program=(str(vllm),), cpu=True, drain_s=1)
        cluster, router = LocalCluster(tmp_path), Router(RouterConfig())
        pace = Pace(needs_gpus=False, drain_first=drain_first)
        await router.start()
        try:
            await reconcile(TWO, engine, cluster, router, pace)
            broken = next(p for p in cluster.running.values() if len(p.servers) == 2)
            os.kill(broken.servers[1].child.pid, signal.SIGKILL)
            while broken.alive:
                await asyncio.sleep(0.02)
            changes = await reconcile(TWO, engine, cluster, router, pace)
            assert (len(changes.kept), changes.started, changes.stopped) == (1, (broken.name,), (broken.name,))
            assert [pipeline.alive for pipeline in cluster.running.values()] == [True, True]
            assert {b.config.url for b in router.backends.values()} == {p.backend.url for p in cluster.running.values()}
        finally:
            await cluster.stop_all(at_once=True)
            await router.stop()

    asyncio.run(scene())
    assert strays(tmp_path) == []


def test_deaths_are_independent(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """Two die at once and come back side by side; one that cannot start holds up nobody."""
    when(vllm, "[ -e slow ]", "while [ -e slow ]; do sleep 0.1; done")
    when(vllm, 'echo "$*" | grep -q "max-num-seqs 7 " && [ -e broken ]', "exit 3")
    run = Launched(plan(LEFT, RIGHT), tmp_path).ready()
    launched.append(run)
    before = run.pids()
    (tmp_path / "slow").touch()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(set(run.pids()) - set(before)) == 2)
    answer = ask(run.url)
    assert answer[2] == 503, answer
    assert run_cli("launch", "status", "run").returncode == 1, "who starts does not serve yet"
    (tmp_path / "slow").unlink()
    until(lambda: ask(run.url)[2] == 200)
    until(lambda: run_cli("launch", "status", "run").returncode == 0)
    (tmp_path / "broken").touch()
    before = run.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: bool(set(of(run, "1xl4-")) - set(before)) and ask(run.url)[2] == 200)
    survivor = of(run, "1xl4-")
    time.sleep(1.5)
    assert of(run, "1xl4-") == survivor, "who cannot start stops nobody"
    assert run.interrupt()[0] == 0


def test_a_death_while_a_new_plan_starts(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """What both plans have comes back at once, though the new plan takes its time; then the plan is followed."""
    when(vllm, 'echo "$*" | grep -q "max-num-seqs 7 "', "until [ -e go ]; do sleep 0.1; done")
    run = Launched(plan(LEFT), tmp_path).ready()
    launched.append(run)
    plan(LEFT, RIGHT).save(tmp_path / "new.json")
    command = ["apply", "new.json", "run", "--no-verify", "--json"]

    async def scene() -> None:
        applying = asyncio.create_task(asyncio.to_thread(run_cli, "launch", *command))
        while not of(run, "1xl40s"):
            await asyncio.sleep(0.05)
        (victim,) = of(run, "1xl4-")
        os.kill(victim, signal.SIGKILL)
        await asyncio.to_thread(until, lambda: victim not in of(run, "1xl4-") and ask(run.url)[2] == 200)
        assert not applying.done()
        (tmp_path / "go").touch()
        assert (await applying).returncode == 0

    asyncio.run(scene())
    assert run_cli("launch", "status", "run").returncode == 0
    assert run.interrupt()[0] == 0
    assert strays(tmp_path) == []


def test_who_hangs_is_replaced(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """A head, a stage without HTTP, and a worker of a third pipeline are stopped: all are replaced within 30 s."""
    third = instance("mixed", (8, {"1xA100": (1, 300.0)}))
    run = Launched(plan(*TWO.instances, third), tmp_path, FAKE_WORKERS="1").ready()
    launched.append(run)
    before = run.pids()
    head, (_, stage), (other,) = of(run, "1xl4-0")[0], of(run, "1xl4-1xl40s"), of(run, "1xa100")
    victims = [head, stage, psutil.Process(other).children()[0].pid]
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: len(run.pids()) == 4 and not set(before) & set(run.pids()))
    until(lambda: run_cli("launch", "status", "run").returncode == 0)
    assert ask(run.url)[0] == "".join(tokens("p", 5))
    assert gone(victims)
    code, said = run.interrupt()
    assert (code, said.count("hangs: it has not answered for")) == (0, 3)
    assert strays(tmp_path) == []


def test_nothing_outlives_a_killed_head(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """`kill -9` of the controller and of a head: the workers of the dead are found by their session and stopped."""
    run = Launched(plan(LEFT, RIGHT), tmp_path, FAKE_WORKERS="2").ready()
    launched.append(run)
    assert len(strays(tmp_path)) == 6
    victim = of(run, "1xl4-")[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in of(run, "1xl4-") and len(strays(tmp_path)) == 6)
    run.process.kill()
    run.process.communicate()
    head = of(run, "1xl4-")[0]
    os.kill(head, signal.SIGKILL)
    until(lambda: gone([head]))
    assert len(strays(tmp_path)) == 5
    told = json.loads((left := run_cli("launch", "status", "run", "--json")).stdout)
    assert (left.returncode, sorted(item["state"] for item in told["left"])) == (1, ["broken", "runs"])
    stopped = run_cli("launch", "stop", "run")
    assert stopped.returncode == 0, stopped.stderr
    assert strays(tmp_path) == []


def test_a_full_disk_stops_nobody(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """Nothing can be written any more and a server dies: it comes back, and what it said last is kept."""
    run = Launched(TWO, tmp_path).ready()
    launched.append(run)
    (victim,) = next(p["pids"] for p in run.told["pipelines"] if "1xl40s" not in p["name"])
    name = next(p["name"] for p in run.told["pipelines"] if "1xl40s" not in p["name"])
    controller = psutil.Process(run.process.pid)
    # The nearest that a test comes to a full disk: no byte may be written to any file, by it and whom it starts.
    controller.rlimit(psutil.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    before = set(strays_pids(tmp_path))
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(set(strays_pids(tmp_path)) - before) == 1)
    until(lambda: {ask(run.url)[1] for _ in range(8)} == {p["name"] for p in run.told["pipelines"]})
    assert victim in run.pids(), "the state is the old one"
    controller.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    until(lambda: victim not in run.pids())
    assert "serving on" in (tmp_path / "run" / "logs" / f"{name}-s0.crash.log").read_text()
    run.process.send_signal(signal.SIGHUP)
    code, said = run.end()
    assert (code, "draining" in said) == (0, True), said
    assert "starts without a log" in said
    assert "cannot be written" in said
    assert strays(tmp_path) == []


def strays_pids(folder: Path) -> list[int]:
    """Numbers of the processes that :func:`strays` names."""
    pids = []
    for process in psutil.process_iter():
        try:
            if "fake_vllm" in " ".join(process.cmdline()) and process.cwd() == str(folder):
                pids.append(process.pid)
        except psutil.Error:
            continue
    return pids


def test_logs_that_grow_are_set_aside(tmp_path: Path) -> None:
    """A process goes on writing to a log that was too long, and its beginning is kept once."""
    from coralopt.processes import Child

    cluster = LocalCluster(tmp_path)
    log = cluster._new_log("talker")
    with Child.start(["sh", "-c", "while sleep 0.05; do echo more; done"], log=log) as child:
        with log.open("ab") as stream:
            stream.truncate(LOG_BYTES + 1)
        cluster.running["talker"] = pipeline_of(child)
        cluster.look()
        assert log.with_suffix(".1.log").stat().st_size > LOG_BYTES
        until(lambda: 0 < log.stat().st_size < 1000 and log.read_bytes().startswith(b"more"))


def pipeline_of(child: object) -> object:
    """A pipeline of one process, for its log."""
    from types import SimpleNamespace

    return SimpleNamespace(servers=[SimpleNamespace(child=child)])


def test_stop_and_status_without_a_terminal(
    tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli
) -> None:
    """`launch stop` ends the launch that runs, in order and without a plan that can be read."""
    run = Launched(plan(LEFT), tmp_path, FAKE_TOKEN_S="0.02").ready()
    launched.append(run)
    for name in ("plan.json", "run/plan.json"):
        (tmp_path / name).write_text("no plan")
    assert run_cli("launch", "status").returncode == 2
    assert run_cli("launch", "status", "run").returncode == 0
    stopped = run_cli("launch", "stop", "run")
    assert stopped.returncode == 0, stopped.stderr
    code, said = run.end()
    assert (code, "draining" in said) == (0, True)
    assert strays(tmp_path) == []
