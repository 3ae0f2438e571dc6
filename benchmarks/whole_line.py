"""Time and memory of whole commands, from the start of the process to the checked plan.

    python benchmarks/whole_line.py                        # this checkout
    python benchmarks/whole_line.py --before DIR           # another checkout in turns with it; ratios within one run
    python benchmarks/whole_line.py --profile core         # where the time of one plan goes, by function

``from nothing`` has no template library, ``warm`` has one; compiled code is there in both. CPU seconds are those of the
process and its children, peak memory that of the largest process. ``next epoch`` is what one more plan takes in a process
that has made one, every demand changed by up to 10 %, warm from the plan before it; the median of eight.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
#: Seconds of the plans of eight epochs, wall and CPU; a program of its own, so that another checkout can run it.
EPOCHS = """
import sys, time
from dataclasses import replace
import numpy as np
from coralopt import load_scenario
from coralopt.planning import PlanRequest, get_planner

planner, request = get_planner("coral"), PlanRequest(load_scenario(sys.argv[1]))
outcome, random = planner.plan(request), np.random.default_rng(0)
demand = np.array([phase.demand_tokens_s for phase in request.scenario.model_phases])
for epoch in range(8):
    scenario = request.scenario.with_demand(demand * random.uniform(0.9, 1.1, len(demand)))
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = planner.plan(replace(request, scenario=scenario, warm=outcome.warm))
    print(time.perf_counter() - wall, time.process_time() - cpu, outcome.plan.cost_usd_h)
"""


def environment_of(checkout: Path, cache: Path) -> dict[str, str]:
    """What a process of this checkout needs."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "solvers")]),
        "XDG_CACHE_HOME": str(cache),
        # As installed: Python keeps what it compiles.
        "PYTHONPYCACHEPREFIX": str(cache / "bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def next_epoch(checkout: Path, cache: Path, scenario: str) -> tuple[float, float, list[str]]:
    """Median wall and CPU seconds of the plan of one more epoch, and what each of them costs."""
    command = [sys.executable, "-c", EPOCHS, scenario]
    environment = environment_of(checkout, cache)
    output = subprocess.run(command, env=environment, cwd=cache, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in output.splitlines()]
    return median(float(row[0]) for row in rows), median(float(row[1]) for row in rows), [row[2] for row in rows]


def run(checkout: Path, cache: Path, scenario: str, profile: bool = False) -> tuple[float, float, float]:
    """Wall and CPU seconds and peak GiB of one ``coralopt plan``."""
    command = [sys.executable, *(["-m", "cProfile", "-s", "tottime"] if profile else []), "-m", "coralopt"]
    command += ["plan", scenario, "--no-play", "-o", str(cache / "plan.json")]
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment_of(checkout, cache),
        cwd=cache,
        stdout=None if profile else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"plan {scenario} failed in {checkout}")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--scenarios", default="core,extended")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", help="one warm plan of this scenario under cProfile")
    settings = parser.parse_args(arguments)
    checkouts = [HERE] if settings.before is None else [HERE, settings.before.resolve()]
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / str(k) for k in range(len(checkouts))]
        for cache in caches:
            cache.mkdir()
        if settings.profile:
            run(HERE, caches[0], settings.profile)
            run(HERE, caches[0], settings.profile, profile=True)
            return
        print(f"| {'plan':24} | wall s | CPU s | GiB |{' CPU s before | ratio |' if len(checkouts) > 1 else ''}")
        for scenario in settings.scenarios.split(","):
            for checkout, cache in zip(checkouts, caches, strict=True):
                run(checkout, cache, scenario)
            for case in ("from nothing", "warm"):
                figures: list[list[tuple[float, float, float]]] = [[] for _ in checkouts]
                for _ in range(settings.runs):
                    for k, (checkout, cache) in enumerate(zip(checkouts, caches, strict=True)):
                        for file in cache.rglob("*.parquet") if case == "from nothing" else ():
                            file.unlink()
                        figures[k].append(run(checkout, cache, scenario))
                wall, cpu, gib = (median(column) for column in zip(*figures[0], strict=True))
                before = [median(row[1] for row in rows) for rows in figures[1:]]
                print(line(f"{scenario}, {case}", wall, cpu, f"{gib:.2f}", before), flush=True)
            epochs = [next_epoch(checkout, cache, scenario) for checkout, cache in zip(checkouts, caches, strict=True)]
            wall, cpu, costs = epochs[0]
            for _, _, others in epochs[1:]:
                if others != costs:
                    raise SystemExit(f"plans of {scenario} cost {costs} here, {others} in {settings.before}")
            print(line(f"{scenario}, next epoch", wall, cpu, "    ", [row[1] for row in epochs[1:]]), flush=True)


def line(name: str, wall: float, cpu: float, gib: str, before: Sequence[float]) -> str:
    """A row of the table; with CPU seconds of another checkout these and the ratio."""
    row = f"| {name:24} | {wall:6.2f} | {cpu:5.2f} | {gib} |"
    return row + "".join(f" {other:12.2f} | {cpu / other:5.2f} |" for other in before)


if __name__ == "__main__":
    main()
