r"""The least weight of what serves a model phase whichever instance is lost.

The others must give the share x of the demand T_m. With L the largest throughput among them, instances of at most L cover
max(T_m, x T_m + L), and the phase weighs at least::

    D = min over L  of  W_L(max(T_m, x T_m + L)),        W_L(t) = least weight of instances of at most L that give t

Beside any given instance the others weigh at least what covers x T_m.

A partial covering that gives s, l its largest instance, is completed by instances of at most l, or the largest one is among
those still to come::

    min( W_l(max(T_m - s, x T_m + l - s)),   min over L > l  of  w(L) + W_L(max(T_m - s - L, x T_m - s)) )

An instance that another one of no less throughput undercuts may be exchanged for that one: of both, throughputs in
descending order, one by one, are no less, so neither is what is left of them without the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coralopt.types import Floats, Ints

if TYPE_CHECKING:
    from coralopt.allocation.bounds.knapsack_kernel import Completions


@dataclass(frozen=True, eq=False)
class SparedCover:
    """What serves a model phase and a share of it whichever instance is lost, at least weight.

    Attributes:
        least: USD/h; infinite where nothing does.
        largest: Steps of the largest instance of it.
        amount: Steps that all of it covers.
        beside: float64 (G + 1,), least weight of the others beside one more instance of so many steps.
    """

    least: float
    largest: int
    amount: int
    beside: Floats


def least_spared(steps: Ints, weight: Floats, grid: int, share: float, unmet_step: float = np.inf) -> SparedCover:
    """What covers the grid, and a share of it whichever item is lost, weighs at least; every item in any number."""
    from coralopt.allocation.bounds.knapsack_kernel import cheapest_by_size, least_with_largest

    front = cheapest_by_size(steps, weight, grid)[::-1]
    # What is not served is no instance, and none of it is lost.
    sizes, weights = np.append(1, steps[front]), np.append(unmet_step, weight[front])
    largest = np.append(0, steps[front])
    spared = int(share * grid)
    amounts = np.maximum(grid, spared + largest)
    table, beside = np.full(int(amounts.max()) + 1, np.inf), np.full(grid + 1, np.inf)
    table[0] = 0.0
    least = least_with_largest(sizes, weights, largest, (grid, spared), table, beside)
    best = int(np.argmin(least))
    return SparedCover(float(least[best]), int(largest[best]), int(amounts[best]), beside)


def completions_of(steps: Ints, weight: Floats, grid: int, share: float) -> Completions:
    """What completes partial coverings of which any one item may be lost; every item in any number.

    Args:
        steps: int64 (n,), grid steps that each item covers, rounded up.
        weight: float64 (n,), USD/h.
        grid: Steps of the demand.
        share: Of it that must be left; 0 for none, and tables of nothing.
    """
    from coralopt.allocation.bounds.knapsack_kernel import Completions, cheapest_by_size, fill_completions

    front = cheapest_by_size(steps, weight, grid)[::-1] if share else np.zeros(0, dtype=np.int64)
    sizes, weights = steps[front], weight[front]
    alone, larger = (np.full((len(front) + 1, (grid if share else 0) + 1), np.inf) for _ in range(2))
    fill_completions(sizes, weights, grid - int(share * grid), alone, larger)
    return Completions(sizes, alone, larger)
