"""Rules of operators with templates on demand, and with whole libraries: cost, gap and seconds, a rule at a time.

    python -m benchmarks.on_demand_rules                              # extended
    python -m benchmarks.on_demand_rules --scenario core --rules replicas instance

Node sets on demand have any number of nodes, so they may cost less than those of a library.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coralopt import load_scenario, plan_scenario, scenario_from_mapping

Document = dict[str, Any]
#: Adds a rule to a document.
Change = Callable[[Document, np.random.Generator], None]


def _of_nodes(change: Callable[[Document, np.random.Generator], None]) -> Change:
    def of_all(document: Document, draw: np.random.Generator) -> None:
        for region in document["pool"]["regions"].values():
            for node in region["configurations"].values():
                change(node, draw)

    return of_all


def _of_models(**rules: object) -> Change:
    def of_all(document: Document, _: np.random.Generator) -> None:
        for model in document["models"].values():
            model.update(copy.deepcopy(rules))

    return of_all


def _of_regions(document: Document, _: np.random.Generator) -> None:
    for region in document["pool"]["regions"].values():
        region["limits"] = {"max_nodes": 12}


def _reserved(node: Document, draw: np.random.Generator) -> None:
    node["reserved"] = int(draw.integers(0, 3)) if draw.random() < 0.3 else 0


def _quota(document: Document, _: np.random.Generator) -> None:
    document["limits"] = {"max_gpus": {"L40S": 24}}


def _running(document: Document, _: np.random.Generator) -> None:
    """What its own plan rents runs already, and half as many requests more come."""
    plan = plan_scenario(scenario_from_mapping(document), options={"rel_gap": 1e-3})
    document["running"] = [
        {"model": item.model, "phase": item.phase, "region": item.region, "nodes": item.nodes(), "count": item.count}
        for item in plan.instances
    ]
    for model in document["models"].values():
        model["demand"]["requests_s"] *= 1.5


RULES: dict[str, Change] = {
    "none": lambda document, draw: None,
    "reserved": _of_nodes(_reserved),
    "nodes of regions": _of_regions,
    "nodes of models": _of_models(limits={"max_nodes": 6}),
    "quota": _quota,
    "replicas": _of_models(min_replicas=2),
    "instance": _of_models(survive_instance_loss=1.0),
    "region": _of_models(survive_region_loss=0.5),
    "running": _running,
}


def measure(name: str, rule: str, time_limit: float) -> str:
    """One row of the table."""
    document: Document = copy.deepcopy(dict(load_scenario(name).document))
    for region in document["pool"]["regions"].values():
        held, available = region["configurations"], region.pop("available", 1)
        region["configurations"] = {
            kind: dict(of) if isinstance(of, dict) else {"available": of}
            for kind, of in (held.items() if isinstance(held, dict) else ((kind, available) for kind in held))
        }
    RULES[rule](document, np.random.default_rng(0))
    cells = [rule]
    for templates in ("every", "on-demand"):
        changed = {key: value for key, value in document.items() if key != "pruning" or templates == "every"}
        scenario = scenario_from_mapping({**changed, "templates": templates})
        started = time.perf_counter()
        plan = plan_scenario(scenario, options={"rel_gap": 1e-3, "time_limit": time_limit})
        cells += [f"{plan.cost_usd_h:.2f}", f"{plan.gap:.2%}", f"{time.perf_counter() - started:.1f}"]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="extended")
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each plan")
    settings = parser.parse_args(arguments)
    print("| rule | library USD/h | gap | s | on demand USD/h | gap | s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for rule in settings.rules:
        print(measure(settings.scenario, rule, settings.time_limit), flush=True)


if __name__ == "__main__":
    main()
