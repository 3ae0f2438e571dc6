"""``coralopt templates``: build the template library of a scenario."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, OptionList, ScenarioArgument, file_to_write_as, parse_options, progress_bar
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present


@dataclass(frozen=True)
class BuildOptions(OptionGroup):
    """How templates are found."""

    panel = "How templates are found"

    solver: str | None = option(None, "dp (one exact sweep, the default), or a MILP back end, node set by node set.")
    formulation: str | None = option(None, "Placement formulation of a MILP: tight or paper.")
    assignments: OptionList = None
    sample: int | None = option(None, "Only this many node sets, drawn by --seed.", least=1)
    seed: int = option(0, "Seed of --sample.", least=0)
    executor: str = option("local", "local, or ray: the tasks go to a Ray cluster.")
    workers: int | None = option(None, "Threads, processes or tasks at a time; all cores by default.", least=1)


@dataclass(frozen=True)
class RuleOptions(OptionGroup):
    """Rules of placements that go over the scenario's."""

    engine: str | None = option(
        None,
        "Only placements that this engine runs: any, same-tp, one-node-stages, equal-replicas, vllm.",
        "--executable-by",
        "--engine",
        metavar="ENGINE",
    )
    budget_units: int | None = option(None, "Free latency budgets on a grid of so many units for each stage.", least=1)
    network: str | None = option(None, "node (the sender's bandwidth) or link (the slower end's).")


@takes_groups
def templates(
    scenario: ScenarioArgument,
    build: BuildOptions,
    rules: RuleOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Parquet file; the cache directory by default.",
            callback=file_to_write_as(".parquet"),
        ),
    ] = None,
    rebuild: Annotated[bool, typer.Option(help="Build even when a stored library fits.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Build (or read) the serving templates of SCENARIO: the best placement on every node set."""
    from coralopt.report.table import Column, make_table, numbers
    from coralopt.scenario import load_scenario
    from coralopt.templates import BuildMethod, content_digest, default_library_path, obtain_library

    resolved = load_scenario(scenario).with_rules(vars(rules))
    method = None
    if build.solver is not None or build.sample is not None or build.formulation is not None or build.assignments:
        options = parse_options(build.assignments)
        method = BuildMethod(build.solver or "dp", build.formulation, options, build.sample, build.seed)
    started = time.perf_counter()
    with progress_bar("templates", quiet=json_output) as progress:
        library, reused = obtain_library(
            resolved,
            output,
            rebuild=rebuild,
            method=method,
            executor=build.executor,
            workers=build.workers,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    path = output if output is not None else default_library_path(resolved, library.digest, method)
    rows = [
        {
            "model_phase": phase.key,
            "node_sets": phase.examined,
            "templates": len(phase),
            "mixed_templates": int(((phase.usage > 0).sum(axis=1) > 1).sum()),
            "best_tokens_s": float(phase.throughput.max()) if len(phase) else 0.0,
        }
        for phase in library.phases
    ]
    document = {
        "library": path,
        "digest": library.digest,
        "content": content_digest(library),
        "reused": reused,
        "method": library.method,
        "seconds": seconds,
        "phases": rows,
    }
    columns: tuple[Column | str, ...] = (
        "model phase",
        *numbers("{:,}", "node sets", "templates", "of them mixed"),
        Column("best tokens/s", "{:,.1f}"),
    )
    table = make_table(f"Template library of {resolved.name}", columns, [tuple(row.values()) for row in rows])
    lines = []
    if library.method.get("sample"):
        lines.append(
            f"a sample of {library.method['sample']} node sets, seed {library.method['seed']}; not for planning"
        )
    if library.method.get("largest_gap"):
        lines.append(f"largest proven gap of a template: {library.method['largest_gap']:.2e}")
    lines.append(f"{'read' if reused else 'built'} in {seconds:.2f} s: {path}")
    present(CommandOutput(document, [table], lines), json_output)
