"""How fast the simulator is, how much memory it takes, and how both grow with load and cluster size.

    python benchmarks/simulation_speed.py            # about a minute
    python benchmarks/simulation_speed.py --full     # 30 minutes of the extended setup, 25 requests/s a model
    python benchmarks/simulation_speed.py --overload # a request's time at up to 5 times the planned load, 2 minutes

Every row runs in a process of its own, so that peak memory is that of the row. Times are those of `simulate` alone:
sampling of the layer times and collecting the results included, planning and making the requests not. Rates are by CPU
time, so that other work on the machine does not count.

`--overload` simulates the same requests at several loads after one run that only loads the machine code, and prints the
ratio of a request's time to that of the calm run; its target is at most 2 (exit status 1 beyond it). Whole plans and
single prefill and mixed instances show what would grow with a queue, whole plans and mixed instances also with the rules of
engines: least work, hopeless last, preemption.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from coralopt.simulation.config import SimulationConfig

#: (scenario, requests/s a model, factor on the demand planned for, seconds of arrivals).
ROWS: list[tuple[str, float, float, float]] = [
    ("tiny", 1.0, 1.0, 300.0),
    ("core", 10.0, 1.0, 300.0),
    ("core", 10.0, 1.0, 600.0),
    ("core", 10.0, 1.0, 1200.0),
    ("core", 5.0, 1.0, 300.0),
    ("core", 20.0, 2.0, 300.0),
    ("core", 40.0, 4.0, 300.0),
    ("core", 80.0, 8.0, 300.0),
]
#: Loads as multiples of the demand planned for, or of one instance's throughput; the first is the calm one.
LOADS = (0.5, 0.9, 1.0, 1.2, 2.0, 5.0)
#: Rules of routing, order and admission: the scenario's (the paper's), and what engines and routers do.
PAPER = SimulationConfig()
ENGINE = SimulationConfig(routing="least-work", order="hopeless-last", admission="preempt")
#: Most that a request may take under overload, as a multiple of the calm run.
TARGET = 2.0
FULL: list[tuple[str, float, float, float]] = [("extended", 25.0, 1.0, 1800.0)]


def plan_file(scenario: str, factor: float, folder: str, mode: str = "disaggregated") -> Path:
    """A plan for ``factor`` times the scenario's demand, with ample availability, made by a process of its own."""
    from coralopt import load_scenario

    document = json.loads(json.dumps(dict(load_scenario(scenario).document)))
    document["mode"] = mode
    for model in document["models"].values():
        model["demand"]["requests_s"] *= factor
    for region in document["pool"]["regions"].values():
        region.pop("available", None)
        region["configurations"] = dict.fromkeys(region["configurations"], 500)
    source, target = Path(folder) / "scenario.json", Path(folder) / "plan.json"
    source.write_text(json.dumps(document), encoding="utf-8")
    # A gap of a percent plans quickly; the simulation does not care.
    command = ["plan", str(source), "-o", str(target), "--rel-gap", "0.01", "--time-limit", "60"]
    subprocess.run([sys.executable, "-m", "coralopt", *command], check=True, capture_output=True)
    return target


def measure(scenario: str, rate: float, factor: float, duration: float) -> dict[str, Any]:
    """One row, in this process."""
    from coralopt import Plan, scenario_from_mapping
    from coralopt.simulation import simulate
    from coralopt.workload import poisson_for_scenario

    with tempfile.TemporaryDirectory() as folder:
        plan = Plan.load(plan_file(scenario, factor, folder))
    resolved = scenario_from_mapping(plan.scenario, source="the plan's scenario")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    warm = poisson_for_scenario(resolved, rate=rate, duration_s=2.0, seed=1)
    simulate(plan, warm)
    requests = poisson_for_scenario(resolved, rate=rate, duration_s=duration, seed=0)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = simulate(plan, requests, duration_s=duration)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {
        "scenario": scenario,
        "instances": len(result.instances["name"]),
        "nodes": len(result.nodes["label"]),
        "rate": rate,
        "duration": duration,
        "requests": len(requests.arrival_s),
        "events": result.events,
        "batches": int(result.nodes["batches"].sum()),
        "decode_steps": int(result.nodes["decode_tokens"].sum()),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "imports_mb": before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "attainment": result.attainment,
    }


