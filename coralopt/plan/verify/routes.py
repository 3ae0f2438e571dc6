"""Checks of where requests go between prefill and decode, and of what sending their KV caches costs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from coralopt.plan.parts import PlannedFlow, share_of
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE


def egress_usd_h(inspected: Inspected) -> Fraction:
    """USD/h of all flows at the scenario's prices, on the stored GB/s."""
    each = (3600 * Fraction(flow.gb_s) * Fraction(_price(inspected, flow) or 0.0) for flow in inspected.plan.flows)
    return sum(each, Fraction(0))


def share_under_way(inspected: Inspected, model: str) -> Fraction:
    """Share of a model's disaggregated requests that go from prefill to decode; 1 where flows say nothing about it."""
    for prefill, _ in _handed_over(inspected):
        apart = Fraction(share_of(inspected.plan.modes, prefill.key))
        if prefill.model.name == model and apart > 0:
            return _requests_s(inspected, model) / _rate(prefill) / apart
    return Fraction(1)


def routes(inspected: Inspected) -> Iterator[Violation]:
    """Every request of every model finds an allowed way, within the capacity at both of its ends."""
    plan, off = inspected.plan, partial(Violation, "figure")
    phases = list(_handed_over(inspected))
    for name in sorted({flow.model for flow in plan.flows} - {prefill.model.name for prefill, _ in phases}):
        yield off(name, f"{name}: has flows, but KV caches of it go anywhere for nothing, or nowhere")
    unmet = {item.key: Fraction(item.unmet_tokens_s) for item in plan.demands}
    for prefill, decode in phases:
        name, rate = prefill.model.name, _rate(prefill)
        mine = [flow for flow in plan.flows if flow.model == name]
        for flow in mine:
            yield from _figures(inspected, flow, prefill)
        apart = Fraction(share_of(plan.modes, prefill.key))
        served = apart - unmet.get(prefill.key, Fraction(0)) / Fraction(prefill.needed_tokens_s)
        total = _requests_s(inspected, name)
        if abs(total - rate * served) > rate * Fraction(TOLERANCE):
            text = (
                f"{name}: {float(total):.6g} of {float(rate * served):.6g} requests/s find a way from prefill to decode"
            )
            yield Violation("demand", name, text)
        for phase, end in ((prefill, "prefill_region"), (decode, "decode_region")):
            for region in inspected.scenario.regions:
                sent = sum((Fraction(f.requests_s) for f in mine if getattr(f, end) == region), Fraction(0))
                needed = sent / rate * Fraction(phase.needed_tokens_s)
                given = sum(
                    (
                        i.count * Fraction(i.tokens_s)
                        for i, own in inspected.known
                        if own is phase and i.region == region
                    ),
                    Fraction(0),
                )
                if needed > given * (1 + Fraction(TOLERANCE)):
                    text = f"{phase.key} in {region}: flows need {float(needed):,.1f} tokens/s, {float(given):,.1f} planned"
                    yield Violation("demand", phase.key, text)


def _figures(inspected: Inspected, flow: PlannedFlow, prefill: ModelPhase) -> Iterator[Violation]:
    off = partial(Violation, "figure", flow.model)
    way, price = f"{flow.model}: {flow.prefill_region} to {flow.decode_region}", _price(inspected, flow)
    if not {flow.prefill_region, flow.decode_region} <= set(inspected.scenario.regions):
        yield off(f"{way}: one of them is no region of the scenario")
    elif price is None:
        yield off(f"{way}: KV caches may not go this way")
    cache_bytes = Fraction(prefill.model.kv_bytes(prefill.mean_input_tokens)) * (1 - Fraction(prefill.prefix_hit))
    gb_s = Fraction(flow.requests_s) * cache_bytes / 10**9
    for name, figure, computed in (
        ("gb_s", flow.gb_s, gb_s),
        ("usd_h", flow.usd_h, 3600 * gb_s * Fraction(price or 0.0)),
    ):
        if differs(figure, float(computed)):
            yield off(f"{way}: {name} is {figure!r}, recomputed {float(computed)!r}")


def _handed_over(inspected: Inspected) -> Iterator[tuple[ModelPhase, ModelPhase]]:
    """Prefill and decode phase of every model for which it matters where requests are handed over."""
    scenario = inspected.scenario
    if scenario.kv_transfer.mode == "free" or len(scenario.regions) < 2:
        return
    phases = {phase.key: phase for phase in scenario.model_phases if phase.demand_tokens_s > 0}
    for prefill in phases.values():
        decode = phases.get(f"{prefill.model.name}/decode")
        if prefill.phase == "prefill" and decode is not None:
            yield prefill, decode


def _requests_s(inspected: Inspected, model: str) -> Fraction:
    return sum((Fraction(flow.requests_s) for flow in inspected.plan.flows if flow.model == model), Fraction(0))


def _rate(prefill: ModelPhase) -> Fraction:
    return Fraction(prefill.demand_tokens_s) / Fraction(prefill.mean_input_tokens)


def _price(inspected: Inspected, flow: PlannedFlow) -> float | None:
    """USD/GB between two regions; ``None`` where KV caches may not go."""
    if flow.prefill_region == flow.decode_region:
        return 0.0
    ways = {(link.source, link.target): link.usd_gb for link in inspected.scenario.kv_transfer.links}
    return ways.get((flow.prefill_region, flow.decode_region))
