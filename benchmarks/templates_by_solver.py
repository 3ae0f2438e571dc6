"""Seconds a template by solver and formulation, against the dynamic programme, on the same node sets in one run.

    python benchmarks/templates_by_solver.py --scenario core --sample 8 --max-nodes 4 --time-limit 60

Node sets are drawn by ``--seed`` from all of the scenario's model phases and solved one after the other on one thread
with a relative gap of 1e-6; a solve stops at ``--time-limit`` seconds. ``proven``: optimal within the limit and equal to
the dynamic programme; ``refused``: the licence does not cover the model. ``sweep`` is the dynamic programme over all node
sets of the scenario at once, divided by their number.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from coralopt import load_scenario
from coralopt.errors import LicenseLimitError, SolverError
from coralopt.placement import PlacementProblem, best_placement
from coralopt.templates import BuildMethod, build_library, scenario_node_sets, scenario_tables
from coralopt.templates.tasks import GAP, cut_into_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="core")
    parser.add_argument("--sample", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-nodes", type=int, default=4)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a node set")
    parser.add_argument("--solvers", nargs="+", default=["highs", "scip", "gurobi"])
    parser.add_argument("--formulations", nargs="+", default=["tight", "paper"])
    arguments = parser.parse_args()
    scenario = replace(load_scenario(arguments.scenario), max_nodes=arguments.max_nodes)
    tables = scenario_tables(scenario)
    tasks = cut_into_tasks(
        scenario_node_sets(scenario), BuildMethod("highs", sample=arguments.sample, seed=arguments.seed)
    )
    names = tuple(c.name for c in scenario.configurations)
    problems = [
        PlacementProblem(tables[task.phase].values, tuple(int(n) for n in row), names)
        for task in tasks
        for row in task.sets
    ]
    sizes = [problem.nodes for problem in problems]
    print(f"{len(problems)} node sets of {scenario.name}, N_max = {scenario.max_nodes}: {sizes} nodes")
    print(
        f"{'solver':<10}{'formulation':<13}{'proven':>7}{'wrong':>7}{'out of time':>13}{'refused':>9}"
        f"{'mean s':>10}{'worst s':>10}"
    )
    best_placement(problems[0], "dp")  # loads the kernels
    exact = []
    seconds = []
    for problem in problems:
        started = time.perf_counter()
        exact.append(best_placement(problem, "dp"))
        seconds.append(time.perf_counter() - started)
    print(f"{'dp':<10}{'':<13}{len(problems):>7}{0:>7}{0:>13}{0:>9}{np.mean(seconds):>10.4f}{max(seconds):>10.4f}")
    for formulation in arguments.formulations:
        for solver in arguments.solvers:
            proven = wrong = late = refused = 0
            seconds = []
            for problem, known in zip(problems, exact, strict=True):
                started = time.perf_counter()
                try:
                    options = {"rel_gap": GAP, "time_limit": arguments.time_limit}
                    solution = best_placement(problem, solver, formulation, options)
                except LicenseLimitError:
                    refused += 1
                    continue
                except SolverError as error:
                    print(f"  {solver} {formulation}: {error}")
                    wrong += 1
                    continue
                seconds.append(time.perf_counter() - started)
                if solution.termination.limit is not None:
                    late += 1
                elif known.answer is None or solution.answer is None:
                    wrong += (known.answer is None) != (solution.answer is None)
                    proven += (known.answer is None) == (solution.answer is None)
                elif abs(solution.objective - known.objective) > 3 * GAP * known.objective:
                    wrong += 1
                else:
                    proven += 1
            mean, worst = (np.mean(seconds), max(seconds)) if seconds else (float("nan"), float("nan"))
            print(
                f"{solver:<10}{formulation:<13}{proven:>7}{wrong:>7}{late:>13}{refused:>9}{mean:>10.2f}{worst:>10.2f}",
                flush=True,
            )
    started = time.perf_counter()
    library = build_library(scenario, tables)
    spent = time.perf_counter() - started
    examined = sum(phase.examined for phase in library.phases)
    print(f"sweep of all {examined:,} node sets: {spent:.2f} s, {spent / examined * 1e6:.1f} microseconds each")


if __name__ == "__main__":
    main()
