"""Homo: every model for itself, greedily, with the homogeneous replica of most goodput per USD."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.planning.request import PlanRequest, setting
from coralopt.planning.rivals.strategies import Choice, HomogeneousPlanner, Strategies, short_of


class HomoPlanner(HomogeneousPlanner):
    """The paper's baseline of the same name.

    "Homo assumes each model replica is served on homogeneous hardware, but permits heterogeneity across replicas - the
    same assumption adopted by SkyServe and SageServe. It greedily selects the most cost-efficient (highest goodput per
    USD) homogeneous strategy for each model" (paper, section 5.1). SkyServe: Mao et al., EuroSys 2025. SageServe:
    Jaiswal et al., 2025.
    """

    name = "homo"
    summary = "greedy: the homogeneous replica of most goodput per USD, each model for itself"
    source = "the paper, section 5.1; SkyServe (Mao et al., EuroSys 2025), SageServe (Jaiswal et al., 2025)"
    settings: Mapping[str, object] = {"homogeneous": "configuration", "clip": True}

    def choose(self, strategies: Strategies, request: PlanRequest) -> Choice:
        """Replicas of most goodput per USD; see :func:`greedy`."""
        return Choice(greedy(strategies.problem, clip=bool(setting(self, request, "clip"))))


def greedy(problem: AllocationProblem, clip: bool = True) -> Allocation:
    """Meet every demand with replicas of most goodput per USD.

    Model phases take turns, one replica a turn, so that none is served ahead of the others where supply is scarce: they
    contend for the same nodes, as the paper describes (section 5.4). The turn's replica is, of those that still fit, the
    one of most tokens/s per USD/h; an added one costs (1 + K) times its price and a running one its price.

    Args:
        problem: The templates to choose from, with demand, supply and prices.
        clip: Whether goodput counts only as far as the demand that is left, so that the last replica of a phase may
            be a smaller one. The paper's baselines "vary the mix" of replicas "to track throughput demand"; without it
            the last replica is as large as the first.

    Raises:
        InfeasibleError: Nothing fits any more and a demand is not met.
    """
    price = problem.template_price()
    templates, regions, _, phases = problem.shape
    left = problem.availability.astype(np.int64).copy()
    remaining = problem.demand.copy()
    running = np.zeros((templates, regions), dtype=np.int64) if problem.running is None else problem.running.copy()
    rows = [np.flatnonzero((problem.phase == p) & (problem.throughput > 0)) for p in range(phases)]
    usage = problem.usage.astype(np.int64)
    counts: dict[tuple[int, int], int] = {}
    while (remaining > 0).any():
        placed = False
        for p in np.flatnonzero(remaining > 0).tolist():
            mine = rows[p]
            goodput = problem.throughput[mine]
            if clip:
                goodput = np.minimum(goodput, remaining[p])
            best: tuple[float, float, int, int] | None = None
            for r in range(regions):
                fits = (usage[mine] <= left[r]).all(axis=1) & ~np.isnan(price[mine, r])
                if not fits.any():
                    continue
                rate = price[mine, r] * np.where(running[mine, r] > 0, 1.0, 1.0 + problem.penalty)
                with np.errstate(divide="ignore", invalid="ignore"):
                    score = np.where(fits, np.where(rate > 0, goodput / rate, np.inf), -np.inf)
                top = np.flatnonzero(score == score.max())
                # Equal goodput per USD: the cheaper one, which leaves more choice for the rest.
                k = int(top[np.argmin(rate[top])])
                candidate = (-float(score[k]), float(rate[k]), int(mine[k]), r)
                best = candidate if best is None or candidate < best else best
            if best is None:
                continue
            _, _, t, r = best
            counts[t, r] = counts.get((t, r), 0) + 1
            left[r] -= usage[t]
            running[t, r] -= 1
            placed = True
            # Summed anew each time: repeated subtraction would round.
            served = sum(n * float(problem.throughput[u]) for (u, _), n in counts.items() if problem.phase[u] == p)
            remaining[p] = problem.demand[p] - served
        if not placed:
            raise short_of(problem, problem.demand - remaining, "homo", "no homogeneous replica fits any more")
    return Allocation.of(counts)
