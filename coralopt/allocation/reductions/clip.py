"""Coefficient tightening: no template serves more of a demand than there is.

Lossless: for whole counts, sum T n >= d holds iff sum min(T, d) n >= d does: if some n >= 1 has T >= d both hold, else
nothing was clipped. The linear relaxation becomes tighter.
"""

from __future__ import annotations

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Floats


def clipped_throughput(problem: AllocationProblem) -> Floats:
    """float64 (T,): min(T(tau), demand of its model phase), tokens/s."""
    return np.minimum(problem.throughput, problem.demand[problem.phase])
