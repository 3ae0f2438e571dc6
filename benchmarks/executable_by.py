"""What it costs to plan only what stock vLLM runs as it is: USD/h of plans with and without that restriction.

    python benchmarks/executable_by.py                    # core and extended, disaggregated and mixed
    python benchmarks/executable_by.py core --gap 1e-6

For each scenario and mode: the optimum over all placements (`any`), over those of every engine limit by itself, and over
those of `vllm`, which has them all. "refused" counts the planned instances that stock vLLM cannot run.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from coralopt import load_scenario
from coralopt.errors import CoraloptError
from coralopt.planning import CoralPlanner, PlanRequest
from coralopt.runtime import VllmEngine, check
from coralopt.scenario import scenario_from_mapping

ENGINES = ("any", "same-tp", "equal-replicas", "vllm")


def measure(name: str, mode: str, engine: str, gap: float) -> dict[str, Any]:
    """One plan; ``cost`` is ``None`` where there is none."""
    base = load_scenario(name)
    document = {**base.document, "mode": mode}
    document["placement"] = {**document.get("placement", {}), "engine": engine}
    started = time.perf_counter()
    row: dict[str, Any] = {"scenario": name, "mode": mode, "engine": engine, "cost": None}
    try:
        scenario = scenario_from_mapping(document, source=name)
        outcome = CoralPlanner().plan(PlanRequest(scenario, options={"rel_gap": gap}))
    except CoraloptError as error:
        return {**row, "why": str(error).splitlines()[0], "seconds": time.perf_counter() - started}
    plan, used = outcome.plan, outcome.library
    assert used is not None
    verdicts = check(plan, VllmEngine()).verdicts
    return {
        **row,
        "cost": plan.cost_usd_h,
        "bound": plan.lower_bound_usd_h,
        "instances": sum(item.count for item in plan.instances),
        "refused": sum(i.count for i, v in zip(plan.instances, verdicts, strict=True) if not v.runs),
        "reasons": sorted({reason.code for verdict in verdicts for reason in verdict.reasons}),
        "templates": used.templates,
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Print a table in Markdown, row by row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=["core", "extended"])
    parser.add_argument("--gap", type=float, default=1e-9, help="relative gap to prove")
    parser.add_argument("--modes", nargs="*", default=["disaggregated", "mixed"])
    arguments = parser.parse_args()
    print("| scenario | mode | placements | USD/h | more | proven bound | instances | of them refused by vLLM | s |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: |")
    for name in arguments.scenarios:
        for mode in arguments.modes:
            free = None
            for engine in ENGINES:
                row = measure(name, mode, engine, arguments.gap)
                head = f"| {name} | {mode} | `{engine}` |"
                if row["cost"] is None:
                    print(f"{head} none | | | | {row['why']} | {row['seconds']:.1f} |", flush=True)
                    continue
                free = row["cost"] if free is None else free
                refused = f"{row['refused']}" + (f" ({', '.join(row['reasons'])})" if row["reasons"] else "")
                print(
                    f"{head} {row['cost']:.4f} | {100 * (row['cost'] / free - 1):+.2f} % | {row['bound']:.4f} | "
                    f"{row['instances']} | {refused} | {row['seconds']:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
