"""Compiled loops of the certificate: covering by whole nodes, and layer splits, for every throughput on a grid."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from coralopt.types import Floats, Ints


@njit(cache=True, parallel=True)
def cover_costs(steps: Ints, price: Floats, grid: int, out: Floats) -> None:
    """``out[j, t]`` = least price of whole nodes with at least t steps together, for t = 0..``grid``.

    ``steps[c, j]`` (int64): steps of one node of configuration c with j layers, 0: it cannot; ``price[c]`` may be infinite.
    """
    for j in prange(steps.shape[1]):
        out[j, 0] = 0.0
        for t in range(1, grid + 1):
            least = np.inf
            for c in range(steps.shape[0]):
                if steps[c, j] > 0:
                    cost = price[c] + out[j, max(t - steps[c, j], 0)]
                    if cost < least:
                        least = cost
            out[j, t] = least


@njit(cache=True)
def _times(left: Floats, right: Floats, out: Floats) -> None:
    for total in range(out.shape[0]):
        least = np.inf
        for j in range(total + 1):
            if left[j] + right[total - j] < least:
                least = left[j] + right[total - j]
        out[total] = least


@njit(cache=True, parallel=True)
def split_layers(first: Floats, middle: Floats, last: Floats, inner: int, best: Floats) -> None:
    """``best[t]`` = min(best[t], least price of a first stage, ``inner`` middle ones and a last one, of t steps each).

    Tables are (L + 1, T + 1); 0 layers are no stage.
    """
    layers = first.shape[0] - 1
    for t in prange(1, best.shape[0]):
        line, stage, spare = np.empty(layers + 1), np.empty(layers + 1), np.empty(layers + 1)
        stage[0] = np.inf
        line[0] = np.inf
        for j in range(1, layers + 1):
            line[j] = first[j, t]
            stage[j] = middle[j, t]
        times = inner
        while times > 0:
            if times & 1:
                _times(line, stage, spare)
                line[:] = spare
            times >>= 1
            if times > 0:
                _times(stage, stage, spare)
                stage[:] = spare
        for j in range(1, layers):
            cost = line[j] + last[layers - j, t]
            if cost < best[t]:
                best[t] = cost


@njit(cache=True)
def cover_demand(one: Floats, out: Floats) -> None:
    """``out[t]`` = least price of any number of instances with at least t steps together; ``one[t]`` of one instance."""
    out[0] = 0.0
    for t in range(1, out.shape[0]):
        least = np.inf
        for a in range(1, out.shape[0]):
            cost = one[a] + out[max(t - a, 0)]
            if cost < least:
                least = cost
        out[t] = least
