"""Compiled loops of the certificate: prices of stages, instances and demands over whole nodes, for throughputs on a grid."""

from __future__ import annotations

import numpy as np

from coralopt.compiling import compiled
from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.types import Floats, Ints


@compiled(nogil=True)
def cover_costs(steps: Ints, price: Floats, order: Ints, until: int, out: Floats) -> None:
    """``out[t]`` = least price of whole nodes with at least t steps together, for t = 0..``until``.

    ``steps[c]`` (int64): steps of one node of configuration c, 0: it cannot; ``price[c]`` may be infinite; ``order``: the
    configurations by price.
    """
    front = np.empty(steps.shape[0], dtype=np.int64)
    kept, most = 0, 0
    # Of nodes that give no more and cost no less than another nothing is bought.
    for c in order:
        if steps[c] > most and price[c] < np.inf:
            most = steps[c]
            front[kept] = c
            kept += 1
    out[0] = 0.0
    passed = 0
    for t in range(1, until + 1):
        least = np.inf
        for i in range(passed):
            cost = price[front[i]] + out[t - steps[front[i]]]
            if cost < least:
                least = cost
        if passed < kept:
            # The cheapest of the nodes that cover t steps alone.
            c = front[passed]
            if steps[c] == t and least <= price[c]:
                # What cheaper nodes serve together for no more is not bought from here on.
                kept -= 1
                for i in range(passed, kept):
                    front[i] = front[i + 1]
            else:
                least = min(least, price[c])
                if steps[c] == t:
                    passed += 1
        out[t] = least


@compiled(nogil=True)
def least_fractions(speed: Floats, price: Floats, most: int, out: Floats) -> None:
    """``out[role, j]`` = least ``price[c] / speed[role, c, j]`` for j = 1..``most``; infinite without one."""
    out[:] = np.inf
    for role in range(speed.shape[0]):
        for c in range(speed.shape[1]):
            if price[c] < np.inf:
                for j in range(1, most + 1):
                    if speed[role, c, j] > 0:
                        out[role, j] = min(out[role, j], price[c] / speed[role, c, j])


@compiled(nogil=True)
def line_below(cost: Floats, count: int, line: Floats) -> float:
    """A line below the costs of stages, and by it the least cost of ``count`` stages; infinite where there can be none.

    Writes a slope and the offsets of the roles: ``cost[role, j] >= line[0] * j + line[1 + role]``. ``count`` stages with
    all layers together cost at least their offsets and the slope times the layers. That is highest at the slope where
    the cheapest stages have just so many layers (Lagrange), found by bisection.
    """
    layers = cost.shape[1] - 1
    times = np.array([1, max(count - 2, 0), min(count - 1, 1)])
    high = 0.0
    for role in range(3):
        finite = times[role] == 0
        for j in range(1, layers + 1):
            if times[role] > 0 and cost[role, j] < np.inf:
                finite = True
                high = max(high, cost[role, j])
        if not finite:
            return np.inf
    low, best, slope = -high, -np.inf, 0.0
    offsets = np.zeros(3)
    for _ in range(40):
        total, held = slope * layers, 0
        for role in range(3):
            if times[role] > 0:
                least, at = np.inf, 0
                for j in range(1, layers + 1):
                    if cost[role, j] - slope * j < least:
                        least, at = cost[role, j] - slope * j, j
                offsets[role] = least
                total += times[role] * least
                held += times[role] * at
        if total > best:
            best, line[0] = total, slope
            line[1:] = offsets
        if held == layers:
            break
        if held < layers:
            low = slope
        else:
            high = slope
        slope = 0.5 * (low + high)
    return best


@compiled(nogil=True)
def least_tokens(values: Floats, price: Floats, out: Floats) -> None:
    """``out[S - 1]`` <= least price of one token/s in a pipeline of S stages of nodes in fractions; infinite without one.

    ``values``: (S, 3, C, L + 1), tokens/s of one node; ``price[c]`` may be infinite.
    """
    layers = values.shape[3] - 1
    cost, line = np.empty((3, layers + 1)), np.empty(4)
    for s in range(values.shape[0]):
        out[s] = np.inf
        if s < layers:
            least_fractions(values[s], price, layers - s, cost)
            if s == 0:
                cost[FIRST, :layers] = np.inf
            out[s] = line_below(cost, s + 1, line)


