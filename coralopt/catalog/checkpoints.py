"""Published model configurations (``config.json`` of Hugging Face checkpoints) read as sizes of a model.

Families are read by their ``model_type``: an unknown one may count its layers in another way, so it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from coralopt.catalog.shapes import ModelShape
from coralopt.catalog.types import LatentAttention, WeightFormat
from coralopt.errors import CoraloptError

#: A part of a configuration: plain JSON.
Config = Mapping[str, object]

#: ``model_type`` of the text model of families with a KV cache in every layer and gated feed-forward blocks.
_FAMILIES = frozenset(
    (
        *("llama", "llama4", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"),
        *("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "phi3", "phimoe", "gpt_oss", "gemma", "gemma2", "gemma3"),
        *("deepseek_v2", "deepseek_v3", "kimi_k2", "glm", "glm4", "glm4_moe", "glm4v", "glm4v_moe", "minimax_m2"),
        *("ministral3", "granite", "olmo2", "olmo3", "seed_oss", "smollm3", "mimo", "ernie4_5"),
    )
)
_GEMMA_3 = {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_GEMMA_3 |= {"max_position_embeddings": 131_072, "tie_word_embeddings": True, "sliding_window_pattern": 6}
#: Family -> what its configuration class fills in where the file says nothing.
_DEFAULTS: dict[str, Config] = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, "head_dim": 256, "sliding_window_pattern": 2},
    "gemma3": _GEMMA_3,
    "gpt_oss": {"sliding_window_pattern": 2},
    "llama4": {"sliding_window_pattern": 4, "n_shared_experts": 1},
}
#: Families whose layers keep a state in the place of a KV cache: how their names begin, or keys that give them away.
_STATES = (
    *("mamba", "jamba", "bamba", "zamba", "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "plamo2", "rwkv"),
    *("recurrent_gemma", "qwen3_next", "qwen3_5", "kimi_linear", "minimax_text", "jet_nemotron"),
)
_STATE_KEYS = ("ssm_state_size", "mamba_num_heads", "mamba_d_state", "hybrid_override_pattern", "linear_attn_config")
#: Quantisation methods of a checkpoint, as this package calls the format.
_METHODS: dict[str, WeightFormat] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}
_MOST = 10**9


def read_checkpoint(path: Path) -> ModelShape:
    """The sizes that a checkpoint's ``config.json`` tells.

    Args:
        path: The file, or the folder of the checkpoint, which engines are to load where the weights are in it.

    Raises:
        CoraloptError: It cannot be read, is of an unknown family, lacks a size, or is quantised in an unknown way.
    """
    file, config = _file(path), read_config(path)
    try:
        weights = path.is_dir() and any(path.glob("*.safetensors"))
        return shape_of_config(config, str(path.resolve()) if weights else "", f"{path.name} of a checkpoint")
    except CoraloptError as error:
        raise CoraloptError(f"{file}: {error}") from error


def read_config(path: Path) -> Config:
    """The configuration itself, with the quantisation that a checkpoint keeps beside it.

    Raises:
        CoraloptError: It cannot be read.
    """
    file = _file(path)
    config, quantised = _json(file), file.parent / "hf_quant_config.json"
    if "quantization_config" not in config and quantised.is_file():
        config = {**config, "quantization_config": _json(quantised).get("quantization")}
    return config


def _file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def shape_of_config(config: Config, hf_id: str = "", source: str = "config.json") -> ModelShape:
    """The sizes that a configuration tells: of the text model, where it has other parts too.

    Raises:
        CoraloptError: As for :func:`read_checkpoint`.
    """
    text = _text_model(config)
    family = _family(text)
    given = _Reader({**_DEFAULTS.get(family, {}), **text, "model_type": family})
    layers, hidden, heads = (
        given.whole("num_hidden_layers", most=1000),
        given.whole("hidden_size"),
        given.whole("num_attention_heads"),
    )
    kv_heads = given.whole("num_key_value_heads", default=heads)
    window, windowed = _windows(given, layers)
    latent = _latent(given)
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=latent.nope if latent else given.whole("head_dim", default=max(hidden // heads, 1)),
        vocab=given.whole("vocab_size"),
        tied_embeddings=given.config.get("tie_word_embeddings", config.get("tie_word_embeddings")) is True,
        latent=latent,
        weight_format=_weight_format(config.get("quantization_config") or given.config.get("quantization_config")),
        sliding_window=window,
        sliding_layers=windowed,
        max_position=given.whole("max_position_embeddings", default=131_072),
        hf_id=hf_id,
        source=source,
    )
    return _with_blocks(shape, given)


class _Reader:
    """Whole numbers of a configuration, each checked."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def whole(self, *names: str, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
        """The first of these that is given; ``null`` and absent ones are not.

        Raises:
            CoraloptError: None is given, and there is no default; or it is no such number.
        """
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise CoraloptError(f"{name} is {repr(value)[:40]}, not a whole number from {least} to {most:,}")
            return value
        if default is None:
            raise CoraloptError(f"{names[0]} is missing")
        return default


def _json(file: Path) -> Config:
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CoraloptError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(data, dict):
        raise CoraloptError(f"{file}: not a configuration: a JSON object is expected")
    return data


def _text_model(config: Config) -> Config:
    """The part of a configuration that describes the text model: vision and audio models have it apart."""
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        part = config.get(name)
        if isinstance(part, Mapping):
            return _text_model({"model_type": config.get("model_type"), **part})
    return config


