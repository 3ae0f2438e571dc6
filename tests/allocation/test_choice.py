"""The choice of one covering a phase is the best of all, and its bound holds wherever it ends."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.allocation.bounds.coverings import Coverings
from coralopt.allocation.search.choice import ChoiceLimits, best_choice_among
from coralopt.allocation.supply import Segments


def coverings_of(rng: np.random.Generator, phases: int, most: int, cells: int) -> Coverings:
    """Random ones, some on the same nodes, some on none."""
    count = [int(rng.integers(1, most + 1)) for _ in range(phases)]
    phase = np.repeat(np.arange(phases) * 2, count)
    use = rng.integers(0, 3, (len(phase), cells)).astype(np.int16)
    cost = use @ rng.uniform(0.5, 2.0, cells) + rng.integers(0, 4, len(phase)) / 4.0
    members = np.zeros((len(phase), 1), dtype=np.int64)
    # One limit in nodes and one in money, say.
    adds = np.stack([use.sum(axis=1, dtype=np.float64), cost + rng.uniform(0.0, 1.0, len(phase))], axis=1)
    return Coverings(phase, cost, use, members, np.zeros(len(phase), dtype=np.bool_), adds)


def pieces_within(rng: np.random.Generator, cells: int, available: np.ndarray) -> Segments:
    """Some of the nodes dearer, in up to two pieces a cell."""
    first = available[:cells].copy()
    dear: list[tuple[int, int, float]] = []
    for cell in range(cells):
        surcharge = 0.0
        for _ in range(int(rng.integers(0, 3))):
            nodes = int(rng.integers(0, first[cell] + 1))
            first[cell] -= nodes
            surcharge += float(rng.integers(1, 4)) / 2
            dear += [(cell, nodes, surcharge)] if nodes else []
    cell_of, nodes_of, surcharges = (np.array([part[k] for part in dear]) for k in range(3))
    one_region = first[None, :].astype(np.int64)
    return Segments(np.ones_like(one_region), one_region, cell_of.astype(np.int64), nodes_of, surcharges.astype(float))


def single_nodes(pieces: Segments, cell: int) -> list[float]:
    """Surcharges of all nodes of a cell, ascending."""
    prices = [0.0] * int(pieces.first[0, cell])
    for c, nodes, surcharge in zip(pieces.cell, pieces.nodes, pieces.surcharge, strict=True):
        prices += [float(surcharge)] * int(nodes) if c == cell else []
    return sorted(prices)


def cost_of(coverings: Coverings, pieces: Segments, some: list[int]) -> float:
    """USD/h, every node at its own price."""
    used = coverings.use[some].sum(axis=0).tolist()
    dearer = sum(sum(single_nodes(pieces, cell)[: int(n)]) for cell, n in enumerate(used))
    return float(coverings.cost[some].sum()) + dearer


def least_by_enumeration(coverings: Coverings, available: np.ndarray, pieces: Segments) -> float:
    """Over all choices."""
    groups = [np.flatnonzero(coverings.phase == p) for p in np.unique(coverings.phase)]
    costs = (
        cost_of(coverings, pieces, list(some))
        for some in product(*groups)
        if (coverings.rows()[list(some)].sum(axis=0) <= available).all()
    )
    return min(costs, default=math.inf)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    phases=st.integers(1, 4),
    most=st.sampled_from((3, 15)),
    below=st.sampled_from((math.inf, 1.0, 1.2, 0.9)),
    nodes=st.sampled_from((10**6, 3)),
    gap=st.sampled_from((0.0, 0.05)),
)
def test_the_best_choice_is_that_of_enumeration(
    seed: int, phases: int, most: int, below: float, nodes: int, gap: float
) -> None:
    """With targets above, at and below the optimum, ended early or not, from any prices."""
    rng = np.random.default_rng(seed)
    coverings = coverings_of(rng, phases, most, 4)
    available = np.append(rng.integers(1, 2 + phases, 4), [2.0 * phases + 4, 10.0]) * rng.choice([1.0, 1.0, 3.0], 6)
    pieces = pieces_within(rng, 4, available)
    truth = least_by_enumeration(coverings, available, pieces)
    target = below * truth if math.isfinite(truth) and math.isfinite(below) else math.inf
    price = rng.uniform(0.0, 2.0, 6) * rng.integers(0, 2)
    choice = best_choice_among(coverings, available, price, ChoiceLimits(target, gap, nodes, math.inf), pieces)
    assert choice.bound <= max(min(truth, target), 0.0) + 1e-9 or math.isinf(truth)
    if choice.chosen is not None:
        cost = cost_of(coverings, pieces, choice.chosen.tolist())
        assert (coverings.rows()[choice.chosen].sum(axis=0) <= available).all()
        assert (coverings.phase[choice.chosen] == np.unique(coverings.phase)).all()
        assert cost >= truth - 1e-9
        assert nodes == 3 or cost * (1 - gap) <= truth + 1e-9
    elif nodes > 3:
        assert truth >= target - 1e-6 * (1 + abs(target)) or math.isinf(truth)
        assert math.isinf(truth) or choice.bound == pytest.approx(target)
