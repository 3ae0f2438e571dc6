"""A first allocation out of the linear relaxation: round down, fill up, tidy up.

It costs milliseconds, gives the fixing step something to compare with, and is the answer when no time is left for more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.relaxation import Columns, Floats

#: Columns of least reduced cost looked at for every model phase.
CANDIDATES = 2_000


def rounded(problem: AllocationProblem, columns: Columns, x: Floats, reduced: Floats) -> Allocation | None:
    """A feasible allocation near the relaxation's solution, or ``None`` when filling up gets stuck.

    Args:
        problem: The problem.
        columns: Its columns.
        x: float64 (N,), solution of the relaxation.
        reduced: float64 (N,), reduced costs at its duals.
    """
    phase = problem.phase[columns.template]
    usage = problem.usage.astype(np.int64)
    counts = np.floor(x + 1e-9).astype(np.int64)
    left = problem.availability.copy()
    used = np.flatnonzero(counts)
    np.subtract.at(left, columns.region[used], usage[columns.template[used]] * counts[used, None])
    if (left < 0).any():
        return None
    speed = problem.throughput[columns.template]
    missing = problem.demand - np.bincount(phase, weights=speed * counts, minlength=len(problem.demand))
    near: list[npt.NDArray[np.int64]] = []
    for p in range(len(problem.demand)):
        mine = np.flatnonzero(phase == p)
        near.append(mine[np.argsort(reduced[mine], kind="stable")[:CANDIDATES]])
    demand = np.where(problem.demand > 0, problem.demand, np.inf)
    unmet = problem.unmet_price()
    open_phases = np.ones(len(demand), dtype=np.bool_)
    # Floating-point sums are good enough to steer by; the exact check at the end has the last word.
    while True:
        p = int(np.argmax(np.where(open_phases, missing / demand, -np.inf)))
        if missing[p] <= 0 or not open_phases[p]:
            break
        mine = near[p]
        fits = (usage[columns.template[mine]] <= left[columns.region[mine]]).all(axis=1)
        mine = mine[fits & (counts[mine] < columns.upper[mine])]
        if not len(mine) and np.isinf(unmet[p]):
            return None
        value = np.minimum(speed[mine], missing[p])
        # Dearer by the capacity it takes from others: reduced cost plus what the served tokens are worth.
        dear = (columns.cost[mine] + np.maximum(reduced[mine], 0.0)) / value
        if dear.min(initial=np.inf) >= unmet[p]:
            # The rest costs less unmet.
            open_phases[p] = False
            continue
        best = int(mine[np.argmin(dear)])
        counts[best] += 1
        left[columns.region[best]] -= usage[columns.template[best]]
        missing[p] -= speed[best]
    for k in sorted(np.flatnonzero(counts).tolist(), key=lambda k: -columns.cost[k]):
        while counts[k] and missing[phase[k]] + speed[k] <= 0:
            counts[k] -= 1
            missing[phase[k]] += speed[k]
    total: dict[tuple[int, int], int] = {}
    for k in np.flatnonzero(counts).tolist():
        place = (int(columns.template[k]), int(columns.region[k]))
        total[place] = total.get(place, 0) + int(counts[k])
    answer = Allocation.of(total)
    return answer if problem.check(answer).feasible else None
