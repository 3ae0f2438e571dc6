r"""The largest common factor of the demand that a pool can serve, exactly (paper section 5.4 scales demand by such a rule).

::

    max alpha   s.t.   sum T nu >= alpha T_m  for every model phase m,   capacity and side rows,   0 <= alpha <= 1

as one integer programme with one continuous column, the share 1 - alpha of *every* demand that is not served. Money counts
in limits only. The reductions that hold for the cost hold here: a dominating template needs no more and serves no less,
and clipping to T_m is lossless for every alpha <= 1.

Two bounds rule out columns. The linear relaxation's is alpha <= alpha_LP - rc for a column of reduced cost rc. The other
keeps the demand rows whole: at capacity and side prices (lambda, mu) >= 0 every allocation weighs at most what the rows
are worth, W(alpha), and at least what it takes to cover alpha T_m in every phase, D_m(alpha), by the covering knapsacks of
:mod:`coralopt.allocation.bounds.lagrangian` with weights lambda U + mu a. So alpha can be reached only if

    sum_m D_m(alpha) <= W(alpha),

and with a column of phase m of weight w only if sum_m' D_m'(alpha) - D_m(alpha) + w + D_m(alpha - T / T_m) <= W(alpha). What
cannot be in an allocation better than the best one known goes; the rest is one integer programme for any back end.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from coralopt.allocation.bounds.lagrangian import covering_table, scaled_share
from coralopt.allocation.bounds.relaxation import (
    SHORTFALL,
    Columns,
    Relaxation,
    least_common_shortfall,
    reduced_costs,
    restricted_matrix,
)
from coralopt.allocation.check import unmet_demand
from coralopt.allocation.explain import explain
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.search.part import TOLERANCE, eased_rows
from coralopt.allocation.side_constraints import rent_factor, row_terms, rows_worth, shortfall_worth
from coralopt.allocation.supply import segments
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.solving import Capability, SolveOptions, get_backend, heeded, require_backend, solve_matrix
from coralopt.types import Bools, Floats, Ints

#: Steps of the grid of the covering knapsacks.
GRID = 200_000


@dataclass(frozen=True)
class FactorLimits:
    """How much work the search for the largest factor may take.

    Attributes:
        first_columns: Columns of the first integer programme, which looks for a good allocation.
        most_columns: Columns of the last one, at most.
        first_nodes: Branch-and-bound nodes of the first one: a measure of work that does not depend on the clock.
        cheapest: Cheapest columns of every phase that go with all programmes: a small budget may allow no better ones.
    """

    first_columns: int = 600
    most_columns: int = 6_000
    first_nodes: int = 500
    cheapest: int = 8


@dataclass(frozen=True, eq=False)
class LargestFactor:
    """How much of every demand can be served.

    Attributes:
        factor: The factor that ``allocation`` serves, exactly; at most 1.
        bound: No allocation serves a larger one, proven.
        allocation: One that serves it, whatever it costs.
        demand: float64 (P,), tokens/s; the demand times the factor, rounded down so that ``allocation`` meets it.
        columns: Columns after the reductions.
        survivors: Columns that the last integer programme held.
        seconds: Wall time.
    """

    factor: Fraction
    bound: float
    allocation: Allocation
    demand: Floats
    columns: int
    survivors: int
    seconds: float

    @property
    def gap(self) -> float:
        """(bound - factor) / bound."""
        return (self.bound - float(self.factor)) / self.bound if self.bound > 0 else 0.0


def largest_factor(
    problem: AllocationProblem,
    solver: Any = "highs",
    options: SolveOptions | None = None,
    limits: FactorLimits = FactorLimits(),
) -> LargestFactor:
    """The largest alpha <= 1 such that alpha times every demand can be served within capacity and side rows.

    Args:
        problem: The problem; prices of unmet demand do not count.
        solver: Name of a MILP back end or a back end itself.
        options: ``rel_gap`` is the proven gap (bound - factor) / bound to stop at; ``time_limit`` (s) is for the whole call.
        limits: How much work the search may take.

    Raises:
        InfeasibleError: Nothing of some demand can be served, or the side rows cannot be met; carries an explanation.
        NoSolutionError: A limit passed before any allocation was found.
    """
    asked, started = options or SolveOptions(), time.perf_counter()
    backend = require_backend(solver)
    able = Capability.LP_DUALS in backend.capabilities and backend.probe().size_limit is None
    lp_solver = backend if able else get_backend("highs")
    whole = replace(problem, running=None, shortfall_price=None)
    reduced = reduce_problem(whole)
    small = reduced.problem
    priced = Columns.of(small)
    columns = priced.without_cost()
    deadline = math.inf if asked.time_limit is None else started + asked.time_limit
    relaxed = least_common_shortfall(small, columns, lp_solver)
    prices = reduced_costs(small, columns, relaxed.demand_duals, relaxed.capacity_prices, relaxed.side_prices)
    root = _relaxation_bound(small, columns, relaxed, prices)
    whole_rows = _Weights.of(small, columns, relaxed)
    bound = min(root, whole_rows.largest())
    if (relaxed.shortfall > SHORTFALL).any() or bound <= SHORTFALL:
        raise _nothing(problem, backend, asked)

    best: Allocation | None = None
    factor = Fraction(-1)
    # Everything but demand.
    idle = replace(small, demand=np.zeros_like(small.demand))

    def look(chosen: Ints, nodes: int | None, share: float) -> float:
        """Keep a better allocation of the chosen columns; a bound on the factor over these."""
        nonlocal best, factor
        left = deadline - time.perf_counter()
        goal = SolveOptions(
            rel_gap=0.0,
            abs_gap=max(1e-9, asked.rel_gap * float(max(factor, Fraction(0)) or bound) / 2),
            time_limit=None if math.isinf(left) else max(0.5, share * left),
            node_limit=nodes,
            threads=asked.threads,
            seed=asked.seed,
        )
        for margin in (0.0, 4 * TOLERANCE):
            eased = replace(small, rows=eased_rows(small.rows, -margin))
            matrix = restricted_matrix(eased, columns, chosen, None, True, common=True)
            result = heeded(solve_matrix(matrix, backend, goal))
            limit = math.inf if result.bound is None else 1.0 - result.bound
            if margin == 0.0:
                over = limit
            if result.x is None:
                break
            counts = np.rint(result.x[: len(chosen)]).astype(np.int64)
            used = np.flatnonzero(counts)
            found = Allocation.of(
                {
                    (int(columns.template[chosen[k]]), int(columns.region[chosen[k]])): int(counts[k])
                    for k in used.tolist()
                }
            )
            reached = _served_factor(small, found)
            if idle.check(found).feasible:
                if reached > factor:
                    best, factor = found, reached
                break
        return over

    order = np.argsort(prices, kind="stable")
    first = np.union1d(order[: limits.first_columns], np.flatnonzero(relaxed.x > 1e-9))
    first = np.union1d(first, _cheapest(small, priced, limits.cheapest))
    survivors = len(columns)
    if len(columns) > limits.first_columns:
        look(first, limits.first_nodes, 0.3)
    wanted = 2 * limits.first_columns
    while float(factor) < bound * (1 - asked.rel_gap):
        goal = float(max(factor, Fraction(0)))
        alive = (root - np.maximum(prices, 0.0) >= goal) & whole_rows.reachable(goal)
        survivors = int(alive.sum())
        chosen = np.flatnonzero(alive)
        if survivors <= limits.most_columns:
            bound = min(bound, max(look(chosen, None, 1.0), float(factor)))
            break
        if wanted > limits.most_columns or time.perf_counter() > deadline:
            break
        ranked = chosen[np.argsort(prices[chosen], kind="stable")[:wanted]]
        look(np.union1d(ranked, first), None if math.isfinite(deadline) else 10 * limits.first_nodes, 0.5)
        wanted *= 2
    if best is None:
        raise NoSolutionError(
            "no share of the demand was found to be servable within the limits; raise time_limit", None
        )
    if factor <= 0:
        # Nothing in hand is no proof that nothing exists; only the bound is.
        if bound <= max(SHORTFALL, asked.rel_gap):
            raise _nothing(problem, backend, asked)
        raise NoSolutionError(
            f"no share of every demand was found to be servable, nor proven that there is none (at most {bound:.4%}); "
            "raise time_limit, or ease a limit",
            None,
        )
    factor = min(factor, Fraction(1))
    allocation = reduced.restore(best)
    demand = np.array([_rounded_down(factor * Fraction(float(d))) for d in problem.demand])
    return LargestFactor(
        factor=factor,
        bound=min(1.0, max(bound, float(factor))),
        allocation=allocation,
        demand=demand,
        columns=len(columns),
        survivors=survivors,
        seconds=time.perf_counter() - started,
    )


def _cheapest(problem: AllocationProblem, columns: Columns, most: int) -> Ints:
    """Positions of the cheapest columns of every phase, by the cost of one instance."""
    phases = problem.phase[columns.template]
    order = np.argsort(columns.cost, kind="stable")
    return np.concatenate([order[phases[order] == p][:most] for p in range(len(problem.demand))])


def _nothing(problem: AllocationProblem, backend: Any, asked: SolveOptions) -> InfeasibleError:
    found = explain(replace(problem, shortfall_price=None), backend, asked)
    return InfeasibleError(f"no common share of the demands can be served\n{found}", found)


def _served_factor(problem: AllocationProblem, allocation: Allocation) -> Fraction:
    """Least share of a demand that an allocation serves, exactly."""
    items = [(t, r, n) for (t, r), n in allocation.to_mapping().items()]
    missing = unmet_demand(problem, items)
    shares = [1 - missing[p] / Fraction(float(d)) for p, d in enumerate(problem.demand) if d > 0]
    return min(shares, default=Fraction(1))


def _rounded_down(value: Fraction) -> float:
    found = float(value)
    return found if Fraction(found) <= value else math.nextafter(found, -math.inf)


def _relaxation_bound(problem: AllocationProblem, columns: Columns, relaxed: Relaxation, prices: Floats) -> float:
    """Largest factor by weak duality at the relaxation's prices."""
    side = relaxed.side_prices
    earned = float(relaxed.demand_duals @ problem.demand) + rows_worth(problem, side)
    paid = segments(problem).worth(relaxed.capacity_prices, rent_factor(problem, side) - 1)
    lost = float((np.minimum(prices, 0.0) * columns.upper).sum())
    lost += min(0.0, 1.0 - float((relaxed.demand_duals + shortfall_worth(problem, side)) @ problem.demand))
    return min(1.0, 1.0 - (earned - paid + lost) + 1e-9 * (1 + abs(earned) + paid - lost))


