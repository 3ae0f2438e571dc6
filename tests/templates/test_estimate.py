"""A library's size is known before it is built, and what does not fit is refused with an N_max that does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import LibraryError, LongBuildWarning
from coralopt.scenario import load_scenario
from coralopt.templates import build_library, node_sets, scenario_node_sets
from coralopt.templates.estimate import announce, count_node_sets, library_estimates


@settings(max_examples=60, deadline=None)
@given(
    memory=st.lists(st.sampled_from((24.0, 48.0, 80.0, 96.0, 22.5)), min_size=1, max_size=5),
    most=st.integers(1, 5),
    cap=st.sampled_from((10.0, 60.0, 150.0, 300.0, float("inf"))),
)
def test_node_sets_are_counted_without_making_them(memory: list[float], most: int, cap: float) -> None:
    sizes = node_sets(memory, most, cap).sum(axis=1)
    assert count_node_sets(tuple(memory), most, cap) == [int((sizes <= nodes).sum()) for nodes in range(1, most + 1)]


def test_estimates_of_a_scenario() -> None:
    scenario = load_scenario("core")
    whole = library_estimates(scenario)[-1]
    assert whole.max_nodes == scenario.max_nodes
    assert whole.node_sets == sum(map(len, scenario_node_sets(scenario)))
    assert f"{whole.node_sets:,} node sets" in str(whole)


def test_too_large_is_refused_and_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = load_scenario("tiny")
    hosts = [replace(tiny.configurations[0], name=f"1xL4#{k}") for k in range(100)]
    large = replace(tiny, configurations=tuple(hosts), max_nodes=6, memory_ratio=1000.0)
    assert library_estimates(large)[-1].node_sets > 3e9
    with pytest.raises(LibraryError, match=r"lower pruning.max_nodes \([0-9,]+ node sets at max_nodes [1-4]"):
        announce(large)
    monkeypatch.setattr("coralopt.templates.estimate.LONG_S", 0.0)
    with pytest.warns(LongBuildWarning, match="node sets at max_nodes"):
        build_library(tiny)
