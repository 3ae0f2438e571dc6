"""Branch and bound that always looks at the open node of least bound next, the older one of two alike."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar

Node = TypeVar("Node")
#: What looking at a node of some bound says: a bound on what is settled there, infinite where nothing is, and its children.
Look = Callable[[float, Node], tuple[float, Iterable[tuple[float, Node]]]]


def best_first(bound: float, root: Node, look: Look[Node], goes_on: Callable[[float], bool], most: int) -> float:
    """The least bound of all that is settled or still open.

    Args:
        bound: What everything in the root costs at least.
        root: The first node.
        look: Called with the bound of a node and the node.
        goes_on: Whether the tree goes on, given the least bound of its open nodes.
        most: Nodes looked at.
    """
    heap, ages, settled = [(bound, 0, root)], itertools.count(1), math.inf
    for _ in range(most):
        if not heap or not goes_on(heap[0][0]):
            break
        least, _, node = heapq.heappop(heap)
        own, children = look(least, node)
        settled = min(settled, own)
        for child_bound, child in children:
            heapq.heappush(heap, (child_bound, next(ages), child))
    return min(settled, heap[0][0] if heap else math.inf)
