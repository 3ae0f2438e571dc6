"""Rivals that need no solver: greedy by goodput per USD, one replica for all instances, and replicas drawn at random."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.planning.request import PlanRequest, count_setting, truth_setting
from coralopt.planning.rivals.strategies import HomogeneousPlanner, Strategies, StrategyChoice, short_of
from coralopt.types import Bools, Ints


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

    def choose(self, strategies: Strategies, request: PlanRequest) -> StrategyChoice:
        """Replicas of most goodput per USD; see :func:`greedy`."""
        return StrategyChoice(greedy(strategies.problem, clip=truth_setting(self, request, "clip")))


class SingleBestPlanner(HomogeneousPlanner):
    """Every instance of a model phase is the same homogeneous replica, the one that comes out cheapest.

    What Melange (Griggs et al., 2024) calls the single-GPU-type baseline, with the type chosen well.
    """

    name = "single-best"
    summary = "one homogeneous replica for all instances of a model phase, chosen for least cost"
    source = "single-GPU-type baseline of Melange (Griggs et al., 2024)"

    def choose(self, strategies: Strategies, request: PlanRequest) -> StrategyChoice:
        """One template a model phase; see :func:`single_best`."""
        return StrategyChoice(single_best(strategies.problem))


class RandomPlanner(HomogeneousPlanner):
    """Draws homogeneous replicas until every demand is met, then returns those that turn out not to be needed."""

    name = "random"
    summary = "homogeneous replicas drawn at random by seed until every demand is met"
    source = "a floor; no publication"
    settings: Mapping[str, object] = {"homogeneous": "configuration", "tries": 50}

    def choose(self, strategies: Strategies, request: PlanRequest) -> StrategyChoice:
        """The same for the same seed. See :func:`random_draw`."""
        return StrategyChoice(random_draw(strategies.problem, request.seed, count_setting(self, request, "tries")))


class _Rental:
    """Replicas rented so far, and what they leave.

    Attributes:
        problem: Templates, supply and prices.
        price: float64 (T, R), USD/h of a template in a region; NaN where it cannot be had.
        usage: int64 (T, C), nodes of a template.
        left: int64 (R, C), nodes not rented yet.
        counts: (template, region) -> replicas.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.price, self.usage = problem.template_price(), problem.usage.astype(np.int64)
        self.left = problem.availability.astype(np.int64).copy()
        self.counts: dict[tuple[int, int], int] = {}

    def of(self, phase: int) -> Ints:
        """Templates that serve a model phase."""
        return np.flatnonzero((self.problem.phase == phase) & (self.problem.throughput > 0))

    def fits(self, templates: Ints) -> Bools:
        """bool (templates, R): whether one more can be had."""
        room = (self.usage[templates][:, None, :] <= self.left[None, :, :]).all(axis=2)
        return np.asarray(room & ~np.isnan(self.price[templates]))

    def add(self, template: int, region: int, count: int = 1) -> None:
        """Rent replicas; a negative count returns them."""
        self.counts[template, region] = self.counts.get((template, region), 0) + count
        self.left[region] -= count * self.usage[template]

    def served(self, phase: int, ordered: bool = False) -> float:
        """tokens/s of a model phase, summed anew each time (repeated addition would round): as rented, or ``ordered``."""
        items = sorted(self.counts.items()) if ordered else self.counts.items()
        throughput, phases = self.problem.throughput, self.problem.phase
        return float(sum(n * float(throughput[t]) for (t, _), n in items if phases[t] == phase))


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
    rental = _Rental(problem)
    templates, regions, _, phases = problem.shape
    remaining = problem.demand.copy()
    running = np.zeros((templates, regions), dtype=np.int64) if problem.running is None else problem.running.copy()
    rows = [rental.of(p) for p in range(phases)]
    while (remaining > 0).any():
        placed = False
        for p in np.flatnonzero(remaining > 0).tolist():
            mine = rows[p]
            goodput = problem.throughput[mine]
            if clip:
                goodput = np.minimum(goodput, remaining[p])
            fits = rental.fits(mine)
            best: tuple[float, float, int, int] | None = None
            for r in np.flatnonzero(fits.any(axis=0)).tolist():
                rate = rental.price[mine, r] * np.where(running[mine, r] > 0, 1.0, 1.0 + problem.penalty)
                with np.errstate(divide="ignore", invalid="ignore"):
                    score = np.where(fits[:, r], np.where(rate > 0, goodput / rate, np.inf), -np.inf)
                top = np.flatnonzero(score == score.max())
                # Equal goodput per USD: the cheaper one, which leaves more choice for the rest.
                k = int(top[np.argmin(rate[top])])
                candidate = (-float(score[k]), float(rate[k]), int(mine[k]), r)
                best = candidate if best is None or candidate < best else best
            if best is None:
                continue
            _, _, t, r = best
            rental.add(t, r)
            running[t, r] -= 1
            placed = True
            remaining[p] = problem.demand[p] - rental.served(p)
        if not placed:
            raise short_of(problem, problem.demand - remaining, "homo", "no homogeneous replica fits any more")
    return Allocation.of(rental.counts)


