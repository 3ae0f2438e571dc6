"""Scenarios that are right: built-ins, defaults, every section, round trip, digest, schema, documentation."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from coralopt import catalog
from coralopt.scenario import Serving, builtin_scenarios, load_scenario, scenario_from_mapping, scenario_schema

DOCS = Path(__file__).parents[2] / "docs" / "scenario.md"


def minimal() -> dict[str, Any]:
    return {
        "models": {
            "phi4-14b": {
                "slo": {"prefill_ms": 1200, "decode_ms": 60},
                "demand": {"requests_s": 2, "dataset": "azure-conv"},
            }
        },
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL4": 3, "4xL40S": 1}}}},
    }


def test_core_and_extended_are_the_papers() -> None:
    """Table 3 and section 6.1: the comparison with the paper stands on these numbers."""
    core, extended = load_scenario("core"), load_scenario("extended")
    slos = {phase.key: phase.slo_ms for phase in extended.model_phases}
    assert slos == {
        "qwen3-235b/prefill": 1800,
        "qwen3-235b/decode": 120,
        "gpt-oss-120b/prefill": 1000,
        "gpt-oss-120b/decode": 40,
        "llama3-70b/prefill": 1500,
        "llama3-70b/decode": 80,
        "qwen3-32b/prefill": 1600,
        "qwen3-32b/decode": 100,
        "gpt-oss-20b/prefill": 900,
        "gpt-oss-20b/decode": 30,
        "phi4-14b/prefill": 1200,
        "phi4-14b/decode": 60,
    }
    assert all(slos[phase.key] == phase.slo_ms for phase in core.model_phases)
    assert [len(s.model_phases) for s in (core, extended)] == [6, 12]
    assert [len(s.configurations) for s in (core, extended)] == [12, 20]
    assert extended.regions == (*core.regions, "us-central1") == catalog.regions()
    for scenario, rate in ((core, 10), (extended, 25)):
        assert (scenario.max_nodes, scenario.memory_ratio, scenario.initialization_penalty) == (6, 12, 0.1)
        for phase in scenario.model_phases:
            tokens = phase.mean_input_tokens if phase.phase == "prefill" else phase.mean_output_tokens
            assert phase.demand_tokens_s == pytest.approx(rate * tokens)
    # us-central1 sells no L40S and no A10G: no nodes, no price, no instance.
    l40s = [c.name for c in extended.configurations].index("4xL40S")
    assert extended.availability[2, l40s] == 0
    assert math.isnan(extended.price_usd_h[2, l40s])
    assert extended.instance_types[2][l40s] is None


@pytest.mark.parametrize("name", builtin_scenarios())
def test_round_trip(name: str) -> None:
    """A plan carries its scenario's document: read back, it must be the same scenario to the digest."""
    scenario = load_scenario(name)
    text = json.dumps(dict(scenario.document), allow_nan=False)
    again = scenario_from_mapping(json.loads(text))
    assert (again.digest, again.document, again.name) == (scenario.digest, scenario.document, name)
    assert scenario.availability.dtype == np.int64
    assert scenario.price_usd_h.dtype == np.float64
    assert scenario.price_usd_h.shape == (len(scenario.regions), len(scenario.configurations))


def test_defaults() -> None:
    """What a file leaves out is the paper's value or the plain choice."""
    scenario = scenario_from_mapping(minimal())
    assert (scenario.mode, scenario.max_nodes, scenario.memory_ratio) == ("disaggregated", 6, 12.0)
    assert (scenario.throughput_source, scenario.initialization_penalty) == ("auto", 0.1)
    assert (scenario.solver, scenario.solver_options, scenario.running) == ("highs", {}, ())
    # Catalog order, not file order: two files that differ in order only make equal arrays.
    assert [c.name for c in scenario.configurations] == ["4xL40S", "1xL4"]
    assert scenario.availability.tolist() == [[1, 3]]
    assert scenario.price_usd_h.tolist() == [[10.49264, 0.8048]]
    assert scenario.instance_types == (("g6e.12xlarge", "g6.xlarge"),)


