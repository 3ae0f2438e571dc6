"""Compiled loops of the allocation floor; imported only when they run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(cache=True)
def cover(
    sizes: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], table: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Unbounded covering knapsack: fill ``table[d]`` with the least weight of items of total size at least d."""
    for amount in range(1, len(table)):
        least = np.inf
        for item in range(len(sizes)):
            rest = amount - sizes[item]
            value = weights[item] + (table[rest] if rest > 0 else 0.0)
            if value < least:
                least = value
        table[amount] = least
    return table
