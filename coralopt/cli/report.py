"""``coralopt report``: result files as one web page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.present import write_page

if TYPE_CHECKING:
    from coralopt.report.pages import Page

OpenFlag = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="A plan, alone or with its simulation; or another result; see docs/report.md."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("page.html"),
    open_page: OpenFlag = False,
) -> None:
    """Write one self-contained web page from FILES: plan, simulation, comparison, epochs, bench or sweep."""
    write_page(_page(files), output, open_page)


def _page(files: list[Path]) -> Page:
    from coralopt.errors import OptionError
    from coralopt.report.pages.bench import bench_page
    from coralopt.report.pages.files import read_results

    tables = [path for path in files if path.suffix in (".jsonl", ".parquet")]
    if not tables:
        return read_results(files).page()
    if len(files) > 1:
        raise OptionError(
            f"{tables[0]}: the results of a bench or a sweep make a page of their own; give no other file"
        )
    from coralopt.benchmark import read_rows, summarise

    return bench_page(summarise(read_rows(tables[0])))
