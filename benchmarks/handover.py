"""What coralopt adds to a raw solver call on a large allocation: building, handing over, checking.

    python benchmarks/handover.py                  # 1k, 10k, 100k columns
    python benchmarks/handover.py --columns 100000

Every route starts from the same arrays in a process of its own and ends with the model inside HiGHS, unsolved (HiGHS stops
at time limit 0 with a given start, so that the check has an answer to check). CPU seconds of that process, imports left out:

- ``raw highspy``: sparse arrays passed to HiGHS with nothing in between;
- ``coralopt arrays``: ``solve(problem, route="arrays")``, with names, options, and the exact check of the answer;
- ``coralopt pyomo``: the same through a Pyomo model and its standard-form compiler;
- ``pyomo highs``: the Pyomo model through Pyomo's own HiGHS interface.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

ROUTES = ("raw highspy", "coralopt arrays", "coralopt pyomo", "pyomo highs")


def instance(columns: int) -> Any:
    """An allocation problem of about this many columns, 20 configurations and 3 regions."""
    from dataclasses import replace

    from coralopt.testing.allocation_strategies import synthetic_problem

    problem = synthetic_problem(max_nodes=4 if columns > 3000 else 3, phases=12, supply="ample", nodes=300)
    rng = np.random.default_rng(0)
    there = len(problem.throughput)
    some = np.sort(rng.choice(there, columns // 3, replace=columns // 3 > there))
    return replace(
        problem,
        usage=problem.usage[some],
        # Templates that are drawn more than once differ in what they serve.
        throughput=problem.throughput[some] * rng.uniform(0.9, 1.0, len(some)),
        phase=problem.phase[some],
        availability=np.full_like(problem.availability, 1000),
    )


def begin(problem: Any) -> dict[tuple[int, int], int]:
    """Enough instances of each phase's best template in region 0: an answer to check."""
    found = {}
    for p, demand in enumerate(problem.demand):
        mine = np.flatnonzero(problem.phase == p)
        best = int(mine[np.argmax(problem.throughput[mine])])
        found[best, 0] = int(np.ceil(demand / problem.throughput[best]))
    return found


def raw(problem: Any) -> tuple[int, int]:
    """Arrays to HiGHS, as short as it can be written."""
    import highspy
    from scipy.sparse import csc_array, vstack

    price = problem.usage.astype(float) @ problem.price.T
    count, regions = price.shape
    t, r = (part.ravel() for part in np.meshgrid(np.arange(count), np.arange(regions), indexing="ij"))
    row, c = np.nonzero(problem.usage[t])
    configurations, phases = problem.usage.shape[1], len(problem.demand)
    usage = csc_array(
        (problem.usage[t][row, c].astype(float), (r[row] * configurations + c, row)),
        shape=(regions * configurations, len(t)),
    )
    serve = csc_array((problem.throughput[t], (problem.phase[t], np.arange(len(t)))), shape=(phases, len(t)))
    a = vstack([usage, serve]).tocsc()
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.passModel(
        len(t),
        a.shape[0],
        int(a.nnz),
        1,
        1,
        0.0,
        (1 + problem.penalty) * price.ravel(),
        np.zeros(len(t)),
        np.full(len(t), solver.inf),
        np.concatenate([np.full(usage.shape[0], -solver.inf), problem.demand]),
        np.concatenate([problem.availability.ravel().astype(float), np.full(phases, solver.inf)]),
        a.indptr.astype(np.int32),
        a.indices.astype(np.int32),
        a.data,
        np.ones(len(t), dtype=np.int32),
    )
    return int(a.shape[0]), len(t)


def through_coralopt(problem: Any, route: str) -> tuple[int, int]:
    """``solve`` with no time to search and a complete start, which it must check."""
    from coralopt.allocation import Allocation
    from coralopt.solving import SolveOptions, solve

    start = Allocation.of(begin(problem))
    found = solve(problem, "highs", "split", SolveOptions(time_limit=0.0), start=start, route=route)
    assert found.answer is not None
    assert found.shape is not None
    return found.shape


def through_pyomo(problem: Any) -> tuple[int, int]:
    """Pyomo's own way."""
    from pyomo.contrib.solver.common.factory import SolverFactory

    from coralopt.solving import fast_build

    with fast_build():
        model = problem.formulations()["split"].build(problem)
        solver = SolverFactory("highs")
        solver.set_instance(model)
    return -1, len(model.new)


def measure(route: str, columns: int) -> dict[str, float]:
    """One route in this process."""
    import highspy  # noqa: F401 - imports are not what is measured
    import pyomo.environ  # noqa: F401
    import scipy.sparse  # noqa: F401

    from coralopt.solving import solve  # noqa: F401

    problem = instance(columns)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    shape = {
        "raw highspy": raw,
        "coralopt arrays": lambda p: through_coralopt(p, "arrays"),
        "coralopt pyomo": lambda p: through_coralopt(p, "pyomo"),
        "pyomo highs": through_pyomo,
    }[route](problem)
    return {
        "columns": shape[1],
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--route", choices=ROUTES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.route:
        print(json.dumps(measure(arguments.route, arguments.columns[0])))
        return
    print(f"{'columns':>8}  {'route':16} {'CPU s':>8} {'wall s':>8} {'MiB':>8}")
    for columns in arguments.columns:
        for route in ROUTES:
            command = [sys.executable, __file__, "--route", route, "--columns", str(columns)]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(said.stdout.splitlines()[-1])
            print(
                f"{found['columns']:8.0f}  {route:16} {found['cpu_s']:8.2f} {found['wall_s']:8.2f} {found['mib']:8.0f}"
            )


if __name__ == "__main__":
    main()
