"""Free latency budgets and network-aware stages, against trying every placement with every choice of cells."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from coralopt_dp import sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError
from coralopt.placement import (
    Budgets,
    Links,
    PlacementProblem,
    best_placement,
    engine_limits,
    throughput_of,
)
from coralopt.solving import Reason
from coralopt.testing.placement_strategies import every_placement, throughput_values
from coralopt.throughput.tables import stage_role


@st.composite
def problems(draw, coupling, max_nodes=4, max_layers=4):
    """Problems with cells of small size; tables rise in the cell."""
    base = draw(throughput_values(3, 3, max_layers))
    stages, _, width, _ = base.shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if coupling == "budgets":
        made = Budgets(draw(st.sampled_from((1, 2, 3))))
        cells = stages * made.units + 1
    else:
        made = Links(tuple(int(n) for n in rng.integers(0, 3, width)))
        cells = 3
    values = np.repeat(base[:, :, :, None], cells, axis=3)
    values *= rng.integers(0, 4, values.shape[:4])[..., None] * 0.5
    values = np.maximum.accumulate(values, axis=3)
    if coupling == "budgets":
        values[:, :, :, 0] = 0
    count = draw(st.sampled_from(range(max_nodes, 0, -1)))
    nodes = draw(st.lists(st.integers(0, width - 1), min_size=count, max_size=count))
    node_set = tuple(nodes.count(c) for c in range(width))
    return PlacementProblem(values, node_set, tuple(f"c{c}" for c in range(width)), coupling=made)


@cache
def unit_choices(count, total):
    """Every way to give each of ``count`` stages a unit or more, ``total`` at most."""
    return [units for units in itertools.product(range(1, total + 1), repeat=count) if sum(units) <= total]


def stage_speed(nodes):
    """Tokens/s of (number, tokens/s of one) nodes together; 0 where one of them cannot hold the layers."""
    return 0.0 if min(x for _, x in nodes) <= 0 else sum(n * x for n, x in nodes)


def by_enumeration(problem):
    """Best throughput over every placement and every choice of cells, plainly."""
    best = 0.0
    plain = PlacementProblem(problem.values.max(axis=3), problem.node_set, problem.configurations, problem.stages)
    for placement in every_placement(plain):
        count = len(placement.stages)
        if isinstance(problem.coupling, Budgets):
            choices = unit_choices(count, count * problem.coupling.units)
        else:
            ranks = [min(problem.coupling.classes[c] for c, n in enumerate(s.nodes) if n) for s in placement.stages]
            choices = [(*ranks[1:], problem.values.shape[3] - 1)]
        speeds = [
            [
                stage_speed([(n, row[c, k, stage.layers]) for c, n in enumerate(stage.nodes) if n])
                for k in range(problem.values.shape[3])
            ]
            for stage, row in (
                (stage, problem.values[count - 1, stage_role(s, count)]) for s, stage in enumerate(placement.stages)
            )
        ]
        best = max(best, *(min(speeds[s][k] for s, k in enumerate(cells)) for cells in choices))
    return best


@pytest.mark.parametrize("coupling", ["budgets", "links"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_sweep_equals_enumeration(coupling, data):
    """The programme over cells must find what trying every placement and every cell finds, and its checker agree."""
    problem = data.draw(problems(coupling))
    best = by_enumeration(problem)
    solution = best_placement(problem, "dp")
    if best == 0:
        assert solution.answer is None
    else:
        assert solution.objective == best
        assert throughput_of(problem.values, solution.answer, problem.coupling) == best


@pytest.mark.parametrize("coupling", ["budgets", "links"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_formulation_equals_enumeration(coupling, data):
    """The integer programme, solved by another solver, knows the same optimum."""
    problem = data.draw(problems(coupling, max_nodes=3))
    best = by_enumeration(problem)
    solution = best_placement(problem, "highs", None, {"rel_gap": 1e-6})
    if best == 0:
        assert solution.answer is None
    else:
        assert solution.objective == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", ["vllm", "one-node-stages"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_limits_hold_with_cells_too(name, data):
    """Engine limits and cells together, by the programme and by the integer programme."""
    problem = data.draw(problems("budgets", max_nodes=3))
    gpus = (1, 2, 1)[: len(problem.configurations)]
    limited = replace(problem, limits=engine_limits(name), gpus=gpus)
    one, two = best_placement(limited, "dp"), best_placement(limited, "highs", None, {"rel_gap": 1e-6})
    assert (one.answer is None) == (two.answer is None)
    if one.answer is not None:
        assert two.objective == pytest.approx(one.objective, rel=1e-5)
        assert not engine_limits(name).violations(one.answer, gpus)


@settings(max_examples=20, deadline=None)
@given(throughput_values(max_stages=4, max_configurations=2, max_layers=6, falling=False), st.integers(0, 2**32 - 1))
def test_walk_and_scan_and_threads_agree(values, seed):
    """Rising tables force the scan; a whole family; one thread or two."""
    rng = np.random.default_rng(seed)
    cells = np.maximum.accumulate(values[:, :, :, None] * rng.random((1, 1, 1, 4, 1)), axis=3)
    width = values.shape[2]
    rows = [row for row in itertools.product(range(5), repeat=width) if 1 <= sum(row) <= 4]
    sets = np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int8)
    links = Links(tuple(range(width)))
    one, two = (sweep(cells, sets, links, workers=n) for n in (1, 2))
    assert np.array_equal(one.throughput, two.throughput)
    assert np.array_equal(one.stage_sets, two.stage_sets)
    names = tuple(f"c{c}" for c in range(width))
    row = len(sets) - 1
    problem = PlacementProblem(cells, tuple(int(n) for n in sets[row]), names, coupling=links)
    alone = best_placement(problem, "dp")
    assert one.throughput[row] == (alone.objective if alone.answer is not None else 0.0)


@pytest.mark.parametrize("coupling", ["budgets", "links"])
@pytest.mark.parametrize("stages", [4, 5])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_long_pipelines_equal_enumeration(coupling, stages, seed):
    """From four stages on a chain is joined to a chain that was joined before: tables of several lengths lie in a row."""
    rng = np.random.default_rng(seed)
    # A node more than stages: only then do tables of different lengths begin at different rows.
    layers, nodes = stages + 1, stages + 1
    rule = Budgets(2) if coupling == "budgets" else Links((1, 0))
    cells = stages * 2 + 1 if coupling == "budgets" else 2
    # Throughput that falls steeply with the layers, so that long pipelines pay.
    values = rng.integers(1, 40, (stages, 3, 2, cells, layers + 1)) / 8.0
    values[..., 1:] = np.sort(values[..., 1:], axis=-1)[..., ::-1]
    values = np.maximum.accumulate(values, axis=3)
    values[:, :, :, :, 0] = 0.0
    if coupling == "budgets":
        values[:, :, :, 0] = 0.0
    first = int(rng.integers(1, nodes))
    problem = PlacementProblem(values, (first, nodes - first), ("a", "b"), stages, coupling=rule)
    solution = best_placement(problem, "dp")
    assert solution.objective == by_enumeration(problem)
    assert throughput_of(values, solution.require_solution(), rule) == solution.objective


@pytest.mark.parametrize("kind", [Budgets, Links])
@settings(max_examples=30, deadline=None)
@given(values=throughput_values(max_stages=5, max_configurations=2, max_layers=7), nodes=st.integers(1, 5))
def test_a_plain_table_is_one_cell(kind, values, nodes):
    """Cells that make no difference: links of one speed in many classes, or units that are worth nothing, change nothing."""
    rows = [row for row in itertools.product(range(nodes + 1), repeat=values.shape[2]) if 1 <= sum(row) <= nodes]
    sets = np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int8)
    plain = sweep(values, sets)
    if kind is Links:
        cells, rule = np.repeat(values[:, :, :, None], 3, axis=3), Links((2, 1)[: values.shape[2]])
    else:
        cells, rule = np.repeat(values[:, :, :, None], values.shape[0] + 1, axis=3), Budgets(1)
        cells[:, :, :, 0] = 0.0
    same = sweep(cells, sets, rule)
    assert np.array_equal(plain.throughput, same.throughput)
    assert np.array_equal(plain.stages, same.stages)


def test_a_time_limit_holds_with_cells():
    """Out of time before the first stage count: neither a placement nor infeasibility may be claimed."""
    problem = PlacementProblem(np.ones((2, 3, 1, 3, 5)), (2,), ("a",), coupling=Budgets(1))
    solution = best_placement(problem, "dp", options={"time_limit": 0.0})
    assert solution.termination.reason is Reason.NO_SOLUTION_FOUND
    assert solution.bound >= 2.0


def test_shapes_are_checked():
    """Wrong tables are refused in words."""
    with pytest.raises(SolverError, match="shape"):
        PlacementProblem(np.ones((1, 3, 1, 2)), (1,), ("a",), coupling=Budgets(1))
    with pytest.raises(SolverError, match="cells"):
        PlacementProblem(np.ones((2, 3, 1, 3, 2)), (1,), ("a",), coupling=Budgets(2))
    with pytest.raises(SolverError, match="class"):
        PlacementProblem(np.ones((1, 3, 1, 2, 2)), (1,), ("a",), coupling=Links((0, 1)))
