"""Allocation instances at full scale, from the project's own libraries and from seeds.

The paper scales availability to "25 % above estimated demand" (core) and "75 % above" (extended), section 5.4, and does not
say how it estimates demand. Here: a pool has a *shape*, the share of every (region, configuration) in it; the estimated
demand is the smallest pool of that shape over which the linear relaxation can serve every model phase. It is the demand in
nodes that no allocation can undercut, and does not depend on prices. ``scarce`` is that pool times 1.25 or 1.75, in whole
nodes; ``ample`` is ten times that pool. Nodes are rounded to the nearest whole number, and up where that leaves a pool
that no whole instances can be served from.

Shapes come from seeds: GPUs of a type are log-normally scarce in a region (sigma 0.6, about what six GPU types of a
production trace show), and split evenly, by GPUs, over the node sizes on offer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from coralopt.allocation import Allocation, AllocationProblem
from coralopt.allocation.model.columns import Columns
from coralopt.allocation.reductions import reduce_problem
from coralopt.planning import allocation_problem
from coralopt.scenario import load_scenario
from coralopt.solving import MilpMatrix, SolveOptions, solve_matrix
from coralopt.templates import TemplateLibrary, obtain_library
from coralopt.types import Floats

#: Pool over estimated demand under scarce supply, by scenario (paper section 5.4).
SCARCE = {"core": 1.25, "extended": 1.75}
#: The same with ample supply.
AMPLE = 10.0


def base_problem(name: str, cache: Path) -> tuple[AllocationProblem, TemplateLibrary]:
    """The built-in scenario's allocation problem and library; the library is kept in ``cache``."""
    scenario = load_scenario(name)
    library, _ = obtain_library(scenario, cache / f"{name}.parquet")
    return allocation_problem(scenario, library), library


def shape(problem: AllocationProblem, seed: int) -> Floats:
    """float64 (R, C): nodes of each kind in a pool of unit size; 0 where the scenario offers none."""
    rng = np.random.default_rng(seed)
    kinds = [name.split("x", 1) for name in problem.configuration_names]
    types = sorted({gpu for _, gpu in kinds})
    supply = np.exp(rng.normal(0.0, 0.6, (len(problem.region_names), len(types))))
    gpus = supply[:, [types.index(gpu) for _, gpu in kinds]]
    nodes = gpus / np.array([float(count) for count, _ in kinds])
    return np.where(problem.availability > 0, nodes, 0.0)


def estimated_demand(problem: AllocationProblem, pool: Floats) -> float:
    """The smallest factor on ``pool`` with which the linear relaxation can serve every demand, by column generation."""
    from scipy.sparse import csc_array, hstack, vstack

    plenty = np.where(pool > 0, 10**6, 0)
    reduced = reduce_problem(replace(problem, availability=plenty, running=None)).problem
    columns = Columns.of(reduced)
    factor = np.inf
    rows, cells = reduced.price.shape
    phases = len(reduced.demand)
    phase_of = reduced.phase[columns.template]
    share = reduced.throughput[columns.template] / reduced.demand[phase_of]
    # Few nodes per share of the demand, priced by how scarce they are.
    scarcity = np.where(pool > 0, 1.0 / np.where(pool > 0, pool, 1.0), 0.0)
    prices, worth = scarcity, np.zeros(phases)
    active = np.zeros(len(columns), dtype=np.bool_)
    usage = reduced.usage.astype(np.float64)
    for _ in range(100):
        cost = (usage @ prices.T)[columns.template, columns.region]
        if not active.any():
            gain = -cost / share
            fresh = [np.argsort(-np.where(phase_of == p, gain, -np.inf), kind="stable")[:300] for p in range(phases)]
        else:
            gain = np.where(active, -np.inf, share * worth[phase_of] - cost)
            fresh = []
            for p in range(phases):
                mine = np.flatnonzero((phase_of == p) & (gain > 1e-9))
                fresh.append(mine[np.argsort(-gain[mine], kind="stable")[:300]])
        added = np.concatenate(fresh)
        if not len(added):
            break
        active[added] = True
        chosen = np.flatnonzero(active)
        t, r = columns.template[chosen], columns.region[chosen]
        row, c = np.nonzero(reduced.usage[t])
        capacity = csc_array((usage[t][row, c], (r[row] * cells + c, row)), shape=(rows * cells, len(chosen)))
        demand = csc_array((share[chosen], (phase_of[chosen], np.arange(len(chosen)))), shape=(phases, len(chosen)))
        size = csc_array(np.concatenate([-pool.ravel(), np.zeros(phases)])[:, None])
        a = hstack([vstack([capacity, demand]), size]).tocsc()
        count = len(chosen) + 1
        matrix = MilpMatrix(
            c=(np.arange(count) == count - 1).astype(np.float64),
            offset=0.0,
            a=a,
            row_lower=np.concatenate([np.full(rows * cells, -np.inf), np.ones(phases)]),
            row_upper=np.concatenate([np.zeros(rows * cells), np.full(phases, np.inf)]),
            lower=np.zeros(count),
            upper=np.full(count, np.inf),
            integer=np.zeros(count, dtype=np.bool_),
            maximize=False,
            column_names=[f"x{k}" for k in range(count)],
            row_names=[f"row{k}" for k in range(a.shape[0])],
        )
        result = solve_matrix(matrix, "highs", SolveOptions(threads=1))
        assert result.x is not None
        assert result.row_duals is not None
        prices = np.maximum(0.0, -result.row_duals[: rows * cells]).reshape(rows, cells)
        worth = np.maximum(0.0, result.row_duals[rows * cells :])
        factor = float(result.x[-1])
    return factor


