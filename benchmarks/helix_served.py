"""Decode tokens/s of fixed pools: coralopt's layouts for most flow and for most tokens served, and Helix's own.

    python benchmarks/helix_served.py --pools helix-24 helix-42
    python benchmarks/helix_served.py --pools helix-24 --helix CHECKOUT --python HELIX_PYTHON --seeds 0 1 2

The first command simulates coralopt's layouts with coralopt. With CHECKOUT, a copy of Helix's artifact
(Thesys-lab/Helix-ASPLOS25), and an interpreter that has its packages (networkx, gurobipy, matplotlib), the same layouts run
in Helix's simulator too, beside the layout that its artifact ships: minutes a seed and layout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from coralopt.placement import PlacementPool, load_pool, place_pool
from coralopt.placement.served import (
    PoolNetwork,
    ServedSearch,
    estimate_served,
    place_served,
    pool_network,
    simulate_pool,
    write_helix_files,
)

#: Where the artifact has its own layout and cluster of a pool.
SHIPPED = {"helix-24": "single_cluster", "helix-42": "high_heterogeneity"}
CLUSTERS = {"helix-24": "cluster24.ini", "helix-42": "cluster42.ini"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", nargs="+", default=sorted(SHIPPED), choices=sorted(SHIPPED))
    parser.add_argument("--helix", type=Path, help="a copy of Helix's artifact")
    parser.add_argument("--python", default="python3", help="an interpreter with the artifact's packages")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    arguments = parser.parse_args()
    print(
        f"{'pool':<10}{'layout':<22}{'flow':>8}{'formula':>9}{'simulated':>9}{'Helix':>8}{'sd':>6}  by seed", flush=True
    )
    for name in arguments.pools:
        pool = load_pool(name)
        best = place_served(pool, ServedSearch(seed=arguments.seed))
        flow = pool_network(pool, (place_pool(pool).placement,))
        for label, network in (("most flow", flow), ("most tokens served", best.network)):
            with tempfile.TemporaryDirectory() as folder:
                write_helix_files(pool, network, Path(folder))
                simulated = _simulated(arguments, pool, Path(folder))
            _row(pool, label, network, simulated)
        print(
            f"{name:<10}{best.formulas} layouts by formula, {best.simulations} simulated, {best.seconds:.0f} s",
            flush=True,
        )
        if arguments.helix is not None:
            with tempfile.TemporaryDirectory() as folder:
                _shipped(arguments.helix, name, Path(folder))
                _row(pool, "Helix's own", None, _simulated(arguments, pool, Path(folder)))


def _shipped(checkout: Path, name: str, folder: Path) -> None:
    case = checkout / "artifact_evaluation" / SHIPPED[name]
    for source, target in (
        (case / "config" / CLUSTERS[name], "cluster.ini"),
        (case / "config" / "machine_profiles.ini", "machine_profiles.ini"),
        (case / "layout_llama70b" / "ilp" / "ilp_sol.ini", "solution.ini"),
        (case / "layout_llama70b" / "ilp" / "simulator_cluster.ini", "simulator_cluster.ini"),
    ):
        shutil.copyfile(source, folder / target)


def _simulated(arguments: argparse.Namespace, pool: PlacementPool, folder: Path) -> list[float]:
    if arguments.helix is None:
        return []
    script = Path(__file__).with_name("helix_simulator.py")
    machines = json.dumps(dict(zip(pool.configurations, pool.counts, strict=True)))
    rates = []
    for seed in arguments.seeds:
        done = subprocess.run(
            [arguments.python, str(script), str(folder), str(seed), machines],
            env={**os.environ, "PYTHONPATH": str(arguments.helix)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"Helix's simulator ended with {done.returncode}: {done.stderr[-500:]}")
        rates.append(float(done.stdout.split()[-1]))
    return rates


def _row(pool: PlacementPool, label: str, network: PoolNetwork | None, simulated: list[float]) -> None:
    own = ("", "", "")
    if network is not None:
        formula = estimate_served(pool, network).decode_tokens_s
        own = (f"{network.throughput:,.0f}", f"{formula:.1f}", f"{simulate_pool(pool, network, (1, 2, 3)).mean:.1f}")
    mean = f"{statistics.mean(simulated):.1f}" if simulated else ""
    spread = f"{statistics.stdev(simulated):.1f}" if len(simulated) > 1 else ""
    each = " ".join(f"{rate:.1f}" for rate in simulated)
    print(f"{pool.name:<10}{label:<22}{own[0]:>8}{own[1]:>9}{own[2]:>9}{mean:>8}{spread:>6}  {each}", flush=True)


if __name__ == "__main__":
    main()
