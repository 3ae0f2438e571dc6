"""The search over large pools, against the sweep over every part of a small pool and against Helix's published cases."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coralopt_dp import sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import InfeasibleError, NoSolutionError, ScenarioError
from coralopt.placement import Placement, PlacementPool, Stage, load_pool, place_pool, pool_search
from coralopt.placement.pool_search import minimal_multisets
from coralopt.solving import Limit, Reason, Termination, solve_matrix
from coralopt.testing.placement_strategies import throughput_values


@settings(max_examples=15, deadline=None)
@given(
    throughput_values(max_stages=3, max_configurations=3, max_layers=6),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_equals_the_best_part_of_the_pool(values, counts):
    """Every part of a small pool placed by the dynamic programme; the pool's optimum is the best of them, to the bit."""
    counts = tuple(counts[: values.shape[2]])
    pool = PlacementPool("random", values, counts, tuple(f"c{c}" for c in range(len(counts))))
    sets = np.array([row for row in itertools.product(*(range(n + 1) for n in counts)) if sum(row)], dtype=np.int8)
    for stages in (None, *range(1, pool.max_stages + 1)):
        best = float(sweep(values, sets, stages=stages).throughput.max())
        if best == 0:
            with pytest.raises(InfeasibleError):
                place_pool(pool, stages=stages)
            continue
        found = place_pool(pool, stages=stages)
        assert found.throughput == best
        assert found.proven
        assert pool.check(found.placement).objective == best


@settings(max_examples=15, deadline=None)
@given(throughput_values(max_stages=1, max_configurations=2, max_layers=6), st.integers(1, 5))
def test_stage_free_tables_equal_trying_each_stage_count(values, most):
    """One integer programme for `at most S stages` must find what S programmes for each stage count find."""
    table = values[0, 0]
    free = np.broadcast_to(table, (6, 3, *table.shape))
    pool = PlacementPool("free", free, (3, 2)[: table.shape[0]], ("a", "b")[: table.shape[0]], stage_free=True)
    try:
        one_by_one = place_pool(replace(pool, stage_free=False), max_stages=most).throughput
    except InfeasibleError:
        one_by_one = 0.0
    try:
        found = place_pool(pool, max_stages=most)
        assert found.proven
        assert len(found.placement.stages) <= most
        together = found.throughput
    except InfeasibleError:
        together = 0.0
    assert together == one_by_one


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 30), st.data())
def test_minimal_multisets_are_all_of_them(speeds, target, data):
    """Held against trying every multiset: reaches the target, and no longer without any one node."""
    counts = tuple(data.draw(st.integers(0, 4)) for _ in speeds)
    expected = set()
    for row in itertools.product(*(range(n + 1) for n in counts)):
        total = sum(n * s for n, s in zip(row, speeds, strict=True))
        used = [s for n, s in zip(row, speeds, strict=True) if n]
        if total >= target and all(s > 0 and total - s < target for s in used):
            expected.add(row)
    found = list(minimal_multisets(np.array(speeds, dtype=float), counts, float(target)))
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize(
    ("name", "tokens_s", "stages", "cache_tokens"),
    [("helix-10", 286.587, 10, None), ("helix-24", 2045.641, 24, None), ("helix-42", 5905.787, 28, 1_679_952)],
)
def test_published_cases_of_helix(name, tokens_s, stages, cache_tokens):
    """Known stage-aligned optima of Helix's three cases; its own MILP searched for 600 to 3,800 s on 20 threads."""
    pool = load_pool(name)
    found = place_pool(pool)
    assert found.throughput == pytest.approx(tokens_s, abs=5e-4)
    assert found.proven
    assert len(found.placement.stages) == stages
    # Helix counts entries of one token in one layer; here a token needs one in every layer that its node holds.
    assert cache_tokens in (None, pool.cache_of(found.placement))
    assert pool.cache_of(found.placement) > 0


def test_fewer_stages_never_give_more():
    """The frontier over the number of stages rises, and its start is proven empty."""
    pool = load_pool("helix-24")
    with pytest.raises(InfeasibleError, match="exists"):
        place_pool(pool, max_stages=8)
    values = [place_pool(pool, max_stages=most).throughput for most in (10, 12, 14, 20, 24)]
    assert values == sorted(values)
    assert values[1] == pytest.approx(1392.63, abs=0.01)


