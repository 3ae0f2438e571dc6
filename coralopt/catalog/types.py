"""Typed facts: GPUs, node configurations, model architectures, offers. No logic beyond derived sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GIB = 1024**3

WeightFormat = Literal["bf16", "fp8", "mxfp4", "int4", "int4-g32"]
KvFormat = Literal["bf16", "fp8"]
Vendor = Literal["nvidia", "amd"]
#: Bytes per parameter of the quantised part of the weights. MXFP4: 4 bits and one 8-bit scale per 32 values. INT4 (AWQ,
#: GPTQ): 4 bits, with a 16-bit scale and a 4-bit zero per 128 values, or a 16-bit scale per 32.
BYTES_PER_PARAMETER: dict[str, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "mxfp4": 4.25 / 8,
    "int4": (4 + 20 / 128) / 8,
    "int4-g32": 4.5 / 8,
}
#: Formats that quantise the experts only, where there are any.
_EXPERTS_ONLY = frozenset({"mxfp4", "int4-g32"})
#: Generations whose tensor cores have no BF16; vLLM refuses bfloat16 below compute capability 8.0.
NO_BF16 = frozenset({"Volta", "Turing"})


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
        vendor: Whose drivers it needs.
        like: GPU of the catalog that it is a variant of, whose efficiencies hold for it; empty where it is none.
        mig: Profile of the slice of that GPU that it is, ``"3g.40gb"``; empty for whole GPUs.
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
    vendor: Vendor = "nvidia"
    like: str = ""
    mig: str = ""


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
class LatentAttention:
    """Multi-head latent attention (DeepSeek, Kimi): one compressed vector a token in place of every head's keys and values.

    Attributes:
        rank: Width of the compressed keys and values.
        rope: Width of the key that carries positions, shared by all heads.
        nope: Width of a head's key without it.
        value: Width of a head's value.
        query_rank: Width of compressed queries; 0 where queries are not compressed.
    """

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int = 0


@dataclass(frozen=True)
class Speculative:
    """Speculative decoding: so many tokens are proposed a step, and the model checks all of them in one pass.

    Attributes:
        tokens: Proposed tokens a step.
        acceptance_length: Mean tokens that a step makes, 1 to ``tokens + 1``.
        draft: The model that proposes; ``None`` where the prompt itself does (n-grams), which takes no time.
    """

    tokens: int
    acceptance_length: float
    draft: ModelArchitecture | None = None


@dataclass(frozen=True)
class Adapters:
    """LoRA adapters that stand beside a model's weights, so that requests for any of them share its steps.

    Attributes:
        modules: (name that requests use, checkpoint) of each.
        rank: Rank that engines set memory aside for.
        layer_bytes: Bytes of all of them in one layer.
        step_factor: Times of steps with adapters over those without.
    """

    modules: tuple[tuple[str, str], ...]
    rank: int
    layer_bytes: float
    step_factor: float


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
        kv_format: Format of the KV cache's elements.
        latent: Its latent attention, where it has one.
        measured_as: Published checkpoint of the same shape whose measured times hold; empty: ``hf_id``.
        published_format: Format of the checkpoint's weights where a scenario asks for another one.
        speculative: How decode steps make several tokens; ``None`` where they make one.
        adapters: LoRA adapters beside it; ``None`` where it has none.
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
    kv_format: KvFormat = "bf16"
    latent: LatentAttention | None = None
    measured_as: str = ""
    published_format: WeightFormat | None = None
    speculative: Speculative | None = None
    adapters: Adapters | None = None

    def kv_copies(self, gpus: int) -> float:
        """How often the KV cache of a sequence is held when ``gpus`` share the model in tensor parallel.

        GPUs beyond the number of KV heads hold copies of heads. A latent cache (multi-head latent attention: fewer elements
        than the heads' keys and values) belongs to all heads, so every GPU holds the whole of it.
        """
        if self.kv_elements_per_token_per_layer < 2 * self.kv_heads * self.head_dim:
            return float(gpus)
        return max(1.0, gpus / self.kv_heads)

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of K and V of one token in one layer."""
        return self.kv_elements_per_token_per_layer * (1.0 if self.kv_format == "fp8" else 2.0)

    def kept_tokens(self, context: float) -> float:
        """Tokens that a layer keeps and attends to (mean over the layers); sliding windows keep their window."""
        sliding = self.sliding_layers / self.layers if self.sliding_window else 0.0
        return (1 - sliding) * context + sliding * min(context, float(self.sliding_window or context))

    def kv_bytes(self, tokens: float) -> float:
        """Bytes of the KV cache of a context in all layers; sliding windows keep their window."""
        sliding = self.sliding_layers if self.sliding_window else 0
        kept = (self.layers - sliding) * tokens + sliding * min(tokens, float(self.sliding_window or tokens))
        return kept * self.kv_token_bytes

    def attention_flops(self, prefill: bool) -> float:
        """Operations of one query token on one token of context in one layer: scores and values.

        Latent attention computes every head's keys and values in prefill, and works on the compressed ones in decode.
        """
        if self.latent is None:
            return 4.0 * self.heads * self.head_dim
        if prefill:
            return 2.0 * self.heads * (self.latent.nope + self.latent.rope + self.latent.value)
        return 2.0 * self.heads * (2 * self.latent.rank + self.latent.rope)

    @property
    def plain_bytes(self) -> float:
        """Bytes of attention and dense feed-forward block of one layer, shared experts among them."""
        experts_only = self.weight_format in _EXPERTS_ONLY and self.experts > 0
        each = 2.0 if experts_only else BYTES_PER_PARAMETER[self.weight_format]
        return (self.attention_params_per_layer + self.dense_ffn_params_per_layer) * each

    @property
    def layer_bytes(self) -> float:
        """Bytes of the weights of one layer (mean over the layers), with those of adapters."""
        own = self.plain_bytes + self.experts * self.expert_params * BYTES_PER_PARAMETER[self.weight_format]
        return own if self.adapters is None else own + self.adapters.layer_bytes

    @property
    def adapted_width(self) -> int:
        """Inputs and outputs of the matrices of one layer that adapters change: attention and dense feed-forward block."""
        heads, kv_heads = self.heads * self.head_dim, self.kv_heads * self.head_dim
        dense = self.dense_ffn_params_per_layer // self.hidden + 3 * self.hidden
        return 2 * (self.hidden + heads) + 2 * (self.hidden + kv_heads) + dense

    def end_bytes(self, stages: int) -> float:
        """Bytes of what the first or last of ``stages`` holds besides layers, in BF16.

        Embedding and head are one matrix each, or the same one; a pipeline of one stage needs a shared one only once. A
        draft model stands beside the head; either end leaves room for it.
        """
        draft = self.speculative.draft if self.speculative is not None else None
        own = (self.embedding_params if stages == 1 else self.vocab * self.hidden) * 2.0
        return own if draft is None else own + draft.weight_bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights; embedding and head stay in BF16."""
        return self.layers * self.layer_bytes + self.embedding_params * 2.0


def unsupported(model: ModelArchitecture, gpu: Gpu) -> str:
    """Why no engine runs this model's formats on that GPU, one sentence; empty where one does."""
    for what, form in (("weights in FP8 need", model.weight_format), ("an FP8 KV cache needs", model.kv_format)):
        if form == "fp8" and gpu.fp8_tflops is None:
            return f"{what} FP8 units, which {gpu.name} does not have"
    if model.weight_format in _EXPERTS_ONLY and gpu.architecture in NO_BF16:
        return f"{model.weight_format} weights are computed in BF16, which {gpu.name} does not have"
    return ""


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
