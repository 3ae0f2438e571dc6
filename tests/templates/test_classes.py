"""What templates serve of every class of requests, against the placements themselves and against all pairs of templates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.placement import throughput_of
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import TemplateLibrary, scenario_tables
from coralopt.templates.classes import _worth_having, placed_tokens_s


def test_placements_serve_by_the_tables_of_any_class(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary
) -> None:
    """By their own tables, by those of the model's other phase, and by tables with nodes that hold fewer layers."""
    tables = scenario_tables(tiny_scenario)
    generator = np.random.default_rng(1)
    served = 0
    for phase in tiny_library.phases:
        model = phase.key.split("/")[0]
        for table in (table for table in tables if table.key.split("/")[0] == model):
            some = np.where(generator.random(table.values.shape) < 0.9, table.values, 0.0)
            for other in (table, replace(table, values=some), replace(table, values=table.values[:2])):
                speeds = placed_tokens_s(phase, other)
                for row in range(len(phase)):
                    placement = phase.placement(row)
                    possible = len(placement.stages) <= len(other.values)
                    expected = throughput_of(other.values, placement) if possible else 0.0
                    assert speeds[row] == pytest.approx(expected)
                    served += len(placement.stages) > 1 and expected > 0
    assert served > 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=14
    )
)
def test_templates_worth_having_are_those_that_no_other_beats(rows: list[tuple[int, int, int, int]]) -> None:
    """Left out is what serves nothing, and what another serves as well of every class with these nodes or one fewer."""
    usage, speeds = np.array([row[:2] for row in rows]), np.array([row[2:] for row in rows], dtype=float)

    def beaten(k: int, other: int) -> bool:
        fewer = usage[k] - usage[other]
        alike = not fewer.any() and (other < k or (speeds[other] > speeds[k]).any())
        return bool((speeds[other] >= speeds[k]).all() and (alike or sorted(fewer) == [0, 1]))

    expected = [
        bool(speeds[k].any()) and not any(beaten(k, j) for j in range(len(rows)) if j != k) for k in range(len(rows))
    ]
    assert _worth_having(usage, speeds).tolist() == expected
