"""The reference engine: schedules by properties, and real processes that must answer like the unsplit model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import instance, plan
from typer.testing import CliRunner

from coralopt.cli.app import make_app
from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.plan.parts import PlannedMode, share_of
from coralopt.reference import Assignment, ReferenceOptions, assign, run_reference

#: An interpreter with torch and transformers: that of the tests, or the one that is named.
TORCH = os.environ.get("CORALOPT_TORCH_PYTHON") or (sys.executable if find_spec("torch") else None)
needs_torch = pytest.mark.skipif(TORCH is None, reason="no torch here, and CORALOPT_TORCH_PYTHON names no interpreter")

UNEVEN = instance(
    "mixed", (3, {"1xL4": (1, 100.0), "1xL40S": (1, 300.0)}), (5, {"1xL4": (2, 200.0)}), batch=3
)  # 4 processes, two data-parallel nodes a stage
HALVES = (
    instance("prefill", (3, {"1xL4": (1, 900.0)}), (5, {"1xL4": (1, 900.0)})),
    instance("decode", (5, {"1xL40S": (1, 900.0)}), (3, {"1xL4": (1, 900.0)})),
)


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    """Instances of one or both phases, each with up to three stages of up to three nodes."""

    def one(phase: str) -> object:
        cuts = sorted(draw(st.sets(st.integers(1, 7), max_size=2)))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, 8], strict=True)]
        stages = [
            (
                size,
                {
                    name: (draw(st.integers(1, 2)), float(draw(st.integers(1, 900))))
                    for name in draw(st.sets(st.sampled_from(["1xL4", "1xL40S"]), min_size=1))
                },
            )
            for size in sizes
        ]
        return instance(phase, *stages, batch=draw(st.integers(1, 4)), count=draw(st.integers(1, 2)))

    phases = draw(
        st.sampled_from(
            [
                ["mixed"],
                ["mixed", "mixed"],
                ["prefill", "decode"],
                ["prefill", "decode", "decode"],
                ["mixed", "prefill", "decode"],
            ]
        )
    )
    made = plan(*[one(phase) for phase in phases])  # type: ignore[arg-type]
    if len(set(phases)) < 3:
        return made
    shares = {"mixed": draw(st.sampled_from([0.25, 0.5, 1.0])), "disaggregated": 0.0}
    shares["disaggregated"] = 1 - shares["mixed"]
    modes = tuple(PlannedMode(model="tiny", mode=mode, share=share) for mode, share in shares.items())  # type: ignore[arg-type]
    return made.model_copy(update={"modes": modes})


@settings(max_examples=60, deadline=None)
@given(_plans(), st.integers(1, 20), st.integers(1, 4), st.booleans())
def test_schedule(document: Plan, requests: int, new_tokens: int, copies: bool) -> None:
    """Each request is computed once a step by one node of every stage, batches hold, shares are the plan's."""
    found = assign(document, "tiny", requests, new_tokens, copies=copies)
    for step in range(new_tokens):
        seen = [r for turn in found.turns if turn.step == step for r in turn.requests]
        assert sorted(seen) == list(range(requests))
    assert [turn.step for turn in found.turns] == sorted(turn.step for turn in found.turns)
    for turn in found.turns:
        routes = found.prefill if turn.step == 0 else found.decode
        load = Counter(rank for r in turn.requests for rank in routes[r])
        assert all(count <= found.nodes[rank].batch for rank, count in load.items())
        assert len({found.nodes[routes[r][0]].instance for r in turn.requests}) == 1
    for routes in (found.prefill, found.decode):
        for route in routes:
            nodes = [found.nodes[rank] for rank in route]
            assert [node.stage for node in nodes] == list(range(nodes[0].stages))
            assert [layer for node in nodes for layer in node.layers] == list(range(8))
    _shares(found, requests)
    if document.modes:
        whole = sum(found.nodes[route[0]].phase == "mixed" for route in found.prefill)
        assert abs(whole - requests * share_of(document.modes, "tiny/mixed")) <= 1


def _shares(found: Assignment, requests: int) -> None:
    """Smooth weighted round robin: never more than the number of candidates away from the share."""
    for routes, phases in ((found.prefill, ("prefill", "mixed")), (found.decode, ("decode", "mixed"))):
        for name in {node.instance for node in found.nodes if node.phase in phases}:
            mine = [route for route in routes if found.nodes[route[0]].instance == name]
            counts = Counter(rank for route in mine for rank in route)
            for node in found.nodes:
                if node.instance == name:
                    peers = sum(n.instance == name and n.stage == node.stage for n in found.nodes)
                    assert abs(counts[node.rank] - node.planned_share * len(mine)) <= peers


@settings(max_examples=40, deadline=None)
@given(_plans(), st.integers(1, 12), st.integers(1, 3))
def test_no_node_waits_for_ever(document: Plan, requests: int, new_tokens: int) -> None:
    """Nodes that go through the turns by themselves, waiting for the stage before and the token before, all get through."""
    found = assign(document, "tiny", requests, new_tokens)
    routes = {0: found.prefill} | dict.fromkeys(range(1, new_tokens), found.decode)
    work = {
        node.rank: [(turn.step, r) for turn in found.turns for r in turn.requests if node.rank in routes[turn.step][r]]
        for node in found.nodes
    }
    done: set[tuple[int, int, int]] = set()
    moved = True
    while moved:
        moved = False
        for rank, queue in work.items():
            if not queue:
                continue
            step, r = queue[0]
            stage = found.nodes[rank].stage
            if stage:
                ready = (step, r, stage - 1) in done
            else:
                ready = step == 0 or (step - 1, r, len(routes[step - 1][r]) - 1) in done
            if ready:
                done.add((step, r, stage))
                queue.pop(0)
                moved = True
    assert not any(work.values())


