"""How a command answers: tables and lines for people, or one JSON document; a plan's file; the exit code."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType

from coralopt.cli.console import JsonFlag, file_to_write_as, harmless, print_json, print_rich, say
from coralopt.cli.exit_codes import CHECK_FAILED, OK, exit_code
from coralopt.cli.option_groups import OptionGroup, option
from coralopt.errors import CoraloptError

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.plan.bill import OneGpuRent
    from coralopt.planning import Alternative
    from coralopt.report.pages.page import Page


@dataclass(frozen=True)
class CommandOutput:
    """What a command has to say.

    Attributes:
        document: For machines.
        tables: For people, on standard output; a text is printed as it stands, never broken into lines.
        lines: For people, after the tables, on standard error.
        warnings: On standard error in any case.
        code: Exit code.
    """

    document: object
    tables: Sequence[RenderableType] = ()
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    code: int = OK


def present(answer: CommandOutput, json_output: bool) -> None:
    """Print the answer and end with its exit code.

    Raises:
        typer.Exit: The exit code is not 0.
    """
    if json_output:
        print_json(answer.document)
    else:
        for table in answer.tables:
            if isinstance(table, str):
                typer.echo(harmless(table))
            else:
                print_rich(table)
        for line in answer.lines:
            say(line)
    for line in answer.warnings:
        say(line)
    if answer.code != OK:
        raise typer.Exit(answer.code)


def write_page(page: Page, path: Path, open_page: bool = False) -> str:
    """Write the page, open it if that is wanted, and return the line that says where it is.

    Raises:
        CoraloptError: The file cannot be written.
    """
    from coralopt.plan.files import write_text
    from coralopt.report.pages.page import render_page

    text = render_page(page)
    write_text(path, text, "the page")
    line = f"page written to {path} ({len(text.encode()) / 1000:,.0f} kB)"
    if open_page and not webbrowser.open(path.resolve().as_uri()):
        line += "; no browser could be started, open the file by hand"
    return line


@dataclass(frozen=True)
class PlanOutput(OptionGroup):
    """Where a plan goes and how it is shown."""

    output: Path | None = option(
        None, "Write the plan document here.", "--output", "-o", check=file_to_write_as(".json")
    )
    pipelines: bool = option(False, "Draw every instance's pipeline.")
    page: Path | None = option(
        None, "Write the plan's web page here, see `coralopt report`.", check=file_to_write_as(".html", ".htm")
    )
    open_page: bool = option(False, "Open the plan's web page in the browser; plan.html without --page.", "--open")
    json_output: JsonFlag = False

    @property
    def page_file(self) -> Path | None:
        """Where the web page goes, if one is wanted."""
        if self.page is None and self.open_page:
            return (self.output or Path("plan.json")).with_suffix(".html")
        return self.page


def present_plan(
    plan: Plan,
    output: PlanOutput,
    answer: CommandOutput,
    written: str = "plan written to {}",
    expected: Mapping[str, float] | None = None,
    one_gpu: OneGpuRent | None = None,
    alternative: Alternative | None = None,
) -> None:
    """Check a plan, write it, show it, and end with exit code 1 when it is not what it says.

    Args:
        plan: The plan.
        output: Where it goes.
        answer: What else there is to say: facts of its own for the JSON document (a mapping), tables before the plan's,
            lines after them, warnings after the violations; a code other than 0 means that the plan is not good enough.
        written: The line that names the file.
        expected: Model phase -> share of requests expected within SLO, where that is known.
        one_gpu: The rent with one GPU type, where that is known.
        alternative: What is known of plans that hold, where this one is not expected to.

    Raises:
        typer.Exit: The check failed, a file cannot be written, or ``answer`` has an exit code.
    """
    from coralopt.plan.bill import bill_of
    from coralopt.plan.verify import verify_plan
    from coralopt.report.tables import plan_view

    verification = verify_plan(plan)
    lines = [*answer.lines, "checked: every figure recomputed" if verification.ok else "CHECK FAILED:"]
    warnings = [*(f"  - {violation}" for violation in verification.sentences), *answer.warnings]
    code = answer.code if verification.ok else CHECK_FAILED
    try:
        if output.output is not None:
            plan.save(output.output)
            lines.append(written.format(output.output))
        if output.page_file is not None:
            from coralopt.report.pages.plan import PlanPage, plan_page

            content = PlanPage(plan, one_gpu=one_gpu, expected=expected, broken=verification.sentences)
            lines.append(write_page(plan_page(content), output.page_file, output.open_page))
    except CoraloptError as error:
        # A plan may have taken an hour: it is shown all the same.
        warnings.append(f"error: {error}")
        code = exit_code(error)
    assert isinstance(answer.document, Mapping)
    document = {
        "plan": plan.model_dump(mode="json"),
        "verified": verification.ok and answer.code == OK,
        "violations": list(verification.sentences),
        "bill": bill_of(plan, one_gpu),
        **({} if expected is None else {"expected": dict(expected)}),
        **({} if alternative is None else {"alternative": alternative}),
        **answer.document,
    }
    rent = plan.provisioning_usd_h + plan.egress_usd_h
    beside = "" if alternative is None else alternative.compared_with(rent)
    view = () if output.json_output else (plan_view(plan, output.pipelines, expected, one_gpu, beside),)
    present(
        CommandOutput(
            document,
            () if output.json_output else (*answer.tables, *view),
            lines,
            warnings,
            code,
        ),
        output.json_output,
    )
