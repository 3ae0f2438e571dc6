"""Throughput tables against an independent slow recomputation, and the limits they must respect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.catalog import models, node_configurations
from coralopt.catalog.types import GIB
from coralopt.errors import CoraloptError
from coralopt.scenario.resolved import ModelPhase
from coralopt.throughput import FIRST, LAST, MIDDLE, build_tables, explain_infeasible, stage_role, throughput_source
from coralopt.throughput.nodes import HOP_MS, MEMORY_SHARE, RESERVE_GIB, batch_grid, cache_bytes
from coralopt.throughput.roofline import RooflineSource, efficiency_of, layer_ms
from coralopt.throughput.silicon import SiliconSource

NAMES = ("phi4-14b", "gpt-oss-20b", "qwen3-32b", "llama3-70b", "gpt-oss-120b", "qwen3-235b")
NODES = ("1xL4", "4xL4", "1xA10G", "1xL40S", "2xL40S", "4xL40S", "1xA100", "8xA100", "1xH100", "2xH100", "8xH100")


def phase_of(name: str, phase: str, slo: tuple[float, float] = (1500.0, 80.0)) -> ModelPhase:
    """A model phase with middling lengths."""
    return ModelPhase(models()[name], phase, slo[0], slo[1], 1000.0, 1100.0, 200.0)  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    phase=st.sampled_from(["prefill", "decode"]),
    node=st.sampled_from(NODES),
    stages=st.integers(1, 6),
    role=st.sampled_from([FIRST, MIDDLE, LAST]),
    share=st.floats(0.01, 1.0),
    slo=st.sampled_from([(900.0, 30.0), (1500.0, 80.0), (6000.0, 400.0)]),
)
def test_cell_equals_slow_recomputation(
    name: str, phase: str, node: str, stages: int, role: int, share: float, slo: tuple[float, float]
) -> None:
    """One cell, batch by batch in plain Python from the documented formulas: the vectorised table must be equal."""
    role = FIRST if stages == 1 else role
    item, configuration = phase_of(name, phase, slo), node_configurations()[node]
    model = item.model
    j = max(1, round(share * model.layers))
    source = throughput_source("auto")
    table = build_tables(source, item, [configuration], 6)
    times = source.times(model, configuration)
    free = configuration.memory_gib * GIB * MEMORY_SHARE - RESERVE_GIB * GIB * configuration.count
    free -= j * model.layer_bytes
    ends = 2 if stages == 1 else int(role != MIDDLE)
    free -= ends * model.embedding_params
    prefill = phase == "prefill"
    context = item.mean_input_tokens + (0 if prefill else item.mean_output_tokens / 2)
    sequences = np.floor(free / (j * cache_bytes(model, configuration, context)))
    tokens = item.mean_input_tokens if prefill else 1.0
    limit = item.prefill_ms if prefill else item.decode_ms
    best = 0.0
    for b in batch_grid(times.most_prompts if prefill else times.most_sequences):
        at = np.array([b])
        layer, other = times.prefill_ms(at, context) if prefill else times.decode_ms(at, context)
        ms = j * float(layer[0])
        moved = b * tokens * model.hidden * 2
        if stages == 1 or role == LAST:
            ms += float(other[0])
        else:
            if role == FIRST:
                ms += moved / (configuration.gpu.bandwidth_gb_s * 1e6)
            ms += moved / (configuration.network_gb_s * 1e6)
        if stages > 1:
            ms += HOP_MS
        if stages * ms <= limit and stages * b <= sequences:
            speed = 1e3 * b * tokens / ms
            if stages > 1:
                speed = min(speed, 1e3 * sequences * tokens / limit)
            best = max(best, speed)
    assert table.values[stages - 1, role, 0, j] == pytest.approx(best, rel=1e-9)


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
            room = configuration.memory_gib * GIB * MEMORY_SHARE - configuration.count * GIB * RESERVE_GIB
            room -= j * item.model.layer_bytes
            resident = table.values[1:, MIDDLE, c, j] * item.decode_ms / 1e3
            assert (resident * j * cache_bytes(item.model, configuration, context) <= max(room, 0.0) * (1 + 1e-9)).all()


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
    assert "ms" in text
    assert "memory" in explain_infeasible(item, [node_configurations()["1xL4"]], "auto")


def test_roles() -> None:
    """First, middle, last; a single stage counts as first."""
    assert [stage_role(s, 4) for s in range(4)] == [FIRST, MIDDLE, MIDDLE, LAST]
    assert stage_role(0, 1) == FIRST
    assert RooflineSource().covers(models()["qwen3-32b"], node_configurations()["1xL4"])
