"""Shared nodes: batches and sets against trying everything."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import scenario_from_mapping
from coralopt.catalog.mig import SIZES, fits_together, sliced
from coralopt.catalog.types import GIB
from coralopt.errors import ScenarioError
from coralopt.scenario import load_scenario
from coralopt.scenario.facts.facts import Sharing
from coralopt.templates import scenario_tables, shared_patterns
from coralopt.templates.patterns import Company, SharedNode, SlicedNode
from coralopt.throughput import throughput_source
from coralopt.throughput.steps import StepTable, node_steps, present_share
from coralopt.throughput.swapping import longest_answers, swap_ms, swap_steps
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
        asleep_bytes=draw(st.sampled_from((None, 0.0, 2.0))),
    )
    model = np.arange(m) if draw(st.booleans()) else rng.integers(0, 2, m)
    limited = rng.random(m) < draw(st.sampled_from((0.0, 0.3)))
    return SharedNode(Company(rng.integers(50, 900, m).astype(float), model, limited), table)


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
        for members in itertools.combinations(range(len(node.who.need)), size):
            if len({int(node.who.model[p]) for p in members}) < size:
                assert members not in known
                continue
            sets, place = _all_batches(node, members)
            need = node.who.need[list(members)] * (1 - 1e-9)
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
            and not node.who.limited[next(iter(set(other) - set(members)))]
        ]
        assert given_.get(members, []) == ([] if larger else [batches])


def test_a_gpu_is_divided_as_nvidia_says() -> None:
    """Every geometry of the user guide fits, and nothing beyond; of equal slices as many as its table says."""
    names = dict(zip("abcde", range(len(SIZES)), strict=True))  # 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb
    for geometry in ("aaaaaaa", "bbbb", "caaaaa", "ccaaa", "ccca", "dd", "dca", "dcc", "ed", "eca", "eaaa"):
        assert fits_together(tuple(names[size] for size in geometry)), geometry
    for size, most in zip("abcde", (7, 4, 3, 2, 1), strict=True):
        assert fits_together((names[size],) * most)
        assert not fits_together((names[size],) * (most + 1))
    assert not any(fits_together(tuple(names[size] for size in geometry)) for geometry in ("ee", "edb", "ddb", "eccc"))
    (configuration,) = (c for c in load_scenario("longtail").configurations if c.name == "1xH100")
    part = sliced(configuration, "3g.40gb")
    assert part.gpu.memory_gib == configuration.gpu.memory_gib / 2
    assert part.gpu.bf16_tflops == configuration.gpu.bf16_tflops * 3 / 7
    assert part.gpu.like == "H100"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_slices_are_those_of_trying_all_divisions(seed: int, most: int) -> None:
    """All needs, or as much as fits of one phase: no division of the GPU, of any slices, gives more."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 5))
    # A larger slice is no slower.
    small, wide, middle, large = np.cumsum(rng.integers(0, 4, (4, m)) * (rng.random((4, m)) < 0.7), axis=0)
    tokens_s = np.stack([small, wide, middle, large, large + rng.integers(0, 3, m)], axis=1).astype(float)
    who = Company(rng.integers(1, 10, m).astype(float), np.arange(m), np.zeros(m, dtype=bool))
    node = SlicedNode(who, np.ones((m, len(SIZES)), dtype=np.int64), tokens_s)
    known: dict[tuple[int, ...], list[tuple[float, ...]]] = {}
    for sets, place in node.patterns(most):
        for members, given_ in zip(sets.tolist(), node.given(sets, place).tokens_s.tolist(), strict=True):
            known.setdefault(tuple(members), []).append(tuple(given_))
    whole_sets = set()
    for size in range(most, 1, -1):
        fitting = [sizes for sizes in itertools.product(range(len(SIZES)), repeat=size) if fits_together(sizes)]
        for members in itertools.combinations(range(m), size):
            all_given = [tuple(tokens_s[p, k] for p, k in zip(members, sizes, strict=True)) for sizes in fitting]
            possible = [some for some in all_given if min(some) > 0]
            need = who.need[list(members)]
            if any((np.array(some) >= need).all() for some in possible):
                whole_sets.add(members)
                larger = any(set(members) < set(other) for other in whole_sets if len(other) == size + 1)
                assert len(known.get(members, [])) == (0 if larger else 1)
                assert all((np.array(some) >= need).all() for some in known.get(members, []))
                continue
            for column in range(size):
                others = [s for s in possible if (np.delete(s, column) >= np.delete(need, column)).all()]
                if others:
                    best = max(s[column] for s in others)
                    assert any(
                        s[column] == best and (np.delete(s, column) >= np.delete(need, column)).all()
                        for s in known[members]
                    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_turns_serve_what_they_promise(seed: int) -> None:
    """Requests that arrive evenly find their first token within the limit, every turn, by counting each request's wait."""
    rng = np.random.default_rng(seed)
    scenario = load_scenario("longtail")
    (configuration,) = (c for c in scenario.configurations if c.name == "1xL40S")
    sharing = Sharing(3, ("swapping",), float(rng.integers(2, 30)))
    phases = [
        replace(scenario.model_phases[p], prefill_ms=float(rng.integers(20, 90) * 1e3))
        for p in rng.choice(len(scenario.model_phases), int(rng.integers(2, 4)), replace=False)
    ]
    source = throughput_source(scenario.throughput_source)
    steps = [swap_steps(p, configuration, source.times(p.model, configuration), sharing) for p in phases]
    need = np.array([float(rng.uniform(0.1, 3.0)) * phase.mean_output_tokens for phase in phases])
    node = SharedNode(
        Company(need, np.arange(len(phases)), np.zeros(len(phases), dtype=bool)),
        StepTable.of(steps, configuration, sharing.asleep_gib),
    )
    for sets, place in node.patterns(len(phases)):
        for members, given_ in zip(sets.tolist(), node.given(sets, place).batch.tolist(), strict=True):
            mine = [steps[p] for p in members]
            turn_ms = [own.ms_of(b) for own, b in zip(mine, given_, strict=True)]
            cycle_ms = sum(turn_ms)
            for k, (own, b) in enumerate(zip(mine, given_, strict=True)):
                phase, answers = phases[members[k]], own.tokens_each
                every_ms = cycle_ms / b
                turns, opened = 4, sum(turn_ms[:k]) + swap_ms(phase, sharing)
                gates = [opened + n * cycle_ms for n in range(turns + 1)]
                prompts_ms = phase.prefill_budget_ms - own.longest_within_ms[own.batch.tolist().index(b)]
                arrivals = np.arange(gates[0] + every_ms / 2, gates[-1], every_ms)
                waits = [min(g for g in gates if g >= a - 1e-6) - a + prompts_ms for a in arrivals]
                assert max(waits) <= phase.prefill_budget_ms + 1e-6
                assert len(arrivals) * answers / (gates[-1] - gates[0]) * 1e3 == pytest.approx(
                    node.table.tokens_s(np.array([members]), place[[sets.tolist().index(members)]])[0, k], rel=0.3
                )
                # The longest of b answers, drawn.
                drawn = (
                    phase.lengths.output.sample(np.random.default_rng(1), 2000 * b).reshape(-1, b).max(axis=1).mean()
                )
                assert longest_answers(phase.lengths.output, np.array([float(b)]))[0] == pytest.approx(drawn, rel=0.15)
            engines = [own.fixed_bytes + own.kv_bytes(b) for own, b in zip(mine, given_, strict=True)]
            room = present_share(configuration, sharing.asleep_gib, len(members)) * configuration.memory_gib * GIB
            assert max(engines) <= room * (1 + 1e-9)


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