@dataclass(frozen=True, eq=False)
class _Weights:
    """The covering knapsacks of the module docstring at given prices."""

    worth: float
    per_factor: float
    size: float
    weight: Floats
    steps: Ints
    phase: Ints
    tables: dict[int, Floats]
    total: Floats

    @staticmethod
    def of(problem: AllocationProblem, columns: Columns, relaxed: Relaxation) -> _Weights:
        burden = problem.usage.astype(np.float64) @ relaxed.capacity_prices.T
        weight = burden[columns.template, columns.region]
        side = relaxed.side_prices
        terms = row_terms(problem, columns.template, columns.region, side)
        share = scaled_share(weight, terms)
        side, weight = share * side, np.maximum(weight + share * terms, 0.0)
        worth = segments(problem).worth(relaxed.capacity_prices, rent_factor(problem, side) - 1)
        per_factor = float(shortfall_worth(problem, side) @ problem.demand)
        # What the rows ask for at factor 0: those of tokens/s ask for nothing then.
        worth -= rows_worth(problem, side) - per_factor
        phase = problem.phase[columns.template].astype(np.int64)
        demand = np.where(problem.demand > 0, problem.demand, 1.0)
        steps = np.clip(np.ceil(problem.throughput[columns.template] / demand[phase] * GRID * (1 + 1e-12)), 1, GRID)
        tables = {}
        for p in np.flatnonzero(problem.demand > 0).tolist():
            mine = np.flatnonzero(phase == p)
            tables[p] = covering_table(steps[mine].astype(np.int64), weight[mine], GRID)
        total = sum(tables.values(), np.zeros(GRID + 1))
        size = float((relaxed.capacity_prices * problem.availability).sum()) + abs(worth) + per_factor
        return _Weights(worth, per_factor, size, weight, steps.astype(np.int64), phase, tables, total)

    def room(self, steps: Ints | int) -> Any:
        """What allocations of a factor above (steps - 1) / GRID may weigh, with a hair for rounding."""
        return self.worth - self.per_factor * (np.maximum(steps, 1) - 1) / GRID + 1e-9 * (1e-9 + self.size)

    def largest(self) -> float:
        """No allocation serves a larger factor."""
        fits = np.flatnonzero(self.total <= self.room(np.arange(GRID + 1)))
        return float(fits.max(initial=0)) / GRID

    def reachable(self, factor: float) -> Bools:
        """bool (N,): columns that an allocation of at least this factor may use."""
        steps = max(0, min(GRID, math.ceil(factor * GRID * (1 - 1e-12) - 1e-6)))
        least = np.full(len(self.weight), math.inf)
        for p, table in self.tables.items():
            mine = np.flatnonzero(self.phase == p)
            least[mine] = table[np.maximum(0, steps - self.steps[mine])] + self.weight[mine] - table[steps]
        return np.asarray(self.total[steps] + least <= self.room(steps))
