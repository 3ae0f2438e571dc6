"""What free latency budgets gain, what a restricted engine costs, and what real links take, on all models of a scenario.

    python benchmarks/beyond_the_paper.py --scenario extended --max-nodes 4

Every line is one model phase under one placement rule, against the paper's rules on the same node sets:
``served``: templates under the rule over those without it; ``mean`` and ``best gain``: relative change of throughput over
the node sets served by both; ``best tokens/s per USD/h``: of the best template, at the price of the cheapest region, and its
change. For ``link``: ``as planned`` is the mean throughput that the paper's placements really give over real links,
relative to what they promise; ``mean`` is the same for placements that know the links.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from coralopt import load_scenario
from coralopt.placement import throughput_of
from coralopt.scenario import scenario_from_mapping
from coralopt.templates import (
    TemplateLibrary,
    build_library,
    placement_tables,
    scenario_tables,
    template_prices,
)

RULES: dict[str, dict[str, Any]] = {
    "free budgets, 1 unit": {"latency_budgets": "free", "budget_units": 1},
    "free budgets, 2 units": {"latency_budgets": "free", "budget_units": 2},
    "free budgets, 4 units": {"latency_budgets": "free", "budget_units": 4},
    "link": {"network": "link"},
    "same-tp": {"engine": "same-tp"},
    "one-node-stages": {"engine": "one-node-stages"},
    "equal-replicas": {"engine": "equal-replicas"},
    "vllm": {"engine": "vllm"},
}


def best_efficiency(library: TemplateLibrary, scenario: Any, key: str) -> float:
    """Most tokens/s for one USD/h."""
    price, _ = template_prices(library, scenario, key)
    throughput = library.by_key[key].throughput
    return float((throughput / price).max()) if len(price) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="extended")
    parser.add_argument("--max-nodes", type=int, default=4)
    parser.add_argument(
        "--rules", nargs="+", choices=list(RULES), default=[r for r in RULES if r != "free budgets, 1 unit"]
    )
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    document = dict(load_scenario(arguments.scenario).document)
    document["pruning"] = {**document["pruning"], "max_nodes": arguments.max_nodes}
    document["placement"] = {}
    scenario = scenario_from_mapping(document)
    started = time.perf_counter()
    plain = build_library(scenario)
    print(f"paper: {len(plain):,} templates in {time.perf_counter() - started:.1f} s, N_max = {arguments.max_nodes}")
    lines = []
    for rule in arguments.rules:
        changed = scenario_from_mapping({**document, "placement": RULES[rule]})
        started = time.perf_counter()
        library = build_library(changed)
        seconds = time.perf_counter() - started
        print(f"\n{rule}: {len(library):,} templates in {seconds:.1f} s")
        print(
            f"{'model phase':<24}{'served':>8}{'mean':>9}{'best gain':>11}{'tokens/s per USD/h':>22}"
            f"{'change':>9}{'as planned':>12}"
        )
        planned = really(plain, changed) if rule == "link" else {}
        for phase in plain.phases:
            other = library.by_key[phase.key]
            known = {u.tobytes(): t for u, t in zip(phase.usage, phase.throughput, strict=True)}
            ratio = np.array(
                [
                    t / known[u.tobytes()]
                    for u, t in zip(other.usage, other.throughput, strict=True)
                    if u.tobytes() in known
                ]
            )
            before, after = (best_efficiency(x, scenario, phase.key) for x in (plain, library))
            line = {
                "rule": rule,
                "model_phase": phase.key,
                "served": len(other) / max(len(phase), 1),
                "mean": float(ratio.mean() - 1) if len(ratio) else float("nan"),
                "best_gain": float(ratio.max() - 1) if len(ratio) else float("nan"),
                "before": before,
                "after": after,
                "as_planned": planned.get(phase.key),
            }
            lines.append(line)
            real = f"{line['as_planned']:>12.2%}" if line["as_planned"] is not None else ""
            print(
                f"{phase.key:<24}{line['served']:>8.1%}{line['mean']:>9.2%}{line['best_gain']:>11.1%}"
                f"{before:>11,.1f}{after:>11,.1f}{after / before - 1:>9.2%}{real}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=2) + "\n")


def really(plain: TemplateLibrary, linked: Any) -> dict[str, float]:
    """What the paper's placements give over real links, relative to what they promise, by model phase."""
    values, coupling = placement_tables(linked, scenario_tables(linked))
    assert coupling is not None
    relative = {}
    for phase, table in zip(plain.phases, values, strict=True):
        real = [throughput_of(table, phase.placement(row), coupling) for row in range(len(phase))]
        relative[phase.key] = float((np.array(real) / phase.throughput).mean() - 1)
    return relative


if __name__ == "__main__":
    main()
