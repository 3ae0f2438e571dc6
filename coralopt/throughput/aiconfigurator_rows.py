"""Rows of measured layer times made by running aiconfigurator-core (extra ``silicon``), without a network or a GPU.

Each row is one static batch: the prefill of ``tokens`` prompt tokens for ``batch`` requests, or one decode step of
``batch`` requests that hold ``tokens`` tokens each. The package interpolates between measured kernels and gives a time
for each operation; the embedding and the logits make ``nonlayer_ms``, all others divided by the number of layers make
``per_layer_ms``, so that the whole model takes ``nonlayer_ms + layers * per_layer_ms``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coralopt.errors import CoraloptError

#: Anything of aiconfigurator-core, which has no types.
_External = Any

MISSING = "aiconfigurator-core is not installed; install the extra: pip install 'coralopt[silicon]', or pass --from-csv"

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


def _load_sdk() -> _Sdk:
    try:
        import_module("aiconfigurator_core")
    except ImportError as error:
        raise CoraloptError(MISSING) from error
    try:
        config = import_module("aiconfigurator_core.sdk.config")
        return _Sdk(
            get_backend=import_module("aiconfigurator_core.sdk.backends.factory").get_backend,
            get_database_view=import_module("aiconfigurator_core.sdk.perf_database").get_database_view,
            get_model=import_module("aiconfigurator_core.sdk.models").get_model,
            model_config=config.ModelConfig,
            runtime_config=config.RuntimeConfig,
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
    config = sdk.model_config(tp_size=tp, moe_tp_size=tp, moe_ep_size=1)
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
