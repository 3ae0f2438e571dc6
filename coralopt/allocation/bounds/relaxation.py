"""The linear relaxation over all columns, by column generation with vectorised pricing.

Columns are (template, region) pairs at price (1 + K) p_r(tau) and, where instances run, kept ones at price p_r(tau). The
restricted linear programme starts with the cheapest columns per token and grows by the columns of negative reduced
cost until none is left; then its optimum is that of the whole relaxation. Demand rows carry a shortfall column, so that
the restricted programme always has a solution; shortfall left at the end means that no allocation meets the demand.
Side rows that ask for "least" have such a column, too. Where unmet demand has a price of its own, its column is a part of
the problem, and no shortfall in this sense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_rows, rent_factor, row_terms, rows_worth, shortfall_worth
from coralopt.allocation.supply import segments
from coralopt.errors import SolverError
from coralopt.solving import MilpMatrix, SolveOptions, solve_matrix
from coralopt.types import Bools, Floats, Ints

#: Share of a demand that counts as rounding of a linear programme rather than as shortfall.
SHORTFALL = 1e-6


@dataclass(frozen=True, eq=False)
class Columns:
    """All columns of the split formulation.

    Attributes:
        template: int64 (N,).
        region: int64 (N,).
        cost: float64 (N,), USD/h of one instance, the penalty included.
        upper: float64 (N,), running instances for a kept column, what the region's availability allows for a new one.
        kept: bool (N,).
        paid: Whether money counts; surcharges of supply classes are 0 otherwise.
    """

    template: Ints
    region: Ints
    cost: Floats
    upper: Floats
    kept: Bools
    paid: bool = True

    def __len__(self) -> int:
        return len(self.template)

    @staticmethod
    def of(problem: AllocationProblem) -> Columns:
        """The usable columns of a problem."""
        from coralopt.allocation.model.rows import usable

        template, region, rent, fresh = usable(problem)
        runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
        kept = np.flatnonzero(runs > 0)
        most = problem.most_instances()[template, region].astype(np.float64)
        return Columns(
            template=np.concatenate([template, template[kept]]),
            region=np.concatenate([region, region[kept]]),
            cost=np.concatenate([fresh, rent[kept]]),
            upper=np.concatenate([most, np.minimum(runs[kept].astype(np.float64), most[kept])]),
            kept=np.concatenate([np.zeros(len(template), dtype=np.bool_), np.ones(len(kept), dtype=np.bool_)]),
        )

    def without_cost(self) -> Columns:
        """The same columns, all for free: what is left to minimise is shortfall."""
        return replace(self, cost=np.zeros(len(self)), paid=False)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Optimum of the linear relaxation.

    Attributes:
        objective: USD/h; the shortfall's price not included.
        demand_duals: float64 (P,), USD/h for one more token/s, at least 0.
        capacity_prices: float64 (R, C), what one more node would save, USD/h, at least 0.
        side_prices: float64 (S,), USD/h by which one more unit of every side row's bound would help, at least 0.
        shortfall: float64 (P + L,), share of each demand, then of each "least" side row, that no fractional allocation can
            reach; 0 where unmet demand has a price.
        rounds: Restricted programmes solved.
        columns: Columns in the last of them.
        x: float64 (N,), value of every column.
    """

    objective: float
    demand_duals: Floats
    capacity_prices: Floats
    side_prices: Floats
    shortfall: Floats
    rounds: int
    columns: int
    x: Floats


def reduced_costs(
    problem: AllocationProblem,
    columns: Columns,
    demand_duals: Floats,
    capacity_prices: Floats,
    side_prices: Floats | None = None,
) -> Floats:
    """float64 (N,): cost + capacity and side rows used at their prices - demand served at its duals."""
    burden = problem.usage.astype(np.float64) @ capacity_prices.T
    worth = problem.throughput * demand_duals[problem.phase]
    total = columns.cost + burden[columns.template, columns.region] - worth[columns.template]
    if side_prices is not None and side_prices.any():
        total = total + row_terms(problem, columns.template, columns.region, side_prices)
    return np.asarray(total, dtype=np.float64)


