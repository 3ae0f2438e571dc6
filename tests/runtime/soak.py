"""Servers under load while they are killed and re-planned: what became of every stream, and what is left at the end.

    python tests/runtime/soak.py --seconds 600

Four stand-ins for vLLM behind `coralopt launch start`; 50 streams a second; `kill -9` of one server every 20 s, another plan
every 45 s, one request a second that every server answers with a 500, one slow client a second. Exit code 1 when a
stream was lost, doubled or cut without a word, when anybody but the poison was turned away, or when something is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from fake_vllm import tokens
from launched import HERE, Launched, strays
from runtime_plans import instance, plan

L4 = {"1xL4": (1, 300.0)}
PLANS = (
    plan(instance("mixed", (8, L4), count=4, batch=200)),
    plan(instance("mixed", (8, L4), count=3, batch=200), instance("mixed", (8, {"1xL40S": (1, 300.0)}), batch=200)),
)
TOKENS = 10


class Soak:
    """One run.

    Args:
        run: The launch.
        rate: Streams a second.
    """

    def __init__(self, run: Launched, rate: float) -> None:
        self.run, self.rate = run, rate
        self.outcomes: Counter[str] = Counter()
        self.odd: list[str] = []
        self.kills = self.plans = 0
        self._over = False

    async def whole(self, seconds: float, kill_s: float, plan_s: float) -> None:
        """Everything at once, for so long; then every stream is waited for."""
        connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
            self._session = session
            async with asyncio.TaskGroup() as group:
                for every, do in (
                    (1 / self.rate, lambda n: self.stream(f"s{n}")),
                    (1.0, lambda n: self.poison(n)),
                    (1.0, lambda n: self.stream(f"slow{n}", pause_s=0.3)),
                ):
                    group.create_task(self._often(group, every, do, seconds))
                group.create_task(self._often(group, kill_s, self.kill, seconds - kill_s))
                group.create_task(self._often(group, plan_s, self.follow, seconds - plan_s))

    async def _often(self, group: asyncio.TaskGroup, every_s: float, do: object, seconds: float) -> None:
        begun, number = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            group.create_task(do(number))  # type: ignore[operator]
            number += 1
            await asyncio.sleep(max(0.0, begun + number * every_s - time.monotonic()))

    async def stream(self, prompt: str, pause_s: float = 0.0) -> None:
        """One stream, to its end; what became of it is counted."""
        outcome, text = await self._read(prompt, pause_s)
        self.outcomes[outcome] += 1
        if outcome not in ("whole", "told"):
            self.odd.append(f"{prompt}: {outcome}: {text[-300:]}")

    async def _read(self, prompt: str, pause_s: float) -> tuple[str, str]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "stream": True}
        text = ""
        try:
            async with self._session.post(f"{self.run.url}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    return ("foreign 503" if answer.status == 503 else f"status {answer.status}"), await answer.text()
                async for line in answer.content:
                    text += line.decode()
                    await asyncio.sleep(pause_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return "lost", f"{text} {error!r}"
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        words = [event["choices"][0]["text"] for event in events if event.get("choices")]
        right = tokens(prompt, TOKENS)
        if words != right[: len(words)]:
            return "doubled or wrong", text
        if any("error" in event for event in events):
            return "told", text
        return ("whole" if len(words) == TOKENS and "data: [DONE]" in text else "cut without a word"), text

    async def poison(self, number: int) -> None:
        """A request that every server answers with a 500."""
        body = {"model": "tiny", "prompt": "poison", "max_tokens": 1}
        async with self._session.post(f"{self.run.url}/v1/completions", json=body) as answer:
            self.outcomes[f"poison {answer.status}"] += 1

    async def kill(self, number: int) -> None:
        """`kill -9` of a server that answers."""
        if number and (pids := self.run.pids()):
            # It may have ended by itself since it was written down.
            with suppress(ProcessLookupError):
                os.kill(random.Random(number).choice(pids), signal.SIGKILL)
                self.kills += 1

    async def follow(self, number: int) -> None:
        """The other plan."""
        if number:
            PLANS[number % 2].save(self.run.folder / "new.json")
            command = [sys.executable, "-m", "coralopt", "launch", "apply", "new.json", "run", "--no-verify"]
            ended = await asyncio.to_thread(
                subprocess.run, command, cwd=self.run.folder, capture_output=True, text=True, check=False, timeout=110
            )
            self.plans += ended.returncode == 0


def soak(seconds: float, rate: float = 50.0, kill_s: float = 20.0, plan_s: float = 45.0) -> dict[str, object]:
    """Run it; what came out, with ``failed``: the bars that do not hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vllm").write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_vllm.py"} "$@"\n')
        (folder / "vllm").chmod(0o755)
        run = Launched(PLANS[0], folder, "--restarts", "1000", "--drain", "30", FAKE_TOKEN_S="0.02", FAKE_WORKERS="1")
        try:
            run.ready()
            controller, sizes = psutil.Process(run.process.pid), []
            test = Soak(run, rate)

            async def watched() -> None:
                task = asyncio.create_task(test.whole(seconds, kill_s, plan_s))
                while not task.done():
                    await asyncio.wait({task}, timeout=1)
                    sizes.append((controller.memory_info().rss / 2**20, controller.num_fds()))
                await task

            asyncio.run(watched())
            time.sleep(3)
            descriptors = controller.num_fds()
            first, last = (max(rss for rss, _ in part) for part in (sizes[: len(sizes) // 3 or 1], sizes[-3:]))
            code, said = run.interrupt()
        finally:
            run.process.kill()
            for pid in run.pids():
                psutil.pid_exists(pid) and os.kill(pid, signal.SIGKILL)
        left = strays(folder)
    report: dict[str, object] = {
        "outcomes": dict(test.outcomes),
        "odd": test.odd[:10],
        "kills": test.kills,
        "plans_followed": test.plans,
        "controller_mib": [round(first, 1), round(last, 1)],
        "descriptors": [sizes[0][1], descriptors],
        "left_over": left,
        "exit_code": code,
    }
    # A poison request whose last server dies on it gets a 502; that is its own.
    others = {outcome for outcome in test.outcomes if not outcome.startswith("poison")}
    bars = {
        "no stream is lost, doubled, cut or turned away": others <= {"whole", "told"},
        "most streams are whole": test.outcomes["whole"] >= 0.98 * (test.outcomes["whole"] + test.outcomes["told"]),
        "nothing is left over": not left,
        "descriptors are closed": descriptors <= sizes[0][1] + 20,
        "memory is flat": last <= first + 30,
        "servers were killed and plans followed": bool(test.kills and test.plans) and code == 0,
        "no traceback": "Traceback" not in said,
    }
    return {**report, "failed": [bar for bar, holds in bars.items() if not holds]}


def main() -> int:
    """Print the report; 1 when a bar does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=50.0, help="streams a second")
    parser.add_argument("--kill", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--plan", type=float, default=45.0, help="seconds between two plans")
    given = parser.parse_args()
    report = soak(given.seconds, given.rate, given.kill, given.plan)
    print(json.dumps(report, indent=1))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
