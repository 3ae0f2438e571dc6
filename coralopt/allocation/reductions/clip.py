"""Coefficient tightening: no template serves more of a demand than there is.

Lossless: for whole counts, sum T n >= d holds iff sum min(T, d) n >= d does: if some n >= 1 has T >= d both hold, else
nothing was clipped. The linear relaxation becomes tighter. Phases among which instances divide their time are left as they
are: a part of an instance may be all that is needed.
"""

from __future__ import annotations

import numpy as np

from coralopt.allocation.problem import AllocationProblem


def clipped(problem: AllocationProblem) -> AllocationProblem:
    """With min(T(tau), demand of its model phase) in place of every throughput, tokens/s."""
    most = problem.demand.copy()
    if problem.joint.divided:
        most[np.append(problem.joint.phase, problem.phase[problem.joint.template])] = np.inf
    return problem.with_throughputs(lambda tokens_s, phase: np.minimum(tokens_s, most[phase]))
