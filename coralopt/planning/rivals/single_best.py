"""One homogeneous replica for all instances of a model phase: the floor that a capacity spreadsheet gives."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.planning.request import PlanRequest
from coralopt.planning.rivals.strategies import Choice, HomogeneousPlanner, Strategies, short_of


class SingleBestPlanner(HomogeneousPlanner):
    """Every instance of a model phase is the same homogeneous replica, the one that comes out cheapest.

    What Melange (Griggs et al., 2024) calls the single-GPU-type baseline, with the type chosen well.
    """

    name = "single-best"
    summary = "one homogeneous replica for all instances of a model phase, chosen for least cost"
    source = "single-GPU-type baseline of Melange (Griggs et al., 2024)"

    def choose(self, strategies: Strategies, request: PlanRequest) -> Choice:
        """One template a model phase; see :func:`single_best`."""
        return Choice(single_best(strategies.problem))


def single_best(problem: AllocationProblem) -> Allocation:
    """For each model phase in order the one template whose instances meet its demand at least cost.

    Instances go to the cheapest region first. A phase takes what it needs from what the phases before it left.

    Raises:
        InfeasibleError: No single template can meet the demand of some phase from what is left.
    """
    price = problem.template_price()
    usage = problem.usage.astype(np.int64)
    _, regions, _, phases = problem.shape
    left = problem.availability.astype(np.int64).copy()
    served = np.zeros(phases)
    counts: dict[tuple[int, int], int] = {}
    for p in range(phases):
        if problem.demand[p] <= 0:
            continue
        best: tuple[float, int, list[tuple[int, int]]] | None = None
        most = 0.0
        for t in np.flatnonzero((problem.phase == p) & (problem.throughput > 0)).tolist():
            need = _instances(float(problem.demand[p]), float(problem.throughput[t]))
            used = usage[t] > 0
            cost, places, missing = 0.0, [], need
            for r in sorted((r for r in range(regions) if not math.isnan(price[t, r])), key=lambda r: price[t, r]):
                fit = int((left[r][used] // usage[t][used]).min())
                # Running instances of this template are kept first; each added one pays the penalty.
                n = min(missing, fit)
                if n <= 0:
                    continue
                kept = 0 if problem.running is None else min(n, int(problem.running[t, r]))
                cost += float(price[t, r]) * (n + problem.penalty * (n - kept))
                places.append((r, n))
                missing -= n
            most = max(most, (need - missing) * float(problem.throughput[t]))
            if missing == 0 and (best is None or (cost, t) < best[:2]):
                best = (cost, t, places)
        if best is None:
            served[p] = min(most, float(problem.demand[p]) * (1 - 1e-12))
            served[p + 1 :] = problem.demand[p + 1 :]
            raise short_of(problem, served, "single-best", "no single homogeneous replica fits often enough")
        served[p] = problem.demand[p]
        for r, n in best[2]:
            counts[best[1], r] = n
            left[r] -= n * usage[best[1]]
    return Allocation.of(counts)


def _instances(demand: float, throughput: float) -> int:
    """Least whole number n with n * throughput >= demand in exact arithmetic."""
    return math.ceil(Fraction(demand) / Fraction(throughput))
