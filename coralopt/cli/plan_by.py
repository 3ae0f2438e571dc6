"""``coralopt plan --planner NAME``: a plan by another planner than the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coralopt.cli.console import library_progress, print_json, print_rich, say

if TYPE_CHECKING:
    from coralopt.scenario.resolved import ResolvedScenario


def plan_by(
    name: str,
    scenario: ResolvedScenario,
    *,
    settings: Mapping[str, Any],
    solver: str | None,
    options: Mapping[str, Any],
    library: Path | None,
    seed: int,
    output: Path | None,
    pipelines: bool,
    json_output: bool,
) -> None:
    """Plan with the planner of this name, verify, print; exit code 1 where the plan is not what it says."""
    from coralopt.plan.verify import verify_plan
    from coralopt.planning import PlanRequest, get_planner
    from coralopt.report import plan_view

    planner = get_planner(name)
    with library_progress(quiet=json_output) as progress:
        outcome = planner.plan(
            PlanRequest(scenario, solver, options, library, seed=seed, settings=settings, progress=progress)
        )
    verification = verify_plan(outcome.plan)
    if output is not None:
        outcome.plan.save(output)
    if json_output:
        print_json(
            {
                "plan": outcome.plan.model_dump(mode="json"),
                "verified": verification.ok,
                "violations": list(verification.sentences),
                "seconds": dict(outcome.seconds),
                "own_gap": outcome.own_gap,
                "notes": list(outcome.notes),
            }
        )
    else:
        print_rich(plan_view(outcome.plan, pipelines=pipelines))
        say(f"planner {planner.name}: {planner.summary} ({planner.source})")
        say("seconds: " + ", ".join(f"{step} {value:.2f}" for step, value in outcome.seconds.items()))
        for note in outcome.notes:
            say(f"note: {note}")
        say("checked: every figure recomputed" if verification.ok else "CHECK FAILED:")
        if output is not None:
            say(f"plan written to {output}")
    for violation in verification.sentences:
        say(f"  - {violation}")
    if not verification.ok:
        raise typer.Exit(1)
