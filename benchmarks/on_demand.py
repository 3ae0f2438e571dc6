"""Plans over pools too large to enumerate: templates on demand, with a gap proven over node sets of any size.

    python benchmarks/on_demand.py                                             # 12 models, 4 regions, 40 configurations
    python benchmarks/on_demand.py --models 24 --regions 16 --configurations 80 --rel-gap 0.005
    python benchmarks/on_demand.py --grow models 6 12 24 --grow regions 2 4 8 --plot growth.svg      # growth curves
    python benchmarks/on_demand.py --demand 10 --available 4                   # scarce supply

Models come from the catalog, as often as they are needed, with other lengths each time; configurations are its GPUs, 1 to
16 to a node, prices differ between regions by up to 30 % and nodes are scarce in part, all by seed. Times are CPU
seconds, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coralopt import scenario_from_mapping
from coralopt.allocation import AllocationSearchOptions
from coralopt.catalog import gpus, models, node_configurations
from coralopt.planning import PlanRequest
from coralopt.planning.coral import allocation_problem
from coralopt.planning.on_demand import OnDemandSearch
from coralopt.planning.solve_on_demand import least_cost
from coralopt.scenario import ResolvedScenario
from coralopt.templates import scenario_tables
from coralopt.templates.estimate import count_node_sets

#: USD/h of one GPU, about what clouds ask; a GPU that has none here costs by its memory.
USD_H = {
    "T4": 0.5,
    "V100": 2.5,
    "A10G": 1.0,
    "L4": 0.8,
    "L40S": 1.9,
    "A100": 3.4,
    "H100": 6.9,
    "H200": 8.0,
    "B200": 11.0,
}


def pool_scenario(settings: argparse.Namespace) -> ResolvedScenario:
    """A scenario of this many models, regions and configurations."""
    draw = np.random.default_rng(settings.seed)
    hosts = [(name, count) for count in (1, 2, 4, 8, 3, 6, 16, 12) for name in gpus()][: settings.configurations]
    small = [name for name, model in models().items() if model.weight_bytes < 160e9]
    demands: dict[str, Any] = {}
    for number in range(settings.models):
        # Where the catalog has too few models, each is served again with longer prompts and answers.
        turn, name = number // len(small), small[number % len(small)]
        demands[f"{name}-{turn + 1}" if turn else name] = {
            "model": name,
            "slo": {"ttft_ms": 3000 + 1500 * turn, "tpot_ms": 150, "attainment": "mean"},
            "demand": {
                "requests_s": settings.demand * float(draw.integers(1, 12)),
                "input_tokens": 1000 + 300 * turn,
                "output_tokens": 250 + 25 * turn,
            },
        }
    regions: dict[str, Any] = {}
    for r in range(settings.regions):
        factor = float(draw.uniform(1.0, 1.3))
        regions[f"region-{r}"] = {
            "configurations": {
                f"{count}x{name}": {
                    "available": int(draw.integers(0, settings.available)),
                    "price_usd_h": round(count * factor * USD_H.get(name, gpus()[name].memory_gib / 20), 4),
                }
                for name, count in hosts
            }
        }
    nodes = {
        f"{count}x{name}": {"gpu": name, "count": count, "network_gb_s": 1.5 * count}
        for name, count in hosts
        if f"{count}x{name}" not in node_configurations()
    }
    document = {
        "name": "pool",
        "templates": "on-demand",
        "kv_transfer": "free",
        "serving": {"preset": "paper"},
        "throughput": {"source": "roofline"},
        "models": demands,
        "pool": {"regions": regions},
        **({"nodes": nodes} if nodes else {}),
    }
    return scenario_from_mapping(document)


def measure(settings: argparse.Namespace) -> tuple[str, float, float]:
    """One row: size, cost, gap, CPU seconds, memory; and of these the seconds of the tables and of all."""
    scenario, started = pool_scenario(settings), time.process_time()
    tables = scenario_tables(scenario)
    prepared = time.process_time() - started
    request = PlanRequest(scenario, options={"rel_gap": settings.rel_gap, "time_limit": settings.time_limit})
    search = OnDemandSearch(request, tables, partial(allocation_problem, scenario), AllocationSearchOptions())
    library, served = least_cost(search)
    seconds, peak = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    memory = tuple(configuration.memory_gib for configuration in scenario.configurations)
    sets = count_node_sets(memory, 6, [math.inf])[0][-1] * len(scenario.model_phases)
    row = (
        f"| {settings.models} | {settings.regions} | {len(scenario.configurations)} | {settings.demand:g} | {sets:.1e} "
        f"| {len(library):,} | {served.result.cost_usd_h:,.2f} | {served.result.gap:.2%} | {prepared:,.0f} "
        f"| {seconds:,.0f} | {peak:.1f} |"
    )
    return row, prepared, seconds


def plot(curves: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> None:
    """CPU seconds over what grows: all, and the throughput tables alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(3 * len(curves), 3), layout="constrained", squeeze=False)
    for axis, (what, points) in zip(axes[0], curves.items(), strict=True):
        values, prepared, seconds = zip(*points, strict=True)
        axis.loglog(values, seconds, "o-", label="all")
        axis.loglog(values, prepared, "s--", label="throughput tables")
        axis.set(xlabel=what, ylabel="CPU seconds")
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--regions", type=int, default=4)
    parser.add_argument("--configurations", type=int, default=40)
    parser.add_argument("--demand", type=float, default=1.0, help="times 1 to 11 requests/s of each model")
    parser.add_argument(
        "--available", type=int, default=12, help="fewer nodes than this of a configuration in a region"
    )
    parser.add_argument("--rel-gap", type=float, default=0.005)
    parser.add_argument("--time-limit", type=float, help="seconds for the search, without the throughput tables")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--grow",
        nargs="+",
        action="append",
        metavar=("WHAT", "VALUE"),
        help="models, regions, configurations or demand, and values; may be repeated",
    )
    parser.add_argument("--plot", type=Path, help="draw what grows here (needs the extra `plot`)")
    settings = parser.parse_args(arguments)
    heads = (
        "models, regions, configurations, demand, node sets up to 6, templates, USD/h, gap, tables CPU s, CPU s, GiB"
    )
    print("| " + heads.replace(", ", " | ") + " |\n" + "| --- " * 11 + "|")
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for what, *values in settings.grow or [["models", settings.models]]:
        for value in values:
            number = float(value) if what == "demand" else int(value)
            row, prepared, seconds = measure(argparse.Namespace(**{**vars(settings), what: number}))
            curves.setdefault(what, []).append((float(value), prepared, seconds))
            print(row, flush=True)
    if settings.plot:
        plot(curves, settings.plot)


if __name__ == "__main__":
    main()
