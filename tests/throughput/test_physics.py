"""Layer times, KV bytes and memory against arithmetic written out by hand: no formula of the code under test is used.

The node is made up of round numbers: 100 GiB, 1,000 GB/s, 100 TFLOP/s in BF16 and 200 in FP8. Kernels reach half of the
peak, a quarter in experts, 80 % of the bandwidth; 10 tokens reach half of that; a layer costs 0.05 ms on top. So a GPU does
5e13 FLOP/s (experts 2.5e13; FP8 twice as much) and reads 8e11 bytes/s. The models are published ones, sizes beside them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coralopt.catalog import gpus, models, node_configurations
from coralopt.catalog.types import GIB, Gpu, NodeConfiguration, Speculative
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.facts.serving import SERVING_PRESETS
from coralopt.scenario.lengths import LengthSpread
from coralopt.throughput import FIRST, LAST, MIDDLE
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.throughput.layer_times import mixed_ms
from coralopt.throughput.nodes import cache_bytes, free_bytes, node_throughput
from coralopt.throughput.occupancy import occupancy_of, transfer_tokens
from coralopt.throughput.roofline import (
    Efficiency,
    Link,
    RooflineSource,
    RooflineTimes,
    efficiency_of,
    head_ms,
    layer_ms,
    pair_ms,
)
from coralopt.throughput.speculative import SpeculatingSource
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
        # Every head attends to the same latent, so each of 8 GPUs holds all of it.
        ("deepseek-v3", 8, 1000, 9_216_000),
    ],
)
def test_kv_bytes_of_one_sequence_and_layer(model: str, count: int, context: float, size: float) -> None:
    assert cache_bytes(models()[model], node(count), context) == pytest.approx(size, rel=1e-12)


def test_latent_attention_reads_the_whole_cache_on_every_gpu() -> None:
    """DeepSeek-V3, 64 sequences at 100,000 and at 50,000 tokens on 8 GPUs: 64 * 50,000 * 1,152 bytes more on each.

    3,686,400,000 / 8e11 = 4.608 ms, however many GPUs there are.
    """
    longer = decode("deepseek-v3", 64, 100_000, 8) - decode("deepseek-v3", 64, 50_000, 8)
    assert longer == pytest.approx(4.608, rel=1e-9)


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
    phase = ModelPhase(models()["qwen3-32b"], "decode", 1000.0, 100.0, 1000.0, 1000.0, 200.0)
    assert free_bytes(phase, node(2), role, stages)[layers] == left
    # An engine that keeps 2.5 GiB more back on either GPU.
    engine = replace(phase, serving=replace(phase.serving, reserve_gib=3.5))
    assert free_bytes(engine, node(2), role, stages)[layers] == left - 5 * GIB
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


class _Lines:
    """A layer of a prompt of n tokens takes 1 + n / 100 ms, never less than one of 64; of b sequences at context c

    1 + b / 50 + b c / 10,000 ms. What is not a layer takes 0.5 ms with prompts, 0.3 ms without.
    """

    provenance = "round numbers"
    most_prompts = 1

    def __init__(self, most_sequences: int) -> None:
        self.most_sequences = most_sequences

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return prompts * (1 + max(tokens, 64) / 100), 0.5 * prompts

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        return 1 + sequences / 50 + sequences * context / 10_000, np.full_like(sequences, 0.3)


@pytest.mark.parametrize(
    ("sequences", "context", "prompt", "most", "layer"),
    [
        # 510 tokens as one prompt: 6.1 ms. Attention to 10 contexts of 1,101 tokens, less that to one token: 1.1 ms.
        (10, 1101, 500, 64, 7.2),
        # 20 tokens as one prompt: 1.64 ms; as 20 sequences at one token: 1.402 ms. Attention 4 * 100 / 10,000 = 0.04 ms.
        (4, 101, 16, 64, 1.442),
        # The same where decode is known up to 16 sequences only.
        (4, 101, 16, 16, 1.68),
        # 64 tokens are a prompt: 1.64 ms; attention 0.04 ms.
        (4, 101, 60, 64, 1.68),
    ],
)
def test_mixed_step(sequences: float, context: float, prompt: float, most: int, layer: float) -> None:
    times = mixed_ms(_Lines(most), np.array([sequences]), context, np.array([prompt]))
    assert times[0] == pytest.approx(layer, rel=1e-12)
    assert times[1] == pytest.approx(0.5)


class _Qwen(_Lines):
    """Qwen3-32B on the made-up node."""

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return np.array([prefill("qwen3-32b", 1, tokens)]), prompts

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        return np.array([decode("qwen3-32b", float(sequences[0]), context)]), sequences


def test_mixed_step_reads_the_weights_once() -> None:
    """8 sequences at 2,000 tokens beside 992 tokens of prompts: the 20.079505536 ms of 1,000 tokens above.

    On top the keys and values of 8 contexts, one token each left out: 8 * 1,999 * 4,096 bytes / 8e11 = 0.08187904 ms.
    """
    layer, _ = mixed_ms(_Qwen(64), np.array([8.0]), 2000.0, np.array([992.0]))
    assert layer == pytest.approx(20.079505536 + 0.08187904, rel=1e-12)


#: Attention of one token to one earlier token, Qwen3-32B on the made-up GPU, which is taken to reach what H100 does.
PAIR_MS = 1e3 * 4 * 8192 / (100e12 * 0.7312)


def test_attention_to_earlier_passes() -> None:
    """A pair of tokens: two products of 64 heads of 128, two operations each; half of them on two GPUs; no windows.

    gpt-oss-20b has windows in half of its layers, 64 heads of 64: a quarter.
    """
    assert pair_ms(models()["qwen3-32b"], node(1)) == pytest.approx(PAIR_MS, rel=1e-12)
    assert pair_ms(models()["qwen3-32b"], node(2)) == pytest.approx(PAIR_MS / 2, rel=1e-12)
    assert pair_ms(models()["gpt-oss-20b"], node(1)) == pytest.approx(PAIR_MS / 4, rel=1e-12)
    times = mixed_ms(_Lines(64), np.array([10.0]), 1101, np.array([500.0]), 3.0)
    assert times[0] == pytest.approx(7.2 + 3.0, rel=1e-12)


def test_measured_mixed_steps_scale_the_layers() -> None:
    """Steps measured 10 % longer than put together: layers 10 % longer, what is not a layer as it was."""
    grid = TimeGrid(np.array([64.0, 2064.0]), np.array([1.0]), np.array([[1.64], [21.64]]), np.array([[0.5], [0.5]]))
    decode = TimeGrid(np.array([1.0, 2001.0]), np.array([10.0]), np.array([[1.201], [3.201]]), np.array([[0.3], [0.3]]))
    times = GridTimes("round numbers", grid, decode, mixed_factor=1.1)
    layer, other = mixed_ms(times, np.array([10.0]), 1101.0, np.array([500.0]))
    assert layer == pytest.approx(1.1 * 7.2, rel=1e-12)
    assert other == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("prompt", "answer", "ttft_ms", "batch", "milliseconds"),
    [
        # 10 sequences, 0.1 prompts a step: 9 steps of 10 decode, 1 + 0.2 + 10 * 1,050 / 10,000 = 2.25 ms a layer; one
        # computes 1,010 tokens, 11.1 ms, and attends to 10 * 1,049: 12.149 ms. Mean 3.2399 ms; beside them 0.32 ms.
        (1000, 100, 1e6, 10, 64 * 3.2399 + 0.32),
        # The first token takes two steps of 64 * 12.149 + 0.5 = 778.036 ms at most: 1,556.072 ms.
        (1000, 100, 1556.1, 10, 64 * 3.2399 + 0.32),
        # Not within 1,556 ms; 9 sequences: 0.91 * (1.18 + 0.945) + 0.09 * (11.09 + 0.9441) = 3.016819 ms.
        (1000, 100, 1556.0, 9, 64 * 3.016819 + 0.318),
        # 5,000 tokens beside 10 of 2,048: three steps of 1,666.67 tokens, so 3 of 10 steps carry. 1.2 + 5.05 = 6.25 ms;
        # 1 + 16.766667 + 5.049 = 22.815667 ms; mean 11.2197 ms. The second pass attends to the tokens of the first, the
        # third to those of both: one pass on average, 1,666.67 ** 2 pairs of 4 * 8,192 operations at 0.7312 of 1e14/s.
        (5000, 100, 1e6, 10, 64 * (11.2197 + 0.3 * PAIR_MS * (5000 / 3) ** 2) + 0.36),
        # 0.4 prompts of three parts a step: every step carries 2,000 tokens. 9 sequences would need 2,250 + 9 tokens.
        # 1 + 20.08 + 8 * 5,009 / 10,000 = 25.0872 ms, and 2,000 tokens each with one pass before.
        (5000, 20, 1e6, 8, 64 * (25.0872 + PAIR_MS * 2000 * 5000 / 3) + 0.5),
    ],
)
def test_mean_step_of_a_mixed_node(
    prompt: float, answer: float, ttft_ms: float, batch: int, milliseconds: float
) -> None:
    phase = ModelPhase(models()["qwen3-32b"], "mixed", ttft_ms, 1e6, 1000.0, prompt, answer)
    values, chosen, stage_ms = node_throughput(phase, node(1), _Lines(10), 1)
    assert chosen[0, FIRST, 64] == batch
    assert stage_ms[0, FIRST, 64] == pytest.approx(milliseconds, rel=1e-12)
    assert values[0, FIRST, 64] == pytest.approx(1e3 * batch / milliseconds, rel=1e-12)


#: Lognormal lengths of cv 1, 1,000 and 200 tokens: E[s^2] = 2,000,000, E[o^2] = 80,000, E[o^3] = 64,000,000.
PROMISE = ModelPhase(models()["qwen3-32b"], "decode", 1000.0, 100.0, 1000.0, 1000.0, 200.0, attainment=0.99)


def test_occupancy_at_a_random_moment() -> None:
    """A sequence at work has an answer of 80,000 / 200 = 400 tokens on average, half of it written: 1,200 tokens.

    Mean square 2,000,000 + 2 * 1,000 * 200 + 64,000,000 / 600 = 2,506,666.7, its root 1,583.25, 1.31937 times the mean.
    Set aside whole, 1,400; mean square 2,000,000 + 2 * 1,000 * 400 + 64,000,000 / 200 = 3,120,000, its root 1,766.35, which
    is 1.26168 times the mean.
    """
    growing = occupancy_of(replace(PROMISE, serving=SERVING_PRESETS["engine"]))
    assert (growing.context, growing.held) == (1200.0, 1200.0)
    assert growing.spread == pytest.approx(1.31937, abs=1e-5)
    reserved = occupancy_of(PROMISE)
    assert (reserved.context, reserved.held) == (1200.0, 1400.0)
    assert reserved.spread == pytest.approx(1.26168, abs=1e-5)
    usual = occupancy_of(replace(PROMISE, attainment=None))
    assert (usual.context, usual.held, usual.score) == (1100.0, 1100.0, 0.0)


def test_tail_of_occupancy() -> None:
    """99 % of moments lie within 2.32635 deviations. 74.6439 sequences: 74.6439 + 2.32635 * 8.63967 = 94.743.

    With 1.26168 times the deviation, 70.02: 70.02 + 2.32635 * 1.26168 * 8.36780 = 94.580.
    """
    reserved = occupancy_of(PROMISE)
    assert float(reserved.mean_within(np.array([94.743]))[0]) == pytest.approx(74.644, abs=1e-3)
    assert float(reserved.mean_within(np.array([94.580]), reserved.spread)[0]) == pytest.approx(70.02, abs=1e-2)
    assert reserved.mean_within(np.array([-3.0, 0.0])).tolist() == [0.0, 0.0]


def test_kv_transfer_takes_its_part_of_the_decode_slo() -> None:
    """Equal lengths: 1,000 tokens over the 10 that follow the first, 100 * 4,096 bytes a layer and token.

    64 layers: 26,214,400 bytes over 12.5 GB/s, 2.097152 ms of each token's time. A layer takes 1 + b / 50 ms and
    b * context / 10,000, the rest 0.3 ms.
    """
    equal = replace(PROMISE, mean_output_tokens=11.0, attainment=0.5, input_spread=LengthSpread(0.0))
    equal = replace(equal, output_spread=LengthSpread(0.0))
    assert transfer_tokens(equal) == pytest.approx(100.0)
    assert transfer_tokens(replace(equal, attainment=None)) == 0.0
    # One sequence at 1,005.5 tokens: 64 * (1.02 + 0.10055) + 0.3 = 72.0152 ms.
    for slo, batch in ((72.0152 + 2.0972, 1), (72.0152 + 2.0971, 0)):
        phase = replace(equal, decode_ms=slo)
        assert node_throughput(phase, node(1), _Lines(1), 1)[1][0, FIRST, 64] == batch
    # Windows are kept only: half of gpt-oss-20b's layers take 128 of 1,000 tokens, 564 on average.
    assert transfer_tokens(replace(equal, model=models()["gpt-oss-20b"])) == pytest.approx(56.4)


def test_host_time_is_part_of_every_step() -> None:
    """5 ms a step: batch 1 at 1,100 tokens, 64 * (1.02 + 0.11) + 0.3 = 72.62 ms, takes 77.62; a prompt of 1,000 tokens
    takes 5 ms longer and has 40 ms less.
    """
    host = replace(SERVING_PRESETS["paper"], host_step_ms=5.0, host_request_ms=40.0)
    phase = replace(PROMISE, attainment=None, serving=host)
    values, _, stage_ms = node_throughput(phase, node(1), _Lines(1), 1)
    assert stage_ms[0, FIRST, 64] == pytest.approx(77.62)
    assert values[0, FIRST, 64] == pytest.approx(1e3 / 77.62)
    prompts = replace(phase, phase="prefill", prefill_ms=1e6)
    took = float(node_throughput(prompts, node(1), _Lines(1), 1)[2][0, FIRST, 64])
    bare = replace(prompts, serving=SERVING_PRESETS["paper"])
    assert took == pytest.approx(5 + float(node_throughput(bare, node(1), _Lines(1), 1)[2][0, FIRST, 64]))
    for slo, possible in ((took + 40.001, True), (took + 39.999, False)):
        tight = replace(prompts, prefill_ms=slo)
        assert (node_throughput(tight, node(1), _Lines(1), 1)[0][0, FIRST, 64] > 0) == possible


class _Batches(_Lines):
    """Prompts that gain little by company: 100 ms and 97 ms each, then 94 and 80 ms."""

    most_prompts = 4

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return prompts * np.interp(prompts, [1.0, 2.0, 3.0, 4.0], [100.0, 97.0, 94.0, 80.0]), np.zeros_like(prompts)


@pytest.mark.parametrize(
    ("ttft_ms", "attainment", "batch"),
    [
        # One layer. Up to two prompts 1,000 / 97 is best; one has 97 % of it, and half the wait.
        (200.0, None, 2),
        (200.0, 0.99, 1),
        # Up to three: one has 94 % of 1,000 / 94, two have 97 %.
        (300.0, None, 3),
        (300.0, 0.99, 2),
        # All four: no other has 95 % of 1,000 / 80.
        (400.0, None, 4),
        (400.0, 0.99, 4),
    ],
)
def test_prompts_wait_for_company_only_where_it_pays(ttft_ms: float, attainment: float | None, batch: int) -> None:
    phase = replace(PROMISE, phase="prefill", prefill_ms=ttft_ms, attainment=attainment)
    values, chosen, _ = node_throughput(phase, node(1), _Batches(64), 1)
    assert chosen[0, FIRST, 1] == batch
    each = {1: 100, 2: 97, 3: 94, 4: 80}[batch]
    assert values[0, FIRST, 1] == pytest.approx(1e6 / each)


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


def test_a_speculative_step_is_one_pass_shared_by_what_it_keeps() -> None:
    """3 proposed tokens, 2 kept: half of the model's pass over 4 tokens a sequence, and of 3 steps of the draft."""
    plain, draft = models()["qwen3-32b"], models()["qwen3-8b"]
    inner = RooflineSource()
    model = replace(plain, speculative=Speculative(3, 2.0, draft))
    machine = NodeConfiguration("1xL40S", gpus()["L40S"], 1, 12.5)
    layer, other = SpeculatingSource(inner).times(model, machine).decode_ms(np.array([8.0]), 1000.0)
    whole, head = mixed_ms(inner.times(plain, machine), np.array([8.0]), 1000.0, np.array([24.0]))
    one, rest = inner.times(draft, machine).decode_ms(np.array([8.0]), 1000.0)
    assert layer[0] == pytest.approx(whole[0] / 2)
    assert other[0] == pytest.approx((head[0] + 3 * (draft.layers * one[0] + rest[0])) / 2)
    assert model.end_bytes(1) - plain.end_bytes(1) == draft.weight_bytes
    more = cache_bytes(model, machine, 1000.0) - cache_bytes(plain, machine, 1000.0)
    assert more * plain.layers == pytest.approx(draft.kv_bytes(1000.0))


