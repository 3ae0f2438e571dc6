"""Allocation instances: columns drawn by seed from a real template library or a synthetic one.

The draw takes equally many templates of every model phase, and every demand times a factor between 0.7 and 1.3. An
allocation is *planted*: every phase greedily takes the cheapest of a few random templates until its demand is met. So
every instance has a solution, and supply can be made scarce around it:

- ``ample``: what the scenario offers, at least twice what the planted allocation needs;
- ``scarce``: the planted allocation and 0 to 2 nodes more of every configuration that a region sells.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from coralopt.allocation import AllocationProblem
from coralopt.benchmark.draw_placement import generator, scenario_of
from coralopt.errors import BenchmarkError
from coralopt.types import Ints

#: Random columns of which the planted allocation takes the cheapest per token.
PLANTED_FROM = 8


def allocation_problem(source: str, columns: int, supply: str, seed: int) -> AllocationProblem:
    """The problem of one instance.

    Raises:
        BenchmarkError: The library has fewer columns than asked for.
    """
    # 20 configurations have 10,625 node sets of at most 4 nodes, 53,129 of at most 5.
    base = _base(source, 4 if source != "synthetic" or columns <= 50_000 else 5)
    rng = generator("allocation", source, columns, supply, seed)
    base = replace(base, demand=base.demand * rng.uniform(0.7, 1.3, len(base.demand)))
    order = _by_turns(base, rng)
    regions = len(base.region_names)
    planted = _planted(base, order[: max(1, columns // (2 * regions))], rng)
    sold = base.availability > 0
    if supply == "ample":
        availability = np.maximum(base.availability, 2 * planted)
    else:
        availability = np.where(sold, planted + rng.integers(0, 3, planted.shape), 0)
    stocked = replace(base, availability=availability)
    usable = (stocked.most_instances()[order] > 0) & ~np.isnan(stocked.template_price()[order])
    reached = np.cumsum(usable.sum(axis=1))
    if reached[-1] < columns:
        raise BenchmarkError(f"{source} with {supply} supply has {reached[-1]:,} columns, {columns:,} are asked for")
    chosen = order[: int(np.searchsorted(reached, columns)) + 1]
    chosen = np.sort(chosen[usable[: len(chosen)].any(axis=1)])
    return replace(
        stocked, usage=stocked.usage[chosen], throughput=stocked.throughput[chosen], phase=stocked.phase[chosen]
    )


@lru_cache(maxsize=2)
def _base(source: str, max_nodes: int) -> AllocationProblem:
    """All templates of a scenario's library, or synthetic ones of at most ``max_nodes`` nodes."""
    if source != "synthetic":
        from coralopt.planning.coral import allocation_problem as from_scenario
        from coralopt.templates import obtain_library

        scenario = scenario_of(source)
        return replace(from_scenario(scenario, obtain_library(scenario)[0]), running=None)
    from coralopt.testing.synthetic import synthetic_problem

    return synthetic_problem(max_nodes=max_nodes, seed=0)


def _by_turns(base: AllocationProblem, rng: np.random.Generator) -> Ints:
    """All templates in random order, the model phases by turns."""
    order = rng.permutation(len(base.throughput))
    phase = base.phase[order]
    rank = np.zeros(len(order), dtype=np.int64)
    for p in range(len(base.demand)):
        mine = np.flatnonzero(phase == p)
        rank[mine] = np.arange(len(mine))
    return order[np.argsort(rank, kind="stable")]


def _planted(base: AllocationProblem, pool: Ints, rng: np.random.Generator) -> Ints:
    """int64 (R, C): nodes of an allocation that meets every demand with templates of the pool."""
    used = np.zeros(base.availability.shape, dtype=np.int64)
    price = base.template_price()
    for p in np.flatnonzero(base.demand > 0):
        mine = pool[base.phase[pool] == p]
        template, region = np.nonzero(~np.isnan(price[mine]))
        if not len(template):
            raise BenchmarkError(f"too few columns: none of {base.phase_names[p]} was drawn; ask for more columns")
        template = mine[template]
        served = 0.0
        while served < base.demand[p]:
            few = rng.integers(0, len(template), PLANTED_FROM)
            best = few[np.argmin(price[template[few], region[few]] / base.throughput[template[few]])]
            used[region[best]] += base.usage[template[best]]
            served += float(base.throughput[template[best]])
    return used
