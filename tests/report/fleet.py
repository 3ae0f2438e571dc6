"""A router with its fleet page, in a process of its own, in front of small servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coralopt import Plan

sys.path.insert(0, str(Path(__file__).parent))

from small_engine import SmallEngine, small_engines

#: The admin key.
FLEET_KEY = "look"


@contextmanager
def running_fleet(folder: Path, plan: Plan) -> Iterator[tuple[str, list[SmallEngine]]]:
    """The router of a plan that ends with the context: its URL, and a server for each instance."""
    plan.save(folder / "plan.json")
    instances = [(item, k) for item in plan.instances for k in range(item.count)]
    with small_engines(len(instances)) as engines:
        backends = [
            {
                "name": f"{item.model}-{item.phase}-{number}",
                "model": item.model,
                "phase": item.phase,
                "url": engine.url,
                "weight": item.tokens_s,
                "max_in_flight": 16,
                "region": item.region,
            }
            for number, ((item, _), engine) in enumerate(zip(instances, engines, strict=True))
        ]
        (folder / "router.json").write_text(json.dumps({"backends": backends, "health_interval_s": 0.3}))
        words = ["route", "router.json", "--port", "0", "--fleet", "plan.json"]
        router = subprocess.Popen(
            [sys.executable, "-m", "coralopt", *words],
            cwd=folder,
            env={**os.environ, "CORALOPT_ADMIN_KEY": FLEET_KEY},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert router.stderr is not None
            url = router.stderr.readline().split("routing at ")[1].split("/v1")[0]
            yield url, engines
        finally:
            router.kill()
            router.communicate()


def ask(url: str, model: str, tokens: int = 8) -> None:
    """One streamed answer, read to its end."""
    body = {"model": model, "prompt": "word " * 20, "stream": True, "max_tokens": tokens}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
