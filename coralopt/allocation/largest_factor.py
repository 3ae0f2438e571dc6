r"""The largest common factor of the demand that a pool can serve, exactly (paper section 5.4 scales demand by such a rule).

::

    max alpha   s.t.   sum T nu >= alpha T_m  for every model phase m,   capacity and side constraints,   0 <= alpha <= 1

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

Where nothing but money binds, lambda is 0 and D_m(alpha) the least cost of each phase at share alpha: the coverings behind
the largest alpha that the inequality allows are an allocation, and the search ends with them. Where a budget binds beside
other rows, the share is bracketed by what shares cost (:mod:`coralopt.allocation.within_budget`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coralopt.allocation.bounds.knapsack import CoveringTable
from coralopt.allocation.bounds.lagrangian import grid_steps, scaled_share
from coralopt.allocation.bounds.relaxation import SHORTFALL, Relaxation, dual_bound, least_unserved_share, reduced_costs
from coralopt.allocation.check import unmet_demand
from coralopt.allocation.explain import explain
from coralopt.allocation.model.assembler import assemble
from coralopt.allocation.model.columns import Columns, joined
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import reduce_problem
from coralopt.allocation.search.part import TOLERANCE, eased_limits
from coralopt.allocation.search.upper_limits import rent_limit
from coralopt.allocation.side_constraints import SidePrices
from coralopt.allocation.within_budget import Bracket, narrow
from coralopt.errors import InfeasibleError, NoSolutionError, OptionError
from coralopt.solving import (
    Backend,
    Capability,
    Reason,
    SolveOptions,
    get_backend,
    heeded,
    require_backend,
    solve_matrix,
)
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
    solver: Backend | str = "highs",
    options: SolveOptions | None = None,
    limits: FactorLimits = FactorLimits(),
) -> LargestFactor:
    """The largest alpha <= 1 such that alpha times every demand can be served within capacity and side constraints.

    Args:
        problem: The problem; prices of unmet demand do not count.
        solver: Name of a MILP back end or a back end itself.
        options: ``rel_gap`` is the proven gap (bound - factor) / bound to stop at; ``time_limit`` (s) is for the whole call.
        limits: How much work the search may take.

    Raises:
        InfeasibleError: Nothing of some demand can be served, or the side constraints cannot be met; carries an explanation.
        NoSolutionError: A limit passed before any allocation was found.
        OptionError: Templates of several model phases, which the knapsacks of the bound do not know.
    """
    if len(problem.joint):
        raise OptionError("the largest factor is not known for templates that serve several model phases")
    options, started = options or SolveOptions(), time.perf_counter()
    backend = require_backend(solver)
    able = Capability.LP_DUALS in backend.capabilities and backend.probe().size_limit is None
    lp_solver = backend if able else get_backend("highs")
    whole = replace(problem.unstarted(), unmet_price=None)
    reduced = reduce_problem(whole)
    small = reduced.problem
    priced = Columns.of(small)
    columns = priced.without_cost()
    deadline = math.inf if options.time_limit is None else started + options.time_limit
    relaxation = least_unserved_share(small, columns, lp_solver)
    prices = reduced_costs(small, columns, relaxation.demand_duals, relaxation.capacity_prices, relaxation.side_prices)
    root = min(1.0, 1.0 - dual_bound(small, columns, relaxation, prices))
    knapsacks = _Weights.of(small, columns, relaxation)
    bound = min(root, knapsacks.largest())
    if (relaxation.shortfall > SHORTFALL).any() or bound <= SHORTFALL:
        raise _nothing(problem, backend, options)

    best: Allocation | None = None
    factor = Fraction(-1)
    broken: tuple[str, ...] = ()
    # Everything but demand.
    idle = replace(small, demand=np.zeros_like(small.demand), routes=())

    def keep(allocation: Allocation) -> bool:
        """Keep an allocation if it is the best one; whether it can be."""
        nonlocal best, factor, broken
        check = idle.check(allocation)
        if check.feasible and (reached := _served_factor(small, allocation)) > factor:
            best, factor = allocation, reached
        broken = check.sentences[:3] or broken
        return check.feasible

    def served_by(allocation: Allocation) -> float:
        """The share that an allocation serves, or -1 where it cannot be; the best one is kept."""
        return float(_served_factor(small, allocation)) if keep(allocation) else -1.0

    def search(chosen: Ints, nodes: int | None, share: float) -> float:
        """Keep a better allocation of the chosen columns; a bound on the factor over these."""
        left = deadline - time.perf_counter()
        goal = SolveOptions(
            rel_gap=0.0,
            abs_gap=max(1e-9, options.rel_gap * float(max(factor, Fraction(0)) or bound) / 2),
            time_limit=None if math.isinf(left) else max(0.5, share * left),
            node_limit=nodes,
            threads=options.threads,
            seed=options.seed,
        )
        for margin in (0.0, 4 * TOLERANCE):
            eased = replace(small, side_constraints=eased_limits(small.side_constraints, -margin))
            matrix = assemble(eased, columns, chosen, unserved="common")
            result = heeded(solve_matrix(matrix, backend, goal))
            limit = math.inf if result.bound is None else 1.0 - result.bound
            if result.termination.reason is Reason.INFEASIBLE:
                # Not even a share of 0: limits and what is asked for at least contradict each other.
                limit = 0.0
            if margin == 0.0:
                over = limit
            if result.x is None:
                break
            counts = np.rint(result.x[: len(chosen)]).astype(np.int64)
            allocation = columns.allocation(counts, chosen)
            if keep(allocation):
                break
        return over

    # Where money alone binds, the cheapest coverings of the largest share are an allocation of it.
    fits = math.floor(bound * GRID)
    for less in (0, *(2**k for k in range(fits.bit_length()))):
        counts = knapsacks.covering(fits - less) if less < fits else None
        if counts is not None and keep(columns.allocation(counts)):
            break
    budget = rent_limit(small)
    if budget is not None:
        bracket = Bracket(float(max(factor, Fraction(0))), bound)
        narrow(small, budget, bracket, served_by, backend, options, deadline)
        bound = bracket.bound
    order = np.argsort(prices, kind="stable")
    first = np.union1d(order[: limits.first_columns], np.flatnonzero(relaxation.x > 1e-9))
    first = joined([first, *priced.least(priced.cost, limits.cheapest)])
    survivors = len(columns)
    if len(columns) > limits.first_columns and float(factor) < bound * (1 - options.rel_gap):
        search(first, limits.first_nodes, 0.3)
    wanted = 2 * limits.first_columns
    while float(factor) < bound * (1 - options.rel_gap):
        goal = float(max(factor, Fraction(0)))
        alive = (root - np.maximum(prices, 0.0) >= goal) & knapsacks.reachable(goal)
        survivors = int(alive.sum())
        chosen = np.flatnonzero(alive)
        if survivors <= limits.most_columns:
            bound = min(bound, max(search(chosen, None, 1.0), float(factor)))
            break
        if wanted > limits.most_columns or time.perf_counter() > deadline:
            break
        ranked = chosen[np.argsort(prices[chosen], kind="stable")[:wanted]]
        search(np.union1d(ranked, first), None if math.isfinite(deadline) else 10 * limits.first_nodes, 0.5)
        wanted *= 2
    if best is None and bound <= SHORTFALL:
        raise _nothing(problem, backend, options)
    if best is None:
        raise NoSolutionError(
            "no share of the demand was found to be servable within the limits; raise time_limit", None
        )
    if factor <= 0:
        # Nothing in hand is no proof that nothing exists; only the bound is.
        if bound <= max(SHORTFALL, options.rel_gap):
            raise _nothing(problem, backend, options)
        raise NoSolutionError(
            f"no share of every demand was found to be servable, nor proven that there is none (at most {bound:.4%}); "
            + (f"the last one ruled out breaks {'; '.join(broken)}; " if broken else "")
            + "raise time_limit, or ease a limit",
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


def _nothing(problem: AllocationProblem, backend: Backend, options: SolveOptions) -> InfeasibleError:
    explanation = explain(replace(problem, unmet_price=None), backend, options)
    return InfeasibleError(f"no common share of the demands can be served\n{explanation}", explanation)


def _served_factor(problem: AllocationProblem, allocation: Allocation) -> Fraction:
    """Least share of a demand that an allocation serves, exactly."""
    items = [(t, r, n) for (t, r), n in allocation.to_mapping().items()]
    unmet = unmet_demand(problem, items)
    shares = [1 - unmet[p] / Fraction(float(d)) for p, d in enumerate(problem.demand) if d > 0]
    return min(shares, default=Fraction(1))


def _rounded_down(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


@dataclass(frozen=True, eq=False)
class _Weights:
    """The covering knapsacks of the module docstring at given prices."""

    worth: float
    per_factor: float
    size: float
    weight: Floats
    steps: Ints
    phase: Ints
    tables: dict[int, CoveringTable]
    total: Floats

    @staticmethod
    def of(problem: AllocationProblem, columns: Columns, relaxation: Relaxation) -> _Weights:
        burden = problem.usage.astype(np.float64) @ relaxation.capacity_prices.T
        weight = burden[columns.template, columns.region]
        side = SidePrices(problem, relaxation.side_prices)
        terms = side.terms(columns.template, columns.region, columns.kept)
        share = scaled_share(weight, terms)
        side, weight = SidePrices(problem, share * side.prices), np.maximum(weight + share * terms, 0.0)
        worth = problem.segments.worth(relaxation.capacity_prices, side.rent_factor() - 1)
        per_factor = float(side.unmet_worth() @ problem.demand)
        # What the side constraints ask for at factor 0: those of tokens/s ask for nothing then.
        worth -= side.worth() - per_factor
        steps = grid_steps(problem.throughput[columns.template], problem.demand[columns.phase], GRID)
        tables = dict[int, CoveringTable]()
        for p in problem.needed_phases():
            mine = np.flatnonzero(columns.phase == p)
            tables[p] = CoveringTable.of(steps[mine], weight[mine], GRID)
        total = sum((table.least for table in tables.values()), np.zeros(GRID + 1))
        size = float((relaxation.capacity_prices * problem.availability).sum()) + abs(worth) + per_factor
        return _Weights(worth, per_factor, size, weight, steps, columns.phase, tables, total)

    def room(self, steps: Ints) -> Floats:
        """What allocations of a factor above (steps - 1) / GRID may weigh, with a hair for rounding."""
        room: Floats = self.worth - self.per_factor * (np.maximum(steps, 1) - 1) / GRID + 1e-9 * (1e-9 + self.size)
        return room

    def largest(self) -> float:
        """No allocation serves a larger factor."""
        fits = np.flatnonzero(self.total <= self.room(np.arange(GRID + 1)))
        return float(fits.max(initial=0)) / GRID

    def covering(self, steps: int) -> Ints | None:
        """int64 (N,): how many of each column the lightest coverings of so many steps take; ``None`` if there is none."""
        counts = np.zeros(len(self.weight), dtype=np.int64)
        for p, table in self.tables.items():
            if np.isinf(table.least[steps]):
                return None
            np.add.at(counts, np.flatnonzero(self.phase == p)[table.members(steps)], 1)
        return counts

    def reachable(self, factor: float) -> Bools:
        """bool (N,): columns that an allocation of at least this factor may use."""
        steps = max(0, min(GRID, math.ceil(factor * GRID * (1 - 1e-12) - 1e-6)))
        # A phase that requests may go around may need no instance at all.
        least = self.weight.copy()
        for p, table in self.tables.items():
            mine = np.flatnonzero(self.phase == p)
            least[mine] = table.least[np.maximum(0, steps - self.steps[mine])] + self.weight[mine] - table.least[steps]
        return np.asarray(self.total[steps] + least <= self.room(np.array(steps)))
