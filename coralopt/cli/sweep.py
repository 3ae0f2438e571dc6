"""``coralopt sweep``: plans over a grid of changes to a scenario."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, ScenarioArgument, file_to_write, file_to_write_as, keep_apart, progress_bar
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present, write_page
from coralopt.cli.shared_options import LibraryOptions, SolverOptions


@dataclass(frozen=True)
class SweepOutput(OptionGroup):
    """Where the points go."""

    output: Path | None = option(
        None,
        "Keep the points in this Parquet file; the same command goes on where it stopped.",
        "--output",
        "-o",
        check=file_to_write_as(".parquet"),
    )
    restart: bool = option(False, "Forget the points that the file holds.", "--restart")
    page: Path | None = option(
        None, "Write a web page of the points and the Pareto front here.", check=file_to_write_as(".html", ".htm")
    )
    plot: Path | None = option(
        None, "Draw cost over the first axis and the Pareto front into this file (.svg).", check=file_to_write
    )
    json_output: JsonFlag = False


@takes_groups
def sweep(
    scenario: ScenarioArgument,
    files: SweepOutput,
    solver: SolverOptions,
    templates: LibraryOptions,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=START:STOP:STEP",
            help="What changes, both ends included, or PATH=A,B,C; may be repeated. A path of the scenario file "
            "(models.qwen3-32b.slo.tpot_ms), or a factor: price.GPU, demand.MODEL, slo.MODEL; all for every one.",
        ),
    ],
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
) -> None:
    """What if: plan SCENARIO at every point of a grid, each warm from the one before."""
    from coralopt.errors import OptionError
    from coralopt.planning.sweep import Sweep
    from coralopt.planning.sweep import sweep as run
    from coralopt.planning.variation import Variation
    from coralopt.report.pages.sweep import sweep_page
    from coralopt.report.svg import standalone
    from coralopt.report.sweep import sweep_curves, sweep_table

    if files.plot is not None and files.plot.suffix != ".svg":
        raise OptionError(f"{files.plot}: sweeps are drawn as .svg")
    keep_apart([scenario], files.output, files.page, files.plot)
    variations = tuple(Variation.parse(text) for text in vary)
    request = solver.request(templates.load(scenario), templates.library)
    done: Sweep | None = None
    with progress_bar("points", quiet=files.json_output) as progress:
        total = 1
        for axis in variations:
            total *= len(axis.values)
        for done in run(request, variations, files.output, jobs or os.cpu_count() or 1, files.restart):
            progress("", len(done.points), total)
    assert done is not None
    lines = [] if files.output is None else [f"{len(done.points):,} points written to {files.output}"]
    if files.plot is not None:
        from coralopt.plan.files import write_text

        write_text(files.plot, standalone(sweep_curves(done, variations[0])), "the drawing")
        lines.append(f"{files.plot} written")
    if files.page is not None:
        lines.append(write_page(sweep_page(done), files.page))
    document = {"scenario": done.scenario, "settings": done.settings, "points": done.points}
    present(CommandOutput(document, [sweep_table(done)], lines), files.json_output)
