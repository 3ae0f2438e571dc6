"""What operators ask for, verified on a plan from first principles.

Shares no code with the side rows and supply classes of the allocation floor. Sums are exact rational arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial

from coralopt.plan.document import Plan, PlannedInstance
from coralopt.scenario.resolved import ModelPhase, ModelRules, RentLimits, ResolvedScenario
from coralopt.solving.problem import Violation

#: Instances with their model phase, as the verification knows them.
Known = Sequence[tuple[PlannedInstance, ModelPhase]]
#: Relative difference up to which two figures computed in a different order count as equal.
TOLERANCE = 1e-9


def differs(first: float, second: float) -> bool:
    """Whether two figures are not the same, rounding apart."""
    return abs(first - second) > TOLERANCE * max(1.0, abs(first), abs(second))


def node_prices(scenario: ResolvedScenario, region: str, configuration: str) -> list[float]:
    """USD per hour of every single available node of one kind, cheapest first."""
    r = scenario.regions.index(region)
    c = [item.name for item in scenario.configurations].index(configuration)
    prices: list[float] = []
    for item in scenario.operations.classes:
        if (item.region, item.configuration) == (region, configuration):
            prices += [item.usd_h] * item.nodes
    rest = int(scenario.availability[r, c]) - len(prices)
    return sorted(prices + [float(scenario.price_usd_h[r, c])] * max(0, rest))


def used_nodes(known: Known) -> Counter[tuple[str, str]]:
    """(region, node configuration) -> how many nodes of it the instances take."""
    used: Counter[tuple[str, str]] = Counter()
    for instance, _ in known:
        for name, n in instance.nodes().items():
            used[instance.region, name] += n * instance.count
    return used


def rent(scenario: ResolvedScenario, known: Known) -> dict[str, Fraction]:
    """USD/h that the nodes of every region cost, each at the price of its class."""
    total = dict.fromkeys(scenario.regions, Fraction(0))
    for (region, name), count in used_nodes(known).items():
        prices = node_prices(scenario, region, name)
        # Nodes that do not exist are reported by the capacity check; here they cost what the dearest does.
        prices += prices[-1:] * max(0, count - len(prices))
        total[region] += sum((Fraction(price) for price in prices[:count]), Fraction(0))
    return total


def served(rule: ModelRules, scenario: ResolvedScenario, known: Known, phase: ModelPhase) -> Fraction:
    """Tokens/s that the plan can promise: what is there, and what a region's loss leaves over the share asked for."""
    by_region = dict.fromkeys(scenario.regions, Fraction(0))
    for instance, own in known:
        if own.key == phase.key:
            by_region[instance.region] += instance.count * Fraction(instance.tokens_s)
    total = sum(by_region.values(), Fraction(0))
    if rule.survive_region_loss > 0:
        left = min(total - lost for lost in by_region.values())
        return min(total, left / Fraction(rule.survive_region_loss))
    return total


def unmet_usd_h(rule: ModelRules, phase: ModelPhase, missing: Fraction) -> Fraction | None:
    """USD/h of missing tokens/s; ``None`` where they have no price."""
    if rule.unmet_usd_mtok is None:
        return None
    given, made = (Fraction(price) for price in rule.unmet_usd_mtok)
    if phase.phase == "prefill":
        each = given
    elif phase.phase == "decode":
        each = made
    else:
        each = made + given * Fraction(phase.mean_input_tokens) / Fraction(phase.mean_output_tokens)
    return missing * 3600 * each / 1_000_000


