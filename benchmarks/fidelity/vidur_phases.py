"""Pipelines of prefill and of decode instances against Vidur, which has no disaggregation.

Prompts whose answers have one token make its mixed instances prefill instances; prompts of one token make them decode
instances, but for the step that such a prompt takes, which here is a step of decoding more. Kernels' times are those of
:mod:`benchmarks.fidelity.against_vidur`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.fidelity.against_vidur import (
    BAR,
    LONGEST,
    PROFILE,
    REQUESTS,
    document_of,
    equal_stages,
    job_of,
    products_of,
    run_vidur,
    trace_of,
)
from benchmarks.fidelity.rows import Row
from coralopt import scenario_from_mapping
from coralopt.scenario.facts.serving import LEAST_STEP_TOKENS
from coralopt.simulation import SimulationConfig
from coralopt.simulation.fidelity import deviation
from coralopt.simulation.groups import GroupSimulator
from coralopt.types import Floats

STAGES, LOADS = (2, 4), (0.4, 0.7)


@dataclass(frozen=True)
class _Kind:
    """Instances of one phase that are compared.

    Attributes:
        name: What they are.
        phase: The phase.
        lengths: Mean tokens of prompts and answers.
        admission: Rule of memory: ``preempt`` cuts prompts to the tokens of a step, ``reserve`` takes them whole.
        prompts: Most whole prompts of a step.
        longest: Tokens of a prompt at most.
    """

    name: str
    phase: str
    lengths: tuple[float, float]
    admission: str
    prompts: int = 1
    longest: int = LONGEST


KINDS = (
    _Kind("prefill pipeline", "prefill", (600.0, 1.0), "preempt"),
    _Kind("whole prompts, prefill pipeline", "prefill", (600.0, 1.0), "reserve", 4, LONGEST // 4),
    _Kind("decode pipeline", "decode", (1.0, 200.0), "reserve"),
)


def rows(vidur: Path | None, python: str) -> list[Row]:
    """Each kind, number of stages and load; none without Vidur."""
    if vidur is None or not (vidur / PROFILE).exists():
        return []
    products = products_of(vidur)
    return [_row(vidur, python, products, kind, stages, load) for kind in KINDS for stages in STAGES for load in LOADS]


def _row(vidur: Path, python: str, products: Floats, kind: _Kind, stages: int, load: float) -> Row:
    rules = {"mode": "disaggregated", "serving": {"preset": "paper", "admission": kind.admission}}
    document = document_of(products, rules, kind.lengths, kind.prompts, stages)
    scenario = scenario_from_mapping(document, source="the comparison with Vidur")
    phase = next(item for item in scenario.model_phases if item.phase == kind.phase)
    instance = equal_stages(scenario, phase, stages)
    simulator = GroupSimulator(scenario, config=SimulationConfig(kv_latency_ms=0.0), longest=LONGEST)
    trace, ones = trace_of(1.0, REQUESTS), np.ones(REQUESTS, dtype=np.int64)
    prefill = kind.phase == "prefill"
    if prefill:
        trace = replace(trace, input_tokens=np.minimum(trace.input_tokens, kind.longest), output_tokens=ones)
    else:
        trace = replace(trace, input_tokens=ones)
    each = float((trace.input_tokens if prefill else trace.output_tokens).mean())
    trace = replace(trace, arrival_s=trace.arrival_s * each / (load * instance.tokens_s))
    job = job_of(scenario, phase, instance, trace)
    job |= {"products_ms": products.tolist(), "chunk": LONGEST}
    if kind.admission == "preempt":
        # Tokens limit a step, not prompts.
        batch = instance.stages[0].nodes[0].batch
        job |= {"chunk": max(LEAST_STEP_TOKENS, math.ceil(batch * phase.mean_input_tokens)), "batch": stages * LONGEST}
    if prefill:
        ours = simulator.simulate((instance,), trace).ttft_ms
    else:
        # The first token of an answer comes from its prompt there and is there from the beginning here.
        job["attention_ms"]["launch_prompts"] = 0.0
        ours = simulator.simulate((instance,), replace(trace, output_tokens=trace.output_tokens + 1)).tpot_ms
    theirs = run_vidur(vidur, python, job)
    ttft, tpot = (np.array(theirs[key]) for key in ("ttft_ms", "tpot_ms"))
    times = ttft if prefill else (ttft + tpot * np.maximum(trace.output_tokens - 1, 1)) / trace.output_tokens
    off = deviation(times, ours).latency
    note = f"{theirs['restarts']} preemptions there" if theirs["restarts"] else ""
    case = f"Llama-2-7B, {kind.name} of {stages} A100, load {load:g}"
    return Row("Vidur", case, (off, None) if prefill else (None, off), BAR, note)