def with_supply(
    problem: AllocationProblem, seed: int, factor: float, whole: Callable[[Floats], Floats] = np.rint
) -> AllocationProblem:
    """The problem over a pool of ``factor`` times the estimated demand, in whole nodes, every seed another shape."""
    pool = shape(problem, seed)
    nodes = whole(pool * estimated_demand(problem, pool) * factor).astype(np.int64)
    return replace(problem, availability=nodes, running=None)


def more_models(problem: AllocationProblem, copies: int, seed: int) -> AllocationProblem:
    """Every model so many times, the copies at demands of their own (log-normal, sigma 0.4)."""
    factors = np.exp(np.random.default_rng(seed).normal(0.0, 0.4, (copies, len(problem.demand))))
    factors[0] = 1.0
    phases = len(problem.demand)
    return replace(
        problem,
        usage=np.tile(problem.usage, (copies, 1)),
        throughput=np.tile(problem.throughput, copies),
        phase=(problem.phase + phases * np.arange(copies)[:, None]).ravel(),
        demand=(problem.demand * factors).ravel(),
        phase_names=tuple(f"{name}#{k}" for k in range(copies) for name in problem.phase_names),
    )


def more_regions(problem: AllocationProblem, regions: int, seed: int) -> AllocationProblem:
    """So many regions, those beyond the problem's own with prices within 10 % of theirs."""
    own = np.arange(regions) % len(problem.region_names)
    change = np.random.default_rng(seed).uniform(0.9, 1.1, (regions, problem.price.shape[1]))
    change[: len(problem.region_names)] = 1.0
    return replace(
        problem,
        availability=problem.availability[own],
        price=problem.price[own] * change,
        region_names=tuple(f"{problem.region_names[r]}#{k}" for k, r in enumerate(own.tolist())),
        running=None,
    )


def next_epoch(problem: AllocationProblem, running: Allocation, seed: int) -> AllocationProblem:
    """A small change: demand within 5 %, prices of a tenth of the pool within 3 %, one node more or less here and there."""
    rng = np.random.default_rng(seed)
    now = np.zeros((len(problem.throughput), len(problem.region_names)), dtype=np.int64)
    now[running.template, running.region] = running.count
    price = problem.price * np.where(
        rng.random(problem.price.shape) < 0.1, rng.uniform(0.97, 1.03, problem.price.shape), 1.0
    )
    change = rng.choice([-1, 0, 0, 0, 1], problem.availability.shape)
    nodes = np.where(problem.availability > 0, np.maximum(1, problem.availability + change), 0)
    demand = problem.demand * rng.uniform(0.95, 1.05, len(problem.demand))
    return replace(problem, demand=demand, price=price, availability=nodes, running=now)
