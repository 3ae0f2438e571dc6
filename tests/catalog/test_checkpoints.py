"""Published configurations read as sizes: totals as their publishers give them, and hand arithmetic of what is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coralopt import catalog
from coralopt.catalog import read_checkpoint
from coralopt.catalog.checkpoints import shape_of_config
from coralopt.catalog.types import ModelArchitecture, unsupported
from coralopt.errors import CoraloptError

#: Values of published configurations, each with its source and the total that its publisher gives, in 1e9 parameters.
PUBLISHED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "configs.json").read_text())


def published(checkpoint: str) -> ModelArchitecture:
    row = next(row for row in PUBLISHED if row["checkpoint"] == checkpoint)
    return shape_of_config(row["config"]).architecture("m")


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["checkpoint"] for row in PUBLISHED])
def test_parameter_counts_are_the_published_ones(row: dict[str, Any]) -> None:
    model = shape_of_config(row["config"]).architecture("m")
    assert model.total_params / 1e9 == pytest.approx(row["published_b"], rel=0.008)
    assert model.weight_format == row["weight_format"]
    layer = model.attention_params_per_layer + model.dense_ffn_params_per_layer + model.experts * model.expert_params
    assert model.layers * layer + model.embedding_params == pytest.approx(model.total_params, rel=1e-6)


def test_the_reader_and_the_catalog_agree() -> None:
    known = {model.hf_id: model for model in catalog.models().values()}
    shared = [row["checkpoint"] for row in PUBLISHED if row["checkpoint"] in known]
    assert len(shared) >= 18
    for checkpoint in shared:
        read, listed = published(checkpoint), known[checkpoint]
        if checkpoint.startswith(
            "google/"
        ):  # the catalog's source has the vocabulary without the padding of the checkpoint
            read = replace(read, vocab=listed.vocab, embedding_params=listed.embedding_params)
        skip = {"name", "hf_id", "source", "max_position", "total_params", "measured_as"}
        differ = {key for key, value in vars(read).items() if key not in skip and value != getattr(listed, key)}
        assert not differ, checkpoint


def test_weights_of_a_tied_head_are_held_at_both_ends() -> None:
    """Gemma 3 4B: 262,208 x 2,560 in BF16, once in one stage, once in the first and once in the last of several."""
    model = published("google/gemma-3-4b-it")
    matrix = 262_208 * 2560 * 2
    assert (model.end_bytes(1), model.end_bytes(2)) == (matrix, matrix)
    untied = published("Qwen/Qwen3-8B")
    assert (untied.end_bytes(1), untied.end_bytes(2)) == (2 * 151_936 * 4096 * 2, 151_936 * 4096 * 2)
    assert (model.sliding_window, model.sliding_layers, model.layers) == (1024, 29, 34)
    # 5 full layers keep 3,000 tokens, 29 keep 1,024; 2 x 4 heads x 256 elements of 16 bits.
    assert model.kv_bytes(3000) == (5 * 3000 + 29 * 1024) * 2 * 4 * 256 * 2
    assert replace(model, kv_format="fp8").kv_bytes(3000) == model.kv_bytes(3000) / 2


def test_latent_attention_by_hand() -> None:
    """DeepSeek-V3: 512 + 64 elements a token and layer; keys of 128 + 64 and values of 128 a head in prefill."""
    model = published("deepseek-ai/DeepSeek-V3")
    assert model.kv_elements_per_token_per_layer == 576
    assert model.kv_copies(8) == 8.0
    assert model.attention_flops(prefill=True) == 2 * 128 * (128 + 64 + 128)
    assert model.attention_flops(prefill=False) == 2 * 128 * (512 + 64 + 512)
    queries, keys = 7168 * 1536 + 1536 * 128 * 192, 7168 * 576 + 512 * 128 * (128 + 128)
    assert model.attention_params_per_layer == queries + keys + 128 * 128 * 7168
    # 3 dense layers, and one shared expert in each of 58; without compressed queries their matrix is whole.
    assert model.dense_ffn_params_per_layer == round(3 * 7168 * (3 * 18432 + 58 * 2048) / 61)
    assert model.expert_params == round(58 * 3 * 7168 * 2048 / 61)
    lite = published("deepseek-ai/DeepSeek-V2-Lite-Chat")
    attention = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert lite.attention_params_per_layer == attention
    assert published("Qwen/Qwen3-8B").attention_flops(prefill=False) == 4 * 32 * 128


def test_weight_formats_by_hand() -> None:
    """Bytes of one layer: MXFP4 4.25 bits, INT4 4.156 bits in groups of 128 and 4.5 in groups of 32, FP8 8 bits."""
    model = published("Qwen/Qwen3-8B")
    layer = 4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 12288
    sizes = {"bf16": 16, "fp8": 8, "int4": 4 + 20 / 128, "int4-g32": 4.5, "mxfp4": 4.25}
    for form, bits in sizes.items():
        assert replace(model, weight_format=form).layer_bytes == pytest.approx(layer * bits / 8)  # type: ignore[arg-type]
    sparse = published("openai/gpt-oss-20b")
    attention, expert = 2880 * 64 * (2 * 64 + 2 * 8), 3 * 2880 * 2880
    assert sparse.layer_bytes == attention * 2 + 32 * expert * 4.25 / 8
    assert replace(sparse, weight_format="int4-g32").layer_bytes == attention * 2 + 32 * expert * 4.5 / 8
    assert replace(sparse, weight_format="int4").layer_bytes == pytest.approx(
        (attention + 32 * expert) * (4 + 20 / 128) / 8
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": "nemotron_h"}, "'nemotron_h' mixes attention with state-space"),
        ({"model_type": "jamba"}, "'jamba' mixes attention"),
        ({"model_type": "qwen3_5_text"}, "'qwen3_5' mixes attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "mixes attention"),
        ({"ssm_state_size": 128}, "mixes attention"),
        ({"model_type": "glm_moe_dsa"}, "'glm_moe_dsa' is not known"),
        ({"index_topk": 2048}, "could be counted wrongly"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', not a whole number"),
        ({"hidden_size": True}, "hidden_size is True, not"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number from 1 to 1,000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised by 'bitsandbytes'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "'gptq' with 3 bits"),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, "'nvfp4'"),
        ({"quantization_config": "awq"}, "is no mapping"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "num_hidden_layers": 2}
    assert shape_of_config(config).head_dim == 16
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CoraloptError, match=r"config\.json: ") as caught:
        read_checkpoint(tmp_path)
    assert sentence in str(caught.value)


#: Keys that the reader asks for, among others.
KEYS = st.sampled_from(
    [
        *(
            "model_type",
            "text_config",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
        ),
        *(
            "intermediate_size",
            "vocab_size",
            "head_dim",
            "layer_types",
            "sliding_window",
            "num_experts",
            "mlp_only_layers",
        ),
        *("moe_intermediate_size", "num_experts_per_tok", "decoder_sparse_step", "kv_lora_rank", "quantization_config"),
        *("config_groups", "weights", "quant_method", "bits", "group_size", "first_k_dense_replace", "no_rope_layers"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.floats()
    | st.sampled_from(["gemma3", "qwen3_moe", "gptq", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(changes=st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_configuration_is_read_or_refused(changes: dict[str, Any]) -> None:
    """Whatever a file holds: sizes that add up, or an error of ours."""
    config = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 4}
    config |= {"model_type": "llama"}
    try:
        model = shape_of_config({**config, "num_hidden_layers": 3, **changes}).architecture("m")
    except CoraloptError:
        return
    assert 0 < model.weight_bytes < float("inf")
    assert 0 <= model.sliding_layers <= model.layers


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    """A folder is where the weights are, a file tells the sizes only; formats may stand in a file of their own."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "vocab_size": 100,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(tmp_path).hf_id == ""
    (tmp_path / "model-00001-of-00001.safetensors").touch()
    assert read_checkpoint(tmp_path).hf_id == str(tmp_path.resolve())
    assert read_checkpoint(tmp_path / "config.json").hf_id == ""
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert read_checkpoint(tmp_path).weight_format == "fp8"
    for text in ("", "[]", "{", "\x00", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CoraloptError, match=r"config\.json: "):
            read_checkpoint(tmp_path)
    with pytest.raises(CoraloptError, match="No such file"):
        read_checkpoint(tmp_path / "none.json")


