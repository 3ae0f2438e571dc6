"""Times built from measured kernels: kept with their provenance, taken in by scenarios that name model and node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from coralopt import catalog
from coralopt.catalog.types import ModelArchitecture
from coralopt.errors import CoraloptError, ScenarioError
from coralopt.profiling import save_measurements
from coralopt.scenario import load_scenario, scenario_from_mapping
from coralopt.scenario.facts.measured import MeasuredSourceChoice
from coralopt.scenario.measured import built_folder, measurements_document
from coralopt.throughput import build, build_tables, throughput_source
from coralopt.throughput.aiconfigurator_rows import _made_config

SLO = {"slo": {"ttft_ms": 1600, "tpot_ms": 100}, "demand": {"requests_s": 1, "dataset": "azure-conv"}}


def rows(
    model: ModelArchitecture, system: str, tp: int, config: object = None
) -> Iterator[dict[str, str | int | float]]:
    """Round numbers in the place of aiconfigurator's."""
    for phase, tokens in (("prefill", (64, 1024)), ("decode", (128, 4096))):
        for n in tokens:
            for batch in (1, 8, 64):
                layer = n * batch / 1e3 if phase == "prefill" else 0.1 + batch / 1e3
                times = {"per_layer_ms": layer / tp, "nonlayer_ms": 0.2}
                yield {"phase": phase, "tokens": n, "batch": batch, "version": "vllm 0.24.0 tables", **times}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache with Qwen3-8B on 1xH200 and 2xH200."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "rows_of_model", rows)
    model = catalog.models()["qwen3-8b"]
    for name in ("1xH200", "2xH200"):
        save_measurements(built_folder() / "q.json", build.measured_times(model, catalog.node_configurations()[name]))
    return built_folder()


def scenario_file(tmp_path: Path, **sections: Any) -> Path:
    pool = {"regions": {"here": {"configurations": {"1xH200": {"available": 4, "price_usd_h": 5}, "1xL4": 0}}}}
    pool["regions"]["here"]["configurations"]["1xL4"] = {"available": 4, "price_usd_h": 1}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"models": {"qwen3-8b": SLO}, "pool": pool, **sections}))
    return file


def test_a_scenario_takes_in_what_concerns_it(cache: Path, tmp_path: Path) -> None:
    """One of the two nodes is in its pool; the plan carries the figures and says where they are from."""
    scenario = load_scenario(scenario_file(tmp_path))
    source = scenario.throughput_source
    assert isinstance(source, MeasuredSourceChoice)
    assert [(node.model, node.configuration) for node in source.nodes] == [("Qwen/Qwen3-8B", "1xH200")]
    lines = build_tables(throughput_source(source), scenario.model_phases[0], scenario.configurations, 1).provenance
    by_name = dict(zip((c.name for c in scenario.configurations), lines, strict=True))
    assert by_name["1xH200"].startswith(
        "measured: kernels of h200_sxm, interpolated by aiconfigurator 0.12.0 (vllm 0.24.0"
    )
    assert by_name["1xL4"].startswith("roofline: ")
    assert scenario_from_mapping(scenario.document).digest == scenario.digest


def test_instruct_checkpoints_and_own_names_use_them(cache: Path, tmp_path: Path) -> None:
    models = {"bot": {**SLO, "model": "qwen3-8b", "hf_id": "us/tuned"}}
    assert isinstance(load_scenario(scenario_file(tmp_path, models=models)).throughput_source, MeasuredSourceChoice)


@pytest.mark.parametrize(
    "sections",
    [
        {"throughput": {"source": "roofline"}},
        {"models": {"qwen3-32b": SLO}},
        {"models": {"qwen3-8b": {**SLO, "weight_format": "fp8"}}},
    ],
)
def test_others_do_not(cache: Path, tmp_path: Path, sections: dict[str, Any]) -> None:
    scenario = load_scenario(scenario_file(tmp_path, **sections))
    tables = build_tables(
        throughput_source(scenario.throughput_source), scenario.model_phases[0], scenario.configurations, 1
    )
    assert not any(line.startswith("measured") for line in tables.provenance)


def test_own_measurements_win(cache: Path, tmp_path: Path) -> None:
    node = build.measured_times(catalog.models()["qwen3-8b"], catalog.node_configurations()["1xH200"])
    save_measurements(tmp_path / "own.json", {**node, "measured_with": "here"})
    scenario = load_scenario(scenario_file(tmp_path, throughput={"measured": ["own.json"]}))
    assert isinstance(scenario.throughput_source, MeasuredSourceChoice)
    assert [node.measured_with for node in scenario.throughput_source.nodes] == ["here"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, json.dumps(measurements_document([{"model": ["qwen3-8b"]}]))])
def test_a_damaged_cache_ends_nothing(cache: Path, tmp_path: Path, text: str) -> None:
    (cache / "q.json").write_text(text)
    assert load_scenario(scenario_file(tmp_path)).throughput_source == "auto"


@pytest.mark.parametrize("measured", [3, {"a": 1}, [{"model": ["qwen3-8b"]}]])
def test_bad_measurements_are_a_mistake_beside_a_cache(cache: Path, tmp_path: Path, measured: object) -> None:
    with pytest.raises(ScenarioError, match="measured"):
        load_scenario(scenario_file(tmp_path, throughput={"measured": measured}))


def test_what_cannot_be_built_says_why() -> None:
    models, nodes = catalog.models(), catalog.node_configurations()
    with pytest.raises(CoraloptError, match="MI300X is no measured system; there are L40S"):
        build.measured_times(models["qwen3-8b"], nodes["1xMI300X"])
    for name in ("glm4.5-air", "deepseek-v3", "gemma3-27b"):
        with pytest.raises(CoraloptError, match="depend on more than its sizes; name its"):
            _made_config(models[name])
    config = _made_config(models["qwen3-30b-a3b"])
    assert (config["moe_intermediate_size"], config["num_experts"], config["head_dim"]) == (768, 128, 128)


def test_the_command_says_what_is_missing(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    """Without the extra, a file without a name, an unknown model: one sentence each."""
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    for words, sentence in (
        (("nope", "H200"), "nope: neither a model of the catalog nor a file or folder"),
        ((str(tmp_path), "H200"), "say what scenarios call it, its key or its hf_id: --name"),
        (("qwen3-8b", "H2000"), "'1xH2000': the catalog has no GPU 'H2000'"),
    ):
        done = run_cli("throughput", "build", *words)
        assert done.returncode == 2
        assert sentence in done.stderr
    if find_spec("aiconfigurator_core") is None:
        done = run_cli("throughput", "build", "qwen3-8b", "1xH200")
        assert done.returncode == 2
        assert "pip install 'coralopt[silicon]'" in done.stderr


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs the extra silicon")
def test_kernels_of_the_package() -> None:
    """The made configuration of a packaged model gives the packaged figures; FP8 caches are other kernels."""
    model, node = catalog.models()["qwen3-32b"], catalog.node_configurations()["2xH200"]
    built = build.measured_times(model, node, _made_config(model))
    packaged = throughput_source("silicon").times(model, node)
    decode = built["decode"]
    assert isinstance(decode, dict)
    assert packaged.decode.per_layer[0, 0] == pytest.approx(decode["layer_ms"][0][0], rel=1e-3)  # type: ignore[attr-defined]
    eights = build.measured_times(replace(model, kv_format="fp8"), node)
    assert eights["kv_format"] == "fp8"
    assert eights["decode"] != decode
