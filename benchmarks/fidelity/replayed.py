"""One trace against real servers of vLLM on this machine's CPU, and against the simulator (paper, section 5.2).

A tiny seeded model is made and profiled with vLLM's own bench (`coralopt profile`), planned for with the measured times,
launched with `coralopt launch`, router included; a trace is replayed, and simulated. Steps whose files lie in the folder
already are not done again. Needs ten minutes and a quiet machine; the program is vLLM's CPU build with pandas beside it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity.replay import Replay, replay
from benchmarks.fidelity.rows import Row
from coralopt import Plan, load_scenario, plan_scenario
from coralopt.catalog import read_checkpoint
from coralopt.profiling import (
    Point,
    ProfileOptions,
    measured_node,
    profile_with_vllm,
    read_bench_files,
    save_measurements,
)
from coralopt.simulation import simulate
from coralopt.simulation.fidelity import deviation
from coralopt.throughput import build_tables, throughput_source
from coralopt.workload import Trace

ROOT = Path(__file__).resolve().parents[2]
LOADS, SECONDS, SEED = (0.4, 0.7), 80.0, 0
BAR = (0.10, 0.15)
#: Mean lengths of the trace, tokens; lognormal with the coefficient of variation 0.5, cut at the ends.
INPUT, OUTPUT, CV = 160.0, 32.0, 0.5
INPUT_ENDS, OUTPUT_ENDS = (32, 480), (4, 96)
PROFILE = ProfileOptions(
    layers=(2, 8),
    # A mixed instance computes the prompts of a step in one pass.
    prompts=(1,),
    prompt_tokens=(32, 128, 512),
    sequences=(1, 4, 16),
    contexts=(128, 512),
    repeats=8,
    device="cpu",
    threads=1,
)
#: As `coralopt launch start --cpu` starts it, so that the profile is of the same engine.
FLAGS = ("--enforce-eager", "--kv-cache-memory-bytes", "256M")


def rows(program: str, folder: Path) -> list[Row]:
    """A row a load; one that says why where servers cannot be run.

    Args:
        program: vLLM's CPU build.
        folder: For everything that is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model"
    if not (model / "config.json").exists():
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        script = ROOT / "tests" / "vllm" / "make_model.py"
        python = str(Path(program).with_name("python"))
        subprocess.run([python, str(script), str(model)], check=True, env=clean, stdout=subprocess.DEVNULL)
    measured = folder / "measured.json"
    if not measured.exists():
        points, note = profile(folder, model, program)
        save_measurements(measured, measured_node(read_checkpoint(model).architecture("tiny"), "1xCPU", note, points))
    return [_row(program, folder, load) for load in LOADS]


def _row(program: str, folder: Path, load: float) -> Row:
    plan, rate = make_plan(folder, load)
    trace = make_trace(rate, SECONDS, SEED)
    answered = folder / f"replay-{load:g}.json"
    if not answered.exists():
        answered.write_text(json.dumps(run_servers(folder, program, folder / "model", trace, SEED)))
    record = json.loads(answered.read_text())
    result, real = simulate(plan, trace), record["replay"]
    ttft, tpot = (
        deviation(np.array(real[name], dtype=np.float64), np.asarray(result.requests[name], dtype=np.float64)).latency
        for name in ("ttft_ms", "tpot_ms")
    )
    node = json.loads((folder / "measured.json").read_text())["nodes"][0]
    alone = node["decode"]["other_ms"][0][0] + 8 * node["decode"]["layer_ms"][0][0]
    note = f"{len(trace.arrival_s)} requests, {len(real['errors'])} failed; one sequence, ms a token: profile {alone:.2f}, "
    note += f"before {record['probe_before_ms']:.2f}, after {record['probe_after_ms']:.2f}; "
    note += f"load average {record['load_average'][0]:.1f} to {record['load_average'][1]:.1f}"
    return Row("vLLM on this CPU", f"Qwen3 blocks, load {load:g}", (ttft, tpot), BAR, note)


def profile(folder: Path, model: Path, vllm: str) -> tuple[list[Point], str]:
    """Measured points; vLLM's bench files of an earlier run that could not be fitted are read again."""
    said = folder / "measured-with.txt"
    summaries = sorted((folder / "bench").rglob("summary.csv"))
    if summaries and said.exists():
        return read_bench_files(summaries[-1:])[0], said.read_text()
    print("profiling, several minutes", flush=True)
    points, note = profile_with_vllm(str(model.absolute()), PROFILE, vllm, FLAGS, keep=folder / "bench")
    said.write_text(note)
    return points, note


