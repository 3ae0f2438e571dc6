"""The linear relaxation over all columns, by column generation with vectorised pricing.

Columns are (template, region) pairs at price (1 + K) p_r(tau) and, where instances run, kept ones at price p_r(tau). The
restricted linear programme starts with the cheapest columns per token and grows by the columns of negative reduced
cost until none is left; then its optimum is that of the whole relaxation. Demand rows carry a shortfall column, so that
the restricted programme always has a solution; shortfall left at the end means that no allocation meets the demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem
from coralopt.solving import MilpMatrix, SolveOptions, solve_matrix

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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


def solve_relaxation(
    problem: AllocationProblem, columns: Columns, solver: Any, batch: int = 400, most_rounds: int = 200
) -> Relaxation:
    """Solve the linear relaxation over all columns with any back end that gives LP duals.

    Args:
        problem: The problem.
        columns: Its columns.
        solver: A back end with LP duals.
        batch: Columns of negative reduced cost added a round and model phase.
        most_rounds: Rounds after which the last dual is returned as it is (the bound made from it stays valid).
    """
    phases = len(problem.demand)
    density = columns.cost / np.maximum(problem.throughput[columns.template], 1e-300)
    phase_of = problem.phase[columns.template]
    active = np.zeros(len(columns), dtype=np.bool_)
    for p in range(phases):
        mine = np.flatnonzero(phase_of == p)
        active[mine[np.argsort(density[mine], kind="stable")[:batch]]] = True
    active |= columns.kept
    # No cheapest way to serve a token costs more than the dearest column does a token.
    finite = density[np.isfinite(density)]
    big = 100.0 * (1.0 + float(finite.max(initial=0.0))) * np.ones(phases)
    for rounds in range(1, most_rounds + 1):
        chosen = np.flatnonzero(active)
        result = solve_matrix(_restricted(problem, columns, chosen, big), solver, SolveOptions(threads=1))
        assert result.x is not None
        assert result.row_duals is not None
        regions, configurations = problem.price.shape
        capacity = np.maximum(0.0, -result.row_duals[: regions * configurations]).reshape(regions, configurations)
        demand = np.maximum(0.0, result.row_duals[regions * configurations :])
        prices = reduced_costs(problem, columns, demand, capacity)
        prices[active] = 0.0
        fresh = []
        tolerance = 1e-9 * (1.0 + float(np.abs(columns.cost).max(initial=0.0)))
        for p in range(phases):
            mine = np.flatnonzero((phase_of == p) & (prices < -tolerance))
            if len(mine) > batch:
                mine = mine[np.argsort(prices[mine], kind="stable")[:batch]]
            fresh.append(mine)
        added = np.concatenate(fresh) if fresh else np.zeros(0, dtype=np.int64)
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
            )
        active[added] = True
    raise AssertionError("unreachable: the last round returns")


def _restricted(problem: AllocationProblem, columns: Columns, chosen: Ints, big: Floats) -> MilpMatrix:
    """The relaxation over the chosen columns, with one shortfall column a model phase at price ``big``."""
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
        c=np.concatenate([columns.cost[chosen], big]),
        offset=0.0,
        a=vstack([capacity, demand]).tocsc(),
        row_lower=np.concatenate([np.full(regions * configurations, -np.inf), problem.demand]),
        row_upper=np.concatenate([problem.availability.ravel().astype(np.float64), np.full(phases, np.inf)]),
        lower=np.zeros(count),
        # A new column's own capacity rows bound it; only kept ones need their running count.
        upper=np.concatenate([np.where(columns.kept[chosen], columns.upper[chosen], np.inf), np.full(phases, np.inf)]),
        integer=np.zeros(count, dtype=np.bool_),
        maximize=False,
        column_names=[f"column[{k}]" for k in chosen] + [f"shortfall[{p}]" for p in range(phases)],
        row_names=[f"capacity[{i},{j}]" for i in range(regions) for j in range(configurations)]
        + [f"demand[{p}]" for p in range(phases)],
    )
