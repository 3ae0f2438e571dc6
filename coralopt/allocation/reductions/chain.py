"""The chain of reductions and the way back to the original templates."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions.availability import reachable
from coralopt.allocation.reductions.clip import clipped_throughput
from coralopt.allocation.reductions.dominance import undominated


@dataclass(frozen=True)
class Reduction:
    """What one reduction did.

    Attributes:
        name: ``availability``, ``clip`` or ``dominance``.
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
    """

    problem: AllocationProblem
    kept: npt.NDArray[np.int64]
    reductions: tuple[Reduction, ...]

    def restore(self, allocation: Allocation) -> Allocation:
        """The allocation in terms of the original templates."""
        return Allocation(self.kept[allocation.template], allocation.region, allocation.count)


def reduce_problem(problem: AllocationProblem) -> Reduced:
    """Apply every reduction; the optimum over the result is the optimum of ``problem``."""
    steps = []
    kept = np.arange(len(problem.throughput), dtype=np.int64)

    started = time.perf_counter()
    problem, chosen = _select(problem, reachable(problem))
    steps.append(Reduction("availability", len(kept), len(chosen), time.perf_counter() - started))
    kept = kept[chosen]

    started = time.perf_counter()
    above = int((problem.throughput > problem.demand[problem.phase]).sum())
    problem = replace(problem, throughput=clipped_throughput(problem))
    steps.append(Reduction("clip", above, 0, time.perf_counter() - started))

    started = time.perf_counter()
    problem, chosen = _select(problem, undominated(problem))
    steps.append(Reduction("dominance", len(kept), len(chosen), time.perf_counter() - started))
    kept = kept[chosen]
    return Reduced(problem, kept, tuple(steps))


def _select(problem: AllocationProblem, mask: npt.NDArray[np.bool_]) -> tuple[AllocationProblem, npt.NDArray[np.int64]]:
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
