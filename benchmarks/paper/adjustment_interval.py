"""Sensitivity to the adjustment interval, and the cost of initialization, horizon.

    python -m benchmarks.paper.adjustment_interval --quick    # core, one hour, three intervals: about a minute
    python -m benchmarks.paper.adjustment_interval            # two hours, six intervals, also with a lead

Demand rises and falls by 40 % within the hour (a sine), so that there is something to follow. Each plan is made for the
mean of what arrives in its epoch. K is the initialization time over the interval; nodes need two minutes to start, then
weights and warm-up, and are paid from the start on (the rent in the table is the simulation's, not the planner's). The
paper prints no table; it says that initialization is below 1 % of the cost when spread over an hour.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.paper.experiment import all_models
from benchmarks.paper.rolling_horizon import INITIALIZATION_S, Rooms, goodput, requests_of, setup, simulate_horizon
from coralopt import load_scenario
from coralopt.planning import PlanRequest, VerifiedSettings, plan_verified
from coralopt.simulation import SimulationConfig
from coralopt.workload import Trace, Traffic

SWING, PERIOD_S = 0.4, 3600.0


def swinging(trace: Trace, minutes: float) -> Trace:
    """The same requests on a clock bent so that their rate swings like 1 + SWING sin(2 pi t / PERIOD_S)."""
    times = np.linspace(0.0, 60 * minutes, 20_001)
    turn = 2 * np.pi / PERIOD_S
    arrived = times + SWING / turn * (1 - np.cos(turn * times))
    # Without whole periods more or fewer requests fit: the clock ends where the trace does.
    arrived *= times[-1] / arrived[-1]
    bent = np.interp(trace.arrival_s, arrived, times)
    return Trace(bent, trace.input_tokens, trace.output_tokens, trace.model, trace.models)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--setup", default="core", choices=["core", "extended"])
    parser.add_argument("--traffic", default="poisson", choices=["poisson", "dataset"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-headroom", action="store_true", help="the paper's planner as it is")
    options = parser.parse_args()
    total = 60.0 if options.quick else 120.0
    rooms: Rooms = {}
    if not options.no_headroom:
        # Learned at the peak: what is enough for the mean demand is not for more (docs/concepts/headroom.md).
        peak = setup(options.setup, factors=all_models(load_scenario(options.setup), 1.0 + SWING))
        found = plan_verified(
            PlanRequest(peak), Traffic(options.traffic, seed=options.seed + 1), VerifiedSettings(0.95)
        )
        rooms = found.plan.scenario.get("headroom", {})
        print(
            f"headroom learned at {1 + SWING:.0%} of the demand ({'verified' if found.verified else 'NOT verified'}):"
        )
        for key, room in rooms.items():
            print(f"  {key}: throughput {room['throughput']:.0%}, latency {room['latency']:.0%}")
    scenario = setup(options.setup, rooms)
    trace = swinging(requests_of(scenario, options.traffic, total, options.seed), total)
    print(f"{options.setup}, {options.traffic} traffic, {total:g} minutes, {len(trace):,} requests")
    print(
        f"{'interval min':>12}{'K':>7}{'lead s':>8}{'plan USD/h':>12}{'init.':>8}{'in an hour':>11}{'rent USD/h':>12}"
        f"{'started':>9}{'goodput':>10}{'met TTFT':>10}{'met TPOT':>10}{'both':>8}{'startup':>9}"
    )
    for minutes in (6, 15, 60) if options.quick else (3, 6, 12, 30, 60, 120):
        for lead in (0.0,) if options.quick else (0.0, 170.0):
            epochs = int(total // minutes)
            if lead and epochs == 1:
                continue
            horizon = simulate_horizon(
                scenario,
                trace,
                60.0 * minutes,
                epochs,
                INITIALIZATION_S / (60.0 * minutes),
                config=SimulationConfig(seed=options.seed),
                lead_s=lead,
            )
            requests = horizon.result.requests
            spent, k = horizon.initialization_usd_h, INITIALIZATION_S / (60 * minutes)
            # The same instances started, spread over an hour as the paper does (K = 0.1).
            hourly = spent / k * 0.1 / (horizon.cost_usd_h - spent + spent / k * 0.1)
            startup = sum(row.causes.get("startup", 0.0) for row in horizon.result.outcomes) / len(
                horizon.result.outcomes
            )
            print(
                f"{minutes:12d}{k:7.2f}{lead:8.0f}{horizon.cost_usd_h:12.2f}"
                + (f"{spent / horizon.cost_usd_h:8.2%}{hourly:11.2%}" if epochs > 1 else f"{'-':>8}{'-':>11}")
                + f"{horizon.result.cost_usd_h:12.2f}{horizon.started:9d}"
                f"{goodput(horizon.result)[0]:10.1f}{requests['met_ttft'].mean():10.1%}{requests['met_tpot'].mean():10.1%}"
                f"{horizon.result.attainment:8.1%}{startup:9.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
