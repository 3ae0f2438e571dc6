"""What each freedom saves and each rule costs: one scenario with and without it, cost proven, attainment simulated.

Usage: python benchmarks/freedoms.py [--write docs/freedoms.md] [ROW ...]

Every row is a built-in scenario and two changes of its document; with ``--write`` the table of the page is replaced.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coralopt.errors import CoraloptError
from coralopt.planning import CoralPlanner, PlanRequest
from coralopt.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from coralopt.simulation import simulate
from coralopt.workload import poisson_for_scenario

#: Seconds of Poisson arrivals that every plan is simulated with.
SIMULATED_S = 120.0
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
#: Keys of a mapping are changed one by one, any other value as a whole.
Change = Mapping[str, Any]  # JSON of scenarios


@dataclass(frozen=True)
class Row:
    """A scenario without and with a freedom or a rule.

    Attributes:
        name: What is free, or asked for.
        scenario: A built-in scenario.
        without, given: Changes of its document.
    """

    name: str
    scenario: str
    without: Change
    given: Change


def _quota(**gpus: int) -> Change:
    return {"limits": {"max_gpus": gpus}}


def _floor(quality: float, **shares: float) -> Change:
    return {"models": {"phi4-14b": {"demand": {"min_quality": quality, "min_shares": shares}}}}


def _only(variant: str) -> Change:
    return _floor(0.95, **{variant: 1.0})


#: All single-L40S nodes of both regions of ``core`` decode phi4-14b.
BUSY: Change = {
    "running": [
        {"model": "phi4-14b", "phase": "decode", "region": region, "nodes": {"1xL40S": 1}, "count": 16}
        for region in ("us-east-2", "ap-northeast-2")
    ]
}

#: As demanded, three times as much on one day of ten, a quarter at night.
CASES: Change = {
    "demand_cases": {
        "usual": {"probability": 0.7},
        "launch": {"probability": 0.1, "factor": 3},
        "night": {"probability": 0.2, "factor": 0.25},
    }
}
MISSED: Change = {"models": {"*": {"unmet": {"usd_per_1000_requests": 2.0}}}}

COMMITTED: Change = {
    "horizon_h": 8760,
    "pool": {
        "regions": {
            "us-east-2": {
                "configurations": {
                    "1xL40S": {"available": 8, "commitment": {"nodes": 4, "price_usd_h": 1.2, "term_h": 8760}}
                }
            }
        }
    },
}

WITHIN: Change = {"kv_transfer": "region", "egress": None}

#: ``operator`` without its rules.
RULES_OFF: Change = {
    "models": {"*": {"survive_instance_loss": None}},
    "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 16}}}},
    "limits": None,
    "horizon_h": None,
    "start": None,
}

#: All requests of ``classes`` as one, with the means of all.
ONE_CLASS: Change = {
    "models": {
        "llama3.1-8b-instruct": {
            "demand": {"classes": None, "requests_s": 18.3948, "input_tokens": 1768.0, "output_tokens": 87.8}
        }
    }
}

#: What requests for the adapters of ``adapters`` would ask for if each were a checkpoint of its own.
_ADAPTED = load_scenario("adapters").document["models"]["llama3.1-8b-instruct"]
OWN_CHECKPOINTS: Change = {
    "models": {
        "llama3.1-8b-instruct": {"lora": None},
        **{
            name: {
                "model": "llama3.1-8b-instruct",
                "slo": _ADAPTED["slo"],
                "demand": {**_ADAPTED["demand"], "requests_s": adapter["requests_s"]},
            }
            for name, adapter in _ADAPTED["lora"]["adapters"].items()
        },
    }
}

#: First tokens of ``longtail`` within a minute: time for the weights of other models to come and go.
PATIENT: Change = {"models": {"*": {"slo": {"ttft_ms": 60_000}}}}


def _sharing(*ways: str) -> Change:
    return {"sharing": {"ways": list(ways), "swap_gb_s": 12.0 if "swapping" in ways else None}}


ROWS = (
    Row("several GPU types, not one (L40S)", "core", _quota(L4=0, A10G=0), {}),
    Row("replicas of several nodes", "core", {"pruning": {"max_nodes": 1}}, {}),
    Row("mode auto, not disaggregated", "core", {}, {"mode": "auto"}),
    Row("mode auto, not disaggregated", "extended", {}, {"mode": "auto"}),
    Row("mode auto, not disaggregated", "auto", {"mode": "disaggregated"}, {}),
    Row("caches within a region, not anywhere for nothing", "core", {}, {"kv_transfer": "region"}),
    Row("caches within a region, not anywhere for nothing", "extended", {}, {"kv_transfer": "region"}),
    Row("caches priced, not within a region", "extended", {"kv_transfer": "region"}, {"kv_transfer": "priced"}),
    Row("caches priced (0.0004 USD/GB), not within a region", "routes", WITHIN, {}),
    Row("quota of 4 L40S", "core", {}, _quota(L40S=4)),
    Row("up to 4 L40S by the year at 1.20 USD/h, for a year", "variants", {}, COMMITTED),
    Row("variants at a mean quality of 0.993, not the best one", "variants", _only("ngram"), {}),
    Row("variants at a mean quality of 0.98, not 16 bits", "variants", _only("bf16"), _floor(0.98)),
    Row("classes of requests, not one of mean lengths", "classes", ONE_CLASS, {}),
    Row("N+1: any one instance may be lost", "core", {}, {"models": {"*": {"survive_instance_loss": 1.0}}}),
    Row("starting before stopping, all 1xL40S in use", "core", BUSY, {**BUSY, "transition": "start-first"}),
    Row("quota, N+1 of 80 %, 4 committed L40S and start costs together", "operator", RULES_OFF, {}),
    Row("start costs by template, not K = 0.1", "core", {}, {"start": {"load_gb_s": 0.31}}),
    Row("40 % of the prompt tokens found in caches", "core", {}, {"models": {"*": {"demand": {"prefix_hit": 0.4}}}}),
    Row(
        "37 % of the prompt tokens found in caches",
        "prefix",
        {"models": {"*": {"demand": {"prefix_hit": 0.0}}}},
        {},
    ),
    Row("shared nodes, not one model each", "longtail", {"sharing": None}, {}),
    Row("shared nodes in MIG slices, not one model each", "longtail", {"sharing": None}, _sharing("slices")),
    Row(
        "shared nodes with swapped weights (12 GB/s), TTFT 60 s, not one model each",
        "longtail",
        {**PATIENT, "sharing": None},
        {**PATIENT, **_sharing("swapping")},
    ),
    Row("shared nodes in all three ways, TTFT 60 s, not steps in turn alone", "swapping", _sharing("turns"), {}),
    Row("one base with 12 LoRA adapters, not 13 checkpoints", "adapters", OWN_CHECKPOINTS, {}),
    Row("demand in three cases: all served, or 2 USD per 1,000 requests missed", "core", CASES, {**CASES, **MISSED}),
    Row("two replicas of each phase", "tiny", {}, {"models": {"*": {"min_replicas": 2}}}),
)


def changed(document: Any, change: Any) -> Any:  # JSON
    """A document with a change; ``*`` stands for every key, and what becomes ``None`` is left out."""
    if not isinstance(change, Mapping):
        return change
    own = document if isinstance(document, Mapping) else {}
    keys = list(own) if "*" in change else list(change)
    merged = {**own, **{key: changed(own.get(key), change.get(key, change.get("*"))) for key in keys}}
    return {key: value for key, value in merged.items() if value is not None}


def figures(scenario: ResolvedScenario, arriving: ResolvedScenario) -> tuple[float, float, float, float]:
    """Cost in USD/h, proven gap, share of simulated requests within both SLOs, processor seconds of the plan.

    The requests are those of ``arriving``, the same for both plans of a row where both serve the same models.
    """
    request = PlanRequest(scenario, options={"rel_gap": 1e-3, "time_limit": 120}).warmed()
    begin = time.process_time()
    plan = CoralPlanner().plan(request).plan
    seconds = time.process_time() - begin
    served = [{phase.served for phase in item.model_phases} for item in (scenario, arriving)]
    arriving = arriving if served[0] == served[1] else scenario
    result = simulate(plan, poisson_for_scenario(arriving, duration_s=SIMULATED_S, seed=1))
    return plan.cost_usd_h, plan.gap, result.attainment, seconds


def line(row: Row) -> str:
    """One line of the table."""
    document, cells, costs = dict(load_scenario(row.scenario).document), [row.name, f"`{row.scenario}`"], []
    arriving = scenario_from_mapping(changed(document, row.given))
    for change in (row.without, row.given):
        try:
            cost, gap, attainment, seconds = figures(scenario_from_mapping(changed(document, change)), arriving)
            costs.append(cost)
            cells.append(f"{cost:,.4f} ({gap:.3%}; {attainment:.1%}; {seconds:.1f} s)")
        except CoraloptError as error:
            cells.append(f"none: {str(error).splitlines()[0]}")
    cells.append(f"{1 - costs[1] / costs[0]:+.1%}" if len(costs) == 2 else "")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("rows", nargs="*", type=int, help="positions of the rows, from 0; all by default")
    given = parser.parse_args()
    lines = ["| freedom or rule | scenario | without it | with it | saved |", "| --- | --- | --- | --- | ---: |"]
    for position in given.rows or range(len(ROWS)):
        lines.append(line(ROWS[position]))
        print(lines[-1], file=sys.stderr, flush=True)
    if given.write is None:
        print("\n".join(lines))
        return
    head, _, rest = given.write.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    given.write.write_text("\n".join([head + BEGIN, "", *lines, "", END + tail]), encoding="utf-8")


if __name__ == "__main__":
    main()
