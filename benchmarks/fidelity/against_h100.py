"""Our simulator and data-sheet tables against kept runs of vLLM on one H100; nothing is fitted to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.fidelity.rows import Row
from coralopt import Plan, load_scenario, plan_scenario
from coralopt.simulation import simulate
from coralopt.simulation.fidelity import deviation
from coralopt.types import Floats
from coralopt.workload import Trace

RESULTS = Path(__file__).parents[1] / "results"
#: What the servers of the kept runs were planned for.
SCENARIOS = {
    "qwen3-8b": Path(__file__).with_name("one_h100.yaml"),
    "qwen3-30b-a3b": Path(__file__).with_name("one_h100_moe.yaml"),
}
#: Most sequences of each server.
SEQUENCES = 115
AGAINST = "vLLM 0.25 on one H100"
#: Requests of an idle server are this far apart, s.
APART_S = 30.0
KEPT = ("arrival_s", "input_tokens", "output_tokens", "real_ttft_ms", "real_tpot_ms")
SETUPS = {
    "router": "launched with the plan, through its router, vLLM's own graph sizes",
    "default": "vLLM's own graph sizes",
    "graphs": "graphs to 1,536 tokens",
}


def rows() -> list[Row]:
    """Requests one at a time, and Poisson arrivals, as the plans' own simulations predict them from data sheets."""
    plans = {name: _as_served(plan_scenario(load_scenario(path))) for name, path in SCENARIOS.items()}
    table = pq.read_table(RESULTS / "fidelity-h100.parquet").to_pydict()
    runs = dict.fromkeys(zip(table["model"], table["setup"], table["requests_s"], strict=True))
    loaded = [_loaded(plans[run[0]], run, table) for run in runs]
    return [_alone(plans["qwen3-8b"]), *loaded]


def _as_served(plan: Plan) -> Plan:
    instance = plan.instances[0]
    stage = instance.stages[0]
    node = stage.nodes[0].model_copy(update={"batch": SEQUENCES})
    served = instance.model_copy(update={"stages": (stage.model_copy(update={"nodes": (node,)}),)})
    return plan.model_copy(update={"instances": (served,)})


def _alone(plan: Plan) -> Row:
    kept = json.loads((RESULTS / "fidelity-h100-alone.json").read_text(encoding="utf-8"))["requests"]
    trace = Trace(
        np.linspace(0.0, APART_S * (len(kept) - 1), len(kept)),
        np.array([one["input_tokens"] for one in kept]),
        np.array([one["output_tokens"] for one in kept]),
    )
    outcome = simulate(plan, trace).requests
    shares = {}
    for name in ("ttft_ms", "tpot_ms"):
        simulated: Floats = np.asarray(outcome[name], dtype=np.float64)
        shares[name] = np.array([simulated[k] / np.median(one[name]) for k, one in enumerate(kept) if name in one])
    off = [float(np.median(np.abs(share - 1))) for share in shares.values()]
    low, high = shares["ttft_ms"].min(), shares["ttft_ms"].max()
    note = (
        f"prompts of 16 to 8,192 tokens and single sequences; TTFT predicted over measured: {low:.2f} to {high:.2f}, "
    )
    return Row(AGAINST, "qwen3-8b, idle", (off[0], off[1]), None, f"{note}TPOT {shares['tpot_ms'].mean():.2f}")


def _loaded(plan: Plan, run: tuple[str, str, float], table: dict[str, list[Any]]) -> Row:
    own = [row == run for row in zip(table["model"], table["setup"], table["requests_s"], strict=True)]
    real = {name: np.array([value for value, mine in zip(table[name], own, strict=True) if mine]) for name in KEPT}
    trace = Trace(real["arrival_s"], real["input_tokens"], real["output_tokens"])
    outcome = simulate(plan, trace).requests
    ttft, tpot = (
        deviation(real[f"real_{name}"], np.asarray(outcome[name], dtype=np.float64)) for name in ("ttft_ms", "tpot_ms")
    )
    note = f"{SETUPS[run[1]]}; {ttft.requests} requests, bias {ttft.bias:+.1%}, {tpot.bias:+.1%}"
    return Row(AGAINST, f"{run[0]}, {run[2]:g} requests/s of 1000/250", (ttft.latency, tpot.latency), None, note)