@pytest.mark.parametrize(
    ("name", "time_limit"), [("helix-24", 0.02), pytest.param("helix-42", 0.1, marks=pytest.mark.slow)]
)
def test_a_limit_keeps_a_valid_bound(name: str, time_limit: float):
    """Out of time: what is in hand is returned, and the bound still holds the optimum."""
    pool = load_pool(name)
    best = place_pool(pool).throughput
    try:
        found = place_pool(pool, time_limit=time_limit)
    except NoSolutionError as error:
        assert "in time" in str(error)  # noqa: PT017 - a slow machine may find nothing
    else:
        assert found.throughput <= best <= found.bound


@settings(max_examples=10, deadline=None)
@given(throughput_values(max_stages=3, max_configurations=3, max_layers=6))
def test_too_many_multisets_leave_a_valid_bound(values):
    """The relaxation must never cut off the optimum, or a bound would be a lie."""
    pool = PlacementPool("random", values, (3, 3, 3)[: values.shape[2]], ("a", "b", "c")[: values.shape[2]])
    try:
        best = place_pool(pool).throughput
    except InfeasibleError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_search, "MOST_COLUMNS", 4)
        try:
            found = place_pool(pool)
        except NoSolutionError:
            return
    assert found.throughput <= best <= found.bound


def test_checker_refuses_what_is_wrong():
    """More nodes than there are, too few layers, a node that cannot hold its layers."""
    pool = load_pool("helix-10")
    good = place_pool(pool).placement
    first = good.stages[0]
    twice = Stage(first.layers, tuple(2 * n for n in first.nodes))
    assert not pool.check(Placement((twice, *good.stages[1:]))).feasible
    assert not pool.check(Placement(good.stages[1:])).feasible
    heavy = Placement((Stage(30, (1, 0)), Stage(30, (0, 1))))
    assert not pool.check(heavy).feasible


def test_pool_of_the_catalog_and_bad_files(tmp_path: Path):
    """A model on catalog nodes has real stage times; every mistake of a file is named with its place."""
    (tmp_path / "p.yaml").write_text(
        "model: phi4-14b\nphase: decode\nslo: {prefill_ms: 1200, decode_ms: 60}\ninput_tokens: 500\n"
        "output_tokens: 200\nnodes: {1xL4: 3, 1xL40S: 2}\nmax_stages: 4\n"
    )
    pool = load_pool(tmp_path / "p.yaml")
    found = place_pool(pool)
    latency = pool.latency_ms(found.placement)
    assert latency is not None
    assert 0 < latency <= 60
    sets = np.array([row for row in itertools.product(*(range(n + 1) for n in pool.counts)) if sum(row)], dtype=np.int8)
    assert found.throughput == sweep(pool.values, sets).throughput.max()
    for text, words in (
        ("[1]", "not a mapping"),
        ("layers: 2\nnodes: {a: {count: 1, tokens_s: [1, 2, 3]}}", "2 layers"),
        ("layers: 2\nnodes: {a: {count: 0, tokens_s: [1]}}", "nodes.a.count"),
        ("a: [", "YAML"),
        ("[" * 100_000, "pool: the file is nested too deeply"),
        (f"[{'0, ' * 60_000}]", "pool: the file holds more than 50,000 values"),
    ):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ScenarioError, match=words):
            load_pool(tmp_path / "bad.yaml")
    with pytest.raises(ScenarioError, match="helix-42"):
        load_pool("nosuch")


def test_ctrl_c_that_a_solver_took_ends_the_search(monkeypatch: pytest.MonkeyPatch):
    """A back end answers Ctrl-C with what it has; the search must stop, not go on with the next target."""
    calls = []

    def interrupted(matrix, *rest):
        calls.append(matrix)
        found = solve_matrix(matrix, *rest)
        return replace(found, termination=Termination(Reason.NO_SOLUTION_FOUND, Limit.INTERRUPTED, "Ctrl-C"), x=None)

    monkeypatch.setattr(pool_search, "solve_matrix", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place_pool(load_pool("helix-10"))
    assert len(calls) == 1
