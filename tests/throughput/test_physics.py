"""Layer times, KV bytes and memory against arithmetic written out by hand: no formula of the code under test is used.

The node is made up of round numbers: 100 GiB, 1,000 GB/s, 100 TFLOP/s in BF16 and 200 in FP8. Kernels reach half of the
peak, a quarter in experts, 80 % of the bandwidth; 10 tokens reach half of that; a layer costs 0.05 ms on top. So a GPU does
5e13 FLOP/s (experts 2.5e13; FP8 twice as much) and reads 8e11 bytes/s. The models are published ones, sizes beside them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coralopt.catalog import gpus, models
from coralopt.catalog.types import GIB, Gpu, NodeConfiguration
from coralopt.scenario.resolved import ModelPhase
from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.throughput.nodes import cache_bytes, free_bytes, node_throughput
from coralopt.throughput.roofline import Efficiency, Link, RooflineSource, efficiency_of, head_ms, layer_ms
from coralopt.types import Floats

GPU = Gpu("round", 100.0, 1000.0, 100.0, 200.0, 100.0, True, "Round", "made up")
EFFICIENCY = Efficiency(
    mfu=0.5,
    moe_mfu=0.25,
    half_tokens=10.0,
    mbu=0.8,
    overhead_ms=0.05,
    links={2: Link(gb_s=100.0, ms=0.01), 8: Link(gb_s=50.0, ms=0.02)},
    source="round numbers",
)


def node(count: int) -> NodeConfiguration:
    return NodeConfiguration(f"{count}xround", GPU, count, network_gb_s=12.5)


def prefill(model: str, prompts: float, length: float, count: int = 1) -> float:
    """Time of one layer, ms."""
    tokens, sequences = np.array([prompts * length]), np.array([prompts])
    return float(layer_ms(models()[model], node(count), EFFICIENCY, tokens, sequences, length, True)[0])


def decode(model: str, sequences: float, context: float, count: int = 1) -> float:
    """Time of one layer, ms."""
    batch = np.array([sequences])
    return float(layer_ms(models()[model], node(count), EFFICIENCY, batch, batch, context, False)[0])


@pytest.mark.parametrize(
    ("count", "milliseconds"),
    [
        # Qwen3-32B: 487,587,840 parameters a layer, 64 heads of 128. One prompt of 1,000 tokens:
        #   matrices   2 * 487,587,840 * 1,000            = 975,175,680,000 FLOP
        #   attention  2 products * 2 * 8,192 * 500 * 1,000 =  16,384,000,000 FLOP (token i sees i: 500 on average)
        #   991,559,680,000 / 5e13 = 19.8311936 ms; (1 + 10 / 1,000) of it: 20.029505536 ms; 0.05 ms on top.
        #   Memory: (975,175,680 + 4,096,000) / 8e11 = 1.22 ms is less.
        (1, 20.079505536),
        # Half of it each, and two all-reduces: 10,240,000 bytes over 100 GB/s and 0.01 ms, 0.1124 ms each.
        (2, 10.014752768 + 0.2248 + 0.05),
        # An eighth, and two all-reduces of 17,920,000 bytes (2 * 7 / 8) over 50 GB/s and 0.02 ms, 0.3784 ms each.
        (8, 2.503688192 + 0.7568 + 0.05),
    ],
)
def test_dense_prefill(count: int, milliseconds: float) -> None:
    assert prefill("qwen3-32b", 1, 1000, count) == pytest.approx(milliseconds, rel=1e-12)


def test_prefill_of_several_prompts_attends_within_each() -> None:
    """Two prompts of 500: as many products as one of 1,000, half the attention: 8,192,000,000 FLOP.

    983,367,680,000 / 5e13 = 19.6673536 ms, * 1.01 = 19.864027136 ms.
    """
    assert prefill("qwen3-32b", 2, 500) == pytest.approx(19.864027136 + 0.05, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "milliseconds"),
    [
        # 8 sequences at 2,000 tokens: weights 487,587,840 * 2 bytes = 975,175,680;
        #   KV 8 * 2,000 * 2,048 elements * 2 bytes = 65,536,000. 1,040,711,680 / 8e11 = 1.3008896 ms.
        (1, 1.3008896 + 0.05),
        # Half, and two all-reduces of 8 * 5,120 * 2 bytes over 100 GB/s (0.0008192 ms) and 0.01 ms.
        (2, 0.6504448 + 2 * 0.0108192 + 0.05),
    ],
)
def test_dense_decode(count: int, milliseconds: float) -> None:
    assert decode("qwen3-32b", 8, 2000, count) == pytest.approx(milliseconds, rel=1e-12)


def test_decode_of_many_short_sequences_is_bound_by_compute() -> None:
    """400 sequences at 10 tokens: 2 * 487,587,840 * 400 + 4 * 8,192 * 10 * 400 = 390,201,344,000 FLOP.

    / 5e13 = 7.80402688 ms, * (1 + 10 / 400) = 7.999127552 ms. Memory: 1.24 ms.
    """
    assert decode("qwen3-32b", 400, 10) == pytest.approx(7.999127552 + 0.05, rel=1e-12)


def test_experts_in_prefill_with_fp8() -> None:
    """Qwen3-235B in FP8: 71,303,168 parameters of attention, 8 of 128 experts of 18,874,368; one prompt of 2,000 tokens.

    Dense: 2 * 71,303,168 * 2,000 + 4 * 8,192 * 1,000 * 2,000 = 350,748,672,000 FLOP / 1e14 = 3.50748672 ms.
    Experts: 2 * 8 * 18,874,368 * 2,000 = 603,979,776,000 FLOP / 5e13 = 12.07959552 ms.
    (3.50748672 + 12.07959552) * (1 + 10 / 2,000) = 15.6650176512 ms.
    """
    assert prefill("qwen3-235b-fp8", 1, 2000) == pytest.approx(15.6650176512 + 0.05, rel=1e-12)


def test_few_tokens_wake_few_experts() -> None:
    """gpt-oss-120b, MXFP4 experts: 4.25 bits a parameter, attention in BF16; every second layer sees 128 tokens only.

    One sequence at 100 tokens: 26,542,080 * 2 bytes + 4 experts * 24,883,200 * 0.53125 = 105,960,960 bytes;
    KV 100 * 1,024 * 2 = 204,800 bytes. 106,165,760 / 8e11 = 0.1327072 ms.

    Two at 1,000 tokens: 128 (1 - (124/128)^2) = 7.875 experts: 53,084,160 + 104,101,200 = 157,185,360 bytes; half of the
    layers keep 1,000 tokens, half 128, 564 on average: 2 * 564 * 2,048 = 2,310,144 bytes.
    159,495,504 / 8e11 = 0.19936938 ms.
    """
    assert decode("gpt-oss-120b", 1, 100) == pytest.approx(0.1327072 + 0.05, rel=1e-12)
    assert decode("gpt-oss-120b", 2, 1000) == pytest.approx(0.19936938 + 0.05, rel=1e-12)


def test_weights_in_fp8_are_a_byte() -> None:
    """Qwen3-235B in FP8, one sequence at 1,000 tokens: 71,303,168 + 8 * 18,874,368 bytes, KV 1,000 * 1,024 * 2 (BF16).

    224,346,112 / 8e11 = 0.28043264 ms. Compute is less: 11 * (2 * 71,303,168 + 32,768,000) / 1e14 +
    11 * 301,989,888 / 5e13 = 0.0857 ms.
    """
    assert decode("qwen3-235b-fp8", 1, 1000) == pytest.approx(0.28043264 + 0.05, rel=1e-12)


def test_output_head() -> None:
    """Qwen3-32B: 151,936 x 5,120 in BF16, 1,555,824,640 bytes, read whole: / 8e11 = 1.9447808 ms; half on two GPUs."""
    model = models()["qwen3-32b"]
    one = head_ms(model, node(1), EFFICIENCY, np.ones(1))
    two = head_ms(model, node(2), EFFICIENCY, np.ones(1))
    assert one[0] == pytest.approx(1.9447808 + 0.05, rel=1e-12)
    assert two[0] == pytest.approx(0.9723904 + 0.05, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "count", "context", "size"),
    [
        # 8 KV heads of 128, keys and values, 2 bytes: 4,096 bytes a token.
        ("qwen3-32b", 1, 1000, 4_096_000),
        ("qwen3-32b", 8, 1000, 4_096_000),
        # 4 KV heads on 8 GPUs: each is held twice. 2,048 bytes a token, two times.
        ("qwen3-235b", 8, 1000, 4_096_000),
        # Every second layer keeps 128 tokens: (1,000 + 128) / 2 * 2,048 bytes; below the window all of them.
        ("gpt-oss-120b", 1, 1000, 1_155_072),
        ("gpt-oss-120b", 1, 100, 204_800),
        # 52 of 62 layers keep 1,024 tokens: (10 * 8,000 + 52 * 1,024) / 62 * 8,192 bytes.
        ("gemma3-27b", 1, 8000, (80_000 + 53_248) / 62 * 8192),
        # One latent of 512 and 64 rotary elements a token, whatever the heads: 1,152 bytes.
        ("deepseek-v3", 1, 1000, 1_152_000),
    ],
)
def test_kv_bytes_of_one_sequence_and_layer(model: str, count: int, context: float, size: float) -> None:
    assert cache_bytes(models()[model], node(count), context) == pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize(
    ("role", "stages", "layers", "left"),
    [
        # 2 x 100 GiB, 90 % of it, 1 GiB a GPU kept back: 178 GiB = 191,126,044,672 bytes.
        (MIDDLE, 3, 0, 191_126_044_672),
        # 10 layers of 975,175,680 bytes.
        (MIDDLE, 3, 10, 191_126_044_672 - 9_751_756_800),
        # Embedding, or head: 151,936 x 5,120 x 2 bytes.
        (FIRST, 3, 10, 191_126_044_672 - 9_751_756_800 - 1_555_824_640),
        (LAST, 3, 10, 191_126_044_672 - 9_751_756_800 - 1_555_824_640),
        # Both, and all 64 layers.
        (FIRST, 1, 64, 191_126_044_672 - 62_411_243_520 - 3_111_649_280),
    ],
)
def test_memory_left_for_the_kv_cache(role: int, stages: int, layers: int, left: int) -> None:
    assert free_bytes(models()["qwen3-32b"], node(2), role, stages)[layers] == left
    assert 178 * GIB == 191_126_044_672


class _OneMillisecond:
    """1 ms a layer, 0.5 ms for what is not a layer, whatever the batch."""

    provenance = "round numbers"
    most_prompts = 1
    most_sequences = 1

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return np.ones_like(prompts), np.full_like(prompts, 0.5)

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        return np.ones_like(sequences), np.full_like(sequences, 0.5)


def test_time_of_a_stage() -> None:
    """32 of 64 layers, a prompt of 1,000 tokens: its activations are 1,000 * 5,120 * 2 = 10,240,000 bytes.

    First stage: 32 ms, the embedding written at 1,000 GB/s (0.01024 ms), sent on at 12.5 GB/s (0.8192 ms) after 0.1 ms.
    Middle stage: without the embedding. Last stage: 0.5 ms for the head, 0.1 ms to send token numbers back.
    """
    phase = ModelPhase(models()["qwen3-32b"], "prefill", 10_000.0, 1000.0, 1000.0, 1000.0, 200.0)
    _, batch, stage_ms = node_throughput(phase, node(1), _OneMillisecond(), 3)
    assert (batch[1:, :, 32] == 1).all()
    assert stage_ms[1, FIRST, 32] == pytest.approx(32.92944, rel=1e-12)
    assert stage_ms[2, MIDDLE, 32] == pytest.approx(32.9192, rel=1e-12)
    assert stage_ms[1, LAST, 32] == pytest.approx(32.6, rel=1e-12)
    assert stage_ms[0, FIRST, 32] == pytest.approx(32.5, rel=1e-12)


def test_a_gpu_without_nvlink_is_not_assumed_like_one_with() -> None:
    """A PCIe part of a generation whose data-centre part has NVLink takes L4's figures, links scaled to its data sheet."""
    card = replace(GPU, name="card", architecture="Hopper", nvlink=False, link_gb_s=64.0)
    configuration = NodeConfiguration("2xcard", card, 2, 12.5)
    assert RooflineSource().times(models()["qwen3-32b"], configuration).provenance.count("assumed like L4") == 1
    # L4's link is 32 GB/s, this one's twice that.
    known = efficiency_of(NodeConfiguration("2xL4", gpus()["L4"], 2, 12.5), "decode").link(2).gb_s
    assert efficiency_of(configuration, "decode").link(2).gb_s == pytest.approx(2 * known)
    joined = replace(card, nvlink=True)
    assert "like H100" in efficiency_of(NodeConfiguration("2xcard", joined, 2, 12.5), "decode").source
