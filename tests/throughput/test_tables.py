"""Throughput tables against an independent slow recomputation, and the limits they must respect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from coralopt.catalog import models, node_configurations
from coralopt.catalog.types import GIB
from coralopt.errors import CoraloptError
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.facts.serving import SERVING_PRESETS, Serving
from coralopt.scenario.lengths import LengthSpread
from coralopt.throughput import FIRST, LAST, MIDDLE, build_tables, explain_infeasible, stage_role, throughput_source
from coralopt.throughput.nodes import HOP_MS, MEMORY_SHARE, batch_grid, cache_bytes
from coralopt.throughput.roofline import RooflineSource, efficiency_of, layer_ms
from coralopt.throughput.silicon import SiliconSource

NAMES = ("phi4-14b", "gpt-oss-20b", "qwen3-32b", "llama3-70b", "gpt-oss-120b", "qwen3-235b")
NODES = ("1xL4", "4xL4", "1xA10G", "1xL40S", "2xL40S", "4xL40S", "1xA100", "8xA100", "1xH100", "2xH100", "8xH100")


def phase_of(name: str, phase: str, slo: tuple[float, float] = (1500.0, 80.0)) -> ModelPhase:
    """A model phase with middling lengths."""
    return ModelPhase(models()[name], phase, slo[0], slo[1], 1000.0, 1100.0, 200.0)  # type: ignore[arg-type]


PAPER, ENGINE = SERVING_PRESETS["paper"], SERVING_PRESETS["engine"]


def lognormal_points(mean: float, cv: float) -> np.ndarray:
    """512 equally likely lengths."""
    sigma = np.sqrt(np.log1p(cv**2))
    return mean * np.exp(sigma * ndtri((np.arange(512) + 0.5) / 512) - sigma**2 / 2)


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    phase=st.sampled_from(["prefill", "decode"]),
    node=st.sampled_from(NODES),
    shape=st.tuples(st.integers(1, 6), st.sampled_from([FIRST, MIDDLE, LAST]), st.floats(0.01, 1.0)),
    slo=st.sampled_from([(900.0, 30.0), (1500.0, 80.0), (6000.0, 400.0)]),
    attainment=st.sampled_from([None, 0.3, 0.9, 0.99]),
    serving=st.sampled_from([PAPER, ENGINE, replace(ENGINE, admission="reserve", host_step_ms=7.5)]),
    cvs=st.sampled_from([(1.0, 1.0), (0.0, 0.5), (1.5, 2.0)]),
)
def test_cell_equals_slow_recomputation(
    name: str,
    phase: str,
    node: str,
    shape: tuple[int, int, float],
    slo: tuple[float, float],
    attainment: float | None,
    serving: Serving,
    cvs: tuple[float, float],
) -> None:
    """One cell, batch by batch in plain Python from the documented formulas: the vectorised table must be equal."""
    stages, role, share = shape
    role = FIRST if stages == 1 else role
    item, configuration = phase_of(name, phase, slo), node_configurations()[node]
    item = replace(item, attainment=attainment, serving=serving)
    item = replace(item, input_spread=LengthSpread(cvs[0]), output_spread=LengthSpread(cvs[1]))
    model = item.model
    held_layers = max(1, round(share * model.layers))
    source = throughput_source("auto")
    table = build_tables(source, item, [configuration], 6)
    times = source.times(model, configuration)
    prefill = phase == "prefill"
    # What is at work when a limit is looked at: the mean, or with an attainment what that share of moments stays below.
    answer, prompt, z = item.mean_output_tokens, item.mean_input_tokens, 0.0
    context, held, spread, later = prompt + answer / 2, prompt + answer / 2, 0.0, 0.0
    if prefill:
        context = held = prompt
    elif attainment is not None:
        z = max(0.0, float(ndtri(attainment)))
        biased = answer * (1 + cvs[1] ** 2)
        context = prompt + biased / 2
        written, third = (biased, 1) if serving.admission == "reserve" else (biased / 2, 3)
        held = prompt + written
        square = prompt**2 * (1 + cvs[0] ** 2) + 2 * prompt * written + answer**2 * (1 + cvs[1] ** 2) ** 3 / third
        spread = np.sqrt(square) / held
        kept = np.maximum(lognormal_points(prompt, cvs[0]), 1.0)
        if model.sliding_window:
            windowed = model.sliding_layers / model.layers
            kept = (1 - windowed) * kept + windowed * np.minimum(kept, model.sliding_window)
        more = np.rint(np.maximum(lognormal_points(answer, cvs[1]), 1.0)) - 1
        shares = np.where(more > 0, kept[:, None] / np.maximum(more, 1e-9), 0.0)
        later = float(np.quantile(shares, attainment)) * model.kv_elements_per_token_per_layer * 2
        later /= configuration.network_gb_s * 1e6
    tokens = prompt if prefill else 1.0
    limit = item.prefill_ms - serving.host_request_ms if prefill else item.decode_ms

    def mean_of(most: float, spread: float) -> float:
        """m with m + z spread sqrt(m) = most, by bisection."""
        low, high = 0.0, max(most, 0.0)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if middle + z * spread * np.sqrt(middle) <= most else (low, middle)
        return high

    def stage_ms(b: float, j: int) -> float:
        layer, other = (times.prefill_ms if prefill else times.decode_ms)(np.array([b]), context)
        ms = j * float(layer[0]) + serving.host_step_ms
        moved = b * tokens * model.hidden * 2
        if stages == 1 or role == LAST:
            ms += float(other[0])
        else:
            if role == FIRST:
                ms += moved / (configuration.gpu.bandwidth_gb_s * 1e6)
            ms += moved / (configuration.network_gb_s * 1e6)
        return ms + (HOP_MS if stages > 1 else 0.0)

    def best_of(j: int) -> tuple[float, int]:
        free = configuration.memory_gib * GIB * MEMORY_SHARE - serving.reserve_gib * GIB * configuration.count
        free -= j * model.layer_bytes + (2 if stages == 1 else int(role != MIDDLE)) * model.embedding_params
        sequences = np.floor(free / (j * cache_bytes(model, configuration, held)))
        resident = mean_of(sequences, spread) if z else sequences
        speeds = []
        for b in batch_grid(times.most_prompts if prefill else times.most_sequences):
            at_work = mean_of(stages * b, 1.0) / stages if z else b
            usual = max(at_work, 1.0) if z else b
            speed = 0.0
            if stages * stage_ms(b, j) <= limit - later * j and stages * at_work <= resident:
                speed = 1e3 * at_work * tokens / stage_ms(usual, j)
                if stages > 1:
                    speed = min(speed, 1e3 * resident * tokens / limit)
            speeds.append((speed, int(b)))
        most = max(speed for speed, _ in speeds)
        if prefill and attainment is not None:
            return next(pair for pair in speeds if pair[0] >= 0.95 * most)
        return max(speeds, key=lambda pair: pair[0])

    best, batch = best_of(held_layers)
    if prefill and attainment is not None:
        best = min(best_of(j)[0] for j in range(1, held_layers + 1))
    assert table.values[stages - 1, role, 0, held_layers] == pytest.approx(best, rel=1e-9)
    assert table.batch[stages - 1, role, 0, held_layers] == (batch if best else 0)


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_tables_keep_their_promises(name: str, phase: str) -> None:
    """Budget, roles, falling in j, zero layers, provenance: for every cell of every model."""
    item = phase_of(name, phase)
    configurations = [node_configurations()[node] for node in NODES]
    table = build_tables(throughput_source("auto"), item, configurations, 6)
    assert (table.values[..., 0] == 0).all()
    assert (np.diff(table.values[..., 1:], axis=-1) <= 1e-9).all()
    stages = np.arange(1, 7)[:, None, None, None]
    assert (stages * table.stage_ms <= item.slo_ms * (1 + 1e-12)).all()
    assert ((table.values > 0) == (table.batch > 0)).all()
    assert ((table.values > 0) == (table.stage_ms > 0)).all()
    # A middle stage bears neither end, so it is never the slower one.
    assert (table.values[1:, MIDDLE] >= table.values[1:, FIRST] - 1e-9).all()
    assert all(line.startswith(("silicon:", "roofline:")) for line in table.provenance)
    assert (table.values[0, 1:] == 0).all()


def test_little_law_holds_for_whole_pipelines() -> None:
    """T x SLO sequences fit into every node's KV memory: the pipeline's capacity is that of its worst stage."""
    item = phase_of("llama3-70b", "decode")
    configurations = [node_configurations()[node] for node in NODES]
    table = build_tables(throughput_source("auto"), item, configurations, 6)
    context = item.mean_input_tokens + item.mean_output_tokens / 2
    for c, configuration in enumerate(configurations):
        for j in range(1, 81):
            room = configuration.memory_gib * GIB * MEMORY_SHARE - configuration.count * GIB * 1.0
            room -= j * item.model.layer_bytes
            resident = table.values[1:, MIDDLE, c, j] * item.decode_ms / 1e3
            assert (resident * j * cache_bytes(item.model, configuration, context) <= max(room, 0.0) * (1 + 1e-9)).all()


@pytest.mark.parametrize("kept", [(0, 2), (4, 1, 3), (5,)])
def test_figures_of_some_nodes_are_those_made_for_them(kept: tuple[int, ...]) -> None:
    """What some nodes can do does not depend on the others that are on offer."""
    hosts = [node_configurations()[name] for name in NODES[:6]]
    phase, source = phase_of("qwen3-32b", "decode"), throughput_source("auto")
    part = build_tables(source, phase, hosts, 3).of([hosts[c].name for c in kept])
    anew = build_tables(source, phase, [hosts[c] for c in kept], 3)
    for name in ("values", "batch", "stage_ms"):
        np.testing.assert_array_equal(getattr(part, name), getattr(anew, name))
    assert (part.configurations, part.provenance) == (anew.configurations, anew.provenance)


def test_silicon_is_exact_on_the_grid() -> None:
    """At measured points the figures are those measured, not smoothed."""
    model, configuration = models()["qwen3-32b"], node_configurations()["2xH100"]
    times = SiliconSource().times(model, configuration)
    for k, length in enumerate(times.decode.tokens):
        layer, other = times.decode_ms(times.decode.batch, float(length))
        assert layer == pytest.approx(times.decode.per_layer[k])
        assert other == pytest.approx(times.decode.nonlayer[k])


def test_sources_say_what_they_cover() -> None:
    """L4 and A10G were never measured: silicon refuses them by name, auto falls back and says so."""
    item, nodes = phase_of("qwen3-32b", "decode"), [node_configurations()["1xL4"], node_configurations()["1xL40S"]]
    with pytest.raises(CoraloptError, match="1xL4"):
        build_tables(throughput_source("silicon"), item, nodes, 2)
    table = build_tables(throughput_source("auto"), item, nodes, 2)
    assert table.provenance[0].startswith("roofline")
    assert table.provenance[1].startswith("silicon")
    with pytest.raises(CoraloptError, match="roofline"):
        throughput_source("slicon")


def test_host_times_stand_in_the_provenance() -> None:
    """Whoever reads a figure learns what the host takes in it, and where that was measured."""
    item, nodes = phase_of("qwen3-32b", "decode"), [node_configurations()["1xL4"]]
    source = throughput_source("auto")
    assert "host" not in build_tables(source, item, nodes, 1).provenance[0]
    line = build_tables(source, replace(item, serving=ENGINE), nodes, 1).provenance[0]
    assert line.endswith("; host 0.6 ms a step, 14 ms a request (closed-loop measurements of vLLM)")
    own = build_tables(source, replace(item, serving=replace(ENGINE, host_step_ms=2.0)), nodes, 1).provenance[0]
    assert own.endswith("; host 2 ms a step, 14 ms a request (the scenario)")


def test_estimates_do_not_pass_as_measurements() -> None:
    """gpt-oss on A100 is the vendor's estimate: auto models it itself, silicon gives it under its true name."""
    item, nodes = phase_of("gpt-oss-20b", "decode"), [node_configurations()["1xA100"]]
    assert build_tables(throughput_source("auto"), item, nodes, 1).provenance[0].startswith("roofline")
    assert build_tables(throughput_source("silicon"), item, nodes, 1).provenance[0].startswith("vendor estimate")


