"""Checks of what every model phase needs and is given, and of what stays unmet."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from coralopt.plan.parts import PlannedDemand, PlannedInstance, share_of
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.plan.verify.routes import share_under_way
from coralopt.scenario.facts.operations import ModelRules
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE


def demands(inspected: Inspected) -> Iterator[Violation]:
    """Every entry of ``demands``, and whether the instances give what it promises."""
    plan, phases = inspected.plan, inspected.scenario.model_phases
    if [item.key for item in plan.demands] != [phase.key for phase in phases]:
        yield Violation("figure", "demands", "demands: the list of model phases is not that of the scenario")
        return
    yield from _modes(inspected)
    for item, phase in zip(plan.demands, phases, strict=True):
        yield from _promise(item, phase, inspected)
        yield from _stated(item, phase, inspected)


def rule_of(inspected: Inspected, phase: ModelPhase) -> ModelRules:
    """What operators ask for the model of a phase."""
    return dict(inspected.scenario.operations.models).get(phase.served, ModelRules())


def instances_of(inspected: Inspected, phase: ModelPhase) -> list[PlannedInstance]:
    """The instances that serve a model phase."""
    return [instance for instance, _ in inspected.known if phase.key in instance.serves()]


def given(instance: PlannedInstance, phase: ModelPhase) -> Fraction:
    """Tokens/s of a model phase that one of these instances is planned to serve."""
    return Fraction(instance.serves()[phase.key][0])


def needed(inspected: Inspected, phase: ModelPhase) -> Fraction:
    """Tokens/s that a model phase must give where all requests are served: those of the requests that go this way."""
    return Fraction(share_of(inspected.plan.modes, phase.key)) * Fraction(phase.needed_tokens_s)


def _modes(inspected: Inspected) -> Iterator[Violation]:
    """Requests of models in mode auto or with variants, and of no others, are split over all ways."""
    off = partial(Violation, "figure")
    demands = {phase.key: phase.demand_tokens_s for phase in inspected.scenario.model_phases}
    served = {phase.model.name: phase.requested for phase in inspected.scenario.model_phases}
    halves = {"mixed": ("mixed",), "disaggregated": ("prefill", "decode")}
    ways: dict[str, list[tuple[str, str]]] = {}
    for name, of in served.items():
        for mode, phases in halves.items():
            if all(demands.get(f"{name}/{phase}", 0) > 0 for phase in phases):
                ways.setdefault(of, []).append((name, mode))
    free = {of for of, some in ways.items() if len(some) > 1}
    stated = [(item.model, item.mode) for item in inspected.plan.modes]
    for of in sorted(free | {served.get(model, model) for model, _ in stated}):
        mine = [item for item in inspected.plan.modes if served.get(item.model, item.model) == of]
        shares = [item.share for item in mine]
        if of not in free:
            yield off(of, f"{of}: `modes` splits its requests, but it is not in mode auto and has no variants")
        elif sorted((item.model, item.mode) for item in mine) != sorted(ways[of]):
            yield off(of, f"{of}: is in mode auto or has variants, and `modes` does not say once for each mode")
        elif differs(sum(shares), 1.0):
            yield off(of, f"{of}: its shares in `modes` sum to {sum(shares)!r}, not to 1")


def _promise(item: PlannedDemand, phase: ModelPhase, inspected: Inspected) -> Iterator[Violation]:
    demand, level = needed(inspected, phase), _served(inspected, phase)
    # Throughputs are rounded figures: three times 0.7 tokens/s serve 2.1, though not in binary fractions.
    hair = demand * Fraction(TOLERANCE)
    if level < demand - Fraction(item.unmet_tokens_s) - hair:
        room = f" and {phase.throughput_headroom:.0%} headroom" if phase.throughput_headroom else ""
        text = (
            f"{phase.key}: the plan gives {float(level):.3f} tokens/s, "
            f"the demand is {item.demand_tokens_s - item.unmet_tokens_s:.3f} tokens/s{room}"
        )
        yield Violation("demand", phase.key, text)
    way, expected = inspected.plan.on_infeasible, 0.0
    if way == "scale":
        expected = float(demand) * (1 - inspected.plan.served_factor)
    elif way == "shortfall":
        expected = float(_unserved_share(inspected, phase) * demand)
    hair_s = 0.0 if way == "met" else TOLERANCE * max(1.0, float(demand))
    if not abs(item.unmet_tokens_s - expected) <= hair_s:
        text = f"{phase.key}: unmet_tokens_s is {item.unmet_tokens_s!r}, {way} gives {expected!r}"
        yield Violation("figure", phase.key, text)


def _stated(item: PlannedDemand, phase: ModelPhase, inspected: Inspected) -> Iterator[Violation]:
    off, instances = partial(Violation, "figure", phase.key), instances_of(inspected, phase)
    planned = sum((i.count * given(i, phase) for i in instances), Fraction(0))
    demand = share_of(inspected.plan.modes, phase.key) * phase.demand_tokens_s
    if differs(item.demand_tokens_s, demand) or differs(item.planned_tokens_s, float(planned)):
        yield off(f"{phase.key}: demand or planned tokens/s in `demands` are not those recomputed")
    times = (Fraction(i.serves()[phase.key][1]) for i in instances)
    spent = sum(i.count * Fraction(i.price_usd_h) * time for i, time in zip(instances, times, strict=True))
    if differs(item.cost_usd_h, float(spent)):
        yield off(f"{phase.key}: cost_usd_h in `demands` is not the sum over its instances")
    if differs(item.prefix_hit, phase.prefix_hit):
        text = f"prefix_hit in `demands` is {item.prefix_hit:g}, the scenario says {phase.prefix_hit:g}"
        yield off(f"{phase.key}: {text}")
    if differs(item.slo_ms, phase.slo_ms):
        yield off(f"{phase.key}: slo_ms in `demands` is {item.slo_ms:g}, the scenario says {phase.slo_ms:g}")
    table = inspected.tables.plain(phase.key)
    used = {name for instance in instances for name in instance.nodes()}
    sources = {name: line for name, line in zip(table.configurations, table.provenance, strict=True) if name in used}
    for name in sorted({*sources, *item.throughput_sources}):
        stated, line = item.throughput_sources.get(name), sources.get(name)
        if stated != line:
            yield off(f"{phase.key}: throughput_sources says {stated!r} of {name}, its figures come from {line!r}")


def _served(inspected: Inspected, phase: ModelPhase) -> Fraction:
    """Tokens/s that the plan can promise: what is there, and what a loss leaves over the share asked for."""
    by_region = dict.fromkeys(inspected.scenario.regions, Fraction(0))
    for instance in instances_of(inspected, phase):
        by_region[instance.region] += instance.count * given(instance, phase)
    total = sum(by_region.values(), Fraction(0))
    rule, level = rule_of(inspected, phase), total
    if rule.survive_region_loss > 0:
        left = min(total - lost for lost in by_region.values())
        level = min(level, left / Fraction(rule.survive_region_loss))
    if rule.survive_instance_loss > 0:
        largest = max((Fraction(i.tokens_s) for i in instances_of(inspected, phase) if i.count), default=Fraction(0))
        level = min(level, (total - largest) / Fraction(rule.survive_instance_loss))
    return level


def served_share(inspected: Inspected, phase: ModelPhase) -> Fraction:
    """What the plan can promise of a phase over what it needs; above 1 where there is more."""
    return _served(inspected, phase) / needed(inspected, phase)


def _unserved_share(inspected: Inspected, phase: ModelPhase) -> Fraction:
    """Share of a model's demand that its phases leave unmet: a request that is not served needs none of them."""
    share = Fraction(0)
    for other in inspected.scenario.model_phases:
        whole = needed(inspected, other)
        same = other.served == phase.served if phase.request_class else other.model.name == phase.model.name
        if same and whole > 0:
            share = max(share, 1 - _served(inspected, other) / whole)
    # Where sending costs more than leaving requests unserved, fewer go than could.
    return max(share, 1 - share_under_way(inspected, phase.model.name))
