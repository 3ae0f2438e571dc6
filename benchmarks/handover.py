"""What coralopt adds to a raw solver call on a large allocation: building, handing over, checking.

    python benchmarks/handover.py                  # 1k, 10k, 100k columns
    python benchmarks/handover.py --columns 100000
    python benchmarks/handover.py --peers --columns 100000 1000000     # needs linopy, pulp and ortools beside
    python benchmarks/handover.py --time-limit 10 --columns 1600000    # how late a limit of 10 s is kept

Every route starts from the same arrays in a process of its own and ends with the model inside HiGHS, unsolved (HiGHS stops
at time limit 0 with a given start, so that the check has an answer to check). CPU seconds of that process and of any that
it starts, imports left out:

- ``raw highspy``: sparse arrays passed to HiGHS with nothing in between;
- ``coralopt arrays``: ``solve(problem, route="arrays")``, with names, options, and the exact check of the answer;
- ``coralopt pyomo``: the same through a Pyomo model and its standard-form compiler;
- ``pyomo highs``: the Pyomo model through Pyomo's own HiGHS interface.

``--peers`` has every package say the same matrix its own way: ``coralopt matrix`` (checked), linopy, PuLP, and MathOpt,
whose model ends as the message that its solvers are handed.
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
PEERS = ("raw highspy", "coralopt matrix", "linopy", "mathopt", "pyomo highs", "pulp")


def instance(columns: int) -> Any:
    """An allocation problem of about this many columns, 20 configurations and 3 regions."""
    from dataclasses import replace

    from coralopt.testing.synthetic import synthetic_problem

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
    counts = {}
    for p, demand in enumerate(problem.demand):
        mine = np.flatnonzero(problem.phase == p)
        best = int(mine[np.argmax(problem.throughput[mine])])
        counts[best, 0] = int(np.ceil(demand / problem.throughput[best]))
    return counts


def arrays(problem: Any) -> Any:
    """The rows as a sparse matrix, costs, lower and upper sides."""
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
    lower = np.concatenate([np.full(usage.shape[0], -np.inf), problem.demand])
    upper = np.concatenate([problem.availability.ravel().astype(float), np.full(phases, np.inf)])
    return vstack([usage, serve]).tocsc(), (1 + problem.penalty) * price.ravel(), lower, upper


def raw(problem: Any) -> tuple[int, int]:
    """Arrays to HiGHS, as short as it can be written."""
    import highspy

    a, cost, lower, upper = arrays(problem)
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.passModel(
        len(cost),
        a.shape[0],
        int(a.nnz),
        1,
        1,
        0.0,
        cost,
        np.zeros(len(cost)),
        np.full(len(cost), solver.inf),
        lower,
        upper,
        a.indptr.astype(np.int32),
        a.indices.astype(np.int32),
        a.data,
        np.ones(len(cost), dtype=np.int32),
    )
    return int(a.shape[0]), len(cost)


def matrix(problem: Any) -> tuple[int, int]:
    """The same arrays as coralopt's matrix, with a complete start, which is checked."""
    from coralopt.solving import LazyNames, MilpMatrix, solve_matrix

    a, cost, lower, upper = arrays(problem)
    m, n = a.shape
    names = LazyNames([(n, str)]), LazyNames([(m, str)])
    zeros, ones = np.zeros(n), np.ones(n, dtype=bool)
    model = MilpMatrix(cost, 0.0, a, lower, upper, zeros, np.full(n, np.inf), ones, False, *names)
    start = np.zeros(n)
    start[[t * len(problem.region_names) + r for t, r in begin(problem)]] = list(begin(problem).values())
    assert solve_matrix(model, "highs", {"time_limit": 0.0}, start=start).x is not None
    return m, n


def linopy(problem: Any) -> tuple[int, int]:
    """linopy's variables over templates and regions, handed to HiGHS; nothing is checked."""
    import linopy
    import pandas as pd
    import xarray as xr

    price = (1 + problem.penalty) * problem.usage.astype(float) @ problem.price.T
    model = linopy.Model()
    axes = [pd.RangeIndex(price.shape[0], name="t"), pd.RangeIndex(price.shape[1], name="r")]
    x = model.add_variables(lower=0, coords=axes, integer=True, name="x")
    for c in range(problem.usage.shape[1]):
        users = np.flatnonzero(problem.usage[:, c])
        used = xr.DataArray(problem.usage[users, c].astype(float), dims="t", coords={"t": users})
        model.add_constraints((used * x.sel(t=users)).sum("t") <= problem.availability[:, c].astype(float))
    for p, demand in enumerate(problem.demand):
        mine = np.flatnonzero(problem.phase == p)
        speed = xr.DataArray(problem.throughput[mine], dims="t", coords={"t": mine})
        model.add_constraints((speed * x.sel(t=mine)).sum() >= demand)
    model.add_objective((xr.DataArray(price, coords=axes) * x).sum())
    model.to_highspy()
    return -1, price.size


