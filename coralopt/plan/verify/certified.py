"""What windows of requests say about the SLOs of a plan, and whether its certificate says just that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from coralopt.plan.certificate import FURTHER_LOOKS, LOOKS, Certificate, CertifiedPhase, interval
from coralopt.plan.document import Plan
from coralopt.plan.parts import PlannedInstance
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving.problem import Violation


def certified(
    plan: Plan, mark: Certificate, shares: Mapping[tuple[str, str], Sequence[float]], attempts: Mapping[str, int]
) -> tuple[CertifiedPhase, ...]:
    """What windows say about SLOs of a plan: intervals of the mean share of each, and the verdict.

    Args:
        plan: Whose SLOs all share the error.
        mark: Says how much error there is, and what else shares it.
        shares: (model, kind) -> share of each window.
        attempts: Model -> the attempt that its windows are of.
    """
    targets = {phase.model.name: phase.attainment for phase in plan.resolved.model_phases}
    phases = []
    for (model, kind), values in shares.items():
        sharing = len(kinds_of(plan)) * len(mark.looks) / mark.errors[attempts[model] - 1]
        requests = len(values) * mark.window_s * requests_s(plan.resolved, model)
        low, high = interval(values, requests, mark.confidence, sharing)
        phases.append(
            CertifiedPhase(
                model=model,
                kind="prefill" if kind == "prefill" else "decode",
                target=targets.get(model),
                shares=tuple(values),
                low=low,
                high=high,
                verdict=_verdict(targets.get(model), low, high),
                attempt=attempts[model],
            )
        )
    return tuple(phases)


def requests_s(scenario: ResolvedScenario, model: str) -> float:
    """Requests/s of a model that are simulated."""
    own = (phase for phase in scenario.model_phases if model in (phase.model.name, phase.served))
    return max((phase.simulated_requests_s for phase in own), default=0.0)


def with_requests(plan: Plan) -> list[PlannedInstance]:
    """Instances of a plan that are no idle replicas."""
    busy = {phase.key for phase in plan.resolved.model_phases if phase.demand_tokens_s > 0}
    return [item for item in plan.instances if item.key in busy]


def certificate_violations(plan: Plan) -> Iterator[Violation]:
    """What a plan's certificate says that does not follow from its own windows; these are simulated again elsewhere."""
    mark = plan.certificate
    if mark is None:
        return
    about, kinds = [(phase.model, phase.kind) for phase in mark.phases], kinds_of(plan)
    if set(about) != kinds or len(kinds) < len(about):
        yield _violation("certificate", f"it is about {sorted(about)}, not {sorted(kinds)}")
        return
    last = max(phase.attempt for phase in mark.phases)
    before = {item.attempt for item in mark.refused}
    if min(mark.errors) <= 0 or math.fsum(mark.errors) > 1 + 1e-9:
        yield _violation("certificate", f"its attempts share {math.fsum(mark.errors):g} of the error")
    elif len(mark.errors) != last or before != set(range(1, last)):
        yield _violation("certificate", f"attempt {last} follows what was refused in {sorted(before)}")
    else:
        yield from _figures(plan, mark, mark.phases)
        for refused in mark.refused:
            yield from _figures(plan, mark, refused.phases)
            models = {item.model for item in refused.instances} | {phase.model for phase in refused.phases}
            if len(models) > 1 or len({phase.attempt for phase in refused.phases}) > 1:
                yield _violation("certificate", f"{', '.join(sorted(models))} are refused as one model in one attempt")
            if all(phase.verdict in ("confirmed", "not asked") for phase in refused.phases):
                yield _violation(refused.phases[0].model, "instances are refused whose SLOs are all confirmed")


def _figures(plan: Plan, mark: Certificate, phases: Sequence[CertifiedPhase]) -> Iterator[Violation]:
    """What of intervals and verdicts does not follow from the shares of the windows."""
    shares: dict[tuple[str, str], Sequence[float]] = {(phase.model, phase.kind): phase.shares for phase in phases}
    if any(not 0 <= share <= 1 for values in shares.values() for share in values):
        yield _violation("certificate", "a share of requests is outside 0 to 1")
        return
    windows = max(map(len, shares.values()))
    every, count = LOOKS + FURTHER_LOOKS, len(mark.looks)
    if count < len(LOOKS) or mark.looks != every[:count] or windows > mark.looks[-1]:
        told, known = (", ".join(map(str, looks)) for looks in (mark.looks[:20], every))
        yield _violation(
            "certificate",
            f"it has {windows} windows and says that it looks after {told}; certificates look after {known}",
        )
    again = certified(plan, mark, shares, {phase.model: phase.attempt for phase in phases})
    for own, phase in zip(again, phases, strict=True):
        same = abs(own.low - phase.low) < 1e-9 and abs(own.high - phase.high) < 1e-9
        if not same or (own.target, own.verdict) != (phase.target, phase.verdict):
            yield _violation(
                phase.model,
                f"{phase.model}, {phase.kind}: {phase.verdict} with [{phase.low:.4%}, {phase.high:.4%}], "
                f"recomputed {own.verdict} with [{own.low:.4%}, {own.high:.4%}]",
            )


def _violation(subject: str, sentence: str) -> Violation:
    return Violation("figure", subject, f"certificate: {sentence}")


def kinds_of(plan: Plan) -> set[tuple[str, str]]:
    """(model, kind) of every SLO that requests of a plan have."""
    return {
        (item.model, kind)
        for item in with_requests(plan)
        for kind in (("prefill", "decode") if item.phase == "mixed" else (item.phase,))
    }


def _verdict(target: float | None, low: float, high: float) -> Literal["confirmed", "refuted", "open", "not asked"]:
    if target is None:
        return "not asked"
    return "confirmed" if low >= target else "refuted" if high < target else "open"
