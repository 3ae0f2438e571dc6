"""What share of requests a plan serves within its SLOs, as lines and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table

from coralopt.display import percent
from coralopt.plan import Plan
from coralopt.plan.certificate import Certificate
from coralopt.report.table import Column, make_table, numbers

#: Two-sided 95 % of a normal distribution.
_Z = 1.959964


def interval(share: float, count: float) -> tuple[float, float]:
    """The Wilson score interval, 95 %, of a share seen among ``count`` independent requests."""
    if count <= 0 or not math.isfinite(share):
        return 0.0, 1.0
    centre = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_words(low: float, high: float) -> str:
    """Both ends, cut off after two digits of a percent."""
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def expected_fact(expected: Mapping[str, float], certified: bool) -> tuple[str, str]:
    """Name and text of one line about the share of requests within their SLO."""
    if not expected:
        return "expected within SLO", "no requests"
    worst = min(expected, key=lambda key: expected[key])
    source = "certified" if certified else "simulated"
    return "expected within SLO", f"at least {percent(expected[worst])} ({worst}, {source})"


def bound_words(plan: Plan) -> str:
    """What costs no less than the proven lower bound of a plan of coral's."""
    if any(phase.attainment is not None and phase.demand_tokens_s > 0 for phase in plan.resolved.model_phases):
        return "no plan whose groups of equal instances hold the share of requests asked for"
    return "no allocation of the template library"


def unconfirmed_words(plan: Plan) -> str:
    """Which models of a plan are not known to serve the share of requests asked for within their SLOs."""
    attainment = {phase.served: phase.attainment for phase in plan.resolved.model_phases}
    return "not seen to serve the share asked for: " + ", ".join(
        f"{model} ({percent(attainment.get(model) or 0.0)})" for model in plan.unconfirmed
    )


def certificate_table(mark: Certificate) -> Table:
    """Every SLO with its mean share, interval and verdict; where there were several attempts, what these refused, too."""
    refused = [phase for item in mark.refused for phase in item.phases]
    return make_table(
        f"Certificate: windows of {mark.window_s:g} s with seeds from {mark.first_seed}, "
        f"{mark.confidence:.0%} confidence over all SLOs" + (" and attempts" if refused else ""),
        [
            *([Column("attempt", "{}")] if refused else []),
            "model",
            "SLO",
            Column("windows", "{}"),
            *numbers("{}", "asked for", "met", "at least", "at most"),
            "verdict",
        ],
        [
            (
                *([phase.attempt] if refused else []),
                *(phase.model, {"prefill": "TTFT", "decode": "TPOT"}[phase.kind], len(phase.shares)),
                *map(percent, (phase.target, phase.mean, phase.low, phase.high)),
                phase.verdict + (", replaced" if phase in refused else ""),
            )
            for phase in (*refused, *mark.phases)
        ],
    )
