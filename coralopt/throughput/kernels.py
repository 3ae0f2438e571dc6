"""Compiled choice of batches; imported only when it runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.compiling import compiled
from coralopt.types import Floats


@compiled()
def choose_batches(
    batch: Floats,
    speed: Floats,
    ms: Floats,
    taken: tuple[Floats, Floats],
    limits: tuple[Floats, Floats, Floats],
    stages: tuple[int, float],
    share: float,
    cell: tuple[Floats, npt.NDArray[np.int32], Floats],
) -> None:
    """Fill the cell of a role and stage count: the smallest batch near the best throughput, by layers held.

    Where one more layer makes it a larger batch, it promises no more than with one layer less; only if ``share`` is below 1.

    Args:
        batch: float64 (b,), batches tried.
        speed: float64 (n, b), tokens/s, by layers held and batch.
        ms: float64 (n, b), mean of a micro-batch.
        taken: float64 (b,) sequences at work of a micro-batch, and (n, b) ms of the one that is limited, NaN where missed.
        limits: float64 (n,) each: sequences that memory holds, ms that the pipeline may take, tokens/s at most.
        stages: Stages of the pipeline, and what a stage takes over its share of the pipeline's time.
        share: Of the best throughput that a batch must reach.
        cell: Tokens/s, batch and ms, (n,) or more each, 0 where no batch fits and without layers.
    """
    (at_work, limited_ms), (holds, budget_ms, most), (count, scale) = taken, limits, stages
    values, chosen, stage_ms = cell
    fitting = np.zeros(len(at_work))
    least = np.inf
    for row in range(1, len(holds)):
        top = 0.0
        for k in range(len(at_work)):
            fits = count * at_work[k] <= holds[row] and count * limited_ms[row, k] * scale <= budget_ms[row]
            fitting[k] = min(speed[row, k], most[row]) if fits else 0.0
            top = max(top, fitting[k])
        k = 0
        while fitting[k] < share * top:
            k += 1
        least = min(least, fitting[k]) if share < 1 else fitting[k]
        if least > 0:
            values[row], chosen[row], stage_ms[row] = least, int(batch[k]), ms[row, k]
