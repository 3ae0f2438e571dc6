"""How much headroom should a plan have? Rules compared by cost and by the SLO attainment they buy.

    python benchmarks/headroom.py             # core, Poisson arrivals, lengths with cv 1: about three minutes
    python benchmarks/headroom.py --quick     # one fresh seed instead of five, fewer rules
    python benchmarks/headroom.py --traffic dataset

Every rule makes one plan. It is simulated with the seed that the learned rules see (0) and against fresh ones. `least` is
the model phase with the smallest share of requests that met its SLO; `both` the share of all requests that met both.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Mapping

import numpy as np

from coralopt import Plan, load_scenario, plan_scenario, scenario_from_mapping
from coralopt.planning import PlanRequest, VerifiedSettings, plan_verified, queueing_headroom
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.workload import Traffic

Rooms = Mapping[str, Mapping[str, float]]


def with_headroom(scenario: ResolvedScenario, rooms: Rooms) -> ResolvedScenario:
    """The scenario with this ``headroom`` section."""
    document = copy.deepcopy(dict(scenario.document))
    if rooms:
        document["headroom"] = {key: dict(room) for key, room in rooms.items()}
    return scenario_from_mapping(document, source=scenario.name)


def queueing(scenario: ResolvedScenario, target: float) -> Rooms:
    """Throughput headroom by M/G/1 (prefill) and square-root staffing (decode)."""
    return {phase.key: {"throughput": queueing_headroom(phase, target)} for phase in scenario.model_phases}


def simulated(plan: Plan, scenario: ResolvedScenario, kind: str, seed: int) -> tuple[float, float]:
    """(least attainment of a model phase, share of requests that met both SLOs)."""
    traffic = Traffic(kind, seed=seed)
    result = simulate(plan, traffic.requests(scenario), duration_s=traffic.window_s)
    return min(row.attainment for row in result.outcomes), result.attainment


def row(name: str, plan: Plan, scenario: ResolvedScenario, kind: str, fresh: int, note: str) -> None:
    """One line of the table."""
    seen = simulated(plan, scenario, kind, 0)
    others = np.array([simulated(plan, scenario, kind, seed) for seed in range(1, fresh + 1)])
    print(
        f"{name:34} {plan.cost_usd_h:9.2f} {seen[0]:8.1%} {seen[1]:8.1%} {others[:, 0].mean():8.1%} "
        f"{others[:, 0].min():8.1%} {others[:, 1].mean():8.1%}  {note}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one fresh seed, fewer rules")
    parser.add_argument("--scenario", default="core")
    parser.add_argument("--traffic", default="poisson", choices=("poisson", "dataset"))
    options = parser.parse_args()
    scenario = load_scenario(options.scenario)
    fresh = 1 if options.quick else 5
    print(f"{options.scenario}, {options.traffic} traffic, 300 s; {fresh} fresh seeds")
    print(
        f"{'rule':34} {'USD/h':>9} {'least':>8} {'both':>8} {'least':>8} {'worst':>8} {'both':>8}\n"
        f"{'':34} {'':>9} {'seed 0':>8} {'seed 0':>8} {'fresh':>8} {'fresh':>8} {'fresh':>8}"
    )
    rules: list[tuple[str, Rooms]] = [("none (the paper)", {})]
    for share in (0.5, 1.0) if options.quick else (0.25, 0.5, 1.0, 2.0):
        rules.append((f"throughput {share:.0%} everywhere", {p: {"throughput": share} for p in ("prefill", "decode")}))
    for share in (0.3,) if options.quick else (0.2, 0.4, 0.6):
        rules.append((f"latency {share:.0%} everywhere", {p: {"latency": share} for p in ("prefill", "decode")}))
    if not options.quick:
        both = {p: {"throughput": 1.0, "latency": 0.4} for p in ("prefill", "decode")}
        rules.append(("throughput 100 % and latency 40 %", both))
    for target in (0.95, 0.99):
        rules.append((f"M/G/1, square root, at {target:.0%}", queueing(scenario, target)))
    for name, rooms in rules:
        plan = plan_scenario(with_headroom(scenario, rooms))
        shown = "" if "M/G/1" not in name else ", ".join(f"{room['throughput']:.0%}" for room in rooms.values())
        row(name, plan, scenario, options.traffic, fresh, shown)
    for target in (0.95, 0.99):
        for start in ("none", "M/G/1"):
            begin = time.perf_counter()
            guess = None if start == "none" else {k: r["throughput"] for k, r in queueing(scenario, target).items()}
            settings = VerifiedSettings(target, start=guess or {})
            outcome = plan_verified(PlanRequest(scenario), Traffic(options.traffic), settings)
            first = next((n for n, item in enumerate(outcome.rounds, 1) if item.passed), 0)
            note = (
                f"{'verified' if outcome.verified else 'NOT verified'}, {len(outcome.rounds)} rounds, first passed in "
                f"{first}, {time.perf_counter() - begin:.0f} s"
            )
            row(f"learned for {target:.0%}, from {start}", outcome.plan, scenario, options.traffic, fresh, note)


if __name__ == "__main__":
    main()
