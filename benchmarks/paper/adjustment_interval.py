"""Sensitivity to the adjustment interval, and the cost of initialization, horizon.

    python -m benchmarks.paper.adjustment_interval --quick    # core, one hour, three intervals: about a minute
    python -m benchmarks.paper.adjustment_interval            # two hours, six intervals, also with a lead, three seeds

Demand rises and falls by 40 % within the hour (a sine), so that there is something to follow. Each plan is made for the
mean of what arrives in its epoch. K is the initialization time over the interval; nodes need two minutes to start, then
weights and warm-up, and are paid from the start on (the rent in the table is the simulation's, not the planner's).
Figures are means over the seeds with 95 % confidence intervals (Student's t). The paper prints no table; it says that
initialization is below 1 % of the cost when spread over an hour.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import astuple, dataclass

import numpy as np

from benchmarks.paper.experiment import Estimate, all_models, show
from benchmarks.paper.rolling_horizon import (
    INITIALIZATION_S,
    Rooms,
    SimulatedHorizon,
    goodput,
    requests_of,
    setup,
    simulate_horizon,
)
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


@dataclass(frozen=True)
class Figures:
    """What one seed shows for one interval and lead.

    Attributes:
        plan_usd_h: Mean planned cost of the epochs after the first, initialization included.
        initialization: Share of it; NaN with one epoch only.
        in_an_hour: The same share when these starts are spread over an hour as the paper does (K = 0.1).
        rent_usd_h: Rent in the simulation, where nodes are paid from their start on.
        started: Instances started after the first epoch.
        goodput_tokens_s: Generated tokens/s of requests that met their decode SLO.
        met_ttft: Share of the requests.
        met_tpot: Share of the requests.
        both: Share of the requests.
    """

    plan_usd_h: float
    initialization: float
    in_an_hour: float
    rent_usd_h: float
    started: float
    goodput_tokens_s: float
    met_ttft: float
    met_tpot: float
    both: float

    @classmethod
    def of(cls, horizon: SimulatedHorizon, k: float) -> Figures:
        """Of plans for which starting cost K times their price."""
        requests = horizon.result.requests
        spent = horizon.initialization_usd_h if len(horizon.plans) > 1 else math.nan
        hourly = spent / k * 0.1
        return cls(
            horizon.cost_usd_h,
            spent / horizon.cost_usd_h,
            hourly / (horizon.cost_usd_h - spent + hourly),
            horizon.result.cost_usd_h,
            horizon.started,
            goodput(horizon.result)[0],
            float(requests["met_ttft"].mean()),
            float(requests["met_tpot"].mean()),
            horizon.result.attainment,
        )


def learned(name: str, traffic: str, seed: int) -> Rooms:
    """Headroom for 95 % of the requests at the peak: what is enough for the mean demand is not for more."""
    peak = setup(name, factors=all_models(load_scenario(name), 1.0 + SWING))
    outcome = plan_verified(PlanRequest(peak), Traffic(traffic, seed=seed + 1), VerifiedSettings(0.95))
    rooms: Rooms = outcome.plan.scenario.get("headroom", {})
    return rooms


#: How the figures of a row are called, and written.
COLUMNS = {
    "plan USD/h": ".2f",
    "init.": ".1%",
    "in an hour": ".1%",
    "rent USD/h": ".2f",
    "started": ".0f",
    "goodput": ".0f",
    "TTFT": ".1%",
    "TPOT": ".1%",
    "both": ".1%",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--setup", default="core", choices=["core", "extended"])
    parser.add_argument("--traffic", default="poisson", choices=["poisson", "dataset"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, help="1 with --quick, else 3, from --seed on")
    parser.add_argument("--no-headroom", action="store_true", help="the paper's planner as it is")
    options = parser.parse_args()
    total = 60.0 if options.quick else 120.0
    seeds = range(options.seed, options.seed + (options.seeds or (1 if options.quick else 3)))
    scenarios = [
        setup(options.setup, None if options.no_headroom else learned(options.setup, options.traffic, seed))
        for seed in seeds
    ]
    traces = [
        swinging(requests_of(scenario, options.traffic, total, seed), total)
        for scenario, seed in zip(scenarios, seeds, strict=True)
    ]
    show(
        f"{options.setup}, {options.traffic} traffic, {total:g} minutes, {np.mean([len(t) for t in traces]):,.0f} requests"
    )
    show(f"{'interval min':>12}{'K':>6}{'lead s':>7}" + "".join(f"{name:>15}" for name in COLUMNS))
    for minutes in (6, 15, 60) if options.quick else (3, 6, 12, 30, 60, 120):
        epochs, k = int(total // minutes), INITIALIZATION_S / (60.0 * minutes)
        for lead in (0.0,) if options.quick or epochs == 1 else (0.0, 170.0):
            rows = [
                Figures.of(
                    simulate_horizon(
                        scenario, trace, 60.0 * minutes, epochs, k, config=SimulationConfig(seed=seed), lead_s=lead
                    ),
                    k,
                )
                for scenario, trace, seed in zip(scenarios, traces, seeds, strict=True)
            ]
            estimates = [Estimate.of(column) for column in zip(*map(astuple, rows), strict=True)]
            shown = [
                format(item, f">15{precision}") for item, precision in zip(estimates, COLUMNS.values(), strict=True)
            ]
            show(f"{minutes:12d}{k:6.2f}{lead:7.0f}{''.join(shown)}")


if __name__ == "__main__":
    main()
