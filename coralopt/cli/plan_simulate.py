"""``coralopt plan --simulate``: plan, play, correct, and the cheapest plan that keeps its promise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coralopt.cli.console import library_progress, print_json, print_rich, say

if TYPE_CHECKING:
    from coralopt.planning import Round, VerifiedPlanning
    from coralopt.scenario.resolved import ResolvedScenario
    from coralopt.workload import Traffic


def plan_by_simulation(
    scenario: ResolvedScenario,
    traffic: Traffic,
    *,
    target: float,
    over: str,
    rounds: int,
    solver: str | None,
    options: Mapping[str, Any],
    library: Path | None,
    output: Path | None,
    pipelines: bool,
    json_output: bool,
) -> None:
    """Search, print, write; exit 1 when no plan passed."""
    from coralopt.plan.verify import verify_plan
    from coralopt.planning import plan_verified
    from coralopt.report import plan_view
    from coralopt.report.verified import rounds_table

    def told(number: int, item: Round) -> None:
        if json_output:
            return
        if math.isnan(item.cost_usd_h):
            say(f"round {number}: the pool has no room for the headroom asked for")
            return
        worst = min(item.attainment, key=lambda key: item.attainment[key], default="")
        ending = "passed" if item.passed else "failed"
        say(
            f"round {number}: {item.cost_usd_h:,.4f} USD/h, {ending}"
            + (f", least {item.attainment[worst]:.2%} of {worst}" if worst else "")
            + f" ({sum(item.seconds.values()):.1f} s)"
        )

    with library_progress(quiet=json_output) as progress:
        found = plan_verified(
            scenario,
            traffic,
            target=target,
            over=over,
            rounds=rounds,
            solver=solver,
            options=options,
            library=library,
            progress=progress,
            on_round=told,
        )
    verification = verify_plan(found.plan)
    if output is not None:
        found.plan.save(output)
    if json_output:
        print_json(
            {
                "plan": found.plan.model_dump(mode="json"),
                "verified": verification.ok and found.verified,
                "violations": list(verification.sentences),
                "interrupted": found.interrupted,
                "impossible": dict(found.impossible),
                "rounds": [_plain(item) for item in found.rounds],
            }
        )
    else:
        say(f"requests: {traffic.words}")
        print_rich(rounds_table(found.rounds))
        print_rich(plan_view(found.plan, pipelines=pipelines))
        _judge(found, output)
    for violation in verification.sentences:
        say(f"  - {violation}")
    if found.interrupted:
        say("interrupted: this is the best of the rounds that were finished")
    if not (verification.ok and found.verified):
        raise typer.Exit(1)


def _judge(found: VerifiedPlanning, output: Path | None) -> None:
    first = found.rounds[0]
    if found.verified:
        say(
            f"verified: the cheapest of {sum(item.passed for item in found.rounds)} plans that passed; "
            f"{found.plan.cost_usd_h:,.4f} USD/h, the first plan cost {first.cost_usd_h:,.4f} USD/h"
        )
    else:
        mark = found.plan.simulated
        say(
            f"NOT VERIFIED: none of {len(found.rounds)} plans passed; this one came nearest. Allow more --rounds, "
            f"a lower --attainment than {mark.target if mark else 0:g}, looser SLOs or a larger pool"
        )
        if mark is not None and mark.over == "all":
            for key, share in found.impossible.items():
                if share > 1 - mark.target:
                    say(
                        f"  - {key}: {share:.2%} of the requests can meet the SLO on no node of the pool; "
                        "--attainment-of possible leaves them out"
                    )
    if output is not None:
        say(f"plan written to {output}" + ("" if found.verified else ", marked as failed"))


def _plain(item: Round) -> dict[str, Any]:
    data = dataclasses.asdict(item)
    data["cost_usd_h"] = None if math.isnan(item.cost_usd_h) else item.cost_usd_h
    return data
