"""Drop templates that no region can host once, or whose model phase needs nothing.

Lossless: such a template's count is 0 in every feasible allocation; one of a phase without demand is 0 in some optimal
allocation, since taking it away frees capacity and lowers the cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem


def reachable(problem: AllocationProblem) -> npt.NDArray[np.bool_]:
    """bool (T,): templates that fit into some region once, and serve a model phase with demand."""
    fits = (problem.most_instances() > 0) & ~np.isnan(problem.template_price())
    return np.asarray(fits.any(axis=1) & (problem.demand[problem.phase] > 0) & (problem.throughput > 0))
