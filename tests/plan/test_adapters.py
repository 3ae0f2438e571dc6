"""LoRA adapters of one model: one phase with more memory and slower steps, in tables, plans, simulations and launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import Plan, load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.catalog.types import GIB, Adapters
from coralopt.errors import ScenarioError
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.router.config import RouterConfig, router_document
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.simulation import simulate
from coralopt.throughput import throughput_source
from coralopt.throughput.nodes import MEMORY_SHARE, node_throughput
from coralopt.types import Floats
from coralopt.workload import poisson_for_scenario

MODEL = "llama3.2-1b"


def _document(lora: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A small model of whose requests a third asks for adapters."""
    model: dict[str, Any] = {
        **load_scenario("longtail").document["models"][MODEL],
        "slo": {"ttft_ms": 1000, "tpot_ms": 60, "attainment": "mean"},
        "demand": {"requests_s": 4, "input_tokens": 500, "output_tokens": 100},
        "lora": {
            "step_factor": 1.5,
            "adapters": {"sql": {"requests_s": 1}, "law": {"requests_s": 1, "hf_id": "a/law"}},
        },
    }
    model["lora"] |= lora or {}
    return {
        "mode": "mixed",
        "models": {MODEL: model | changes},
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL4": 9, "1xL40S": 2}}}},
        "pruning": {"max_nodes": 1},
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One with adapters."""
    return plan_scenario(scenario_from_mapping(_document()))


class _Slow:
    """Times of the model itself, each multiplied here."""

    provenance = ""

    def __init__(self, phase: ModelPhase, factor: float) -> None:
        source = throughput_source("roofline")
        self.plain, self.factor = source.times(phase.model, CONFIGURATION), factor
        self.most_prompts, self.most_sequences = self.plain.most_prompts, self.plain.most_sequences

    def prefill_ms(self, prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        layer, other = self.plain.prefill_ms(prompts, tokens)
        return layer * self.factor, other * self.factor

    def decode_ms(self, sequences: Floats, context: float) -> tuple[Floats, Floats]:
        layer, other = self.plain.decode_ms(sequences, context)
        return layer * self.factor, other * self.factor


CORE = load_scenario("core")
CONFIGURATION = next(c for c in CORE.configurations if c.name == "2xL40S")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(CORE.model_phases) - 1), st.floats(1.0, 3.0), st.floats(0.0, 0.4), st.integers(1, 3))
def test_tables_are_those_of_slower_times_on_a_smaller_node(p: int, factor: float, share: float, stages: int) -> None:
    """What adapters do to a table, with the times multiplied and their memory taken off the node by hand."""
    phase = CORE.model_phases[p]
    layers = phase.model.layers
    taken = share * CONFIGURATION.memory_gib * GIB * MEMORY_SHARE
    adapted = replace(phase.model, adapters=Adapters((("a", "a"),), 16, taken / layers, factor))
    own = replace(phase, model=adapted)
    table = node_throughput(own, CONFIGURATION, throughput_source("roofline").times(adapted, CONFIGURATION), stages)
    smaller = replace(
        CONFIGURATION, gpu=replace(CONFIGURATION.gpu, memory_gib=CONFIGURATION.gpu.memory_gib * (1 - share))
    )
    by_hand = node_throughput(phase, smaller, _Slow(phase, factor), stages)
    # All adapters stand where all layers do.
    assert table[0][0, 0, layers] == pytest.approx(by_hand[0][0, 0, layers], rel=1e-9)
    assert (table[0] <= node_throughput(phase, CONFIGURATION, _Slow(phase, factor), stages)[0] + 1e-9).all()


def test_requests_add_up_and_memory_follows_from_rank_and_shape() -> None:
    """Six requests/s in all; eight matrices of an adapter's rank a layer, by hand."""
    scenario = scenario_from_mapping(_document())
    (phase,) = scenario.model_phases
    assert phase.demand_tokens_s == pytest.approx(6 * 100)
    # 2048 wide, 32 heads and 8 KV heads of 64, 8192 in the feed-forward block.
    width = (2048 + 2048) + 2 * (2048 + 512) + (2048 + 2048) + 3 * (2048 + 8192)
    assert phase.model.adapters is not None
    assert phase.model.adapters.layer_bytes == 2 * 16 * width * 2
    assert scenario.with_demand(np.array([300.0])).model_phases[0].demand_tokens_s == 300.0
    stated = scenario_from_mapping(_document({"adapter_gib": 0.5})).model_phases[0].model
    assert stated.layer_bytes * stated.layers == pytest.approx(
        replace(stated, adapters=None).layer_bytes * stated.layers + GIB
    )


def test_it_is_planned_checked_simulated_and_started(plan: Plan) -> None:
    """One phase; the servers hold the adapters, and the router knows whose they are."""
    document = _document(demand={"requests_s": 6, "input_tokens": 500, "output_tokens": 100})
    del document["models"][MODEL]["lora"]
    assert plan.cost_usd_h >= plan_scenario(scenario_from_mapping(document)).cost_usd_h
    assert verify_plan(plan).sentences == ()
    trace = poisson_for_scenario(plan.resolved, duration_s=30.0, seed=1)
    usual = simulate(plan, trace)
    asked = simulate(plan, replace(trace, models=("sql",)))
    assert usual.attainment == asked.attainment > 0
    launch = lower(plan, VllmEngine())
    assert launch.adapters == {"sql": MODEL, "law": MODEL}
    assert {remark.code for verdict in launch.verdicts for remark in verdict.remarks} >= {"lora"}
    words = " ".join(launch.nodes[0].argv)
    assert "--enable-lora --max-loras 2 --max-lora-rank 16 --lora-modules sql=sql law=a/law" in words
    config = RouterConfig.model_validate_json(RouterConfig(**router_document(launch)).model_dump_json())
    assert config.adapters == launch.adapters


@pytest.mark.parametrize(
    ("lora", "changes", "message"),
    [
        ({"step_factor": 0.9}, {}, r"lora\.step_factor"),
        ({"rank": 7}, {}, r"lora\.rank"),
        ({"adapters": {}}, {}, r"lora\.adapters"),
        ({"adapters": {MODEL: {"requests_s": 1}}}, {}, f"'{MODEL}' is asked for already"),
        ({"adapters": {"sql": {}}}, {}, r"lora\.adapters\.sql\.requests_s"),
        ({}, {"variants": {"a": {"quality": 1.0}}}, "variants are not planned for with adapters"),
        ({}, {"model": "qwen3-30b-a3b"}, "what an adapter holds of experts or latent attention"),
    ],
)
def test_bad_sections_are_refused(lora: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    """Each mistake names its place."""
    with pytest.raises(ScenarioError, match=message):
        scenario_from_mapping(_document(lora, **changes))
