"""Designs of models that want the same few nodes: held against all orders of the models."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt.planning.promise import restricted
from coralopt.planning.promise.designs import Designs

#: Nodes of each configuration that the designs of one model take, cheapest first.
Usages = list[tuple[int, int]]


def place(several: Usages, left: np.ndarray) -> tuple[int, np.ndarray] | None:
    """The first region that has nodes for the cheapest design that any region has nodes for."""
    for usage in several:
        regions = np.flatnonzero((left >= usage).all(axis=1))
        if len(regions):
            return int(regions[0]), np.array(usage)
    return None


def all_have_room(models: dict[str, Usages], nodes: np.ndarray, order: tuple[str, ...]) -> bool:
    """Whether each model of an order finds a design where those before it leave nodes."""
    left = nodes.copy()
    for model in order:
        own = place(models[model], left)
        if own is None:
            return False
        left[own[0]] -= own[1]
    return True


usages = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(usages, min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(usages, min_size=1, max_size=2),
)
def test_designs_beside_each_other(models: dict[str, Usages], rows: Usages) -> None:
    """What is found is found by some order of the models; with two of them none is missed."""
    nodes = np.array(rows)
    own = {model: SimpleNamespace(price=float(len(model))) for model in models if place(models[model], nodes)}
    designs = SimpleNamespace(nodes=nodes, raced=set(models), best=own.get)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restricted, "_cheapest_within", lambda _, left, model: place(models[model], left))
        found = restricted.find_side_by_side(cast("Designs", designs))
    orders = [all_have_room(models, nodes, order) for order in itertools.permutations(models)]
    assert found <= any(orders)
    assert len(models) > 2 or found == any(orders)
