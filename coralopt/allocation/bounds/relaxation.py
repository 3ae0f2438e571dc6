"""The linear relaxation over all columns, by column generation with vectorised pricing.

Columns are (template, region) pairs at price (1 + K) p_r(tau) and, where instances run, kept ones at price p_r(tau). The
restricted linear programme starts with the cheapest columns per token and grows by the columns of negative reduced
cost until none is left; then its optimum is that of the whole relaxation. Demand rows carry an elastic slack, so that
the restricted programme always has a solution; *shortfall*, slack left at the end, means that no allocation meets the
demand. Side constraints that ask for "least" have such a slack, too. Unmet demand with a price of its own is a part of
the problem, and no shortfall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coralopt.allocation.model.assembler import assemble, pool_units, shortfall_units
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import SidePrices, open_constraints
from coralopt.errors import SolverError
from coralopt.solving import Backend, MatrixResult, MilpMatrix, SolveOptions, heeded, solve_matrix
from coralopt.types import Bools, Floats

#: Share of a demand that counts as rounding of a linear programme rather than as shortfall.
SHORTFALL = 1e-6
#: Columns of negative reduced cost added a round and model phase.
BATCH = 400
#: Rounds after which the last dual is returned as it is (the bound made from it stays valid).
MOST_ROUNDS = 200


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Optimum of the linear relaxation.

    Attributes:
        objective: USD/h; the price of shortfall not included.
        demand_duals: float64 (Q,), USD/h for one more token/s of a pool, at least 0.
        route_duals: float64 (G,), USD/h for the requests of a model with routes, at least 0.
        capacity_prices: float64 (R, C), what one more node would save, USD/h, at least 0.
        mean_prices: float64 (M,), USD/h for one more unit of every mean, at least 0.
        side_prices: float64 (S,), USD/h by which one more unit of every side constraint's bound would help, at least 0.
        shortfall: float64 (Q + L,), share of the demand behind each pool, then of each "least" side constraint, that no
            fractional allocation can reach; 0 where unmet demand has a price.
        x: float64 (N,), value of every column.
    """

    objective: float
    demand_duals: Floats
    route_duals: Floats
    capacity_prices: Floats
    side_prices: Floats
    mean_prices: Floats
    shortfall: Floats
    x: Floats


def reduced_costs(
    problem: AllocationProblem,
    columns: Columns,
    demand_duals: Floats,
    capacity_prices: Floats,
    side_prices: Floats | None = None,
) -> Floats:
    """float64 (N,): cost + capacity and side constraints used at their prices - demand served at its duals."""
    burden = problem.usage.astype(np.float64) @ capacity_prices.T
    served = columns.served
    each = served.tokens_s * demand_duals[served.pool]
    worth = np.bincount(served.column, each, minlength=len(columns))
    if problem.joint.divided:
        # All of its time goes where it is worth most.
        worth[:] = 0.0
        np.maximum.at(worth, served.column, each)
    total = columns.cost + burden[columns.template, columns.region] - worth
    if side_prices is not None and side_prices.any():
        total = total + SidePrices(problem, side_prices).terms(columns.template, columns.region, columns.kept)
    return np.asarray(total, dtype=np.float64)


