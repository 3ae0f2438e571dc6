"""Checks of what operators asked for: limits, replicas, survival of a region, forbidden pairs, supply classes.

Each is summed again from the instances and the scenario's options, under the names that a plan must list them by; shares no
code with the terms of the allocation floor. Sums are exact rational arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal

from coralopt.plan.parts import PlannedInstance, PlannedOption
from coralopt.plan.verify.demands import instances_of
from coralopt.plan.verify.inspected import Inspected, Known, differs
from coralopt.plan.verify.rent import list_price, pieces, rent, taken, used_nodes
from coralopt.scenario.facts.operations import ModelRules, RentLimits
from coralopt.scenario.facts.phases import ModelPhase, Variant
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE, above


@dataclass(frozen=True)
class DueOption:
    """One option of the scenario, and where the plan stands.

    Attributes:
        place: Its place in the scenario.
        sense: ``"most"`` or ``"least"``.
        unit: Of both figures.
        asked: What is asked for.
        planned: What the plan has.
        each: What one more, or one less, of every planned instance in its scope would change.
        held: The least (or most) that the plan must have, where that is not what is asked for: unmet demand need not
            survive.
    """

    place: str
    sense: Literal["most", "least"]
    unit: str
    asked: Fraction
    planned: Fraction
    each: Sequence[Fraction]
    held: Fraction | None = None

    @property
    def binding(self) -> bool:
        """Whether not one more of the instances would fit, or not one of them can go."""
        smallest = min((change for change in self.each if change > 0), default=None)
        room = self.asked - self.planned if self.sense == "most" else self.planned - self.asked
        return smallest is not None and room < smallest * (1 - Fraction(TOLERANCE))

    def broken(self) -> str | None:
        """The sentence that says how the plan breaks it; figures that count nodes or instances have no tolerance."""
        limit = self.asked if self.held is None else self.held
        counts = self.unit in ("nodes", "GPUs", "instances")
        if self.sense == "most":
            off = self.planned > limit if counts else above(self.planned, limit)
        else:
            off = self.planned < limit if counts else above(limit, self.planned)
        if not off:
            return None
        word = "at most" if self.sense == "most" else "at least"
        return (
            f"{self.place}: the plan has {float(self.planned):,.12g} {self.unit}, "
            f"{word} {float(limit):,.12g} is asked for"
        )


def options(inspected: Inspected) -> Iterator[Violation]:
    """Every option that the plan violates or states wrongly, and the nodes of every supply class."""
    listed = [item.option for item in inspected.plan.options]
    stated = {item.option: item for item in inspected.plan.options}
    due = list(_due(inspected))
    for option in due:
        text = option.broken()
        if text is not None:
            yield Violation("side constraint", option.place, text)
        text = _misstated(option, stated.get(option.place))
        if text is not None:
            yield Violation("figure", option.place, f"options: {option.place} {text}")
    for name in sorted(set(listed) - {option.place for option in due}):
        yield Violation("figure", name, f"options: {name} is no option of the scenario")
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield Violation("figure", name, f"options: {name} is listed more than once")
    for model, rule in inspected.scenario.operations.models:
        for instance, phase in inspected.known:
            banned = sorted(set(instance.nodes()) & set(rule.forbidden))
            if phase.served == model and banned:
                text = f"{instance.name}: uses {', '.join(banned)}, forbidden"
                yield Violation("side constraint", instance.name, text)
    yield from _classes(inspected)


def _misstated(due: DueOption, item: PlannedOption | None) -> str | None:
    if item is None:
        return "is missing"
    figures = (item.planned, due.planned), (item.asked, due.asked)
    if item.unit != due.unit or any(differs(stated, float(figure)) for stated, figure in figures):
        return f"is stated as {item.planned!r} of {item.asked!r} {item.unit}, not as recomputed"
    if item.sense != due.sense:
        return f"is stated as a limit of at {item.sense}, it is one of at {due.sense}"
    if item.binding != due.binding:
        return f"is stated as {'' if item.binding else 'not '}binding, which it is{' not' if item.binding else ''}"
    return None


def _due(inspected: Inspected) -> Iterator[DueOption]:
    """Every option of the scenario in the order of its places."""
    scenario, known = inspected.scenario, inspected.known
    rules, keys, by_region = scenario.operations, scenario.model_keys, rent(scenario, known)
    # A shared node counts once, and in the limits of every model on it.
    renting = [item for item in known if item[0].rents]
    yield from _limits("limits", rules.limits, inspected, renting, sum(by_region.values(), Fraction(0)))
    for region, limits in rules.regions:
        inside = [item for item in renting if item[0].region == region]
        yield from _limits(f"pool.regions.{region}.limits", limits, inspected, inside, by_region[region])
    for model, rule in rules.models:
        place, mine = f"models.{keys[model]}", [item for item in known if item[1].served == model]
        yield from _limits(f"{place}.limits", rule.limits, inspected, mine, None)
        if rule.forbidden:
            bad = [Fraction(i.count) for i, _ in mine if set(i.nodes()) & set(rule.forbidden)]
            total = sum(bad, Fraction(0))
            yield DueOption(f"{place}.forbidden", "most", "instances", Fraction(0), total, [Fraction(1)] * len(bad))
        for phase in (phase for phase in scenario.model_phases if phase.served == model):
            yield from _of_phase(place, rule, phase, inspected)
    yield from _means(inspected)
    yield from _starts(inspected)


def _means(inspected: Inspected) -> Iterator[DueOption]:
    """Mean quality of the requests of every model with several variants, and the least shares of these."""
    hair, shares = [Fraction(1, 1_000_000)], dict[Variant, Fraction]()
    variants = {phase.model.name: phase.variant for phase in inspected.scenario.model_phases}
    for item in inspected.plan.modes:
        variant = variants.get(item.model)
        if variant is not None:
            shares[variant] = shares.get(variant, Fraction(0)) + Fraction(item.share)
    for of, key in inspected.scenario.model_keys.items():
        mine, place = {v: share for v, share in shares.items() if v.of == of}, f"models.{key}.demand"
        if len(mine) < 2:
            # All its requests have the quality of the one.
            continue
        least = max((v.least_quality for v in mine), default=0.0)
        if least:
            mean = sum((Fraction(v.quality) * share for v, share in mine.items()), Fraction(0))
            yield DueOption(f"{place}.min_quality", "least", "of 1", Fraction(least), mean, hair)
        for v, share in mine.items():
            if v.least_share:
                name = f"{place}.min_shares.{v.name}"
                yield DueOption(name, "least", "of 1", Fraction(v.least_share), share, hair)


def _starts(inspected: Inspected) -> Iterator[DueOption]:
    """Where something runs and stops last: nodes of what is new, of those that are not taken yet."""
    scenario = inspected.scenario
    for r, region in enumerate(scenario.regions if scenario.operations.start_first else ()):
        for c, host in enumerate(scenario.configurations):
            taken_now = sum(i.nodes.get(host.name, 0) * i.count for i in scenario.running if i.region == region)
            if taken_now:
                inside = [i for i, _ in inspected.known if i.region == region]
                each = [Fraction(i.nodes().get(host.name, 0)) for i in inside]
                # What is kept is checked against what runs.
                new = sum(((i.count - i.kept) * n for i, n in zip(inside, each, strict=True)), Fraction(0))
                free = Fraction(max(0, int(scenario.availability[r, c]) - taken_now))
                yield DueOption(f"transition ({host.name} in {region})", "most", "nodes", free, new, each)


def _of_phase(place: str, rule: ModelRules, phase: ModelPhase, inspected: Inspected) -> Iterator[DueOption]:
    instances, plan = instances_of(inspected, phase), inspected.plan
    if rule.min_replicas:
        replicas, least = Fraction(sum(i.count for i in instances)), Fraction(rule.min_replicas)
        ones = [Fraction(1)] * len(instances)
        yield DueOption(f"{place}.min_replicas ({phase.phase})", "least", "instances", least, replicas, ones)
    demand = Fraction(phase.needed_tokens_s)
    unmet = sum((Fraction(item.unmet_tokens_s) for item in plan.demands if item.key == phase.key), Fraction(0))
    promised = max(Fraction(0), demand - unmet)

    def left(what: str, share: float, inside: Sequence[PlannedInstance], lost: Fraction) -> DueOption:
        given = sum((i.count * Fraction(i.tokens_s) for i in inside), -lost)
        # A smaller demand is planned where it was scaled; what goes unmet at a price was asked for.
        needed = Fraction(share) * (promised if plan.on_infeasible == "scale" else demand)
        each = [Fraction(i.tokens_s) for i in inside]
        return DueOption(f"{place}.{what})", "least", "tokens/s", needed, given, each, Fraction(share) * promised)

    if rule.survive_region_loss > 0:
        for lost in inspected.scenario.regions:
            others = [i for i in instances if i.region != lost]
            name = f"survive_region_loss ({phase.phase} without {lost}"
            yield left(name, rule.survive_region_loss, others, Fraction(0))
    if rule.survive_instance_loss > 0:
        largest = max((Fraction(i.tokens_s) for i in instances if i.count), default=Fraction(0))
        yield left(f"survive_instance_loss ({phase.phase}", rule.survive_instance_loss, instances, largest)


def _limits(
    place: str, given: RentLimits, inspected: Inspected, inside: Known, rented: Fraction | None
) -> Iterator[DueOption]:
    """Limits on nodes and money.

    Args:
        place: Of the limits in the scenario.
        given: The limits.
        inspected: The plan.
        inside: Instances in their scope.
        rented: USD/h of these at the prices of their classes; ``None`` where list prices count.
    """
    for gpu, most in given.max_gpus:
        counts = {host.name: host.count for host in inspected.scenario.configurations if host.gpu.name == gpu}
        each = [Fraction(sum(n * counts.get(name, 0) for name, n in i.nodes().items())) for i, _ in inside]
        gpus = sum((i.count * n for (i, _), n in zip(inside, each, strict=True)), Fraction(0))
        if counts:
            yield DueOption(f"{place}.max_gpus.{gpu}", "most", "GPUs", Fraction(most), gpus, each)
    if given.max_nodes is not None:
        each = [Fraction(sum(i.nodes().values())) for i, _ in inside]
        nodes = sum((i.count * n for (i, _), n in zip(inside, each, strict=True)), Fraction(0))
        yield DueOption(f"{place}.max_nodes", "most", "nodes", Fraction(given.max_nodes), nodes, each)
    if given.max_usd_h is not None:
        each = [_least_usd_h(inspected, i, rented is None) for i, _ in inside]
        listed = sum(
            (i.count * (_least_usd_h(inspected, i, True) if i.shared else Fraction(i.price_usd_h)) for i, _ in inside),
            Fraction(0),
        )
        usd_h = listed if rented is None else rented
        yield DueOption(f"{place}.max_usd_h", "most", "USD/h", Fraction(given.max_usd_h), usd_h, each)


def _least_usd_h(inspected: Inspected, instance: PlannedInstance, listed: bool) -> Fraction:
    """USD/h of one instance at list prices, or with every node at the price of its cheapest class."""
    total = Fraction(0)
    for name, n in instance.nodes().items():
        offered = pieces(inspected.scenario, instance.region, name)
        price = list_price(inspected.scenario, instance.region, name)
        total += n * (price if listed or not offered else Fraction(offered[0][1]))
    return total


def _classes(inspected: Inspected) -> Iterator[Violation]:
    off, scenario, plan = partial(Violation, "figure", "node_classes"), inspected.scenario, inspected.plan
    if not scenario.operations.classes:
        if plan.node_classes:
            yield off("node_classes: the scenario has no reserved, spot or committed nodes")
        return
    stated: dict[tuple[str, str], list[tuple[str, float, int]]] = {}
    for item in plan.node_classes:
        stated.setdefault((item.region, item.configuration), []).append((item.node_class, item.usd_h, item.nodes))
    for place, count in used_nodes(inspected.known).items():
        if not _same_pieces(stated.pop(place, []), taken(scenario, place, count)):
            region, name = place
            yield off(f"node_classes: {name} in {region} are not {count} nodes taken from the cheapest class first")
    for region, name in stated:
        yield off(f"node_classes: {name} in {region} are listed but no instance uses them")


def _same_pieces(stated: Sequence[tuple[str, float, int]], due: Sequence[tuple[str, float, int]]) -> bool:
    return len(stated) == len(due) and all(
        (name, nodes) == (other, count) and not differs(usd_h, price)
        for (name, usd_h, nodes), (other, price, count) in zip(sorted(stated), sorted(due), strict=True)
    )
