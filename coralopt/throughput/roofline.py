"""Layer times from the architecture and the data sheet, with efficiencies fitted to measured kernels.

Per layer and micro-batch of n tokens on g GPUs (formulas with their sources: docs/concepts/throughput.md)::

    t = max(FLOPs (1 + half / n) / (g peak mfu), bytes / (g bandwidth mbu)) + 2 all-reduces + overhead
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from coralopt.catalog import gpus
from coralopt.catalog.types import BYTES_PER_PARAMETER, Gpu, ModelArchitecture, NodeConfiguration, unsupported
from coralopt.types import Floats

#: Longer than any SLO that can be asked for or searched, ms.
_NEVER_MS = 1e15


@dataclass(frozen=True)
class Link:
    """All-reduce of a node.

    Attributes:
        gb_s: Bandwidth a GPU, 1e9 bytes/s.
        ms: Fixed time of one all-reduce, ms.
    """

    gb_s: float
    ms: float


@dataclass(frozen=True)
class Efficiency:
    """How much of a GPU's data sheet kernels reach.

    Attributes:
        mfu: Share of the peak FLOP/s in dense matrix products of very many tokens.
        moe_mfu: The same in expert matrix products.
        half_tokens: Tokens in a micro-batch at which half of these shares is reached.
        mbu: Share of the peak memory bandwidth.
        overhead_ms: Fixed time a layer, ms.
        links: Number of GPUs in the node -> its all-reduce, ascending; hosts wire 2 GPUs otherwise than 8.
        source: Where these figures come from.
    """

    mfu: float
    moe_mfu: float
    half_tokens: float
    mbu: float
    overhead_ms: float
    links: Mapping[int, Link]
    source: str

    def link(self, count: int) -> Link:
        """The all-reduce of ``count`` GPUs; that of the next larger node (else the largest) when it is not listed."""
        return self.links[min((n for n in self.links if n >= count), default=max(self.links))]


#: One entry of data/efficiency.json: numbers, a text and the links, named like the fields of :class:`Efficiency`.
_Figures = dict[str, Any]


@lru_cache(maxsize=1)
def efficiencies() -> Mapping[str, Mapping[str, Efficiency]]:
    """GPU name -> phase (``prefill``, ``decode``) -> efficiency; fitted figures and stated guesses."""
    text = resources.files("coralopt.throughput").joinpath("data/efficiency.json").read_text(encoding="utf-8")
    data: dict[str, dict[str, _Figures]] = json.loads(text)
    return {gpu: {phase: _efficiency(values) for phase, values in phases.items()} for gpu, phases in data.items()}


def _efficiency(values: _Figures) -> Efficiency:
    links = {int(count): Link(**link) for count, link in sorted(values.pop("links").items(), key=lambda i: int(i[0]))}
    return Efficiency(links=links, **values)


def efficiency_of(configuration: NodeConfiguration, phase: str) -> Efficiency:
    """The GPU's own figures, or those of a like GPU when it has none."""
    known = efficiencies()
    gpu = configuration.gpu
    if gpu.name in known:
        return known[gpu.name][phase]
    like = gpu.like if gpu.like in known else _like(gpu)
    base = known[like][phase]
    # The share of the data sheet's link that the like GPU reaches; L4's is an ordinary PCIe host's.
    share = gpu.link_gb_s / gpus()[like].link_gb_s
    links = {count: Link(link.gb_s * share, link.ms) for count, link in base.links.items()}
    return replace(base, links=links, source=f"assumed like {like}: {base.source}")


def _like(gpu: Gpu) -> str:
    """The fitted GPU of the same generation for NVLink parts; without NVLink L4, the most modest of them."""
    if not gpu.nvlink:
        return "L4"
    same = (name for name in efficiencies() if gpus()[name].nvlink and gpus()[name].architecture == gpu.architecture)
    return next(same, "H100")


