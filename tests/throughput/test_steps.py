"""Steps of phases that share a node: alone a phase is its table, together they are what a slow reading of the rules says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from coralopt.catalog import models, node_configurations
from coralopt.scenario.facts.measured import MeasuredNodeTimes, MeasuredTimesGrid
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.facts.serving import SERVING_PRESETS
from coralopt.throughput import FIRST, build_tables, only_executable, throughput_source
from coralopt.throughput.layer_times import SlowerTimes
from coralopt.throughput.measured import MeasuredSource
from coralopt.throughput.nodes import step_work
from coralopt.throughput.roofline import pair_ms
from coralopt.throughput.steps import NodeSteps, StepTable, node_steps

NODE = node_configurations()["2xH100"]


def phase_of(name: str, phase: str) -> ModelPhase:
    """A model phase with middling lengths and SLOs that bind."""
    serving = replace(SERVING_PRESETS["engine"], step_tokens=2048)
    ttft_ms = 300.0 if phase == "prefill" else 1500.0
    return ModelPhase(models()[name], phase, ttft_ms, 60.0, 1000.0, 900.0, 150.0, serving=serving)  # type: ignore[arg-type]


def steps_of(phase: ModelPhase) -> NodeSteps:
    return node_steps(phase, NODE, throughput_source("auto").times(phase.model, NODE))


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_alone_a_phase_is_its_table(phase: str) -> None:
    item = phase_of("qwen3-32b", phase)
    table = StepTable.of([steps_of(item)], NODE)
    place = np.arange(len(table.batch))[:, None]
    alone = np.zeros_like(place)
    fitting = table.fits(alone, place)
    assert fitting.any()
    assert not fitting.all()
    best = table.tokens_s(alone, place)[fitting].max()
    assert best == pytest.approx(build_tables(throughput_source("auto"), item, [NODE], 1).values[0, FIRST, 0, -1])


@pytest.mark.parametrize("asleep_gib", [None, 1.5])
def test_sets_are_what_a_slow_reading_of_the_rules_says(asleep_gib: float | None) -> None:
    """A cycle within every SLO, also where steps carry prompts; memory for all, or for the largest beside sleeping ones."""
    steps = [steps_of(phase_of(*names)) for names in (("phi4-14b", "mixed"), ("gpt-oss-20b", "mixed"))]
    # Limits near one another, so that each of them decides somewhere.
    steps[1] = replace(steps[1], within_ms=40.0, longest_within_ms=np.minimum(steps[1].longest_within_ms, 45.0))
    table = StepTable.of(steps, NODE, asleep_gib)
    pairs = list(itertools.product(range(0, len(table.batch), 7), repeat=2))
    sets, place = np.tile([0, 1], (len(pairs), 1)), np.array(pairs)
    fits, tokens = table.fits(sets, place), table.tokens_s(sets, place)
    reasons = set()
    for row, places in enumerate(pairs):
        members = list(zip(steps, places, strict=True))
        if any(k >= len(item.batch) for item, k in members):
            assert not fits[row]
            continue
        cycle = sum(float(item.ms[k]) for item, k in members)
        longest = sum(float(item.longest_ms[k]) for item, k in members)
        bytes_each = [item.fixed_bytes + item.kv_bytes(int(item.batch[k])) for item, k in members]
        held = sum(bytes_each) if asleep_gib is None else max(bytes_each) + asleep_gib * 2**30 * NODE.count
        wrong = {
            "cycle": cycle > min(item.within_ms for item in steps),
            "longest": longest > min(float(item.longest_within_ms[k]) for item, k in members),
            "memory": held > table.memory_bytes,
        }
        assert fits[row] == (not any(wrong.values()))
        reasons |= {name for name, says in wrong.items() if says}
        for column, (item, k) in enumerate(members):
            assert tokens[row, column] == pytest.approx(1e3 * item.batch[k] * item.tokens_each / cycle)
    assert fits.any()
    assert {"cycle", "longest"} <= reasons


def test_slower_times_are_slower_in_every_part() -> None:
    plain = throughput_source("auto").times(models()["phi4-14b"], NODE)
    slower, some = SlowerTimes(plain, 1.25), np.array([1.0, 4.0])
    for name in ("prefill_ms", "decode_ms"):
        for part, whole in zip(getattr(plain, name)(some, 300.0), getattr(slower, name)(some, 300.0), strict=True):
            assert (whole == 1.25 * part).all()
            assert (whole > 0).any()


def test_where_an_engine_does_not_run_the_table_says_nothing() -> None:
    """A decode stage of several is none in stock vLLM: no throughput, no batch, no time."""
    item = phase_of("phi4-14b", "decode")
    table = build_tables(throughput_source("auto"), item, [NODE], 3)
    only = only_executable(table, "vllm", item, [NODE])
    for whole, cut in ((table.values, only.values), (table.batch, only.batch), (table.stage_ms, only.stage_ms)):
        assert (cut[0] == whole[0]).all()
        assert whole[1:].any()
        assert not cut[1:].any()


def test_new_tokens_attend_to_those_whose_cache_is_there() -> None:
    """A quarter of the prompt is cached: the rest is computed, and every token of it meets every cached one."""
    item = replace(phase_of("qwen3-32b", "prefill"), prefix_hit=0.25)
    times, batch = throughput_source("auto").times(item.model, NODE), np.array([1.0, 3.0])
    layer_ms, other_ms = times.prefill_ms(batch, 675.0)
    work = step_work(item, NODE, times, batch)
    each = pair_ms(item.model, NODE)
    assert work.step.layer_ms == pytest.approx(layer_ms + each * np.array([675.0 * 225.0, 3 * 675.0 * 225.0]))
    assert (work.step.nonlayer_ms == other_ms).all()
    assert work.step.tokens.tolist() == [675.0, 2025.0]


def test_measurements_come_first_and_the_rest_fills_in() -> None:
    """What was measured is known without another source; what was not, only with one."""
    grid = MeasuredTimesGrid((1.0, 100.0), (1.0, 2.0), ((1.0, 2.0), (3.0, 4.0)), ((0.1, 0.1), (0.2, 0.2)))
    own, other = models()["qwen3-32b"], models()["phi4-14b"]
    node = MeasuredNodeTimes(own.name, NODE.name, own.weight_format, "here", grid, grid)
    rest = throughput_source("roofline")
    assert rest.covers(other, NODE)
    for source, filled in ((MeasuredSource([node]), False), (MeasuredSource([node], rest), True)):
        assert source.covers(own, NODE)
        assert source.times(own, NODE).provenance == "measured: here"
        assert source.covers(other, NODE) is filled
