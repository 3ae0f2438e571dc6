"""Node sets that some region has for so much: against looking at all."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.templates import AffordableNodes, PriceLimits, node_sets
from coralopt.templates.node_sets import affordable_node_sets, parts_of


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([24.0, 48.0, 96.0]), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from([100.0, 150.0, float("inf")]),
    st.integers(0, 2**16),
)
def test_affordable_node_sets_are_those_of_all(memory: list[float], most: int, cap: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    price = draw.choice([0.0, 1.0, 2.5, np.inf], (2, len(memory)))
    nodes, most_usd_h = draw.integers(0, 4, price.shape).astype(float), float(draw.choice([1.0, 4.0, np.inf]))
    waste, most_waste = draw.choice([0.0, 0.5, 3.0], len(memory)), float(draw.choice([0.0, 1.0, 5.0]))
    every = node_sets(memory, most, cap)
    kept = [
        tuple(row)
        for row in every.tolist()
        if any(
            all(n <= h and (n == 0 or np.isfinite(p)) for n, h, p in zip(row, had, at, strict=True))
            and sum(n * p for n, p in zip(row, at, strict=True) if n) <= most_usd_h
            for had, at in zip(nodes, price, strict=True)
        )
        and np.array(row) @ waste <= most_waste
    ]
    limits = PriceLimits(most_usd_h, waste, most_waste)
    rows = affordable_node_sets(memory, most, cap, AffordableNodes(price, nodes, limits, float("inf")))
    assert rows is not None
    assert sorted(map(tuple, rows.tolist())) == sorted(kept)
    parts = parts_of(rows)
    if parts > 0:
        assert affordable_node_sets(memory, most, cap, AffordableNodes(price, nodes, limits, parts - 1)) is None
