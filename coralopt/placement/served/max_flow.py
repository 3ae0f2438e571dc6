"""Maximum flow by preflow-push, highest label first, compiled: the steps of networkx in the order in which it takes them.

Helix routes by the maximum flow that networkx finds, and of several it finds one by the order of nodes and edges, so the
steps here are its steps (networkx 3.6, ``preflow_push``, BSD): current edges, gaps, heights anew by breadth-first search.
Of active nodes of one height networkx takes any, here it is the first. A call takes a hundredth of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coralopt.compiling import compiled
from coralopt.types import Floats, Ints


class _Arcs(NamedTuple):
    """Residual arcs by sender, each with its reverse."""

    start: Ints
    target: Ints
    reverse: Ints
    capacity: Floats
    flow: Floats


@compiled()
def max_flow(ends: Ints, capacity: Floats, count: int) -> tuple[float, Floats]:
    """The largest flow from node 0 to node ``count - 1``, and what every edge carries.

    Args:
        ends: int64 (M, 2), senders and receivers of edges; at most one edge joins two nodes.
        capacity: float64 (M,), positive.
        count: Nodes; their numbers, and the edges of each, are in the order in which networkx would know them.
    """
    arcs, where = _residual(ends, capacity, count)
    source, sink = 0, count - 1
    height, excess = np.zeros(count, np.int64), np.zeros(count)
    known = _distances(arcs, sink, count)
    highest = 0
    for u in range(count):
        height[u] = known[u] if known[u] >= 0 else count + 1
        if known[u] > highest and u != source:
            highest = known[u]
    if known[source] < 0:
        return 0.0, np.zeros(len(ends))
    height[source] = count
    current = arcs.start[:-1].copy()
    for a in range(arcs.start[source], arcs.start[source + 1]):
        if arcs.capacity[a] > 0:
            _push(arcs, excess, source, a, arcs.capacity[a])
    most_work, work = count + len(arcs.target), 0
    # First as much as possible to the sink, from the highest node that can still reach it.
    level = highest
    while level > 0:
        u = _active(height, excess, level)
        if u < 0:
            level -= 1
            continue
        before = level
        level, done = _discharge(arcs, excess, height, current, u, count - 1)
        work += done
        if work >= most_work:
            level = highest = _relabel_all(arcs, height, sink, count)
            work = 0
        elif not (height[1:sink] == before).any():
            # No node at this height: those above cannot reach the sink.
            for v in range(1, sink):
                if before < height[v] <= highest:
                    height[v] = count + 1
            level = highest = before - 1
        else:
            highest = max(highest, level)
    # Then what is left goes back to the source.
    level, work = _relabel_all(arcs, height, source, count), 0
    while level > count:
        u = _active(height, excess, level)
        if u < 0:
            level -= 1
            continue
        level, done = _discharge(arcs, excess, height, current, u, 2 * count)
        work += done
        if work >= most_work:
            level, work = _relabel_all(arcs, height, source, count), 0
    return excess[sink], np.minimum(np.maximum(arcs.flow[where], 0.0), capacity)


@compiled()
def _residual(ends: Ints, capacity: Floats, count: int) -> tuple[_Arcs, Ints]:
    """Arcs without flow, and the arc of every edge; arcs of a node are in the order in which its edges are known."""
    size = np.zeros(count + 1, np.int64)
    for k in range(len(ends)):
        size[ends[k, 0] + 1] += 1
        size[ends[k, 1] + 1] += 1
    start = np.cumsum(size)
    free = start[:-1].copy()
    target, reverse = np.zeros(start[-1], np.int64), np.zeros(start[-1], np.int64)
    most, where = np.zeros(start[-1]), np.zeros(len(ends), np.int64)
    # Edges are known by sender, and both of their arcs at once.
    for k in np.argsort(ends[:, 0], kind="mergesort"):
        u, v = ends[k]
        a, b = free[u], free[v]
        free[u] += 1
        free[v] += 1
        target[a], target[b] = v, u
        reverse[a], reverse[b] = b, a
        most[a], where[k] = capacity[k], a
    return _Arcs(start, target, reverse, most, np.zeros(start[-1])), where


@compiled()
def _distances(arcs: _Arcs, goal: int, count: int) -> Ints:
    """int64 (count,): arcs with room from every node to the goal, -1 where there is no way."""
    known = np.full(count, -1, np.int64)
    queue = np.zeros(count, np.int64)
    known[goal], queue[0] = 0, goal
    first, last = 0, 1
    while first < last:
        u = queue[first]
        first += 1
        for a in range(arcs.start[u], arcs.start[u + 1]):
            v, b = arcs.target[a], arcs.reverse[a]
            if known[v] < 0 and arcs.flow[b] < arcs.capacity[b]:
                known[v] = known[u] + 1
                queue[last] = v
                last += 1
    return known


@compiled()
def _relabel_all(arcs: _Arcs, height: Ints, goal: int, count: int) -> int:
    """Exact heights, those of the way back to the source above ``count``; the largest."""
    known = _distances(arcs, goal, count)
    back = goal == 0
    highest = 0
    for u in range(count):
        if back and u == count - 1:
            continue
        if known[u] > highest:
            highest = known[u]
        if u == goal:
            continue
        if known[u] >= 0:
            height[u] = known[u] + (count if back else 0)
        elif not back and height[u] < count:
            height[u] = count + 1
    return highest + (count if back else 0)


@compiled()
def _active(height: Ints, excess: Floats, level: int) -> int:
    """The first node of this height that has more than it passes on, or -1."""
    for u in range(1, len(height) - 1):
        if height[u] == level and excess[u] > 0:
            return u
    return -1


@compiled()
def _push(arcs: _Arcs, excess: Floats, u: int, a: int, amount: float) -> None:
    arcs.flow[a] += amount
    arcs.flow[arcs.reverse[a]] -= amount
    excess[u] -= amount
    excess[arcs.target[a]] += amount


@compiled()
def _discharge(arcs: _Arcs, excess: Floats, height: Ints, current: Ints, u: int, most: int) -> tuple[int, int]:
    """Push from ``u`` until nothing is left or its height is ``most``; the height to go on at, and arcs looked at."""
    level, following, work = height[u], height[u], 0
    while True:
        a = current[u]
        v = arcs.target[a]
        if level == height[v] + 1 and arcs.flow[a] < arcs.capacity[a]:
            _push(arcs, excess, u, a, min(excess[u], arcs.capacity[a] - arcs.flow[a]))
            if excess[u] == 0:
                break
        current[u] += 1
        if current[u] == arcs.start[u + 1]:
            current[u] = arcs.start[u]
            work += arcs.start[u + 1] - arcs.start[u]
            # Heights are below twice the nodes: where sums are rounded, no arc takes what is left, and nobody comes back.
            level = 2 * len(height)
            for b in range(arcs.start[u], arcs.start[u + 1]):
                if arcs.flow[b] < arcs.capacity[b] and height[arcs.target[b]] + 1 < level:
                    level = height[arcs.target[b]] + 1
            if level >= most:
                break
            following = level
    height[u] = level
    return following, work
