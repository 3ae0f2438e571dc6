"""``coralopt export``, ``solve`` and ``check``: allocation models as LP or MPS files, any such file through any solver, and
any solution file held against its model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import (
    JsonFlag,
    OptionList,
    ScenarioArgument,
    file_to_write,
    file_to_write_as,
    parse_options,
    progress_bar,
)
from coralopt.cli.exit_codes import CHECK_FAILED, INFEASIBLE, NO_PLAN_IN_TIME, OK
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present
from coralopt.cli.shared_options import LibraryFile

ALLOW = "What the file may leave open: integer-bounds, negative-upper, huge-figures, no-end, after-end; repeatable."


@dataclass(frozen=True)
class FileReading(OptionGroup):
    """How a model's file is read."""

    panel = "How the file is read"

    allow: list[str] | None = option(None, ALLOW)
    second_reader: str = option("", "A back end whose own reader must take the file in the same way: highs.")


def export(
    scenario: ScenarioArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File with the suffix .lp or .mps.", callback=file_to_write)
    ],
    formulation: Annotated[str, typer.Option(help="Allocation formulation: split or paper.")] = "split",
    reductions: Annotated[bool, typer.Option(help="Write what the exact reductions leave.")] = True,
    library: LibraryFile = None,
    json_output: JsonFlag = False,
) -> None:
    """Write the allocation model of SCENARIO as an LP or MPS file, names in the scenario's words."""
    from coralopt.allocation import readable_names, reduce_problem
    from coralopt.planning import allocation_problem
    from coralopt.scenario import load_scenario
    from coralopt.solving import compile_problem, write_model
    from coralopt.templates import obtain_library, scenario_tables, shared_patterns

    resolved = load_scenario(scenario)
    with progress_bar("templates", quiet=json_output) as progress:
        templates, _ = obtain_library(resolved, library, progress=progress)
    problem = allocation_problem(resolved, templates, shared_patterns(resolved, scenario_tables(resolved)))
    if reductions:
        problem = reduce_problem(problem).problem
    route = "arrays" if formulation == "split" else "pyomo"
    matrix = readable_names(problem, compile_problem(problem, formulation, route).matrix)
    write_model(matrix, output)
    rows, columns = matrix.shape
    line = f"{columns:,} columns, {rows:,} rows, {matrix.a.nnz:,} nonzeros written to {output}"
    document = {"file": output, "rows": rows, "columns": columns, "nonzeros": int(matrix.a.nnz)}
    present(CommandOutput(document, lines=[line]), json_output)


@takes_groups
def solve_file(
    model: Annotated[Path, typer.Argument(help="LP or MPS file.")],
    reading: FileReading,
    solver: Annotated[str, typer.Option(help="Back end; see `coralopt solvers`.")] = "highs",
    option: OptionList = None,
    conflict: Annotated[
        bool, typer.Option(help="For an infeasible model: name rows that cannot hold together.")
    ] = True,
    confirm: Annotated[str | None, typer.Option(help="A second back end, which must not contradict.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Solution file to write.", callback=file_to_write_as(".sol"))
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Solve an LP or MPS file with any back end, check the answer, print it."""
    from coralopt.report.table import Column, make_table
    from coralopt.solving import Reason, SolveOptions, find_conflict, read_model, solve_matrix, write_solution

    options = SolveOptions.from_mapping(parse_options(option))
    matrix = read_model(model, reading.allow or (), reading.second_reader)
    started = time.perf_counter()
    solution = solve_matrix(matrix, solver, options, confirm=confirm)
    seconds = time.perf_counter() - started
    values: dict[str, float] = {}
    if solution.x is not None:
        values = {matrix.column_names[int(j)]: float(solution.x[j]) for j in solution.x.nonzero()[0]}
        if output is not None:
            write_solution(output, solution.objective, values)
    infeasible = solution.termination.reason is Reason.INFEASIBLE
    rows: list[str] = []
    if infeasible and conflict and not matrix.extras.discrete:
        rows = sorted({name for name, _ in find_conflict(matrix, solver, options).rows})
    facts = {
        "reason": solution.termination.reason.value,
        "limit": None if solution.termination.limit is None else solution.termination.limit.value,
        "solver_says": solution.termination.raw,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "proof": solution.proof.value,
        "nodes": solution.nodes,
        "seconds": seconds,
    }
    table = make_table(
        f"{model.name}: {matrix.shape[1]:,} columns, {matrix.shape[0]:,} rows, solver {solver}",
        ["what", Column("value", "{}")],
        [(name.replace("_", " "), value) for name, value in facts.items()],
    )
    lines = [f"  {name} = {number:g}" for name, number in list(values.items())[:200]]
    if rows:
        lines.append(f"these rows cannot hold together within the bounds: {', '.join(rows)}")
    code = OK if solution.x is not None else INFEASIBLE if infeasible else NO_PLAN_IN_TIME
    present(CommandOutput({**facts, "values": values, "conflict": rows}, [table], lines, code=code), json_output)


def check_file(
    model: Annotated[Path, typer.Argument(help="LP or MPS file.")],
    solution: Annotated[Path, typer.Argument(help="Solution file: a column and its value a line.")],
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Largest violation, times max(1, |side|); 0: exact.")
    ] = 1e-6,
    allow: Annotated[list[str] | None, typer.Option(help=ALLOW)] = None,
    json_output: JsonFlag = False,
) -> None:
    """Hold a solution file against its model in exact fractions; exit 1 with a sentence for everything that is off."""
    from coralopt.solving import check_solution_file

    check = check_solution_file(model, solution, tolerance, allow or ())
    lines = [f"  - {sentence}" for sentence in check.violations]
    verdict = "the solution holds" if check.holds else f"the solution does NOT hold: {len(check.violations)} violations"
    lines.append(f"{verdict}; objective {float(check.objective):.12g}, largest violation {float(check.largest):.3g}")
    document = {
        "model": model,
        "solution": solution,
        "ok": check.holds,
        "objective": float(check.objective),
        "exact_objective": str(check.objective),
        "stated_objective": None if check.stated is None else float(check.stated),
        "largest_violation": float(check.largest),
        "tolerance": tolerance,
        "violations": list(check.violations),
    }
    present(CommandOutput(document, ["\n".join(lines)], code=OK if check.holds else CHECK_FAILED), json_output)
