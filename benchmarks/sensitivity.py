"""The paper's sensitivity figure over (N_max, rho), with a proven bound for node sets of any size.

    python benchmarks/sensitivity.py                                   # GPT-OSS 120B prefill, N_max 2..8 with rho = 2 N_max
    python benchmarks/sensitivity.py --phases all --most-nodes 6       # every model phase of the scenario
    python benchmarks/sensitivity.py --plot sensitivity.svg

For every pair: node sets examined, templates, seconds of the sweep (kernels loaded before), and the most tokens/s for one
USD/h, at the cheapest region's prices, with what is missing to the bound over node sets of any size
(docs/templates.md).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from coralopt_dp import sweep

from coralopt import load_scenario
from coralopt.templates import node_sets_for, phase_bounds
from coralopt.throughput import build_tables, throughput_source


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="extended")
    parser.add_argument("--phases", nargs="+", default=["gpt-oss-120b/prefill"], help="model phases, or all")
    parser.add_argument("--most-nodes", type=int, default=8, help="largest N_max")
    parser.add_argument("--ratio", type=float, default=2.0, help="rho over N_max")
    parser.add_argument("--plot", type=Path, help="draw the first phase here (needs the extra `plot`)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args(given)
    scenario = load_scenario(arguments.scenario)
    source = throughput_source(scenario.throughput_source)
    sold = (scenario.availability > 0) & np.isfinite(scenario.price_usd_h)
    price = np.where(sold, scenario.price_usd_h, np.inf)
    bounds = {key: most for key, most, _ in phase_bounds(scenario)}
    sweep(np.ones((6, 3, 1, 9)) / np.arange(1, 10) * (np.arange(9) > 0), np.arange(1, 7, dtype=np.int8)[:, None])
    lines: list[dict[str, Any]] = []
    head = f"{'model phase':<24}{'N_max':>6}{'rho':>6}{'node sets':>11}{'templates':>11}{'seconds':>9}"
    print(f"{head}{'tokens/s per USD/h':>20}{'to the bound':>14}")
    for phase in scenario.model_phases:
        if arguments.phases != ["all"] and phase.key not in arguments.phases:
            continue
        for nodes in range(1, arguments.most_nodes + 1):
            table = build_tables(source, phase, scenario.configurations, nodes)
            sets = node_sets_for(phase.model, scenario.configurations, nodes, arguments.ratio * nodes)
            if not len(sets):
                continue
            started = time.perf_counter()
            swept = sweep(table.values, sets)
            seconds = time.perf_counter() - started
            usd = np.full(len(sets), np.inf)
            for region in price:
                known = np.isfinite(region)
                here = sets @ np.where(known, region, 0.0)
                here[(sets[:, ~known] > 0).any(axis=1)] = np.inf
                usd = np.minimum(usd, here)
            best = float((swept.throughput / usd).max())
            line = {
                "model_phase": phase.key,
                "max_nodes": nodes,
                "memory_ratio": arguments.ratio * nodes,
                "node_sets": len(sets),
                "templates": int((swept.throughput > 0).sum()),
                "seconds": seconds,
                "best": best,
                "bound": bounds[phase.key],
            }
            lines.append(line)
            missing = max(0.0, 1 - best / bounds[phase.key])
            print(
                f"{phase.key:<24}{nodes:>6}{line['memory_ratio']:>6.0f}{line['node_sets']:>11,}{line['templates']:>11,}"
                f"{seconds:>9.2f}{best:>20,.2f}{missing:>14.2%}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=2) + "\n")
    if arguments.plot:
        plot(lines, arguments.plot)


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Templates, seconds and cost efficiency over the pairs, for the first phase measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [line for line in lines if line["model_phase"] == lines[0]["model_phase"]]
    names = [f"({line['max_nodes']}, {line['memory_ratio']:.0f})" for line in chosen]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    axes[0].semilogy(names, [line["templates"] for line in chosen], "o-", label="templates")
    axes[0].semilogy(names, [line["seconds"] for line in chosen], "s-", label="seconds")
    axes[0].legend()
    axes[1].plot(names, [line["best"] for line in chosen], "o-", label="best template")
    axes[1].axhline(chosen[0]["bound"], color="tab:gray", linestyle="--", label="bound, node sets of any size")
    axes[1].set(ylabel="tokens/s per USD/h", ylim=(0, None))
    axes[1].legend()
    for axis in axes:
        axis.set_xlabel("(N_max, rho)")
        axis.tick_params(axis="x", rotation=30)
        axis.grid(True, alpha=0.3)
    figure.suptitle(lines[0]["model_phase"])
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