@compiled(nogil=True)
def join_tables(left: Floats, right: Floats, out: Floats) -> None:
    """``out[t]`` = least of ``left[t - s] + right[s]`` over the steps s that ``right`` has."""
    for t in range(out.shape[0]):
        least = np.inf
        for s in range(min(t + 1, right.shape[0])):
            least = min(least, left[t - s] + right[s])
        out[t] = least


@compiled(nogil=True)
def token_price(values: Floats, price: Floats) -> float:
    """Least price of one token/s in a pipeline of S stages of nodes in fractions; infinite without one.

    ``values``: (S, 3, C, L + 1), tokens/s of one node, of which the last S counts; ``price[c]`` may be infinite.
    """
    count, layers = values.shape[0], values.shape[3] - 1
    if count > layers:
        return np.inf
    cost = np.empty((3, layers + 1))
    least_fractions(values[count - 1], price, layers - count + 1, cost)
    if count == 1:
        return float(cost[FIRST, layers])
    line, stage, spare = cost[FIRST], cost[MIDDLE], np.empty(layers + 1)
    times = count - 2
    while times > 0:
        if times & 1:
            join_tables(line, stage, spare)
            line[:] = spare
        times >>= 1
        if times > 0:
            join_tables(stage, stage, spare)
            stage[:] = spare
    least = np.inf
    for j in range(1, layers):
        least = min(least, line[j] + cost[LAST, layers - j])
    return float(least)


@compiled(nogil=True)
def one_more(one: Floats, table: Floats, out: Floats) -> None:
    """``out[t]`` = least of ``one[s]`` and what ``table`` says of the rest of t steps, over s from 1 on."""
    grid = out.shape[0] - 1
    for t in range(grid + 1):
        out[t] = np.inf
        for s in range(1, grid + 1):
            out[t] = min(out[t], one[s] + table[t - s if t > s else 0])


@compiled(nogil=True)
def cover_demand(one: Floats, out: Floats) -> None:
    """``out[t]`` = least price of any number of instances with at least t steps together; ``one[t]`` of one instance.

    ``one`` may fall; what serves more serves less, too.
    """
    grid = out.shape[0] - 1
    best = np.empty(grid + 1)
    best[grid] = one[grid]
    for t in range(grid - 1, 0, -1):
        best[t] = min(one[t], best[t + 1])
    kept, many = np.empty(grid + 1, dtype=np.int64), 0
    out[0] = 0.0
    for t in range(1, grid + 1):
        least = np.inf
        for i in range(many):
            cost = best[kept[i]] + out[t - kept[i]]
            if cost < least:
                least = cost
        if best[t] < least:
            least = best[t]
            # Where the next step costs as much, that instance is the one to have.
            if t == grid or best[t + 1] > best[t]:
                kept[many] = t
                many += 1
        out[t] = least


@compiled(nogil=True)
def cover_without_one(one: Floats, beside: int) -> tuple[float, int]:
    """Least price of instances with all steps together, and ``beside`` without the largest; steps of the largest.

    ``one[t]``: price of one instance of t steps or more. Infinite, and 0, where there are none.
    """
    grid = one.shape[0] - 1
    # Least price of t steps by instances so far, which ascend.
    few = np.full(grid + 1, np.inf)
    few[0] = 0.0
    best, largest = np.inf, 0
    for t in range(1, grid + 1):
        # What smaller ones do together for no more, or one of more steps for the same, is no better as the largest either.
        if one[t] == np.inf or few[t] <= one[t] or (t < grid and one[t + 1] <= one[t]):
            continue
        for s in range(1, grid + 1):
            few[s] = min(few[s], one[t] + few[s - t if s > t else 0])
        cost = one[t] + few[max(grid - t, beside)]
        if cost < best:
            best, largest = cost, t
    return best, largest
