"""``coralopt templates``: build the template library of a scenario."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

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
from coralopt.cli.shared_options import with_rules


def templates(
    scenario: ScenarioArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Parquet file; the cache directory by default.")
    ] = None,
    rebuild: Annotated[bool, typer.Option(help="Build even when a stored library fits.")] = False,
    solver: Annotated[
        str | None, typer.Option(help="dp (one exact sweep, the default), or a MILP back end, node set by node set.")
    ] = None,
    formulation: Annotated[str | None, typer.Option(help="Placement formulation of a MILP: tight or paper.")] = None,
    option: OptionList = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Only this many node sets, drawn by --seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --sample.")] = 0,
    engine: Annotated[
        str | None,
        typer.Option(
            "--executable-by",
            "--engine",
            metavar="ENGINE",
            help="Only placements that this engine runs: any, same-tp, one-node-stages, equal-replicas, vllm.",
        ),
    ] = None,
    budget_units: Annotated[
        int | None, typer.Option(min=1, help="Free latency budgets on a grid of so many units for each stage.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="node (the sender's bandwidth) or link (the slower end's).")
    ] = None,
    executor: Annotated[str, typer.Option(help="local, or ray: the tasks go to a Ray cluster.")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads, processes or tasks at a time; all cores by default.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Build (or read) the serving templates of SCENARIO: the best placement on every node set."""
    from rich.table import Table

    from coralopt.scenario import load_scenario
    from coralopt.templates import BuildMethod, content_digest, default_library_path, obtain_library

    resolved = with_rules(load_scenario(scenario), {"engine": engine, "network": network, "budget_units": budget_units})
    method = None
    if solver is not None or sample is not None or formulation is not None or option:
        method = BuildMethod(solver or "dp", formulation, parse_options(option), sample, seed)
    started = time.perf_counter()
    with progress_bar(quiet=json_output) as progress:
        library, reused = obtain_library(
            resolved, output, rebuild=rebuild, method=method, executor=executor, workers=workers, progress=progress
        )
    seconds = time.perf_counter() - started
    path = output if output is not None else default_library_path(resolved, library.digest, method)
    rows = []
    for phase in library.phases:
        kinds = (phase.usage > 0).sum(axis=1)
        rows.append(
            {
                "model_phase": phase.key,
                "node_sets": phase.examined,
                "templates": len(phase),
                "mixed_templates": int((kinds > 1).sum()),
                "best_tokens_s": float(phase.throughput.max()) if len(phase) else 0.0,
            }
        )
    if json_output:
        print_json(
            {
                "library": str(path),
                "digest": library.digest,
                "content": content_digest(library),
                "reused": reused,
                "method": dict(library.method),
                "seconds": seconds,
                "phases": rows,
            }
        )
        return
    table = Table(title=f"Template library of {resolved.name}")
    table.add_column("model phase")
    for head in ("node sets", "templates", "of them mixed", "best tokens/s"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            str(row["model_phase"]),
            f"{row['node_sets']:,}",
            f"{row['templates']:,}",
            f"{row['mixed_templates']:,}",
            f"{row['best_tokens_s']:,.1f}",
        )
    print_rich(table)
    if library.method.get("sample"):
        say(f"a sample of {library.method['sample']} node sets, seed {library.method['seed']}; not for planning")
    if library.method.get("largest_gap"):
        say(f"largest proven gap of a template: {library.method['largest_gap']:.2e}")
    say(f"{'read' if reused else 'built'} in {seconds:.2f} s: {path}")
