"""Time and memory of the offline stage, and how both grow with N_max, the number of configurations and L.

    python benchmarks/offline_stage.py                     # every table below; some minutes on two cores
    python benchmarks/offline_stage.py --parts whole       # only the twelve libraries of `extended`
    python benchmarks/offline_stage.py --plot growth.svg --json numbers.json

Every line is measured in a process of its own, so that the peak memory is that of the line. Loading (or, the first
time, compiling) the kernels is timed apart, on a family of three node sets; ``sweep s`` is without it. The growth
tables sweep one model phase with rho = infinity, so that the number of node sets is the binomial coefficient alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("whole", "nodes", "configurations", "layers")
HEAD = f"{'measurement':<34}{'node sets':>11}{'templates':>11}{'kernels s':>11}{'sweep s':>9}{'sets/s':>11}{'GiB':>7}"


def warm_up() -> float:
    """Seconds to load or compile all kernels."""
    from coralopt_dp import sweep

    started = time.perf_counter()
    sets = np.array([[1], [2], [3], [4], [5], [6]], dtype=np.int8)
    falling = np.zeros((6, 3, 1, 9))
    falling[..., 1:] = 1.0 / np.arange(1, 9)
    sweep(falling, sets)
    sweep(falling[..., ::-1] * (np.arange(9) > 0), sets)
    return time.perf_counter() - started


def measure(point: dict[str, Any]) -> dict[str, Any]:
    """One line: what ``point`` asks for, in this process."""
    from coralopt_dp import sweep

    from coralopt import load_scenario
    from coralopt.templates import node_sets, obtain_library, scenario_tables
    from coralopt.throughput import build_tables, throughput_source

    scenario = load_scenario(point["scenario"])
    result: dict[str, Any] = {"label": point["label"], "kernels_s": warm_up()}
    started = time.perf_counter()
    if point["part"] == "whole":
        scenario_tables(scenario)
        result["tables_s"] = time.perf_counter() - started
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            library, _ = obtain_library(scenario, Path(folder) / "library.parquet", workers=point["workers"])
            result["seconds"] = time.perf_counter() - started
            result["file_mib"] = (Path(folder) / "library.parquet").stat().st_size / 2**20
        result |= {"node_sets": sum(p.examined for p in library.phases), "templates": len(library)}
    else:
        phase = next(p for p in scenario.model_phases if p.key == point["phase"])
        chosen = scenario.configurations[:: max(1, len(scenario.configurations) // point["configurations"])]
        chosen = chosen[: point["configurations"]]
        scenario = replace(scenario, configurations=chosen)
        table = build_tables(throughput_source(scenario.throughput_source), phase, chosen, point["max_nodes"])
        values = table.values
        if "layers" in point:  # the same curves, sampled at so many layers
            at = np.ceil(np.arange(point["layers"] + 1) * table.layers / point["layers"]).astype(int)
            values = np.ascontiguousarray(values[..., at])
        sets = node_sets([c.memory_gib for c in chosen], point["max_nodes"])
        started = time.perf_counter()
        swept = sweep(values, sets, workers=point["workers"])
        result |= {
            "seconds": time.perf_counter() - started,
            "node_sets": len(sets),
            "templates": int((swept.throughput > 0).sum()),
            "layers": values.shape[3] - 1,
        }
    result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return result


def points(parts: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What to measure."""
    common = {"scenario": arguments.scenario, "phase": arguments.phase, "workers": arguments.workers}
    chosen: list[dict[str, Any]] = []
    if "whole" in parts:
        chosen.append({**common, "part": "whole", "label": f"all of {arguments.scenario}, with Parquet"})
    if "nodes" in parts:
        for nodes in range(2, arguments.most_nodes + 1):
            chosen.append(
                {**common, "part": "nodes", "max_nodes": nodes, "configurations": 20, "label": f"N_max = {nodes}"}
            )
    if "configurations" in parts:
        for count in (2, 4, 5, 10, 20):
            label = f"{count} configurations, N_max = 6"
            chosen.append({**common, "part": "configurations", "max_nodes": 6, "configurations": count, "label": label})
    if "layers" in parts:
        for layers in (12, 24, 48, 96, 192):
            label = f"L = {layers}, N_max = 5"
            chosen.append(
                {**common, "part": "layers", "max_nodes": 5, "configurations": 20, "layers": layers, "label": label}
            )
    return chosen


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Seconds against node sets and against L, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for part, name in (("nodes", "N_max, 20 configurations"), ("configurations", "configurations, N_max = 6")):
        chosen = [line for line in lines if line["part"] == part]
        axes[0].loglog([x["node_sets"] for x in chosen], [x["seconds"] for x in chosen], "o-", label=f"growing {name}")
        for line in chosen:
            text = str(line["max_nodes"] if part == "nodes" else line["configurations"])
            axes[0].annotate(text, (line["node_sets"], line["seconds"]), xytext=(4, -9), textcoords="offset points")
    axes[0].set(xlabel="node sets", ylabel="seconds of the sweep")
    axes[0].legend()
    chosen = [line for line in lines if line["part"] == "layers"]
    axes[1].loglog([x["layers"] for x in chosen], [x["seconds"] for x in chosen], "o-", color="tab:green")
    axes[1].set(xlabel="layers L (N_max = 5)", ylabel="seconds of the sweep")
    for axis in axes:
        axis.grid(True, which="major", alpha=0.3)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="extended")
    parser.add_argument("--phase", default="gpt-oss-120b/prefill", help="model phase of the growth tables")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--most-nodes", type=int, default=8, help="largest N_max")
    parser.add_argument("--workers", type=int, help="threads; all cores by default")
    parser.add_argument("--plot", type=Path, help="draw the growth here (needs the extra `plot`)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure(json.loads(arguments.point))))
        return
    lines: list[dict[str, Any]] = []
    print(HEAD)
    for point in points(arguments.parts, arguments):
        command = [sys.executable, __file__, "--point", json.dumps(point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{point['label']}: {done.stderr.strip().splitlines()[-1]}")
        line = {**point, **json.loads(done.stdout.splitlines()[-1])}
        lines.append(line)
        print(
            f"{line['label']:<34}{line['node_sets']:>11,}{line['templates']:>11,}{line['kernels_s']:>11.1f}"
            f"{line['seconds']:>9.2f}{line['node_sets'] / line['seconds']:>11,.0f}{line['peak_gib']:>7.2f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=2) + "\n")
    if arguments.plot:
        plot(lines, arguments.plot)


if __name__ == "__main__":
    main()