def test_slo_and_serving_of_scenarios() -> None:
    """Built-ins of the paper plan for mean requests on its engines; what a user writes holds for 99 % on real ones."""
    own = scenario_from_mapping(minimal())
    engine = Serving("least-work", "hopeless-last", "preempt", 3.5, 0.6, 14.0, 2048, True)
    paper = Serving("weighted-round-robin", "fifo", "reserve", 1.0, 0.0, 0.0, 2048, False)
    for name, attainment, serving in (
        ("tiny", None, paper),
        ("core", None, paper),
        ("extended", None, paper),
        ("core-slo", 0.99, engine),
        ("extended-slo", 0.99, engine),
    ):
        scenario = load_scenario(name)
        assert scenario.serving == serving
        assert {(phase.attainment, phase.serving) for phase in scenario.model_phases} == {(attainment, serving)}
    assert own.serving == engine
    assert {(phase.attainment, phase.serving) for phase in own.model_phases} == {(0.99, engine)}
    core, promised = load_scenario("core"), load_scenario("core-slo")
    same = promised.document | {"name": "core", "description": core.document["description"]}
    same |= {name: core.document[name] for name in ("models", "serving", "kv_transfer")}
    assert same == core.document
    changed = minimal() | {"serving": {"preset": "paper", "host_step_ms": 2, "order": "shortest-first"}}
    assert scenario_from_mapping(changed).serving == replace(paper, host_step_ms=2.0, order="shortest-first")


def test_lengths_of_scenarios() -> None:
    """Means stand for lognormal lengths of cv 1; cvs and quantiles say otherwise, side by side with a data set too."""
    phase = scenario_from_mapping(minimal()).model_phases[0]
    assert (phase.lengths.input.mean, phase.lengths.input.cv, phase.lengths.output.cv) == (1154.7, 1.0, 1.0)
    data = minimal()
    data["models"]["phi4-14b"]["demand"] |= {"input_cv": 0, "output_cv": 2}
    phase = scenario_from_mapping(data).model_phases[0]
    assert (phase.lengths.input.moment(3), phase.lengths.output.cv) == (1154.7**3, 2.0)
    data["models"]["phi4-14b"]["demand"] = {
        "requests_s": 2,
        "lengths": {"input": {"quantiles": {"0.5": 1000, "0.9": 1000}}},
        "output_tokens": 50,
    }
    scenario = scenario_from_mapping(data)
    prefill = scenario.model_phases[0]
    assert (prefill.mean_input_tokens, prefill.mean_output_tokens) == (pytest.approx(1000), 50)
    assert prefill.demand_tokens_s == pytest.approx(2000)
    assert prefill.lengths.input.cv == pytest.approx(0, abs=1e-6)
    assert scenario.with_demand(np.array([500.0, 20.0])).model_phases[0].lengths == prefill.lengths


def test_order_of_configurations_does_not_matter() -> None:
    """The digest names the content, so writing the pool in another order must keep it."""
    other = minimal()
    supply = other["pool"]["regions"]["us-east-2"]["configurations"]
    other["pool"]["regions"]["us-east-2"]["configurations"] = dict(reversed(supply.items()))
    assert scenario_from_mapping(other).digest == scenario_from_mapping(minimal()).digest


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda d: d.update(name="x", description="y"), True),
        (lambda d: d["models"]["phi4-14b"]["slo"].update(decode_ms=60.0), True),
        (lambda d: d.update(initialization_penalty=0.1), True),
        (lambda d: d["models"]["phi4-14b"].update(model="microsoft/phi-4"), True),
        (lambda d: d["models"]["phi4-14b"]["slo"].update(decode_ms=61), False),
        (lambda d: d["models"]["phi4-14b"]["demand"].update(requests_s=3), False),
        (lambda d: d["pool"]["regions"]["us-east-2"]["configurations"].update({"1xL4": 4}), False),
        (
            lambda d: d["pool"]["regions"]["us-east-2"]["configurations"].update(
                {"1xL4": {"available": 3, "price_usd_h": 0.8}}
            ),
            False,
        ),
        (lambda d: d["pool"].update(market="on-demand"), True),
        (lambda d: d.update(solver={"options": {"time_limit": None}}), False),
        (lambda d: d.update(pruning={"max_nodes": 5}), False),
        (lambda d: d.update(mode="mixed"), False),
        (lambda d: d["models"]["phi4-14b"].update(slo={"ttft_ms": 1200, "tpot_ms": 60}), True),
        (lambda d: d["models"]["phi4-14b"]["slo"].update(attainment=0.99), True),
        (lambda d: d["models"]["phi4-14b"]["slo"].update(attainment=0.95), False),
        (lambda d: d["models"]["phi4-14b"]["slo"].update(attainment="mean"), False),
        (lambda d: d["models"]["phi4-14b"]["demand"].update(input_cv=1.0), True),
        (lambda d: d["models"]["phi4-14b"]["demand"].update(input_cv=1.5), False),
        (lambda d: d.update(serving={"preset": "engine"}), True),
        (lambda d: d.update(serving={"preset": "paper"}), False),
        (lambda d: d.update(serving={"routing": "power-of-two"}), False),
    ],
)
def test_digest_names_what_decides(change: Any, same: bool) -> None:
    """Stale libraries are refused by the digest: it must move with every deciding fact and with nothing else."""
    data = minimal()
    change(data)
    scenario = scenario_from_mapping(data)
    assert (scenario.digest == scenario_from_mapping(minimal()).digest) == same
    assert scenario_from_mapping(scenario.document).digest == scenario.digest


