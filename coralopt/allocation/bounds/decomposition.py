r"""Capacity prices that make the Lagrangian bound as high as it gets: Dantzig-Wolfe over the demand rows.

The master programme chooses, fractionally, one covering a model phase (module ``coverings``) within the
capacity rows::

    min sum_k c_k z_k   s.t.   sum_k U_k z_k <= A,   sum_{k of m} z_k >= 1 for every phase m,   z >= 0

Where nodes come in classes, A is what there is at the lowest price, and every dearer piece is a column of its own.

Its columns are made as they are needed: at capacity prices lambda the covering knapsack of every phase, a dynamic
programme over a grid, gives the one of least weight. Prices are smoothed (Wentges 1997): those asked about lie between
the best ones so far and the master's. What comes out is prices only; whatever they are, the bound made from them by
:func:`coralopt.allocation.bounds.lagrangian.lagrangian_bound` over *all* columns holds, so nothing here needs proof.

The master's optimum is the best bound of that kind: its relaxation knows that every demand row is met by whole
instances, and only the nodes that phases share are still split. Where that is not enough, *limits* say that a phase uses at
least or at most so many nodes of one kind (module ``branching``); their rows have prices of their own,
which only that phase pays.

Side constraints that allow at most so much add up over instances, so they are rows like those of capacity: what a covering
adds to them is part of what it uses. What must be there whichever instance or region is lost, and replicas, are inside the
knapsacks: coverings are made so, and no row asks for it. Phases that go unmet together share a covering, which may leave
some of their demand unmet (module ``unmet``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coralopt.allocation.bounds.coverings import NodeLimit, WeightedColumns, available
from coralopt.allocation.bounds.pricing import Covering, Multipliers, PricedCoverings, PricingProblem
from coralopt.allocation.problem import AllocationProblem
from coralopt.solving import Backend, Basis, Capability, MilpMatrix, SolveOptions, require_backend, solve_matrix
from coralopt.types import Floats, Ints

#: Relative distance of the master's value and the best bound to stop at.
CLOSE = 2e-5
#: Rounds after which the best prices so far will do.
MOST_ROUNDS = 150
#: Price of a node beyond the pool, USD/h, at which nothing fits.
MOST_EXCESS = 1e9


@dataclass(frozen=True, eq=False)
class MasterState:
    """What a decomposition leaves to the next one.

    Attributes:
        capacity_prices: float64 (R, C), USD/h per node, of the best bound.
        limit_prices: (phase, cell) -> what that phase pays for a node on top, USD/h; negative where it must use some.
        coverings: Those of the master programme.
        side_prices: float64 (S,), of the side constraints, USD/h; ``None`` for 0.
    """

    capacity_prices: Floats
    limit_prices: Mapping[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)
    coverings: tuple[Covering, ...] = ()
    side_prices: Floats | None = None

    def prices_of(self, limits: Sequence[NodeLimit]) -> Floats:
        """float64 (n,): what these limits cost, 0 for new ones."""
        return np.array([self.limit_prices.get((limit.phase, limit.cells), 0.0) for limit in limits], dtype=np.float64)

    def row_prices(self) -> Floats:
        """float64 (R * C + S,): those of nodes, then those of side constraints as far as known."""
        side = np.zeros(0) if self.side_prices is None else self.side_prices
        return np.concatenate([self.capacity_prices.ravel(), side])


@dataclass(frozen=True, eq=False)
class Decomposition:
    """What the decomposition found over some columns.

    Attributes:
        state: Prices of the best bound, and the coverings of the master.
        bound: Lagrangian bound over these columns within the limits, USD/h; minus infinity where some phase cannot be
            covered.
        chosen: int64 (k,), the columns.
        weight: float64 (k,), their weights at these prices.
        column_bounds: float64 (k,), what an allocation with that column costs at least.
        least: float64 (K + 1, G + 1) a phase that needs K replicas: least weight of at least k instances that cover so many
            steps.
        whole: float64 (P,), USD/h; what a covering of the whole demand weighs at least.
        master: Value of the last master programme; infinite while it had to exceed the pool.
        mean_use: float64 (P, R * C + S), nodes and side constraints that each phase uses in the last master's solution.
        shares: float64 (k,), how much of each covering of the master its last solution takes.
    """

    state: MasterState
    bound: float
    chosen: Ints
    weight: Floats
    column_bounds: Floats
    least: tuple[Floats, ...]
    whole: Floats
    master: float
    mean_use: Floats
    shares: Floats

    def near(self, limit: float) -> WeightedColumns:
        """The columns whose bound is at most ``limit``."""
        near = self.column_bounds <= limit
        return WeightedColumns(self.chosen[near], self.weight[near], self.least, self.whole)


def best_prices(
    pricing: PricingProblem,
    start: MasterState,
    solver: Backend | str,
    deadline: float = np.inf,
    enough: float = np.inf,
) -> Decomposition:
    """Prices that maximise the Lagrangian bound over the chosen columns within the limits, nearly.

    Args:
        pricing: Makes coverings of the chosen columns within limits, at most one a phase and cell.
        start: Prices and coverings to begin with, as far as known.
        solver: A back end with LP duals.
        deadline: Value of ``time.perf_counter()`` to stop at.
        enough: Bound to stop at, USD/h.
    """
    problem, chosen, limits = pricing.problem, pricing.chosen, pricing.limits
    there, cells = pricing.available, problem.price.size
    phases = len(problem.demand)
    master = _Master(problem, limits, solver)
    master.add(start.coverings)
    best = tried = Multipliers(
        np.maximum(
            np.concatenate(
                [
                    start.capacity_prices.ravel(),
                    np.zeros(len(there) - cells) if start.side_prices is None else start.side_prices,
                ]
            ),
            0.0,
        ),
        start.prices_of(limits),
    )
    bound, value, rounds, stuck, over = -np.inf, np.inf, 0, 0, True
    highest: PricedCoverings | None = None
    mean_use, shares = np.zeros((phases, len(there))), np.zeros(0)
    # Where nothing costs so much, nothing fits.
    dearest = float(np.nansum(problem.availability * problem.price)) * (1 + float(problem.penalties.max(initial=0.0)))
    dearest += sum(float((item.nodes * np.nan_to_num(item.price)).sum()) for item in problem.supply)
    dearest += sum(price for _, price, _ in problem.unmet_groups())
    dearest += sum(max(route.usd_h for route in model.routes) for model in problem.routes)
    excess = pricing.first_excess(best)
    while rounds < MOST_ROUNDS and (rounds == 0 or time.perf_counter() < deadline):
        rounds += 1
        answer = pricing.coverings(tried)
        if answer is None:
            break
        fresh = master.add(answer.coverings)
        if answer.bound > bound:
            bound, best, highest = answer.bound, tried, answer
        value, dual, shares, over = master.solve(excess)
        close = value - bound <= CLOSE * abs(value)
        if bound >= enough or (close and not over):
            break
        # Prices that bring nothing new are too near the best ones; the master's own always do, or it is done.
        stuck = 0 if fresh else stuck + 1
        if over and (close or stuck > 2):
            # The price of exceeding the pool was too low, or nothing fits at all: then the bound grows with it.
            excess, stuck = 10.0 * excess, 1
            if bound > dearest or excess.max(initial=0.0) > MOST_EXCESS:
                break
        elif stuck > 2:
            break
        tried = dual if stuck else best.towards(dual)
    if highest is None:
        least: tuple[Floats, ...] = tuple(np.full((1, pricing.grid + 1), np.inf) for _ in range(phases))
        whole, weight, column_bounds = np.full(phases, np.inf), np.zeros(len(chosen)), np.full(len(chosen), -np.inf)
    else:
        least, whole, weight = highest.least, highest.whole, highest.weight
        column_bounds = pricing.column_bounds(highest)
    places = [(limit.phase, limit.cells) for limit in limits]
    for covering, share in zip(master.coverings, shares.tolist(), strict=False):
        mean_use[covering.phase] += covering.use * share
    return Decomposition(
        state=MasterState(
            best.capacity[:cells].reshape(problem.price.shape),
            dict(zip(places, best.limits.tolist(), strict=True)),
            tuple(master.coverings),
            best.capacity[cells:] if highest is None else highest.side_prices,
        ),
        bound=bound,
        chosen=chosen,
        weight=weight,
        column_bounds=column_bounds,
        least=least,
        whole=whole,
        master=np.inf if over else value,
        mean_use=mean_use,
        shares=shares,
    )


class _Master:
    """The master programme; it may exceed the pool and miss limits at a price, so that it always has a solution.

    Its rows are nodes and side constraints, model phases, limits. Its columns are what may be exceeded or missed, dearer
    nodes, and coverings, which come behind all others: what is added leaves the last basis one to begin with.
    """

    def __init__(self, problem: AllocationProblem, limits: Sequence[NodeLimit], solver: Backend | str) -> None:
        self.pieces, self.solver, self.limits = problem.segments, require_backend(solver), limits
        # What is there at the lowest price; dearer nodes are columns.
        self.available = available(problem)
        np.subtract.at(self.available, self.pieces.cell, self.pieces.nodes)
        self.row = {int(p): k for k, p in enumerate(problem.leading_phases())}
        self.seen: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        self.coverings: list[Covering] = []
        first = len(self.available) + len(self.row)
        missed = np.repeat(np.arange(first, first + len(limits)), 2)
        self.missed = len(self.available) + len(missed)
        slack = (
            *((row, -1.0) for row in range(len(self.available))),
            *((row, 1.0 - 2.0 * (k % 2)) for k, row in enumerate(missed.tolist())),
            *((row, -1.0) for row in self.pieces.cell.tolist()),
        )
        #: Rows, values and number of entries of the columns so far, in blocks of columns.
        self.rows = [np.array([row for row, _ in slack], dtype=np.int64)]
        self.values = [np.array([value for _, value in slack])]
        self.lengths = [np.ones(len(slack), dtype=np.int64)]
        self.basis: Basis | None = None

    def add(self, coverings: Sequence[Covering]) -> int:
        """How many of these coverings are new ones."""
        fresh = {(covering.phase, covering.members): covering for covering in coverings}
        fresh = {key: covering for key, covering in fresh.items() if key not in self.seen}
        if not fresh:
            return 0
        self.seen.update(fresh)
        self.coverings.extend(fresh.values())
        cells, phases = len(self.available), len(self.row)
        phase = np.array([covering.phase for covering in fresh.values()])
        whole = np.zeros((len(phase), cells + phases + len(self.limits)))
        whole[:, :cells] = [covering.use for covering in fresh.values()]
        whole[np.arange(len(phase)), [cells + self.row[p] for p in phase.tolist()]] = 1.0
        for k, limit in enumerate(self.limits):
            whole[:, cells + phases + k] = np.where(phase == limit.phase, limit.counted(whole), 0.0)
        column, row = np.nonzero(whole)
        self.rows.append(row)
        self.values.append(whole[column, row])
        self.lengths.append(np.bincount(column, minlength=len(phase)))
        return len(phase)

    def solve(self, excess: Floats) -> tuple[float, Multipliers, Floats, bool]:
        """Value, prices, share of every covering, and whether the pool had to be exceeded or a limit missed.

        ``excess``, float64 (R * C + S,), USD/h, is what one more of each costs than there is, which no price exceeds.
        """
        from scipy.sparse import csc_array

        cells, phases, missed = len(self.available), len(self.row), self.missed
        lengths = np.concatenate(self.lengths)
        height, width = cells + phases + len(self.limits), len(lengths)
        dearer = slice(missed, missed + len(self.pieces.cell))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        upper = np.full(width, np.inf)
        upper[dearer] = self.pieces.nodes
        costs = [covering.cost for covering in self.coverings]
        matrix = MilpMatrix(
            c=np.concatenate([excess, np.full(missed - cells, excess.max(initial=0.0)), self.pieces.surcharge, costs]),
            offset=0.0,
            a=csc_array((np.concatenate(self.values), np.concatenate(self.rows), ends), shape=(height, width)),
            row_lower=np.concatenate(
                [np.full(cells, -np.inf), np.ones(phases), [float(limit.least) for limit in self.limits]]
            ),
            row_upper=np.concatenate(
                [self.available, np.full(phases, np.inf), [float(limit.most) for limit in self.limits]]
            ),
            lower=np.zeros(width),
            upper=upper,
            integer=np.zeros(width, dtype=np.bool_),
            maximize=False,
            column_names=range(width),  # type: ignore[arg-type]
            row_names=range(height),  # type: ignore[arg-type]
        )
        start = None
        if self.basis is not None and Capability.LP_BASIS in self.solver.capabilities:
            known = len(self.basis.columns)
            start = self.basis.with_columns(matrix.lower[known:], matrix.upper[known:])
        result = solve_matrix(matrix, self.solver, SolveOptions(threads=1, presolve=False), start=start)
        if result.x is None or result.row_duals is None or result.objective is None:
            return np.inf, Multipliers(np.zeros(cells), np.zeros(len(self.limits))), np.zeros(len(costs)), True
        self.basis = result.basis
        return (
            float(result.objective),
            Multipliers(np.maximum(0.0, -result.row_duals[:cells]), -result.row_duals[cells + phases :]),
            result.x[dearer.stop :],
            bool(result.x[:missed].sum() > 1e-7),
        )