@pytest.mark.parametrize("model", ["phi4-14b", "gpt-oss-20b", "gemma3-27b", "deepseek-v3"])
@pytest.mark.parametrize("gpu", ["8xH100", "1xL40S"])
def test_many_lengths_at_once_take_what_each_takes(model: str, gpu: str) -> None:
    """Dense and expert layers, sliding windows, latent attention: the same numbers to the last bit."""
    times = RooflineSource().times(models()[model], node_configurations()[gpu])
    assert isinstance(times, RooflineTimes)
    tokens = np.geomspace(1, 30_000, 40)
    together = times.prefill_ms(np.ones(40), tokens)
    for k, n in enumerate(tokens.tolist()):
        assert [float(part[k]) for part in together] == [float(part[0]) for part in times.prefill_ms(np.ones(1), n)]


def test_whose_figures_a_gpu_is_given_is_said() -> None:
    """Fitted or sourced figures for all but these; of MI300X only decode was published."""
    like = {
        gpu: {phase for phase in ("prefill", "decode") if "assumed like" in efficiency_of(node, phase).source}
        for gpu in gpus()
        for node in (node_configurations()[f"1x{gpu}"],)
    }
    both = {"prefill", "decode"}
    assert {gpu: phases for gpu, phases in like.items() if phases} == {
        **dict.fromkeys(("T4", "V100", "A100-40", "RTX4090"), both),
        "MI300X": {"prefill"},
    }
    provenance = RooflineSource().times(models()["qwen3-8b"], node_configurations()["1xMI300X"]).provenance
    assert "decode fitted to AMD's published latencies" in provenance
    assert "prefill assumed like H100" in provenance
