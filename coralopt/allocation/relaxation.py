"""The linear relaxation over all columns, by column generation with vectorised pricing.

Columns are (template, region) pairs at price (1 + K) p_r(tau) and, where instances run, kept ones at price p_r(tau). The
restricted linear programme starts with the cheapest columns per token and grows by the columns of negative reduced
cost until none is left; then its optimum is that of the whole relaxation. Demand rows carry a shortfall column, so that
the restricted programme always has a solution; shortfall left at the end means that no allocation meets the demand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem
from coralopt.errors import SolverError
from coralopt.solving import MilpMatrix, SolveOptions, solve_matrix

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
    """

    template: Ints
    region: Ints
    cost: Floats
    upper: Floats
    kept: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.template)

    @staticmethod
    def of(problem: AllocationProblem) -> Columns:
        """The usable columns of a problem."""
        from coralopt.allocation.formulations.rows import usable

        template, region, price = usable(problem)
        runs = np.zeros(len(template), dtype=np.int64) if problem.running is None else problem.running[template, region]
        kept = np.flatnonzero(runs > 0)
        most = problem.most_instances()[template, region].astype(np.float64)
        return Columns(
            template=np.concatenate([template, template[kept]]),
            region=np.concatenate([region, region[kept]]),
            cost=np.concatenate([(1 + problem.penalty) * price, price[kept]]),
            upper=np.concatenate([most, np.minimum(runs[kept].astype(np.float64), most[kept])]),
            kept=np.concatenate([np.zeros(len(template), dtype=np.bool_), np.ones(len(kept), dtype=np.bool_)]),
        )

    def without_cost(self) -> Columns:
        """The same columns, all for free: what is left to minimise is shortfall."""
        return replace(self, cost=np.zeros(len(self)))


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Optimum of the linear relaxation.

    Attributes:
        objective: USD/h; the shortfall's price not included.
        demand_duals: float64 (P,), USD/h for one more token/s, at least 0.
        capacity_prices: float64 (R, C), what one more node would save, USD/h, at least 0.
        shortfall: float64 (P,), tokens/s that no fractional allocation can serve.
        rounds: Restricted programmes solved.
        columns: Columns in the last of them.
        x: float64 (N,), value of every column.
    """

    objective: float
    demand_duals: Floats
    capacity_prices: Floats
    shortfall: Floats
    rounds: int
    columns: int
    x: Floats


def reduced_costs(
    problem: AllocationProblem, columns: Columns, demand_duals: Floats, capacity_prices: Floats
) -> Floats:
    """float64 (N,): cost + capacity used at its prices - demand served at its duals."""
    burden = problem.usage.astype(np.float64) @ capacity_prices.T
    worth = problem.throughput * demand_duals[problem.phase]
    return np.asarray(
        columns.cost + burden[columns.template, columns.region] - worth[columns.template], dtype=np.float64
    )


def dual_bound(problem: AllocationProblem, columns: Columns, relaxation: Relaxation, prices: Floats) -> float:
    """USD/h that every allocation costs at least, by weak duality at the relaxation's prices.

    For demand duals y >= 0 and capacity prices l >= 0: ``y d - l A + sum_j min(0, rc_j) upper_j`` with the reduced cost
    of every column, so that the bound holds even where the column generation stopped early.
    """
    earned = float(relaxation.demand_duals @ problem.demand)
    paid = float((relaxation.capacity_prices * problem.availability).sum())
    lost = float((np.minimum(prices, 0.0) * columns.upper).sum())
    # Rounding of these sums must never lift the bound over a true cost.
    return earned - paid + lost - 1e-9 * (earned + paid - lost)


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
    dear = 10.0 * (1.0 + dear)
    found, active = _generate(problem, columns, dear, np.inf, active, solver, batch, most_rounds)
    if (found.shortfall <= SHORTFALL * problem.demand).all():
        return found
    least, enough = _least_shortfall(problem, columns, solver, batch, most_rounds)
    if (least.shortfall > SHORTFALL * problem.demand).any():
        return least
    active |= enough
    return _generate(problem, columns, dear, 0.0, active, solver, batch, most_rounds)[0]


def least_shortfall(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int = 400, most_rounds: int = 200
) -> Relaxation:
    """The relaxation that minimises the sum of the unserved shares of the demands and asks for no money."""
    return _least_shortfall(problem, columns, solver, batch, most_rounds)[0]


def _least_shortfall(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int, most_rounds: int
) -> tuple[Relaxation, npt.NDArray[np.bool_]]:
    nodes = problem.usage.sum(axis=1) / np.maximum(problem.throughput, 1e-300)
    active = _cheapest(problem, columns, nodes[columns.template], batch)
    share = 1.0 / np.where(problem.demand > 0, problem.demand, 1.0)
    return _generate(problem, columns.without_cost(), share, np.inf, active, solver, batch, most_rounds)


def _cheapest(problem: AllocationProblem, columns: Columns, density: Floats, batch: int) -> npt.NDArray[np.bool_]:
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
    shortfall_price: Floats,
    most_shortfall: float,
    active: npt.NDArray[np.bool_],
    solver: Any,
    batch: int,
    most_rounds: int,
) -> tuple[Relaxation, npt.NDArray[np.bool_]]:
    """Column generation from the active columns, and the columns active at its end."""
    regions, configurations = problem.price.shape
    phases = len(problem.demand)
    phase_of = problem.phase[columns.template]
    scale = max(
        float(np.abs(columns.cost).max(initial=0.0)), float((shortfall_price * problem.demand).max(initial=0.0)) * 1e-3
    )
    tolerance = 1e-9 * scale
    active = active.copy()
    for rounds in range(1, most_rounds + 1):
        chosen = np.flatnonzero(active)
        matrix = restricted_matrix(problem, columns, chosen, shortfall_price, most_shortfall)
        result = solve_matrix(matrix, solver, SolveOptions(threads=1))
        if result.x is None or result.row_duals is None:
            raise SolverError(
                f"the linear relaxation could not be solved: {result.termination.reason.value} "
                f"({result.termination.raw}); try another solver"
            )
        capacity = np.maximum(0.0, -result.row_duals[: regions * configurations]).reshape(regions, configurations)
        demand = np.maximum(0.0, result.row_duals[regions * configurations :])
        prices = reduced_costs(problem, columns, demand, capacity)
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
            return Relaxation(
                objective=float(columns.cost @ x),
                demand_duals=demand,
                capacity_prices=capacity,
                shortfall=np.maximum(0.0, result.x[len(chosen) :]),
                rounds=rounds,
                columns=len(chosen),
                x=x,
            ), active
        active[added] = True
    raise AssertionError("unreachable: the last round returns")


def restricted_matrix(
    problem: AllocationProblem,
    columns: Columns,
    chosen: Ints,
    shortfall_price: Floats,
    most_shortfall: float,
    integer: bool = False,
) -> MilpMatrix:
    """The relaxation over the chosen columns, with one shortfall column a model phase.

    Args:
        problem: The problem.
        columns: Its columns.
        chosen: int64 (k,), those that take part; they become columns 0..k-1.
        shortfall_price: float64 (P,), USD/h for one token/s that is not served.
        most_shortfall: tokens/s; 0 for a relaxation without any.
        integer: Whether the chosen columns take whole numbers only.
    """
    from scipy.sparse import csc_array, vstack

    _, regions, configurations, phases = problem.shape
    t, r = columns.template[chosen], columns.region[chosen]
    count = len(chosen) + phases
    row, c = np.nonzero(problem.usage[t])
    capacity = csc_array(
        (problem.usage[t][row, c].astype(np.float64), (r[row] * configurations + c, row)),
        shape=(regions * configurations, count),
    )
    demand = csc_array(
        (
            np.concatenate([problem.throughput[t], np.ones(phases)]),
            (np.concatenate([problem.phase[t], np.arange(phases)]), np.arange(count)),
        ),
        shape=(phases, count),
    )
    return MilpMatrix(
        c=np.concatenate([columns.cost[chosen], shortfall_price]),
        offset=0.0,
        a=vstack([capacity, demand]).tocsc(),
        row_lower=np.concatenate([np.full(regions * configurations, -np.inf), problem.demand]),
        row_upper=np.concatenate([problem.availability.ravel().astype(np.float64), np.full(phases, np.inf)]),
        lower=np.zeros(count),
        # A new column's own capacity rows bound it; only kept ones need their running count.
        upper=np.concatenate(
            [np.where(columns.kept[chosen], columns.upper[chosen], np.inf), np.full(phases, most_shortfall)]
        ),
        integer=np.arange(count) < (len(chosen) if integer else 0),
        maximize=False,
        column_names=[f"column[{k}]" for k in chosen] + [f"shortfall[{p}]" for p in range(phases)],
        row_names=[f"capacity[{i},{j}]" for i in range(regions) for j in range(configurations)]
        + [f"demand[{p}]" for p in range(phases)],
    )
