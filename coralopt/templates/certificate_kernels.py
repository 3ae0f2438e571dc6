"""Compiled loops of the certificate: covering by whole nodes, and layer splits, for every throughput on a grid."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.types import Bools, Floats, Ints


@njit(cache=True, parallel=True)
def cover_costs(steps: Ints, price: Floats, most: int, until: int, out: Floats) -> None:
    """``out[j, t]`` = least price of whole nodes with at least t steps together, for t = 0..``until``, j = 0..``most``.

    ``steps[c, j]`` (int64): steps of one node of configuration c with j layers, 0: it cannot; ``price[c]`` may be infinite.
    """
    order = np.argsort(price)
    for j in prange(most + 1):
        # Of nodes that give no more and cost no less than another nothing is bought.
        front = np.empty(steps.shape[0], dtype=np.int64)
        kept, most = 0, 0
        for c in order:
            if steps[c, j] > most and price[c] < np.inf:
                most = steps[c, j]
                front[kept] = c
                kept += 1
        out[j, 0] = 0.0
        passed = 0
        for t in range(1, until + 1):
            least = np.inf
            replaced = False
            for i in range(kept):
                c = front[i]
                if i == passed and steps[c, j] == t:
                    # What cheaper nodes serve together for no more is not bought from here on.
                    replaced = least <= price[c]
                cost = price[c] + out[j, max(t - steps[c, j], 0)]
                if cost < least:
                    least = cost
            out[j, t] = least
            if replaced:
                kept -= 1
                for i in range(passed, kept):
                    front[i] = front[i + 1]
            elif passed < kept and steps[front[passed], j] == t:
                passed += 1


@njit(cache=True)
def _times(left: Floats, right: Floats, out: Floats) -> None:
    for total in range(out.shape[0]):
        least = np.inf
        for j in range(total + 1):
            if left[j] + right[total - j] < least:
                least = left[j] + right[total - j]
        out[total] = least


@njit(cache=True)
def _path(line: Floats, stage: Floats, last: Floats, inner: int, spare: Floats) -> float:
    """Least price of a stage of ``line``, ``inner`` ones of ``stage`` and one of ``last`` that share all layers.

    All by layers, infinite at 0; ``line``, ``stage`` and ``spare`` are overwritten.
    """
    times = inner
    while times > 0:
        if times & 1:
            _times(line, stage, spare)
            line[:] = spare
        times >>= 1
        if times > 0:
            _times(stage, stage, spare)
            stage[:] = spare
    layers = line.shape[0] - 1
    least = np.inf
    for j in range(1, layers):
        least = min(least, line[j] + last[layers - j])
    return least


@njit(cache=True, parallel=True)
def token_prices(values: Floats, price: Floats, out: Floats) -> None:
    """``out[S - 1]`` = least price of one token/s in a pipeline of S stages of nodes in fractions; infinite without one.

    ``values``: (S, 3, C, L + 1), tokens/s of one node; ``price[c]`` may be infinite.
    """
    layers = values.shape[3] - 1
    for s in prange(values.shape[0]):
        out[s] = np.inf
        if s >= layers:
            continue
        cost = np.full((3, layers + 1), np.inf)
        for role in range(3):
            for c in range(values.shape[2]):
                if price[c] < np.inf:
                    for j in range(1, layers - s + 1):
                        if values[s, role, c, j] > 0:
                            cost[role, j] = min(cost[role, j], price[c] / values[s, role, c, j])
        if s == 0:
            out[s] = cost[FIRST, layers]
        else:
            out[s] = _path(cost[FIRST], cost[MIDDLE], cost[LAST], s - 1, np.empty(layers + 1))


@njit(cache=True, parallel=True)
def split_layers(first: Floats, middle: Floats, last: Floats, inner: int, wanted: Bools, best: Floats) -> None:
    """``best[t]`` = min(best[t], least price of a first stage, ``inner`` middle ones and a last one, of t steps each).

    Tables are (L + 1, T + 1); 0 layers are no stage. Only where ``wanted[t]``.
    """
    layers = first.shape[0] - 1
    for t in prange(1, best.shape[0]):
        if not wanted[t]:
            continue
        line, stage, spare = np.empty(layers + 1), np.empty(layers + 1), np.empty(layers + 1)
        stage[0] = np.inf
        line[0] = np.inf
        for j in range(1, layers + 1):
            line[j] = first[j, t]
            stage[j] = middle[j, t]
        best[t] = min(best[t], _path(line, stage, last[:, t], inner, spare))


@njit(cache=True)
def cover_demand(one: Floats, out: Floats) -> None:
    """``out[t]`` = least price of any number of instances with at least t steps together; ``one[t]`` of one instance."""
    out[0] = 0.0
    for t in range(1, out.shape[0]):
        least = np.inf
        for a in range(1, out.shape[0]):
            cost = one[a] + out[max(t - a, 0)]
            if cost < least:
                least = cost
        out[t] = least


@njit(cache=True)
def trace_instance(
    first: tuple[Floats, Ints],
    middle: tuple[Floats, Ints],
    last: tuple[Floats, Ints],
    price: Floats,
    size: tuple[int, int],
    nodes: Ints,
) -> None:
    """Add to ``nodes[c]`` the nodes of a cheapest instance; ``size``: stages and steps t.

    Of each role: least prices as of :func:`cover_costs`, and the steps of a node.
    """
    stages, t = size
    layers = first[0].shape[0] - 1
    if stages == 1:
        _take(first, price, layers, t, nodes)
        return
    line = np.full((stages, layers + 1), np.inf)
    held = np.zeros((stages, layers + 1), dtype=np.int64)
    for position in range(stages):
        table = first[0] if position == 0 else last[0] if position == stages - 1 else middle[0]
        for total in range(1, layers + 1):
            for j in range(1, total + 1):
                if position == 0:
                    cost = table[j, t] if j == total else np.inf
                else:
                    cost = line[position - 1, total - j] + table[j, t]
                if cost < line[position, total]:
                    line[position, total] = cost
                    held[position, total] = j
    left = layers
    for back in range(stages):
        position = stages - 1 - back
        role = first if position == 0 else last if position == stages - 1 else middle
        _take(role, price, held[position, left], t, nodes)
        left -= held[position, left]


@njit(cache=True)
def _take(role: tuple[Floats, Ints], price: Floats, layers: int, t: int, nodes: Ints) -> None:
    """Add the nodes of a cheapest stage of t steps."""
    costs, steps = role
    while t > 0:
        chosen = -1
        least = np.inf
        for c in range(steps.shape[0]):
            if steps[c, layers] > 0:
                cost = price[c] + costs[layers, max(t - steps[c, layers], 0)]
                if cost < least:
                    least, chosen = cost, c
        if chosen < 0:
            return
        nodes[chosen] += 1
        t -= steps[chosen, layers]
