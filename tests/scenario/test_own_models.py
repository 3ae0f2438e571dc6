"""Models that a team brings: a config.json, a folder, other weights, another checkpoint's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from coralopt import catalog
from coralopt.errors import ScenarioError
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.templates import check_slos, scenario_tables
from coralopt.throughput import build_tables, throughput_source

QWEN = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
POOL = {"regions": {"us-central1": {"configurations": {"1xH100": 4, "1xA100": 4}}}}
SLO = {"slo": {"ttft_ms": 1600, "tpot_ms": 100}, "demand": {"requests_s": 1, "dataset": "azure-conv"}}


def scenario(model: dict[str, Any], pool: dict[str, Any] = POOL) -> ResolvedScenario:
    return scenario_from_mapping({"models": {"m": {**SLO, **model}}, "pool": pool})


@pytest.mark.parametrize("named", ["./ckpt/config.json", "ckpt", "ckpt/config.json"])
def test_a_scenario_names_a_config_or_its_folder(named: str, tmp_path: Path) -> None:
    """The sizes take the place of the path, so that a plan needs no file: the document alone gives the scenario again."""
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"models": {"m": {**SLO, "model": named, "hf_id": "us/mine"}}, "pool": POOL}))
    read = load_scenario(file)
    model, listed = read.model_phases[0].model, catalog.models()["qwen3-8b"]
    assert (model.name, model.hf_id, model.max_position) == ("m", "us/mine", 40_960)
    for name in ("layer_bytes", "weight_bytes", "kv_token_bytes", "heads", "vocab"):
        assert getattr(model, name) == getattr(listed, name)
    assert scenario_from_mapping(read.document).digest == read.digest


def test_a_configuration_in_place_and_latent_attention_in_words() -> None:
    assert scenario({"model": QWEN}).model_phases[0].model.layers == 36
    latent = {"rank": 512, "rope": 64, "nope": 128, "value": 128, "query_rank": 1536}
    sizes = {"layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "head_dim": 128, "vocab": 129_280}
    experts = {"experts": 256, "experts_per_token": 8, "expert_intermediate": 2048, "shared_intermediate": 2048}
    own = {**sizes, **experts, "intermediate": 18_432, "dense_layers": 3, "latent": latent, "weight_format": "fp8"}
    pool = {"regions": {"us-central1": {"configurations": {"8xH200": 4}}}}
    model, listed = scenario({"model": own}, pool).model_phases[0].model, catalog.models()["deepseek-v3"]
    for name in ("attention_params_per_layer", "dense_ffn_params_per_layer", "expert_params", "latent", "weight_bytes"):
        assert getattr(model, name) == getattr(listed, name)


def test_one_key_asks_for_other_weights() -> None:
    """The published checkpoint in that format where there is one; an instruction-tuned one is none of a base model."""
    published = scenario({"model": "qwen3-8b", "weight_format": "fp8"}).model_phases[0].model
    assert (published.hf_id, published.weight_format, published.published_format) == ("Qwen/Qwen3-8B-FP8", "fp8", None)
    made = scenario({"model": "llama3.1-8b", "weight_format": "fp8", "kv_format": "fp8"}).model_phases[0].model
    assert (made.hf_id, made.published_format) == ("meta-llama/Llama-3.1-8B", "bf16")
    base = catalog.models()["llama3.1-8b"]
    assert made.layer_bytes == base.layer_bytes / 2
    assert made.kv_token_bytes == base.kv_token_bytes / 2
    own = scenario({"model": "llama3.1-8b", "weight_format": "int4", "hf_id": "us/llama-awq"}).model_phases[0].model
    assert (own.hf_id, own.published_format, own.measured_as) == ("us/llama-awq", None, "meta-llama/Llama-3.1-8B")
    back = scenario({"model": "qwen3-32b-awq", "weight_format": "bf16"}).model_phases[0].model
    assert back.hf_id == "Qwen/Qwen3-32B"


def test_what_no_gpu_of_the_pool_computes_is_one_sentence() -> None:
    only = {"regions": {"us-central1": {"configurations": {"1xA100": 4}}}}
    asked = scenario({"model": "qwen3-8b", "weight_format": "fp8"}, only)
    with pytest.raises(ScenarioError) as caught:
        check_slos(asked, scenario_tables(asked))
    (mistake,) = caught.value.mistakes
    assert mistake.problem == "weights in FP8 need FP8 units, which A100 does not have"


def test_a_gpu_that_cannot_is_left_out_and_says_why() -> None:
    phase = scenario({"model": "qwen3-8b", "weight_format": "fp8"}).model_phases[0]
    nodes = [catalog.node_configurations()[name] for name in ("1xA100", "1xH100")]
    tables = build_tables(throughput_source("auto"), phase, nodes, 2)
    assert (tables.values[:, :, 0] == 0).all()
    assert (tables.values[0, 0, 1] > 0).any()
    assert tables.provenance[0].startswith("cannot run: weights in FP8 need FP8 units, which A100 does not have")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("meta-llama/Llama-3.2-9B-Instruct", "unknown model 'meta-llama/Llama-3.2-9B-Instruct' (name its config.json"),
        ("meta-llama/Llama-3.1-9B-Instruct", "unknown model 'meta-llama/Llama-3.1-9B-Instruct' (name its config.json"),
        ("meta-llama/Llama-3.1-8B-Instruc", "did you mean 'meta-llama/Llama-3.1-8B-Instruct'?"),
    ],
)
def test_an_unknown_checkpoint_is_not_taken_for_another(model: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario({"model": model})
    assert sentence in str(caught.value)


def test_a_config_that_is_missing_or_not_known_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    models = {"a": {**SLO, "model": "./none"}, "b": {**SLO, "model": {**QWEN, "model_type": "jamba"}}}
    file.write_text(yaml.safe_dump({"models": models, "pool": POOL}))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file)
    text = str(caught.value)
    assert "models.a.model: " in text
    assert "No such file" in text
    assert "models.b.model: model_type 'jamba' mixes attention" in text


def test_sizes_that_do_not_fit_are_one_mistake_and_long_contexts_none() -> None:
    """A model whose sizes are refused is not also called unknown; Llama 4 Scout's context has 10,485,760 tokens."""
    with pytest.raises(ScenarioError) as caught:
        scenario({"model": {**QWEN, "num_key_value_heads": 7}})
    assert len(caught.value.mistakes) == 1
    assert "must be a multiple of kv_heads (7)" in str(caught.value)
    assert (
        scenario({"model": {**QWEN, "max_position_embeddings": 10_485_760}}).model_phases[0].model.max_position
        == 10_485_760
    )
