"""Plans for a share of requests: rent, proven bound, certificate and time; and a plan again with capacities known.

Usage: python benchmarks/promise.py [SCENARIO ...]
"""

from __future__ import annotations

import sys
import time

from coralopt.planning import CoralPlanner, PlanRequest, certify
from coralopt.scenario import load_scenario


def main(names: list[str]) -> None:
    """Plan each scenario twice and print its figures; times are processor seconds."""
    for name in names:
        scenario = load_scenario(name)
        for turn in ("first", "again"):
            start = time.process_time()
            outcome = CoralPlanner().plan(PlanRequest(scenario, settings={"certify": False}))
            plan, seconds = outcome.plan, time.process_time() - start
            print(
                f"{name} {turn}: rent {plan.provisioning_usd_h:.4f} USD/h, objective {plan.cost_usd_h:.4f}, proven lower "
                f"bound {plan.lower_bound_usd_h:.4f}, gap {plan.gap:.2%}, {seconds:.1f} s "
                f"(library {outcome.steps['library']:.1f} s of wall time)",
                flush=True,
            )
        start = time.process_time()
        mark = certify(plan)
        print(f"{name}: certified {mark.holds}, {time.process_time() - start:.1f} s")
        for phase in mark.phases:
            shares = f"{phase.mean:.3%} in [{phase.low:.3%}, {phase.high:.3%}]"
            print(f"  {phase.model} {phase.kind}: {shares}, {len(phase.shares)} windows, {phase.verdict}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["tiny", "core-slo"])