def test_where_caches_may_go_decides_only_where_there_are_any() -> None:
    """Mixed instances send none, so the three ways are one scenario."""

    def digests(mode: str) -> set[str]:
        ways = ("free", "region", "priced")
        return {scenario_from_mapping({**minimal(), "mode": mode, "kv_transfer": way}).digest for way in ways}

    assert len(digests("disaggregated")) == len(digests("auto")) == 3
    assert len(digests("mixed")) == 1


def test_a_new_version_knows_the_scenarios_of_an_old_one() -> None:
    """All of it is in the file and nothing in the catalog: libraries and plans made earlier go by this digest."""
    shape = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 1000, "intermediate": 128}
    scenario = scenario_from_mapping(
        {
            "models": {
                "own": {
                    "model": shape,
                    "slo": {"ttft_ms": 1000, "tpot_ms": 50, "attainment": "mean"},
                    "demand": {"requests_s": 1, "input_tokens": 100, "output_tokens": 10},
                }
            },
            "gpus": {"Mine": {"memory_gib": 30, "bandwidth_gb_s": 900, "bf16_tflops": 100, "link_gb_s": 32}},
            "nodes": {"2xMine": {"gpu": "Mine", "count": 2, "network_gb_s": 5}},
            "pool": {"regions": {"home": {"configurations": {"2xMine": {"available": 3, "price_usd_h": 1.5}}}}},
            "serving": {"preset": "paper"},
            "throughput": {"source": "roofline"},
            "kv_transfer": "free",
        }
    )
    assert scenario.digest == "20e36ac1f59a8d2fa860545ff80281f9c67d3a8219a448fb285c04bdb5e35dc4"


def test_the_input_is_left_alone() -> None:
    """Cutting invalid parts out must happen on a copy, and the resolved document must not alias the input."""
    data = minimal()
    kept = copy.deepcopy(data)
    scenario = scenario_from_mapping(data)
    assert data == kept
    data["models"].clear()
    assert scenario.document["models"]


def test_mixed_mode() -> None:
    """Aggregated serving has one phase a model whose demand is output tokens."""
    data = minimal() | {"mode": "mixed"}
    (phase,) = scenario_from_mapping(data).model_phases
    assert (phase.key, phase.demand_tokens_s, phase.slo_ms) == ("phi4-14b/mixed", pytest.approx(422.2), 60)
    lengths = {"input_tokens": 10, "output_tokens": 20}
    data["models"]["phi4-14b"]["demand"] = {"mixed_tokens_s": 7, "decode_tokens_s": 9, "prefill_tokens_s": 1, **lengths}
    assert scenario_from_mapping(data).model_phases[0].demand_tokens_s == 7
    assert [p.demand_tokens_s for p in scenario_from_mapping(data | {"mode": "disaggregated"}).model_phases] == [1, 9]


def test_demand_zero_is_allowed() -> None:
    """An idle model is a normal state of a night, not a mistake."""
    data = minimal()
    data["models"]["phi4-14b"]["demand"]["requests_s"] = 0
    assert all(phase.demand_tokens_s == 0 for phase in scenario_from_mapping(data).model_phases)


def test_shorthand_for_all_and_lists() -> None:
    """The shorthand must mean exactly the mapping written out."""
    data = minimal()
    region = data["pool"]["regions"]["us-east-2"] = {"available": 5, "configurations": "all"}
    every = [name for name in catalog.node_configurations() if ("us-east-2", name) in catalog.offers()]
    scenario = scenario_from_mapping(data)
    assert [c.name for c in scenario.configurations] == every
    region["configurations"] = every
    assert scenario_from_mapping(data).digest == scenario.digest
    data["pool"]["regions"]["us-east-2"] = {"configurations": dict.fromkeys(every, 5)}
    assert scenario_from_mapping(data).digest == scenario.digest


def test_spot_prices() -> None:
    """The market chooses the price; a price of one's own wins over both."""
    data = minimal()
    data["pool"] = {
        "market": "spot",
        "regions": {"us-east-2": {"configurations": {"1xL4": 1, "8xL4": {"available": 1, "price_usd_h": 1}}}},
    }
    assert scenario_from_mapping(data).price_usd_h.tolist() == [[0.2133, 1.0]]