def layer_ms(
    model: ModelArchitecture,
    configuration: NodeConfiguration,
    efficiency: Efficiency,
    tokens: Floats,
    sequences: Floats,
    context: Floats | float,
    prefill: bool,
) -> Floats:
    """Time of one layer, ms (mean over full and sliding-window layers).

    Args:
        model: The architecture.
        configuration: The node; tensor parallel over all its GPUs.
        efficiency: Shares of the data sheet reached.
        tokens: Tokens in the micro-batch, all sequences together.
        sequences: Sequences in the micro-batch.
        context: Tokens a sequence attends to at the end (its length in prefill); one for all or one each.
        prefill: Whether all tokens of a sequence are computed at once.
    """
    count, gpu = configuration.count, configuration.gpu
    plain = model.attention_params_per_layer + model.dense_ffn_params_per_layer
    # Experts hit by a micro-batch when tokens choose independently: E (1 - (1 - k/E)^n).
    hit = np.zeros_like(tokens)
    if model.experts:
        hit = model.experts * (1.0 - (1.0 - model.experts_per_token / model.experts) ** tokens)
    weights = model.plain_bytes + hit * model.expert_params * BYTES_PER_PARAMETER[model.weight_format]
    sliding = model.sliding_layers / model.layers if model.sliding_window else 0.0
    window = np.minimum(context, float(model.sliding_window or np.inf))
    seen = (1 - sliding) * context + sliding * window
    kv = model.kv_token_bytes * model.kv_copies(count)
    # Causal prefill: token i attends to min(i, window) tokens, c / 2 on average in full layers, w - w^2 / 2c in others.
    causal = (1 - sliding) * context / 2 + sliding * (window - window**2 / (2 * context))
    attention = model.attention_flops(prefill) * tokens * (causal if prefill else seen)
    peak = gpu.bf16_tflops * 1e12
    if model.weight_format == "fp8" and gpu.fp8_tflops:
        peak = gpu.fp8_tflops * 1e12
    # Small products leave units idle: the share reached is mfu n / (n + half).
    slowed = count * peak / (1.0 + efficiency.half_tokens / tokens)
    dense_s = (2.0 * plain * tokens + attention) / (slowed * efficiency.mfu)
    expert_s = 2.0 * model.experts_per_token * model.expert_params * tokens / (slowed * efficiency.moe_mfu)
    moved = weights + kv * (tokens if prefill else sequences * seen)
    memory_s = moved / (count * gpu.bandwidth_gb_s * 1e9 * efficiency.mbu)
    reduce_s = np.zeros_like(tokens)
    if count > 1:
        # A ring all-reduce moves 2 (g - 1) / g of the message over each link; one after attention, one after the FFN.
        link = efficiency.link(count)
        message = tokens * model.hidden * 2.0 * 2 * (count - 1) / count
        reduce_s = 2 * (message / (link.gb_s * 1e9) + link.ms / 1e3)
    return np.asarray(1e3 * (np.maximum(dense_s + expert_s, memory_s) + reduce_s) + efficiency.overhead_ms)


def pair_ms(model: ModelArchitecture, configuration: NodeConfiguration) -> float:
    """Attention of one token to one that an earlier pass computed of its prompt, ms of a layer (mean over the layers).

    Sources have whole prompts only. Windows are left out: they seldom reach into an earlier pass.
    """
    full = 1.0 - (model.sliding_layers / model.layers if model.sliding_window else 0.0)
    efficiency = efficiency_of(configuration, "prefill")
    peak = configuration.count * configuration.gpu.bf16_tflops * 1e12 * efficiency.mfu
    return 1e3 * full * model.attention_flops(True) / peak


def head_ms(
    model: ModelArchitecture, configuration: NodeConfiguration, efficiency: Efficiency, sequences: Floats
) -> Floats:
    """Time of the output head for one token of each sequence, ms; the head is BF16 and read whole."""
    count, gpu = configuration.count, configuration.gpu
    size = float(model.vocab * model.hidden)
    compute = 2.0 * size * sequences / (count * gpu.bf16_tflops * 1e12 * efficiency.mfu)
    memory = 2.0 * size / (count * gpu.bandwidth_gb_s * 1e9 * efficiency.mbu)
    return np.asarray(1e3 * np.maximum(compute, memory) + efficiency.overhead_ms)


@dataclass(frozen=True, eq=False)
class RooflineTimes:
    """Modelled times of one model on one node."""

    model: ModelArchitecture
    configuration: NodeConfiguration
    provenance: str
    most_prompts: int = 8
    most_sequences: int = 512

    def prefill_ms(self, prompts: Floats, tokens: Floats | float) -> tuple[Floats, Floats]:
        efficiency = efficiency_of(self.configuration, "prefill")
        layer = layer_ms(self.model, self.configuration, efficiency, prompts * tokens, prompts, tokens, True)
        return layer, head_ms(self.model, self.configuration, efficiency, prompts)

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        efficiency = efficiency_of(self.configuration, "decode")
        layer = layer_ms(self.model, self.configuration, efficiency, sequences, sequences, context, False)
        return layer, head_ms(self.model, self.configuration, efficiency, sequences)


@dataclass(frozen=True, eq=False)
class NoTimes:
    """Times of a model that no engine runs on the node: beyond any SLO, so that its throughput is 0."""

    provenance: str
    most_prompts: int = 1
    most_sequences: int = 1

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return np.full_like(prompts, _NEVER_MS), np.full_like(prompts, _NEVER_MS)

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        return self.prefill_ms(sequences, context)


class RooflineSource:
    """Any model on any GPU."""

    name = "roofline"

    def covers(self, model: ModelArchitecture, configuration: NodeConfiguration) -> bool:
        return True

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> RooflineTimes | NoTimes:
        refused = unsupported(model, configuration.gpu)
        if refused:
            return NoTimes(f"cannot run: {refused}")
        decode, prefill = (efficiency_of(configuration, phase).source for phase in ("decode", "prefill"))
        source = decode if decode == prefill else f"{decode}; prefill {prefill}"
        return RooflineTimes(model, configuration, f"roofline: data sheet of {configuration.gpu.name}, {source}")
