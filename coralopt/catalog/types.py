"""Typed facts: GPUs, node configurations, model architectures, offers. No logic beyond derived sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

GIB = 1024**3

WeightFormat = Literal["bf16", "fp8", "mxfp4"]
#: Bytes per parameter of the quantised part of the weights (MXFP4: 4 bits and one 8-bit scale per 32 values).
BYTES_PER_PARAMETER: dict[str, float] = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 4.25 / 8}


@dataclass(frozen=True)
class Gpu:
    """A GPU type.

    Attributes:
        name: Short name, for example ``"L40S"``.
        memory_gib: Usable device memory in GiB (not the number on the box).
        bandwidth_gb_s: Peak memory bandwidth, 1e9 bytes/s.
        bf16_tflops: Dense BF16 (FP16 where there is none) peak, 1e12 FLOP/s.
        fp8_tflops: Dense FP8 peak or ``None`` when the part has no FP8 units.
        link_gb_s: One-direction GPU-to-GPU bandwidth inside a node, 1e9 bytes/s a GPU.
        nvlink: Whether that link is NVLink (or an equal) rather than PCIe.
        architecture: Silicon generation, for example ``"Ada"``.
        source: Where the figures come from.
    """

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float | None
    link_gb_s: float
    nvlink: bool
    architecture: str
    source: str

    @property
    def vendor(self) -> Literal["nvidia", "amd"]:
        """Whose drivers it needs, told from its name or its architecture: a GPU of a scenario says no more of itself."""
        return "amd" if re.match(r"MI\d", self.name) or self.architecture.startswith(("CDNA", "RDNA")) else "nvidia"


@dataclass(frozen=True)
class NodeConfiguration:
    """A node with ``count`` equal GPUs (the paper's c); tensor parallelism stays inside it.

    Attributes:
        name: For example ``"4xL40S"``.
        gpu: The GPU type.
        count: Number of GPUs, 1 or more.
        network_gb_s: Network bandwidth of the node, one direction, 1e9 bytes/s.
    """

    name: str
    gpu: Gpu
    count: int
    network_gb_s: float

    @property
    def memory_gib(self) -> float:
        """Usable GPU memory of the whole node, GiB."""
        return self.gpu.memory_gib * self.count


@dataclass(frozen=True)
class ModelArchitecture:
    """A decoder-only transformer as its published configuration describes it.

    Attributes:
        name: Short name used in scenarios, for example ``"qwen3-32b"``.
        hf_id: Name of the published checkpoint.
        layers: Number of decoder layers L.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key/value heads.
        head_dim: Width of one head.
        vocab: Vocabulary size.
        experts: Routed experts a layer; 0 for a dense model.
        experts_per_token: Experts a token is routed to; 0 for a dense model.
        attention_params_per_layer: Parameters of the attention block.
        dense_ffn_params_per_layer: Parameters of the dense feed-forward block (0 in pure MoE layers).
        expert_params: Parameters of one expert.
        embedding_params: Parameters of the input embedding and the output head together.
        total_params: All parameters.
        kv_elements_per_token_per_layer: Elements of K and V stored for one token in one layer.
        weight_format: Format of the quantised weights (experts for MXFP4 models, every matrix for FP8).
        sliding_window: Window in tokens of the sliding-window layers, or ``None``.
        sliding_layers: How many of the layers use that window.
        max_position: Longest context in tokens.
        source: Where the figures come from.
    """

    name: str
    hf_id: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int
    experts_per_token: int
    attention_params_per_layer: int
    dense_ffn_params_per_layer: int
    expert_params: int
    embedding_params: int
    total_params: int
    kv_elements_per_token_per_layer: int
    weight_format: WeightFormat
    sliding_window: int | None
    sliding_layers: int
    max_position: int
    source: str

    def kv_copies(self, gpus: int) -> float:
        """How often the KV cache of a sequence is held when ``gpus`` share the model in tensor parallel.

        GPUs beyond the number of KV heads hold copies of heads. A latent cache (multi-head latent attention: fewer elements
        than the heads' keys and values) belongs to all heads, so every GPU holds the whole of it.
        """
        if self.kv_elements_per_token_per_layer < 2 * self.kv_heads * self.head_dim:
            return float(gpus)
        return max(1.0, gpus / self.kv_heads)

    def kv_bytes(self, tokens: float) -> float:
        """Bytes of the KV cache of a context in all layers, 16-bit elements; sliding windows keep their window."""
        sliding = self.sliding_layers if self.sliding_window else 0
        kept = (self.layers - sliding) * tokens + sliding * min(tokens, float(self.sliding_window or tokens))
        return kept * self.kv_elements_per_token_per_layer * 2.0

    @property
    def layer_bytes(self) -> float:
        """Bytes of the weights of one layer (mean over the layers)."""
        quantised = BYTES_PER_PARAMETER[self.weight_format]
        # MXFP4 checkpoints quantise the experts only; FP8 ones quantise every matrix of the layer.
        dense = 2.0 if self.weight_format == "mxfp4" else quantised
        plain = self.attention_params_per_layer + self.dense_ffn_params_per_layer
        return plain * dense + self.experts * self.expert_params * quantised

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights; embedding and head stay in BF16."""
        return self.layers * self.layer_bytes + self.embedding_params * 2.0


@dataclass(frozen=True)
class RegionLink:
    """What it takes to send data from one region to another.

    Attributes:
        source: Region that sends.
        target: Region that receives.
        usd_gb: Price of 1e9 bytes, USD; ``None`` where none is known.
        gbit_s: What one node sends, 1e9 bit/s; ``None`` where it is not known: the node's network.
    """

    source: str
    target: str
    usd_gb: float | None = None
    gbit_s: float | None = None


@dataclass(frozen=True)
class Offer:
    """What one region asks for one node configuration.

    Attributes:
        configuration: Node configuration name.
        region: Region name.
        instance_type: The cloud's name of the instance, or ``None`` when none exists with this GPU count.
        priced_as: What the price was taken from (the instance itself, or the one it is a pro-rata share of).
        on_demand_usd_h: USD per node-hour.
        spot_usd_h: USD per node-hour on the spot market, or ``None`` when no price was found.
    """

    configuration: str
    region: str
    instance_type: str | None
    priced_as: str
    on_demand_usd_h: float
    spot_usd_h: float | None
