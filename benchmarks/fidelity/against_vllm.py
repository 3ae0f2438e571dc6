"""Our simulator and tables against kept runs of vLLM: on a CPU at two loads, and published ones of a closed loop on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import minimize

from benchmarks.fidelity.rows import Row
from benchmarks.host_time import closed_loops
from coralopt import Plan, plan_scenario, scenario_from_mapping
from coralopt.scenario.facts.serving import SERVING_PRESETS
from coralopt.simulation import simulate
from coralopt.simulation.fidelity import Deviation, deviation
from coralopt.simulation.times import FunctionTimes
from coralopt.types import Floats
from coralopt.workload import Trace

RESULTS = Path(__file__).parents[1] / "results"
FITTED_TO, PREDICTED = 0.4, 0.7
BAR = (0.10, 0.15)
#: The servers of the kept runs took at most so many tokens a step, and so many sequences.
STEP_TOKENS, SEQUENCES = 96, 16
#: Times of a layer, ms: fixed, a prompt token, a decoding sequence, a token of its context; of a step besides; of a request.
START = np.array([0.35, 0.015, 0.03, 1e-5, 2.5, 3.0])


def rows() -> list[Row]:
    """The CPU at both loads; its profile is not kept, so times are fitted to one load and held against the other."""
    plan = _plan()
    kept = {load: _kept(load) for load in (FITTED_TO, PREDICTED)}

    def loss(times: Floats) -> float:
        return sum(off.latency for off in _off(plan, times, *kept[FITTED_TO]))

    steps = [START] + [START * (1 + 0.3 * (np.arange(START.size) == k)) for k in range(START.size)]
    fitted = minimize(loss, START, method="Nelder-Mead", options={"maxfev": 220, "initial_simplex": steps}).x
    result = []
    for load in (FITTED_TO, PREDICTED):
        off = _off(plan, fitted, *kept[load])
        note = (
            "six times of steps fitted to this run" if load == FITTED_TO else "predicted with the times fitted at 0.4"
        )
        note += f"; {off[0].requests} requests, bias {off[0].bias:+.1%}, {off[1].bias:+.1%}"
        bar = None if load == FITTED_TO else BAR
        result.append(
            Row("vLLM 0.32 on a CPU", f"kept run, load {load:g}", (off[0].latency, off[1].latency), bar, note)
        )
    return [*result, _closed_loop()]


def _kept(load: float) -> tuple[Trace, Floats, Floats]:
    table = pq.read_table(RESULTS / f"fidelity-{load:g}.parquet")
    columns = {name: table.column(name).to_numpy() for name in table.schema.names}
    trace = Trace(columns["arrival_s"], columns["input_tokens"], columns["output_tokens"])
    return trace, columns["real_ttft_ms"], columns["real_tpot_ms"]


def _off(plan: Plan, times: Floats, trace: Trace, ttft: Floats, tpot: Floats) -> tuple[Deviation, Deviation]:
    fixed, prompt, sequence, context, other, request = np.abs(times)

    def prefill(prompts: Floats, tokens: float) -> tuple[Floats, Floats]:
        return fixed + prompt * prompts * tokens, np.full_like(prompts, other)

    def decode(sequences: Floats, tokens: float) -> tuple[Floats, Floats]:
        return fixed + (sequence + context * tokens) * sequences, np.full_like(sequences, other)

    layers = FunctionTimes(prefill, decode, most_prompts=1, most_sequences=SEQUENCES)
    outcome = simulate(plan, trace, source=lambda model, configuration: layers).requests
    simulated = (np.asarray(outcome["ttft_ms"]) + request, np.asarray(outcome["tpot_ms"], dtype=np.float64))
    return deviation(ttft, simulated[0]), deviation(tpot, simulated[1])


def _plan() -> Plan:
    """The plan of the kept runs: one mixed instance of one node; its figures are not used, its limits are."""

    def grid(batch: list[int]) -> dict[str, Any]:
        times = [[0.5] * len(batch)] * 2
        return {"tokens": [1, 512], "batch": batch, "layer_ms": times, "other_ms": times}

    document = {
        "name": "kept-runs",
        "mode": "mixed",
        "models": {
            "tiny": {
                "model": {
                    **{"layers": 8, "hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "vocab": 512},
                    **{"intermediate": 512, "weight_format": "bf16", "max_position": 2048},
                },
                "slo": {"ttft_ms": 3000, "tpot_ms": 150, "attainment": "mean"},
                "demand": {"requests_s": 0.01, "input_tokens": 160, "output_tokens": 32},
            }
        },
        "gpus": {"CPU": {"memory_gib": 4, "bandwidth_gb_s": 10, "bf16_tflops": 0.1, "link_gb_s": 10}},
        "nodes": {"1xCPU": {"gpu": "CPU", "count": 1, "network_gb_s": 1}},
        "pool": {"regions": {"here": {"configurations": {"1xCPU": {"available": 1, "price_usd_h": 1}}}}},
        "pruning": {"max_nodes": 1, "memory_ratio": 1000},
        "serving": {"preset": "paper", "step_tokens": STEP_TOKENS},
        "throughput": {
            "source": "measured",
            "measured": [
                {
                    **{"model": "tiny", "configuration": "1xCPU", "weight_format": "bf16", "measured_with": "nothing"},
                    **{"prefill": grid([1]), "decode": grid([1, SEQUENCES])},
                }
            ],
        },
    }
    return plan_scenario(scenario_from_mapping(document, source="the kept runs"))


def _closed_loop() -> Row:
    """Published medians of gpt-oss-120b against the silicon tables, mixed steps and the host times of new scenarios."""
    serving = SERVING_PRESETS["engine"]
    step, request = serving.host_step_ms, serving.host_request_ms
    loops = list(closed_loops())
    tpot = np.array([(loop.step_ms + step) / loop.tpot_ms for loop in loops])
    ttft = np.array([(loop.first_ms + loop.steps * step + request) / loop.ttft_ms for loop in loops])
    low, high = np.quantile(tpot, (0.1, 0.9))
    note = f"{len(loops)} rows, medians of absolute deviations; TPOT predicted over measured: median {np.median(tpot):.2f}, "
    note += f"80 % of rows in {low:.2f} to {high:.2f}; TTFT without queues: median {np.median(ttft):.2f}"
    off = float(np.median(np.abs(ttft - 1))), float(np.median(np.abs(tpot - 1)))
    return Row("vLLM, published closed loop", "gpt-oss-120b on H100, H200, B200", off, None, note)