def operations(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    """Every option that the plan violates or states wrongly."""
    keys = scenario.model_keys
    by_region = rent(scenario, known)
    stated = {option.option: option for option in plan.options}
    due: set[str] = set()

    def hold(place: str, unit: str, value: Fraction, asked: Fraction, most: bool) -> Iterator[Violation]:
        due.add(place)
        # A figure may be off by rounding where it was multiplied, never where it counts nodes or instances.
        hair = Fraction(0) if unit in ("nodes", "instances") else abs(asked) * Fraction(TOLERANCE)
        if value > asked + hair if most else value < asked - hair:
            word = "at most" if most else "at least"
            text = f"{place}: the plan has {float(value):,.6g} {unit}, {word} {float(asked):,.6g} is asked for"
            yield Violation("side constraint", place, text)
        item = stated.get(place)
        if item is None:
            yield Violation("figure", place, f"options: {place} is missing")
        elif differs(item.planned, float(value)) or differs(item.asked, float(asked)) or item.unit != unit:
            text = f"options: {place} is stated as {item.planned!r} of {item.asked!r} {item.unit}, not as recomputed"
            yield Violation("figure", place, text)

    def limits(place: str, given: RentLimits, inside: Known, usd_h: Fraction) -> Iterator[Violation]:
        if given.max_nodes is not None:
            nodes = sum(i.count * sum(i.nodes().values()) for i, _ in inside)
            yield from hold(f"{place}.max_nodes", "nodes", Fraction(nodes), Fraction(given.max_nodes), True)
        if given.max_usd_h is not None:
            yield from hold(f"{place}.max_usd_h", "USD/h", usd_h, Fraction(given.max_usd_h), True)

    asked = scenario.operations
    yield from limits("limits", asked.limits, known, sum(by_region.values(), Fraction(0)))
    for region, given in asked.regions:
        inside = [item for item in known if item[0].region == region]
        yield from limits(f"pool.regions.{region}.limits", given, inside, by_region[region])
    for model, rule in asked.models:
        place = f"models.{keys[model]}"
        mine = [item for item in known if item[1].model.name == model]
        listed = sum((i.count * Fraction(i.price_usd_h) for i, _ in mine), Fraction(0))
        yield from limits(f"{place}.limits", rule.limits, mine, listed)
        if rule.forbidden:
            bad = [i for i, _ in mine if set(i.nodes()) & set(rule.forbidden)]
            count = Fraction(sum(i.count for i in bad))
            yield from hold(f"{place}.forbidden", "instances", count, Fraction(0), True)
            for instance in bad:
                names = ", ".join(sorted(set(instance.nodes()) & set(rule.forbidden)))
                yield Violation("side constraint", instance.name, f"{instance.name}: uses {names}, forbidden")
        for phase in (phase for phase in scenario.model_phases if phase.model.name == model):
            own = [i for i, p in mine if p.key == phase.key]
            if rule.min_replicas:
                name = f"{place}.min_replicas ({phase.phase})"
                replicas = Fraction(sum(i.count for i in own))
                yield from hold(name, "instances", replicas, Fraction(rule.min_replicas), False)
            if rule.survive_region_loss > 0:
                promised = Fraction(phase.needed_tokens_s) - _unmet(plan, phase)
                for lost in scenario.regions:
                    name = f"{place}.survive_region_loss ({phase.phase} without {lost})"
                    left = sum((i.count * Fraction(i.tokens_s) for i in own if i.region != lost), Fraction(0))
                    need = Fraction(rule.survive_region_loss) * max(Fraction(0), promised)
                    yield from _survives(name, left, need, stated, due)
    for name in sorted(set(stated) - due):
        yield Violation("figure", name, f"options: {name} is no option of the scenario")
    yield from _classes(plan, scenario, known)


def _survives(
    name: str, left: Fraction, need: Fraction, stated: Mapping[str, object], due: set[str]
) -> Iterator[Violation]:
    due.add(name)
    if left < need * (1 - Fraction(TOLERANCE)):
        text = f"{name}: {float(left):,.6g} tokens/s are left, at least {float(need):,.6g} are asked for"
        yield Violation("side constraint", name, text)
    if name not in stated:
        yield Violation("figure", name, f"options: {name} is missing")


def _unmet(plan: Plan, phase: ModelPhase) -> Fraction:
    return sum((Fraction(item.unmet_tokens_s) for item in plan.demands if item.key == phase.key), Fraction(0))


def _classes(plan: Plan, scenario: ResolvedScenario, known: Known) -> Iterator[Violation]:
    off = partial(Violation, "figure", "node_classes")
    if not scenario.operations.classes:
        if plan.node_classes:
            yield off("node_classes: the scenario has no reserved or spot nodes")
        return
    stated: dict[tuple[str, str], list[float]] = {}
    offered = {(str(item.name), item.region, item.configuration): item for item in scenario.operations.classes}
    for item in plan.node_classes:
        stated.setdefault((item.region, item.configuration), []).extend([item.usd_h] * item.nodes)
        if item.node_class != "on-demand":
            offer = offered.get((item.node_class, item.region, item.configuration))
            if offer is None or item.nodes > offer.nodes:
                yield off(
                    f"node_classes: {item.nodes} {item.node_class} nodes of {item.configuration} in {item.region}, "
                    f"{0 if offer is None else offer.nodes} exist"
                )
    for (region, name), count in used_nodes(known).items():
        if sorted(stated.pop((region, name), [])) != node_prices(scenario, region, name)[:count]:
            yield off(f"node_classes: {name} in {region} are not {count} nodes taken from the cheapest class first")
    for region, name in stated:
        yield off(f"node_classes: {name} in {region} are listed but no instance uses them")
