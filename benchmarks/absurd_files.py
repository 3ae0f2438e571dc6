"""What refusing absurd scenario files takes: CPU seconds of ``coralopt scenario check`` for each, and for a good one.

``python benchmarks/absurd_files.py``. A whole process is measured, imports included.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODEL = {
    "slo": {"ttft_ms": 1600, "tpot_ms": 100},
    "demand": {"requests_s": 1, "input_tokens": 10, "output_tokens": 10},
}


NODE = {"1xL40S": {"available": 1, "price_usd_h": 2}}


def scenarios() -> Iterator[tuple[str, str]]:
    """Names of files and their texts; the first is in order."""

    def text(models: Any = None, nodes: object = NODE, regions: Any = None, **keys: int) -> str:  # Any: JSON
        pool = {"regions": {"east": {"configurations": nodes}, **(regions or {})}}
        return json.dumps({"models": {"qwen3-32b": MODEL, **(models or {})}, "pool": pool, **keys})

    yield "good.json", text()
    for suffix in ("json", "yaml"):
        for count in (24_000, 100_000) if suffix == "yaml" else (48_000, 100_000):
            # A file of YAML may have a million characters: short keys, a mapping alone for a model.
            yield f"keys-{count}.{suffix}", text(**{f"k{k}": 1 for k in range(count)})
            yield f"models-{count}.{suffix}", text(models={f"m{k}": {} for k in range(count)})
    yield "configurations-100000.json", text(nodes={f"{k}xL40Q": 1 for k in range(100_000)})
    yield "regions-16000.json", text(regions={f"r{k}": {"configurations": {"1xL40S": 1}} for k in range(16_000)})
    yield "list-1000000.json", text(nodes=["1xL40S"] * 1_000_000)


def main() -> None:
    """Print a line for each file."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in scenarios():
            path = Path(folder) / name
            path.write_text(text)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            ran = subprocess.run(
                [sys.executable, "-m", "coralopt", "scenario", "check", path],
                capture_output=True,
                text=True,
                check=False,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            said = (ran.stderr or ran.stdout).splitlines()
            print(f"{name:28} {seconds:5.2f} CPU s, {len(said):3} lines: {said[-1].strip()[:90]}")


if __name__ == "__main__":
    main()
