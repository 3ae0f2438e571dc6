"""What windows of requests say about the SLOs of a plan, and whether its certificate says just that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from coralopt.plan.certificate import CertifiedPhase, interval
from coralopt.plan.document import Plan
from coralopt.solving.problem import Violation


def certified(
    plan: Plan, shares: Mapping[tuple[str, str], Sequence[float]], confidence: float, looks: Sequence[int]
) -> tuple[CertifiedPhase, ...]:
    """What windows say about every SLO of a plan: intervals of its mean share, and the verdict."""
    targets = {phase.model.name: phase.attainment for phase in plan.resolved.model_phases}
    phases = []
    for (model, kind), values in shares.items():
        low, high = interval(values, confidence, len(shares) * len(looks))
        phases.append(
            CertifiedPhase(
                model=model,
                kind="prefill" if kind == "prefill" else "decode",
                target=targets.get(model),
                shares=tuple(values),
                low=low,
                high=high,
                verdict=_verdict(targets.get(model), low, high),
            )
        )
    return tuple(phases)


def certificate_violations(plan: Plan) -> Iterator[Violation]:
    """What a plan's certificate says that does not follow from its own windows; these are simulated again elsewhere."""
    mark = plan.certificate
    if mark is None:
        return
    shares: dict[tuple[str, str], tuple[float, ...]] = {
        (phase.model, phase.kind): phase.shares for phase in mark.phases
    }
    kinds = {
        (item.model, kind)
        for item in plan.instances
        for kind in (("prefill", "decode") if item.phase == "mixed" else (item.phase,))
    }
    if set(shares) != kinds or len(shares) < len(mark.phases):
        yield Violation("figure", "certificate", f"certificate: it is about {sorted(shares)}, not {sorted(kinds)}")
        return
    if any(not 0 <= share <= 1 for values in shares.values() for share in values):
        yield Violation("figure", "certificate", "certificate: a share of requests is outside 0 to 1")
    for own, phase in zip(certified(plan, shares, mark.confidence, mark.looks), mark.phases, strict=True):
        same = abs(own.low - phase.low) < 1e-9 and abs(own.high - phase.high) < 1e-9
        if not same or (own.target, own.verdict) != (phase.target, phase.verdict):
            yield Violation(
                "figure",
                phase.model,
                f"certificate: {phase.model}, {phase.kind}: {phase.verdict} with [{phase.low:.4%}, {phase.high:.4%}], "
                f"recomputed {own.verdict} with [{own.low:.4%}, {own.high:.4%}]",
            )


def _verdict(target: float | None, low: float, high: float) -> Literal["confirmed", "refuted", "open", "not asked"]:
    if target is None:
        return "not asked"
    return "confirmed" if low >= target else "refuted" if high < target else "open"
