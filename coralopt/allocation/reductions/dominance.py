"""Drop a template when another of its model phase needs no more of any configuration and delivers no less.

Lossless: replacing it keeps capacity and demand rows satisfied and costs no more, in any region. Looking at the node
sets with one node fewer is enough: dominance is transitive, and a template kept for want of a one-node-smaller rival is
merely not dropped, which is safe. Templates that run already are never dropped, since keeping them is cheaper than
starting their rival; that they are kept never makes dropping another one wrong.

The rival may itself be dropped; following rivals the node count falls strictly, so the chain ends at a kept one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coralopt.allocation.problem import AllocationProblem
from coralopt.types import Bools, Floats


def undominated(problem: AllocationProblem) -> Bools:
    """bool (T,): templates to keep."""
    keep = np.ones(len(problem.throughput), dtype=np.bool_)
    alone = ~np.isin(np.arange(len(keep)), problem.joint.template)
    for p in range(len(problem.demand)):
        mine = np.flatnonzero((problem.phase == p) & alone)
        # Of those that are alike in what starting costs; another might be dearer to start.
        for k in np.unique(problem.penalties[mine]):
            rows = mine[problem.penalties[mine] == k]
            keep[rows] = _undominated_in_phase(problem.usage[rows], problem.throughput[rows])
    # Templates of several phases stay, and drop none of one phase: their makers have dropped what is dominated.
    keep[problem.joint.template] = True
    if problem.running is not None:
        keep |= problem.running.any(axis=1)
    return keep


def _undominated_in_phase(usage: npt.NDArray[np.int16], throughput: Floats) -> Bools:
    """Compare each node set with those that have one node fewer, and equal node sets with each other."""
    templates, configurations = usage.shape
    # A node set as one number: mixed radix, every configuration with as many digits as its counts need.
    radix = [int(most) + 1 for most in usage.max(axis=0)]
    places = [math.prod(radix[:c]) for c in range(configurations)]
    if math.prod(radix) >= 2**64:
        # Hashing would only make collisions unlikely; exactness matters more than speed here.
        return _undominated_by_rows(usage, throughput)
    weights = np.array(places, dtype=np.uint64)
    keys = usage.astype(np.uint64) @ weights
    order = np.lexsort((np.arange(templates), -throughput, keys))
    sorted_keys, first = np.unique(keys[order], return_index=True)
    best = throughput[order][first]
    keep = np.zeros(templates, dtype=np.bool_)
    # Of equal node sets only the fastest survives, the first of them in order when they tie.
    keep[order[first]] = True
    for c in range(configurations):
        rows = np.flatnonzero(keep & (usage[:, c] > 0))
        smaller = keys[rows] - weights[c]
        place = np.minimum(np.searchsorted(sorted_keys, smaller), len(sorted_keys) - 1)
        rival = (sorted_keys[place] == smaller) & (best[place] >= throughput[rows])
        keep[rows[rival]] = False
    return keep


def _undominated_by_rows(usage: npt.NDArray[np.int16], throughput: Floats) -> Bools:
    """The same through a dictionary of rows, for pools with too many configurations for one number."""
    best: dict[bytes, tuple[float, int]] = {}
    for t in range(len(throughput)):
        key = usage[t].tobytes()
        if key not in best or best[key][0] < throughput[t]:
            best[key] = (float(throughput[t]), t)
    keep = np.zeros(len(throughput), dtype=np.bool_)
    for speed, t in best.values():
        dominated = False
        for c in np.flatnonzero(usage[t]):
            row = usage[t].copy()
            row[c] -= 1
            rival = best.get(row.tobytes())
            dominated = dominated or (rival is not None and rival[0] >= speed)
        keep[t] = not dominated
    return keep