def test_physics_of_the_roofline() -> None:
    """Expert reads grow with the batch and level off; quantised weights and sliding windows save time."""
    configuration = node_configurations()["1xH100"]
    efficiency = efficiency_of(configuration, "decode")
    model = models()["gpt-oss-120b"]
    batch = np.array([1.0, 2, 4, 8, 64, 512])
    grown = layer_ms(model, configuration, efficiency, batch, batch, 1.0, False)
    assert (np.diff(grown) > 0).all()
    fixed = efficiency.overhead_ms
    assert (grown[3] - fixed) / (grown[0] - fixed) > 3
    bf16 = layer_ms(replace(model, weight_format="bf16"), configuration, efficiency, batch, batch, 1.0, False)
    assert (bf16 > grown).all()
    full = layer_ms(replace(model, sliding_window=None), configuration, efficiency, batch, batch, 1e5, False)
    assert (full > layer_ms(model, configuration, efficiency, batch, batch, 1e5, False)).all()


def test_kv_heads_are_copied_when_gpus_outnumber_them() -> None:
    """Qwen3-235B has 4 KV heads: on 8 GPUs each is held twice."""
    model = models()["qwen3-235b"]
    four, eight = node_configurations()["4xH100"], node_configurations()["8xH100"]
    assert cache_bytes(model, eight, 1000.0) == 2 * cache_bytes(model, four, 1000.0)


