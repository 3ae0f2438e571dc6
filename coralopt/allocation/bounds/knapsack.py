"""Covering knapsacks on a grid: least weights of items, in any number, whose steps sum to at least each amount."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coralopt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class CoveringTable:
    """Least weights that cover each amount, and the items that do.

    Attributes:
        least: float64 (G + 1,), least weight that covers each amount; infinite where there are no items.
        item: int64 (k,), the items that no larger one undercuts, largest first.
        size: int64 (k,), their steps.
        weight: float64 (k,), their weights.
    """

    least: Floats
    item: Ints
    size: Ints
    weight: Floats

    @staticmethod
    def of(steps: Ints, weight: Floats, grid: int) -> CoveringTable:
        """Of items of so many steps, each at least 1 and at most ``grid``."""
        least = np.full(grid + 1, np.inf)
        least[0] = 0.0
        if not len(steps):
            return CoveringTable(least, np.zeros(0, dtype=np.int64), steps, weight)
        # Imported here: compiled code is dear to load and most commands never need it.
        from coralopt.allocation.bounds.knapsack_kernel import cheapest_by_size, cover

        front = cheapest_by_size(steps, weight, grid)
        table = CoveringTable(least, front, steps[front], weight[front])
        cover(table.size, table.weight, least)
        return table

    def members(self, amount: int) -> Ints:
        """int64 (n,): items that cover so much at the least weight, one for every copy; ``least`` must be as it was made."""
        from coralopt.allocation.bounds.knapsack_kernel import covering_items

        return self.item[covering_items(self.size, self.weight, self.least, amount)]


def least_weights(steps: Ints, weight: Floats, grid: int) -> Floats:
    """float64 (grid + 1,): least weight of items whose steps sum to at least each amount."""
    return CoveringTable.of(steps, weight, grid).least


def several_items(steps: Ints, weight: Floats, table: Floats, most: int) -> Floats:
    """float64 (most + 1, G + 1): least weight of at least k items and what ``table`` says of the rest.

    The copies of kept items are not counted here.
    """
    from coralopt.allocation.bounds.knapsack_kernel import cheapest_by_size, one_more

    if not most:
        return table[None]
    tables = np.full((most + 1, len(table)), np.inf)
    tables[0] = table
    if len(steps):
        front = cheapest_by_size(steps, weight, len(table) - 1)
        for k in range(most):
            tables[k + 1] = one_more(steps[front], weight[front], tables[k])
    return tables


def allow_copies(cover: Floats, steps: int, weight: float, copies: int) -> None:
    """Let ``cover`` use one more item at most ``copies`` times; in place. Powers of two make every number of copies."""
    size = 1
    while copies > 0:
        taken = min(size, copies)
        jump = steps * taken
        before = cover.copy()
        reach = np.maximum(np.arange(len(cover)) - jump, 0)
        np.minimum(before, before[reach] + weight * taken, out=cover)
        copies -= taken
        size *= 2


def raise_to_line(table: Floats, whole: float) -> None:
    """No amount is covered for less than its share of what a whole costs in fractions; in place."""
    from coralopt.allocation.bounds.knapsack_kernel import raise_to_slope

    if np.isfinite(whole):
        raise_to_slope(table, whole * (1 - 1e-12) / (len(table) - 1))


def cheapest_share(weight: Floats, share: Floats) -> float:
    """Least weight of a whole demand if columns that cover these shares of it could be had in fractions."""
    serves = share > 0
    return float((weight[serves] / share[serves]).min(initial=np.inf))
