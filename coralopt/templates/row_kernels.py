"""Compiled loops over the rows of a template library; imported only when they run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.compiling import compiled
from coralopt.types import Bools, Ints


@compiled()
def rows_without(usage: npt.NDArray[np.int16], barred: Bools) -> Ints:
    """int64 (n,): rows of ``usage`` (T, C) that have no node of the configurations ``barred``, bool (C,)."""
    kept = np.empty(len(usage), dtype=np.int64)
    count = 0
    for row in range(len(usage)):
        uses = False
        for column in range(len(barred)):
            if usage[row, column] and barred[column]:
                uses = True
                break
        if not uses:
            kept[count] = row
            count += 1
    return kept[:count].copy()
