"""Pipelines on a pool that serve most decode tokens/s: starts of most flow, local search by formula, finalists played."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.errors import InfeasibleError, NoSolutionError, SolverError
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_search import place_pool
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.placement.served.estimate import ServedEstimate, estimate_served
from coralopt.placement.served.network import PoolNetwork, pool_network
from coralopt.placement.served.play import Played, play_served
from coralopt.solving import Backend
from coralopt.types import Progress

Pipelines = tuple[Placement, ...]


@dataclass(frozen=True)
class ServedSearch:
    """How the search goes on.

    Attributes:
        max_stages: Most stages of a pipeline.
        stages: Exactly so many stages.
        most_pipelines: Most pipelines that share the pool.
        starts: Starts that are searched around by formula, the best by formula first.
        moves: Moves tried around each start.
        finalists: Layouts around each start that are played, the best by formula.
        climbs: Played layouts, the best first, around which moves are played.
        played_moves: Moves tried around each of these.
        seeds: Seeds of lengths while searching; the result is played with others.
        search_window_s: Seconds of a play while searching.
        window_s: Seconds of a play of the result.
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
    climbs: int = 3
    played_moves: int = 200
    seeds: tuple[int, ...] = (101, 102)
    search_window_s: float = 120.0
    window_s: float = 300.0
    seed: int = 0
    solver: str | Backend = "highs"
    time_limit: float | None = None

    @property
    def most_estimates(self) -> int:
        """Moves by formula."""
        return self.starts * self.moves

    @property
    def most_plays(self) -> int:
        """Layouts played at most."""
        return self.starts * self.finalists + self.climbs * self.played_moves


