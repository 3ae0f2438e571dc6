"""The chain of reductions and the way back to the original templates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions.availability import reachable, with_replica_demand
from coralopt.allocation.reductions.clip import clipped_throughput
from coralopt.allocation.reductions.dominance import undominated
from coralopt.allocation.reductions.prices import near_templates
from coralopt.allocation.side_constraints import SideRow, banned
from coralopt.types import Bools, Floats, Ints


@dataclass(frozen=True)
class Reduction:
    """What one reduction did.

    Attributes:
        name: ``bans``, ``prices``, ``availability``, ``clip`` or ``dominance``.
        before: Templates (for ``clip``: coefficients above the demand) before.
        after: The same afterwards.
        seconds: Time it took.
    """

    name: str
    before: int
    after: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Reduced:
    """A smaller problem with the same optimum.

    Attributes:
        problem: The smaller problem.
        kept: int64 (T',), original template of each of its templates.
        reductions: What each step did.
        target: USD/h; the optimum is the same if it is below this, and is at least this if not. Infinite but for the
            reduction by capacity prices.
    """

    problem: AllocationProblem
    kept: Ints
    reductions: tuple[Reduction, ...]
    target: float = math.inf

    def restore(self, allocation: Allocation) -> Allocation:
        """The allocation in terms of the original templates."""
        return Allocation(self.kept[allocation.template], allocation.region, allocation.count)


def reduce_problem(
    problem: AllocationProblem,
    capacity_prices: Floats | None = None,
    also: Ints | None = None,
    keep: Ints | None = None,
    near: tuple[float, int] = (0.03, 30_000),
) -> Reduced:
    """Apply every reduction; the optimum over the result is the optimum of ``problem``.

    Args:
        problem: The problem.
        capacity_prices: float64 (R, C), USD/h per node; prices that were good for a similar problem. With them, what
            is far too dear at these prices goes first, and the result has a ``target``.
        also: int64 (k,), templates that stay however dear they are at these prices.
        keep: int64 (k,), templates of a known allocation, which stay through every step.
        near: How far above the bound at ``capacity_prices`` the target lies, as a share of it, and new columns kept at most.
    """
    steps = []
    kept = np.arange(len(problem.throughput), dtype=np.int64)
    target = math.inf

    if any(row.is_ban for row in problem.rows):
        started = time.perf_counter()
        problem, chosen = _select(problem, ~np.asarray(banned(problem).all(axis=1)))
        problem = replace(problem, rows=_with_effect(problem))
        steps.append(Reduction("bans", len(kept), len(chosen), time.perf_counter() - started))
        kept = kept[chosen]
    problem = with_replica_demand(problem)

    if capacity_prices is not None:
        started = time.perf_counter()
        within = near_templates(problem, capacity_prices, *near)
        for stays in (also, keep):
            if stays is not None:
                within.mask[np.isin(kept, stays)] = True
        problem, chosen = _select(problem, within.mask)
        steps.append(Reduction("prices", len(kept), len(chosen), time.perf_counter() - started))
        kept, target = kept[chosen], within.target

    started = time.perf_counter()
    problem, chosen = _select(problem, reachable(problem))
    steps.append(Reduction("availability", len(kept), len(chosen), time.perf_counter() - started))
    kept = kept[chosen]

    started = time.perf_counter()
    above = int((problem.throughput > problem.demand[problem.phase]).sum())
    problem = replace(problem, throughput=clipped_throughput(problem))
    steps.append(Reduction("clip", above, 0, time.perf_counter() - started))

    started = time.perf_counter()
    problem, chosen = _select(problem, undominated(problem) | np.isin(kept, [] if keep is None else keep))
    steps.append(Reduction("dominance", len(kept), len(chosen), time.perf_counter() - started))
    kept = kept[chosen]
    return Reduced(problem, kept, tuple(steps), target)


def _with_effect(problem: AllocationProblem) -> tuple[SideRow, ...]:
    """The rows without bans of what is gone."""
    every, regions = np.arange(len(problem.throughput), dtype=np.int64), range(len(problem.region_names))
    return tuple(
        row
        for row in problem.rows
        if not row.is_ban or any(row.covers(problem, every, np.full_like(every, r)).any() for r in regions)
    )


def _select(problem: AllocationProblem, mask: Bools) -> tuple[AllocationProblem, Ints]:
    chosen = np.flatnonzero(mask)
    return (
        replace(
            problem,
            usage=problem.usage[chosen],
            throughput=problem.throughput[chosen],
            phase=problem.phase[chosen],
            running=None if problem.running is None else problem.running[chosen],
        ),
        chosen,
    )
