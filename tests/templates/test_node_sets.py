"""Enumeration of node sets."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coralopt.catalog import models, node_configurations
from coralopt.catalog.types import GIB
from coralopt.templates import node_sets, node_sets_for


@given(
    memory=st.lists(st.integers(1, 50).map(float), min_size=1, max_size=5),
    max_nodes=st.integers(1, 5),
    cap=st.integers(1, 150).map(float),
)
def test_equals_plain_enumeration(memory: list[float], max_nodes: int, cap: float) -> None:
    """Every multiset within both limits occurs exactly once: a missing one would silently lose optima."""
    found = {tuple(int(n) for n in row) for row in node_sets(memory, max_nodes, cap)}
    expected = set()
    for size in range(1, max_nodes + 1):
        for nodes in combinations_with_replacement(range(len(memory)), size):
            if size == 1 or sum(memory[c] for c in nodes) < cap:
                expected.add(tuple(nodes.count(c) for c in range(len(memory))))
    assert found == expected
    assert len(node_sets(memory, max_nodes, cap)) == len(expected)


def test_single_nodes_stay_however_large_they_are() -> None:
    """gpt-oss-20b has 12.8 GiB of weights, 12 times that are less than one B200; it is served on one, not on none."""
    model, nodes = models()["gpt-oss-20b"], [node_configurations()[f"{count}xB200"] for count in (1, 8)]
    assert 12 * model.weight_bytes / GIB < nodes[0].memory_gib
    assert node_sets_for(model, nodes, 6, 12.0).tolist() == [[0, 1], [1, 0]]
    assert len(node_sets_for(model, nodes, 6, 100.0)) > 2


def test_counts_of_the_paper() -> None:
    """20 configurations and at most 6 nodes give C(26, 6) - 1 node sets when nothing is pruned."""
    assert len(node_sets([1.0] * 20, 6)) == comb(26, 6) - 1 == 230_229


@given(memory=st.lists(st.integers(1, 9).map(float), min_size=1, max_size=4), cap=st.integers(1, 40).map(float))
def test_sorted_and_closed_under_removal(memory: list[float], cap: float) -> None:
    """The sweep answers a set from its subsets, so they must all be there and come earlier."""
    rows = node_sets(memory, 4, cap)
    keys = [(int(row.sum()), tuple(int(n) for n in row)) for row in rows]
    assert keys == sorted(keys)
    present = {key[1] for key in keys}
    for row in rows:
        for c in np.flatnonzero(row):
            smaller = row.copy()
            smaller[c] -= 1
            assert not smaller.any() or tuple(int(n) for n in smaller) in present
