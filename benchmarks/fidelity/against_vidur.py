"""Our simulator against Vidur's: Llama-2-7B on A100s, its Sarathi scheduler, equal times of a layer's kernels.

Vidur's source holds medians of the layer's matrix products, norms and activations by the tokens of a step; attention, whose
profile is too large for copies of the source, is a line of A100's data sheet. Both simulators get these and no others: Vidur
puts a step together from the parts, we from whole prompts, whole decode steps and :func:`mixed_ms`. Several instances take
their requests in turn; stages of a pipeline pass on activations with our times for that.
"""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity.rows import Row
from coralopt import Plan, plan_scenario, scenario_from_mapping
from coralopt.placement import Placement, Stage
from coralopt.plan.parts import PlannedInstance
from coralopt.planning.promise.instances import planned_placement
from coralopt.planning.stages import StageTables
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.simulation.fidelity import deviation
from coralopt.simulation.state import BLOCK
from coralopt.templates import scenario_tables
from coralopt.throughput import stage_role
from coralopt.throughput.nodes import HOP_MS, cache_bytes, free_bytes
from coralopt.types import Floats
from coralopt.workload import Trace

LOADS, SPEED_LOAD = (0.4, 0.7, 0.9), 0.7
#: (instances, stages of each), with the loads of one A100.
LARGER = ((3, 1), (1, 2), (1, 4), (2, 2))
REQUESTS, MANY_REQUESTS = 3000, 20_000
BAR = (0.05, 0.08)
FASTER = 20.0
INPUT, OUTPUT, CV = 600.0, 200.0, 0.8
LAYERS, LONGEST = 32, 4096
PROFILE = "data/profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv"
PARTS = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm", "add"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj"),
)
#: Attention of a layer, ms: launching it; a token of context read, 2 x 32 x 128 numbers of 2 bytes at 75 % of 2,039 GB/s; a
#: pair of tokens in a prompt, 4 x 4,096 operations at 50 % of 312 TFLOP/s.
ATTENTION = {"launch": 0.01, "read": 16384 / (0.75 * 2039e6), "pair": 16384 / (0.5 * 312e9)}
#: Everything else of a step, ms: head and host.
OTHER_MS = 1.0
KNOTS = np.unique(np.rint(np.geomspace(1, LONGEST, 60)))


def rows(vidur: Path | None, python: str) -> list[Row]:
    """Three loads, and the speed."""
    if vidur is None or not (vidur / PROFILE).exists():
        return [Row("Vidur", "Llama-2-7B on A100", note="not run: no checkout of Vidur with its profiles (--vidur)")]
    products = products_of(vidur)
    plans = {chunk: _plan(products, chunk) for chunk in (2048, 512)}
    result = []
    for chunk, load in [(2048, load) for load in LOADS] + [(512, SPEED_LOAD)]:
        plan = plans[chunk]
        trace = trace_of(load * plan.instances[0].tokens_s / OUTPUT, REQUESTS)
        theirs = run_vidur(vidur, python, _job(plan, trace, products))
        ours, _ = _ours(plan, trace)
        ttft, tpot = (deviation(np.array(theirs[key]), ours[key]).latency for key in ("ttft_ms", "tpot_ms"))
        case = f"Llama-2-7B on A100, chunks of {chunk}, load {load:g}"
        note = f"{theirs['restarts']} preemptions there" if theirs["restarts"] else ""
        result.append(Row("Vidur", case, (ttft, tpot), BAR if chunk == 2048 else None, note))
    plan = plans[2048]
    for instances, stages in LARGER:
        larger = _larger(plan, instances, stages)
        for load in LOADS:
            trace = trace_of(load * larger.instances[0].tokens_s * instances / OUTPUT, REQUESTS)
            theirs, (ours, _) = run_vidur(vidur, python, _job(larger, trace, products)), _ours(larger, trace)
            ttft, tpot = (deviation(np.array(theirs[key]), ours[key]).latency for key in ("ttft_ms", "tpot_ms"))
            what = f"{instances} x " * (instances > 1) + (f"pipeline of {stages} A100" if stages > 1 else "one A100")
            note = f"{theirs['restarts']} preemptions there" if theirs["restarts"] else ""
            result.append(Row("Vidur", f"Llama-2-7B, {what}, load {load:g}", (ttft, tpot), BAR, note))
    trace = trace_of(SPEED_LOAD * plan.instances[0].tokens_s / OUTPUT, MANY_REQUESTS)
    theirs, (_, seconds) = run_vidur(vidur, python, _job(plan, trace, products)), _ours(plan, trace)
    ratio = theirs["seconds"] / seconds
    note = f"{theirs['seconds']:.1f} s and {seconds:.2f} s of CPU: **{ratio:.0f} times as fast** (bar {FASTER:.0f})"
    return [*result, Row("Vidur", f"speed, {MANY_REQUESTS:,} requests at load {SPEED_LOAD:g}", note=note)]


