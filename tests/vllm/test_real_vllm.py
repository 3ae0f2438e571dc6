"""The runtime with a real vLLM on CPU: `make test-vllm`, or CORALOPT_VLLM=the program of a CPU build; 10-20 minutes.

The tests do, with real servers, what tests/runtime/test_local.py and test_loop.py do with a stand-in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from make_model import WORDS
from runtime_plans import MODEL, instance, plan

from coralopt.plan import Plan
from coralopt.planning import plan_scenario
from coralopt.runtime.local import RemoteController
from coralopt.scenario import scenario_from_mapping

VLLM = os.environ.get("CORALOPT_VLLM")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not VLLM, reason="CORALOPT_VLLM does not name a vllm program")]

QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: Longer than two of ExampleConnector's blocks of 128 tokens.
PROMPTS = [" ".join(WORDS[(7 * n + 3 * i * i) % len(WORDS)] for i in range(290)) for n in range(4)]
SINGLE = instance("mixed", (8, {"1xL4": (1, 300.0)}), batch=8)
UNEVEN = instance("mixed", (3, {"1xL40S": (1, 900.0)}), (5, {"1xL4": (1, 900.0)}), batch=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny seeded checkpoint."""
    folder = tmp_path_factory.mktemp("model")
    assert VLLM is not None
    python = Path(VLLM).with_name("python")
    script = Path(__file__).with_name("make_model.py")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([str(python), str(script), str(folder)], check=True, capture_output=True, env=environment)
    return folder


class Controller:
    """A running ``coralopt launch start`` with real servers."""

    def __init__(self, document: Plan, model: Path, folder: Path, *options: str) -> None:
        document.save(folder / "plan.json")
        self.folder = folder
        arguments = [
            "launch",
            "start",
            "plan.json",
            "--no-verify",
            "--cpu",
            "--vllm",
            str(VLLM),
            "--kv-cache",
            "64M",
            "--interface",
            "lo",
        ]
        arguments += ["--model-path", f"tiny={model}", "--port", "0", "-o", "run", "--json", "--ready-timeout", "400"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coralopt", *arguments, *options],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "", **QUIET},
            stdout=subprocess.PIPE,
            stderr=(folder / "said").open("a"),
            text=True,
        )
        assert self.process.stdout is not None
        text = "".join(iter(lambda: self._line(), "}\n")) + "}"
        self.url = json.loads(text)["router"]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "said").read_text()
        return line

    def state(self) -> dict[str, list[int]]:
        pipelines = json.loads((self.folder / "run" / "state.json").read_text())["pipelines"]
        return {p["backend"]["name"]: [process["pid"] for process in p["processes"]] for p in pipelines}

    def urls(self) -> dict[str, str]:
        return {item["name"]: item["url"] for item in self._backends()}

    def health(self) -> list[bool]:
        return [item["healthy"] for item in self._backends()]

    def _backends(self) -> list[dict[str, Any]]:
        return RemoteController(str(self.folder / "run")).status()["backends"]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(180) == 0, (self.folder / "said").read_text()


@pytest.fixture
def controllers() -> Iterator[list[Controller]]:
    """Whatever a test leaves is killed."""
    running: list[Controller] = []
    yield running
    for item in running:
        item.process.kill()
        for pids in item.state().values():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def tokens(url: str, prompt: str, count: int = 24) -> tuple[list[int], str]:
    """Greedy token numbers and the server's own name of its layout."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": count, "temperature": 0, "return_token_ids": True}
    request = Request(f"{url}/v1/completions", json.dumps({**body, "ignore_eos": True}).encode())
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=120) as answer:
        data = json.load(answer)
    return data["choices"][0]["token_ids"], data.get("system_fingerprint") or ""


def complete(url: str, prompt: str, stream: bool) -> tuple[str, str]:
    """``whole``, ``broken`` or ``lost``, and the instance."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": stream}
    request = Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request, timeout=120) as answer:
            text, name = answer.read().decode(), answer.headers["X-Coralopt-Instance"]
    except OSError as error:
        return f"lost: {error}", ""
    if stream and "[DONE]" not in text:
        return ("broken" if '"error"' in text else "cut off"), name
    return "whole", name


