"""Time to a proven gap of the online stage at full scale.

    python -m benchmarks.online_stage --cache DIR                     # every case, HiGHS
    python -m benchmarks.online_stage --cache DIR --case scarce --seeds 0,1,2 --demand 1,5
    python -m benchmarks.online_stage --cache DIR --case growth
    python -m benchmarks.online_stage --cache DIR --solvers highs,scip --case scarce
    python -m benchmarks.online_stage --cache DIR --suite --json NOW [--before THEN]   # hard instances to 0.1 %
    python -m benchmarks.online_stage --cache DIR --sides --json NOW [--before THEN]   # with side constraints

The library of the scenario (``extended``: more than a million templates, three regions) is built once and kept in DIR.
Cases:

* ``ample``: ten times the estimated demand in nodes;
* ``scarce``: 25 % (``core``) or 75 % (``extended``) above it, as in the paper's section 5.4;
  benchmarks.online_instances says how the demand is estimated;
* ``epochs``: a walk of small changes from the scarce instance, every epoch solved from the last one's state and anew;
* ``growth``: ample supply over the templates of at most 2, 3, ... nodes;
* ``models``: three times as many model phases, scarce;
* ``regions``: sixteen regions, scarce;
* ``unlimited``: 10^6 requests/s in all, over a supply without end.

``--suite`` runs those that are hard: scarce x5 of seeds 0 to 6, scarce and ample x10, x50, x200, models, regions, unlimited.
``--sides`` runs ample and scarce `core`, and ample and scarce x5 `extended`, with every kind of side constraint alone
(benchmarks.online_sides). The served share of `scale` stands in a column of its own, and its gap is the larger of both.
``--before`` compares with the rows of an earlier run, whose CPU seconds and gaps stand beside the new ones.

``--demand F`` multiplies the scenario's demand: 5 makes a cluster of the paper's size (100 to 300 GPUs). Each line is one
run: wall and CPU seconds until a plan with that gap was there and proven, its cost, its bound, the gap reached, and the
peak memory of the process so far. Runs that end at the time limit say so by their gap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os

# One thread, as the documents say: where several share a processor, those of linear algebra wait by spinning.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.online_instances import (
    AMPLE,
    SCARCE,
    base_problem,
    more_models,
    more_regions,
    next_epoch,
    with_supply,
)
from benchmarks.online_sides import SIDES, FreePlan
from coralopt.allocation import (
    AllocationProblem,
    AllocationResult,
    AllocationSearchOptions,
    AllocationState,
    OnInfeasible,
    Served,
    solve_allocation,
    solve_or_serve_less,
)
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import SolveOptions

#: (case, factor on the demand, seed) of ``--suite``; 150 requests/s times 6,667 are 10^6.
SUITE = (
    *(("scarce", 5.0, seed) for seed in range(7)),
    *((case, factor, 0) for factor in (10.0, 50.0, 200.0) for case in ("scarce", "ample")),
    ("models", 5.0, 0),
    *(("regions", 5.0, seed) for seed in range(3)),
    ("unlimited", 1e6 / 150, 0),
)

#: (scenario, case, factor on the demand) of ``--sides``.
SIDE_CASES = (("core", "ample", 1.0), ("core", "scarce", 1.0), ("extended", "ample", 1.0), ("extended", "scarce", 5.0))

HEAD = (
    f"{'case':42} {'solver':7} {'columns':>9} {'gap asked':>9} {'wall s':>7} {'CPU s':>7} {'cost USD/h':>11} "
    f"{'bound':>11} {'gap':>8} {'GiB':>5}"
)


class Table:
    """Prints a line a run and keeps them for ``--json``."""

    def __init__(self, before: Path | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        rows = [] if before is None else json.loads(before.read_text(encoding="utf-8"))
        self.before = {(row["case"], row["solver"], row["gap_asked"]): row for row in rows}
        print(HEAD + (f" {'CPU before':>10} {'gap before':>10}" if before else ""), flush=True)

    def run(
        self,
        case: str,
        problem: AllocationProblem,
        solver: str,
        gap: float,
        limit: float,
        state: AllocationState | None = None,
        on_infeasible: OnInfeasible = "explain",
    ) -> AllocationResult | None:
        """One solve, one line; without the reasons where nothing can be found."""
        wall, cpu = time.perf_counter(), time.process_time()
        result: AllocationResult | None = None
        served: Served | None = None
        options = SolveOptions(rel_gap=gap, time_limit=limit)
        with contextlib.suppress(NoSolutionError):
            if on_infeasible == "explain":
                result = solve_allocation(problem, solver, options, AllocationSearchOptions(state=state))
            else:
                served = solve_or_serve_less(problem, on_infeasible, solver, options)
                result = served.result
        factor = None if served is None else served.factor
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
            said = f"{'':9} {gap:9.4%} {wall:7.2f} {cpu:7.2f} no allocation within the limit"
        else:
            row |= {
                "columns": result.columns,
                "cost_usd_h": result.cost_usd_h,
                "bound_usd_h": result.bound_usd_h,
                "gap": result.gap if factor is None else max(result.gap, factor.gap),
                "seconds": dict(result.seconds),
            }
            said = (
                f"{result.columns:9,} {gap:9.4%} {wall:7.2f} {cpu:7.2f} {result.cost_usd_h:11.4f} "
                f"{result.bound_usd_h:11.4f} {row['gap']:8.4%} {gib:5.2f}"
            )
        if factor is not None:
            row |= {"served": float(factor.factor), "served_bound": factor.bound}
            said += f" serves {float(factor.factor):.4%} of at most {factor.bound:.4%}"
        then = self.before.get((case, solver, gap), {})
        if then:
            said += f" {then['cpu_s']:10.2f} " + (f"{then['gap']:10.4%}" if "gap" in then else f"{'none':>10}")
        print(f"{case:42} {solver:7} {said}", flush=True)
        self.rows.append(row)
        return result

    def write(self, place: Path | None) -> None:
        """Keep the rows."""
        if place:
            place.write_text(json.dumps(self.rows, indent=2) + "\n", encoding="utf-8")


def pool(problem: AllocationProblem, seed: int, factor: float) -> AllocationProblem:
    """A pool of that factor that whole instances can be served from: rounded up where rounding leaves too little."""
    supplied = with_supply(problem, seed, factor)
    try:
        solve_allocation(supplied, options={"rel_gap": 0.5, "time_limit": 20.0})
    except InfeasibleError:
        supplied = with_supply(problem, seed, factor, whole=np.ceil)
    except NoSolutionError:
        pass
    return supplied


def instance(base: AllocationProblem, case: str, factor: float, seed: int) -> AllocationProblem:
    """One of the cases but epochs and growth."""
    if case == "unlimited":
        plenty = np.where(base.availability > 0, 10**7, 0)
        return replace(base, demand=base.demand * factor, availability=plenty, running=None)
    if case == "models":
        base = more_models(base, 3, seed)
    if case == "regions":
        base = more_regions(base, 16, seed)
    return pool(replace(base, demand=base.demand * factor), seed, AMPLE if case == "ample" else SCARCE["extended"])


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
    parser.add_argument("--suite", action="store_true", help="the hard instances of `extended` instead")
    parser.add_argument("--sides", action="store_true", help="side constraints on `core` and `extended` instead")
    parser.add_argument("--only", default="", help="of these, the cases with one of these in their name")
    parser.add_argument(
        "--cpu", action="store_true", help="limits count processor seconds: for a machine with others on it"
    )
    parser.add_argument("--before", type=Path, help="rows of an earlier run to compare with")
    parser.add_argument("--json", type=Path, help="write the rows here")
    settings = parser.parse_args(arguments)
    if settings.cpu:
        time.perf_counter = time.process_time
    if settings.sides:
        solve_with_sides(settings)
        return
    started = time.perf_counter()
    base, library = base_problem(settings.scenario, settings.cache)
    print(
        f"{settings.scenario}: {len(library):,} templates x {len(base.region_names)} regions, library in "
        f"{time.perf_counter() - started:.1f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    table = Table(settings.before)
    if settings.suite:
        for case, factor, seed in SUITE:
            name = f"{case} x{factor:g} seed {seed}"
            if any(part in name for part in settings.only.split(",")):
                table.run(
                    name, instance(base, case, factor, seed), settings.solvers.split(",")[0], 1e-3, settings.limit
                )
            table.write(settings.json)
        return
    gaps = [float(text) for text in settings.gaps.split(",")]
    seeds = [int(text) for text in settings.seeds.split(",")]
    for factor in (float(text) for text in settings.demand.split(",")):
        scaled = replace(base, demand=base.demand * factor)
        for case in settings.case.split(","):
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
                        for solver in settings.solvers.split(","):
                            table.run(
                                f"{name}, {int(chosen.sum()):,}",
                                with_supply(part, seed, AMPLE),
                                solver,
                                1e-3,
                                settings.limit,
                            )
                    continue
                problem = pool(scaled, seed, AMPLE if case == "ample" else SCARCE[settings.scenario])
                for solver in settings.solvers.split(","):
                    if case == "epochs":
                        walk(table, name, problem, solver, settings.epochs, settings.limit)
                        continue
                    for gap in gaps:
                        table.run(name, problem, solver, gap, settings.limit)
    table.write(settings.json)


def solve_with_sides(settings: argparse.Namespace) -> None:
    """Every case of ``SIDE_CASES`` without side constraints, then with every kind of them."""
    table, solver = Table(settings.before), settings.solvers.split(",")[0]
    for scenario, case, factor in SIDE_CASES:
        place = f"{scenario} {case} x{factor:g}"
        names = {side.name: f"{place}: {side.name}" for side in SIDES}
        wanted = [side for side in SIDES if any(part in names[side.name] for part in settings.only.split(","))]
        if not wanted:
            continue
        base, _ = base_problem(scenario, settings.cache)
        problem = pool(replace(base, demand=base.demand * factor), 0, AMPLE if case == "ample" else SCARCE[scenario])
        free = table.run(f"{place}: none", problem, solver, 1e-3, settings.limit)
        assert free is not None
        plan = FreePlan.of(problem, free.allocation)
        for side in wanted:
            with_side = side.add(problem, plan)
            try:
                table.run(names[side.name], with_side, solver, 1e-3, settings.limit, on_infeasible=side.on_infeasible)
            except InfeasibleError:
                print(f"{names[side.name]:42} cannot be met", flush=True)
            table.write(settings.json)


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