def products_of(vidur: Path) -> Floats:
    """Ms of all of a layer but its attention, by tokens of the step; both simulators see lines between the same points."""
    with (vidur / PROFILE).open(encoding="utf-8") as lines:
        mine = [row for row in csv.DictReader(lines) if row["num_tensor_parallel_workers"] == "1"]
    at = {float(row["num_tokens"]): sum(float(row[f"time_stats.{part}.median"]) for part in PARTS) for row in mine}
    measured = np.array(sorted(at))
    known = np.interp(KNOTS, measured, np.array([at[n] for n in measured]))
    products: Floats = np.interp(np.arange(2 * LONGEST), KNOTS, known)
    return products


def _plan(products: Floats, chunk: int) -> Plan:
    """One A100 whose measured times are the parts' sums, and whose steps have at most ``chunk`` tokens."""
    serving = {"preset": "paper", "admission": "preempt", "step_tokens": chunk}
    document = document_of(products, {"mode": "mixed", "serving": serving}, (INPUT, OUTPUT))
    return plan_scenario(scenario_from_mapping(document, source="the comparison with Vidur"))


def document_of(
    products: Floats, rules: dict[str, Any], lengths: tuple[float, float], prompts: int = 1, nodes: int = 1
) -> dict[str, Any]:
    """A scenario of one model on A100s whose measured times are the parts' sums.

    Args:
        products: As :func:`products_of`.
        rules: Sections of the scenario: its mode, and how engines work.
        lengths: Mean tokens of prompts and answers.
        prompts: Most whole prompts of a step.
        nodes: Most nodes of an instance.
    """
    tokens, batch, several = KNOTS, KNOTS[KNOTS <= 256], np.arange(1.0, prompts + 1)
    launch, read, pair = ATTENTION["launch"], ATTENTION["read"], ATTENTION["pair"]
    together = np.minimum(tokens[:, None] * several[None, :], LONGEST)
    prefill = products[together.astype(int)] + launch + pair * several[None, :] * tokens[:, None] ** 2 / 2
    decode = products[batch.astype(int)][None, :] + launch + read * tokens[:, None] * batch[None, :]

    def grid(points: Floats, batches: Floats, layer: Floats) -> dict[str, Any]:
        other = np.full(layer.shape, OTHER_MS)
        return {
            "tokens": points.tolist(),
            "batch": batches.tolist(),
            "layer_ms": layer.tolist(),
            "other_ms": other.tolist(),
        }

    return {
        "name": "vidur",
        **rules,
        "models": {
            "llama2-7b": {
                "model": {
                    "layers": LAYERS,
                    "hidden": 4096,
                    "heads": 32,
                    "kv_heads": 32,
                    "head_dim": 128,
                    "vocab": 32000,
                    "intermediate": 11008,
                    "weight_format": "bf16",
                    "max_position": LONGEST,
                },
                "slo": {"ttft_ms": 2000, "tpot_ms": 60, "attainment": "mean"},
                "demand": {"requests_s": 0.01, "input_tokens": lengths[0], "output_tokens": lengths[1]},
            }
        },
        "pool": {"regions": {"here": {"configurations": {"1xA100": {"available": 1, "price_usd_h": 1}}}}},
        "pruning": {"max_nodes": nodes, "memory_ratio": 1000},
        "throughput": {
            "source": "measured",
            "measured": [
                {
                    "model": "llama2-7b",
                    "configuration": "1xA100",
                    "weight_format": "bf16",
                    "measured_with": "medians of Vidur's profile, attention from the data sheet",
                    "prefill": grid(tokens, several, prefill),
                    "decode": grid(tokens, batch, decode),
                }
            ],
        },
    }


