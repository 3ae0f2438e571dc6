"""Branch and bound that always looks at the open node of least bound next, the older one of two alike."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from coralopt.threads import Lanes

Node = TypeVar("Node")
#: What is known of a node: a bound on what is settled there, infinite where nothing is, and its children with theirs.
Settled = tuple[float, Iterable[tuple[float, Node]]]
#: Looks at a node of some bound: first a piece that may run beside others, then what needs all that is known.
Look = Callable[[float, Node], Callable[[], Callable[[], Settled[Node]]]]


def best_first(
    bound: float,
    root: Node,
    look: Look[Node],
    goes_on: Callable[[float], bool],
    most: int,
    lanes: Lanes,
    ahead: int = 1,
) -> float:
    """The least bound of all that is settled or still open.

    Args:
        bound: What everything in the root costs at least.
        root: The first node.
        look: Called with the bound of a node and the node.
        goes_on: Whether the tree goes on, given the least bound of its open nodes.
        most: Nodes looked at.
        lanes: Who does the pieces.
        ahead: Nodes that are begun before the first of them is known: those of least bound then, whoever does them.
    """
    tree = _Open([(bound, 0, root)])
    for age, settle in lanes.results(tree.pieces(look, goes_on, most), ahead):
        own, children = settle()
        del tree.begun[age]
        tree.settled = min(tree.settled, own)
        for child_bound, child in children:
            heapq.heappush(tree.heap, (child_bound, next(tree.ages), child))
    return min(tree.settled, tree.least())


@dataclass(eq=False)
class _Open(Generic[Node]):
    """The open nodes, and by age the bounds of those that are looked at."""

    heap: list[tuple[float, int, Node]]
    ages: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    begun: dict[int, float] = field(default_factory=dict)
    settled: float = math.inf

    def least(self) -> float:
        return min([*self.begun.values(), *(node[0] for node in self.heap[:1])], default=math.inf)

    def pieces(
        self, look: Look[Node], goes_on: Callable[[float], bool], most: int
    ) -> Iterator[Callable[[], tuple[int, Callable[[], Settled[Node]]]] | None]:
        """The nodes of least bound; ``None`` while the only ones left are children of nodes that are looked at."""
        for _ in range(most):
            while self.begun and not self.heap:
                yield None
            if not self.heap or not goes_on(self.least()):
                return
            least, age, node = heapq.heappop(self.heap)
            self.begun[age] = least
            yield partial(_numbered, age, look(least, node))


def _numbered(age: int, piece: Callable[[], Callable[[], Settled[Node]]]) -> tuple[int, Callable[[], Settled[Node]]]:
    return age, piece()
