"""``coralopt certify``: whether a plan holds its SLOs for the share of requests asked for, on fresh requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coralopt.cli.console import JsonFlag, file_to_write_as, progress_bar
from coralopt.cli.exit_codes import CHECK_FAILED, OK
from coralopt.cli.present import CommandOutput, present


def certify(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan document.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the plan with the certificate here.", callback=file_to_write_as(".json")
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the first window of a first attempt; by default one that no search uses."),
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Simulate windows of fresh requests on PLAN until it is known which SLOs are met; exit 1 unless all are confirmed."""
    from coralopt.plan import Plan
    from coralopt.planning import certify as certificate_of
    from coralopt.planning.promise.certificate import FIRST_SEED
    from coralopt.report.promise import certificate_table

    document = Plan.load(plan)
    with progress_bar("certificate", quiet=json_output) as progress:
        mark = certificate_of(document, FIRST_SEED if seed is None else seed, progress)
    if all(phase.verdict == "not asked" for phase in mark.phases):
        lines = ["the scenario asks for mean requests only: there is no share to certify"]
    else:
        lines = ["certified" if mark.holds else "NOT CERTIFIED: the share asked for is not confirmed for every SLO"]
    if output is not None:
        document.with_certificate(mark).save(output)
        lines.append(f"plan written to {output}")
    answer = CommandOutput(
        {"plan": plan, "certified": mark.holds, "certificate": mark.model_dump(mode="json")},
        [certificate_table(mark)],
        lines,
        code=OK if mark.holds else CHECK_FAILED,
    )
    present(answer, json_output)
