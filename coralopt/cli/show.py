"""``coralopt show``: a plan as tables and drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag
from coralopt.cli.present import CommandOutput, present


def show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    pipelines: Annotated[bool, typer.Option(help="Draw every instance's pipeline.")] = True,
    json_output: JsonFlag = False,
) -> None:
    """Show PLAN: cost and bound, demand, instances, and a drawing of every pipeline."""
    from coralopt.plan import Plan
    from coralopt.report import plan_view

    document = Plan.load(plan)
    present(CommandOutput(document.model_dump(mode="json"), [plan_view(document, pipelines=pipelines)]), json_output)
