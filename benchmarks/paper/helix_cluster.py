"""Section 5.6: Helix's "High GPU-Heterogeneity Cluster", 64 GPUs in 42 nodes, Llama 70B.

    python -m benchmarks.paper.helix_cluster --quick

Two comparisons that answer different questions.

1. Helix's own figures: tokens/s of a node as its artifact computes them, no SLO, static throughput. What its published
   layout, its programme run here, its SWARM start, HexGen, and coral's exact placement in stages reach on the same nodes;
   with at most 12 stages (Helix's paths have 15 nodes on average); and without the nodes that the paper's coral leaves idle.
2. This project's figures: coral and the baselines rent from the same nodes (paper: 4 requests/s, 2090 and 730 ms), by the
   roofline model, at list prices in us-east-2. Where 4 requests/s cannot be had, the largest percent of them that can. Each
   plan is then simulated; and coral's, with room to spare, at the load that Helix's online run was offered.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.paper.experiment import cost_of, run, save, show, with_rates
from coralopt.placement import PlacementPool, load_pool, place_pool
from coralopt.planning.compare import Row
from coralopt.planning.rivals.helix_starts import swarm_layout
from coralopt.planning.rivals.hexgen import hexgen_search
from coralopt.planning.rivals.place_helix import helix_problem, place_helix
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.simulation import SimulationConfig, simulate
from coralopt.workload import poisson_for_scenario

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
#: Simulated seconds: long beside the minutes that a request of this model takes.
SECONDS = 3600.0
#: Nodes that the paper's coral leaves idle.
IDLE = {"V100": 6, "T4": 1}


def goodput_of(row: Row) -> float:
    """Generated tokens/s within the SLO that a plan promises, counted up to the demand it was made for."""
    if row.plan is None:
        return 0.0
    return sum(min(d.planned_tokens_s, d.demand_tokens_s) for d in row.plan.demands if d.phase != "prefill")


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
        placed = place_pool(pool, max_stages=most)
        name = "coral, stages" if most is None else f"coral, at most {most} stages"
        line(name, placed.throughput, placed.bound, whole, placed.seconds)
    fewer = tuple(n - IDLE.get(name, 0) for name, n in zip(pool.configurations, pool.counts, strict=True))
    part = replace(pool, counts=fewer)
    for most in (12, None):
        placed = place_pool(part, max_stages=most)
        name = "coral without 6 V100 and 1 T4" + ("" if most is None else f", <= {most} stages")
        line(name, placed.throughput, placed.bound, price(part), placed.seconds)
    show(f"{price(part) / whole - 1:+.1%} cost without them (paper: -21 %)")
    return figures


def cluster(pool: PlacementPool) -> ResolvedScenario:
    """The paper's set-up as a scenario: the pool's nodes, Llama 70B, 4 requests/s, SLOs 2090 and 730 ms."""
    offered, unknown = {}, {}
    for name, count in zip(pool.configurations, pool.counts, strict=True):
        gpu, size = NODES[name]
        # Nodes of L4 are the catalog's; the others get Helix's links of 1e9 bytes/s, and names that the catalog has not.
        node = f"{size}x{CATALOG[gpu]}" if gpu == "L4" else f"helix-{size}x{CATALOG[gpu]}"
        offered[node] = {"available": count, "price_usd_h": PRICES[gpu] * size}
        if gpu != "L4":
            unknown[node] = {"gpu": CATALOG[gpu], "count": size, "network_gb_s": 1.0}
    return scenario_from_mapping(
        {
            "name": "helix-cluster",
            "models": {
                "llama3-70b": {
                    "slo": {"ttft_ms": 2090, "tpot_ms": 730, "attainment": "mean"},
                    # Mean lengths of Helix's sampler.
                    "demand": {"requests_s": 4, "input_tokens": 761.5, "output_tokens": 232.5},
                }
            },
            "pool": {"regions": {"us-east-2": {"configurations": offered}}},
            "nodes": unknown,
            "throughput": {"source": "roofline"},
            "serving": {"preset": "paper"},
            "initialization_penalty": 0,
        },
        source="helix_cluster.py",
    )


def rented(pool: PlacementPool, seed: int, seconds: float) -> list[dict[str, object]]:
    """What coral and the baselines rent from the pool."""
    heads = f"\n{'rented from the pool':<22}{'USD/h':>8}{'/ pool':>8}{'of 4 req/s':>12}{'promised tok/s':>16}"
    show(f"{heads}{'simulated':>11}{'/ 459.8':>9}{'SLO met':>9}")
    figures: list[dict[str, object]] = []
    scenario = cluster(pool)
    for row in run(scenario, ["coral", "homo", "cauchy", "melange"], seconds, seed):
        if row.plan is None:
            show(f"{row.label:<22}{row.error}")
            continue
        # Each plan gets the rate that it was made for: Poisson arrivals, lengths spread with coefficient of variation 1.
        requests = poisson_for_scenario(scenario_from_mapping(row.plan.scenario), None, SECONDS, seed)
        played = simulate(row.plan, requests, config=SimulationConfig(seed=seed))
        decode = next(item for item in played.outcomes if item.kind == "decode")
        cost, goodput = cost_of(row), goodput_of(row)
        show(
            f"{row.label:<22}{cost:>8.2f}{cost / price(pool):>8.2f}{row.demand_met:>12.0%}{goodput:>16.1f}"
            f"{decode.achieved_tokens_s:>11.1f}{decode.achieved_tokens_s / 459.8:>9.2f}{played.attainment:>9.0%}"
        )
        figures.append(
            {"what": row.label, "usd_h": cost, "share": row.demand_met, "decode_tokens_s": goodput}
            | {"simulated_tokens_s": decode.achieved_tokens_s, "attainment": played.attainment}
        )
    show(f"the whole pool costs {price(pool):.2f} USD/h; Helix's online run gave 459.8 decode tokens/s (offline 645.6)")
    return figures + same_load(pool, seed, seconds)


def same_load(pool: PlacementPool, seed: int, seconds: float) -> list[dict[str, object]]:
    """Coral's plans at the load of Helix's online run: 2,150 tokens/s in requests of 994 tokens, 2.16 requests/s."""
    scenario = cluster(pool)
    figures: list[dict[str, object]] = []
    show(f"\n{'at 2.16 requests/s,':<20}{'':>16}{'equal lengths':>22}{'lengths spread (cv 1)':>24}")
    show(f"{'coral, planned for':<20}{'USD/h':>8}{'/ pool':>8}" + f"{'decode tok/s':>14}{'SLO met':>8}" * 2)
    offered = scenario_from_mapping(with_rates(scenario, {"llama3-70b": 2.16 / 4}).document)
    for rate in (2.16, 2.7, 3.24, 3.78):
        row = run(with_rates(scenario, {"llama3-70b": rate / 4}), ["coral"], seconds, seed)[0]
        if row.plan is None or row.demand_met < 1:
            continue
        line = f"{rate:>12.2f} req/s  {cost_of(row):>8.2f}{cost_of(row) / price(pool):>8.2f}"
        for variation in (0.0, 1.0):
            requests = poisson_for_scenario(offered, None, SECONDS, seed, variation)
            played = simulate(row.plan, requests, config=SimulationConfig(seed=seed))
            decode = next(item for item in played.outcomes if item.kind == "decode")
            line += f"{decode.achieved_tokens_s:>14.1f}{played.attainment:>8.0%}"
            figures.append(
                {"what": f"coral for {rate} req/s at 2.16", "usd_h": cost_of(row), "length_cv": variation}
                | {"simulated_tokens_s": decode.achieved_tokens_s, "attainment": played.attainment}
            )
        show(line)
    return figures


if __name__ == "__main__":
    main()
