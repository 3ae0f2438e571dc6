"""``coralopt export`` and ``coralopt solve``: allocation models as LP or MPS files, and any such file through any solver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from coralopt.cli.console import (
    JsonFlag,
    OptionList,
    ScenarioArgument,
    parse_options,
    print_json,
    print_rich,
    progress_bar,
    say,
)


def export(
    scenario: ScenarioArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="File with the suffix .lp or .mps.")],
    formulation: Annotated[str, typer.Option(help="Allocation formulation: split or paper.")] = "split",
    reductions: Annotated[bool, typer.Option(help="Write what the exact reductions leave.")] = True,
    library: Annotated[Path | None, typer.Option(help="Template library file; the cache directory by default.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Write the allocation model of SCENARIO as an LP or MPS file, names in the scenario's words."""
    from coralopt.allocation import readable_names, reduce_problem
    from coralopt.planning import allocation_problem
    from coralopt.scenario import load_scenario
    from coralopt.solving import compile_problem, write_model
    from coralopt.templates import obtain_library

    resolved = load_scenario(scenario)
    with progress_bar(quiet=json_output) as progress:
        templates, _ = obtain_library(resolved, library, progress=progress)
    problem = allocation_problem(resolved, templates)
    if reductions:
        problem = reduce_problem(problem).problem
    route = "arrays" if formulation == "split" else "pyomo"
    matrix = readable_names(problem, compile_problem(problem, formulation, route).matrix)
    write_model(matrix, output)
    rows, columns = matrix.shape
    if json_output:
        print_json({"file": str(output), "rows": rows, "columns": columns, "nonzeros": int(matrix.a.nnz)})
    else:
        say(f"{columns:,} columns, {rows:,} rows, {matrix.a.nnz:,} nonzeros written to {output}")


def solve_file(
    model: Annotated[Path, typer.Argument(help="LP or MPS file.")],
    solver: Annotated[str, typer.Option(help="Back end; see `coralopt solvers`.")] = "highs",
    option: OptionList = None,
    conflict: Annotated[
        bool, typer.Option(help="For an infeasible model: name rows that cannot hold together.")
    ] = True,
    json_output: JsonFlag = False,
) -> None:
    """Solve an LP or MPS file with any back end, check the answer, print it."""
    from rich.table import Table

    from coralopt.solving import Reason, SolveOptions, find_conflict, read_model, solve_matrix

    options = SolveOptions.from_mapping(parse_options(option))
    matrix = read_model(model)
    started = time.perf_counter()
    found = solve_matrix(matrix, solver, options)
    seconds = time.perf_counter() - started
    values: dict[str, float] = {}
    if found.x is not None:
        values = {matrix.column_names[int(j)]: float(found.x[j]) for j in np.flatnonzero(found.x)}
    rows: list[str] = []
    if found.termination.reason is Reason.INFEASIBLE and conflict:
        rows = sorted({name for name, _ in find_conflict(matrix, solver, options).rows})
    said: dict[str, Any] = {
        "reason": found.termination.reason.value,
        "limit": None if found.termination.limit is None else found.termination.limit.value,
        "solver_says": found.termination.raw,
        "objective": _finite(found.objective),
        "bound": _finite(found.bound),
        "gap": _finite(found.gap),
        "nodes": found.nodes,
        "seconds": seconds,
    }
    if json_output:
        print_json({**said, "values": values, "conflict": rows})
    else:
        table = Table(title=f"{model.name}: {matrix.shape[1]:,} columns, {matrix.shape[0]:,} rows, solver {solver}")
        table.add_column("what")
        table.add_column("value", justify="right")
        for name, value in said.items():
            table.add_row(name.replace("_", " "), "-" if value is None else f"{value}")
        print_rich(table)
        for name, number in list(values.items())[:200]:
            say(f"  {name} = {number:g}")
        if rows:
            say(f"these rows cannot hold together within the bounds: {', '.join(rows)}")
    if found.x is None:
        raise typer.Exit(3 if found.termination.reason is Reason.INFEASIBLE else 5)


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
