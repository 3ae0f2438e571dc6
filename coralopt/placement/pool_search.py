"""The best placement on a large pool, exactly: node multisets as columns, a small integer programme, a search on the target.

Nodes of one configuration are interchangeable, and that symmetry is the whole difficulty of a model that names each
node. Fix a target throughput T. A stage of j layers reaches it with a multiset A of nodes exactly if
sum_c A_c T_j(c) >= T, and only the *minimal* such multisets matter, since further nodes may stay idle. With one integer
column x[r,j,A] for each role r, layer count j and minimal multiset A, the pool reaches T with S stages exactly if

    sum_{r,j,A} A_c x[r,j,A] <= N_c       for every configuration c
    sum_{r,j,A} j x[r,j,A]   >= L         (= L where T_j rises somewhere in j)
    sum_{j,A} x[r,j,A] = 1, S - 2, 1      for first, middle and last stages; with one table for all roles: their sum <= S

has a solution in whole numbers. More than L layers do no harm when T_j falls in j: a stage may drop some. The largest T
is found by bisection between a plan in hand and a target proven impossible; in the end the target is the next float
above the plan's throughput, and its impossibility proves the plan optimal with no gap at all. Every number in the
integer programme is a small whole number, so a solver's tolerances cannot blur the proof.

A target with too many multisets stays undecided. The plan in hand is then returned with a bound from a relaxation in
which stages of equal role and layers share their nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from coralopt.errors import InfeasibleError, NoSolutionError, WrongAnswerError
from coralopt.placement.pool import PlacementPool
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.solving import Backend, MatrixResult, MilpMatrix, Reason, heeded, solve_matrix
from coralopt.throughput import FIRST, LAST, MIDDLE, falls_in_layers
from coralopt.types import Floats

#: Most columns that one target may have.
MOST_COLUMNS = 60_000
#: Relative width of the bisection at which the next target becomes the next float above the plan.
CLOSE = 1e-3


@dataclass(frozen=True)
class PoolSolution:
    """The best placement on a pool.

    Attributes:
        placement: Its stages.
        throughput: tokens/s.
        bound: No placement with the stage counts allowed reaches more, tokens/s; equals ``throughput`` when proven.
        targets: Number of targets decided.
        columns: Most columns that one target had.
        seconds: Wall time.
    """

    placement: Placement
    throughput: float
    bound: float
    targets: int
    columns: int
    seconds: float = field(compare=False)

    @property
    def proven(self) -> bool:
        """Whether nothing better exists, to the last digit."""
        return self.bound <= self.throughput


@dataclass(frozen=True)
class _Column:
    role: int
    layers: int
    nodes: tuple[int, ...]


class _Undecided(Exception):
    """The time was over, or a target has more multisets than MOST_COLUMNS."""


def place_pool(
    pool: PlacementPool,
    *,
    max_stages: int | None = None,
    stages: int | None = None,
    solver: str | Backend = "highs",
    time_limit: float | None = None,
    on_progress: Callable[[float, float], None] | None = None,
) -> PoolSolution:
    """The placement of most tokens/s on the pool, with a proof.

    Args:
        pool: The pool.
        max_stages: Most stages; what the tables, nodes and layers allow when ``None``.
        stages: Exactly so many stages.
        solver: Any MILP back end.
        time_limit: Seconds in all; the best plan so far is then returned with a valid bound. The same happens where a
            target has more than MOST_COLUMNS minimal multisets.
        on_progress: Called with (tokens/s in hand, proven bound) after every target.

    Raises:
        InfeasibleError: No placement exists with these stage counts.
        NoSolutionError: None was found in time.
        SolverError: Unknown or missing solver, or one that takes no matrices.
        KeyboardInterrupt: Ctrl-C, also where it reached the solver.
    """
    most = min(pool.max_stages, max_stages if max_stages is not None else pool.max_stages)
    wanted = range(stages, stages + 1) if stages is not None else range(1, most + 1)
    if stages is not None and not 1 <= stages <= pool.max_stages:
        raise InfeasibleError(f"{stages} stages are outside 1..{pool.max_stages} of pool {pool.name}")
    search = _Search(pool, solver, time_limit, on_progress)
    if pool.stage_free and stages is None:
        search.run(most, at_most=True)
    else:
        # The most promising stage counts first: a good plan rules the others out by their bounds.
        for count in sorted(wanted, key=lambda s: -_layer_bound(pool, s)):
            search.run(count, at_most=False)
    if search.best is None:
        what = f"placement of {pool.name} with {wanted.start}..{wanted.stop - 1} stages"
        if search.bound > 0:
            raise NoSolutionError(f"no {what} was found in time; allow more of it", None)
        raise InfeasibleError(f"no {what} exists: some layers fit nowhere; allow more stages or add nodes")
    check = pool.check(search.best)
    if not check.feasible or check.objective != search.value:
        raise WrongAnswerError(f"the pool search made a wrong placement: {'; '.join(check.sentences)}")
    return PoolSolution(
        search.best, search.value, search.bound, search.targets, search.columns, time.perf_counter() - search.started
    )


def _layer_bound(pool: PlacementPool, stages: int) -> float:
    """No placement exceeds it: every token passes L layers, a node with j layers gives j T_j layer-tokens a second."""
    roles = [FIRST] if stages == 1 else [FIRST, LAST] if stages == 2 else [FIRST, MIDDLE, LAST]
    layers = np.arange(pool.layers + 1)
    gives = (pool.values[stages - 1, roles] * layers).max(axis=(0, 2))
    return float(gives @ np.asarray(pool.counts, dtype=np.float64)) / pool.layers * (1 + 1e-12)


class _Search:
    """State of one search over targets."""

    def __init__(
        self,
        pool: PlacementPool,
        solver: str | Backend,
        limit: float | None,
        told: Callable[[float, float], None] | None,
    ) -> None:
        self.pool, self.solver, self.told = pool, solver, told
        self.started = time.perf_counter()
        self.deadline = math.inf if limit is None else self.started + limit
        self.best: Placement | None = None
        self.value = 0.0
        #: Largest bound over the stage counts done; never below ``value``.
        self.bound = 0.0
        self.targets = self.columns = 0

    def run(self, stages: int, at_most: bool) -> None:
        """Improve on the plan in hand with ``stages`` stages, until it is proven that they cannot."""
        upper = _layer_bound(self.pool, stages)
        falling = falls_in_layers(self.pool.values[stages - 1])
        try:
            while upper > self.value:
                close = self.value > 0 and upper <= self.value * (1 + CLOSE)
                if self.value == 0:
                    target = math.ulp(0.0)  # does anything exist at all?
                elif close:
                    target = math.nextafter(self.value, math.inf)
                else:
                    # Upwards by half: high targets have the most multisets, and most of them are impossible.
                    target = min((self.value + upper) / 2, 1.5 * self.value)
                better = self._decide(target, stages, at_most, falling)
                if better is None:
                    upper = self.value if close or self.value == 0 else math.nextafter(target, 0.0)
                else:
                    self.best, self.value = better
                if self.told is not None:
                    self.told(self.value, max(self.bound, upper, self.value))
        except _Undecided:
            self.bound = max(self.bound, self._relaxed_bound(upper, stages, at_most, falling))
        self.bound = max(self.bound, self.value)

    def _relaxed_bound(self, upper: float, stages: int, at_most: bool, falling: bool) -> float:
        """A bound between the plan in hand and ``upper``, by bisection over a relaxation of a few hundred columns."""
        low = max(self.value, upper * 1e-6)
        ends = time.perf_counter() + 10.0
        while upper > low * (1 + CLOSE) and time.perf_counter() < ends:
            target = math.sqrt(low * upper)
            if self._impossible(target, stages, at_most, falling):
                upper = target
            else:
                low = target
        return upper

    def _impossible(self, target: float, stages: int, at_most: bool, falling: bool) -> bool:
        """Whether ``target`` is out of reach even if stages of equal role and layers could share their nodes.

        x[r,j] such stages with n[r,j,c] nodes need sum_c min(T_j(c) / target, 1) n[r,j,c] >= x[r,j]: what a node gives
        beyond the target is of no use to its stage.
        """
        pool, roles = self.pool, self._roles(stages, at_most)
        kinds, layers = len(pool.counts), pool.layers
        cells = [(role, j) for role in roles for j in range(1, layers + 1)]
        nodes = [
            (i, c) for i, (role, j) in enumerate(cells) for c in range(kinds) if pool.values[stages - 1, role, c, j] > 0
        ]
        rows, columns = kinds + 1 + len(roles) + len(cells), len(cells) + len(nodes)
        dense = np.zeros((rows, columns))
        cover = kinds + 1 + len(roles)
        for i, (role, j) in enumerate(cells):
            dense[kinds, i] = j
            dense[kinds + 1 + roles.index(role), i] = 1
            dense[cover + i, i] = -1
        for position, (i, c) in enumerate(nodes, start=len(cells)):
            role, j = cells[i]
            dense[c, position] = 1
            # A hair more than it gives, so that a solver's tolerance never makes a possible target impossible.
            dense[cover + i, position] = min(float(pool.values[stages - 1, role, c, j]) / target, 1.0) * (1 + 1e-6)
        columns_of = np.array([*[float(stages)] * len(cells), *(float(pool.counts[c]) for _, c in nodes)])
        matrix = self._integer_programme(dense, np.zeros(columns), columns_of, stages, at_most, falling)
        result = self._solved(matrix, {"time_limit": 3.0})
        return result.termination.reason is Reason.INFEASIBLE

    def _decide(self, target: float, stages: int, at_most: bool, falling: bool) -> tuple[Placement, float] | None:
        """A placement of at least ``target`` tokens/s with its throughput, or ``None``: proven that there is none."""
        self.targets += 1
        columns = self._make_columns(target, stages, at_most, falling)
        self.columns = max(self.columns, len(columns))
        # A role that no multiset can fill makes the target impossible.
        if {column.role for column in columns} != set(self._roles(stages, at_most)):
            return None
        matrix = self._matrix(columns, stages, at_most, falling)
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise _Undecided
        options = {"rel_gap": 0.0} if math.isinf(left) else {"rel_gap": 0.0, "time_limit": left}
        result = self._solved(matrix, options)
        if result.x is None:
            if result.termination.reason in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
                return None
            raise _Undecided
        taken = [column for column, times in zip(columns, result.x, strict=True) for _ in range(round(float(times)))]
        placement = self._placement(taken)
        check = self.pool.check(placement)
        if not check.feasible or check.objective < target:
            raise WrongAnswerError(
                f"solver {self.solver!r} answered a target of {target!r} tokens/s with a placement of "
                f"{check.objective!r}: {'; '.join(check.sentences)}"
            )
        return placement, check.objective

    def _solved(self, matrix: MilpMatrix, options: dict[str, float]) -> MatrixResult:
        return heeded(solve_matrix(matrix, self.solver, options))

    def _roles(self, stages: int, at_most: bool) -> list[int]:
        """Roles that have tables of their own; one for all when their tables are equal."""
        values = self.pool.values[stages - 1]
        roles = [FIRST] if stages == 1 else [FIRST, LAST] if stages == 2 else [FIRST, MIDDLE, LAST]
        same = at_most or all((values[role] == values[FIRST]).all() for role in roles)
        return [FIRST] if same else roles

    def _make_columns(self, target: float, stages: int, at_most: bool, falling: bool) -> list[_Column]:
        values = self.pool.values[stages - 1]
        most = self.pool.layers if at_most or stages == 1 else self.pool.layers - stages + 1
        least = self.pool.layers if stages == 1 and not at_most else 1
        columns: list[_Column] = []
        for role in self._roles(stages, at_most):
            seen: set[tuple[int, ...]] = set()
            # From many layers to few: where T falls in j, the same nodes with fewer layers are never needed.
            for layers in range(most, least - 1, -1):
                for nodes in minimal_multisets(values[role, :, layers], self.pool.counts, target):
                    if falling and nodes in seen:
                        continue
                    seen.add(nodes)
                    columns.append(_Column(role, layers, nodes))
                    if len(columns) > MOST_COLUMNS or (
                        len(columns) % 1000 == 0 and time.perf_counter() > self.deadline
                    ):
                        raise _Undecided
        return columns

    def _matrix(self, columns: list[_Column], stages: int, at_most: bool, falling: bool) -> MilpMatrix:
        pool = self.pool
        kinds, roles = len(pool.counts), self._roles(stages, at_most)
        dense = np.zeros((kinds + 1 + len(roles), len(columns)))
        for position, column in enumerate(columns):
            dense[:kinds, position] = column.nodes
            dense[kinds, position] = column.layers
            dense[kinds + 1 + roles.index(column.role), position] = 1
        most = [
            min((n // k for n, k in zip(pool.counts, column.nodes, strict=True) if k), default=0) for column in columns
        ]
        # Fewest stages where they are free; else any solution will do.
        cost = np.full(len(columns), 1.0 if at_most else 0.0)
        return self._integer_programme(dense, cost, np.asarray(most, dtype=np.float64), stages, at_most, falling)

    def _integer_programme(
        self, dense: Floats, cost: Floats, upper: Floats, stages: int, at_most: bool, falling: bool
    ) -> MilpMatrix:
        """Least cost of whole columns; rows: nodes of each kind, layers, stages of each role, and more that are >= 0."""
        from scipy.sparse import csc_matrix

        pool, roles = self.pool, self._roles(stages, at_most)
        needed = {FIRST: 1.0, MIDDLE: float(stages - 2), LAST: 1.0}
        # One table for all roles: the stages are counted together.
        high = [float(stages)] if roles == [FIRST] else [needed[role] for role in roles]
        low = [1.0] if at_most else high
        more = len(dense) - len(pool.counts) - 1 - len(roles)
        nodes = [float(n) for n in pool.counts]
        return MilpMatrix(
            c=cost,
            offset=0.0,
            a=csc_matrix(dense),
            row_lower=np.array([*[-math.inf] * len(nodes), float(pool.layers), *low, *[0.0] * more]),
            row_upper=np.array([*nodes, math.inf if falling else float(pool.layers), *high, *[math.inf] * more]),
            lower=np.zeros(len(cost)),
            upper=upper,
            integer=np.ones(len(cost), dtype=bool),
            maximize=False,
            column_names=[f"x{position}" for position in range(len(cost))],
            row_names=[f"r{position}" for position in range(len(dense))],
        )

    def _placement(self, taken: list[_Column]) -> Placement:
        """Columns in pipeline order, layers beyond L dropped from the stages that hold most."""
        order = sorted(taken, key=lambda column: (column.role, -column.layers, column.nodes))
        held = [column.layers for column in order]
        while sum(held) > self.pool.layers:
            held[int(np.argmax(held))] -= 1
        return Placement(tuple(Stage(j, column.nodes) for j, column in zip(held, order, strict=True)))


def minimal_multisets(speeds: Floats, counts: tuple[int, ...], target: float) -> Iterator[tuple[int, ...]]:
    """Every multiset of nodes that reaches ``target`` tokens/s and does so no more without any one of its nodes.

    Args:
        speeds: float64 (C,), tokens/s of one node; nodes with 0 are never taken.
        counts: Nodes there are of each configuration.
        target: tokens/s, positive.
    """
    # From fast to slow: the node added last is the slowest, so whatever stops as soon as it reaches is minimal.
    kinds = sorted((c for c in range(len(counts)) if speeds[c] > 0 and counts[c] > 0), key=lambda c: (-speeds[c], c))
    left = np.append(np.cumsum([counts[c] * speeds[c] for c in reversed(kinds)])[::-1], 0.0)
    taken = [0] * len(counts)

    def total() -> float:
        # The same order of addition as in throughput_of, so that both agree to the last bit.
        value = 0.0
        for c, count in enumerate(taken):
            if count:
                value += count * float(speeds[c])
        return value

    def extend(position: int) -> Iterator[tuple[int, ...]]:
        if position == len(kinds) or total() + left[position] < target * (1 - 1e-12):
            return
        c = kinds[position]
        for count in range(counts[c] + 1):
            taken[c] = count
            if total() >= target:
                yield tuple(taken)
                break
            yield from extend(position + 1)
        taken[c] = 0

    yield from extend(0)
