"""Compiled loops that price instances of whole nodes, for throughputs on a grid; imported only when they run.

Of *scarce* configurations an instance may use so many nodes only. How many of each it uses so far is part of the state of
the programme (a shortest path with resources): state q = sum_i q_i prod_{h < i} (room_h + 1) stands for at most q_i nodes of
scarce configuration i. Without any there is one state. Nodes are counted only for as many steps as the cheapest instance
without counting uses too many of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coralopt.compiling import compiled
from coralopt.templates.certificate_kernels import cover_costs, cover_demand, least_fractions, least_tokens, line_below
from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.types import Bools, Floats, Ints

#: Relative slack of prices that are compared, for rounding.
_CLOSE = 1e-9


class NodeOffer(NamedTuple):
    """What an instance may be made of.

    Attributes:
        usd_h: float64 (C,), USD per node-hour, at least 0; infinite where a configuration cannot be had.
        scarce: int64 (k,), configurations of which it may use so many nodes only.
        room: int64 (k,), so many.
    """

    usd_h: Floats
    scarce: Ints
    room: Ints


class _Stages(NamedTuple):
    """Prices of stages.

    Attributes:
        steps: int64 (3, C, L + 1), whole steps of a node by role and layers.
        usd_h: float64 (3, L + 1, Q, G + 1), least prices of stages by role, layers, state and steps, up to ``until``.
        until: int64 (3, L + 1), the most steps at which a stage may be in an instance that matters, -1 for none.
        line: float64 (4,), as of :func:`coralopt.templates.certificate_kernels.line_below`, for one step.
    """

    steps: Ints
    usd_h: Floats
    until: Ints
    line: Floats


@compiled(nogil=True)
def _states(room: Ints) -> Bools:
    """(Q, Q): whether the first state is part of the second one."""
    count = 1
    for most in room:
        count *= most + 1
    part = np.ones((count, count), dtype=np.bool_)
    for p in range(count):
        for q in range(count):
            left, whole = p, q
            for most in room:
                part[p, q] &= left % (most + 1) <= whole % (most + 1)
                left //= most + 1
                whole //= most + 1
    return part


@compiled(nogil=True)
def _no_stages(values: Floats, states: int, grid: int) -> _Stages:
    """Room for the prices of stages."""
    kinds, width = values.shape[2], values.shape[3]
    steps, until = np.zeros((3, kinds, width), dtype=np.int64), np.empty((3, width), dtype=np.int64)
    return _Stages(steps, np.empty((3, width, states, grid + 1)), until, np.empty(4))


@compiled(nogil=True)
def _with_scarce(steps: Ints, offer: NodeOffer, until: int, out: Floats) -> None:
    """``out[q]`` of all other states, from ``out[0]``: a stage without scarce nodes, for t = 0..``until``."""
    for q in range(1, out.shape[0]):
        # The first scarce configuration of which it may use some: one node fewer, or one node and what is left.
        left, stride, i = q, 1, 0
        while left % (offer.room[i] + 1) == 0:
            left //= offer.room[i] + 1
            stride *= offer.room[i] + 1
            i += 1
        price, served = offer.usd_h[offer.scarce[i]], steps[offer.scarce[i]]
        for t in range(until + 1):
            out[q, t] = out[q - stride, t]
            if served > 0 and t > 0:
                out[q, t] = min(out[q, t], price + out[q - stride, max(t - served, 0)])


@compiled(nogil=True)
def _price_stages(values: Floats, offer: NodeOffer, step: float, limit: Floats, stages: _Stages) -> float:
    """Write the prices of stages that instances below a limit may have; the least price of a step in fractions of nodes.

    Args:
        values: (S, 3, C, L + 1), tokens/s of one node, of which the last S counts.
        offer: The nodes.
        step: Tokens/s of a step.
        limit: (G + 1,): instances of t steps matter below it.
        stages: Written.
    """
    count, kinds, layers, grid = values.shape[0], values.shape[2], values.shape[3] - 1, limit.shape[0] - 1
    most, price = layers - count + 1, offer.usd_h
    stages.until[:] = -1
    stages.steps[:] = 0
    speed = np.zeros((3, kinds, layers + 1))
    for role in range(3):
        for c in range(kinds):
            if price[c] < np.inf:
                for j in range(1 if count > 1 else layers, most + 1):
                    whole = min(np.ceil(values[count - 1, role, c, j] / step * (1 - 1e-12)), grid)
                    speed[role, c, j] = whole
                    stages.steps[role, c, j] = int(whole)
    cost = np.empty((3, layers + 1))
    least_fractions(speed, price, most, cost)
    line = stages.line
    least = line_below(cost, count, line)
    if not least < np.inf:
        return np.inf
    others = price.copy()
    others[offer.scarce] = np.inf
    order = np.argsort(others)
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
                stages.until[role, j] = t
                steps, table = np.ascontiguousarray(stages.steps[role, :, j]), stages.usd_h[role, j]
                cover_costs(steps, others, order, t, table[0])
                _with_scarce(steps, offer, t, table)
    return least


@compiled(nogil=True)
def _worth(stages: _Stages, role: int, t: int, slack: float, held: Ints, cost: Floats) -> int:
    """The stages that an instance of t steps may have when it costs at most ``slack`` over the line.

    Writes their layers, ascending, and their prices in every state; returns how many there are.
    """
    many, last, usd_h, until = 0, cost.shape[0] - 1, stages.usd_h[role], stages.until[role]
    slope, offset = stages.line[0], stages.line[1 + role]
    for j in range(1, until.shape[0]):
        if until[j] >= t:
            least = usd_h[j, last, t]
            if least - (slope * j + offset) * t <= slack:
                held[many] = j
                cost[last, many] = least
                for q in range(last):
                    cost[q, many] = usd_h[j, q, t]
                many += 1
    return many


@compiled(nogil=True)
def _cheapest_line(count: int, t: int, limit: float, least: float, stages: _Stages, part: Bools, chosen: Ints) -> float:
    """Least price of ``count`` stages of t steps each with all layers, where it is at most ``limit``, else infinite.

    ``chosen``: (count, Q, L + 1), written: the last stage of a cheapest line in such a state and of so many layers, as its
    layers times Q plus its state.
    """
    layers, states, line = stages.until.shape[1] - 1, part.shape[0], stages.line
    full = states - 1
    if count == 1:
        chosen[0, full, layers] = layers * states + full
        return stages.usd_h[FIRST, layers, full, t] if stages.until[FIRST, layers] >= t else np.inf
    slack = limit * (1 + _CLOSE) - least * t if limit < np.inf else np.inf
    held, cost = np.empty(layers, dtype=np.int64), np.empty((states, layers))
    ahead, longer = np.full((states, layers + 1), np.inf), np.empty((states, layers + 1))
    for k in range(_worth(stages, FIRST, t, slack, held, cost)):
        for q in range(states):
            ahead[q, held[k]] = cost[q, k]
            chosen[0, q, held[k]] = held[k] * states + q
    many = _worth(stages, MIDDLE, t, slack, held, cost) if count > 2 else 0
    offset = line[1 + FIRST]
    for stage in range(1, count - 1):
        offset += line[1 + MIDDLE]
        longer[:] = np.inf
        for p in range(states):
            for q in range(states - p):
                if not part[q, full - p]:
                    continue
                before, more, after, last = ahead[p], cost[q], longer[p + q], chosen[stage, p + q]
                for had in range(stage, layers):
                    if before[had] < np.inf:
                        for k in range(many):
                            total, price = had + held[k], before[had] + more[k]
                            fits = total < layers and price < after[total]
                            if fits and price - (line[0] * total + offset) * t <= slack:
                                after[total] = price
                                last[total] = held[k] * states + q
        ahead, longer = longer, ahead
    best = np.inf
    for k in range(_worth(stages, LAST, t, slack, held, cost)):
        for q in range(states):
            price = ahead[full - q, layers - held[k]] + cost[q, k]
            if price < best:
                best = price
                chosen[count - 1, full, layers] = held[k] * states + q
    return best


@compiled(nogil=True)
def _take(cost: Floats, steps: Ints, offer: NodeOffer, whole: Ints, nodes: Ints) -> None:
    """Add the nodes of a cheapest stage; ``whole``: its state and its steps."""
    q, t = whole
    while q > 0:
        left, stride, i = q, 1, 0
        while left % (offer.room[i] + 1) == 0:
            left //= offer.room[i] + 1
            stride *= offer.room[i] + 1
            i += 1
        c = offer.scarce[i]
        if cost[q, t] < cost[q - stride, t]:
            nodes[c] += 1
            t = max(t - steps[c], 0)
        q -= stride
    while t > 0:
        chosen, least = -1, np.inf
        for c in range(steps.shape[0]):
            price = np.inf if (offer.scarce == c).any() else offer.usd_h[c]
            if steps[c] > 0 and price + cost[0, max(t - steps[c], 0)] < least:
                least, chosen = price + cost[0, max(t - steps[c], 0)], c
        if chosen < 0:
            return
        nodes[chosen] += 1
        t -= steps[chosen]


@compiled(nogil=True)
def _trace(offer: NodeOffer, stages: _Stages, chosen: Ints, t: int, held: Ints, nodes: Ints) -> None:
    """Write the layers (S,) and add the nodes (S, C) of the line of t steps that ``chosen`` says."""
    count, states = chosen.shape[0], chosen.shape[1]
    left, state = chosen.shape[2] - 1, states - 1
    for back in range(count):
        position = count - 1 - back
        role = FIRST if position == 0 else LAST if position == count - 1 else MIDDLE
        j, q = chosen[position, state, left] // states, chosen[position, state, left] % states
        held[position] = j
        _take(stages.usd_h[role, j], stages.steps[role, :, j], offer, np.array([q, t]), nodes[position])
        left -= j
        state -= q


@compiled(nogil=True)
def _fits(nodes: Ints, offer: NodeOffer) -> bool:
    """Whether nodes (S, C) of an instance are as many as it may use."""
    fits = True
    for i in range(len(offer.scarce)):
        fits &= nodes[:, offer.scarce[i]].sum() <= offer.room[i]
    return fits


@compiled(nogil=True)
def price_instances(
    values: Floats, offer: NodeOffer, step: float, least: Floats, one: Floats, every: Floats, stages: Ints
) -> None:
    """Least prices of instances and of any number of them; see :func:`coralopt.templates.instance_prices.instance_prices`.

    ``one``, ``every`` and ``stages`` (all (G + 1,)) are lowered from what they hold.
    """
    grid, layers = one.shape[0] - 1, values.shape[3] - 1
    cheapest = offer.usd_h.min()
    tokens = np.empty(values.shape[0])
    least_tokens(values, offer.usd_h, tokens)
    # Nodes are counted where the cheapest instance uses too many of them.
    free, part = NodeOffer(offer.usd_h, offer.scarce[:0], offer.room[:0]), _states(offer.room)
    whole = part[:1, :1]
    prices, counted = _no_stages(values, 1, grid), _no_stages(values, part.shape[0], grid)
    held, nodes = np.empty(values.shape[0], dtype=np.int64), np.empty(values.shape[0:3:2], dtype=np.int64)
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
        step_price = _price_stages(values[:count], free, step, limit, prices)
        if not step_price < np.inf:
            continue
        chosen = np.empty((count, 1, layers + 1), dtype=np.int64)
        chosen_counted = np.empty((count, part.shape[0], layers + 1), dtype=np.int64)
        better = too_many = False
        for t in range(1, grid + 1):
            if limit[t] > step_price * t * (1 - _CLOSE):
                here = _cheapest_line(count, t, limit[t], step_price, prices, whole, chosen)
                if here < one[t] and len(offer.scarce) > 0:
                    nodes[:count] = 0
                    _trace(free, prices, chosen, t, held, nodes)
                    if not _fits(nodes[:count], offer):
                        if not too_many:
                            _price_stages(values[:count], offer, step, limit, counted)
                            too_many = True
                        here = _cheapest_line(count, t, limit[t], step_price, counted, part, chosen_counted)
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
    values: Floats, offer: NodeOffer, step: float, limit: Floats, served: Ints, held: Ints, nodes: Ints
) -> None:
    """A cheapest instance of ``served[k]`` steps: write the layers ``held[k, s]`` and add the nodes ``nodes[k, s, c]``.

    ``values``: (S, 3, C, L + 1), of which the last S counts; ``limit``: (G + 1,), its price, minus infinity at all others.
    """
    count, layers = values.shape[0], values.shape[3] - 1
    part = _states(offer.room)
    states = part.shape[0]
    prices = _no_stages(values, states, limit.shape[0] - 1)
    least = _price_stages(values, offer, step, limit, prices)
    chosen = np.empty((count, states, layers + 1), dtype=np.int64)
    for k in range(served.shape[0]):
        t = served[k]
        if _cheapest_line(count, t, limit[t], least, prices, part, chosen) < np.inf:
            _trace(offer, prices, chosen, t, held[k], nodes[k])
