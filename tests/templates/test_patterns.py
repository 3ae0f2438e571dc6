"""Shared nodes: batches and sets against trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import scenario_from_mapping
from coralopt.errors import ScenarioError
from coralopt.scenario import load_scenario
from coralopt.templates import scenario_tables, shared_patterns
from coralopt.templates.patterns import SharedNode
from coralopt.throughput import throughput_source
from coralopt.throughput.steps import StepTable, node_steps
from coralopt.types import Ints


@st.composite
def nodes(draw: st.DrawFn) -> SharedNode:
    """A node of up to 4 phases and 4 batches, so tight that some sets fit and some do not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    ms = np.sort(rng.integers(1, 20, (m, n)), axis=1) / 4.0
    table = StepTable(
        batch=np.cumsum(rng.integers(1, 4, n)).astype(float),
        ms=ms,
        longest_ms=ms * rng.choice([1.0, 2.0]),
        longest_within_ms=-np.sort(-rng.integers(2, 40, (m, n)) / 1.0, axis=1),
        within_ms=rng.integers(4, 20, m).astype(float),
        tokens_each=rng.choice([1.0, 3.0], m),
        fixed_bytes=rng.integers(1, 6, m).astype(float),
        bytes_each=rng.integers(0, 3, m).astype(float),
        least_bytes=rng.integers(0, 6, m).astype(float),
        memory_bytes=float(rng.integers(4, 40)),
    )
    model = np.arange(m) if draw(st.booleans()) else rng.integers(0, 2, m)
    limited = rng.random(m) < draw(st.sampled_from((0.0, 0.3)))
    return SharedNode(table, rng.integers(50, 900, m).astype(float), model, limited)


def _all_batches(node: SharedNode, members: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Every choice of batches of these phases that keeps all SLOs."""
    place = np.array(list(itertools.product(range(len(node.table.batch)), repeat=len(members))))
    sets = np.tile(members, (len(place), 1))
    fits = node.table.fits(sets, place)
    return sets[fits], place[fits]


@settings(max_examples=60, deadline=None)
@given(nodes(), st.integers(2, 4))
def test_patterns_are_those_of_trying_all_batches(node: SharedNode, most: int) -> None:
    """All needs with the least batches, or as much as fits of one phase: no choice of batches is any better."""
    given_: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for sets, place in node.patterns(most):
        for members, batches in zip(sets.tolist(), place.tolist(), strict=True):
            given_.setdefault(tuple(members), []).append(tuple(batches))
    assert all(len(set(places)) == len(places) for places in given_.values() if places)
    whole_sets, known = {}, set(given_)
    for size in range(2, most + 1):
        for members in itertools.combinations(range(len(node.need)), size):
            if len({int(node.model[p]) for p in members}) < size:
                assert members not in known
                continue
            sets, place = _all_batches(node, members)
            need = node.need[list(members)] * (1 - 1e-9)
            enough = node.table.tokens_s(sets, place) >= need if len(sets) else np.zeros((0, size), dtype=bool)
            whole = place[enough.all(axis=1)]
            if len(whole):
                whole_sets[members] = tuple(whole.min(axis=0).tolist())
                assert whole_sets[members] in set(map(tuple, whole.tolist()))
                continue
            for column in range(size):
                others = place[np.delete(enough, column, axis=1).all(axis=1)]
                if len(others):
                    best = int(others[:, column].max())
                    least = others[others[:, column] == best].min(axis=0)
                    assert tuple(least.tolist()) in given_[members]
            assert len(given_.get(members, [])) <= size
    for members, batches in whole_sets.items():
        larger = [
            other
            for other in whole_sets
            if len(other) == len(members) + 1
            and set(members) < set(other)
            and not node.limited[next(iter(set(other) - set(members)))]
        ]
        assert given_.get(members, []) == ([] if larger else [batches])


def test_a_phase_alone_is_its_table_entry() -> None:
    """The price of a shared node is that of the tables where there is nobody to share with."""
    scenario = load_scenario("auto")
    tables, source = scenario_tables(scenario), throughput_source(scenario.throughput_source)
    seen = 0
    for phase, table in zip(scenario.model_phases, tables, strict=True):
        for c, configuration in enumerate(scenario.configurations):
            if table.values[0, 0, c, -1] <= 0:
                continue
            steps = node_steps(phase, configuration, source.times(phase.model, configuration))
            alone, place = StepTable.of([steps], configuration), np.arange(len(steps.batch))[:, None]
            sets = np.zeros_like(place)
            reached = np.where(alone.fits(sets, place), alone.tokens_s(sets, place)[:, 0], 0.0)
            assert reached.max() == pytest.approx(table.values[0, 0, c, -1], rel=1e-3)
            seen += 1
    assert seen >= 3


def test_nothing_is_shared_unless_it_is_asked_for_and_something_fits() -> None:
    """No patterns without the key; a sentence where no node holds two models."""
    plain = load_scenario("tiny")
    assert not len(shared_patterns(plain, scenario_tables(plain)))
    data = dict(load_scenario("core").document)
    data["pool"] = {"regions": {"us-east-2": {"configurations": {"1xL4": 40, "4xL4": 20}}}}
    data |= {"sharing": {"models": 2}, "mode": "mixed"}
    scenario = scenario_from_mapping(data)
    with pytest.raises(ScenarioError, match="sharing: no node of the pool holds two of the models"):
        shared_patterns(scenario, scenario_tables(scenario))
