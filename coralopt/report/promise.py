"""What share of requests a plan serves within its SLOs, as lines and tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from coralopt.plan.certificate import Certificate
from coralopt.report.table import Column, make_table, numbers, percent


def expected_fact(expected: Mapping[str, float], certified: bool) -> tuple[str, str]:
    """Name and text of one line about the share of requests within their SLO."""
    if not expected:
        return "expected within SLO", "no requests"
    worst = min(expected, key=lambda key: expected[key])
    source = "certified" if certified else "simulated"
    return "expected within SLO", f"at least {expected[worst]:.1%} ({worst}, {source})"


def certificate_table(mark: Certificate) -> Table:
    """Every SLO with its mean share, interval and verdict."""
    return make_table(
        f"Certificate: windows of {mark.window_s:g} s with seeds from {mark.first_seed}, "
        f"{mark.confidence:.0%} confidence over all SLOs",
        [
            "model",
            "SLO",
            Column("windows", "{}"),
            *numbers("{}", "asked for", "met", "at least", "at most"),
            "verdict",
        ],
        [
            (
                *(phase.model, {"prefill": "TTFT", "decode": "TPOT"}[phase.kind], len(phase.shares)),
                *map(percent, (phase.target, phase.mean, phase.low, phase.high)),
                phase.verdict,
            )
            for phase in mark.phases
        ],
    )