def test_extensions_of_the_catalog() -> None:
    """GPUs, nodes, regions, prices and models beyond the catalog come last and carry their own figures."""
    data = minimal()
    gpu = {"memory_gib": 30, "bandwidth_gb_s": 900, "bf16_tflops": 100, "link_gb_s": 32}
    data["gpus"] = {"Mine": gpu}
    data["nodes"] = {"2xMine": {"gpu": "Mine", "count": 2, "network_gb_s": 5}}
    data["pool"]["regions"]["home"] = {"configurations": {"2xMine": {"available": 2, "price_usd_h": 0}}}
    sizes = {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "vocab": 10, "intermediate": 16}
    data["models"]["own"] = data["models"]["phi4-14b"] | {"model": sizes | {"experts": 2, "experts_per_token": 1}}
    data["models"]["own"]["model"]["expert_intermediate"] = 4
    scenario = scenario_from_mapping(data)
    assert scenario.configurations[-1].name == "2xMine"
    assert scenario.configurations[-1].memory_gib == 60
    assert scenario.availability.tolist() == [[1, 3, 0], [0, 0, 2]]
    own = scenario.model_phases[-1].model
    assert own.attention_params_per_layer == 8 * 2 * (4 + 4) + 2 * 8 * 2 * 2
    assert (own.dense_ffn_params_per_layer, own.expert_params) == (3 * 8 * 16, 3 * 8 * 4)
    assert own.kv_elements_per_token_per_layer == 2 * 2 * 2
    assert scenario_from_mapping(scenario.document).digest == scenario.digest


def test_inline_model_agrees_with_the_catalog() -> None:
    """The derived sizes of an inline model are those the catalog lists for the same published configuration."""
    sizes = {"layers": 64, "hidden": 5120, "heads": 64, "kv_heads": 8, "head_dim": 128, "vocab": 151936}
    data = minimal()
    data["models"] = {"own": data["models"]["phi4-14b"] | {"model": sizes | {"intermediate": 25600}}}
    own = scenario_from_mapping(data).model_phases[0].model
    assert own.weight_bytes == catalog.models()["qwen3-32b"].weight_bytes


def test_one_model_twice_under_two_names() -> None:
    """Two services of one checkpoint with different SLOs need different keys everywhere."""
    data = minimal()
    data["models"]["fast"] = data["models"]["phi4-14b"] | {"model": "phi4-14b"}
    keys = [phase.key for phase in scenario_from_mapping(data).model_phases]
    assert keys == ["phi4-14b/prefill", "phi4-14b/decode", "fast/prefill", "fast/decode"]


def test_checkpoint_name_as_key() -> None:
    """Users know the checkpoint; its short name then stands in keys, which hold a slash of their own."""
    data = minimal()
    data["models"] = {"microsoft/phi-4": data["models"]["phi4-14b"]}
    data["running"] = [{"model": "microsoft/phi-4", "phase": "decode", "region": "us-east-2", "nodes": {"1xL4": 2}}]
    scenario = scenario_from_mapping(data)
    assert scenario.model_phases[0].key == "phi4-14b/prefill"
    assert scenario.running[0].key == "phi4-14b/decode"
    assert scenario.running[0].count == 1


def test_files(tmp_path: Path) -> None:
    """YAML and JSON files of the same content are the same scenario, named after the file when it has no name."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(minimal()))
    (tmp_path / "b.json").write_text(json.dumps(minimal(), indent="\t"))
    one, other = load_scenario(tmp_path / "a.yaml"), load_scenario(str(tmp_path / "b.json"))
    assert one.digest == other.digest == scenario_from_mapping(minimal()).digest
    assert (one.name, other.name) == ("a", "b")


def test_yaml_values(tmp_path: Path) -> None:
    """Numbers with an exponent and merge keys mean what their writer meant; YAML 1.1 reads neither 1e3 nor dates so."""
    text = yaml.safe_dump(minimal()).replace("prefill_ms: 1200", "prefill_ms: 1.2e3")
    (tmp_path / "a.yaml").write_text(text + "description: 2024-01-01\n")
    scenario = load_scenario(tmp_path / "a.yaml")
    assert scenario.model_phases[0].prefill_ms == 1200
    assert scenario.document["description"] == "2024-01-01"
    merged = text + "pruning: &p {max_nodes: 3}\nsolver: {options: {<<: *p, seed: 1}}\n"
    (tmp_path / "b.yaml").write_text(merged)
    assert load_scenario(tmp_path / "b.yaml").solver_options == {"max_nodes": 3, "seed": 1}


def test_schema_accepts_the_built_ins_and_refuses_a_typo() -> None:
    """The schema is for editors: it must agree with what loads."""
    schema = scenario_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for name in builtin_scenarios():
        validator.validate(dict(load_scenario(name).document))
    assert not validator.is_valid(minimal() | {"poool": 1})
    assert validator.is_valid(minimal())


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL))
def test_documented_examples_load(block: str, tmp_path: Path) -> None:
    """Examples are copied: each must load as it stands."""
    (tmp_path / "example.yaml").write_text(block)
    scenario = load_scenario(tmp_path / "example.yaml")
    assert scenario_from_mapping(scenario.document).digest == scenario.digest