def dual_bound(problem: AllocationProblem, columns: Columns, relaxation: Relaxation, prices: Floats) -> float:
    """USD/h that every allocation costs at least, by weak duality at the relaxation's prices.

    For demand duals y >= 0, capacity prices l >= 0 and side prices m >= 0:
    ``y d - l A -+ m b + sum_j min(0, rc_j) upper_j`` with the reduced cost of every column, so that the bound holds even
    where the column generation stopped early. Supply classes change what ``l A`` is, unmet demand is a column like any
    other with reduced cost price - y - m x and at most d.
    """
    side = relaxation.side_prices
    earned = float(relaxation.demand_duals @ problem.demand) + rows_worth(problem, side)
    paid = segments(problem).worth(relaxation.capacity_prices, rent_factor(problem, side))
    lost = float((np.minimum(prices, 0.0) * columns.upper).sum())
    over = relaxation.demand_duals + shortfall_worth(problem, side) - problem.unmet_price()
    for together, _ in problem.unmet_groups():
        lost -= max(0.0, float(over[list(together)] @ problem.demand[list(together)]))
    # Rounding of these sums must never lift the bound over a true cost.
    return earned - paid + lost - 1e-9 * (abs(earned) + paid - lost)


def solve_relaxation(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int = 400, most_rounds: int = 200
) -> Relaxation:
    """Solve the linear relaxation over all columns with any back end that gives LP duals.

    The price of shortfall cannot be known beforehand: under scarcity a token may cost more than any column charges for
    it. Where shortfall is left, :func:`least_shortfall` decides whether it must be; if it need not, its columns are
    enough to go on without any shortfall.

    Args:
        problem: The problem.
        columns: Its columns.
        solver: A back end with LP duals.
        batch: Columns of negative reduced cost added a round and model phase.
        most_rounds: Rounds after which the last dual is returned as it is (the bound made from it stays valid).
    """
    density = columns.cost / np.maximum(problem.throughput[columns.template], 1e-300)
    phase_of = problem.phase[columns.template]
    active = _cheapest(problem, columns, density, batch) | columns.kept
    dear = np.zeros(len(problem.demand))
    np.maximum.at(dear, phase_of, density)
    dear = 10.0 * (1.0 + dear) * np.where(problem.demand > 0, problem.demand, 1.0)
    # A missed side row must be as dear as the dearest demand, per share of it.
    weights = np.concatenate([dear, np.full(_least_rows(problem), float(dear.max(initial=1.0)))])
    found, active = _generate(problem, columns, weights, True, active, solver, batch, most_rounds)
    if (found.shortfall <= SHORTFALL).all():
        return found
    least, enough = _least_shortfall(problem, columns, solver, batch, most_rounds)
    if (least.shortfall > SHORTFALL).any():
        return least
    active |= enough
    return _generate(problem, columns, weights, False, active, solver, batch, most_rounds)[0]


def least_shortfall(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int = 400, most_rounds: int = 200
) -> Relaxation:
    """The relaxation that minimises the sum of the missing shares of demands and "least" side rows, whatever money costs.

    Demand whose shortfall has a price may stay unmet for free.
    """
    return _least_shortfall(problem, columns, solver, batch, most_rounds)[0]


def _least_shortfall(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int, most_rounds: int
) -> tuple[Relaxation, Bools]:
    nodes = problem.usage.sum(axis=1) / np.maximum(problem.throughput, 1e-300)
    active = _cheapest(problem, columns, nodes[columns.template], batch)
    weights = np.ones(len(problem.demand) + _least_rows(problem))
    return _generate(problem, columns.without_cost(), weights, True, active, solver, batch, most_rounds)


def least_common_shortfall(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int = 400, most_rounds: int = 200
) -> Relaxation:
    """The relaxation that minimises the one share of every demand that is not served; money counts in limits only.

    Its objective is that share. ``shortfall`` is above 0 where even then some side row is missed.
    """
    nodes = problem.usage.sum(axis=1) / np.maximum(problem.throughput, 1e-300)
    active = _cheapest(problem, columns, nodes[columns.template], batch)
    # All of every demand together misses a share of 1, so a side row that can be reached is.
    weights = np.full(len(problem.demand) + _least_rows(problem), 10.0)
    return _generate(problem, columns.without_cost(), weights, True, active, solver, batch, most_rounds, common=True)[0]


def _least_rows(problem: AllocationProblem) -> int:
    return sum(row.sense == "least" for row in open_rows(problem))


