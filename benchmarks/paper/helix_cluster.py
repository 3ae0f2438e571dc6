"""Section 5.6: Helix's "High GPU-Heterogeneity Cluster", 64 GPUs in 42 nodes, Llama 70B.

    python -m benchmarks.paper.helix_cluster --quick

Two comparisons that answer different questions.

1. Helix's own figures: tokens/s of a node as its artifact computes them, no SLO, static throughput. What its published
   layout, its programme run here, its SWARM start, HexGen, and coral's exact placement in stages reach on the same nodes;
   with at most 12 stages (Helix's paths have 15 nodes on average); and without the nodes that the paper's coral leaves idle.
2. This project's figures: coral and the baselines rent from the same nodes (paper: 4 requests/s, 2090 and 730 ms), by the
   roofline model, at list prices in us-east-2. Where 4 requests/s cannot be had, the largest percent of them that can.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.paper.experiment import cost_of, goodput_of, run, save, show
from coralopt.placement import PlacementPool, load_pool, place_pool
from coralopt.planners.helix_starts import swarm_layout
from coralopt.planners.hexgen import hexgen_search
from coralopt.planners.place_helix import helix_problem, place_helix
from coralopt.scenario import ResolvedScenario, scenario_from_mapping

#: Static tokens/s and seconds of Helix's programme (Gurobi 11, 20 threads), as its artifact ships them.
HELIX = (4137.5476, 3002.0)
#: On-demand list prices in us-east-2, USD/h: p4d.24xlarge / 8, p3.2xlarge, g6.xlarge, g4dn.xlarge; larger nodes pro rata.
PRICES = {"A100": 32.7726 / 8, "V100": 3.06, "L4": 0.8048, "T4": 0.526}
#: Names of the pool -> GPU type and count.
NODES = {
    "A100": ("A100", 1),
    "V100": ("V100", 1),
    "L4": ("L4", 1),
    "L4x2": ("L4", 2),
    "T4": ("T4", 1),
    "T4x2": ("T4", 2),
    "T4x4": ("T4", 4),
}
CATALOG = {"A100": "A100-40", "V100": "V100", "L4": "L4", "T4": "T4"}
#: Nodes that the paper's coral leaves idle.
IDLE = {"V100": 6, "T4": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute of Helix's programme instead of ten")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the figures as JSON here")
    options = parser.parse_args()
    pool = load_pool("helix-42")
    figures = static(pool, 60.0 if options.quick else 600.0, options.seed)
    figures += rented(pool, options.seed, 20.0 if options.quick else 120.0)
    save(options.output, figures)


def price(pool: PlacementPool) -> float:
    """USD/h of all nodes of a pool."""
    kinds = [NODES[name] for name in pool.configurations]
    return sum(n * PRICES[gpu] * size for n, (gpu, size) in zip(pool.counts, kinds, strict=True))


def static(pool: PlacementPool, seconds: float, seed: int) -> list[dict[str, object]]:
    """Static throughput on Helix's tables."""
    show(f"{'on all nodes':<42}{'tokens/s':>10}{'bound':>10}{'/ Helix':>9}{'USD/h':>8}{'s':>8}")
    figures: list[dict[str, object]] = []

    def line(what: str, tokens: float, bound: float | None, cost: float, took: float) -> None:
        limit = "-" if bound is None else f"{bound:.1f}"
        show(f"{what:<42}{tokens:>10.1f}{limit:>10}{tokens / HELIX[0]:>9.3f}{cost:>8.2f}{took:>8.1f}")
        figures.append({"what": what, "tokens_s": tokens, "bound": bound, "usd_h": cost, "seconds": took})

    whole = price(pool)
    line("Helix, published (20 threads)", HELIX[0], None, whole, HELIX[1])
    problem = helix_problem(pool)
    swarm = swarm_layout(problem)
    if swarm is not None:
        line("SWARM start", problem.check(swarm).objective, problem.compute_bound, whole, 0.0)
    cold = place_helix(pool, time_limit=seconds, start="none", seed=seed) if seconds > 100 else None
    if cold is not None:
        line("Helix here, HiGHS, no start", cold.throughput, cold.bound, whole, cold.seconds)
    warm = place_helix(pool, time_limit=seconds, seed=seed)
    line("Helix here, HiGHS, from its heuristics", warm.throughput, warm.bound, whole, warm.seconds)
    pipelines = hexgen_search(pool.values, pool.counts, seed=seed)
    line(f"HexGen, {len(pipelines.pipelines)} pipelines", pipelines.throughput, None, whole, 0.0)
    for most in (12, None):
        found = place_pool(pool, max_stages=most)
        name = "coral, stages" if most is None else f"coral, at most {most} stages"
        line(name, found.throughput, found.bound, whole, found.seconds)
    fewer = tuple(n - IDLE.get(name, 0) for name, n in zip(pool.configurations, pool.counts, strict=True))
    part = replace(pool, counts=fewer)
    for most in (12, None):
        found = place_pool(part, max_stages=most)
        name = "coral without 6 V100 and 1 T4" + ("" if most is None else f", <= {most} stages")
        line(name, found.throughput, found.bound, price(part), found.seconds)
    show(f"{price(part) / whole - 1:+.1%} cost without them (paper: -21 %)")
    return figures


def cluster(pool: PlacementPool) -> ResolvedScenario:
    """The paper's set-up as a scenario: the pool's nodes, Llama 70B, 4 requests/s, SLOs 2090 and 730 ms."""
    offered = {}
    for name, count in zip(pool.configurations, pool.counts, strict=True):
        gpu, size = NODES[name]
        offered[f"{size}x{CATALOG[gpu]}"] = {"available": count, "price_usd_h": PRICES[gpu] * size}
    return scenario_from_mapping(
        {
            "name": "helix-cluster",
            "models": {
                "llama3-70b": {
                    "slo": {"prefill_ms": 2090, "decode_ms": 730},
                    # Mean lengths of Helix's sampler.
                    "demand": {"requests_s": 4, "input_tokens": 761.5, "output_tokens": 232.5},
                }
            },
            "pool": {"regions": {"us-east-2": {"configurations": offered}}},
            "throughput": {"source": "roofline"},
            "initialization_penalty": 0,
        },
        source="helix_cluster.py",
    )


def rented(pool: PlacementPool, seed: int, seconds: float) -> list[dict[str, object]]:
    """What coral and the baselines rent from the pool."""
    show(f"\n{'rented from the pool':<26}{'USD/h':>8}{'/ pool':>8}{'of 4 req/s':>12}{'decode tok/s':>14}{'/ 459.8':>9}")
    figures: list[dict[str, object]] = []
    for row in run(cluster(pool), ["coral", "homo", "cauchy", "melange"], seconds, seed):
        cost, goodput = cost_of(row), goodput_of(row)
        show(
            f"{row.label:<26}{cost:>8.2f}{cost / price(pool):>8.2f}{row.demand_met:>12.0%}{goodput:>14.1f}"
            f"{goodput / 459.8:>9.2f}"
        )
        figures.append({"what": row.label, "usd_h": cost, "share": row.demand_met, "decode_tokens_s": goodput})
    show(f"the whole pool costs {price(pool):.2f} USD/h; Helix's online run gave 459.8 decode tokens/s (offline 645.6)")
    return figures


if __name__ == "__main__":
    main()
