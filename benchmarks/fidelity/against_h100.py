"""Our simulator and data-sheet tables against a kept run of vLLM on one H100; nothing is fitted to it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.fidelity.rows import Row
from coralopt import Plan, load_scenario, plan_scenario
from coralopt.simulation import simulate
from coralopt.simulation.fidelity import deviation
from coralopt.types import Floats
from coralopt.workload import Trace

RESULTS = Path(__file__).parents[1] / "results"
#: What the server of the kept run was planned for and launched with.
SCENARIO = Path(__file__).with_name("one_h100.yaml")
AGAINST = "vLLM 0.25 on one H100"
#: Requests of an idle server are this far apart, s.
APART_S = 30.0


def rows() -> list[Row]:
    """Requests one at a time, and Poisson arrivals, as the plan's own simulation predicts them from data sheets."""
    plan = plan_scenario(load_scenario(SCENARIO))
    return [_alone(plan), _loaded(plan)]


def _alone(plan: Plan) -> Row:
    kept = json.loads((RESULTS / "fidelity-h100-alone.json").read_text(encoding="utf-8"))["requests"]
    trace = Trace(
        np.linspace(0.0, APART_S * (len(kept) - 1), len(kept)),
        np.array([one["input_tokens"] for one in kept]),
        np.array([one["output_tokens"] for one in kept]),
    )
    played = simulate(plan, trace).requests
    shares = {}
    for name in ("ttft_ms", "tpot_ms"):
        simulated: Floats = np.asarray(played[name], dtype=np.float64)
        shares[name] = np.array([simulated[k] / np.median(one[name]) for k, one in enumerate(kept) if name in one])
    off = [float(np.median(np.abs(share - 1))) for share in shares.values()]
    low, high = shares["ttft_ms"].min(), shares["ttft_ms"].max()
    note = (
        f"prompts of 16 to 8,192 tokens and single sequences; TTFT predicted over measured: {low:.2f} to {high:.2f}, "
    )
    return Row(AGAINST, "qwen3-8b, idle", (off[0], off[1]), None, f"{note}TPOT {shares['tpot_ms'].mean():.2f}")


def _loaded(plan: Plan) -> Row:
    table = pq.read_table(RESULTS / "fidelity-h100.parquet")
    real = {name: table.column(name).to_numpy() for name in table.schema.names}
    trace = Trace(real["arrival_s"], real["input_tokens"], real["output_tokens"])
    played = simulate(plan, trace).requests
    ttft, tpot = (
        deviation(real[f"real_{name}"], np.asarray(played[name], dtype=np.float64)) for name in ("ttft_ms", "tpot_ms")
    )
    note = f"predicted from data sheets; {ttft.requests} requests, bias {ttft.bias:+.1%}, {tpot.bias:+.1%}"
    return Row(AGAINST, "qwen3-8b, 7 requests/s of 1000/250", (ttft.latency, tpot.latency), None, note)