def single_best(problem: AllocationProblem) -> Allocation:
    """For each model phase in order the one template whose instances meet its demand at least cost.

    Instances go to the cheapest region first. A phase takes what it needs from what the phases before it left.

    Raises:
        InfeasibleError: No single template can meet the demand of some phase from what is left.
    """
    rental = _Rental(problem)
    served = np.zeros(len(problem.demand))
    for p in np.flatnonzero(problem.demand > 0).tolist():
        best: tuple[float, int, list[tuple[int, int]]] | None = None
        most = 0.0
        for t in rental.of(p).tolist():
            # Least whole number of instances in exact arithmetic.
            need = math.ceil(Fraction(float(problem.demand[p])) / Fraction(float(problem.throughput[t])))
            used, price = rental.usage[t] > 0, rental.price[t]
            cost, places, missing = 0.0, [], need
            for r in sorted(np.flatnonzero(~np.isnan(price)).tolist(), key=lambda r: price[r]):
                # Running instances of this template are kept first; each added one pays the penalty.
                n = min(missing, int((rental.left[r][used] // rental.usage[t][used]).min()))
                if n <= 0:
                    continue
                kept = 0 if problem.running is None else min(n, int(problem.running[t, r]))
                cost += float(price[r]) * (n + problem.penalty * (n - kept))
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
            rental.add(best[1], r, n)
    return Allocation.of(rental.counts)


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
        rental, served = _Rental(problem), np.zeros(len(problem.demand))
        stuck: set[int] = set()
        while unmet := [p for p in np.flatnonzero(served < problem.demand).tolist() if p not in stuck]:
            p = int(generator.choice(unmet))
            mine = rental.of(p)
            places = np.argwhere(rental.fits(mine))
            if not len(places):
                stuck.add(p)
                continue
            k, r = places[int(generator.integers(len(places)))].tolist()
            rental.add(int(mine[k]), r)
            served[p] = _hardly_served(rental, p)
        if (served >= problem.demand).all():
            _return_surplus(rental)
            return Allocation.of(rental.counts)
    raise short_of(problem, served, "random", f"{tries} draws got stuck")


def _hardly_served(rental: _Rental, phase: int) -> float:
    # In the order that check_allocation knows, though it sums exactly; a hair below counts as unmet and draws once more.
    return rental.served(phase, ordered=True) * (1 - 1e-12)


def _return_surplus(rental: _Rental) -> None:
    for t, r in sorted(rental.counts, key=lambda place: (-float(rental.price[place]), place)):
        p = int(rental.problem.phase[t])
        while rental.counts[t, r] > 0:
            rental.add(t, r, -1)
            if _hardly_served(rental, p) < rental.problem.demand[p]:
                rental.add(t, r)
                break
