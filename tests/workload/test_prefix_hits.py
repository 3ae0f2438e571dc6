"""Shares of prompts found in caches, from block hashes; and what plans, simulator and router make of such a share."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import Plan, load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import WorkloadError
from coralopt.report.tables import plan_summary
from coralopt.runtime import VllmEngine, lower
from coralopt.runtime.router.config import router_document
from coralopt.scenario import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.throughput import build_tables, throughput_source
from coralopt.workload import poisson_for_scenario, prefix_hits

BLOCK = 4


def _write(path: Path, prompts: list[list[int]], tail: int = 0) -> Path:
    rows = [
        {"timestamp": 1000 * k, "input_length": len(blocks) * BLOCK - tail, "output_length": 1, "hash_ids": blocks}
        for k, blocks in enumerate(prompts)
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def test_only_leading_blocks_count_and_one_token_is_always_computed(tmp_path: Path) -> None:
    """By hand: nothing, all but one token, one block of two, nothing behind a new beginning."""
    found = prefix_hits(_write(tmp_path / "t.jsonl", [[1, 2], [1, 2], [1, 3], [9, 2]]), block_tokens=BLOCK)
    assert (found.requests, found.input_tokens, found.hit_tokens, found.hit_requests) == (4, 32, 0 + 7 + 4 + 0, 2)
    assert found.prefix_hit == 11 / 32


def test_a_small_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    """Two blocks fit: the second prompt drives the first one out, end first."""
    path = _write(tmp_path / "t.jsonl", [[1, 2], [3], [1, 2]])
    assert prefix_hits(path, None, BLOCK).hit_tokens == 7
    assert prefix_hits(path, 2 * BLOCK, BLOCK).hit_tokens == 4
    assert prefix_hits(path, BLOCK, BLOCK).hit_tokens == 0
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert prefix_hits(packed, None, BLOCK).hit_tokens == 7


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=12), st.integers(1, 10))
def test_an_unlimited_cache_holds_every_prompt_before(tmp_path_factory: Any, words: list[list[int]], room: int) -> None:
    """Against trying everything: the longest beginning that any earlier prompt had; a smaller cache holds no more."""
    # A block's number says all that comes before it, as in the published traces.
    names: dict[tuple[int, ...], int] = {}
    prompts = [[names.setdefault(tuple(w[: k + 1]), len(names)) for k in range(len(w))] for w in words]
    path = _write(tmp_path_factory.mktemp("hits") / "t.jsonl", prompts, tail=1)
    expected = 0
    for number, word in enumerate(words):
        common = [sum(1 for k in range(len(word)) if other[: k + 1] == word[: k + 1]) for other in words[:number]]
        expected += min(BLOCK * max(common, default=0), BLOCK * len(word) - 2)
    assert prefix_hits(path, None, BLOCK).hit_tokens == expected
    assert prefix_hits(path, room * BLOCK, BLOCK).hit_tokens <= expected


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "no json",
        '{"timestamp": 0, "input_length": 5, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 0, "hash_ids": []}',
        '{"timestamp": 0, "input_length": 4}',
    ],
)
def test_traces_without_hashes_are_refused(tmp_path: Path, line: str) -> None:
    """One sentence with the line."""
    path = _write(tmp_path / "t.jsonl", [[1]])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(WorkloadError, match="line 2 is no request with block hashes"):
        prefix_hits(path, None, BLOCK)
    path.write_text("")
    with pytest.raises(WorkloadError, match="holds no requests"):
        prefix_hits(path)


def _scenario(prefix_hit: float, **changes: Any) -> ResolvedScenario:
    data = {**copy.deepcopy(dict(load_scenario("tiny").document)), **changes}
    for entry in data["models"].values():
        entry["demand"]["prefix_hit"] = prefix_hit
    return scenario_from_mapping(data)


def test_tables_are_those_of_shorter_prompts_that_count_in_full() -> None:
    """Half of a prompt found: the time of half a prompt, and twice its throughput; contexts stay whole."""
    phase = _scenario(0.5, throughput={"source": "roofline"}).model_phases[0]
    nodes, source = load_scenario("tiny").configurations, throughput_source("roofline")
    whole = build_tables(source, phase, nodes, 2)
    bare = _scenario(0.0).model_phases[0]
    half = build_tables(source, type(bare)(**{**vars(bare), "mean_input_tokens": bare.mean_input_tokens / 2}), nodes, 2)
    both = (whole.values > 0) & (whole.batch == half.batch)
    assert both.any()
    # A little slower, since the computed half attends to the other one.
    ratio = whole.values[both] / (2 * half.values[both])
    assert (ratio < 1).all()
    assert (ratio > 0.9).all()


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Four of ten tokens found."""
    return plan_scenario(_scenario(0.4))


def test_a_plan_states_and_verifies_its_share(plan: Plan) -> None:
    """Never dearer with hits; a share that the scenario does not know is refused; no share, no word."""
    bare = plan_scenario(_scenario(0.0))
    assert plan.cost_usd_h <= bare.cost_usd_h
    assert "prefix_hit" not in bare.to_json()
    assert _scenario(0.0).digest == load_scenario("tiny").digest != plan.resolved.digest
    assert Plan.parse(plan.to_json(), "here") == plan
    assert verify_plan(plan).ok, verify_plan(plan).sentences
    assert {item.prefix_hit for item in plan.demands} == {0.4}
    assert any("from KV caches" in str(cell) for cell in plan_summary(plan).columns[0].cells)
    wrong = [item.model_copy(update={"prefix_hit": 0.5}) for item in plan.demands]
    assert "prefix_hit in `demands` is 0.5, the scenario says 0.4" in str(
        verify_plan(plan.model_copy(update={"demands": tuple(wrong)})).sentences
    )
    assert router_document(lower(plan, VllmEngine()))["affinity"] == "prefix"
    assert "affinity" not in router_document(lower(bare, VllmEngine()))


def test_simulated_requests_find_their_share(plan: Plan) -> None:
    """The same requests on the same instances: first tokens come sooner by what need not be computed."""
    trace = poisson_for_scenario(plan.resolved, rate=0.05, duration_s=200.0, seed=3)
    simulated = simulate(plan, trace)
    document = copy.deepcopy(plan.scenario)
    for entry in document["models"].values():
        del entry["demand"]["prefix_hit"]
    bare = simulate(plan.model_copy(update={"scenario": document}), trace)
    sooner, later = simulated.requests["ttft_ms"], bare.requests["ttft_ms"]
    assert (sooner < later).mean() > 0.9
    assert 0.4 < (sooner / later).mean() < 0.95


def test_less_cache_is_sent_between_regions() -> None:
    """Egress is paid for what is computed only."""
    supply = {
        "us-east-2": {"configurations": {"1xL4": 8}},
        "us-central1": {"configurations": {"1xL40S": 0, "1xA100": 2}},
    }
    egress = {"any": {"any": {"usd_gb": 0.0001}}}
    sent = {}
    for share in (0.0, 0.4):
        scenario = _scenario(share, pool={"regions": supply}, egress=egress, kv_transfer="priced")
        found = plan_scenario(scenario)
        assert verify_plan(found).ok, verify_plan(found).sentences
        sent[share] = sum(flow.gb_s for flow in found.flows)
    assert sent[0.4] == pytest.approx(0.6 * sent[0.0])