def test_hopeless_slo_is_explained() -> None:
    """The message gives the time that could be met, or says that memory is what lacks."""
    item = phase_of("llama3-70b", "decode", (1500.0, 1.0))
    text = explain_infeasible(item, [node_configurations()["8xH100"]], "auto")
    assert "8xH100" in text
    assert text.startswith("the smallest tpot_ms that could be met is about ")
    assert "memory" in explain_infeasible(item, [node_configurations()["1xL4"]], "auto")


@pytest.mark.parametrize("phase", ["prefill", "mixed"])
@pytest.mark.parametrize("ttft_ms", [5.0, ENGINE.host_request_ms])
def test_a_first_token_within_the_time_of_the_host_is_never_served(phase: str, ttft_ms: float) -> None:
    """No throughput, also in pipelines, and none below 0."""
    item = replace(phase_of("phi4-14b", phase, (ttft_ms, 80.0)), serving=ENGINE)
    with np.errstate(all="raise"):
        table = build_tables(throughput_source("roofline"), item, [node_configurations()["1xL40S"]], 3)
    assert not table.values.any()


def test_roles() -> None:
    """First, middle, last; a single stage counts as first."""
    assert [stage_role(s, 4) for s in range(4)] == [FIRST, MIDDLE, MIDDLE, LAST]
    assert stage_role(0, 1) == FIRST
    assert RooflineSource().covers(models()["qwen3-32b"], node_configurations()["1xL4"])