@dataclass(frozen=True)
class ServedSolution:
    """Pipelines that serve many decode tokens/s; nothing is proven about others.

    Attributes:
        pipelines: They share the requests.
        network: Their nodes, links and maximum flow.
        estimate: What the formula says.
        played: What they serve when played, with seeds that the search did not see.
        first: Played decode tokens/s of the placement of most flow, the same seeds.
        formulas: Layouts estimated.
        plays: Layouts played.
        interrupted: Whether Ctrl-C ended the search.
        seconds: Wall time.
    """

    pipelines: Pipelines
    network: PoolNetwork
    estimate: ServedEstimate
    played: Played
    first: float
    formulas: int
    plays: int
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
        seeds: Seeds with which the result is played.
        on_progress: Told about layouts that were estimated or played, and how many there will be.

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
        self.plays: dict[Pipelines, float] = {}

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() >= self.deadline

    def tell(self) -> None:
        """One more step, and the best so far."""
        self.tried += 1
        if self.told is not None:
            options, best = self.options, max((self.plays or self.estimates).values())
            what = f"best {best:,.1f} decode tokens/s, {'played' if self.plays else 'by formula'}"
            total = options.most_estimates + options.most_plays
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
            known = self.plays or self.estimates
            winner = max(known, key=lambda layout: known[layout])
        network = pool_network(self.pool, winner)
        window = self.options.window_s
        return ServedSolution(
            pipelines=winner,
            network=network,
            estimate=estimate_served(self.pool, network),
            played=play_served(self.pool, network, seeds, window_s=window),
            first=play_served(self.pool, pool_network(self.pool, flow), seeds, window_s=window).mean,
            formulas=len(self.estimates),
            plays=len(self.plays),
            interrupted=interrupted,
            seconds=time.perf_counter() - self.started,
        )

    def _best_of(self, starts: list[Pipelines]) -> Pipelines:
        finalists: list[Pipelines] = []
        for start in starts[: self.options.starts]:
            before = len(self.estimates)
            self._climb(start, self.estimate, self.options.moves)
            finalists += self._finalists([start, *list(self.estimates)[before:]])
        for layout in finalists:
            if self.over and self.plays:
                break
            self.play(layout)
            self.tell()
        climbed = sorted(self.plays, key=lambda layout: self.plays[layout], reverse=True)[: self.options.climbs]
        for layout in climbed:
            self._climb(layout, self.play, self.options.played_moves)
        return max(self.plays, key=lambda layout: self.plays[layout])

    def _finalists(self, climbed: list[Pipelines]) -> list[Pipelines]:
        """The best of one climb: the formula errs by how many stages there are, so every climb has finalists.

        Layouts of one climb are alike: of those with equal stages in another order only the best is one.
        """
        best: dict[tuple[tuple[Stage, ...], ...], Pipelines] = {}
        for layout in sorted(climbed, key=self.estimate, reverse=True):
            key = tuple(sorted(tuple(sorted(p.stages, key=lambda s: (s.layers, s.nodes))) for p in layout))
            best.setdefault(key, layout)
            if len(best) == self.options.finalists:
                break
        return list(best.values())

    def estimate(self, layout: Pipelines) -> float:
        if layout not in self.estimates:
            self.estimates[layout] = estimate_served(self.pool, pool_network(self.pool, layout)).decode_tokens_s
        return self.estimates[layout]

    def play(self, layout: Pipelines) -> float:
        if layout not in self.plays:
            network = pool_network(self.pool, layout)
            self.plays[layout] = play_served(
                self.pool, network, self.options.seeds, window_s=self.options.search_window_s
            ).mean
        return self.plays[layout]

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
            for stages in sorted(set.intersection(*(set(found) for found in by_part))):
                starts.append(tuple(found[stages] for found in by_part))
        if not starts:
            raise NoSolutionError(f"no placement on {self.pool.name} was found in time; allow more of it", None)
        return starts

    def _by_stages(self, counts: tuple[int, ...]) -> dict[int, Placement]:
        options = self.options
        pool = replace(self.pool, counts=counts)
        most = min(pool.max_stages, options.max_stages or pool.max_stages)
        wanted = [options.stages] if options.stages is not None else range(1, most + 1)
        found: dict[int, Placement] = {}
        refused: InfeasibleError | None = None
        for stages in wanted:
            if self.over and found:
                break
            left = max(min(20.0, self.deadline - time.perf_counter()), 1.0)
            try:
                placement = place_pool(pool, stages=stages, solver=options.solver, time_limit=left).placement
            except InfeasibleError as error:
                refused = error
                continue
            except NoSolutionError:
                continue
            found[len(placement.stages)] = placement
        if not found and refused is not None and counts == self.pool.counts:
            raise refused
        return found

    def _climb(self, layout: Pipelines, worth: Callable[[Pipelines], float], moves: int) -> None:
        """Random moves, kept when they are no worse; what all are worth is remembered."""
        value = worth(layout)
        for _ in range(moves):
            if self.over:
                break
            self.tell()
            other = self._moved(layout)
            if other is None:
                continue
            try:
                rate = worth(other)
            except SolverError:
                continue
            if rate >= value:
                layout, value = other, rate

    def _moved(self, layout: Pipelines) -> Pipelines | None:
        """One random move, or ``None`` where it leads nowhere."""
        draw = self.generator.integers
        which = int(draw(len(layout)))
        stages = list(layout[which].stages)
        a, b = int(draw(len(stages))), int(draw(len(stages)))
        kind = int(draw(5))
        if kind == 0:
            stages[a], stages[b] = stages[b], stages[a]
        elif kind == 1:
            stages.insert(b, stages.pop(a))
        elif kind == 2:
            if a == b or stages[a].layers < 2:
                return None
            stages[a] = Stage(stages[a].layers - 1, stages[a].nodes)
            stages[b] = Stage(stages[b].layers + 1, stages[b].nodes)
        else:
            return self._nodes_moved(layout, which, a, kind)
        changed = Placement(tuple(stages))
        if changed == layout[which] or not self.pool.check(changed).feasible:
            return None
        return (*layout[:which], changed, *layout[which + 1 :])

    def _nodes_moved(self, layout: Pipelines, which: int, a: int, kind: int) -> Pipelines | None:
        """A node of stage ``a`` exchanged for a node of another stage, moved there, or an idle one added."""
        draw = self.generator.integers
        goal = int(draw(len(layout)))
        b = int(draw(len(layout[goal].stages)))
        parts = [[list(stage.nodes) for stage in placement.stages] for placement in layout]
        source, target = parts[which][a], parts[goal][b]
        if (which, a) == (goal, b):
            used = np.sum([stage for pipeline in parts for stage in pipeline], axis=0)
            idle = [c for c, count in enumerate(self.pool.counts) if used[c] < count]
            if not idle:
                return None
            source[idle[int(draw(len(idle)))]] += 1
        else:
            held = [c for c, count in enumerate(source) if count]
            c = held[int(draw(len(held)))]
            source[c] -= 1
            target[c] += 1
            if kind == 4:
                back = [d for d, count in enumerate(target) if count and d != c]
                if not back:
                    return None
                d = back[int(draw(len(back)))]
                target[d] -= 1
                source[d] += 1
            if not sum(source):
                return None
        changed = tuple(
            Placement(
                tuple(Stage(stage.layers, tuple(nodes)) for stage, nodes in zip(placement.stages, counts, strict=True))
            )
            for placement, counts in zip(layout, parts, strict=True)
        )
        return changed if all(self.pool.check(placement).feasible for placement in changed) else None