def _family(config: Config) -> str:
    """The family of a text model.

    Raises:
        CoraloptError: It is not said or not known, or is none of transformers with a KV cache in every layer.
    """
    name = str(config.get("model_type") or "").removesuffix("_text")
    if not name:
        raise CoraloptError("model_type is missing")
    kinds = config.get("layer_types")
    states = isinstance(kinds, list) and any("linear" in str(kind) or "mamba" in str(kind) for kind in kinds)
    if name.startswith(_STATES) or states or any(config.get(key) for key in _STATE_KEYS):
        raise CoraloptError(
            f"model_type {name[:40]!r} mixes attention with state-space or linear layers; coralopt plans models that "
            "have a KV cache in every layer"
        )
    if name not in _FAMILIES or config.get("index_topk") or config.get("block_configs"):
        raise CoraloptError(
            f"model_type {name[:40]!r} is not known and could be counted wrongly; known are the families of Llama, Mistral, "
            "Qwen 2 and 3, Phi 3, Gemma 1 to 3, gpt-oss, DeepSeek V2 and V3, Kimi K2, GLM 4, MiniMax M2, Granite, OLMo 2 "
            "and 3; for others give the sizes themselves (layers, hidden, heads, ...)"
        )
    return name


def _with_blocks(shape: ModelShape, given: _Reader) -> ModelShape:
    """With the widths of its feed-forward blocks, and in how many layers there are which."""
    experts = given.whole("n_routed_experts", "num_local_experts", "num_experts", default=0, least=0)
    if experts < 2:
        return replace(shape, intermediate=given.whole("intermediate_size"))
    width = given.whole("moe_intermediate_size", "intermediate_size")
    shared = given.whole("n_shared_experts", "num_shared_experts", default=0, least=0) * width
    dense = sum(_is_dense(given, layer) for layer in range(shape.layers))
    return replace(
        shape,
        experts=experts,
        experts_per_token=given.whole("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
        expert_intermediate=width,
        shared_intermediate=given.whole("shared_expert_intermediate_size", default=shared, least=0),
        dense_layers=dense,
        intermediate=given.whole("intermediate_size_mlp", "intermediate_size") if dense else 0,
    )


def _is_dense(given: _Reader, layer: int) -> bool:
    """Whether a layer of a mixture-of-experts model has none."""
    if layer < given.whole("first_k_dense_replace", default=0, least=0):
        return True
    listed = given.config.get("mlp_only_layers")
    if isinstance(listed, list) and layer in listed:
        return True
    return (layer + 1) % given.whole("decoder_sparse_step", "interleave_moe_layer_step", default=1) != 0


def _windows(given: _Reader, layers: int) -> tuple[int | None, int]:
    """The window of sliding-window layers, and how many there are; attention in chunks counts as a window."""
    window = given.whole("attention_chunk_size", "sliding_window", default=0, least=0)
    qwen = str(given.config["model_type"]).startswith("qwen")
    if not window or given.config.get("use_sliding_window", not qwen) is False:
        return None, 0
    count = sum(_slides(given, layers))
    # A window as long as the context is none.
    return (window, count) if count and window < given.whole("max_position_embeddings", default=_MOST) else (None, 0)


def _slides(given: _Reader, layers: int) -> Iterator[bool]:
    kinds = given.config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        yield from (kind in ("sliding_attention", "chunked_attention") for kind in kinds)
        return
    full = given.config.get("no_rope_layers")
    if isinstance(full, list) and len(full) == layers:
        # Llama 4: layers with rotary positions attend in chunks.
        yield from (bool(kind) for kind in full)
        return
    every = given.whole("sliding_window_pattern", default=0, least=0)
    first = given.whole("max_window_layers", default=0, least=0)
    for layer in range(layers):
        # Every so many layers the last one attends to everything; Qwen's first ones do.
        yield layer >= first and (not every or (layer + 1) % every != 0)


def _latent(given: _Reader) -> LatentAttention | None:
    if given.config.get("kv_lora_rank") is None:
        return None
    return LatentAttention(
        rank=given.whole("kv_lora_rank"),
        rope=given.whole("qk_rope_head_dim"),
        nope=given.whole("qk_nope_head_dim"),
        value=given.whole("v_head_dim"),
        query_rank=given.whole("q_lora_rank", default=0),
    )


def _weight_format(quantisation: object) -> WeightFormat:
    """The format of a checkpoint's weights.

    Raises:
        CoraloptError: It is none that is known.
    """
    if not quantisation:
        return "bf16"
    if not isinstance(quantisation, Mapping):
        raise CoraloptError("quantization_config is no mapping")
    method = str(quantisation.get("quant_method") or quantisation.get("quant_algo") or "").lower()
    bits, group = quantisation.get("bits", quantisation.get("w_bit", 4)), quantisation.get("group_size", 128)
    kind = _METHODS.get(method)
    groups = quantisation.get("config_groups")
    if kind is None and isinstance(groups, Mapping):
        # compressed-tensors: what the first group says of its weights.
        weights = next(
            (part["weights"] for part in groups.values() if isinstance(part, Mapping) and "weights" in part), None
        )
        if isinstance(weights, Mapping):
            bits, group = weights.get("num_bits"), weights.get("group_size")
            method = f"{method} {weights.get('type')}"
            kind = "fp8" if (weights.get("type"), bits) == ("float", 8) else kind
            kind = "int4" if (weights.get("type"), bits) == ("int", 4) else kind
    if kind is None or (kind == "int4" and bits != 4):
        raise CoraloptError(
            f"weights quantised by {method.strip()[:40]!r} with {bits} bits; known are FP8, MXFP4 and INT4 (AWQ, GPTQ, "
            "compressed-tensors)"
        )
    # Scales of smaller groups than usual take memory of their own.
    return "int4-g32" if kind == "int4" and isinstance(group, int) and 0 < group < 128 else kind
