"""Unzipping against brute force over every matching."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import instance

from coralopt.plan import PlannedInstance, PlannedNode
from coralopt.runtime import unzip

SPEEDS = st.sampled_from([1.0, 2.0, 2.5, 3.0, 0.1, 0.2, 0.3])
NODES = ("1xL4", "1xL40S", "2xL4", "2xL40S")


@st.composite
def stages(draw: st.DrawFn) -> PlannedInstance:
    """Up to three stages of up to four nodes."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True))
        parts.append((2, {name: (draw(st.integers(1, 2)), draw(SPEEDS)) for name in names}))
    return instance("mixed", *parts)


def gpus(node: PlannedNode) -> int:
    return int(node.configuration.split("x")[0])


def exact_sum(nodes: list[PlannedNode]) -> Fraction:
    return sum((Fraction(node.tokens_s) for node in nodes), Fraction(0))


def best_matching(planned: PlannedInstance, equal_gpus: bool) -> Fraction | None:
    """Largest sum of pipeline throughputs over all matchings; none when the stages differ in size."""
    columns = [[node for node in stage.nodes for _ in range(node.count)] for stage in planned.stages]
    if len({len(column) for column in columns}) > 1:
        return None
    best = None
    for orders in itertools.product(*(itertools.permutations(column) for column in columns[1:])):
        pipelines = list(zip(columns[0], *orders, strict=True))
        if equal_gpus and any(len({gpus(node) for node in pipeline}) > 1 for pipeline in pipelines):
            continue
        total = sum((min(Fraction(node.tokens_s) for node in pipeline) for pipeline in pipelines), Fraction(0))
        best = total if best is None else max(best, total)
    return best


@settings(max_examples=250, deadline=None)
@given(planned=stages(), equal_gpus=st.booleans())
def test_unzips_exactly_when_some_matching_is_lossless(planned: PlannedInstance, equal_gpus: bool) -> None:
    """The sorted matching is lossless whenever any is; otherwise nothing is returned."""
    columns = [[node for node in stage.nodes for _ in range(node.count)] for stage in planned.stages]
    whole = min(exact_sum(column) for column in columns)
    found = unzip(planned, gpus) if equal_gpus else unzip(planned)
    assert (found is not None) == (best_matching(planned, equal_gpus) == whole)
    if found is not None:
        assert sum((min(Fraction(n.tokens_s) for n in pipeline) for pipeline in found), Fraction(0)) == whole
        used = sorted(node.configuration for pipeline in found for node in pipeline)
        assert used == sorted(node.configuration for column in columns for node in column)
        for position, column in enumerate(columns):
            assert sorted(p[position].configuration for p in found) == sorted(n.configuration for n in column)
        assert not equal_gpus or all(len({gpus(node) for node in pipeline}) == 1 for pipeline in found)


def test_a_single_node_a_stage_is_one_pipeline() -> None:
    """The usual plan goes through unchanged."""
    planned = instance("mixed", (3, {"1xL4": (1, 2.0)}), (5, {"1xL40S": (1, 1.0)}))
    found = unzip(planned)
    assert found is not None
    assert [[node.configuration for node in pipeline] for pipeline in found] == [["1xL4", "1xL40S"]]
