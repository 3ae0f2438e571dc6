"""Replicas drawn at random: the floor below every planner."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.planning.request import PlanRequest, count_setting
from coralopt.planning.rivals.strategies import Choice, HomogeneousPlanner, Strategies, short_of
from coralopt.types import Floats


class RandomPlanner(HomogeneousPlanner):
    """Draws homogeneous replicas until every demand is met, then returns those that turn out not to be needed."""

    name = "random"
    summary = "homogeneous replicas drawn at random by seed until every demand is met"
    source = "a floor; no publication"
    settings: Mapping[str, object] = {"homogeneous": "configuration", "tries": 50}

    def choose(self, strategies: Strategies, request: PlanRequest) -> Choice:
        """The same for the same seed. See :func:`random_draw`."""
        return Choice(random_draw(strategies.problem, request.seed, count_setting(self, request, "tries")))


def random_draw(problem: AllocationProblem, seed: int, tries: int = 50) -> Allocation:
    """Templates drawn uniformly among those that fit, one for a random unmet model phase at a time.

    Instances whose phase meets its demand without them are returned afterwards, the dearest first. A draw that gets stuck
    starts again.

    Args:
        problem: The templates to choose from, with demand, supply and prices.
        seed: Of the draws.
        tries: How often to start.

    Raises:
        InfeasibleError: Every try got stuck; says how far the last one came.
    """
    generator = np.random.default_rng(seed)
    served = np.zeros(len(problem.demand))
    for _ in range(tries):
        counts, served = _draw(problem, generator)
        if (served >= problem.demand).all():
            return Allocation.of(_without_surplus(problem, counts))
    raise short_of(problem, served, "random", f"{tries} draws got stuck")


def _draw(problem: AllocationProblem, generator: np.random.Generator) -> tuple[dict[tuple[int, int], int], Floats]:
    price, usage = problem.template_price(), problem.usage.astype(np.int64)
    left = problem.availability.astype(np.int64).copy()
    counts: dict[tuple[int, int], int] = {}
    served = np.zeros(len(problem.demand))
    stuck: set[int] = set()
    while True:
        unmet = [p for p in np.flatnonzero(served < problem.demand).tolist() if p not in stuck]
        if not unmet:
            return counts, served
        p = int(generator.choice(unmet))
        mine = np.flatnonzero((problem.phase == p) & (problem.throughput > 0))
        fits = (usage[mine][:, None, :] <= left[None, :, :]).all(axis=2) & ~np.isnan(price[mine])
        places = np.argwhere(fits)
        if not len(places):
            stuck.add(p)
            continue
        k, r = places[int(generator.integers(len(places)))].tolist()
        t = int(mine[k])
        counts[t, r] = counts.get((t, r), 0) + 1
        left[r] -= usage[t]
        served[p] = _served(problem, counts, p)


def _served(problem: AllocationProblem, counts: Mapping[tuple[int, int], int], phase: int) -> float:
    # In the order that check_allocation knows, though it sums exactly; a hair below counts as unmet and draws once more.
    total = sum(n * float(problem.throughput[t]) for (t, _), n in sorted(counts.items()) if problem.phase[t] == phase)
    return total * (1 - 1e-12)


def _without_surplus(problem: AllocationProblem, counts: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    price = problem.template_price()
    for t, r in sorted(counts, key=lambda place: (-float(price[place]), place)):
        while counts[t, r] > 0:
            fewer = {**counts, (t, r): counts[t, r] - 1}
            p = int(problem.phase[t])
            if _served(problem, fewer, p) < problem.demand[p]:
                break
            counts = fewer
    return counts
