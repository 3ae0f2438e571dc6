"""Helix's three published cases: proven optima in seconds, every solver, and the smallest by the paper's own ILP.

    python benchmarks/helix_pools.py --time-limit 60

First the pool search (docs/fixed-pools.md) with each MILP back end, against what Helix's MILP reached and how long it
ran on 20 threads (its published logs). Then the 10-node case as one placement problem with 10 stages, node by node
(``paper``) and by configuration (``tight``), with each back end and the dynamic programme.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from coralopt.errors import SolverError
from coralopt.placement import PlacementProblem, best_placement, load_pool, place_pool

#: Throughput in tokens/s and seconds of Helix's MILP (Gurobi 11, 20 threads), as published with its artifact.
HELIX = {"helix-10": (286.5874, 3802.9), "helix-24": (1289.5558, 600.0), "helix-42": (4137.5476, 3002.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solvers", nargs="+", default=["highs", "scip", "gurobi"])
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for one placement problem")
    arguments = parser.parse_args()
    print(f"{'case':<10}{'solver':<8}{'tokens/s':>12}{'bound':>12}{'stages':>8}{'seconds':>9}{'Helix':>16}{'its s':>9}")
    for name, (tokens, seconds) in HELIX.items():
        pool = load_pool(name)
        for solver in arguments.solvers:
            placed = place_pool(pool, solver=solver)
            print(
                f"{name:<10}{solver:<8}{placed.throughput:>12.3f}{placed.bound:>12.3f}{len(placed.placement.stages):>8}"
                f"{placed.seconds:>9.2f}{tokens:>16.3f}{seconds:>9,.0f}",
                flush=True,
            )
    pool = load_pool("helix-10")
    problem = PlacementProblem(pool.values[:10], pool.counts, pool.configurations, stages=10)
    problem = replace(problem, values=problem.values.copy())
    print(f"\n{'helix-10, 10 stages':<20}{'solver':<8}{'tokens/s':>12}{'bound':>14}{'seconds':>9}  outcome")
    for formulation in (None, "tight", "paper"):
        for solver in ["dp"] if formulation is None else arguments.solvers:
            started = time.perf_counter()
            try:
                options = {"time_limit": arguments.time_limit, "rel_gap": 1e-6}
                solution = best_placement(problem, solver, formulation, options)
            except SolverError as error:
                print(f"{formulation or '':<20}{solver:<8}{'':>35}  {str(error)[:90]}")
                continue
            print(
                f"{formulation or '':<20}{solver:<8}{solution.objective:>12.3f}{solution.bound or 0:>14.3f}"
                f"{time.perf_counter() - started:>9.2f}  {solution.termination.reason.value}",
                flush=True,
            )


if __name__ == "__main__":
    main()
