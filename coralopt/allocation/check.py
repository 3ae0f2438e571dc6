"""An allocation checked from first principles, in exact rational arithmetic on the given figures."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from coralopt.solving.problem import Check

if TYPE_CHECKING:
    from coralopt.allocation.problem import Allocation, AllocationProblem


def check_allocation(problem: AllocationProblem, allocation: Allocation) -> Check:
    """Capacity, demand and cost of an allocation; shares no code with any formulation.

    The cost is the paper's objective: provisioning plus K times the price of every added instance.
    """
    templates, regions, configurations, phases = problem.shape
    violations: list[str] = []
    size = {len(allocation.template), len(allocation.region), len(allocation.count)}
    if len(size) != 1:
        return Check(False, float("nan"), ("template, region and count have different lengths",))
    used = [[0] * configurations for _ in range(regions)]
    served = [Fraction(0)] * phases
    cost = Fraction(0)
    seen: set[tuple[int, int]] = set()
    # A range holds whole numbers only, so this also refuses NaN and fractions.
    known_templates, known_regions = range(templates), range(regions)
    for t, r, n in zip(
        allocation.template.tolist(), allocation.region.tolist(), allocation.count.tolist(), strict=True
    ):
        if t not in known_templates or r not in known_regions or not n >= 0 or n % 1 != 0:
            violations.append(f"template {t} in region {r} with count {n}: no such template or region, or bad count")
            continue
        t, r, n = int(t), int(r), int(n)
        if (t, r) in seen:
            violations.append(f"template {t} in {problem.region_names[r]} is listed twice")
        seen.add((t, r))
        price = Fraction(0)
        for c in np.flatnonzero(problem.usage[t]).tolist():
            nodes = int(problem.usage[t, c])
            used[r][c] += nodes * n
            if np.isnan(problem.price[r, c]):
                if n:
                    violations.append(f"{problem.configuration_names[c]} has no price in {problem.region_names[r]}")
            else:
                price += nodes * Fraction(float(problem.price[r, c]))
        served[int(problem.phase[t])] += n * Fraction(float(problem.throughput[t]))
        running = 0 if problem.running is None else int(problem.running[t, r])
        cost += n * price + max(0, n - running) * price * Fraction(float(problem.penalty))
    for r in range(regions):
        for c in range(configurations):
            if used[r][c] > int(problem.availability[r, c]):
                violations.append(
                    f"{used[r][c]} nodes of {problem.configuration_names[c]} in {problem.region_names[r]}, "
                    f"{int(problem.availability[r, c])} are available"
                )
    for p in range(phases):
        if served[p] < Fraction(float(problem.demand[p])):
            violations.append(
                f"{problem.phase_names[p]} gets {float(served[p])!r} tokens/s, its demand is {float(problem.demand[p])!r}"
            )
    return Check(not violations, float(cost), tuple(violations))
