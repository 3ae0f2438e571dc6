"""How a plan was verified by simulation, as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from coralopt.plan.document import Plan

if TYPE_CHECKING:
    from coralopt.planning import Round


def simulated_table(plan: Plan) -> Table | None:
    """What the plan was played against and what came of it; ``None`` for a plan that was not played."""
    mark = plan.simulated
    if mark is None:
        return None
    source = f"trace {mark.trace}" if mark.kind == "trace" else f"{mark.kind} traffic, seed {mark.seed}"
    if mark.kind == "poisson":
        source += f", lengths with cv {mark.length_cv:g}"
    rate = "" if mark.rate is None else f" at {mark.rate:g} requests/s a model"
    said = "VERIFIED" if mark.passed else "FAILED"
    possible = " of the possible" if mark.over == "possible" else ""
    table = Table(
        title=f"{said} by simulation: {mark.requests:,} requests, {source}{rate}; {mark.target:.2%}{possible} asked for"
    )
    table.add_column("model phase")
    for head in ("met SLO", "met of feasible", "p99 ms"):
        table.add_column(head, justify="right")
    table.add_column("missed for")
    for row in mark.phases:
        causes = sorted(row.causes.items(), key=lambda item: -item[1])
        table.add_row(
            row.key + (f" ({row.kind})" if row.phase == "mixed" else ""),
            f"{row.attainment:.2%}",
            "-" if row.attainment_feasible is None else f"{row.attainment_feasible:.2%}",
            "-" if row.p99_ms is None else f"{row.p99_ms:,.1f}",
            ", ".join(f"{name} {share:.2%}" for name, share in causes) or "-",
        )
    return table


def rounds_table(rounds: Sequence[Round]) -> Table:
    """Every plan that was made and played."""
    keys = list(dict.fromkeys(key for item in rounds for key in item.headroom))
    table = Table(title="Rounds: throughput headroom / share of the SLO kept free -> met SLO")
    table.add_column("round", justify="right")
    table.add_column("USD/h", justify="right")
    table.add_column("", justify="left")
    for key in keys:
        table.add_column(key)
    for number, item in enumerate(rounds, 1):
        lost = math.isnan(item.cost_usd_h)
        table.add_row(
            str(number),
            "-" if lost else f"{item.cost_usd_h:,.4f}",
            "no room in the pool" if lost else "passed" if item.passed else "failed",
            *(
                f"{item.headroom[key][0]:.0%}/{item.headroom[key][1]:.0%}"
                + (f" -> {item.attainment[key]:.1%}" if key in item.attainment else "")
                for key in keys
            ),
        )
    return table