def test_one_phase_alone_is_refused() -> None:
    """Half of a disaggregated model answers nothing."""
    with pytest.raises(LaunchError, match="only prefill instances"):
        assign(plan(HALVES[0]), "tiny", 1, 1)
    with pytest.raises(LaunchError, match="no instance of model 'other'"):
        assign(plan(UNEVEN), "other", 1, 1)


def test_without_torch() -> None:
    """An interpreter that lacks torch is told what to install; one that is no program is named."""
    with pytest.raises(LaunchError, match="cannot be run"):
        run_reference(plan(UNEVEN), "tiny", ReferenceOptions(python="/does/not/exist"))
    if not find_spec("torch"):
        with pytest.raises(LaunchError, match=r"coralopt\[torch\]"):
            run_reference(plan(UNEVEN), "tiny", ReferenceOptions(python=sys.executable))


def test_too_many_nodes() -> None:
    """A plan of a hundred nodes must not start a hundred processes by mistake."""
    with pytest.raises(LaunchError, match="at most 3"):
        run_reference(plan(UNEVEN), "tiny", ReferenceOptions(most_processes=3))


def test_nothing_imports_torch() -> None:
    """The command line and the package work where torch is not installed."""
    code = "import sys, coralopt, coralopt.reference, coralopt.cli.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@needs_torch
def test_four_processes_answer_like_one(tmp_path: Path) -> None:
    """Uneven layers and two data-parallel nodes in each of two stages: equal tokens, prompts and decode, by the command."""
    plan(UNEVEN).save(tmp_path / "plan.json")
    arguments = ["reference", str(tmp_path / "plan.json"), "--requests", "10", "--json", "--python", str(TORCH)]
    result = CliRunner().invoke(make_app(), arguments)
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)
    assert (report["equal"], report["backend"], len(report["nodes"])) == (10, "gloo", 4)
    assert [node["requests"] for node in report["nodes"]] == [3, 7, 5, 5]
    assert all(node["prefill_ms"] > 0 and node["decode_ms"] > 0 for node in report["nodes"])


@needs_torch
@pytest.mark.slow
def test_caches_are_handed_over() -> None:
    """Prefill on 3 + 5 layers, decode on 5 + 3: every decode node needs layers of one or two prefill nodes."""
    report = run_reference(plan(*HALVES), "tiny", ReferenceOptions(python=str(TORCH), requests=6))
    assert report.ok
    assert [times.decode_ms is None for times in report.nodes] == [True, True, False, False]


@needs_torch
@pytest.mark.slow
def test_a_missing_layer_is_seen() -> None:
    """The comparison must be able to fail: a plan that skips layer 3 gives other tokens."""
    stages = UNEVEN.stages
    broken = UNEVEN.model_copy(update={"stages": (stages[0], stages[1].model_copy(update={"first_layer": 4}))})
    report = run_reference(plan(broken), "tiny", ReferenceOptions(python=str(TORCH), requests=3))
    assert report.equal == 0


@needs_torch
@pytest.mark.slow
def test_a_failing_process_ends_all(tmp_path: Path, nothing_runs: Callable[[], bool]) -> None:
    """A checkpoint without weights: the reason is told, and no process is left."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 8, "vocab_size": 64}))
    options = ReferenceOptions(python=str(TORCH), requests=1, folder=folder)
    with pytest.raises(LaunchError, match="process unsplit failed"):
        run_reference(plan(UNEVEN), "tiny", options)
    with pytest.raises(LaunchError, match="not a checkpoint"):
        run_reference(plan(UNEVEN), "tiny", replace(options, folder=tmp_path))
    with pytest.raises(LaunchError, match="was not done after"):
        run_reference(plan(UNEVEN), "tiny", ReferenceOptions(python=str(TORCH), requests=1, timeout_s=1.0))
    assert nothing_runs()


_TINY = """
import sys, torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
torch.manual_seed(0)
common = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, initializer_range=0.3)
common |= dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
LlamaForCausalLM(LlamaConfig(**common, tie_word_embeddings=True)).save_pretrained(sys.argv[1] + "/llama")
experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
Qwen3MoeForCausalLM(Qwen3MoeConfig(**common, **experts)).save_pretrained(sys.argv[1] + "/moe")
sinks = GptOssForCausalLM(GptOssConfig(**common, num_local_experts=4, num_experts_per_tok=2, sliding_window=5))
for layer in sinks.model.layers:
    torch.nn.init.normal_(layer.self_attn.sinks)
sinks.save_pretrained(sys.argv[1] + "/gpt-oss", max_shard_size="20KB")
"""


@needs_torch
@pytest.mark.slow
def test_architectures(tmp_path: Path) -> None:
    """Tied embeddings; mixture of experts; sliding windows shorter than the prompts, attention sinks, weights in shards."""
    subprocess.run([str(TORCH), "-c", _TINY, str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "gpt-oss" / "model.safetensors.index.json").exists()
    for name in ("llama", "moe", "gpt-oss"):
        options = ReferenceOptions(python=str(TORCH), requests=4, folder=tmp_path / name, prompt_tokens=20)
        report = run_reference(plan(*HALVES), "tiny", options)
        assert report.ok, (name, report.different)
