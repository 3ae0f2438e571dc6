"""A running `coralopt launch start` with the stand-in for vllm, for whatever a test does to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime_plans import instance, plan

from coralopt.plan import Plan
from coralopt.processes import birth

HERE = Path(__file__).parent
L4 = {"1xL4": (1, 900.0)}
TWO = plan(instance("mixed", (8, {"1xL4": (1, 300.0)})), instance("mixed", (3, {"1xL40S": (1, 900.0)}), (5, L4)))


def start(document: Plan, folder: Path) -> list[str]:
    """The words after `coralopt` that start the plan from ``folder`` with the stand-in."""
    document.save(folder / "plan.json")
    words = ["launch", "start", "plan.json", "--no-verify", "--cpu", "--vllm", str(folder / "vllm")]
    return [*words, "--port", "0", "-o", "run", "--json"]


class Launched:
    """A running ``coralopt launch start``."""

    def __init__(self, document: Plan, folder: Path, *options: str, **env: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coralopt", *start(document, folder), *options],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""

    def ready(self) -> Launched:
        """Wait for the document that says where the router is."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        assert text, self.process.stderr and self.process.stderr.read()
        self.told = json.loads(text)
        self.url = self.told["router"]
        return self

    def pids(self) -> list[int]:
        """Every server process on record."""
        state = json.loads((self.folder / "run" / "state.json").read_text())
        return [process["pid"] for pipeline in state["pipelines"] for process in pipeline["processes"]]

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; exit code and what was said."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


def ask(
    url: str, prompt: str = "p", count: int = 5, stream: bool = False, key: str | None = None
) -> tuple[str, str, int]:
    """Text of the answer, instance, status."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": count, "stream": stream}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            raw, name = answer.read().decode(), answer.headers["X-Coralopt-Instance"]
    except urllib.error.HTTPError as error:
        return error.read().decode(), "", error.code
    if not stream:
        return json.loads(raw)["choices"][0]["text"], name, 200
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["text"] if "choices" in event else "ERROR" for event in events), name, 200


def until(what: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until ``what`` holds; much longer than it takes on an idle machine."""
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "in vain"
        time.sleep(0.05)


def backends(url: str) -> list[dict[str, Any]]:
    """What the router of a launch under test says of its backends."""
    with urllib.request.urlopen(admin(f"{url}/router/backends"), timeout=60) as answer:
        listed: list[dict[str, Any]] = json.load(answer)["backends"]
        return listed


def admin(url: str) -> urllib.request.Request:
    """A question for the admin endpoints of a launch under test."""
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['CORALOPT_ADMIN_KEY']}"})


def gone(pids: list[int]) -> bool:
    return all(birth(pid) is None for pid in pids)


def strays(folder: Path) -> list[str]:
    """Processes of the stand-in that were started from ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            mine = f"PWD={folder}".encode() in entry.read_bytes()
            line = (entry.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if mine and b"fake_vllm" in line:
            found.append(line.decode(errors="replace"))
    return found
