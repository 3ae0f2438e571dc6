"""What routing and order are worth: prefill attainment of phi4-14b on two and three 1xL40S instances of the plan of `core`.

    python benchmarks/routing.py             # ten seeds of 600 s, a minute
    python benchmarks/routing.py --seeds 2   # a first look

10 requests/s, Poisson arrivals, lengths with cv 1, no host time: the rules alone differ. The same requests go to every rule.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from coralopt import Plan
from coralopt.routing import ROUTINGS
from coralopt.simulation import GroupSimulator, SimulationConfig
from coralopt.simulation.state import ORDERS
from coralopt.types import Floats
from coralopt.workload import poisson_for_scenario

MODEL = "phi4-14b"


def measure(plan: Plan, seeds: int, seconds: float) -> None:
    """Print the mean attainment over the seeds of every rule, %, and its worst seed in brackets."""
    scenario = plan.resolved
    instance = next(item for item in plan.instances if item.key == f"{MODEL}/prefill")
    traces = [poisson_for_scenario(scenario, duration_s=seconds, seed=100 + seed) for seed in range(seeds)]
    traces = [trace.take(trace.model == trace.models.index(MODEL)) for trace in traces]
    print(f"{len(traces)} seeds, {sum(map(len, traces)):,} requests")
    print(f"{'instances':9} {'order':15}" + "".join(f"{routing:>24}" for routing in ROUTINGS))
    for count in (2, 3):
        group = [instance.model_copy(update={"count": count})]
        for order in ORDERS:
            cells = []
            for routing in ROUTINGS:
                simulator = GroupSimulator(scenario, config=SimulationConfig(routing=routing, order=order))
                met: Floats = np.array([100 * simulator.simulate(group, trace).attainment for trace in traces])
                cells.append(f"{met.mean():.1f} ({met.min():.1f})")
            print(f"{count:9} {order:15}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "coralopt", "plan", "core", "-o", str(file)]
        subprocess.run(command, check=True, capture_output=True)
        measure(Plan.load(file), options.seeds, options.seconds)


if __name__ == "__main__":
    main()