def _cheapest(problem: AllocationProblem, columns: Columns, density: Floats, batch: int) -> Bools:
    """The ``batch`` columns of least density of every model phase."""
    phase_of = problem.phase[columns.template]
    active = np.zeros(len(columns), dtype=np.bool_)
    for p in range(len(problem.demand)):
        mine = np.flatnonzero(phase_of == p)
        active[mine[np.argsort(density[mine], kind="stable")[:batch]]] = True
    return active


def _generate(
    problem: AllocationProblem,
    columns: Columns,
    weights: Floats,
    elastic: bool,
    active: Bools,
    solver: Any,
    batch: int,
    most_rounds: int,
    common: bool = False,
) -> tuple[Relaxation, Bools]:
    """Column generation from the active columns, and the columns active at its end."""
    regions, configurations = problem.price.shape
    phases, cells = len(problem.demand), problem.price.size
    phase_of = problem.phase[columns.template]
    scale = max(float(np.abs(columns.cost).max(initial=0.0)), float(weights.max(initial=0.0)) * 1e-3)
    tolerance = 1e-9 * scale
    active = active.copy()
    sign = np.array([row.sign for row in open_rows(problem)])
    for rounds in range(1, most_rounds + 1):
        chosen = np.flatnonzero(active)
        matrix = restricted_matrix(problem, columns, chosen, weights if elastic else None, common=common)
        result = solve_matrix(matrix, solver, SolveOptions(threads=1))
        if result.x is None or result.row_duals is None:
            raise SolverError(
                f"the linear relaxation could not be solved: {result.termination.reason.value} "
                f"({result.termination.raw}); try another solver"
            )
        capacity = np.maximum(0.0, -result.row_duals[:cells]).reshape(regions, configurations)
        demand = np.maximum(0.0, result.row_duals[cells : cells + phases])
        side = np.maximum(0.0, -sign * result.row_duals[cells + phases :])
        prices = reduced_costs(problem, columns, demand, capacity, side)
        prices[active] = 0.0
        fresh = []
        for p in range(phases):
            mine = np.flatnonzero((phase_of == p) & (prices < -tolerance))
            if len(mine) > batch:
                mine = mine[np.argsort(prices[mine], kind="stable")[:batch]]
            fresh.append(mine)
        added = np.concatenate(fresh)
        if not len(added) or rounds == most_rounds:
            x = np.zeros(len(columns))
            x[chosen] = result.x[: len(chosen)]
            shortfall = np.maximum(0.0, result.x[len(chosen) : len(chosen) + len(weights)]) / missing_units(problem)
            shortfall[:phases][np.isfinite(problem.unmet_price())] = 0.0
            return Relaxation(
                objective=result.objective - float(weights @ shortfall),
                demand_duals=demand,
                capacity_prices=capacity,
                side_prices=side,
                shortfall=shortfall,
                rounds=rounds,
                columns=len(chosen),
                x=x,
            ), active
        active[added] = True
    raise AssertionError("unreachable: the last round returns")


def missing_units(problem: AllocationProblem) -> Floats:
    """float64 (P + L,): the whole of every demand, then of every "least" side row: what a share of 1 stands for."""
    limits = [row.limit(problem) for row in open_rows(problem) if row.sense == "least"]
    units = np.concatenate([problem.demand, limits])
    return np.where(units > 0, units, 1.0)


