"""Compiled loops of the certificate: prices of stages, instances and demands over whole nodes, for throughputs on a grid."""

from __future__ import annotations

import numpy as np

from coralopt.compiling import compiled
from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.types import Floats, Ints

#: Relative slack of prices that are compared, for rounding.
_CLOSE = 1e-9


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
def _fractions(speed: Floats, price: Floats, most: int, out: Floats) -> None:
    """``out[role, j]`` = least ``price[c] / speed[role, c, j]`` for j = 1..``most``; infinite without one."""
    out[:] = np.inf
    for role in range(speed.shape[0]):
        for c in range(speed.shape[1]):
            if price[c] < np.inf:
                for j in range(1, most + 1):
                    if speed[role, c, j] > 0:
                        out[role, j] = min(out[role, j], price[c] / speed[role, c, j])


@compiled(nogil=True)
def _line_below(cost: Floats, count: int, line: Floats) -> float:
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
            _fractions(values[s], price, layers - s, cost)
            if s == 0:
                cost[FIRST, :layers] = np.inf
            out[s] = _line_below(cost, s + 1, line)


@compiled(nogil=True)
def _times(left: Floats, right: Floats, out: Floats) -> None:
    for total in range(out.shape[0]):
        least = np.inf
        for j in range(total + 1):
            if left[j] + right[total - j] < least:
                least = left[j] + right[total - j]
        out[total] = least


@compiled(nogil=True)
def token_price(values: Floats, price: Floats) -> float:
    """Least price of one token/s in a pipeline of S stages of nodes in fractions; infinite without one.

    ``values``: (S, 3, C, L + 1), tokens/s of one node, of which the last S counts; ``price[c]`` may be infinite.
    """
    count, layers = values.shape[0], values.shape[3] - 1
    if count > layers:
        return np.inf
    cost = np.empty((3, layers + 1))
    _fractions(values[count - 1], price, layers - count + 1, cost)
    if count == 1:
        return float(cost[FIRST, layers])
    line, stage, spare = cost[FIRST], cost[MIDDLE], np.empty(layers + 1)
    times = count - 2
    while times > 0:
        if times & 1:
            _times(line, stage, spare)
            line[:] = spare
        times >>= 1
        if times > 0:
            _times(stage, stage, spare)
            stage[:] = spare
    least = np.inf
    for j in range(1, layers):
        least = min(least, line[j] + cost[LAST, layers - j])
    return float(least)


@compiled(nogil=True)
def _stage_tables(
    values: Floats,
    price: Floats,
    step: float,
    limit: Floats,
    steps: Ints,
    tables: Floats,
    until: Ints,
    line: Floats,
) -> float:
    """Prices of stages that instances below a limit may have, and the least price of a step in fractions of nodes.

    Args:
        values: (S, 3, C, L + 1), tokens/s of one node, of which the last S counts.
        price: (C,).
        step: Tokens/s of a step.
        limit: (G + 1,): instances of t steps matter below it.
        steps: (3, C, L + 1), written: whole steps of a node.
        tables: (3, L + 1, G + 1), written up to ``until``: least prices of stages.
        until: (3, L + 1), written: the most steps at which a stage may be in such an instance, -1 for none.
        line: As of :func:`_line_below`, for one step.
    """
    count, kinds, layers, grid = values.shape[0], values.shape[2], values.shape[3] - 1, limit.shape[0] - 1
    most = layers - count + 1
    until[:] = -1
    speed = np.zeros((3, kinds, layers + 1))
    for role in range(3):
        for c in range(kinds):
            if price[c] < np.inf:
                for j in range(1 if count > 1 else layers, most + 1):
                    whole = min(np.ceil(values[count - 1, role, c, j] / step * (1 - 1e-12)), grid)
                    speed[role, c, j] = whole
                    steps[role, c, j] = int(whole)
    cost = np.empty((3, layers + 1))
    _fractions(speed, price, most, cost)
    least = _line_below(cost, count, line)
    if not least < np.inf:
        return np.inf
    order = np.argsort(price)
    for role in range(3):
        if (role == MIDDLE and count < 3) or (role == LAST and count < 2):
            continue
        for j in range(1, most + 1):
            # A stage of j layers costs at least so much more than the line says, for every step.
            more = cost[role, j] - line[0] * j - line[1 + role]
            if not cost[role, j] < np.inf:
                continue
            t = grid
            while t > 0 and (least + more) * t * (1 - _CLOSE) >= limit[t]:
                t -= 1
            if t > 0:
                until[role, j] = t
                cover_costs(np.ascontiguousarray(steps[role, :, j]), price, order, t, tables[role, j])
    return least


@compiled(nogil=True)
def _worth(tables: Floats, until: Ints, line: Floats, role: int, t: int, slack: float, held: Ints, cost: Floats) -> int:
    """The stages that an instance of t steps may have when it costs at most ``slack`` over the line: layers and prices."""
    many = 0
    for j in range(1, until.shape[1]):
        if until[role, j] >= t and tables[role, j, t] - (line[0] * j + line[1 + role]) * t <= slack:
            held[many] = j
            cost[many] = tables[role, j, t]
            many += 1
    return many