def mathopt(problem: Any) -> tuple[int, int]:
    """MathOpt's variables one by one, as the message that its solvers get; nothing is checked."""
    from ortools.math_opt.python import mathopt

    price = (1 + problem.penalty) * problem.usage.astype(float) @ problem.price.T
    model = mathopt.Model()
    x = [[model.add_integer_variable(lb=0.0) for _ in row] for row in price]
    for r, c in np.ndindex(problem.availability.shape):
        row = model.add_linear_constraint(ub=float(problem.availability[r, c]))
        for t in np.flatnonzero(problem.usage[:, c]):
            row.set_coefficient(x[t][r], float(problem.usage[t, c]))
    for p, demand in enumerate(problem.demand):
        row = model.add_linear_constraint(lb=float(demand))
        for t in np.flatnonzero(problem.phase == p):
            for variable in x[t]:
                row.set_coefficient(variable, float(problem.throughput[t]))
    for variables, costs in zip(x, price.tolist(), strict=True):
        for variable, cost in zip(variables, costs, strict=True):
            model.objective.set_linear_coefficient(variable, cost)
    model.export_model()
    return -1, price.size


def pulp(problem: Any) -> tuple[int, int]:
    """PuLP's variables one by one, handed to HiGHS; nothing is checked."""
    import pulp

    price = (1 + problem.penalty) * problem.usage.astype(float) @ problem.price.T
    model = pulp.LpProblem("m", pulp.LpMinimize)
    x = [[pulp.LpVariable(f"x_{t}_{r}", 0, cat="Integer") for r in range(price.shape[1])] for t in range(len(price))]
    model += pulp.LpAffineExpression((x[t][r], price[t, r]) for t, r in np.ndindex(price.shape))
    for r, c in np.ndindex(problem.availability.shape):
        users = np.flatnonzero(problem.usage[:, c])
        used = pulp.LpAffineExpression((x[t][r], float(problem.usage[t, c])) for t in users)
        model += used <= float(problem.availability[r, c])
    for p, demand in enumerate(problem.demand):
        mine = np.flatnonzero(problem.phase == p)
        model += pulp.LpAffineExpression((v, float(problem.throughput[t])) for t in mine for v in x[t]) >= float(demand)
    solver = pulp.HiGHS(msg=False)
    solver.createAndConfigureSolver(model)
    solver.buildSolverModel(model)
    return -1, price.size


def through_coralopt(problem: Any, route: str) -> tuple[int, int]:
    """``solve`` with no time to search and a complete start, which it must check."""
    from coralopt.allocation import Allocation
    from coralopt.solving import SolveOptions, solve

    start = Allocation.of(begin(problem))
    solution = solve(problem, "highs", "split", SolveOptions(time_limit=0.0), start=start, route=route)
    assert solution.answer is not None
    assert solution.shape is not None
    return solution.shape


def through_pyomo(problem: Any) -> tuple[int, int]:
    """Pyomo's own way."""
    from pyomo.contrib.solver.common.factory import SolverFactory

    from coralopt.solving import fast_build

    with fast_build():
        model = problem.formulations()["split"].build(problem)
        solver = SolverFactory("highs")
        solver.set_instance(model)
    return -1, len(model.new)


def overrun(columns: int, limit: float) -> str:
    """A search under a time limit that it cannot end within: seconds until the answer, building apart."""
    from coralopt.solving import solve

    problem, begun = instance(columns), time.perf_counter()
    solution = solve(problem, "highs", "split", {"time_limit": limit, "rel_gap": 0.0}, route="arrays")
    seconds = time.perf_counter() - begun
    ended = solution.termination.raw
    built = solution.seconds["build"]
    return f"{columns:8}  limit {limit:g} s: {seconds - built:.2f} s, and {built:.2f} s to build the matrix; {ended}"


def measure(route: str, columns: int) -> dict[str, float]:
    """One route in this process."""
    import importlib

    # Imports are not what is measured; each route needs its own.
    own = {
        "linopy": ("linopy", "highspy"),
        "mathopt": ("ortools.math_opt.python.mathopt",),
        "pulp": ("pulp", "highspy"),
    }
    for name in own.get(route, ("highspy", "pyomo.environ", "scipy.sparse", "coralopt.solving")):
        importlib.import_module(name)
    functions = {
        "raw highspy": raw,
        "coralopt arrays": lambda p: through_coralopt(p, "arrays"),
        "coralopt pyomo": lambda p: through_coralopt(p, "pyomo"),
        "coralopt matrix": matrix,
        "pyomo highs": through_pyomo,
        "linopy": linopy,
        "mathopt": mathopt,
        "pulp": pulp,
    }

    problem = instance(columns)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    shape = functions[route](problem)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "columns": shape[1],
        "cpu_s": time.process_time() - cpu + children.ru_utime + children.ru_stime,
        "wall_s": time.perf_counter() - wall,
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--peers", action="store_true", help="other packages, whichever are installed")
    parser.add_argument("--time-limit", type=float, help="seconds; how late HiGHS and what is around it keep them")
    parser.add_argument("--route", choices=sorted({*ROUTES, *PEERS}), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.route:
        print(json.dumps(measure(arguments.route, arguments.columns[0])))
        return
    if arguments.time_limit is not None:
        for columns in arguments.columns:
            print(overrun(columns, arguments.time_limit))
        return
    print(f"{'columns':>8}  {'route':16} {'CPU s':>8} {'wall s':>8} {'MiB':>8}")
    for columns in arguments.columns:
        for route in PEERS if arguments.peers else ROUTES:
            command = [sys.executable, __file__, "--route", route, "--columns", str(columns)]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
            if said.returncode:
                print(f"{columns:8}  {route:16} {(said.stderr.splitlines() or ['ended'])[-1][:80]}")
                continue
            row = json.loads(said.stdout.splitlines()[-1])
            print(f"{row['columns']:8.0f}  {route:16} {row['cpu_s']:8.2f} {row['wall_s']:8.2f} {row['mib']:8.0f}")


if __name__ == "__main__":
    main()
