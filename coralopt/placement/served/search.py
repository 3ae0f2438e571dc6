"""Pipelines on a pool that serve most decode tokens/s: starts of most flow, local search by formula, finalists simulated."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.errors import InfeasibleError, NoSolutionError, SolverError
from coralopt.machine import cores
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_search import place_pool
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.placement.served.estimate import ServedEstimate, estimate_served
from coralopt.placement.served.moves import Pipelines, moved
from coralopt.placement.served.network import PoolNetwork, pool_network
from coralopt.placement.served.simulation import PoolSimulation, simulate_pool
from coralopt.solving import Backend
from coralopt.types import Progress

#: Standard deviation of the formula's error about a change of a layout, as a share.
FORMULA_ERROR = 0.03
#: Share of the changes of a simulated layout that are one move; of the others the same share is two, and so on.
ONE_MOVE = 0.7


@dataclass(frozen=True)
class ServedSearch:
    """How the search goes on.

    Attributes:
        max_stages: Most stages of a pipeline.
        stages: Exactly so many stages.
        most_pipelines: Most pipelines that share the pool.
        starts: Starts that are searched around by formula, the best by formula first.
        moves: Moves tried around each start.
        finalists: Layouts around each start that are simulated, the best by formula.
        rounds: Times that changes of the best simulated layouts are simulated.
        proposals: Changes a round that the formula ranks.
        children: Those of them that are simulated.
        elite: Best simulated layouts, of which changes are made.
        repeats: Simulations, each with other lengths, before a layout counts among them.
        seeds: Seeds of lengths while searching, the best are simulated with all; the result is simulated with others.
        window_s: Seconds of a simulation. A pool takes minutes until long answers are as many as they will be, and layouts
            rank otherwise before.
        seed: Of the moves.
        solver: MILP back end of the starts.
        time_limit: Seconds in all; the best so far is returned then.
    """

    max_stages: int | None = None
    stages: int | None = None
    most_pipelines: int = 2
    starts: int = 10
    moves: int = 1000
    finalists: int = 2
    rounds: int = 40
    proposals: int = 100
    children: int = 16
    elite: int = 8
    repeats: int = 4
    seeds: tuple[int, ...] = tuple(range(101, 117))
    window_s: float = 300.0
    seed: int = 0
    solver: str | Backend = "highs"
    time_limit: float | None = None

    @property
    def most_estimates(self) -> int:
        """Moves by formula."""
        return self.starts * self.moves + self.rounds * self.proposals

    @property
    def most_simulations(self) -> int:
        """Layouts simulated at most."""
        return self.starts * self.finalists + self.rounds * self.children


@dataclass(frozen=True)
class ServedSolution:
    """Pipelines that serve many decode tokens/s; nothing is proven about others.

    Attributes:
        pipelines: They share the requests.
        network: Their nodes, links and maximum flow.
        estimate: What the formula says.
        simulated: What they serve when simulated, with seeds that the search did not see.
        first: Simulated decode tokens/s of the placement of most flow, the same seeds.
        formulas: Layouts estimated.
        simulations: Layouts simulated.
        interrupted: Whether Ctrl-C ended the search.
        seconds: Wall time.
    """

    pipelines: Pipelines
    network: PoolNetwork
    estimate: ServedEstimate
    simulated: PoolSimulation
    first: float
    formulas: int
    simulations: int
    interrupted: bool
    seconds: float = field(compare=False)


def place_served(
    pool: PlacementPool,
    search: ServedSearch | None = None,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    on_progress: Progress | None = None,
) -> ServedSolution:
    """Pipelines for most decode tokens/s of a saturated pool.

    Args:
        pool: A pool with step times and KV caches.
        search: How to search.
        seeds: Seeds with which the result is simulated.
        on_progress: Told about layouts that were estimated or simulated, and how many there will be.

    Ctrl-C ends the search with the best layout so far, once one was estimated.

    Raises:
        InfeasibleError: No placement exists with these stage counts.
        NoSolutionError: None was found in time.
        SolverError: The pool has no step times or no KV caches.
    """
    pool.served_by()
    return _Search(pool, search or ServedSearch(), on_progress).run(tuple(seeds))


class _Search:
    """State of one search."""

    def __init__(self, pool: PlacementPool, options: ServedSearch, told: Progress | None) -> None:
        self.pool, self.options, self.told = pool, options, told
        self.started = time.perf_counter()
        self.deadline = math.inf if options.time_limit is None else self.started + options.time_limit
        self.tried = 0
        self.generator = np.random.default_rng(options.seed)
        self.estimates: dict[Pipelines, float] = {}
        self.simulations: dict[Pipelines, list[float]] = {}
        most = min(pool.max_stages, options.max_stages or pool.max_stages)
        self.limits = (1, most) if options.stages is None else (options.stages, options.stages)

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() >= self.deadline

    def tell(self) -> None:
        """One more step, and the best so far."""
        self.tried += 1
        if self.told is not None:
            options, best = self.options, self._best_so_far()
            rate = self.mean(best) if self.simulations else self.estimate(best)
            what = f"best {rate:,.1f} decode tokens/s, {'simulated' if self.simulations else 'by formula'}"
            total = options.most_estimates + options.most_simulations
            self.told(what, min(self.tried, total), total)

    def run(self, seeds: tuple[int, ...]) -> ServedSolution:
        starts = self._starts()
        flow = max(starts, key=lambda layout: pool_network(self.pool, layout).throughput)
        starts.sort(key=self.estimate, reverse=True)
        interrupted = False
        try:
            winner = self._best_of(starts)
        except KeyboardInterrupt:
            interrupted = True
            winner = self._best_so_far()
        network = pool_network(self.pool, winner)
        window = self.options.window_s
        return ServedSolution(
            pipelines=winner,
            network=network,
            estimate=estimate_served(self.pool, network),
            simulated=simulate_pool(self.pool, network, seeds, window_s=window),
            first=simulate_pool(self.pool, pool_network(self.pool, flow), seeds, window_s=window).mean,
            formulas=len(self.estimates),
            simulations=len(self.simulations),
            interrupted=interrupted,
            seconds=time.perf_counter() - self.started,
        )

    def _best_of(self, starts: list[Pipelines]) -> Pipelines:
        options = self.options
        finalists: list[Pipelines] = []
        for start in starts[: options.starts]:
            before = len(self.estimates)
            self._climb(start)
            finalists += self._finalists([start, *list(self.estimates)[before:]])
        self._simulate(list(dict.fromkeys(finalists)), 1)
        for done in range(options.rounds):
            # At first every number of stages is followed, later what serves most.
            elite = self._elite(1 + int(options.elite * (done / options.rounds) ** 2))
            if self.over:
                break
            self._simulate(self._proposed(elite), 1)
        best, count = self._elite(options.elite), options.repeats
        while count < len(options.seeds) and not self.over:
            count = min(2 * count, len(options.seeds))
            self._simulate(best, count)
            best.sort(key=lambda layout: self.mean(layout, count), reverse=True)
            best = best[: -(-len(best) // 2)]
        return best[0]

    def _best_so_far(self) -> Pipelines:
        """The best of those that were simulated often enough to say so, or simulated at all, or by formula."""
        if not self.simulations:
            return max(self.estimates, key=self.estimate)
        often = min(self.options.repeats, max(map(len, self.simulations.values())))
        return max((layout for layout, known in self.simulations.items() if len(known) >= often), key=self.mean)

    def _elite(self, alike: int) -> list[Pipelines]:
        """The best of all that were simulated, by means over the same seeds; the best half of a round gets twice as many."""
        options, best, count = self.options, list(self.simulations), 1
        repeats = min(options.repeats, len(options.seeds))
        while True:
            best.sort(key=lambda layout: self.mean(layout, count), reverse=True)
            many = repeats // count
            best = _unlike(best, options.elite * many, alike * many)
            if count == repeats or self.over:
                return best[: options.elite]
            count = min(2 * count, repeats)
            self._simulate(best, count)

    def _proposed(self, elite: list[Pipelines]) -> list[Pipelines]:
        """Changes of the elite that promise most: by the formula, which errs alike for what is alike, and by chance."""
        ratings: dict[Pipelines, float] = {}
        for _ in range(self.options.proposals):
            if self.over:
                break
            self.tell()
            parent = elite[int(self.generator.integers(len(elite)))]
            chance = math.exp(FORMULA_ERROR * self.generator.standard_normal())
            other = self._moved(parent, int(self.generator.geometric(ONE_MOVE)))
            if other is None or other in self.simulations or other in ratings:
                continue
            try:
                change = self.estimate(other) / self.estimate(parent)
            except SolverError:
                continue
            ratings[other] = change * chance
        return sorted(ratings, key=lambda layout: ratings[layout], reverse=True)[: self.options.children]

    def _moved(self, layout: Pipelines, moves: int) -> Pipelines | None:
        """So many random changes at once, or ``None`` where one leads nowhere."""
        other: Pipelines | None = layout
        for _ in range(moves):
            other = moved(self.pool, other, self.generator, self.limits) if other is not None else None
        return other

    def mean(self, layout: Pipelines, count: int | None = None) -> float:
        """Of the first ``count`` simulations of a layout, by default of all."""
        first = self.simulations[layout][:count]
        return sum(first) / len(first)

    def _finalists(self, climbed: list[Pipelines]) -> list[Pipelines]:
        """The best of one climb: the formula errs by how many stages there are, so every climb has finalists."""
        return _unlike(sorted(climbed, key=self.estimate, reverse=True), self.options.finalists, self.options.finalists)

    def estimate(self, layout: Pipelines) -> float:
        if layout not in self.estimates:
            self.estimates[layout] = estimate_served(self.pool, pool_network(self.pool, layout)).decode_tokens_s
        return self.estimates[layout]

    def _simulate(self, layouts: list[Pipelines], count: int) -> None:
        """Simulate each with the first ``count`` seeds, as many at once as there are processors."""
        tasks = []
        for layout in layouts:
            network = pool_network(self.pool, layout)
            tasks += [
                (layout, network, seed) for seed in self.options.seeds[len(self.simulations.get(layout, ())) : count]
            ]

        def rate(task: tuple[Pipelines, PoolNetwork, int]) -> float:
            try:
                return simulate_pool(self.pool, task[1], (task[2],), window_s=self.options.window_s).mean
            except SolverError:
                return 0.0

        with ThreadPoolExecutor(cores()) as threads:
            for (layout, _, _), result in zip(tasks, threads.map(rate, tasks), strict=True):
                known = self.simulations.setdefault(layout, [])
                known.append(result)
                if len(known) == 1:
                    self.tell()
                if self.over:
                    threads.shutdown(cancel_futures=True)
                    break

    def _starts(self) -> list[Pipelines]:
        """The placement of most flow for every number of stages; for several pipelines, of equal shares of the nodes."""
        starts: list[Pipelines] = []
        for many in range(1, self.options.most_pipelines + 1):
            parts = [
                tuple(count // many + (1 if i < count % many else 0) for count in self.pool.counts) for i in range(many)
            ]
            by_part = [self._by_stages(counts) for counts in parts]
            if not all(by_part):
                break
            for stages in sorted(set.intersection(*(set(by_stages) for by_stages in by_part))):
                starts.append(tuple(by_stages[stages] for by_stages in by_part))
        if not starts:
            raise NoSolutionError(f"no placement on {self.pool.name} was found in time; allow more of it", None)
        return starts

    def _by_stages(self, counts: tuple[int, ...]) -> dict[int, Placement]:
        options = self.options
        pool = replace(self.pool, counts=counts)
        most = min(pool.max_stages, options.max_stages or pool.max_stages)
        wanted = [options.stages] if options.stages is not None else range(1, most + 1)
        placements: dict[int, Placement] = {}
        refused: InfeasibleError | None = None
        for stages in wanted:
            if self.over and placements:
                break
            left = max(min(20.0, self.deadline - time.perf_counter()), 1.0)
            try:
                placement = place_pool(pool, stages=stages, solver=options.solver, time_limit=left).placement
            except InfeasibleError as error:
                refused = error
                continue
            except NoSolutionError:
                continue
            placements[len(placement.stages)] = placement
        if not placements and refused is not None and counts == self.pool.counts:
            raise refused
        return placements

    def _climb(self, layout: Pipelines) -> None:
        """Random moves, kept when the formula says no less; what it says of all is remembered."""
        value = self.estimate(layout)
        for _ in range(self.options.moves):
            if self.over:
                break
            self.tell()
            other = moved(self.pool, layout, self.generator, self.limits)
            if other is None:
                continue
            try:
                rate = self.estimate(other)
            except SolverError:
                continue
            if rate >= value:
                layout, value = other, rate


def _unlike(layouts: Iterable[Pipelines], count: int, alike: int) -> list[Pipelines]:
    """The first ``count``: one of those with equal stages in another order, ``alike`` of those with as many stages."""
    first: dict[tuple[tuple[Stage, ...], ...], Pipelines] = {}
    by_stages: Counter[tuple[int, ...]] = Counter()
    for layout in layouts:
        key = tuple(sorted(tuple(sorted(p.stages, key=lambda s: (s.layers, s.nodes))) for p in layout))
        stages = tuple(map(len, key))
        if key not in first and by_stages[stages] < alike:
            first[key] = layout
            by_stages[stages] += 1
            if len(first) == count:
                break
    return list(first.values())
