"""What the nodes of a plan cost, each at the price of its supply class, in exact arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

from coralopt.plan.verify.inspected import Known
from coralopt.scenario.resolved import ResolvedScenario

#: Nodes of one class: its name, USD per node-hour, how many.
Piece = tuple[str, float, int]


def list_price(scenario: ResolvedScenario, region: str, configuration: str) -> Fraction:
    """USD per node-hour on demand; 0 where there is none, which the check of prices reports."""
    c = [item.name for item in scenario.configurations].index(configuration)
    price = float(scenario.price_usd_h[scenario.regions.index(region), c])
    return Fraction(0) if math.isnan(price) else Fraction(price)


def pieces(scenario: ResolvedScenario, region: str, configuration: str) -> list[Piece]:
    """All available nodes of one kind by class, cheapest first.

    Where fewer nodes are available than the classes hold, reserved ones stay longest.
    """
    r = scenario.regions.index(region)
    rest = int(scenario.availability[r, [item.name for item in scenario.configurations].index(configuration)])
    offered: list[Piece] = []
    for item in sorted(scenario.operations.classes, key=lambda item: item.name != "reserved"):
        if (item.region, item.configuration) == (region, configuration):
            offered.append((item.name, item.usd_h, min(rest, item.nodes)))
            rest -= offered[-1][2]
    offered.append(("on-demand", float(list_price(scenario, region, configuration)), rest))
    return sorted((piece for piece in offered if piece[2] > 0), key=lambda piece: piece[1])


def taken(scenario: ResolvedScenario, place: tuple[str, str], count: int) -> list[Piece]:
    """What ``count`` nodes of one kind in one region are, taken from the cheapest class first."""
    parts: list[Piece] = []
    for name, price, nodes in pieces(scenario, *place):
        if count > 0:
            parts.append((name, price, min(count, nodes)))
            count -= nodes
    return parts


def used_nodes(known: Known) -> Counter[tuple[str, str]]:
    """(region, node configuration) -> how many nodes of it the instances take; shared ones count once."""
    used: Counter[tuple[str, str]] = Counter()
    for instance, _ in known:
        for name, n in instance.nodes().items():
            used[instance.region, name] += n * instance.count * instance.rents
    return used


def rent(scenario: ResolvedScenario, known: Known) -> dict[str, Fraction]:
    """USD/h that the nodes of every region cost; those that do not exist cost the list price."""
    total = dict.fromkeys(scenario.regions, Fraction(0))
    for (region, name), count in used_nodes(known).items():
        parts = taken(scenario, (region, name), count)
        total[region] += sum((nodes * Fraction(price) for _, price, nodes in parts), Fraction(0))
        beyond = count - sum(nodes for _, _, nodes in parts)
        total[region] += beyond * list_price(scenario, region, name)
    return total
