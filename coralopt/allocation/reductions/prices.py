r"""Drop templates that are too dear at known capacity prices: the reduction behind a quick re-solve.

At any capacity prices lambda >= 0 an allocation with an instance of a column costs at least the column's column bound
(see module ``bounds.lagrangian``). So every allocation of cost below t uses columns of bound below t only, and the
rest may go: the least cost stays what it was if it is below t, and is at least t if nothing below t is left. Side
constraints are left out here, which only makes the bound lower; supply classes and unmet demand count as in the
Lagrangian bound.

Prices that were good in the last epoch are nearly so in the next. One pass over the whole library, without any
other reduction before it, then leaves some thousands of a million templates. Those that run already stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.allocation.bounds.knapsack import allow_copies, least_weights, raise_to_line
from coralopt.allocation.bounds.lagrangian import grid_for, grid_steps
from coralopt.allocation.bounds.routed import routed_cover, staircases
from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Bools, Floats

#: Least and most steps of the grid of the covering knapsacks: throughputs are rounded up to whole ones, so the bound holds.
GRID, MOST_GRID = 50_000, 400_000
#: Room for columns of one pass; more are counted, not listed.
ROOM = 400_000


@dataclass(frozen=True)
class Near:
    """How far above the bound at known capacity prices to look.

    Attributes:
        margin: Dimensionless, how far above the bound the target should be, as a share of it.
        most: New columns kept at most; the target is lowered where more are below it.
        reach: USD/h; where positive, the target should be this, whatever the margin.
    """

    margin: float = 0.03
    most: int = 30_000
    reach: float = 0.0


@dataclass(frozen=True, eq=False)
class NearTemplates:
    """Templates that allocations below a target cost may use.

    Attributes:
        mask: bool (T,).
        target: USD/h; every allocation that costs less uses these templates only. Infinite when all stay.
        bound: USD/h; every allocation costs at least this.
    """

    mask: Bools
    target: float
    bound: float


def near_templates(problem: AllocationProblem, capacity_prices: Floats, near: Near) -> NearTemplates:
    """The templates of column bound at most the target at these prices, or fewer.

    Args:
        problem: The whole problem; its throughputs need no clipping.
        capacity_prices: float64 (R, C), USD/h per node; negative ones count as 0.
        near: Where the target should lie.
    """
    from coralopt.allocation.bounds.kernels import instance_weights, sweep_best, sweep_forced

    prices = np.maximum(capacity_prices, 0.0)
    templates, regions, _, phases = problem.shape
    pieces, unmet = problem.segments, problem.unmet_prices()
    known = np.nan_to_num(pieces.base, nan=np.inf)
    # Where it differs by template, the least counts: still a bound.
    penalty = (
        float(problem.penalties.min(initial=problem.penalty)) if problem.start_penalty is not None else problem.penalty
    )
    weights = known + penalty * np.nan_to_num(problem.price) + prices
    weight = np.empty((templates, regions))
    serves = (problem.throughput > 0) & (problem.demand > 0)[problem.phase]
    instance_weights(problem.usage, serves, _weights_of_nodes(problem, weights), weight)
    pools = problem.pools
    pool = pools.of(np.arange(phases)[:, None], np.arange(regions)[None, :])
    library = weight, problem.throughput, problem.phase, problem.demand, pool
    grid = min(grid_for(problem, GRID), MOST_GRID)
    best = np.full((len(pools), grid + 1), np.inf)
    sweep_best(*library, best)
    runs: Bools = np.zeros(templates, dtype=np.bool_)
    if problem.running is not None:
        runs[np.unique(np.nonzero(problem.running)[0])] = True

    def table_of(some: Sequence[int], unmet_step: float = np.inf, pools_tied: bool = True) -> Floats:
        """Least weight that covers each amount in some pools; a step may go unmet at a price."""
        least = best[list(some)].min(axis=0)
        pro_rata, least[0], least[1] = min(least[0], unmet_step * grid), np.inf, min(least[1], unmet_step)
        sizes = np.flatnonzero(np.isfinite(least))
        table = least_weights(sizes, least[sizes], grid)
        for t in np.flatnonzero(runs & (problem.throughput > 0)).tolist():
            inside = np.isin(pool[problem.phase[t]], some)
            use = problem.usage[t].astype(np.int64)
            steps = int(grid_steps(problem.throughput[t : t + 1], problem.demand[problem.phase[t]], grid)[0])
            for r in np.flatnonzero(inside).tolist():
                assert problem.running is not None
                needed = use > 0
                fits = int((problem.availability[r, needed] // use[needed]).min())
                copies = min(int(problem.running[t, r]), fits)
                if copies:
                    weight = float((use[needed] * (known[r, needed] + prices[r, needed])).sum())
                    allow_copies(table, steps, weight, copies)
                    pro_rata = min(pro_rata, weight / problem.throughput[t] * problem.demand[problem.phase[t]])
        if not pools_tied:
            raise_to_line(table, pro_rata)
        return table

    tied = {p for model in problem.routes for p in model.phases}
    # What a model phase, or the whole model where it has routes, weighs; and the rest beside an instance by what it leaves.
    whole, rests = np.full(len(pools), -np.inf), np.zeros((len(pools), grid + 1))
    for q in np.flatnonzero(problem.demand[pools.phase] > 0).tolist():
        p = int(pools.phase[q])
        if p not in tied:
            # The cheapest price of what goes unmet, for all of it: still a bound.
            step = problem.tiers_of(p)[0][1] * unmet[p] * problem.demand[p] / grid
            rests[q] = table_of([q], step, pools_tied=False)
            whole[q] = rests[q, grid]
    parts = [{name: table_of(some) for name, some in staircases(problem, model).items()} for model in problem.routes]
    ends = [float(table[grid]) for part in parts for table in part.values() if np.isfinite(table[grid])]
    span = near.reach or near.margin * (float(whole[np.isfinite(whole)].sum()) + sum(ends))
    bound = float(whole[whole > -np.inf].sum()) - pieces.worth(prices, np.ones(regions))
    for model, part in zip(problem.routes, parts, strict=True):
        joint = routed_cover(problem, model, part, problem.unmet_usd_h(), span)
        bound += joint.least
        for q in (q for p in model.phases for q in pools.of_phase(p, regions)):
            whole[q], rests[q] = joint.least, joint.beside(q, np.arange(grid + 1)[::-1])
    if not np.isfinite(bound):
        # Some phase cannot be covered at all; the chain says why.
        return NearTemplates(np.ones(templates, dtype=np.bool_), np.inf, 0.0)
    slack = 1e-9 * (abs(bound) + 2 * float((prices * problem.availability).sum()))
    target = max(near.reach or bound - slack + near.margin * abs(bound), bound - slack)
    template, region = np.empty(ROOM, dtype=np.int64), np.empty(ROOM, dtype=np.int64)
    over = np.empty(ROOM)
    while True:
        # What a phase may weigh: the target, less what the others weigh at least.
        count = sweep_forced(*library, rests, whole + (target - bound) + 2 * slack, template, region, over)
        if count <= ROOM or target <= bound - slack:
            break
        close = target - bound <= 1e-6 * abs(bound)
        target = bound - slack if close else bound + (target - bound) / 2
    listed = min(count, ROOM)
    kept = np.ones(listed, dtype=np.bool_)
    if count > ROOM:
        # Nothing is below such a target, so nothing need be listed.
        target = min(target, bound - slack)
    elif listed > near.most:
        bounds = bound + over[:listed] - whole[pool[problem.phase[template[:listed]], region[:listed]]]
        last = float(np.partition(bounds, near.most - 1)[near.most - 1])
        kept = bounds <= last
        target = min(target, last - 2 * slack)
    mask: Bools = np.array(runs)
    mask[template[:listed][kept]] = True
    return NearTemplates(mask, target, bound - slack)


def _weights_of_nodes(problem: AllocationProblem, weights: Floats) -> Floats:
    """float64 (C, n + 1, R): weight of 0 to n nodes, infinite where a region has not as many."""
    count = np.arange(int(problem.usage.max(initial=0)) + 1)[None, :, None]
    with np.errstate(invalid="ignore"):
        return np.where((count > 0) & (count <= problem.availability.T[:, None]), count * weights.T[:, None], np.inf)
