"""`coralopt launch` on this machine, with a stand-in for the vllm program: from plan to answers, and every fault."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import tokens
from launched import L4, TWO, Launched, ask, backends, gone, start, strays, until
from runtime_plans import instance, plan

from coralopt.cli.launch_options import LocalRouterOptions
from coralopt.errors import LaunchError
from coralopt.plan import Plan

#: A command line, run in this process.
RunCli = Callable[..., Any]
BACKEND = {"name": "a", "model": "m", "phase": "mixed", "url": "http://h", "weight": 1, "max_in_flight": 1}


def test_from_plan_to_answers_and_away(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """Two instances, one of two stages: answers by weight, equal tokens, drained on Ctrl-C, nothing left."""
    run = Launched(TWO, tmp_path, FAKE_TOKEN_S="0.02").ready()
    launched.append(run)
    assert run.url.startswith("http://127.0.0.1:")
    pids = run.pids()
    assert len(pids) == 3
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(run.url, prompt=f"q{n % 3}", stream=n % 2 == 0), range(80)))
    assert all(text == "".join(tokens(f"q{n % 3}", 5)) for n, (text, _, _) in enumerate(answers))
    shares = Counter(name for _, name, _ in answers)
    assert abs(shares["tiny-mixed-us-east-2-1xl4-0"] / 80 - 0.25) < 0.05
    slow: list[Any] = []
    asking = threading.Thread(target=lambda: slow.append(ask(run.url, count=40)))
    asking.start()
    until(lambda: slow or any(item["in_flight"] for item in backends(run.url)))
    code, said = run.interrupt()
    asking.join()
    assert slow[0][0] == "".join(tokens("p", 40))
    assert code == 0, said
    assert gone(pids)
    assert run.pids() == []
    assert "draining" in said


def test_the_router_of_a_launch_is_told_more(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """Its settings come from a file without backends, and it writes an access log."""
    (tmp_path / "router.json").write_text('{"aliases": {"other": "tiny"}, "affinity": "prefix"}')
    run = Launched(TWO, tmp_path, "--router", "router.json", "--access-log", "access.log").ready()
    launched.append(run)
    body = {"model": "other", "prompt": "a secret", "max_tokens": 2}
    request = urllib.request.Request(f"{run.url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.loads(answer.read())["choices"]
    (line,) = (tmp_path / "access.log").read_text().splitlines()
    assert (json.loads(line)["model"], "secret" in line) == ("tiny", False)
    assert run.interrupt()[0] == 0
    (tmp_path / "router.json").write_text(json.dumps({"backends": [dict(BACKEND)]}))
    with pytest.raises(LaunchError, match="leave `backends` out"):
        LocalRouterOptions(router=tmp_path / "router.json").settings()


def test_disaggregated_through_the_launcher(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """Pipelined prefill, then decode: the KV parameters reach the right servers, and the key is asked for."""
    document = plan(instance("prefill", (3, L4), (5, {"1xL40S": (1, 900.0)})), instance("decode", (8, L4)))
    run = Launched(document, tmp_path, CORALOPT_API_KEY="secret").ready()
    launched.append(run)
    text, name, _ = ask(run.url, stream=True, key="secret")
    assert text == "".join(tokens("p", 5))
    assert name == "tiny-decode-us-east-2-1xl4-0"
    assert ask(run.url)[2] == 401
    assert run.interrupt()[0] == 0


def test_a_killed_server_costs_no_request_before_its_first_token(
    tmp_path: Path, vllm: Path, launched: list[Launched]
) -> None:
    """`kill -9` of a head under load: unstarted requests move over, started streams end with a clear error."""
    run = Launched(TWO, tmp_path, "--restarts", "0", FAKE_TOKEN_S="0.02").ready()
    launched.append(run)
    victim = next(p["pids"] for p in run.told["pipelines"] if "1xl40s" in p["name"])
    with ThreadPoolExecutor(12) as pool:
        plain = [pool.submit(ask, run.url, f"a{n}", 10) for n in range(30)]
        streams = [pool.submit(ask, run.url, f"b{n}", 10, True) for n in range(30)]
        time.sleep(0.2)
        os.kill(victim[0], signal.SIGKILL)
        for n, future in enumerate(plain):
            assert future.result()[0] == "".join(tokens(f"a{n}", 10))
        for n, future in enumerate(streams):
            text = future.result()[0]
            whole = "".join(tokens(f"b{n}", 10))
            assert text == whole or (text.endswith("ERROR") and len(text) > 5 and whole.startswith(text[:-5]))
    assert ask(run.url)[1] == "tiny-mixed-us-east-2-1xl4-0"
    # The other stage of a broken pipeline is stopped.
    until(lambda: gone(victim))
    code, said = run.interrupt()
    assert (code, "died" in said, "is given up" in said) == (0, True, True)


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ({"FAKE_FAIL": "1"}, (), ["ended with exit code 3", "told to fail", "-s1"]),
        ({"FAKE_STUCK": "1"}, ("--ready-timeout", "1"), ["not ready after 1 s"]),
    ],
)
def test_a_start_that_fails_leaves_nothing(
    tmp_path: Path,
    vllm: Path,
    launched: list[Launched],
    env: dict[str, str],
    options: tuple[str, ...],
    words: list[str],
) -> None:
    """One rank that ends, or a head that never answers: the message says which, with the end of its log."""
    run = Launched(TWO, tmp_path, *options, **env)
    launched.append(run)
    code, said = run.end()
    assert code == 2, said
    assert all(word in said for word in words), said
    assert "Traceback" not in said
    assert run.pids() == []
    assert strays(tmp_path) == []


def test_ctrl_c_during_the_start(tmp_path: Path, vllm: Path, launched: list[Launched]) -> None:
    """Weights take minutes to load; whoever changes their mind must not be left with processes."""
    run = Launched(TWO, tmp_path, FAKE_START_S="300")
    launched.append(run)
    state = tmp_path / "run" / "state.json"
    until(lambda: state.exists() and len(run.pids()) == 3)
    pids = run.pids()
    code, said = run.interrupt()
    assert code == 130, said
    assert gone(pids)
    assert run.pids() == []


def test_a_new_controller_finds_its_servers_again(
    tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli
) -> None:
    """State on disk survives `kill -9` of the controller: the next one keeps the same processes; `launch stop` ends them."""
    run = Launched(TWO, tmp_path).ready()
    launched.append(run)
    pids = run.pids()
    run.process.kill()
    run.process.communicate()
    assert not gone(pids)
    again = Launched(TWO, tmp_path).ready()
    launched.append(again)
    assert again.pids() == pids
    assert ask(again.url)[0] == "".join(tokens("p", 5))
    rival = run_cli(*start(TWO, tmp_path))
    assert (rival.returncode, "another coralopt launch runs here" in rival.stderr) == (2, True)
    again.process.kill()
    again.process.communicate()
    stopped = run_cli("launch", "stop", "run")
    assert stopped.returncode == 0, stopped.stderr
    assert gone(pids)
    assert run.pids() == []
    nowhere = run_cli("launch", "stop", "mistyped")
    assert (nowhere.returncode, nowhere.stderr) == (0, "mistyped: nothing runs\n")
    assert not (tmp_path / "mistyped").exists()


def apply(run_cli: RunCli, document: Plan, folder: Path, url: str) -> Any:
    """`coralopt launch apply new.json URL`."""
    document.save(folder / "new.json")
    return run_cli("launch", "apply", "new.json", url, "--no-verify", "--json")


def test_status(tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli) -> None:
    """What runs, and exit code 1 once something of the plan does not."""
    run = Launched(TWO, tmp_path, "--restarts", "0").ready()
    launched.append(run)
    whole = run_cli("launch", "status", run.url, "--json")
    assert whole.returncode == 0, whole.stderr
    told = json.loads(whole.stdout)
    assert {name: count["running"] for name, count in told["instances"].items()} == {i.name: 1 for i in TWO.instances}
    assert [backend["healthy"] for backend in told["backends"]] == [True, True]
    assert told["given_up"] == {}
    (victim,) = (p["pids"] for p in run.told["pipelines"] if "1xl40s" not in p["name"])
    os.kill(victim[0], signal.SIGKILL)
    until(lambda: "given up" in run_cli("launch", "status", run.url).stdout)
    part = run_cli("launch", "status", run.url)
    assert part.returncode == 1, part.stdout
    assert "tiny-mixed-us-east-2-1xL4: 0 of 1 run" in part.stdout
    assert "tiny-mixed-us-east-2-1xl4-0 is given up: " in part.stdout
    assert run.interrupt()[0] == 0


def test_a_new_plan_under_load_fails_no_request(
    tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli
) -> None:
    """One instance stays, one changes its layers under the same name, one comes and goes: no request notices."""
    run = Launched(TWO, tmp_path, FAKE_TOKEN_S="0.02").ready()
    launched.append(run)
    before = run.pids()
    stays = instance("mixed", (8, {"1xL4": (1, 300.0)}))
    changed = instance("mixed", (5, {"1xL40S": (1, 900.0)}), (3, L4))
    more = instance("mixed", (8, {"2xL4": (1, 600.0)}), count=2)
    stop = threading.Event()
    answers: list[tuple[str, str, str]] = []

    def load(worker: int) -> None:
        n = 0
        while not stop.is_set():
            prompt = f"{worker}/{n}"
            text, name, _ = ask(run.url, prompt, 6, stream=n % 2 == 0)
            answers.append((prompt, text, name))
            n += 1

    workers = [threading.Thread(target=load, args=(w,)) for w in range(4)]
    for worker in workers:
        worker.start()
    # On a slow machine a plan may be replaced before each of its instances has answered: wait until they have.
    until(lambda: len({name for _, _, name in answers}) == 2)
    up = apply(run_cli, plan(stays, changed, more), tmp_path, run.url)
    until(lambda: len({name for _, _, name in answers}) == 5)
    down = apply(run_cli, plan(stays), tmp_path, run.url)
    until(lambda: len(answers) > 40)
    stop.set()
    for worker in workers:
        worker.join()
    assert up.returncode == 0, up.stderr
    changes = json.loads(up.stdout)
    assert changes["kept"] == ["tiny-mixed-us-east-2-1xl4-0"]
    assert len(changes["started"]) == 3
    assert changes["stopped"] == ["tiny-mixed-us-east-2-1xl4-1xl40s-0"]
    assert len(json.loads(down.stdout)["stopped"]) == 3
    assert [item for item in answers if item[1] != "".join(tokens(item[0], 6))] == []
    assert len({name for _, _, name in answers}) == 5
    assert run.pids() == before[:1]
    assert gone(before[1:])
    assert run.interrupt()[0] == 0


def test_a_new_plan_that_cannot_run_changes_nothing(
    tmp_path: Path, vllm: Path, launched: list[Launched], run_cli: RunCli
) -> None:
    """A bad plan, a foreign document, or no controller at all: a clear message, and the servers go on."""
    run = Launched(TWO, tmp_path).ready()
    launched.append(run)
    pids = run.pids()
    bad = apply(run_cli, plan(instance("mixed", (3, {"2xL4": (1, 9.0)}), (5, L4))), tmp_path, run.url)
    assert (bad.returncode, "ragged-tp" in bad.stderr) == (2, True)
    (tmp_path / "vllm").rename(tmp_path / "away")
    missing = apply(run_cli, plan(instance("mixed", (8, {"1xL40S": (1, 9.0)}))), tmp_path, run.url)
    assert (missing.returncode, "cannot be started" in missing.stderr) == (2, True)
    assert run.pids() == pids
    assert ask(run.url)[2] == 200
    assert run.interrupt()[0] == 0
    nobody = apply(run_cli, TWO, tmp_path, run.url)
    assert (nobody.returncode, "no running" in nobody.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--vllm", "nosuchprogram"), "not a program"),
        (("--model-path", "tiny=./nosuch"), "no such directory"),
        (("--model-path", "other=/x"), "no model 'other'"),
        (("--port", "{taken}"), "choose another with --port"),
        (("--connector", "nixle"), "nixl-push"),
    ],
)
def test_faults_before_the_start(
    tmp_path: Path, vllm: Path, run_cli: RunCli, options: tuple[str, ...], words: str
) -> None:
    """Each is said before anything is started."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run_cli(*start(TWO, tmp_path), *(option.format(taken=port) for option in options))
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run" / "state.json").exists()


