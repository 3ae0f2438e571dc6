"""Enumeration of node sets: every multiset of node configurations within N_max and rho (paper section 4.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coralopt.catalog.types import GIB, ModelArchitecture, NodeConfiguration
from coralopt.types import Floats

#: A node set brings every smaller one along; one that has more than this many is left out.
MOST_SMALLER = 4096
#: Node sets of equal numbers of nodes that are looked at at most.
MOST_GROWN = 4_000_000


@dataclass(frozen=True, eq=False)
class PriceLimits:
    """What node sets cost at most, beside what they serve.

    Attributes:
        most_usd_h: What a node set costs at most.
        waste_usd_h: float64 (C,), at least 0: what a node costs above the worth of what it serves at most.
        most_waste_usd_h: What the nodes of a set waste together at most.
    """

    most_usd_h: float
    waste_usd_h: Floats
    most_waste_usd_h: float


@dataclass(frozen=True, eq=False)
class AffordableNodes:
    """What node sets may be made of.

    Attributes:
        price_usd_h: float64 (R, C), USD/h of a node; infinite where it cannot be had.
        nodes: float64 (R, C), how many there are.
        limits: What they cost at most.
        most_parts: Ways at most to split the node sets in two, times their nodes: about 60 ns each to place them.
    """

    price_usd_h: Floats
    nodes: Floats
    limits: PriceLimits
    most_parts: float


def node_sets(
    memory_gib: Sequence[float], max_nodes: int, memory_cap_gib: float = float("inf")
) -> npt.NDArray[np.int8]:
    """Every single node, and all sets of at most ``max_nodes`` nodes whose GPU memory is below ``memory_cap_gib``.

    A node is the least that can be rented, so a large one stays however small the model is. The result is closed under
    taking a node away, since both limits are; the placement sweep relies on that.

    Args:
        memory_gib: GPU memory of one node of each configuration, GiB, length C.
        max_nodes: N_max, at least 1.
        memory_cap_gib: Strict upper limit on the total GPU memory of several nodes, GiB.

    Returns:
        int8 (M, C): nodes of each configuration, sorted by the number of nodes, then lexicographically.
    """
    if not 1 <= max_nodes <= 127:
        raise ValueError(f"max_nodes is {max_nodes}; it must be between 1 and 127")
    size = len(memory_gib)
    memory = np.asarray(memory_gib, dtype=np.float64)
    # Grow by one node at a time, adding only configurations at or after the last one present,
    # so that every multiset is made exactly once.
    level = np.zeros((1, size), dtype=np.int8)
    last = np.zeros(1, dtype=np.int64)
    used = np.zeros(1, dtype=np.float64)
    levels: list[npt.NDArray[np.int8]] = []
    for _ in range(max_nodes):
        grown, grown_last, grown_used = [], [], []
        for configuration in range(size):
            small = (used == 0) | (used + memory[configuration] < memory_cap_gib)
            parents = np.flatnonzero((last <= configuration) & small)
            if not len(parents):
                continue
            children = level[parents].copy()
            children[:, configuration] += 1
            grown.append(children)
            grown_last.append(np.full(len(parents), configuration, dtype=np.int64))
            grown_used.append(used[parents] + memory[configuration])
        if not grown:
            break
        level, last, used = np.concatenate(grown), np.concatenate(grown_last), np.concatenate(grown_used)
        order = np.lexsort(level.T[::-1])
        level, last, used = level[order], last[order], used[order]
        levels.append(level)
    return np.concatenate(levels) if levels else np.zeros((0, size), dtype=np.int8)


def affordable_node_sets(
    memory_gib: Sequence[float], max_nodes: int, memory_cap_gib: float, offer: AffordableNodes
) -> npt.NDArray[np.int8] | None:
    """Node sets within N_max and rho that some region has, and that cost no more there; ``None`` if there are too many.

    Args:
        memory_gib: GPU memory of one node of each configuration, GiB, length C.
        max_nodes: N_max, at least 1.
        memory_cap_gib: Strict upper limit on the total GPU memory of several nodes, GiB.
        offer: What regions have, at which prices.

    Returns:
        int8 (M, C), closed under taking a node away, in no order.
    """
    memory, kinds = np.asarray(memory_gib, dtype=np.float64), np.eye(len(memory_gib), dtype=np.int8)
    price = np.where(np.isfinite(offer.price_usd_h), offer.price_usd_h, 0.0)
    nodes, limits = np.where(np.isfinite(offer.price_usd_h), offer.nodes, 0), offer.limits
    level, levels, parts = np.zeros((1, len(memory)), dtype=np.int8), list[npt.NDArray[np.int8]](), 0.0
    for count in range(1, max_nodes + 1):
        grown = [kinds[:1, :0]]
        for c in range(len(memory)):
            # Only configurations at or after the last one present, so that every multiset comes once.
            parents = level[(level[:, c + 1 :] == 0).all(axis=1)]
            if len(parents) * len(memory) > MOST_GROWN:
                return None
            grown.append(parents + kinds[c])
        level = np.concatenate(grown[1:])
        if count > 1:
            level = level[level @ memory < memory_cap_gib]
        had = np.zeros(len(level), dtype=bool)
        for r in range(len(price)):
            had |= (level <= nodes[r]).all(axis=1) & (level @ price[r] <= limits.most_usd_h)
        level = level[had & (level @ limits.waste_usd_h <= limits.most_waste_usd_h)]
        parts += parts_of(level)
        if parts > offer.most_parts:
            return None
        levels.append(level)
        if not len(level):
            break
    return np.concatenate(levels)


def parts_of(rows: npt.NDArray[np.int8]) -> float:
    """Ways to split node sets, int8 (M, C), in two, times their nodes; the time to place them goes with it."""
    return float((np.prod(rows + 1.0, axis=1) * rows.sum(axis=1)).sum())


def parts_of_node_set(nodes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The node set and all smaller ones, without the empty one."""
    kinds = [c for c, n in enumerate(nodes) if n]
    for counts in itertools.product(*(range(nodes[c] + 1) for c in kinds)):
        if any(counts):
            part = [0] * len(nodes)
            for c, n in zip(kinds, counts, strict=True):
                part[c] = n
            yield tuple(part)


def node_sets_for(
    model: ModelArchitecture, configurations: Sequence[NodeConfiguration], max_nodes: int, memory_ratio: float
) -> npt.NDArray[np.int8]:
    """Node sets considered for ``model``: one node, or GPU memory below ``memory_ratio`` (rho) times its weights."""
    cap_gib = memory_ratio * model.weight_bytes / GIB
    return node_sets([configuration.memory_gib for configuration in configurations], max_nodes, cap_gib)
