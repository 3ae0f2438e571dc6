"""Compiled loops over prices of a phase's own; imported only when they run."""

from __future__ import annotations

import numpy as np

from coralopt.allocation.bounds.knapsack_kernel import cheapest_by_size, cover, covering_items, raise_to_slope, steps_of
from coralopt.compiling import compiled
from coralopt.types import Floats, Ints


@compiled(nogil=True)
def priced_cover(
    speed: Floats,
    cell: Ints,
    amount: Floats,
    weight: Floats,
    prices: Floats,
    demand: float,
    grid: int,
) -> tuple[Floats, Floats, Ints, Floats]:
    """The covering knapsack at prices of a phase's own.

    Args:
        speed: float64 (n,), tokens/s, of every instance.
        cell: int64 (n, w), cells whose nodes it uses; -1 for none.
        amount: float64 (n, w), how many nodes of each.
        weight: float64 (n,), USD/h, without these prices.
        prices: float64 (R * C,), USD/h per node.
        demand: tokens/s; 0 counts as 1.
        grid: G, steps of the demand.

    Returns:
        float64 (n,), USD/h that every instance pays; float64 (G + 1,), USD/h, least weight of what serves so many steps;
        int64, the instances of the lightest covering, one entry a copy, and float64 (R * C,), the nodes that it uses.
    """
    whole, paid, steps = weight.copy(), np.zeros(len(speed)), np.empty(len(speed), dtype=np.int64)
    use = np.zeros(len(prices))
    share, demand = np.inf, demand if demand > 0 else 1.0
    for item in range(len(speed)):
        for k in range(cell.shape[1]):
            if cell[item, k] >= 0:
                paid[item] += prices[cell[item, k]] * amount[item, k]
        whole[item] += paid[item]
        steps[item] = steps_of(speed[item], demand, grid)
        if speed[item] > 0:
            share = min(share, whole[item] / (speed[item] / demand))
    least = np.full(grid + 1, np.inf)
    least[0] = 0.0
    front = cheapest_by_size(steps, whole, grid)
    if not len(front):
        return paid, least, front, use
    sizes, weights = steps[front], whole[front]
    cover(sizes, weights, least)
    members = front[covering_items(sizes, weights, least, grid)]
    for item in members:
        for k in range(cell.shape[1]):
            if cell[item, k] >= 0:
                use[cell[item, k]] += amount[item, k]
    if np.isfinite(share):
        raise_to_slope(least, share * (1 - 1e-12) / grid)
    return paid, least, members, use
