"""How long until what died or hangs serves again, with stand-ins for vLLM that take their time to start.

    python tests/runtime/recovery.py

Two pipelines die at once, then one of them while the other cannot start; a pipeline dies while a new plan starts; a server
hangs. Each time from the blow to the first answer, and the bar it is held against. Exit code 1 when one does not hold.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from launched import HERE, L4, Launched, ask
from runtime_plans import instance, plan

#: Seconds that a stand-in takes to start where nothing else is said.
START_S = 8.0
LEFT, RIGHT = instance("mixed", (8, L4), batch=5), instance("mixed", (8, {"1xL40S": (1, 900.0)}), batch=7)
SCRIPT = f"""#!/bin/sh
case "$*" in *"max-num-seqs 7 "*) [ -e later ] && sleep 20;; esac
[ -e slow ] && export FAKE_START_S={START_S}
exec {sys.executable} {HERE / "fake_vllm.py"} "$@"
"""


def of(run: Launched, name: str) -> int:
    """The process of the pipeline with ``name`` in its name; 0 when it has none."""
    state = json.loads((run.folder / "run" / "state.json").read_text())
    pids = [p["pid"] for item in state["pipelines"] if name in item["backend"]["name"] for p in item["processes"]]
    return pids[0] if pids else 0


def answers(run: Launched) -> set[str]:
    """Who answers, over some requests."""
    return {name for _, name, status in (ask(run.url, f"p{n}", 1) for n in range(6)) if status == 200}


def until(what: Callable[[], bool], begun: float) -> float:
    while not what():
        assert time.monotonic() - begun < 120, "in vain"
        time.sleep(0.05)
    return time.monotonic() - begun


def measure(folder: Path) -> list[tuple[str, float, float]]:
    """What was done, seconds until it served again, and the bar."""
    (folder / "vllm").write_text(SCRIPT)
    (folder / "vllm").chmod(0o755)
    run = Launched(plan(LEFT, RIGHT), folder, "--restarts", "100", "--drain", "5").ready()
    found = []
    try:
        (folder / "slow").touch()
        begun = time.monotonic()
        for name in ("1xl4-", "1xl40s-"):
            os.kill(of(run, name), signal.SIGKILL)
        first = until(lambda: ask(run.url, count=1)[2] == 200, begun)
        found.append((f"two deaths at once, first back (a start takes {START_S:g} s)", first, 9.0))
        found.append(("two deaths at once, both back", until(lambda: len(answers(run)) == 2, begun), 11.0))
        (folder / "slow").unlink()
        plan(LEFT).save(folder / "left.json")
        plan(LEFT, RIGHT).save(folder / "both.json")
        command = [sys.executable, "-m", "coralopt", "launch", "apply", "--no-verify"]
        subprocess.run([*command, "left.json", "run"], cwd=folder, check=True, capture_output=True)
        (folder / "later").touch()
        with subprocess.Popen([*command, "both.json", "run"], cwd=folder, stdout=-3, stderr=-3) as applying:
            while not of(run, "1xl40s-"):
                time.sleep(0.05)
            begun, victim = time.monotonic(), of(run, "1xl4-")
            os.kill(victim, signal.SIGKILL)
            took = until(lambda: of(run, "1xl4-") not in (0, victim) and bool(answers(run)), begun)
            assert applying.poll() is None, "the new plan was there before"
            found.append(("a death while a new plan takes 20 s to start (a start takes no time)", took, 3.0))
        (folder / "later").unlink()
        begun, victim = time.monotonic(), of(run, "1xl4-")
        os.kill(victim, signal.SIGSTOP)
        took = until(lambda: of(run, "1xl4-") not in (0, victim) and len(answers(run)) == 2, begun)
        found.append(("a server that hangs (SIGSTOP)", took, 30.0))
    finally:
        run.interrupt()
    return found


def main() -> int:
    os.environ.setdefault("CORALOPT_ADMIN_KEY", "admin")
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name))
    for what, took, bar in found:
        print(f"{what}: {took:.1f} s (bar {bar:g} s){'' if took <= bar else ' NOT HELD'}")
    return int(any(took > bar for _, took, bar in found))


if __name__ == "__main__":
    sys.exit(main())
