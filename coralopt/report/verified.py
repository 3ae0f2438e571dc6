"""How a plan was verified by simulation, as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from coralopt.display import NOTHING, percent
from coralopt.plan.document import Plan
from coralopt.report.simulation import outcome_name
from coralopt.report.table import Column, make_table, numbers

if TYPE_CHECKING:
    from coralopt.planning import Round


def simulated_table(plan: Plan) -> Table | None:
    """What the plan was simulated with and what came of it; ``None`` for a plan that was not."""
    mark = plan.simulated
    if mark is None:
        return None
    source = f"trace {mark.trace}" if mark.kind == "trace" else f"{mark.kind} traffic, seed {mark.seed}"
    if mark.kind == "poisson" and mark.length_cv is not None:
        source += f", lengths with cv {mark.length_cv:g}"
    rate = "" if mark.rate is None else f" at {mark.rate:g} requests/s a model"
    verdict = "VERIFIED" if mark.passed else "FAILED"
    possible = " of the possible" if mark.over == "possible" else ""
    rows = []
    for row in mark.phases:
        causes = sorted(row.causes.items(), key=lambda item: -item[1])
        missed = ", ".join(f"{name} {share * 100:.2f} %" for name, share in causes) or NOTHING
        rows.append((outcome_name(row), percent(row.attainment), percent(row.attainment_feasible), row.p99_ms, missed))
    shares = numbers("{}", "met SLO", "met of feasible")
    columns: tuple[Column | str, ...] = ("model phase", *shares, Column("p99 ms", "{:,.1f}"), "missed for")
    target = f"{percent(mark.target)}{possible} asked for"
    return make_table(f"{verdict} by simulation: {mark.requests:,} requests, {source}{rate}; {target}", columns, rows)


def rounds_table(rounds: Sequence[Round]) -> Table:
    """Every plan that was made and simulated."""
    keys = list(dict.fromkeys(key for item in rounds for key in item.headroom))

    def cell(item: Round, key: str) -> str:
        throughput, latency = item.headroom[key]
        met = f" -> {item.attainment[key]:.1%}" if key in item.attainment else ""
        return f"{throughput:.0%}/{latency:.0%}{met}"

    rows = []
    for number, item in enumerate(rounds, 1):
        ending = "no room in the pool" if math.isnan(item.cost_usd_h) else "passed" if item.passed else "failed"
        rows.append((number, item.cost_usd_h, ending, *(cell(item, key) for key in keys)))
    return make_table(
        "Rounds: throughput headroom / share of the SLO kept free -> met SLO",
        [Column("round", "{}"), Column("USD/h", "{:,.4f}"), "", *keys],
        rows,
    )
