"""Summaries of tables and the explanation of SLOs that cannot be met, on objects built by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from coralopt.catalog.types import GIB, Gpu, ModelArchitecture, NodeConfiguration
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.facts.serving import SERVING_PRESETS, Serving
from coralopt.throughput import (
    FIRST,
    LAST,
    MIDDLE,
    build_tables,
    explain_infeasible,
    falls_in_layers,
    throughput_source,
)
from coralopt.throughput.nodes import HOP_MS, MEMORY_SHARE, batch_grid, cache_bytes
from coralopt.throughput.roofline import efficiencies, efficiency_of, layer_ms, pair_ms

BIG = Gpu("Big", 80.0, 3000.0, 900.0, 1800.0, 450.0, True, "Hopper", "test")
SMALL = Gpu("Small", 24.0, 300.0, 120.0, None, 32.0, False, "Ada", "test")
NODES = (
    NodeConfiguration("1xBig", BIG, 1, 12.5),
    NodeConfiguration("4xBig", BIG, 4, 50.0),
    NodeConfiguration("1xSmall", SMALL, 1, 1.25),
    NodeConfiguration("8xSmall", SMALL, 8, 6.25),
)
DENSE = ModelArchitecture(
    name="dense",
    hf_id="test/dense",
    layers=20,
    hidden=4096,
    heads=32,
    kv_heads=2,
    head_dim=128,
    vocab=100_000,
    experts=0,
    experts_per_token=0,
    attention_params_per_layer=40_000_000,
    dense_ffn_params_per_layer=180_000_000,
    expert_params=0,
    embedding_params=819_200_000,
    total_params=5_219_200_000,
    kv_elements_per_token_per_layer=512,
    weight_format="bf16",
    sliding_window=None,
    sliding_layers=0,
    max_position=32768,
    source="test",
)
SPARSE = replace(
    DENSE, name="sparse", experts=64, experts_per_token=4, dense_ffn_params_per_layer=0, expert_params=12_000_000
)
#: Below a millisecond.
QUICK = replace(
    DENSE,
    name="quick",
    layers=2,
    hidden=256,
    heads=4,
    attention_params_per_layer=200_000,
    dense_ffn_params_per_layer=800_000,
    vocab=1000,
    embedding_params=512_000,
    total_params=2_512_000,
)
WINDOWED = replace(DENSE, name="windowed", sliding_window=256, sliding_layers=10)


def phase_of(model: ModelArchitecture, phase: str, prefill_ms: float = 1000.0, decode_ms: float = 60.0) -> ModelPhase:
    """A phase with middling lengths."""
    return ModelPhase(model, phase, prefill_ms, decode_ms, 1000.0, 900.0, 150.0)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(
    model=st.sampled_from([DENSE, SPARSE, WINDOWED]),
    node=st.sampled_from(NODES),
    stages=st.integers(1, 5),
    role=st.sampled_from([FIRST, MIDDLE, LAST]),
    j=st.integers(1, 20),
    slo=st.sampled_from([(200.0, 15.0), (2000.0, 60.0), (20000.0, 500.0)]),
    lengths=st.tuples(st.integers(20, 6000), st.integers(1, 1500)),
    engine=st.sampled_from(
        [
            (None, SERVING_PRESETS["paper"]),
            (None, replace(SERVING_PRESETS["engine"], step_tokens=512)),
            (0.95, SERVING_PRESETS["engine"]),
            (0.99, replace(SERVING_PRESETS["engine"], admission="reserve", step_tokens=8192)),
        ]
    ),
)
@example(
    # A prompt beside seven sequences makes just the 64 tokens from which on a step is no short one.
    model=SPARSE,
    node=NODES[0],
    stages=5,
    role=FIRST,
    j=6,
    slo=(200.0, 15.0),
    lengths=(57, 190),
    engine=(None, replace(SERVING_PRESETS["engine"], step_tokens=512)),
)
def test_mixed_cell_equals_slow_recomputation(
    model: ModelArchitecture,
    node: NodeConfiguration,
    stages: int,
    role: int,
    j: int,
    slo: tuple[float, float],
    lengths: tuple[int, int],
    engine: tuple[float | None, Serving],
) -> None:
    """Mixed has two SLOs and steps with and without prompts: recomputed batch by batch from the documentation."""
    role = FIRST if stages == 1 else role
    n_in, n_out = lengths
    attainment, serving = engine
    item = ModelPhase(model, "mixed", slo[0], slo[1], 1000.0, float(n_in), float(n_out))
    item = replace(item, attainment=attainment, serving=serving)
    table = build_tables(throughput_source("roofline"), item, [node], 5)
    times = throughput_source("roofline").times(model, node)
    context, held, spread, z = n_in + n_out / 2, n_in + n_out / 2, 0.0, 0.0
    if attainment is not None:
        # Lognormal lengths of cv 1: E[o^2] / E[o] is twice the mean, E[o^3] / E[o] eight times its square.
        z, context = float(ndtri(attainment)), n_in + n_out
        reserved = serving.admission == "reserve"
        held = n_in + (2 if reserved else 1) * n_out
        square = 2 * n_in**2 + (4 if reserved else 2) * n_in * n_out + 8 * n_out**2 / (1 if reserved else 3)
        spread = np.sqrt(square) / held
    free = node.gpu.memory_gib * node.count * GIB * MEMORY_SHARE - serving.reserve_gib * GIB * node.count
    free -= j * model.layer_bytes + (2 if stages == 1 else int(role != MIDDLE)) * model.embedding_params
    sequences = np.floor(free / (j * cache_bytes(model, node, held)))

    def mean_of(most: float, spread: float) -> float:
        root = np.sqrt(max(most, 0.0) + (z * spread / 2) ** 2) - z * spread / 2
        return float(root**2) if z * spread else most

    def stage(layer_ms: float, other_ms: float, tokens: float) -> float:
        ms, moved = j * layer_ms + serving.host_step_ms, tokens * model.hidden * 2
        if stages == 1 or role == LAST:
            ms += other_ms
        else:
            ms += moved / (node.gpu.bandwidth_gb_s * 1e6) if role == FIRST else 0.0
            ms += moved / (node.network_gb_s * 1e6)
        return ms + (HOP_MS if stages > 1 else 0.0)

    def steps(b: float) -> tuple[float, float, bool]:
        """Mean step, ms; time of a first token, ms; whether the token budget holds a step."""
        layer, other = (float(part[0]) for part in times.decode_ms(np.array([b]), context))
        passes = max(1, int(np.ceil(n_in / max(serving.step_tokens - b, 1))))
        carrying = b * passes / n_out
        carried = n_in / passes if carrying < 1 else b * n_in / n_out
        whole, head = (float(part[0]) for part in times.prefill_ms(np.ones(1), b + carried))
        if b + carried < 64:
            whole = min(whole, float(times.decode_ms(np.array([b + carried]), 1.0)[0][0]))
        # All passes of a prompt but the first attend to those before: (passes - 1) / 2 of them on average.
        whole += pair_ms(model, node) * carried * (n_in / passes) * (passes - 1) / 2
        whole += layer - float(times.decode_ms(np.array([b]), 1.0)[0][0])
        with_prompts = stage(whole, max(other, head), b + carried)
        share = 1 - (1 - min(1.0, carrying)) ** stages
        ms = (1 - share) * stage(layer, other, b) + share * with_prompts
        return ms, stages * (passes + 1) * with_prompts, b + carried <= serving.step_tokens

    best, resident = 0.0, mean_of(sequences, spread)
    for b in batch_grid(times.most_sequences):
        ms, first_token, within = steps(b)
        at_work = mean_of(stages * b, 1.0) / stages
        in_time = stages * ms <= slo[1] and first_token <= slo[0] - serving.host_request_ms and within
        if in_time and stages * at_work <= resident:
            speed = 1e3 * at_work / (steps(max(at_work, 1.0))[0] if z else ms)
            if stages > 1:
                speed = min(speed, 1e3 * resident / slo[1])
            best = max(best, speed)
    assert table.values[stages - 1, role, 0, j] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("model", [DENSE, SPARSE, QUICK], ids=["dense", "sparse", "quick"])
def test_smallest_slo_told_is_one_that_works_and_a_smaller_one_is_not(model: ModelArchitecture, phase: str) -> None:
    """The figure in the message is tried: with it some pipeline holds every layer, with 2 % less none does."""
    item = phase_of(model, phase, 1e-2, 1e-2)
    text = explain_infeasible(item, NODES, "roofline", 4)
    field, told = ("prefill_ms", "ttft_ms") if phase == "prefill" else ("decode_ms", "tpot_ms")
    assert f"smallest {told}" in text
    least = float(text.split("about ")[1].split(" ms")[0])

    def possible(ms: float) -> bool:
        other = {"prefill_ms": 1e9, "decode_ms": 1e9} | {field: ms}
        values = build_tables(throughput_source("roofline"), replace(item, **other), NODES, 4).values
        most = np.where(values > 0, np.arange(model.layers + 1), 0).max(axis=(2, 3))
        sums = [most[0, FIRST]] + [most[s, FIRST] + (s - 1) * most[s, MIDDLE] + most[s, LAST] for s in range(1, 4)]
        return bool(max(sums) >= model.layers)

    assert possible(least)
    assert not possible(least * 0.98)


def test_mixed_names_the_slo_that_is_in_the_way() -> None:
    """With an easy time per token the first token is the obstacle, and the message says so."""
    text = explain_infeasible(phase_of(DENSE, "mixed", 1e-2, 1e6), NODES, "roofline", 3)
    assert "smallest ttft_ms" in text


def test_lack_of_memory_is_told_apart_from_lack_of_speed() -> None:
    """No SLO helps when the weights do not fit anywhere."""
    huge = replace(DENSE, dense_ffn_params_per_layer=40_000_000_000)
    assert "memory" in explain_infeasible(phase_of(huge, "decode"), NODES, "roofline")


def test_too_small_nodes_get_zero() -> None:
    """A layer count whose weights exceed the memory must never look usable, at any SLO."""
    heavy = replace(DENSE, dense_ffn_params_per_layer=1_000_000_000)
    table = build_tables(throughput_source("roofline"), phase_of(heavy, "decode", 1e6, 1e6), NODES[2:3], 4)
    for j in range(heavy.layers + 1):
        if j * heavy.layer_bytes > 24 * GIB * MEMORY_SHARE - 1.0 * GIB:
            assert (table.values[:, :, 0, j] == 0).all()
    assert (table.values[1:, MIDDLE, 0, 1] > 0).all()


def test_falls_in_layers_sees_a_rise() -> None:
    """One rising cell anywhere must be found; j = 0 is always 0 and does not count as a rise."""
    values = np.zeros((2, 3, 2, 5))
    values[..., 1:] = [4.0, 3.0, 3.0, 0.0]
    assert falls_in_layers(values)
    values[1, LAST, 1, 4] = 5.0
    assert not falls_in_layers(values)


def test_roofline_times_never_make_more_layers_quicker() -> None:
    assert falls_in_layers(build_tables(throughput_source("roofline"), phase_of(DENSE, "decode"), NODES, 3).values)


@given(tokens=st.integers(1, 200), experts=st.sampled_from([(8, 2), (64, 4), (128, 8)]), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_expert_reads_are_the_expected_distinct_experts(tokens: int, experts: tuple[int, int], seed: int) -> None:
    """The weight bytes a memory-bound step reads follow a simulation of tokens that choose experts independently."""
    count, chosen = experts
    rng = np.random.default_rng(seed)
    hits = [np.unique(rng.random((tokens, count)).argsort(axis=1)[:, :chosen]).size for _ in range(300)]
    # Compute is made free, so that time is bytes alone; attention weights and cache are the same with no experts.
    gpu = replace(BIG, bf16_tflops=1e9)
    node = NodeConfiguration("1xBig", gpu, 1, 12.5)
    efficiency = replace(efficiencies()["H100"]["decode"], overhead_ms=0.0)
    batch = np.array([float(tokens)])
    model = replace(SPARSE, experts=count, experts_per_token=chosen)
    without = layer_ms(replace(model, experts=0, experts_per_token=0), node, efficiency, batch, batch, 1.0, False)
    extra = (layer_ms(model, node, efficiency, batch, batch, 1.0, False) - without)[0]
    read = extra / 1e3 * gpu.bandwidth_gb_s * 1e9 * efficiency.mbu / (model.expert_params * 2.0)
    assert read == pytest.approx(np.mean(hits), rel=0.03, abs=0.15)


def test_windowed_prefill_counts_the_pairs_there_are() -> None:
    """Attention FLOPs of a sliding-window prefill equal the sum of min(i, window) over the tokens."""
    gpu = replace(BIG, bandwidth_gb_s=1e12)
    node = NodeConfiguration("1xBig", gpu, 1, 12.5)
    efficiency = replace(efficiencies()["H100"]["prefill"], overhead_ms=0.0, half_tokens=0.0)
    model = replace(WINDOWED, sliding_layers=20)
    n = 2000
    pairs = sum(min(i, 256) for i in range(1, n + 1))
    flops = 2.0 * 220_000_000 * n + 4.0 * 32 * 128 * pairs
    found = layer_ms(model, node, efficiency, np.array([float(n)]), np.ones(1), float(n), True)[0]
    assert found == pytest.approx(1e3 * flops / (900e12 * efficiency.mfu), rel=1e-3)


def test_links_follow_the_node() -> None:
    """Hosts wire 2 GPUs otherwise than 8; unlisted counts take the next larger node, unknown GPUs a like one's share."""
    known = efficiencies()["L40S"]["prefill"]
    assert known.link(2).gb_s > 3 * known.link(8).gb_s
    assert known.link(3) == known.link(4)
    assert known.link(16) == known.link(8)
    half = efficiency_of(NodeConfiguration("2xHalf", replace(BIG, link_gb_s=225.0), 2, 12.5), "decode")
    assert half.link(2).gb_s == pytest.approx(efficiencies()["H100"]["decode"].link(2).gb_s / 2)
    assert half.source.startswith("assumed like H100")
