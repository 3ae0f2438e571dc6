"""``coralopt report``: result files as one web page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import file_to_write_as, keep_apart, progress_bar, say
from coralopt.cli.exit_codes import CHECK_FAILED
from coralopt.cli.present import write_page
from coralopt.cli.shared_options import LibraryFile
from coralopt.errors import OptionError

if TYPE_CHECKING:
    from coralopt.report.pages.page import Page

OpenFlag = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="A plan, alone or with its simulation; or another result; see docs/report.md."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page.", callback=file_to_write_as(".html", ".htm"))
    ] = Path("page.html"),
    open_page: OpenFlag = False,
    analyse: Annotated[
        bool,
        typer.Option(
            "--analyse",
            help="Of a plan: plan again with one thing changed, for what binds and what was close; minutes.",
        ),
    ] = False,
    library: LibraryFile = None,
) -> None:
    """Write one self-contained web page from FILES: plan, simulation, comparison, epochs, bench or sweep.

    Plans are verified: what does not hold stands at the top of the page and on standard error, and the exit code is 1.
    """
    keep_apart(files, output)
    page = _analysed(files, library) if analyse else _page(files)
    say(write_page(page, output, open_page))
    if page.broken:
        for sentence in page.broken[:20]:
            say(f"  - {sentence}")
        say(f"what the page shows does NOT hold: {len(page.broken)} violations")
        raise typer.Exit(CHECK_FAILED)


def _analysed(files: list[Path], library: Path | None) -> Page:
    from coralopt.planning.analysis import analyse_plan
    from coralopt.report.pages.files import read_results

    results = read_results(files)
    if len(results.plans) != 1:
        raise OptionError("--analyse is for one plan, alone or with its simulation")
    with progress_bar("analysis") as progress:
        return results.page(lambda plan: analyse_plan(plan, library, progress))


def _page(files: list[Path]) -> Page:
    from coralopt.planning.sweep import Sweep, is_sweep
    from coralopt.report.pages.bench import bench_page
    from coralopt.report.pages.files import read_results
    from coralopt.report.pages.sweep import sweep_page

    tables = [path for path in files if path.suffix in (".jsonl", ".parquet")]
    if not tables:
        return read_results(files).page()
    if len(files) > 1:
        raise OptionError(
            f"{tables[0]}: the results of a bench or a sweep make a page of their own; give no other file"
        )
    if is_sweep(tables[0]):
        return sweep_page(Sweep.load(tables[0]))
    from coralopt.benchmark import read_whole_rows, summarise

    return bench_page(summarise(read_whole_rows(tables[0])))