def dual_bound(problem: AllocationProblem, columns: Columns, relaxation: Relaxation, prices: Floats) -> float:
    """USD/h that every allocation costs at least, by weak duality at the relaxation's prices.

    For demand duals y >= 0, capacity prices l >= 0 and side prices m >= 0:
    ``y d - l A -+ m b + sum_j min(0, rc_j) upper_j`` with the reduced cost of every column, so that the bound holds even
    where the column generation stopped early. Supply classes change what ``l A`` is, unmet demand is a column like any
    other with reduced cost price - y - m x and at most d. Where money does not count, it is a bound on the share
    of every demand that goes unserved, itself a column with reduced cost 1 - (y + m x) d and at most 1. Routes are columns
    too: with the dual t of their model's row and w of its means the reduced cost is usd_h + sum y d - t - sum w (v - V), at
    most 1 of each.
    """
    side = SidePrices(problem, relaxation.side_prices)
    pools = problem.pools
    earned = float(relaxation.demand_duals @ pools.need) + float(relaxation.route_duals.sum()) + side.worth()
    paid = problem.segments.worth(relaxation.capacity_prices, side.rent_factor() - (not columns.paid))
    lost = float((np.minimum(prices, 0.0) * columns.upper).sum())
    # What it is worth, USD/h, not to serve all of a phase; of phases with routes in one sum at the first of them.
    worth = side.unmet_worth() * problem.demand
    np.add.at(worth, pools.phase, relaxation.demand_duals * pools.need)
    prices_of_means = iter(relaxation.mean_prices.tolist())
    for model, dual in zip(problem.routes, relaxation.route_duals.tolist(), strict=True):
        worth[model.phases[0]] += dual
        met = np.zeros(len(model.routes))
        for mean in model.means:
            met += next(prices_of_means) * np.array(mean.terms(), dtype=np.float64)
        for route, reached in zip(model.routes, met.tolist(), strict=True):
            used = sum(relaxation.demand_duals[pools.at(pool)] * problem.demand[pool[0]] for pool in route.pools)
            lost += min(0.0, route.usd_h * columns.paid + float(used) - dual - reached)
    if columns.paid:
        for together, price, most in problem.unmet_groups():
            lost -= most * max(0.0, float(worth[list(together)].sum()) - price)
    else:
        lost += min(0.0, 1.0 - float(worth.sum()))
    # Rounding of these sums must never lift the bound over a true cost.
    return earned - paid + lost - 1e-9 * ((not columns.paid) + abs(earned) + paid - lost)


def solve_relaxation(
    problem: AllocationProblem, columns: Columns, solver: Backend | str, active: Bools | None = None
) -> Relaxation:
    """Solve the linear relaxation over all columns with any back end that gives LP duals.

    ``active``, bool (N,), says with which columns it begins; by default with the cheapest ones a token.

    The price of shortfall cannot be known beforehand: under scarcity a token may cost more than any column charges for
    it. Where shortfall is left, :func:`least_shortfall` decides whether it must be; if it need not, its columns are
    enough to go on without any shortfall.
    """
    served = columns.served
    if active is None:
        active = _cheapest(columns, columns.cost / np.maximum(problem.throughput[columns.template], 1e-300))
    active = active | columns.kept
    dear = np.zeros(len(problem.demand))
    some = served.tokens_s > 0
    np.maximum.at(dear, served.phase[some], columns.cost[served.column[some]] / served.tokens_s[some])
    dear = 10.0 * (1.0 + dear) * np.where(problem.demand > 0, problem.demand, 1.0)
    for model in problem.routes:
        # Missing capacity must be dearer than any way around it.
        dear[list(model.phases)] += 10.0 * max(route.usd_h for route in model.routes)
    dear = dear[problem.pools.phase]
    # A missed side constraint must be as dear as the dearest demand, per share of it.
    weights = np.concatenate([dear, np.full(_least_constraints(problem), float(dear.max(initial=1.0)))])
    generation = _Generation(problem, columns, solver, weights)
    relaxation = generation.run(active)
    if (relaxation.shortfall <= SHORTFALL).all():
        return relaxation
    least, enough = _least_shortfall(problem, columns, solver)
    if (least.shortfall > SHORTFALL).any():
        return least
    return _Generation(problem, columns, solver, weights, elastic=False).run(generation.active | enough)


def least_shortfall(problem: AllocationProblem, columns: Columns, solver: Backend | str) -> Relaxation:
    """The relaxation that minimises the sum of the missing shares of demands and "least" side constraints, for free.

    Demand that may go unmet at a price does so for free, too.
    """
    return _least_shortfall(problem, columns, solver)[0]


def least_unserved_share(problem: AllocationProblem, columns: Columns, solver: Backend | str) -> Relaxation:
    """The relaxation that minimises the one share of every demand that is not served; money counts in limits only.

    Its objective is that share. ``shortfall`` is above 0 where even then some side constraint is missed.
    """
    # All of every demand together misses a share of 1, so a side constraint that can be reached is.
    weights = np.full(len(problem.pools) + _least_constraints(problem), 10.0)
    generation = _Generation(problem, columns.without_cost(), solver, weights, unserved="common")
    return generation.run(_cheapest(columns, _nodes_per_token(problem)[columns.template]))


