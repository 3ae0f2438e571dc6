"""Larger batches of rented shared nodes against what is asked of them, one phase more at a time."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings

from coralopt.scenario import load_scenario
from coralopt.templates import scenario_tables, shared_patterns, with_spare_batches
from coralopt.templates.patterns import SharedNode
from coralopt.templates.spare_batches import spare_batches
from coralopt.throughput.steps import StepTable
from coralopt.types import Floats, Ints
from tests.templates.test_patterns import nodes


class _Serving(NamedTuple):
    tokens_s: Floats
    reserve: Floats
    fits: bool


def _serving(table: StepTable, members: list[int], batches: Ints, demand: Floats) -> _Serving:
    cycle = sum(table.ms[p, k] for p, k in zip(members, batches, strict=True))
    size = table.batch[batches]
    tokens_s = 1e3 * size * table.tokens_each[members] / cycle
    busy = size * demand / tokens_s
    fits = bool(table.fits(np.array([members]), batches[None, :])[0])
    return _Serving(tokens_s, (size - busy) / np.sqrt(busy), fits)


def _table_of(node: SharedNode, members: list[int]) -> StepTable:
    """The table of some of a node's phases."""
    columns = vars(node.table).items()
    return StepTable(
        **{
            name: value[members] if isinstance(value, np.ndarray) and name != "batch" else value
            for name, value in columns
        }
    )


@settings(max_examples=60, deadline=None)
@given(nodes())
def test_spare_batches_have_the_largest_reserve_of_all_that_fit(node: SharedNode) -> None:
    for sets, places in node.patterns(4):
        for members, place in zip(sets.tolist(), places, strict=True):
            table, everyone = _table_of(node, members), list(range(len(members)))
            need = node.who.need[members]
            demand = need / 1.25
            larger = spare_batches(table, place, list(zip(demand, need, strict=True)))
            before, after = (_serving(table, everyone, batches, demand) for batches in (place, larger))
            floor = np.minimum(need, before.tokens_s) * (1 - 1e-9)
            assert after.fits
            assert (larger >= place).all()
            assert (after.tokens_s >= floor).all()
            every = itertools.product(*(range(first, len(table.batch)) for first in place.tolist()))
            others = [_serving(table, everyone, np.array(batches), demand) for batches in every]
            most = max(float(some.reserve.min()) for some in others if some.fits and (some.tokens_s >= floor).all())
            assert after.reserve.min() >= most - 1e-5


def test_only_the_rows_asked_for_change() -> None:
    scenario = load_scenario("swapping")
    patterns = shared_patterns(scenario, scenario_tables(scenario))
    rows = list(range(0, len(patterns), max(1, len(patterns) // 40)))
    larger = with_spare_batches(scenario, patterns, rows)
    others = np.setdiff1d(np.arange(len(patterns)), rows)
    assert (larger.batch[others] == patterns.batch[others]).all()
    assert (larger.batch >= patterns.batch).all()
    assert (larger.batch > patterns.batch).any()
    assert (larger.tokens_s[others] == patterns.tokens_s[others]).all()


@settings(max_examples=30, deadline=None)
@given(nodes())
def test_the_search_ends_where_demand_is_next_to_nothing(node: SharedNode) -> None:
    """The reserve is then so large that floats lie further apart than any fixed difference."""
    for sets, places in node.patterns(2):
        for members, place in zip(sets.tolist(), places, strict=True):
            larger = spare_batches(
                _table_of(node, members), place, [(1e-30, float(need)) for need in node.who.need[members]]
            )
            assert (larger >= place).all()
