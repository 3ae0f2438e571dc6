"""``coralopt show``: a plan as tables and drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, file_to_write
from coralopt.cli.present import CommandOutput, present


def show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    pipelines: Annotated[bool, typer.Option(help="Draw every instance's pipeline.")] = True,
    bill: Annotated[bool, typer.Option("--bill", help="Show only the bill: what to rent, and costs by model.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the lines of the bill here, as CSV.", callback=file_to_write)
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Show PLAN: its bill, promises, cost and bound, instances, and a drawing of every pipeline."""
    from coralopt.plan import Plan
    from coralopt.plan.bill import bill_of
    from coralopt.plan.files import write_text
    from coralopt.report import plan_view
    from coralopt.report.bill import bill_csv, bill_view

    document = Plan.load(plan)
    lines = []
    if csv is not None:
        write_text(csv, bill_csv(bill_of(document)), "the bill")
        lines.append(f"bill written to {csv}")
    if bill:
        costs = bill_of(document)
        present(CommandOutput(costs, [bill_view(costs)], lines), json_output)
        return
    view = () if json_output else [plan_view(document, pipelines=pipelines)]
    present(CommandOutput(document.model_dump(mode="json"), view, lines), json_output)