def restricted_matrix(
    problem: AllocationProblem,
    columns: Columns,
    chosen: Ints,
    missing: Floats | None,
    integer: bool = False,
    common: bool = False,
) -> MilpMatrix:
    """The relaxation over the chosen columns; what is missing of demands and "least" side rows has columns of its own.

    Columns: the chosen ones; P + L for missing demand, then missing side rows; dearer supply; ``common`` if wanted.
    Rows: R * C capacities, P demands, side rows.

    Args:
        problem: The problem.
        columns: Its columns.
        chosen: int64 (k,), those that take part; they become columns 0..k-1.
        missing: float64 (P + L,), price of missing the whole of a demand or a "least" side row; ``None``: nothing may be
            missed. Unmet demand with a price of its own may be, at that price, in any case.
        integer: Whether the chosen columns take whole numbers only.
        common: Whether there is one more column, of cost 1: the share of *every* demand that is not served.
    """
    from scipy.sparse import csc_array, vstack

    _, regions, configurations, phases = problem.shape
    t, r = columns.template[chosen], columns.region[chosen]
    rows, pieces = open_rows(problem), segments(problem)
    instances, cells = len(chosen), regions * configurations
    least = [i for i, row in enumerate(rows) if row.sense == "least"]
    units = missing_units(problem)
    extra = instances + phases + len(least)
    count, shared = extra + len(pieces.cell) + common, phases if common else 0
    row, c = np.nonzero(problem.usage[t])
    capacity = csc_array(
        (
            np.concatenate([problem.usage[t][row, c].astype(np.float64), -np.ones(len(pieces.cell))]),
            (
                np.concatenate([r[row] * configurations + c, pieces.cell]),
                np.concatenate([row, extra + np.arange(len(pieces.cell))]),
            ),
        ),
        shape=(cells, count),
    )
    # One column a phase; where unmet demand has a price, the first phase of a group has the column of all of them.
    groups = () if common else problem.unmet_groups()
    price, priced = np.zeros(len(units)), np.zeros(len(units), dtype=np.bool_)
    leader = np.arange(phases)
    worth = np.ones(phases)
    for together, cost in groups:
        leader[list(together)], worth[list(together)] = together[0], problem.demand[list(together)]
        priced[list(together)], price[together[0]] = True, cost
    demand = csc_array(
        (
            np.concatenate([problem.throughput[t], worth, problem.demand[:shared]]),
            (
                np.concatenate([problem.phase[t], np.arange(phases), np.arange(shared)]),
                np.concatenate([np.arange(instances), instances + leader, np.full(shared, count - 1)]),
            ),
        ),
        shape=(phases, count),
    )
    side = np.zeros((len(rows), count))
    for i, item in enumerate(rows):
        side[i, :instances] = item.coefficients(problem, t, r)
        if item.sense == "least":
            side[i, instances + phases + least.index(i)] = 1.0
        if item.is_rent:
            inside = np.ones(len(pieces.cell), dtype=np.bool_)
            if item.regions is not None:
                inside = np.isin(pieces.cell // configurations, item.regions)
            side[i, extra : extra + len(pieces.cell)] = np.where(inside, pieces.surcharge, 0.0)
        if item.measure == "tokens_s" and item.phases is not None:
            side[i, instances + leader[item.phases[0]]] = item.bound * worth[item.phases[0]]
            if common:
                side[i, -1] = item.limit(problem)
    limit = np.array([item.limit(problem) for item in rows], dtype=np.float64)
    most = np.array([item.sense == "most" for item in rows], dtype=np.bool_)
    given = np.zeros(len(units)) if missing is None else missing
    return MilpMatrix(
        c=np.concatenate(
            [
                columns.cost[chosen],
                np.where(priced, price if columns.paid else 0.0, given / units),
                pieces.surcharge if columns.paid else np.zeros(len(pieces.cell)),
                np.ones(int(common)),
            ]
        ),
        offset=0.0,
        a=vstack([capacity, demand, csc_array(side)]).tocsc(),
        row_lower=np.concatenate([np.full(cells, -np.inf), problem.demand, np.where(most, -np.inf, limit)]),
        row_upper=np.concatenate(
            [pieces.first.ravel().astype(np.float64), np.full(phases, np.inf), np.where(most, limit, np.inf)]
        ),
        lower=np.zeros(count),
        # A new column's own capacity rows bound it; only kept ones need their running count.
        upper=np.concatenate(
            [
                np.where(columns.kept[chosen], columns.upper[chosen], np.inf),
                np.where(priced, np.inf, 0.0 if missing is None else np.inf),
                pieces.nodes.astype(np.float64),
                np.ones(int(common)),
            ]
        ),
        integer=np.arange(count) < (instances if integer else 0),
        maximize=False,
        column_names=[f"column[{k}]" for k in chosen]
        + [f"missing[{k}]" for k in range(len(units))]
        + [f"extra[{k}]" for k in range(len(pieces.cell))]
        + ["unserved_share"] * common,
        row_names=[f"capacity[{i},{j}]" for i in range(regions) for j in range(configurations)]
        + [f"demand[{p}]" for p in range(phases)]
        + [f"side[{i}]" for i in range(len(rows))],
    )
