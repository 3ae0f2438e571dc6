"""The chain of reductions and the way back to the original templates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions.availability import reachable, with_replica_demand
from coralopt.allocation.reductions.clip import clipped
from coralopt.allocation.reductions.dominance import undominated
from coralopt.allocation.reductions.prices import Near, near_templates
from coralopt.allocation.side_constraints import SideConstraint, banned
from coralopt.errors import SolverError
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
        bound: USD/h; what every allocation of the original problem costs at least, by that reduction.
    """

    problem: AllocationProblem
    kept: Ints
    reductions: tuple[Reduction, ...]
    target: float = math.inf
    bound: float = 0.0

    def restore(self, allocation: Allocation) -> Allocation:
        """The allocation in terms of the original templates."""
        return Allocation(self.kept[allocation.template], allocation.region, allocation.count)


def reduce_problem(
    problem: AllocationProblem,
    capacity_prices: Floats | None = None,
    also: Ints | None = None,
    keep: Ints | None = None,
    near: Near = Near(),
) -> Reduced:
    """Apply every reduction; the optimum over the result is the optimum of ``problem``.

    Args:
        problem: The problem.
        capacity_prices: float64 (R, C), USD/h per node; prices that were good for a similar problem. With them, what
            is far too dear at these prices goes first, and the result has a ``target``.
        also: int64 (k,), templates that stay however dear they are at these prices.
        keep: int64 (k,), templates of a known allocation, which stay through every step.
        near: How far above the bound at ``capacity_prices`` to look.

    Raises:
        SolverError: A side constraint asks for nodes in use, which reductions would not keep.
    """
    if any(item.measure == "used_nodes" for item in problem.side_constraints):
        raise SolverError("nodes that must be in use are the search's own limits; dominance would not keep them")
    steps: list[Reduction] = []
    kept = np.arange(len(problem.throughput), dtype=np.int64)
    target, bound, started = math.inf, 0.0, time.perf_counter()

    def finish(name: str, before: int, after: int) -> None:
        nonlocal started
        time_now = time.perf_counter()
        steps.append(Reduction(name, before, after, time_now - started))
        started = time_now

    def select(name: str, mask: Bools) -> None:
        nonlocal problem, kept
        chosen, before = np.flatnonzero(mask), len(kept)
        problem, kept = some_templates(problem, chosen), kept[chosen]
        finish(name, before, len(kept))

    if any(item.is_ban for item in problem.side_constraints):
        select("bans", ~np.asarray(banned(problem).all(axis=1)))
        problem = replace(problem, side_constraints=_with_effect(problem))
    problem = with_replica_demand(problem)
    if capacity_prices is not None:
        within = near_templates(problem, capacity_prices, near)
        for stays in (also, keep):
            if stays is not None:
                within.mask[np.isin(kept, stays)] = True
        target, bound = within.target, within.bound
        select("prices", within.mask)
    select("availability", reachable(problem))
    above = int((problem.throughput > problem.demand[problem.phase]).sum())
    problem = clipped(problem)
    finish("clip", above, 0)
    select("dominance", undominated(problem) | np.isin(kept, [] if keep is None else keep))
    return Reduced(problem, kept, tuple(steps), target, bound)


def _with_effect(problem: AllocationProblem) -> tuple[SideConstraint, ...]:
    """The side constraints without bans of what is gone."""
    template, region = np.nonzero(np.ones((len(problem.throughput), len(problem.region_names)), dtype=np.bool_))
    return tuple(
        item for item in problem.side_constraints if not item.is_ban or item.covers(problem, template, region).any()
    )


def some_templates(problem: AllocationProblem, chosen: Ints) -> AllocationProblem:
    """The problem over the chosen templates, which become its templates 0, 1, ..."""
    return replace(
        problem,
        usage=problem.usage[chosen],
        throughput=problem.throughput[chosen],
        phase=problem.phase[chosen],
        running=None if problem.running is None else problem.running[chosen],
        start_penalty=None if problem.start_penalty is None else problem.start_penalty[chosen],
        joint=problem.joint.some(chosen),
    )