class Load:
    """Steady requests from some threads, one at a time each, for the length of the context.

    Args:
        url: Of the router.
        workers: Threads.
        every_s: Least seconds from one request of a thread to its next.
    """

    def __init__(self, url: str, workers: int, every_s: float = 0.0) -> None:
        self.url = url
        self.every_s = every_s
        self.answers: list[tuple[str, str]] = []
        self._stop = threading.Event()
        self._workers = [threading.Thread(target=self._work, args=(w,)) for w in range(workers)]

    def _work(self, worker: int) -> None:
        n = 0
        while not self._stop.is_set():
            due = time.monotonic() + self.every_s
            self.answers.append(complete(self.url, f"node {worker} {n}", n % 2 == 0))
            n += 1
            self._stop.wait(max(0.0, due - time.monotonic()))

    def __enter__(self) -> Load:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for worker in self._workers:
            worker.join()


def coralopt(folder: Path, *arguments: str) -> Any:
    """A command that prints JSON."""
    command = [sys.executable, "-m", "coralopt", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def apply(document: Plan, folder: Path) -> Any:
    """What the controller did to follow the plan."""
    document.save(folder / "new.json")
    return coralopt(folder, "launch", "apply", "new.json", "run", "--no-verify")


def test_uneven_layers_weights_restart_replan_and_kill(
    model: Path, tmp_path: Path, controllers: list[Controller]
) -> None:
    """The whole life of a small cluster with two instances, one of them of 3 + 5 layers over two processes."""
    run = Controller(plan(SINGLE, UNEVEN), model, tmp_path)
    controllers.append(run)
    single, uneven = run.urls()["tiny-mixed-us-east-2-1xl4-0"], run.urls()["tiny-mixed-us-east-2-1xl4-1xl40s-0"]
    answers = [tokens(single, prompt) for prompt in PROMPTS]
    assert len({tuple(ids) for ids, _ in answers}) == len(PROMPTS), "the prompts tell nothing apart"
    split = [tokens(uneven, prompt) for prompt in PROMPTS]
    assert [ids for ids, _ in split] == [ids for ids, _ in answers]
    assert all("-pp2-" in layout for _, layout in split)
    (tmp_path / "expected.json").write_text(json.dumps([ids for ids, _ in answers]))

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: complete(run.url, f"plan {n}", n % 2 == 0), range(300)))
    assert Counter(state for state, _ in done) == {"whole": 300}
    share = Counter(name for _, name in done)["tiny-mixed-us-east-2-1xl4-0"] / 300
    assert abs(share - 0.25) < 0.05

    pids = run.state()
    run.process.kill()
    run.process.wait()
    run = Controller(plan(SINGLE, UNEVEN), model, tmp_path)
    controllers.append(run)
    assert run.state() == pids

    with Load(run.url, 2) as load:
        more = instance("mixed", (8, {"1xA100": (1, 300.0)}), batch=8)
        up = apply(plan(SINGLE, UNEVEN, more), tmp_path)
        time.sleep(3)
        down = apply(plan(SINGLE, more), tmp_path)
        time.sleep(3)
    assert up == {
        "kept": ["tiny-mixed-us-east-2-1xl4-0", "tiny-mixed-us-east-2-1xl4-1xl40s-0"],
        "started": ["tiny-mixed-us-east-2-1xa100-0"],
        "stopped": [],
    }
    assert down["stopped"] == ["tiny-mixed-us-east-2-1xl4-1xl40s-0"]
    assert Counter(state for state, _ in load.answers) == {"whole": len(load.answers)}
    assert len({name for _, name in load.answers}) == 3

    victim = run.state()["tiny-mixed-us-east-2-1xa100-0"][0]
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(complete, run.url, f"server {n}", n % 2 == 0) for n in range(200)]
        time.sleep(1)
        os.kill(victim, signal.SIGKILL)
        states: Counter[Any] = Counter(future.result()[0] for future in futures)
    assert set(states) <= {"whole", "broken"}
    assert states["broken"] <= 8
    killed = time.monotonic()
    while run.health() != [True, True]:
        assert time.monotonic() - killed < 300, (tmp_path / "said").read_text()
        time.sleep(0.5)
    back = time.monotonic() - killed
    assert run.state()["tiny-mixed-us-east-2-1xa100-0"] != [victim]
    print(
        f"\n3 + 5 layers: tokens equal; weights: {share:.3f} of 0.25; scale up, then drain: {len(load.answers)} of "
        f"{len(load.answers)} requests whole; kill -9: {dict(states)}, back after {back:.0f} s"
    )
    run.interrupt()
    assert run.state() == {}