def test_what_no_engine_runs_on_a_gpu() -> None:
    gpus, model = catalog.gpus(), published("Qwen/Qwen3-8B")
    fp8, cache = replace(model, weight_format="fp8"), replace(model, kv_format="fp8")
    assert unsupported(fp8, gpus["A100"]) == "weights in FP8 need FP8 units, which A100 does not have"
    assert unsupported(cache, gpus["A10G"]) == "an FP8 KV cache needs FP8 units, which A10G does not have"
    assert unsupported(replace(model, weight_format="mxfp4"), gpus["T4"]).startswith(
        "mxfp4 weights are computed in BF16"
    )
    for gpu in ("L4", "H100", "B200"):
        assert not unsupported(replace(fp8, kv_format="fp8"), gpus[gpu])
    assert not unsupported(replace(model, weight_format="int4"), gpus["A100"])


def test_instruct_checkpoints_have_names_of_their_own() -> None:
    """They are launched as they are, and use what was measured of the base model's shape."""
    model = catalog.find_model("meta-llama/Llama-3.1-8B-Instruct")
    assert model is not None
    assert (model.name, model.hf_id) == ("llama3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct")
    assert model.measured_as == "meta-llama/Llama-3.1-8B"
    names = [model.name for model in catalog.models().values()]
    assert len(set(names)) == len(names) == len({model.hf_id for model in catalog.models().values()})
