"""``coralopt show``: a plan as tables and drawings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, file_to_write_as, keep_apart, progress_bar
from coralopt.cli.present import CommandOutput, present

if TYPE_CHECKING:
    from coralopt.plan import Plan
    from coralopt.plan.bill import OneGpuRent


def show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    pipelines: Annotated[bool, typer.Option(help="Draw every instance's pipeline.")] = True,
    bill: Annotated[bool, typer.Option("--bill", help="Show only the bill: what to rent, and costs by model.")] = False,
    one_gpu: Annotated[
        bool,
        typer.Option(
            "--one-gpu",
            help="Compare the bill with the cheapest plan of one GPU type, as `coralopt plan --one-gpu` does: seconds a "
            "type, for a share of requests up to as long as the plan took.",
        ),
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="Write the lines of the bill here, as CSV.", callback=file_to_write_as(".csv")),
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Show PLAN: its bill, promises, cost and bound, instances, and a drawing of every pipeline."""
    from coralopt.errors import OptionError
    from coralopt.plan import Plan
    from coralopt.plan.bill import bill_of
    from coralopt.plan.files import write_text
    from coralopt.report.bill import bill_csv, bill_view
    from coralopt.report.tables import plan_view

    if one_gpu and json_output and not bill:
        raise OptionError(
            "--json prints the plan document, which has no --one-gpu; with --bill the comparison is in it"
        )
    keep_apart([plan], csv)
    document = Plan.load(plan)
    rent, lines = _one_gpu(document, quiet=json_output) if one_gpu else None, []
    if csv is not None:
        write_text(csv, bill_csv(bill_of(document)), "the bill")
        lines.append(f"bill written to {csv}")
    if bill:
        costs = bill_of(document, rent)
        present(CommandOutput(costs, [bill_view(costs)], lines), json_output)
        return
    view = () if json_output else [plan_view(document, pipelines, one_gpu=rent)]
    present(CommandOutput(document.model_dump(mode="json"), view, lines), json_output)


def _one_gpu(plan: Plan, quiet: bool) -> OneGpuRent | None:
    from coralopt.planning import PlanOutcome, PlanRequest, cheapest_of_one_gpu

    with progress_bar("one GPU type", quiet=quiet) as progress:
        return cheapest_of_one_gpu(PlanRequest(plan.resolved, progress=progress), PlanOutcome(plan, {}))
