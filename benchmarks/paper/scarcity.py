"""Section 5.4: cost and goodput when supply is scarce.

    python -m benchmarks.paper.scarcity --quick --setups core

Supply follows the generator of hourly GPU availability (docs/workload.md), scaled to 25 % (core) or 75 % (extended) above
what coral's plan for the demand uses. Where a planner cannot meet all demand, every model's rate is lowered by the same
share until it can, in whole percents. Goodput is generated tokens/s that the plan promises within the SLO; nothing is
simulated.
"""

from __future__ import annotations

import numpy as np

from benchmarks.paper.experiment import all_models, arguments, cost_of, goodput_of, run, save, show, with_rates
from coralopt import load_scenario
from coralopt.planning import PlanRequest, get_planner
from coralopt.workload import PoolHours, PoolScale, load_availability_model, pool_availability
from coralopt.workload.series.availability import RULES, plan_worth

#: (cost of coral / baseline's, goodput of coral / baseline's) as printed.
PAPER = {
    ("core", "homo"): (1.0, 1.24),
    ("core", "cauchy"): (1 / 1.51, 1.0),
    ("extended", "homo"): (1.52, 7.64),
    ("extended", "cauchy"): (1 / 1.25, 2.39),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--epochs", type=int, help="epochs; 2 with --quick, else 6")
    options = parser.parse_args()
    epochs = options.epochs or (2 if options.quick else 6)
    figures = []
    for setup in options.setups:
        scenario = load_scenario(setup)
        demand = with_rates(scenario, all_models(scenario, 1.0))
        ample = get_planner("coral").plan(PlanRequest(demand, options={"time_limit": options.time_limit})).plan
        needed = plan_worth(ample, scenario.configurations)
        supply = pool_availability(
            load_availability_model().sample(24 * 7, options.seed),
            {region: [c.name for c in scenario.configurations] for region in scenario.regions},
            epochs,
            PoolScale(needed, RULES[f"scarce-{setup}"]),
            PoolHours(seed=options.seed),
        )
        show(f"\n{setup}: coral's plan with ample supply uses {needed:g} GPUs")
        show(f"{'epoch':>5}  {'planner':<26}{'GPUs':>6}{'USD/h':>10}{'demand':>9}{'goodput tok/s':>15}{'s':>7}")
        sums: dict[str, list[float]] = {}
        for epoch in range(epochs):
            there = np.array(
                [
                    [
                        supply.count[epoch, supply.regions.index(region), supply.configurations.index(c.name)]
                        if np.isfinite(scenario.price_usd_h[r, k])
                        else 0
                        for k, c in enumerate(scenario.configurations)
                    ]
                    for r, region in enumerate(scenario.regions)
                ],
                dtype=np.int64,
            )
            gpus = int((there * [c.count for c in scenario.configurations]).sum())
            now = with_rates(scenario, all_models(scenario, 1.0), there)
            for row in run(now, options.planners, options.time_limit, options.seed):
                show(
                    f"{epoch:>5}  {row.label:<26}{gpus:>6}{cost_of(row):>10.3f}{row.demand_met:>9.0%}"
                    f"{goodput_of(row):>15.1f}{row.seconds:>7.1f}"
                )
                sums.setdefault(row.label, []).extend([cost_of(row), goodput_of(row)])
                figures.append(
                    {"setup": setup, "epoch": epoch, "planner": row.label, "gpus": gpus, "cost_usd_h": cost_of(row)}
                    | {"demand_met": row.demand_met, "goodput_tokens_s": goodput_of(row), "seconds": row.seconds}
                )
        ours = sums["coral"]
        show(f"{'coral /':<33}{'cost':>8}{'paper':>8}{'goodput':>9}{'paper':>8}")
        for label, values in sums.items():
            if label == "coral":
                continue
            # Epochs in which the baseline has no plan at all count towards goodput and not towards cost.
            had = [k for k, cost in enumerate(values[::2]) if np.isfinite(cost)]
            cost = sum(ours[2 * k] for k in had) / max(sum(values[2 * k] for k in had), 1e-9) if had else np.nan
            theirs = sum(values[1::2])
            goodput = sum(ours[1::2]) / theirs if theirs > 0 else np.inf
            printed = PAPER.get((setup, label.partition(":")[0]))
            words = (f"{printed[0]:.2f}", f"{printed[1]:.2f}") if printed else ("-", "-")
            show(f"{label:<33}{cost:>8.3f}{words[0]:>8}{goodput:>9.3f}{words[1]:>8}")
    save(options.output, figures)


if __name__ == "__main__":
    main()
