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


@dataclass(eq=False)
class OpenNodes(Generic[Node]):
    """A tree as far as it is known: its open nodes, and by age the bounds of those that are looked at.

    Attributes:
        heap: (bound, age, node) of the open ones.
        begun: Age -> bound of those that are looked at.
        settled: Least bound of all that is settled.
    """

    heap: list[tuple[float, int, Node]]
    begun: dict[int, float] = field(default_factory=dict)
    settled: float = math.inf
    ages: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @staticmethod
    def of(bound: float, root: Node) -> OpenNodes[Node]:
        """A tree of which only the root is known, and what everything in it costs at least."""
        return OpenNodes([(bound, 0, root)])

    def least(self) -> float:
        """The least bound of the open nodes."""
        return min([*self.begun.values(), *(node[0] for node in self.heap[:1])], default=math.inf)

    def search(
        self, look: Look[Node], goes_on: Callable[[float], bool], most: int, lanes: Lanes, ahead: int = 1
    ) -> float:
        """The least bound of all that is settled or still open, once the tree ends or goes no further for now.

        Args:
            look: Called with the bound of a node and the node.
            goes_on: Whether the tree goes on, given the least bound of its open nodes.
            most: Nodes looked at.
            lanes: Who does the pieces.
            ahead: Nodes that are begun before the first of them is known: those of least bound then, whoever does them.
        """
        for age, settle in lanes.results(self._pieces(look, goes_on, most), ahead):
            own, children = settle()
            del self.begun[age]
            self.settled = min(self.settled, own)
            for child_bound, child in children:
                heapq.heappush(self.heap, (child_bound, next(self.ages), child))
        return min(self.settled, self.least())

    def _pieces(
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
