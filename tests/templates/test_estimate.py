"""A library's size is known before it is built, and what does not fit is refused with an N_max that does."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from math import comb, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import LibraryError, LongBuildWarning
from coralopt.scenario import ResolvedScenario, load_scenario
from coralopt.templates import build_library, node_sets, scenario_node_sets
from coralopt.templates.estimate import (
    LibraryEstimate,
    _memory_sums,
    announce,
    count_node_sets,
    has_more_node_sets,
    library_estimates,
)


def many_hosts() -> ResolvedScenario:
    """`tiny` with a hundred kinds of nodes of equal memory, up to six in a set, and no cap that binds."""
    tiny = load_scenario("tiny")
    hosts = [replace(tiny.configurations[0], name=f"1xL4#{k}") for k in range(100)]
    return replace(tiny, configurations=tuple(hosts), max_nodes=6, memory_ratio=1000.0)


@settings(max_examples=60, deadline=None)
@given(
    memory=st.lists(st.sampled_from((24.0, 48.0, 80.0, 96.0, 22.5)), min_size=1, max_size=5),
    most=st.integers(1, 5),
    caps=st.lists(st.sampled_from((10.0, 60.0, 150.0, 300.0, float("inf"))), min_size=1, max_size=3),
)
def test_node_sets_are_counted_without_making_them(memory: list[float], most: int, caps: list[float]) -> None:
    sizes = [node_sets(memory, most, cap).sum(axis=1) for cap in caps]
    counts = [[int((of_cap <= nodes).sum()) for nodes in range(1, most + 1)] for of_cap in sizes]
    assert count_node_sets(tuple(memory), most, caps) == counts


def test_many_different_memories_are_counted_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tuple(20.0 + 1.37 * k**1.5 for k in range(12))
    caps = (150.0, 260.0, float("inf"))
    exact = count_node_sets(memory, 5, caps)
    monkeypatch.setattr("coralopt.templates.estimate.MOST_SUMS", 300)
    _memory_sums.cache_clear()
    close = count_node_sets(memory, 5, caps)
    _memory_sums.cache_clear()
    assert close[-1] == exact[-1]
    for several, all_of_them in zip(close, exact, strict=True):
        assert several == pytest.approx(all_of_them, rel=0.02)


def test_estimates_of_a_scenario() -> None:
    scenario = load_scenario("core")
    whole = library_estimates(scenario)[-1]
    assert whole.max_nodes == scenario.max_nodes
    assert whole.node_sets == sum(map(len, scenario_node_sets(scenario)))
    assert f"{whole.node_sets:,} node sets" in str(whole)


def test_too_large_is_refused_and_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    large = many_hosts()
    assert library_estimates(large)[-1].node_sets > 3e9
    with pytest.raises(LibraryError, match=r"lower pruning.max_nodes \([0-9,]+ node sets at max_nodes [1-4]"):
        announce(large)
    monkeypatch.setattr("coralopt.templates.estimate.LONG_S", 0.0)
    with pytest.warns(LongBuildWarning, match="node sets at max_nodes"):
        build_library(load_scenario("tiny"))


def test_estimates_by_hand() -> None:
    """C(100 + n, n) - 1 node sets of up to n nodes for each model phase, 9 bytes a configuration and 66 a node each."""
    large = many_hosts()
    for nodes, item in enumerate(library_estimates(large), start=1):
        sets = len(large.model_phases) * (comb(100 + nodes, nodes) - 1)
        assert (item.max_nodes, item.node_sets) == (nodes, sets)
        assert item.memory_gib == pytest.approx(sets * (900 + 66 * nodes) / 2**30)
        assert item.core_s == pytest.approx(sets / 20_000)
    assert has_more_node_sets(large, item.node_sets - 1)
    assert not has_more_node_sets(large, item.node_sets)
    assert str(LibraryEstimate(6, 12_345, 2.34, 599 * 60)).endswith("about 2.3 GiB and 599 core minutes")
    assert str(LibraryEstimate(6, 12_345, 2.34, 600 * 60)).endswith("about 2.3 GiB and 10 core hours")


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_the_advice_is_the_largest_library_that_half_the_memory_holds(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that one core places within 20 minutes, ten times what is not announced at all."""
    large = many_hosts()
    item = library_estimates(large)[nodes - 1]
    assert item.core_s <= 1200 < library_estimates(large)[4].core_s
    for room, most in ((2 * item.memory_gib, nodes), (nextafter(2 * item.memory_gib, 0), nodes - 1)):
        monkeypatch.setattr("coralopt.templates.estimate.memory_gib", lambda room=room: room)
        with pytest.raises(
            LibraryError, match=re.escape(f"lower pruning.max_nodes ({library_estimates(large)[most - 1]}")
        ):
            announce(large)
    monkeypatch.setattr("coralopt.templates.estimate.memory_gib", lambda: None)
    with pytest.warns(LongBuildWarning, match="at max_nodes 4"):
        announce(large)


def test_a_library_that_just_fits_is_neither_refused_nor_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = load_scenario("tiny")
    whole = library_estimates(tiny)[-1]
    monkeypatch.setattr("coralopt.templates.estimate.memory_gib", lambda: whole.memory_gib)
    monkeypatch.setattr("coralopt.templates.estimate.LONG_S", whole.core_s)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announce(tiny)
    monkeypatch.setattr("coralopt.templates.estimate.memory_gib", lambda: nextafter(whole.memory_gib, 0))
    with pytest.raises(LibraryError, match="this machine has"):
        announce(tiny)