def test_gpus_this_machine_lacks(tmp_path: Path, vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few, or of another type: what is needed, what is there, what is missing; nothing is started."""
    from coralopt.errors import LaunchError
    from coralopt.runtime import VllmEngine
    from coralopt.runtime.local import LocalCluster, Pace, reconcile
    from coralopt.runtime.router import RouterConfig
    from coralopt.runtime.router.router import Router

    def error(products: tuple[str, ...], pace: Pace | None = None) -> str:
        monkeypatch.setattr(sys.modules["coralopt.runtime.local.reconcile"], "gpus_here", lambda: products)
        engine = VllmEngine(program=(str(tmp_path / "nosuch"),))
        with pytest.raises(LaunchError) as caught:
            asyncio.run(reconcile(TWO, engine, LocalCluster(tmp_path), Router(RouterConfig()), pace))
        return str(caught.value)

    said = error(("NVIDIA L4",))
    assert "needs GPUs 2 x L4, 1 x L40S; this machine has 1 x NVIDIA L4." in said
    assert "Missing: 1 x L4, 1 x L40S" in said
    assert "Missing: 1 x L40S." in error(("NVIDIA L4",) * 3)
    assert "this machine has none" in error(())
    assert "Missing: 2 x L4, 1 x L40S" in error(("Radiant X9000",) * 8)
    assert "cannot be started" in error(("NVIDIA L40S", "NVIDIA L4", "NVIDIA L4"))
    assert "cannot be started" in error(("Radiant X9000",) * 3, Pace(any_gpu=True))
    assert (
        not (tmp_path / "state.json").exists() or json.loads((tmp_path / "state.json").read_text())["pipelines"] == []
    )


def test_devices_are_of_the_planned_type() -> None:
    """On a machine with several types, each stage is shown its own."""
    from coralopt.runtime import VllmEngine, lower
    from coralopt.runtime.local import LocalAddresses
    from coralopt.runtime.local.addresses import gpu_kind

    places = LocalAddresses(kinds=["L40S", "L4", "L4", "L40S"], taken=[0])
    launch = lower(TWO, VllmEngine(), places)
    places.release()
    assert {node.configuration: set() for node in launch.nodes} == {"1xL4": set(), "1xL40S": set()}
    shown = [(node.configuration, node.env["CUDA_VISIBLE_DEVICES"]) for node in launch.nodes]
    assert sorted(shown) == [("1xL4", "1"), ("1xL4", "2"), ("1xL40S", "3")]
    products = {
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA A100-SXM4-40GB": "A100-40",
        "NVIDIA A100 80GB PCIe": "A100",
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H200": "H200",
        "Tesla T4": "T4",
        "Tesla V100-SXM2-16GB": "V100",
        "NVIDIA A10G": "A10G",
        "NVIDIA L40S": "L40S",
        "NVIDIA GeForce RTX 4090": None,
    }
    assert {product: gpu_kind(product) for product in products} == products


def test_devices_are_counted_along_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the bus, as the engines are told to count; those that the launcher may not see have no name."""
    from coralopt.runtime.local import addresses

    told = ["00000000:81:00.0, GPU-bbb2, NVIDIA L40S", "00000000:01:00.0, GPU-aaa1, NVIDIA L4"]
    told.append("00000000:02:00.0, GPU-ccc3, NVIDIA L4")
    monkeypatch.setattr(addresses, "output_of", lambda *_, **__: "\n".join(told))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert addresses.gpus_here() == ("NVIDIA L4", "NVIDIA L4", "NVIDIA L40S")
    for shown in ("GPU-bbb,0", "2,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert addresses.gpus_here() == ("NVIDIA L4", "", "NVIDIA L40S")
    places = addresses.LocalAddresses(kinds=[addresses.gpu_kind(name) for name in addresses.gpus_here()])
    assert places.devices("m", (0,), "L40S") == (2,)
    assert places.devices("n", (0, 1), "L4") == (0, -1)


def test_the_router_alone(tmp_path: Path) -> None:
    """`coralopt route` on the file that `launch` writes; it answers before any server is up, and ends on Ctrl-C."""
    import socket

    from coralopt.runtime import VllmEngine, lower
    from coralopt.runtime.router import router_document

    (tmp_path / "router.json").write_text(json.dumps(router_document(lower(TWO, VllmEngine()))))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "coralopt", "route", "router.json", "--port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        told = None
        for _ in range(2400):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            except urllib.error.HTTPError as error:
                told = (error.code, json.load(error))
                break
            except OSError:
                time.sleep(0.05)
        assert told == (503, {"models": {"tiny": False}})
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert "Traceback" not in said
        assert process.returncode == 0, said
    finally:
        process.kill()


def test_a_foreign_state_file_is_not_believed(tmp_path: Path) -> None:
    """Its numbers would be killed."""
    from coralopt.errors import LaunchError
    from coralopt.runtime.local import LocalCluster

    for text in (
        "{}",
        "[",
        '{"format": "coralopt-local-state", "version": 1, "pipelines": [{"processes": [{"pid": 1}]}]}',
    ):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(LaunchError, match=r"state\.json"):
            LocalCluster(tmp_path)