def test_prefill_and_decode_with_other_splits(model: Path, tmp_path: Path, controllers: list[Controller]) -> None:
    """Prefill on 3 + 5 layers, decode on 5 + 3 and, for comparison, a single server: equal tokens."""
    single = Controller(plan(SINGLE), model, tmp_path)
    controllers.append(single)
    expected = [tokens(single.url, prompt)[0] for prompt in PROMPTS]
    single.interrupt()
    halves = plan(
        instance("prefill", (3, {"1xL4": (1, 900.0)}), (5, {"1xL4": (1, 900.0)})),
        instance("decode", (5, {"1xL40S": (1, 900.0)}), (3, {"1xL4": (1, 900.0)})),
    )
    run = Controller(halves, model, tmp_path, "--connector", "example", "--kv-directory", str(tmp_path / "kv"))
    controllers.append(run)
    assert [tokens(run.url, prompt)[0] for prompt in PROMPTS] == expected
    decode = run.urls()["tiny-decode-us-east-2-1xl4-1xl40s-0"]
    with urlopen(f"{decode}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if 'source="external_kv_transfer"' in line]
    moved = max(float(line.rsplit(" ", 1)[1]) for line in lines if "_total{" in line)
    assert moved >= 256 * len(PROMPTS)
    print(f"{moved:.0f} prompt tokens came through the connector")
    run.interrupt()


def test_measured_demand_makes_the_plan(model: Path, tmp_path: Path, controllers: list[Controller]) -> None:
    """The closed loop: load makes `follow` start a second server, silence stops it, and no request fails."""
    document = {
        "mode": "mixed",
        # By least work, the default, two clients that wait for each other would never reach the second server.
        "serving": {"routing": "weighted-round-robin"},
        "models": {
            "tiny": {
                "model": MODEL,
                "slo": {"ttft_ms": 1000, "tpot_ms": 100, "attainment": "mean"},
                "demand": {"requests_s": 1, "input_tokens": 10, "output_tokens": 8},
            }
        },
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL4": {"available": 2, "price_usd_h": 1.0}}}}},
        "pruning": {"max_nodes": 1, "memory_ratio": 1e6},
    }
    (tmp_path / "scenario.yaml").write_text(json.dumps(document))
    first = plan_scenario(scenario_from_mapping(document, source="test"))
    run = Controller(first, model, tmp_path)
    controllers.append(run)
    # Two clients ask for 8 tokens every two seconds; with this headroom that is worth one and a half instances.
    headroom = 1.5 * first.instances[0].tokens_s / 8 - 1
    loop = [
        "follow",
        "scenario.yaml",
        "--router",
        "run",
        "--every",
        "20",
        "--epochs",
        "1",
        "--headroom",
        f"{headroom}",
    ]
    with Load(run.url, 2, every_s=2) as load:
        time.sleep(4)
        (up,) = coralopt(tmp_path, *loop)["epochs"]
        time.sleep(10)
    measured = up["measured_tokens_s"]["tiny/mixed"]
    assert up["problem"] is None
    assert len(up["changes"]["started"]) == 1, up
    (down,) = coralopt(tmp_path, *loop)["epochs"]
    assert down["problem"] is None
    assert len(down["changes"]["stopped"]) == 1, down
    assert Counter(state for state, _ in load.answers) == {"whole": len(load.answers)}
    assert len({name for _, name in load.answers}) == 2
    assert len(run.state()) == 1
    print(f"\nclosed loop: {measured:.1f} tokens/s measured; 1 -> 2 -> 1 instances, {len(load.answers)} requests whole")
    run.interrupt()