@compiled(nogil=True)
def _cheapest_line(
    count: int, t: int, limit: float, least: float, tables: Floats, until: Ints, line: Floats, chosen: Ints
) -> float:
    """Least price of ``count`` stages of t steps each with all layers, where it is at most ``limit``, else infinite.

    ``chosen``: (count, L + 1), written: the layers of the stage with which a cheapest line of so many layers ends.
    """
    layers = until.shape[1] - 1
    if count == 1:
        chosen[0, layers] = layers
        return tables[FIRST, layers, t] if until[FIRST, layers] >= t else np.inf
    slack = limit * (1 + _CLOSE) - least * t if limit < np.inf else np.inf
    held, cost = np.empty(layers, dtype=np.int64), np.empty(layers)
    ahead, line_cost = np.full(layers + 1, np.inf), np.full(layers + 1, np.inf)
    for k in range(_worth(tables, until, line, FIRST, t, slack, held, cost)):
        ahead[held[k]] = cost[k]
        chosen[0, held[k]] = held[k]
    many = _worth(tables, until, line, MIDDLE, t, slack, held, cost) if count > 2 else 0
    offset = line[1 + FIRST]
    for stage in range(1, count - 1):
        offset += line[1 + MIDDLE]
        line_cost[:] = np.inf
        for had in range(stage, layers):
            if ahead[had] < np.inf:
                for k in range(many):
                    total, price = had + held[k], ahead[had] + cost[k]
                    if total < layers and price < line_cost[total] and price - (line[0] * total + offset) * t <= slack:
                        line_cost[total] = price
                        chosen[stage, total] = held[k]
        ahead, line_cost = line_cost, ahead
    many = _worth(tables, until, line, LAST, t, slack, held, cost)
    best = np.inf
    for k in range(many):
        if ahead[layers - held[k]] + cost[k] < best:
            best = ahead[layers - held[k]] + cost[k]
            chosen[count - 1, layers] = held[k]
    return best


@compiled(nogil=True)
def price_instances(
    values: Floats, price: Floats, step: float, least: Floats, one: Floats, every: Floats, stages: Ints
) -> None:
    """Least prices of instances and of any number of them; see :func:`coralopt.templates.instance_prices.instance_prices`.

    ``one``, ``every`` and ``stages`` (all (G + 1,)) are lowered from what they hold.
    """
    grid, layers = one.shape[0] - 1, values.shape[3] - 1
    cheapest = price.min()
    tokens = np.empty(values.shape[0])
    least_tokens(values, price, tokens)
    line = np.empty(4)
    steps = np.zeros((3, values.shape[2], layers + 1), dtype=np.int64)
    tables, until = np.empty((3, layers + 1, grid + 1)), np.empty((3, layers + 1), dtype=np.int64)
    limit, for_less, together = np.empty(grid + 1), np.empty(grid + 1), np.empty(grid + 1)
    for count in range(1, values.shape[0] + 1):
        if count * cheapest >= every[grid]:
            break
        if not tokens[count - 1] < np.inf:
            continue
        wanted = False
        for t in range(grid + 1):
            # An instance of more than t - 1 steps.
            bound = max(count * cheapest, tokens[count - 1] * step * (t - 1), least[t]) * (1 - 1e-12)
            limit[t] = every[t] if t > 0 and bound < every[t] else -np.inf
            wanted |= limit[t] > 0
        if not wanted:
            continue
        steps[:] = 0
        step_price = _stage_tables(values[:count], price, step, limit, steps, tables, until, line)
        if not step_price < np.inf:
            continue
        chosen = np.empty((count, layers + 1), dtype=np.int64)
        better = False
        for t in range(1, grid + 1):
            if limit[t] > step_price * t * (1 - _CLOSE):
                here = _cheapest_line(count, t, limit[t], step_price, tables, until, line, chosen)
                if here < one[t]:
                    one[t], stages[t] = here, count
                    better = True
        if better:
            # More steps never cost less: what serves t also serves t - 1.
            below = np.inf
            for t in range(grid, -1, -1):
                below = min(below, one[t])
                for_less[t] = below
            cover_demand(for_less, together)
            for t in range(grid + 1):
                every[t] = min(every[t], together[t])
    for t in range(grid - 1, -1, -1):
        one[t] = min(one[t], one[t + 1])


@compiled(nogil=True)
def trace_instances(
    values: Floats, price: Floats, step: float, limit: Floats, served: Ints, held: Ints, nodes: Ints
) -> None:
    """A cheapest instance of ``served[k]`` steps: write the layers ``held[k, s]`` and add the nodes ``nodes[k, s, c]``.

    ``values``: (S, 3, C, L + 1), of which the last S counts; ``limit``: (G + 1,), its price, minus infinity at all others.
    """
    count, layers = values.shape[0], values.shape[3] - 1
    line = np.empty(4)
    steps = np.zeros((3, values.shape[2], layers + 1), dtype=np.int64)
    tables, until = np.empty((3, layers + 1, limit.shape[0])), np.empty((3, layers + 1), dtype=np.int64)
    least = _stage_tables(values, price, step, limit, steps, tables, until, line)
    chosen = np.empty((count, layers + 1), dtype=np.int64)
    for k in range(served.shape[0]):
        t = served[k]
        if not _cheapest_line(count, t, limit[t], least, tables, until, line, chosen) < np.inf:
            continue
        left = layers
        for back in range(count):
            position = count - 1 - back
            role = FIRST if position == 0 else LAST if position == count - 1 else MIDDLE
            j = chosen[position, left]
            held[k, position] = j
            _take(tables[role, j], steps[role, :, j], price, t, nodes[k, position])
            left -= j


@compiled(nogil=True)
def _take(cost: Floats, steps: Ints, price: Floats, t: int, nodes: Ints) -> None:
    """Add the nodes of a cheapest stage of t steps."""
    while t > 0:
        chosen, least = -1, np.inf
        for c in range(steps.shape[0]):
            if steps[c] > 0 and price[c] + cost[max(t - steps[c], 0)] < least:
                least, chosen = price[c] + cost[max(t - steps[c], 0)], c
        if chosen < 0:
            return
        nodes[chosen] += 1
        t -= steps[chosen]


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
