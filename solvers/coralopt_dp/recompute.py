"""What placements of node sets serve, computed from the placements alone: no table of the programme is looked at."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from coralopt.compiling import compiled
from coralopt.types import Bools, Floats, Ints

# Arrays inside compiled code have no static type worth naming; the caller in sweep.py is typed.
Array = Any


class Placed(NamedTuple):
    """The placements: arrays of :class:`coralopt_dp.sweep.SweepResult`."""

    node_sets: Array
    throughput: Array
    stages: Array
    stage_layers: Array
    stage_sets: Array


def recompute(values: Floats, placed: Placed, classes: Ints, linked: bool) -> tuple[Floats, Ints, Ints, Bools]:
    """Throughput, layers and latency units of every placement, and whether its stages hold just its nodes.

    Sums run over the configurations in their order, as everywhere, so that equal placements have bitwise equal throughput.

    Args:
        values: float64 (S, 3, C, K, L + 1), tokens/s of one node.
        placed: Placements of M node sets; what has no placement serves 0.
        classes: int64 (C,), rank of each configuration's bandwidth; for ``linked`` only.
        linked: Whether a cell is the class of the slowest receiver; else it is a number of latency units, and a stage takes
            the fewest that reach the throughput that ``placed`` says.

    Returns:
        float64 (M,) tokens/s; int64 (M,) layers; int64 (M,) units, 0 if ``linked``; bool (M,).
    """
    count = len(placed.stages)
    lowest, layers, units = np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    same: Bools = np.ones(count, dtype=np.bool_)
    _recompute(values, placed, classes, linked, (lowest, layers, units, same))
    return lowest, layers, units, same


@compiled(parallel=True)
def _recompute(values: Array, placed: Placed, classes: Array, linked: bool, out: tuple[Array, ...]) -> None:
    node_sets, throughput, stages, stage_layers, stage_sets = placed
    lowest, layers, units, same = out
    kinds, cells = values.shape[2], values.shape[3]
    for m in numba.prange(stages.shape[0]):
        count = stages[m]
        used = np.zeros(kinds, np.int64)
        for stage in range(count):
            role = 0 if stage == 0 else 2 if stage == count - 1 else 1
            table, held, nodes = values[count - 1, role], stage_layers[m, stage], node_sets[stage_sets[m, stage]]
            layers[m] += held
            cell = cells - 1
            if linked and stage < count - 1:
                following = node_sets[stage_sets[m, stage + 1]]
                for c in range(kinds):
                    if following[c] > 0:
                        cell = min(cell, classes[c])
            served = 0.0
            for k in range(cell if linked else 0, cell + 1):
                served, possible = 0.0, True
                for c in range(kinds):
                    if nodes[c] > 0:
                        served += nodes[c] * table[c, k, held]
                        possible &= table[c, k, held] > 0.0
                if not possible:
                    served = 0.0
                if not linked and served >= throughput[m]:
                    units[m] += k
                    break
            lowest[m] = served if stage == 0 else min(lowest[m], served)
            for c in range(kinds):
                used[c] += nodes[c]
        if count > 0:
            for c in range(kinds):
                same[m] &= used[c] == node_sets[m, c]
