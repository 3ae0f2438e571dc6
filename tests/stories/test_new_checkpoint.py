"""A team has the config.json of a new checkpoint and asks which weights on which GPUs: FP8 or INT4, MI300X or H200."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

RunCli = Callable[..., Any]

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}
FORMATS: dict[str, dict[str, str]] = {
    "fp8": {"weight_format": "fp8", "kv_format": "fp8", "hf_id": "our-org/new-FP8"},
    "int4": {"weight_format": "int4", "hf_id": "our-org/new-AWQ"},
}
OTHERS = {"mi300x": ["H200", "A100"], "h200": ["MI300X", "A100"]}


def scenario(**pool: Any) -> str:
    """Every format on every GPU as a model of its own, so that the bill has them side by side."""
    usual = {
        "model": "./new-model/config.json",
        "slo": {"ttft_ms": 2000, "tpot_ms": 80, "attainment": "mean"},
        "demand": {"requests_s": 12, "input_tokens": 1200, "output_tokens": 300},
    }
    models = {
        f"{name}-{gpu}": {**usual, **form, "forbidden": [] if pool else others}
        for name, form in FORMATS.items()
        for gpu, others in OTHERS.items()
    }
    prices = {"1xMI300X": 2.9, "8xMI300X": 22, "1xH200": 4.1, "8xH200": 31, "1xA100": 1.6}
    supply = pool or {name: {"available": 8, "price_usd_h": price} for name, price in prices.items()}
    return yaml.safe_dump(
        {"mode": "mixed", "models": models, "pool": {"regions": {"east": {"configurations": supply}}}}
    )


def test_a_new_checkpoint_from_its_config_to_manifests(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "new-model").mkdir()
    (tmp_path / "new-model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "compare.yaml").write_text(scenario())
    assert run_cli("scenario", "check", "compare.yaml").returncode == 0
    planned = run_cli("plan", "compare.yaml", "-o", "plan.json", "--no-play")
    assert planned.returncode == 0, planned.stderr
    # The notes say whose figures MI300X is given.
    told = " ".join((planned.stdout + planned.stderr).split())
    assert "1xMI300X like H100" in told
    assert run_cli("verify", "plan.json").returncode == 0

    bill = json.loads(run_cli("show", "plan.json", "--bill", "--json").stdout)
    costs = {model["model"]: model["output_usd_mtok"] for model in bill["models"]}
    assert set(costs) == {"fp8-mi300x", "fp8-h200", "int4-mi300x", "int4-h200"}
    assert all(cost > 0 for cost in costs.values())
    assert {line["gpu"] for line in bill["lines"]} == {"MI300X", "H200"}

    assert run_cli("launch", "check", "plan.json").returncode == 0
    rendered = run_cli("launch", "render", "plan.json", "--target", "kubernetes", "-o", "manifests")
    assert rendered.returncode == 0, rendered.stderr
    pods = [
        document["spec"]["template"]["spec"]
        for file in sorted((tmp_path / "manifests").glob("**/*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
        if document and document["kind"] == "StatefulSet"
    ]
    seen = set()
    for pod in pods:
        (container,) = pod["containers"]
        words = container["command"]
        (resource,) = container["resources"]["limits"]
        seen.add((resource, words[words.index("serve") + 1], "--kv-cache-dtype" in words))
    checkpoints = (("our-org/new-FP8", True), ("our-org/new-AWQ", False))
    assert seen == {(f"{vendor}.com/gpu", *item) for vendor in ("amd", "nvidia") for item in checkpoints}


def test_fp8_on_a100_alone_is_refused_in_one_sentence(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "new-model").mkdir()
    (tmp_path / "new-model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "old.yaml").write_text(scenario(**{"8xA100": {"available": 8, "price_usd_h": 12}}))
    refused = run_cli("plan", "old.yaml", "-o", "plan.json")
    assert refused.returncode == 2
    assert "weights in FP8 need FP8 units, which A100 does not have" in refused.stderr
    assert not (tmp_path / "plan.json").exists()
