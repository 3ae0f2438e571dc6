"""``coralopt verify``: recompute everything a plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, library_progress, print_json, print_rich


def verify(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    prove: Annotated[
        bool, typer.Option("--prove", help="Also re-derive the lower bound: rebuild the library and solve again.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="The trace file that the plan was played against, to play it again.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Recompute every figure of PLAN from the scenario inside it; exit 1 with the reasons when anything is off."""
    from rich.table import Table

    from coralopt.plan import Plan
    from coralopt.plan.verify import verify_plan
    from coralopt.report.verified import simulated_table

    document = Plan.load(plan)
    result = verify_plan(document)
    checks, violations = list(result.checks), list(result.sentences)
    if prove and not violations:
        from coralopt.planning import prove_bound

        with library_progress(quiet=json_output) as progress:
            violations.extend(prove_bound(document, progress=progress))
        checks.append(("lower bound and library", 2))
    if document.simulated is not None and not violations and (trace is not None or document.simulated.kind != "trace"):
        from coralopt.planning import play_again

        violations.extend(play_again(document, trace))
        checks.append(("requests played again", document.simulated.requests))
    if json_output:
        print_json({"plan": str(plan), "ok": not violations, "checks": dict(checks), "violations": violations})
    else:
        table = Table(title=f"Verification of {plan}")
        table.add_column("recomputed")
        table.add_column("items", justify="right")
        for name, count in checks:
            table.add_row(name, f"{count:,}")
        print_rich(table)
        shown = simulated_table(document)
        if shown is not None:
            print_rich(shown)
        if document.simulated is not None and document.simulated.kind == "trace" and trace is None:
            typer.echo(f"not played again: give --trace with the file {document.simulated.trace}")
        for violation in violations:
            typer.echo(f"  - {violation}")
        typer.echo("the plan holds" if not violations else f"the plan does NOT hold: {len(violations)} violations")
    if violations:
        raise typer.Exit(1)