def _least_shortfall(problem: AllocationProblem, columns: Columns, solver: Backend | str) -> tuple[Relaxation, Bools]:
    weights = np.ones(len(problem.pools) + _least_constraints(problem))
    generation = _Generation(problem, columns.without_cost(), solver, weights)
    relaxation = generation.run(_cheapest(columns, _nodes_per_token(problem)[columns.template]))
    return relaxation, generation.active


def _nodes_per_token(problem: AllocationProblem) -> Floats:
    density: Floats = problem.usage.sum(axis=1) / np.maximum(problem.throughput, 1e-300)
    return density


def _least_constraints(problem: AllocationProblem) -> int:
    return sum(item.sense == "least" for item in open_constraints(problem))


def _cheapest(columns: Columns, density: Floats) -> Bools:
    """The ``BATCH`` columns of least density of every model phase."""
    active = np.zeros(len(columns), dtype=np.bool_)
    for nearest in columns.least(density, BATCH):
        active[nearest] = True
    return active


@dataclass(eq=False)
class _Generation:
    """Column generation, and the columns active at its end."""

    problem: AllocationProblem
    columns: Columns
    solver: Backend | str
    weights: Floats
    elastic: bool = True
    unserved: Literal["by group", "common"] = "by group"

    def run(self, active: Bools) -> Relaxation:
        """The optimum, from these columns on."""
        problem, columns, weights = self.problem, self.columns, self.weights
        cells = problem.price.size
        pools = cells + len(problem.pools)
        models = pools + len(problem.routes)
        scale = max(float(np.abs(columns.cost).max(initial=0.0)), float(weights.max(initial=0.0)) * 1e-3)
        sign = np.array([item.sign for item in open_constraints(problem)])
        slack = weights if self.elastic else None
        self.active = active = active.copy()
        for rounds in range(1, MOST_ROUNDS + 1):
            chosen = np.flatnonzero(active)
            matrix = assemble(problem, columns, chosen, integer=False, slack=slack, unserved=self.unserved)
            result = _solved(matrix, self.solver)
            assert result.row_duals is not None
            capacity = np.maximum(0.0, -result.row_duals[:cells]).reshape(problem.price.shape)
            demand = np.maximum(0.0, result.row_duals[cells:pools]) / pool_units(problem)
            routes = np.maximum(0.0, result.row_duals[pools:models])
            side = np.maximum(0.0, -sign * result.row_duals[models : models + len(sign)])
            means = np.maximum(0.0, result.row_duals[models + len(sign) :][: sum(len(m.means) for m in problem.routes)])
            prices = reduced_costs(problem, columns, demand, capacity, side)
            prices[active] = 0.0
            added = columns.least(prices, BATCH, prices < -1e-9 * scale)
            if not any(map(len, added)) or rounds == MOST_ROUNDS:
                break
            active[np.concatenate(added)] = True
        assert result.x is not None
        x = np.zeros(len(columns))
        x[chosen] = result.x[: len(chosen)]
        shortfall = np.zeros(len(weights))
        if self.elastic:
            shortfall = np.maximum(0.0, result.x[-len(weights) :]) / shortfall_units(problem)
        return Relaxation(
            objective=result.objective - float(weights @ shortfall),
            demand_duals=demand,
            route_duals=routes,
            capacity_prices=capacity,
            side_prices=side,
            mean_prices=means,
            shortfall=shortfall,
            x=x,
        )


def _solved(matrix: MilpMatrix, solver: Backend | str) -> MatrixResult:
    """The optimum of a relaxation, which always has one: where a solver errs, HiGHS answers.

    SCIP 10 calls one infeasible whose figures are eleven orders of magnitude apart, and gives up another.

    Raises:
        SolverError: HiGHS has none either.
    """
    for name in (solver, "highs"):
        try:
            result = heeded(solve_matrix(matrix, name, SolveOptions(threads=1)))
        except SolverError as error:
            # Wrong answers and licences that are too small are told, not covered up.
            if name == "highs" or type(error) is not SolverError:
                raise
            continue
        if result.x is not None and result.row_duals is not None:
            return result
    raise SolverError(
        f"the linear relaxation could not be solved: {result.termination.reason.value} ({result.termination.raw})"
    )