def overload() -> None:
    """A request's CPU time at every load of :data:`LOADS`, in this process, for whole plans and instances alone."""
    from coralopt import Plan, scenario_from_mapping
    from coralopt.simulation import simulate
    from coralopt.workload import poisson_for_scenario

    print(
        f"{'plan':14} {'instances':46} {'requests':>8} "
        + " ".join(f"{f'at {load:g}':>8}" for load in LOADS)
        + "   ratio"
    )
    worst = 0.0
    for name, mode in (("tiny", "disaggregated"), ("core", "disaggregated"), ("tiny", "mixed"), ("core", "mixed")):
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan.load(plan_file(name, 1.0, folder, mode))
        scenario = scenario_from_mapping(plan.scenario, source="the plan's scenario")
        trace = poisson_for_scenario(scenario, rate=10.0, duration_s=600.0, seed=0)
        demand = sum(p.demand_tokens_s for p in scenario.model_phases if p.phase != "decode")
        column = "output_tokens" if mode == "mixed" else "input_tokens"
        cases = [("all", plan, trace, demand, PAPER), ("all, rules of engines", plan, trace, demand, ENGINE)]
        for instance in plan.instances:
            if instance.phase == "decode":
                continue
            mine = trace.model == trace.models.index(instance.model)
            columns = {c: getattr(trace, c)[mine] for c in ("arrival_s", "input_tokens", "output_tokens", "model")}
            if mode != "mixed":
                columns["output_tokens"][:] = 1
            alone = plan.model_copy(update={"instances": (instance.model_copy(update={"count": 1}),)})
            cases.append((instance.name, alone, dataclasses.replace(trace, **columns), instance.tokens_s, PAPER))
            if mode == "mixed":
                cases.append((f"{instance.name[:40]}, engines", *cases[-1][1:4], ENGINE))
        simulate(plan, trace)
        for label, simulated, requests, tokens_s, rules in cases:
            offered = float(getattr(requests, column).sum() / requests.last_arrival_s)
            micros = []
            for load in LOADS:
                timed = dataclasses.replace(requests, arrival_s=requests.arrival_s * offered / (tokens_s * load))
                begin = time.process_time()
                simulate(simulated, timed, config=rules)
                micros.append(1e6 * (time.process_time() - begin) / len(timed))
            ratio = max(micros) / micros[0]
            worst = max(worst, ratio)
            figures = " ".join(f"{micro:8.1f}" for micro in micros)
            print(f"{f'{name} {mode[:5]}':14} {label:46} {len(requests):8,d} {figures} {ratio:7.2f}", flush=True)
    print(f"microseconds of CPU a request; worst ratio to the calm run {worst:.2f}, target at most {TARGET:g}")
    if worst > TARGET:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="only 30 minutes of the extended setup")
    parser.add_argument("--overload", action="store_true", help="only a request's time at up to 5 times the load")
    parser.add_argument("--json", action="store_true", help="one JSON row a line")
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(*options.row)))
        return
    if options.overload:
        overload()
        return
    head = (
        f"{'scenario':9} {'inst.':>5} {'nodes':>5} {'req/s':>6} {'window s':>8} {'requests':>9} {'events':>10} "
        f"{'wall s':>7} {'CPU s':>6} {'req/CPU s':>10} {'x real time':>11} {'peak MB':>8} {'of it imports':>13}"
    )
    if not options.json:
        print(head)
    for row in FULL if options.full else ROWS:
        command = [sys.executable, __file__, "--row", json.dumps(row)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        run = json.loads(done.stdout.splitlines()[-1])
        if options.json:
            print(json.dumps(run), flush=True)
            continue
        print(
            f"{run['scenario']:9} {run['instances']:5d} {run['nodes']:5d} {run['rate']:6g} {run['duration']:8g} "
            f"{run['requests']:9,d} {run['events']:10,d} {run['seconds']:7.2f} {run['cpu_seconds']:6.2f} "
            f"{run['requests'] / run['cpu_seconds']:10,.0f} {run['duration'] / run['cpu_seconds']:11,.0f} "
            f"{run['peak_mb']:8.0f} {run['imports_mb']:13.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
