"""``coralopt verify``: recompute everything a plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, progress_bar
from coralopt.cli.exit_codes import CHECK_FAILED, OK
from coralopt.cli.present import CommandOutput, present


def verify(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Also re-derive the lower bound (library, allocation) and simulate the certificate's windows again.",
        ),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="The trace file that the plan was simulated with, to repeat it.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Recompute every figure of PLAN from the scenario inside it; exit 1 with the reasons when anything is off."""
    from coralopt.plan import Plan
    from coralopt.plan.verify import verify_plan
    from coralopt.report.table import Column, make_table
    from coralopt.report.verified import simulated_table

    document = Plan.load(plan)
    result = verify_plan(document)
    checks, violations = list(result.checks), list(result.sentences)
    if prove and not violations:
        from coralopt.planning import certify_again, prove_bound

        with progress_bar("proof", quiet=json_output) as progress:
            violations.extend(prove_bound(document, progress=progress))
            violations.extend(certify_again(document, progress))
        checks.append(("lower bound and library", 2))
    mark = document.simulated
    needs_trace = mark is not None and mark.kind == "trace" and trace is None
    if mark is not None and not violations and not needs_trace:
        from coralopt.planning import simulate_again

        violations.extend(simulate_again(document, trace))
        checks.append(("requests simulated again", mark.requests))
    simulated = simulated_table(document)
    lines = [f"  - {violation}" for violation in violations]
    if mark is not None and needs_trace:
        lines.insert(0, f"not simulated again: give --trace with the file {mark.trace}")
    if not violations:
        lines += [f"taken on trust: {what}" for what in result.trusted if not (prove and "--prove" in what)]
    lines.append("the plan holds" if not violations else f"the plan does NOT hold: {len(violations)} violations")
    tables = [make_table(f"Verification of {plan}", ["recomputed", Column("items", "{:,}")], checks)]
    answer = CommandOutput(
        {"plan": plan, "ok": not violations, "checks": dict(checks), "violations": violations},
        [*tables, *([] if simulated is None else [simulated]), "\n".join(lines)],
        code=CHECK_FAILED if violations else OK,
    )
    present(answer, json_output)
