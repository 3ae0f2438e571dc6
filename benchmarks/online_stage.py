"""Time to a proven gap of the online stage at full scale.

    python benchmarks/online_stage.py --cache DIR                     # every case, HiGHS
    python benchmarks/online_stage.py --cache DIR --case scarce --seeds 0,1,2 --demand 1,5
    python benchmarks/online_stage.py --cache DIR --case growth
    python benchmarks/online_stage.py --cache DIR --solvers highs,scip --case scarce

The library of the scenario (``extended``: more than a million templates, three regions) is built once and kept in DIR.
Cases:

* ``ample``: ten times the estimated demand in nodes;
* ``scarce``: 25 % (``core``) or 75 % (``extended``) above it, as in the paper's section 5.4;
  coralopt.testing.online_instances says how the demand is estimated;
* ``epochs``: a walk of small changes from the scarce instance, every epoch solved from the last one's state and anew;
* ``growth``: ample supply over the templates of at most 2, 3, ... nodes.

``--demand F`` multiplies the scenario's demand: 5 makes a cluster of the paper's size (100 to 300 GPUs). Each line is one
run: wall and CPU seconds until a plan with that gap was there and proven, its cost, its bound, the gap reached, and the
peak memory of the process so far. Runs that end at the time limit say so by their gap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.allocation import (
    AllocationProblem,
    AllocationResult,
    AllocationSearchOptions,
    AllocationState,
    solve_allocation,
)
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.testing.online_instances import AMPLE, SCARCE, base_problem, next_epoch, with_supply

HEAD = (
    f"{'case':28} {'solver':7} {'columns':>9} {'gap asked':>9} {'wall s':>7} {'CPU s':>7} {'cost USD/h':>11} "
    f"{'bound':>11} {'gap':>8} {'GiB':>5}"
)


class Table:
    """Prints a line a run and keeps them for ``--json``."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        print(HEAD, flush=True)

    def run(
        self,
        case: str,
        problem: AllocationProblem,
        solver: str,
        gap: float,
        limit: float,
        state: AllocationState | None = None,
    ) -> AllocationResult | None:
        """One solve, one line."""
        wall, cpu = time.perf_counter(), time.process_time()
        result: AllocationResult | None = None
        with contextlib.suppress(NoSolutionError):
            result = solve_allocation(
                problem, solver, {"rel_gap": gap, "time_limit": limit}, AllocationSearchOptions(state=state)
            )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        row: dict[str, Any] = {
            "case": case,
            "solver": solver,
            "gap_asked": gap,
            "wall_s": wall,
            "cpu_s": cpu,
            "gib": gib,
        }
        if result is None:
            print(
                f"{case:28} {solver:7} {'':9} {gap:9.4%} {wall:7.2f} {cpu:7.2f} no allocation within the limit",
                flush=True,
            )
        else:
            row |= {
                "columns": result.columns,
                "cost_usd_h": result.cost_usd_h,
                "bound_usd_h": result.bound_usd_h,
                "gap": result.gap,
                "seconds": dict(result.seconds),
            }
            print(
                f"{case:28} {solver:7} {result.columns:9,} {gap:9.4%} {wall:7.2f} {cpu:7.2f} {result.cost_usd_h:11.4f} "
                f"{result.bound_usd_h:11.4f} {result.gap:8.4%} {gib:5.2f}",
                flush=True,
            )
        self.rows.append(row)
        return result


def pool(problem: AllocationProblem, seed: int, factor: float) -> AllocationProblem:
    """A pool of that factor that whole instances can be served from: rounded up where rounding leaves too little."""
    made = with_supply(problem, seed, factor)
    try:
        solve_allocation(made, options={"rel_gap": 0.5, "time_limit": 20.0})
    except InfeasibleError:
        made = with_supply(problem, seed, factor, whole=np.ceil)
    except NoSolutionError:
        pass
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the libraries")
    parser.add_argument("--scenario", default="extended", choices=sorted(SCARCE))
    parser.add_argument("--case", default="ample,scarce,epochs", help="of ample, scarce, epochs, growth")
    parser.add_argument("--demand", default="1,5", help="factors on the scenario's demand")
    parser.add_argument("--seeds", default="0", help="of the pools")
    parser.add_argument("--solvers", default="highs")
    parser.add_argument("--gaps", default="0.01,0.001,0", help="relative gaps to stop at")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run")
    parser.add_argument("--json", type=Path, help="write the rows here")
    asked = parser.parse_args(arguments)
    started = time.perf_counter()
    base, library = base_problem(asked.scenario, asked.cache)
    print(
        f"{asked.scenario}: {len(library):,} templates x {len(base.region_names)} regions, library in "
        f"{time.perf_counter() - started:.1f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    table = Table()
    gaps = [float(text) for text in asked.gaps.split(",")]
    seeds = [int(text) for text in asked.seeds.split(",")]
    for factor in (float(text) for text in asked.demand.split(",")):
        scaled = replace(base, demand=base.demand * factor)
        for case in asked.case.split(","):
            for seed in seeds:
                name = f"{case} x{factor:g} seed {seed}"
                if case == "growth":
                    for most in range(2, 7):
                        chosen = scaled.usage.sum(axis=1) <= most
                        part = replace(
                            scaled,
                            usage=scaled.usage[chosen],
                            throughput=scaled.throughput[chosen],
                            phase=scaled.phase[chosen],
                        )
                        for solver in asked.solvers.split(","):
                            table.run(
                                f"{name}, {int(chosen.sum()):,}",
                                with_supply(part, seed, AMPLE),
                                solver,
                                1e-3,
                                asked.limit,
                            )
                    continue
                problem = pool(scaled, seed, AMPLE if case == "ample" else SCARCE[asked.scenario])
                for solver in asked.solvers.split(","):
                    if case == "epochs":
                        walk(table, name, problem, solver, asked.epochs, asked.limit)
                        continue
                    for gap in gaps:
                        table.run(name, problem, solver, gap, asked.limit)
    if asked.json:
        asked.json.write_text(json.dumps(table.rows, indent=2) + "\n", encoding="utf-8")


def walk(table: Table, name: str, problem: AllocationProblem, solver: str, epochs: int, limit: float) -> None:
    """Small changes, each solved from the last state and anew."""
    last = table.run(f"{name} first", problem, solver, 1e-3, limit)
    for epoch in range(1, epochs + 1):
        if last is None:
            return
        problem = next_epoch(problem, last.allocation, epoch)
        try:
            table.run(f"{name} epoch {epoch} anew", problem, solver, 1e-3, limit)
            last = table.run(f"{name} epoch {epoch} state", problem, solver, 1e-3, limit, last.state)
        except InfeasibleError:
            print(f"{name} epoch {epoch}: the change took too many nodes away")
            return


if __name__ == "__main__":
    main()