def _larger(plan: Plan, instances: int, stages: int) -> Plan:
    """The plan with so many instances of so many equal stages, one node each, in the place of its one node."""
    document = {**plan.scenario, "pruning": {"max_nodes": stages, "memory_ratio": 1000}}
    scenario = scenario_from_mapping(document, source="the comparison with Vidur")
    instance = equal_stages(scenario, scenario.model_phases[0], stages).model_copy(update={"count": instances})
    return plan.model_copy(update={"instances": (instance,), "scenario": document})


def equal_stages(scenario: ResolvedScenario, phase: ModelPhase, stages: int) -> PlannedInstance:
    """One instance of so many equal stages, one node each."""
    placement = Placement(stages=(Stage(layers=LAYERS // stages, nodes=(1,)),) * stages)
    return planned_placement(scenario, phase, StageTables(scenario, scenario_tables(scenario)), placement)


def trace_of(rate: float, requests: int) -> Trace:
    """Poisson arrivals, lognormal lengths, ends cut so that the model takes them."""
    draw = np.random.default_rng(0)
    sigma = np.sqrt(np.log(1 + CV * CV))

    def lengths(mean: float, most: int) -> Any:
        drawn = np.rint(draw.lognormal(np.log(mean) - sigma * sigma / 2, sigma, requests))
        return np.clip(drawn, 2, most).astype(np.int64)

    return Trace(np.cumsum(draw.exponential(1 / rate, requests)), lengths(INPUT, 3000), lengths(OUTPUT, 1000))


def _ours(plan: Plan, trace: Trace) -> tuple[dict[str, Floats], float]:
    """(latencies, CPU seconds of a run with compiled code in memory)."""
    simulate(plan, trace)
    begun = time.process_time()
    result = simulate(plan, trace)
    seconds = time.process_time() - begun
    return {name: np.asarray(result.requests[name], dtype=np.float64) for name in ("ttft_ms", "tpot_ms")}, seconds


def _job(plan: Plan, trace: Trace, products: Floats) -> dict[str, Any]:
    """The trace for Vidur, with as many sequences, blocks of KV cache and tokens a step as the plan has."""
    scenario, instance = plan.resolved, plan.instances[0]
    job = job_of(scenario, scenario.model_phases[0], instance, trace)
    return job | {"products_ms": products.tolist(), "chunk": scenario.serving.step_tokens}


def job_of(scenario: ResolvedScenario, phase: ModelPhase, instance: PlannedInstance, trace: Trace) -> dict[str, Any]:
    """What Vidur is told but for the times of matrix products and the tokens of a step."""
    configuration = scenario.configurations[0]
    count = len(instance.stages)
    layers = LAYERS // count
    room = min(free_bytes(phase, configuration, stage_role(s, count), count)[layers] for s in range(count))
    block = BLOCK * layers * cache_bytes(phase.model, configuration, 1.0)
    return {
        "model": "meta-llama/Llama-2-7b-hf",
        "arrival_s": trace.arrival_s.tolist(),
        "input_tokens": trace.input_tokens.tolist(),
        "output_tokens": trace.output_tokens.tolist(),
        "attention_ms": {**ATTENTION, "launch_prompts": ATTENTION["launch"]},
        "other_ms": OTHER_MS,
        "replicas": instance.count,
        "stages": count,
        "hop_ms": HOP_MS,
        # Embedding at the first stage, and activations sent by all but the last, a token.
        "embed_ms": phase.model.hidden * 2.0 / (configuration.gpu.bandwidth_gb_s * 1e6),
        "send_ms": phase.model.hidden * 2.0 / (configuration.network_gb_s * 1e6),
        "batch": count * min(stage.nodes[0].batch for stage in instance.stages),
        "blocks": int(room // block),
    }


def run_vidur(vidur: Path, python: str, job: dict[str, Any]) -> dict[str, Any]:
    """A job through Vidur: times to first token and per output token, ms, CPU seconds, preemptions."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("job.json", "answer.json")]
        paths[0].write_text(json.dumps(job), encoding="utf-8")
        worker = Path(__file__).with_name("vidur_worker.py")
        command = [python, str(worker), str(vidur.absolute()), *map(str, paths)]
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        answer: dict[str, Any] = json.loads(paths[1].read_text(encoding="utf-8"))
    return answer
