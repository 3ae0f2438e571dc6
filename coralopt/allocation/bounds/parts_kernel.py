"""Compiled loops of coverings by region (module ``parts``); imported only when they run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coralopt.compiling import compiled
from coralopt.types import Bools, Floats, Ints


@compiled()
def fastest_parts(
    digits: npt.NDArray[np.uint8], use: npt.NDArray[np.uint8], code: Ints, speed: Floats, best: Floats, choice: Ints
) -> None:
    """Unbounded knapsack over nodes: the most tokens/s of instances on exactly the nodes of every state.

    Args:
        digits: uint8 (n, c), nodes of every state; of two states the one with more nodes comes later.
        use: uint8 (k, c), nodes of every item.
        code: int64 (k,), the states of these.
        speed: float64 (k,), tokens/s.
        best: float64 (n,), filled: 0 for the first state, minus infinity for others before.
        choice: int64 (n,), filled: the item added last, -1 before.
    """
    for item in range(len(code)):
        if best[code[item]] >= speed[item]:
            continue
        for state in range(code[item], len(digits)):
            value = best[state - code[item]] + speed[item]
            if value <= best[state]:
                continue
            fits = True
            for cell in range(digits.shape[1]):
                if digits[state, cell] < use[item, cell]:
                    fits = False
                    break
            if fits:
                best[state] = value
                choice[state] = item


@compiled()
def needed_parts(digits: npt.NDArray[np.uint8], stride: Ints, best: Floats) -> Bools:
    """bool (n,): states that serve more than any with fewer nodes; ``best`` becomes the most with no more nodes."""
    keep = np.zeros(len(digits), dtype=np.bool_)
    for state in range(len(digits)):
        fewer = -np.inf
        for cell in range(digits.shape[1]):
            if digits[state, cell] > 0:
                fewer = max(fewer, best[state - stride[cell]])
        keep[state] = best[state] > fewer
        best[state] = max(best[state], fewer)
    return keep


@compiled()
def lightest_parts(
    use: npt.NDArray[np.uint8],
    node: Floats,
    most: Ints,
    cuts: tuple[Ints, Ints, Ints, Floats],
    front: Ints,
    weight: Floats,
) -> int:
    """How many parts no other one that serves as much undercuts.

    Args:
        use: uint8 (n, c), nodes of every part, those that serve most first.
        node: float64 (c,), USD/h per node.
        most: int64 (c,), nodes that a part may use.
        cuts: Weights of the nodes int64 (k, c), divisors, remainders and prices of the cuts on the supply.
        front: int64 (n,), filled with these parts, those that serve most first.
        weight: float64 (n,), filled with their weights, USD/h.
    """
    weights, divisor, remainder, price = cuts
    count, least = 0, np.inf
    for part in range(len(use)):
        total, allowed = 0.0, True
        for cell in range(use.shape[1]):
            total += node[cell] * use[part, cell]
            allowed &= use[part, cell] <= most[cell]
        if total >= least or not allowed:
            continue
        for cut in range(len(price)):
            added = 0
            for cell in range(use.shape[1]):
                added += weights[cut, cell] * use[part, cell]
            whole, rest = divmod(added, divisor[cut])
            total += price[cut] * ((divisor[cut] - remainder[cut]) * whole + max(0, rest - remainder[cut]))
        if total < least:
            least = total
            front[count], weight[count] = part, total
            count += 1
    return count


@compiled()
def with_region(
    table: Floats, rest: Floats, limit: float, parts: tuple[Ints, Floats], came: Ints, choice: Ints
) -> Floats:
    """float64 (G + 1,): least weight of some regions and one part of the next, for every amount that they serve.

    Args:
        table: float64 (G + 1,), that of the regions before, infinite where nothing serves so much; what passes G is G.
        rest: float64 (G + 1,), what completes every amount weighs at least.
        limit: Heavier coverings do not matter, USD/h.
        parts: Steps and weights of the parts, the lightest first.
        came: int64 (G + 1,), filled with the amount of the regions before.
        choice: int64 (G + 1,), filled with the part.
    """
    steps, weight = parts
    grid = len(table) - 1
    least, above = np.full(grid + 1, np.inf), np.inf
    for amount in range(grid, -1, -1):
        # What serves more at no more weight takes its place.
        if table[amount] >= above or table[amount] + rest[amount] > limit:
            continue
        above = table[amount]
        for part in range(len(steps)):
            value = table[amount] + weight[part]
            if value > limit:
                break
            total = min(grid, amount + steps[part])
            if value < least[total]:
                least[total] = value
                came[total] = amount
                choice[total] = part
    return least
