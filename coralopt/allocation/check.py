"""An allocation checked from first principles, in exact rational arithmetic on the given figures."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.allocation.supply import rent_by_region
from coralopt.solving.problem import Check, Violation

#: (template, region, count) of an allocation that makes sense.
_Item = tuple[int, int, int]


def check_allocation(problem: AllocationProblem, allocation: Allocation) -> Check:
    """Capacity, demand, side constraints and cost of an allocation; shares no code with any formulation.

    The cost is the paper's objective, provisioning plus K times the list price of every added instance, with nodes at the
    prices of their supply classes, cheapest first, plus the price of unmet demand.
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
        penalty += max(0, n - running) * _listed(problem, t, r) * Fraction(float(problem.penalty))
    for r in range(regions):
        for c in range(configurations):
            if used[r][c] > int(problem.availability[r, c]):
                name, region = problem.configuration_names[c], problem.region_names[r]
                text = f"{used[r][c]} nodes of {name} in {region}, {int(problem.availability[r, c])} are available"
                violations.append(Violation("capacity", f"{name} in {region}", text))
    rent = rent_by_region(problem, used)
    unmet = unmet_demand(problem, items)
    cost = sum(rent, Fraction(0)) + penalty
    for p in range(phases):
        price = math.inf if problem.unmet_price is None else float(problem.unmet_price[p])
        if math.isfinite(price):
            cost += unmet[p] * Fraction(price)
        elif unmet[p] > 0:
            demand = Fraction(float(problem.demand[p]))
            served = _served(problem, items, p, range(regions))
            if served < demand:
                name = problem.phase_names[p]
                text = f"{name} gets {float(served)!r} tokens/s, its demand is {float(demand)!r}"
                violations.append(Violation("demand", name, text))
    violations.extend(_side_constraints(problem, items, rent))
    return Check(not violations, float(cost), tuple(violations))


def unmet_demand(problem: AllocationProblem, items: list[_Item]) -> list[Fraction]:
    """Tokens/s of every model phase that an allocation leaves unmet, exactly.

    Where a share x must survive the loss of a region, what counts as served is at most what survives over x.
    Phases that go unmet together do so in equal shares.
    """
    regions = range(len(problem.region_names))
    unmet = []
    for p, demand in enumerate(problem.demand.tolist()):
        level = _served(problem, items, p, regions)
        for item in problem.side_constraints:
            if item.measure == "tokens_s" and item.phases == (p,) and item.bound > 0:
                left = _served(problem, items, p, regions if item.regions is None else item.regions)
                level = min(level, left / Fraction(float(item.bound)))
        unmet.append(max(Fraction(0), Fraction(float(demand)) - level))
    for together in problem.unmet_together:
        if math.isfinite(problem.unmet_prices()[together[0]]):
            demands = {p: Fraction(float(problem.demand[p])) for p in together}
            share = max((unmet[p] / demands[p] for p in together if demands[p]), default=Fraction(0))
            for p in together:
                unmet[p] = share * demands[p]
    return unmet


def _served(problem: AllocationProblem, items: list[_Item], phase: int, regions: range | tuple[int, ...]) -> Fraction:
    return sum(
        (
            n * Fraction(float(problem.throughput[t]))
            for t, r, n in items
            if int(problem.phase[t]) == phase and r in regions
        ),
        Fraction(0),
    )


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
            total = _served(problem, items, phase, range(len(rent)) if item.regions is None else item.regions)
            limit, unit = share * Fraction(float(problem.demand[phase])), "tokens/s"
        elif item.is_rent:
            total = sum((rent[r] for r in (range(len(rent)) if item.regions is None else item.regions)), Fraction(0))
            limit, unit = Fraction(float(item.bound)), "USD/h"
        else:
            total = sum((n * _measured(problem, item, t, r) for t, r, n in items), Fraction(0))
            limit, unit = Fraction(float(item.bound)), "USD/h" if item.measure == "usd_h" else item.measure
        if (total > limit) if item.sense == "most" else (total < limit):
            word = "at most" if item.sense == "most" else "at least"
            text = f"{item.name}: {float(total):,.6g} {unit}, {word} {float(limit):,.6g} asked for"
            violations.append(Violation("side constraint", item.name, text))
    return violations


def _measured(problem: AllocationProblem, item: SideConstraint, t: int, r: int) -> Fraction:
    """What one instance adds to a side constraint on instances, nodes or list prices."""
    kinds = range(problem.usage.shape[1]) if item.configurations is None else item.configurations
    nodes = sum(int(problem.usage[t, c]) for c in kinds)
    inside = (item.phases is None or int(problem.phase[t]) in item.phases) and (
        item.regions is None or r in item.regions
    )
    if not inside or not nodes:
        return Fraction(0)
    if item.measure == "usd_h":
        return _listed(problem, t, r)
    if item.measure == "nodes":
        return Fraction(nodes)
    return Fraction(int(item.sense == "most" or problem.throughput[t] > 0))
