r"""Capacity prices that make the Lagrangian bound as high as it gets: Dantzig-Wolfe over the demand rows.

The master programme chooses, fractionally, one covering a model phase (:mod:`coralopt.allocation.coverings`) within the
capacity rows::

    min sum_k c_k z_k   s.t.   sum_k U_k z_k <= A,   sum_{k of m} z_k >= 1 for every phase m,   z >= 0

Its columns are made as they are needed: at capacity prices lambda the covering knapsack of every phase, a dynamic
programme over a grid, gives the one of least weight. Prices are smoothed (Wentges 1997): those asked about lie between
the best ones so far and the master's. What comes out is prices only; whatever they are, the bound made from them by
:func:`coralopt.allocation.lagrangian.lagrangian_bound` over *all* columns holds, so nothing here needs proof.

The master's optimum is the best bound of that kind: its relaxation knows that every demand row is met by whole
instances, and only the nodes that phases share are still split.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.relaxation import Columns, Floats, Ints
from coralopt.solving import MilpMatrix, SolveOptions, solve_matrix

#: Steps of the grid of the knapsacks here; the bound itself is made on a finer one.
GRID = 20_000
#: Share of the best prices so far in the next ones asked about.
SMOOTHING = 0.6
#: Relative distance of the master's value and the best bound to stop at.
CLOSE = 2e-5
#: Rounds after which the best prices so far will do.
MOST_ROUNDS = 150


@dataclass(frozen=True, eq=False)
class Decomposition:
    """What the decomposition found over some columns.

    Attributes:
        prices: float64 (R, C), capacity prices of the best bound, USD/h per node.
        bound: Value of the Lagrangian there over these columns, USD/h.
        master: Value of the last master programme, USD/h; infinite while it had to exceed the pool.
        rounds: Rounds made.
    """

    prices: Floats
    bound: float
    master: float
    rounds: int


def best_prices(
    problem: AllocationProblem,
    columns: Columns,
    chosen: Ints,
    start: Floats,
    solver: Any,
    deadline: float = np.inf,
) -> Decomposition:
    """Capacity prices that maximise the Lagrangian bound over the chosen columns, nearly.

    Args:
        problem: The problem.
        columns: Its columns.
        chosen: int64 (k,), those that take part.
        start: float64 (R, C), prices to begin with.
        solver: A back end with LP duals.
        deadline: Value of ``time.perf_counter()`` to stop at.
    """
    oracle = _Oracle(problem, columns, chosen)
    available = problem.availability.ravel().astype(np.float64)
    master = _Master(available, np.flatnonzero(problem.demand > 0), solver)
    asked = best = np.maximum(start.ravel(), 0.0)
    bound, value, rounds, stuck = -np.inf, np.inf, 0, 0
    excess = 10.0 * max(float(best.max(initial=0.0)), float(columns.cost[chosen].max(initial=1.0)))
    while rounds < MOST_ROUNDS and (rounds == 0 or time.perf_counter() < deadline):
        rounds += 1
        total, made = oracle.coverings(asked)
        if total is None:
            break
        total -= float(asked @ available)
        fresh = sum(master.add(phase, key, cost, use) for phase, key, cost, use in made)
        if total > bound:
            bound, best = total, asked
        value, prices, over = master.solve(excess)
        if over and value - bound <= CLOSE * abs(value):
            excess *= 10.0
            if excess > 1e9:
                break
            continue
        if not over and value - bound <= CLOSE * abs(value):
            break
        # Prices that bring nothing new are too near the best ones; the master's own always do, or it is done.
        stuck = 0 if fresh else stuck + 1
        if stuck > 2:
            break
        asked = prices if stuck else SMOOTHING * best + (1 - SMOOTHING) * prices
    return Decomposition(best.reshape(problem.price.shape), bound, value if not over else np.inf, rounds)


class _Oracle:
    """The covering knapsacks of all phases over the chosen columns."""

    def __init__(self, problem: AllocationProblem, columns: Columns, chosen: Ints) -> None:
        regions, self.configurations = problem.price.shape
        template = columns.template[chosen]
        phase = problem.phase[template]
        self.region = columns.region[chosen]
        self.usage = problem.usage[template].astype(np.float64)
        self.cost = columns.cost[chosen]
        self.cells = regions * self.configurations
        self.shape = problem.price.shape
        share = problem.throughput[template] / np.where(problem.demand > 0, problem.demand, 1.0)[phase]
        self.steps = np.clip(np.ceil(share * GRID * (1 + 1e-12)), 1, GRID).astype(np.int64)
        kept = columns.kept[chosen]
        self.parts: list[tuple[int, Ints, list[tuple[int, int]]]] = []
        for p in np.flatnonzero(problem.demand > 0).tolist():
            mine = phase == p
            copies = [(int(k), int(columns.upper[chosen[k]])) for k in np.flatnonzero(mine & kept)]
            self.parts.append((p, np.flatnonzero(mine & ~kept), copies))

    def coverings(
        self, prices: Floats
    ) -> tuple[float | None, list[tuple[int, tuple[tuple[int, int], ...], float, Floats]]]:
        """Sum of the least weights, and the covering of every phase: phase, members, cost, nodes.

        ``None`` instead of the sum when the chosen columns cannot cover some phase.
        """
        table = prices.reshape(self.shape)
        weight = self.cost + (self.usage * table[self.region]).sum(axis=1)
        total, made = 0.0, []
        for phase, fresh, kept in self.parts:
            least, counts = _cheapest(self.steps, weight, fresh, kept)
            if counts is None:
                return None, []
            total += least
            use = np.zeros(self.shape)
            cost = 0.0
            for k, n in counts.items():
                use[self.region[k]] += n * self.usage[k]
                cost += n * float(self.cost[k])
            made.append((phase, tuple(sorted(counts.items())), cost, use.ravel()))
        return total, made


def _cheapest(
    steps: Ints, weight: Floats, fresh: Ints, kept: list[tuple[int, int]]
) -> tuple[float, dict[int, int] | None]:
    """The least weight that covers the grid with fresh items and some copies of kept ones, and how."""
    from coralopt.allocation.kernels import cheapest_by_size, cover_with_choice

    front = fresh[cheapest_by_size(steps[fresh], weight[fresh], GRID)]
    table = np.full(GRID + 1, np.inf)
    table[0] = 0.0
    choice = np.full(GRID + 1, -1, dtype=np.int64)
    if len(front):
        cover_with_choice(steps[front], weight[front], table, choice)
    layers: list[tuple[int, int, npt.NDArray[np.bool_]]] = []
    amounts = np.arange(GRID + 1)
    for k, copies in kept:
        size = 1
        while copies > 0:
            taken = min(size, copies)
            other = table[np.maximum(amounts - int(steps[k]) * taken, 0)] + float(weight[k]) * taken
            better = other < table
            table = np.where(better, other, table)
            layers.append((k, taken, better))
            copies -= taken
            size *= 2
    if not np.isfinite(table[GRID]):
        return np.inf, None
    counts: dict[int, int] = {}
    amount = GRID
    for k, taken, better in reversed(layers):
        if amount > 0 and better[amount]:
            counts[k] = counts.get(k, 0) + taken
            amount = max(0, amount - int(steps[k]) * taken)
    while amount > 0:
        k = int(front[choice[amount]])
        counts[k] = counts.get(k, 0) + 1
        amount -= int(steps[k])
    return float(table[GRID]), counts


class _Master:
    """The master programme; it may exceed the pool at a price, so that it always has a solution."""

    def __init__(self, available: Floats, phases: Ints, solver: Any) -> None:
        self.available, self.solver = available, solver
        self.row = {int(p): k for k, p in enumerate(phases)}
        self.seen: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        self.phase: list[int] = []
        self.cost: list[float] = []
        self.use: list[Floats] = []

    def add(self, phase: int, members: tuple[tuple[int, int], ...], cost: float, use: Floats) -> bool:
        """Whether the covering is a new one."""
        if (phase, members) in self.seen:
            return False
        self.seen.add((phase, members))
        self.phase.append(self.row[phase])
        self.cost.append(cost)
        self.use.append(use)
        return True

    def solve(self, excess: float) -> tuple[float, Floats, bool]:
        """Value, capacity prices, and whether the pool had to be exceeded."""
        from scipy.sparse import csc_array

        cells, phases, count = len(self.available), len(self.row), len(self.cost)
        a = np.zeros((cells + phases, count + cells))
        a[:cells, :count] = np.array(self.use).T
        a[cells + np.array(self.phase), np.arange(count)] = 1.0
        a[np.arange(cells), count + np.arange(cells)] = -1.0
        matrix = MilpMatrix(
            c=np.concatenate([self.cost, np.full(cells, excess)]),
            offset=0.0,
            a=csc_array(a),
            row_lower=np.concatenate([np.full(cells, -np.inf), np.ones(phases)]),
            row_upper=np.concatenate([self.available, np.full(phases, np.inf)]),
            lower=np.zeros(count + cells),
            upper=np.full(count + cells, np.inf),
            integer=np.zeros(count + cells, dtype=np.bool_),
            maximize=False,
            column_names=range(count + cells),  # type: ignore[arg-type]
            row_names=range(cells + phases),  # type: ignore[arg-type]
        )
        result = solve_matrix(matrix, self.solver, SolveOptions(threads=1))
        if result.x is None or result.row_duals is None or result.objective is None:
            return np.inf, np.zeros(cells), True
        prices = np.maximum(0.0, -result.row_duals[:cells])
        return float(result.objective), prices, bool(result.x[count:].sum() > 1e-7)
