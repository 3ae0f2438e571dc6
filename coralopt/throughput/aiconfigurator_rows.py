"""Rows of measured layer times made by running aiconfigurator-core (extra ``silicon``), without a network or a GPU.

Each row is one static batch: the prefill of ``tokens`` prompt tokens for ``batch`` requests, or one decode step of
``batch`` requests that hold ``tokens`` tokens each. The package interpolates between measured kernels and gives a time
for each operation; the embedding and the logits make ``nonlayer_ms``, all others divided by the number of layers make
``per_layer_ms``, so that the whole model takes ``nonlayer_ms + layers * per_layer_ms``.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from coralopt.catalog.checkpoints import Config
from coralopt.catalog.types import ModelArchitecture
from coralopt.errors import CoraloptError

#: Anything of aiconfigurator-core, which has no types.
_External = Any

MISSING = "aiconfigurator-core is not installed; install the extra: pip install 'coralopt[silicon]'"

_PREFILL_TOKENS = (64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
_PREFILL_BATCHES = (1, 2, 4, 8)
_DECODE_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
_DECODE_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_SYSTEMS = ("a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s")

_PHI4_NOTE = "computed with 8 kv heads instead of 10 (no 10-head attention rows); GEMMs use 8-kv qkv width"
_PHI4_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 100352,
    "max_position_embeddings": 16384,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_ESTIMATE_NOTE = (
    "A100 has no measured mxfp4 MoE / sliding-window attention: NVIDIA empirical+transfer estimate, not silicon"
)


@dataclass(frozen=True)
class _Grid:
    """Tokens of each request and batch sizes of one phase."""

    phase: str
    tokens: tuple[int, ...]
    batches: tuple[int, ...]


_FULL = (
    _Grid("decode", _DECODE_TOKENS, _DECODE_BATCHES),
    _Grid("prefill", _PREFILL_TOKENS, _PREFILL_BATCHES),
)
_SHORT = (
    _Grid("decode", (1024, 4096), (1, 4, 16, 32, 64, 128, 256)),
    _Grid("prefill", (128, 512, 1024, 2048, 4096, 8192), (1,)),
)


@dataclass(frozen=True)
class _Model:
    """A model of the table: its layers, and what aiconfigurator is to be asked for."""

    name: str
    weights: str
    layers: int
    path: str = ""
    config: Mapping[str, object] | None = None
    systems: tuple[str, ...] = _SYSTEMS
    tp: tuple[int, ...] = (1, 2, 4, 8)
    note: str = ""
    modes: Mapping[str, str] = field(default_factory=dict)


#: Weight format -> quantisation of matrices and of experts; FP8 in blocks of 128 x 128, as published with most checkpoints.
_MODES = {
    "bf16": {"gemm_quant_mode": "bfloat16", "moe_quant_mode": "bfloat16"},
    "fp8": {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"},
    "mxfp4": {"gemm_quant_mode": "bfloat16", "moe_quant_mode": "w4a16_mxfp4"},
}

_MODELS = (
    _Model("Qwen/Qwen3-235B-A22B", "bf16", 94),
    # no A100 (it has no FP8 units) and no TP 8 (1536 / 8 columns of an expert are no whole number of 128-wide blocks)
    _Model("Qwen/Qwen3-235B-A22B-FP8", "fp8", 94, systems=_SYSTEMS[1:], tp=(1, 2, 4)),
    _Model("Qwen/Qwen3-32B", "bf16", 64),
    _Model("meta-llama/Llama-3.1-70B", "bf16", 80, path="meta-llama/Meta-Llama-3.1-70B"),
    _Model("microsoft/phi-4", "bf16", 40, config=_PHI4_CONFIG, note=_PHI4_NOTE),
    _Model("openai/gpt-oss-120b", "mxfp4", 36),
    _Model("openai/gpt-oss-20b", "mxfp4", 24),
)


@dataclass(frozen=True)
class _Tables:
    """The kernel tables that serve a model on a system."""

    backend: str
    version: str
    mode: str
    grids: tuple[_Grid, ...] = _FULL


def _tables_for(model: _Model, system: str) -> _Tables:
    if system != "a100_sxm":
        return _Tables("vllm", "0.24.0", "SILICON")
    if model.weights == "mxfp4":  # no measured kernels: an estimate, and on a shorter grid
        return _Tables("sglang", "0.5.10", "HYBRID", _SHORT)
    return _Tables("vllm", "0.14.0", "SILICON")


@dataclass(frozen=True)
class _Sdk:
    """The parts of aiconfigurator-core that are used."""

    get_backend: _External
    get_database_view: _External
    get_model: _External
    model_config: _External
    runtime_config: _External
    quantisations: Mapping[str, _External]
    configs: frozenset[str]


def _load_sdk() -> _Sdk:
    try:
        package = import_module("aiconfigurator_core")
    except ImportError as error:
        raise CoraloptError(MISSING) from error
    # It tells of tables for models that nobody asked for.
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    try:
        config = import_module("aiconfigurator_core.sdk.config")
        common = import_module("aiconfigurator_core.sdk.common")
        folder = Path(str(package.__file__)).parent / "model_configs"
        return _Sdk(
            get_backend=import_module("aiconfigurator_core.sdk.backends.factory").get_backend,
            get_database_view=import_module("aiconfigurator_core.sdk.perf_database").get_database_view,
            get_model=import_module("aiconfigurator_core.sdk.models").get_model,
            model_config=config.ModelConfig,
            runtime_config=config.RuntimeConfig,
            quantisations={
                "gemm_quant_mode": common.GEMMQuantMode,
                "moe_quant_mode": common.MoEQuantMode,
                "kvcache_quant_mode": common.KVCacheQuantMode,
            },
            configs=frozenset(path.name for path in folder.iterdir()),
        )
    except (ImportError, AttributeError) as error:
        raise CoraloptError(f"aiconfigurator-core has another interface than release 0.12: {error}") from error


def rows_of_aiconfigurator() -> Iterator[dict[str, str | int | float]]:
    """All rows of the packaged table, model by model; the package is imported at once, the rows are made lazily.

    Raises:
        CoraloptError: aiconfigurator-core is missing or has another interface, or has no times for a model on a system.
    """
    sdk = _load_sdk()
    return (row for model in _MODELS for system in model.systems for row in _rows(sdk, model, system))


def rows_of_model(
    model: ModelArchitecture, system: str, tp: int, config: Config | None = None
) -> Iterator[dict[str, str | int | float]]:
    """Rows of one model on ``tp`` GPUs of a system.

    Args:
        model: Its weight format and that of its KV cache say which kernels are asked for.
        system: A measured system.
        tp: GPUs in tensor parallel.
        config: Its ``config.json``; without it the package's own copy, or one made from the sizes.

    Raises:
        CoraloptError: As for :func:`rows_of_aiconfigurator`; or the format has no measured kernels.
    """
    sdk = _load_sdk()
    if model.weight_format not in _MODES:
        raise CoraloptError(f"aiconfigurator-core has no measured kernels for {model.weight_format} weights")
    name = model.measured_as or model.hf_id
    if config is None and f"{name.replace('/', '--')}_config.json" not in sdk.configs:
        config = _made_config(model)
    modes = {**_MODES[model.weight_format], "kvcache_quant_mode": "fp8" if model.kv_format == "fp8" else "bfloat16"}
    wanted = _Model(name, model.weight_format, model.layers, config=config, tp=(tp,), modes=modes)
    return _rows(sdk, wanted, system)


def _made_config(model: ModelArchitecture) -> Config:
    """A configuration from the sizes, where they say all: dense models, and those with nothing but experts."""
    if model.latent is not None or model.sliding_window or (model.experts and model.dense_ffn_params_per_layer):
        raise CoraloptError(f"the times of {model.name} depend on more than its sizes; name its config.json")
    blocks = "Qwen3MoeForCausalLM" if model.experts else "Qwen3ForCausalLM"
    config: dict[str, object] = {
        "architectures": [blocks],
        "hidden_size": model.hidden,
        "intermediate_size": (model.dense_ffn_params_per_layer or model.expert_params) // (3 * model.hidden),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_position,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if model.experts:
        config |= {"num_experts": model.experts, "num_experts_per_tok": model.experts_per_token}
        config["moe_intermediate_size"] = model.expert_params // (3 * model.hidden)
    return config


def _rows(sdk: _Sdk, model: _Model, system: str) -> Iterator[dict[str, str | int | float]]:
    tables = _tables_for(model, system)
    what = f"{model.name} on {system} ({tables.backend} {tables.version})"
    note = _ESTIMATE_NOTE if tables.mode == "HYBRID" else model.note
    try:
        backend = sdk.get_backend(tables.backend)
        database = sdk.get_database_view(system, tables.backend, tables.version, database_mode=tables.mode)
        if database is None:
            raise CoraloptError(f"aiconfigurator-core has no tables for {what}")
        for tp in model.tp:
            built = _build(sdk, model, tables.backend, tp)
            for grid in tables.grids:
                for tokens in grid.tokens:
                    for batch in grid.batches:
                        nonlayer, layers = _times(sdk, backend, built, database, grid.phase, tokens, batch)
                        yield {
                            "model": model.name,
                            "weights": model.weights,
                            "system": system,
                            "version": f"{tables.backend} {tables.version} tables",
                            "tp": tp,
                            "phase": grid.phase,
                            "tokens": tokens,
                            "batch": batch,
                            "nonlayer_ms": round(nonlayer, 4),
                            "per_layer_ms": round(layers / model.layers, 6),
                            "note": note,
                        }
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise CoraloptError(f"aiconfigurator-core fails for {what}: {error!r}") from error


def _build(sdk: _Sdk, model: _Model, backend: str, tp: int) -> _External:
    modes = {key: getattr(sdk.quantisations[key], name) for key, name in model.modes.items()}
    config = sdk.model_config(tp_size=tp, moe_tp_size=tp, moe_ep_size=1, **modes)
    if model.config is None:
        return sdk.get_model(model.path or model.name, config, backend)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model.config))
        return sdk.get_model(folder, config, backend)


def _times(
    sdk: _Sdk, backend: _External, built: _External, database: _External, phase: str, tokens: int, batch: int
) -> tuple[float, float]:
    """Milliseconds outside the layers and in all layers together."""
    if phase == "prefill":
        runtime = sdk.runtime_config(batch_size=batch, isl=tokens, osl=1)
        times = backend.run_static(built, database, runtime, "static_ctx").get_context_latency_dict()
    else:
        runtime = sdk.runtime_config(batch_size=batch, isl=tokens, osl=2)
        times = backend.run_static(built, database, runtime, "static_gen").get_generation_latency_dict()
    outside = sum(float(ms) for name, ms in times.items() if "embedding" in name or "logits" in name)
    return outside, sum(float(ms) for ms in times.values()) - outside
