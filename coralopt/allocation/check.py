"""An allocation checked from first principles, in exact rational arithmetic on the given figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coralopt.allocation.joint import divided_time
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.routes import Flow, Pool, least_flow
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.allocation.supply import rent_by_region
from coralopt.solving.problem import Check, Violation
from coralopt.solving.tolerance import above

#: (template, region, count) of an allocation that makes sense.
_Item = tuple[int, int, int]


def check_allocation(problem: AllocationProblem, allocation: Allocation) -> Check:
    """Capacity, demand, side constraints and cost of an allocation; shares no code with any formulation.

    The cost is the paper's objective, provisioning plus K times the list price of every added instance, with nodes at the
    prices of their supply classes, cheapest first, plus the price of unmet demand and of the cheapest routes.
    """
    templates, regions, configurations, phases = problem.shape
    violations: list[Violation] = []
    size = {len(allocation.template), len(allocation.region), len(allocation.count)}
    if len(size) != 1:
        return Check.no_answer("template, region and count have different lengths")
    used = [[0] * configurations for _ in range(regions)]
    penalty = Fraction(0)
    seen: set[tuple[int, int]] = set()
    items: list[_Item] = []
    # A range holds whole numbers only, so this also refuses NaN and fractions.
    known_templates, known_regions = range(templates), range(regions)
    for t, r, n in zip(
        allocation.template.tolist(), allocation.region.tolist(), allocation.count.tolist(), strict=True
    ):
        if t not in known_templates or r not in known_regions or not n >= 0 or n % 1 != 0:
            text = f"template {t} in region {r} with count {n}: no such template or region, or bad count"
            violations.append(Violation("answer", f"template {t}", text))
            continue
        t, r, n = int(t), int(r), int(n)
        if (t, r) in seen:
            text = f"template {t} in {problem.region_names[r]} is listed twice"
            violations.append(Violation("answer", f"template {t}", text))
        seen.add((t, r))
        items.append((t, r, n))
        for c in np.flatnonzero(problem.usage[t]).tolist():
            used[r][c] += int(problem.usage[t, c]) * n
            if np.isnan(problem.price[r, c]) and n:
                name = problem.configuration_names[c]
                violations.append(Violation("price", name, f"{name} has no price in {problem.region_names[r]}"))
        running = 0 if problem.running is None else int(problem.running[t, r])
        penalty += max(0, n - running) * _listed(problem, t, r) * Fraction(float(problem.penalties[t]))
    for r in range(regions):
        for c in range(configurations):
            if used[r][c] > int(problem.availability[r, c]):
                name, region = problem.configuration_names[c], problem.region_names[r]
                text = f"{used[r][c]} nodes of {name} in {region}, {int(problem.availability[r, c])} are available"
                violations.append(Violation("capacity", f"{name} in {region}", text))
    rent = rent_by_region(problem, used)
    flows = request_flows(problem, items)
    unmet = unmet_demand(problem, items, flows)
    cost = sum(rent, Fraction(0)) + penalty + sum((flow.usd_h for flow in flows), Fraction(0))
    routed = {p for model in problem.routes for p in model.phases}
    for p in range(phases):
        price = math.inf if problem.unmet_price is None else float(problem.unmet_price[p])
        if math.isfinite(price):
            cost += price_of_unmet(problem, p, unmet[p])
        elif unmet[p] > 0:
            demand = Fraction(float(problem.demand[p]))
            served = demand - unmet[p] if problem.joint.divided else _served(problem, items, p, range(regions))
            if above(demand, served) and p not in routed:
                name = problem.phase_names[p]
                text = f"{name} gets {float(served)!r} tokens/s, its demand is {float(demand)!r}"
                violations.append(Violation("demand", name, text))
    for model, flow in zip(problem.routes, flows, strict=True):
        if above(Fraction(1), 1 - flow.unmet) and not math.isfinite(problem.unmet_prices()[model.phases[0]]):
            text = f"{float(1 - flow.unmet):.6%} of the requests of {model.model} find a way through its instances"
            violations.append(Violation("demand", model.model, text))
    violations.extend(_side_constraints(problem, items, rent))
    return Check(not violations, float(cost), tuple(violations))


def request_flows(problem: AllocationProblem, items: list[_Item]) -> list[Flow]:
    """How the requests of every model with routes go at least cost, exactly."""
    flows = []
    for model in problem.routes:
        capacity: dict[Pool, Fraction] = {}
        for route in model.routes:
            for pool in route.pools:
                phase, region = pool
                regions = range(len(problem.region_names)) if region is None else (region,)
                demand = Fraction(float(problem.demand[phase]))
                capacity[pool] = _served(problem, items, phase, regions) / demand
        most, price = Fraction(1), None
        if math.isfinite(problem.unmet_prices()[model.phases[0]]):
            # Requests that go nowhere need none of the phases, so their price is that of all of them.
            price = sum(
                (Fraction(float(problem.unmet_prices()[p])) * Fraction(float(problem.demand[p])) for p in model.phases),
                Fraction(0),
            )
            levels = (_surviving(problem, items, p) / Fraction(float(problem.demand[p])) for p in model.phases)
            most = min(most, *levels)
        flows.append(least_flow(model, capacity, most, price))
    return flows


def price_of_unmet(problem: AllocationProblem, phase: int, unmet: Fraction) -> Fraction:
    """USD/h of so many unmet tokens/s of a model phase, the cheapest first."""
    paid, left = Fraction(0), unmet
    for share, factor in problem.tiers_of(phase):
        part = min(left, Fraction(share) * Fraction(float(problem.demand[phase])))
        paid, left = paid + part * Fraction(factor), left - part
    return paid * Fraction(float(problem.unmet_prices()[phase]))


def unmet_demand(problem: AllocationProblem, items: list[_Item], flows: list[Flow] | None = None) -> list[Fraction]:
    """Tokens/s of every model phase that an allocation leaves unmet, exactly.

    Where a share x must survive the loss of a region or of an instance, at most what survives over x counts as served.
    Phases that go unmet together do so in equal shares.

    Args:
        problem: The problem.
        items: (template, region, count) triples.
        flows: What :func:`request_flows` says, if that is known.
    """
    unmet = []
    divided = _divided(problem, items) if problem.joint.divided else {}
    for p, demand in enumerate(problem.demand.tolist()):
        served = divided[p] if p in divided else _served(problem, items, p, range(len(problem.region_names)))
        level = min(served, _surviving(problem, items, p))
        wanted = Fraction(float(demand))
        # Three times 0.7 tokens/s serve 2.1, though not in binary fractions.
        unmet.append(wanted - level if above(wanted, level) else Fraction(0))
    for model, flow in zip(problem.routes, request_flows(problem, items) if flows is None else flows, strict=True):
        # What may not count as served, since it would not survive, goes nowhere.
        levels = [_surviving(problem, items, p) / Fraction(float(problem.demand[p])) for p in model.phases]
        short = max([flow.unmet, *(1 - level for level in levels if above(Fraction(1), level))])
        for p in model.phases:
            unmet[p] = short * Fraction(float(problem.demand[p]))
    for together in problem.unmet_together:
        if math.isfinite(problem.unmet_prices()[together[0]]):
            demands = {p: Fraction(float(problem.demand[p])) for p in together}
            share = max((unmet[p] / demands[p] for p in together if demands[p]), default=Fraction(0))
            for p in together:
                unmet[p] = share * demands[p]
    return unmet


def time_shares(problem: AllocationProblem, items: list[_Item], most: Fraction | None = None) -> list[TimeShares]:
    """How instances that divide their time do so best, exactly: one entry for model phases that share templates.

    Args:
        problem: The problem.
        items: (template, region, count) triples.
        most: Largest share of a demand that counts; ``None`` for any.
    """
    counts: dict[int, int] = {}
    for t, _, n in items:
        counts[t] = counts.get(t, 0) + n
    gives = {t: {p: Fraction(rate) for p, rate in _gives(problem, t)} for t, n in counts.items() if n}
    groups: list[set[int]] = []
    for phases in (set(rates) for rates in gives.values()):
        groups = [*(g for g in groups if not g & phases), phases.union(*(g for g in groups if g & phases))]
    shares = []
    for group in groups:
        demand = {p: Fraction(float(problem.demand[p])) for p in sorted(group) if problem.demand[p] > 0}
        mine = {t: counts[t] for t, rates in gives.items() if set(rates) & set(demand)}
        if demand:
            shares.append(TimeShares(demand, *divided_time(gives, mine, demand, most)))
    return shares


@dataclass(frozen=True)
class TimeShares:
    """How instances of some templates divide their time among the model phases that they serve.

    Attributes:
        demand: Model phase -> tokens/s.
        served: Share of each of these demands that is served.
        time: (template, model phase) -> instances' worth of time.
    """

    demand: dict[int, Fraction]
    served: Fraction
    time: dict[tuple[int, int], Fraction]


def _divided(problem: AllocationProblem, items: list[_Item]) -> dict[int, Fraction]:
    """Tokens/s of every model phase where those that share templates get equal shares of their demands, at most all."""
    return {
        p: group.served * wanted
        for group in time_shares(problem, items, Fraction(1))
        for p, wanted in group.demand.items()
    }


def _left(problem: AllocationProblem, items: list[_Item], item: SideConstraint) -> Fraction:
    """Tokens/s of the one phase of a side constraint in its regions, less the largest instance where one may be lost."""
    assert item.phases is not None
    regions = range(len(problem.region_names)) if item.regions is None else item.regions
    served = _served(problem, items, item.phases[0], regions)
    mine = (t for t, _, n in items if n and int(problem.phase[t]) == item.phases[0])
    return served - (max((Fraction(float(problem.throughput[t])) for t in mine), default=0) if item.one_lost else 0)


def _surviving(problem: AllocationProblem, items: list[_Item], phase: int) -> Fraction:
    """Tokens/s of a phase that may count as served for what survives a loss; its demand if all may."""
    level = Fraction(float(problem.demand[phase]))
    for item in problem.side_constraints:
        if item.measure == "tokens_s" and item.phases == (phase,) and item.bound > 0:
            level = min(level, _left(problem, items, item) / Fraction(float(item.bound)))
    return level


def _served(problem: AllocationProblem, items: list[_Item], phase: int, regions: range | tuple[int, ...]) -> Fraction:
    rates = ((n, rate) for t, r, n in items if r in regions for p, rate in _gives(problem, t) if p == phase)
    return sum((n * Fraction(rate) for n, rate in rates), Fraction(0))


def _gives(problem: AllocationProblem, t: int) -> list[tuple[int, float]]:
    """(model phase, tokens/s that one instance serves of it), of every phase that it serves."""
    own, joint = (int(problem.phase[t]), float(problem.throughput[t])), problem.joint
    if not len(joint):
        return [own]
    first, last = np.searchsorted(joint.template, [t, t + 1]).tolist()
    return [own, *zip(joint.phase[first:last].tolist(), joint.throughput[first:last].tolist(), strict=True)]


def _listed(problem: AllocationProblem, t: int, r: int) -> Fraction:
    """List price of one instance, USD/h."""
    return sum(
        (
            int(problem.usage[t, c]) * Fraction(float(problem.price[r, c]))
            for c in np.flatnonzero(problem.usage[t]).tolist()
            if not np.isnan(problem.price[r, c])
        ),
        Fraction(0),
    )


def _side_constraints(problem: AllocationProblem, items: list[_Item], rent: list[Fraction]) -> list[Violation]:
    violations = []
    for item in problem.side_constraints:
        if item.measure == "tokens_s":
            assert item.phases is not None
            phase, share = item.phases[0], Fraction(float(item.bound))
            if problem.unmet_price is not None and math.isfinite(problem.unmet_price[phase]):
                # What does not survive counts as unmet and is paid for.
                continue
            total = _left(problem, items, item)
            limit, unit = share * Fraction(float(problem.demand[phase])), "tokens/s"
        elif item.is_rent:
            total = sum((rent[r] for r in (range(len(rent)) if item.regions is None else item.regions)), Fraction(0))
            limit, unit = Fraction(float(item.bound)), "USD/h"
        else:
            counted = _new(problem, items) if item.measure == "new_nodes" else items
            total = sum((n * _measured(problem, item, t, r) for t, r, n in counted), Fraction(0))
            limit, unit = Fraction(float(item.bound)), "USD/h" if item.measure == "usd_h" else item.measure
        # Money and tokens/s are sums of rounded figures; instances and nodes are held to the last one.
        beyond = above if item.measure in ("usd_h", "tokens_s") or item.is_rent else Fraction.__gt__
        if beyond(total, limit) if item.sense == "most" else beyond(limit, total):
            word = "at most" if item.sense == "most" else "at least"
            text = f"{item.name}: {float(total):,.12g} {unit}, {word} {float(limit):,.12g} asked for"
            violations.append(Violation("side constraint", item.name, text))
    return violations


def _new(problem: AllocationProblem, items: list[_Item]) -> list[_Item]:
    """The instances that do not run yet."""
    return [(t, r, max(0, n - (0 if problem.running is None else int(problem.running[t, r])))) for t, r, n in items]


def _measured(problem: AllocationProblem, item: SideConstraint, t: int, r: int) -> Fraction:
    """What one instance adds to a side constraint on instances, nodes or list prices."""
    kinds = range(problem.usage.shape[1]) if item.configurations is None else item.configurations
    nodes = sum(int(problem.usage[t, c]) for c in kinds)
    rates = [rate for p, rate in _gives(problem, t) if item.phases is None or p in item.phases]
    inside = bool(rates) and (item.regions is None or r in item.regions)
    if not inside or not nodes:
        return Fraction(0)
    if item.measure == "usd_h":
        return _listed(problem, t, r)
    if item.measure in ("nodes", "new_nodes", "used_nodes"):
        return Fraction(nodes)
    if item.measure == "gpus":
        return Fraction(sum(int(problem.usage[t, c]) * each for c, each in zip(kinds, item.gpus, strict=True)))
    return Fraction(int(item.sense == "most" or any(rates)))
