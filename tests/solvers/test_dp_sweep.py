"""The dynamic programme over whole families of node sets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from coralopt_dp import sweep
from coralopt_dp.sweep import Family, _verify
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import SolverError, WrongAnswerError
from coralopt.placement import Budgets, Links, Placement, PlacementProblem, Stage, max_flow_throughput, throughput_of
from coralopt.placement.cells import best_cells, with_cells
from coralopt.testing.placement_strategies import best_by_enumeration, throughput_values
from coralopt.throughput import falls_in_layers


def family(configurations: int, nodes: int) -> np.ndarray:
    """Every node set of at most ``nodes`` nodes, in sweep order."""
    rows = [row for row in itertools.product(range(nodes + 1), repeat=configurations) if 1 <= sum(row) <= nodes]
    return np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int8)


def placement_at(result, row):
    """The placement of one row of a sweep."""
    count = result.stages[row]
    return Placement(
        tuple(
            Stage(int(result.stage_layers[row, s]), tuple(int(n) for n in result.stage_nodes[row, s]))
            for s in range(count)
        )
    )


def assert_matches_enumeration(values, sets, result, rows=None):
    names = tuple(f"c{c}" for c in range(values.shape[2]))
    for row in range(len(sets)) if rows is None else rows:
        problem = PlacementProblem(values, tuple(int(n) for n in sets[row]), names)
        best, stages = best_by_enumeration(problem)
        assert result.throughput[row] == best
        assert result.stages[row] == stages
        if best > 0:
            check = problem.check(placement_at(result, row))
            assert check.feasible, check.violations
            assert check.objective == best
        else:
            assert (result.stage_sets[row] == -1).all()
            assert (result.stage_layers[row] == 0).all()


@settings(max_examples=120, deadline=None)
@given(throughput_values(max_configurations=2, max_layers=5, falling=True))
def test_falling_tables_match_enumeration(values):
    """The walk layer by layer must lose nothing against trying every placement, for every member of the family."""
    sets = family(values.shape[2], 4)
    assert falls_in_layers(values)
    assert_matches_enumeration(values, sets, sweep(values, sets))


@settings(max_examples=120, deadline=None)
@given(throughput_values(max_configurations=2, max_layers=5, falling=False))
def test_any_tables_match_enumeration(values):
    """Measured tables may rise with more layers; then the full scan must be used and be exact."""
    sets = family(values.shape[2], 4)
    assert_matches_enumeration(values, sets, sweep(values, sets))


@settings(max_examples=40, deadline=None)
@given(st.data(), throughput_values(max_stages=5, max_configurations=2, max_layers=8))
def test_long_pipelines_match_enumeration(data, values):
    """Only five stages put three middle stages in line, where the recursion that anchors the first node is iterated."""
    first = data.draw(st.integers(0, 5)) if values.shape[2] == 2 else 5
    full = (first, 5 - first)[: values.shape[2]]
    closed = (row for row in itertools.product(*(range(n + 1) for n in full)) if sum(row))
    sets = np.array(sorted(closed, key=lambda row: (sum(row), row)), dtype=np.int8)
    assert_matches_enumeration(values, sets, sweep(values, sets), rows=[len(sets) - 1])


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.integers(1, 40), st.booleans(), st.booleans()
)
def test_walk_equals_scan_on_larger_tables(seed, nodes, configurations, layers, role_free, zeros):
    """Beyond what enumeration reaches: one rising entry where it cannot matter forces the scan; both must agree."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.uniform(0.0, 100.0, (6, 3, configurations, layers + 1)), axis=-1)[..., ::-1].copy()
    if zeros:
        values[values < 30.0] = 0.0
    if role_free:
        values[:] = values[:, :1]
    sets = family(configurations, nodes)
    fast = sweep(values, sets)
    # An extra configuration that no node set uses, with a rising table.
    spare = np.broadcast_to(np.arange(layers + 1.0), (6, 3, 1, layers + 1))
    slow = sweep(np.concatenate([values, spare], axis=2), np.pad(sets, ((0, 0), (0, 1))))
    assert np.array_equal(fast.throughput, slow.throughput)
    assert np.array_equal(fast.stages, slow.stages)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_throughput_is_bitwise_that_of_the_placement(seed, nodes):
    """Arbitrary floats: the number reported is the placement's own, to the last bit, and the maximum flow's."""
    values = np.random.default_rng(seed).lognormal(3.0, 2.0, (5, 3, 2, 8))
    values[..., 0] = 0.0
    sets = family(2, nodes)
    result = sweep(values, sets)
    for row in range(len(sets)):
        placement = placement_at(result, row)
        assert result.throughput[row] == throughput_of(values, placement)
        assert float(max_flow_throughput(values, placement)) == pytest.approx(result.throughput[row], rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(throughput_values(max_stages=4, max_configurations=3, max_layers=6), st.randoms(use_true_random=False))
def test_threads_and_order_do_not_matter(values, random):
    """Two runs must give the same library, whatever the machine; and rows may come in any order."""
    sets = family(values.shape[2], 4)
    one, two = sweep(values, sets, workers=1), sweep(values, sets, workers=2)
    for name in ("throughput", "stages", "stage_layers", "stage_sets"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    order = list(range(len(sets)))
    random.shuffle(order)
    mixed = sweep(values, sets[order])
    for name in ("throughput", "stages", "stage_layers", "stage_nodes"):
        assert np.array_equal(getattr(one, name)[order], getattr(mixed, name))


def test_links_lead_to_the_node_set_without_one_node():
    """Thousands of node sets, of which memory leaves a part: the search that goes on where it was must skip none."""
    sets = family(8, 6)
    sets = sets[sets @ np.arange(1, 9) <= 30]
    rows = {tuple(row): m for m, row in enumerate(sets.tolist())}
    links = Family.of(sets, 2).links
    assert len(sets) > 2048
    for m, row in enumerate(sets.tolist()):
        for c, count in enumerate(row):
            without = (*row[:c], count - 1, *row[c + 1 :])
            assert links[c, m] == (rows[without] if count and sum(row) > 1 else -1)


def test_per_node_columns_say_the_same_as_the_stage_counts():
    """The library stores one column a node; it must describe the very same placement."""
    values = np.random.default_rng(5).uniform(1.0, 9.0, (4, 3, 3, 10))
    sets = family(3, 4)
    result = sweep(values, sets)
    assert result.node_stage.shape == result.stage_layers.shape == (len(sets), 4)
    for row in range(len(sets)):
        nodes = np.zeros((4, 3), dtype=int)
        for configuration, stage in zip(result.node_configuration[row], result.node_stage[row], strict=True):
            if stage >= 0:
                nodes[stage, configuration] += 1
        assert np.array_equal(nodes, result.stage_nodes[row])


@pytest.mark.parametrize("coupling", [None, Budgets(2), Links((1, 0))])
def test_wrong_answers_of_the_programme_are_refused(coupling):
    """Its last step recomputes every placement from the tables alone and finds what is off."""
    shape = (3, 3, 2, 9) if coupling is None else (3, 3, 2, 7 if isinstance(coupling, Budgets) else 2, 9)
    values, sets = np.random.default_rng(7).uniform(1.0, 9.0, shape), family(2, 3)
    if isinstance(coupling, Budgets):
        values = np.maximum.accumulate(values, axis=3)
    result = sweep(values, sets, coupling)
    cells, rule = with_cells(values, coupling)
    for row in range(len(sets)):
        assert best_cells(values, placement_at(result, row), coupling)[0] == result.throughput[row]
    whole = int(np.flatnonzero(result.stages == 3)[0]) if (result.stages == 3).any() else len(sets) - 1
    for name, change in (("throughput", 1e-9), ("stage_layers", -1), ("stage_sets", -1)):
        wrong = replace(result, **{name: getattr(result, name).copy()})
        changed = getattr(wrong, name)
        changed[(whole,) if changed.ndim == 1 else (whole, 0)] += change
        with pytest.raises(WrongAnswerError, match=str(sets[whole].tolist()).replace("[", r"\[")):
            _verify(cells, wrong, rule)


def test_a_family_pruned_by_memory_is_swept_as_it_is():
    """Pruning by total memory keeps a family closed; the members left must not change their answer."""
    values = np.random.default_rng(3).uniform(0.0, 9.0, (4, 3, 3, 9))
    sets = family(3, 4)
    few = sets[sets @ np.array([1, 2, 3]) <= 6]
    whole, pruned = sweep(values, sets), sweep(values, few)
    kept = (sets @ np.array([1, 2, 3])) <= 6
    assert np.array_equal(whole.throughput[kept], pruned.throughput)


def test_progress_reaches_its_end():
    """A bar that stops short looks like a hang."""
    seen = []
    sweep(np.ones((3, 3, 1, 4)), family(1, 3), progress=lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    ("values", "sets", "words"),
    [
        (np.ones((2, 3, 2, 4)), [[1, 1], [1, 0]], "closed under taking nodes away"),
        (np.ones((2, 3, 2, 4)), [[1, 0], [1, 0]], "twice"),
        (np.ones((2, 3, 2, 4)), [[0, 0]], "empty row"),
        (np.ones((2, 3, 2, 4)), [[1, 0, 0]], r"must be \(M, 2\)"),
        (-np.ones((2, 3, 2, 4)), [[1, 0]], "negative or non-finite"),
        (np.ones((2, 2, 2, 4)), [[1, 0]], r"must be \(S, 3"),
    ],
)
def test_bad_input_is_refused_in_words(values, sets, words):
    """Wrong arrays would give wrong templates silently."""
    with pytest.raises(SolverError, match=words):
        sweep(values, np.array(sets, dtype=np.int8))


def test_an_empty_family_has_an_empty_answer():
    """Pruning can leave nothing."""
    result = sweep(np.ones((2, 3, 2, 4)), np.zeros((0, 2), dtype=np.int8))
    assert result.stage_layers.shape == (0, 0)