def make_plan(folder: Path, load: float) -> tuple[Plan, float]:
    """The plan for one CPU node, and the request rate that is ``load`` of its throughput."""
    document: dict[str, Any] = {
        "name": "fidelity",
        "mode": "mixed",
        "models": {
            "tiny": {
                "model": {
                    "layers": 8,
                    "hidden": 256,
                    "heads": 8,
                    "kv_heads": 4,
                    "head_dim": 32,
                    "vocab": 512,
                    "intermediate": 512,
                    "weight_format": "bf16",
                    "max_position": 2048,
                },
                "slo": {"ttft_ms": 3000, "tpot_ms": 150, "attainment": "mean"},
                "demand": {"requests_s": 0.01, "input_tokens": INPUT, "output_tokens": OUTPUT},
            }
        },
        "gpus": {"CPU": {"memory_gib": 4, "bandwidth_gb_s": 10, "bf16_tflops": 0.1, "link_gb_s": 10}},
        "nodes": {"1xCPU": {"gpu": "CPU", "count": 1, "network_gb_s": 1}},
        "pool": {"regions": {"here": {"configurations": {"1xCPU": {"available": 1, "price_usd_h": 1}}}}},
        "pruning": {"max_nodes": 1, "memory_ratio": 1000},
        "serving": {"preset": "paper"},
        "throughput": {"source": "measured", "measured": ["measured.json"]},
    }
    path = folder / "scenario.json"
    path.write_text(json.dumps(document))
    scenario = load_scenario(path)
    source = throughput_source(scenario.throughput_source)
    throughput = float(build_tables(source, scenario.model_phases[0], scenario.configurations, 1).values[0, 0, 0, -1])
    rate = load * throughput / OUTPUT
    document["models"]["tiny"]["demand"]["requests_s"] = rate
    path.write_text(json.dumps(document))
    plan = plan_scenario(load_scenario(path))
    plan.save(folder / "plan.json")
    return plan, rate


def make_trace(rate: float, seconds: float, seed: int) -> Trace:
    """Poisson arrivals, lognormal lengths."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1 / rate, int(rate * seconds * 2) + 50))
    arrivals = arrivals[arrivals < seconds]
    sigma = np.sqrt(np.log(1 + CV * CV))

    def lengths(mean: float, ends: tuple[int, int]) -> Any:
        drawn = np.rint(draw.lognormal(np.log(mean) - sigma * sigma / 2, sigma, len(arrivals)))
        return np.clip(drawn, *ends).astype(np.int64)

    return Trace(arrivals, lengths(INPUT, INPUT_ENDS), lengths(OUTPUT, OUTPUT_ENDS))


def run_servers(folder: Path, vllm: str, model: Path, trace: Trace, seed: int) -> dict[str, Any]:
    """Launch the plan, replay, stop; what came of every request and of the probes before and after."""
    arguments = [sys.executable, "-m", "coralopt", "launch", "start", "plan.json", "--cpu", "--json"]
    arguments += [
        "--vllm",
        vllm,
        "--kv-cache",
        "256M",
        "--max-model-len",
        "1024",
        "--model-path",
        f"tiny={model.absolute()}",
    ]
    arguments += ["--vllm-option=--no-enable-prefix-caching", "--port", "0", "-o", "run"]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with (folder / "said").open("w") as said:
        controller = subprocess.Popen(
            arguments, cwd=folder, env={**os.environ, **quiet}, stdout=subprocess.PIPE, stderr=said, text=True
        )
    try:
        assert controller.stdout is not None
        lines = []
        for line in controller.stdout:
            lines.append(line)
            if line == "}\n":
                break
        url = json.loads("".join(lines))["router"]
        print(f"replaying {len(trace.arrival_s)} requests against {url}", flush=True)
        probe = Trace(np.linspace(0.0, 7.5, 6), np.full(6, 112), np.full(6, 33))
        asyncio.run(replay(url, "tiny", Trace(np.zeros(4), np.full(4, 100), np.full(4, 8)), 512, seed=seed + 1))
        before = asyncio.run(replay(url, "tiny", probe, 512, seed=seed + 2))
        load_before = os.getloadavg()[0]
        replayed = asyncio.run(replay(url, "tiny", trace, 512, seed=seed))
        load_after = os.getloadavg()[0]
        after = asyncio.run(replay(url, "tiny", probe, 512, seed=seed + 3))
    finally:
        controller.send_signal(signal.SIGINT)
        try:
            controller.wait(180)
        except subprocess.TimeoutExpired:
            controller.kill()
    return {
        "replay": _plain(replayed),
        "probe_before_ms": float(np.nanmedian(before.tpot_ms)),
        "probe_after_ms": float(np.nanmedian(after.tpot_ms)),
        "load_average": [load_before, load_after],
        "when": time.strftime("%Y-%m-%d"),
    }


def _plain(replayed: Replay) -> dict[str, Any]:
    data = dataclasses.asdict(replayed)
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in data.items()}
