"""Section 5.5: cost ratios when the largest (or smallest) third of the models receives 80 % of the requests.

    python -m benchmarks.paper.imbalance --quick --setups core

All requests together stay those of section 5.3; the 20 % left over are split equally among the other models, which the paper
leaves open.
"""

from __future__ import annotations

from benchmarks.paper.experiment import arguments, cost_of, run, save, show, with_rates
from coralopt import load_scenario
from coralopt.workload import request_shares

#: Cost over coral's as printed; "about 10 % cheaper" for small-heavy in core.
PAPER = {
    ("large-heavy", "core", "homo"): 1.82,
    ("large-heavy", "core", "cauchy"): 1.78,
    ("large-heavy", "extended", "homo"): 2.79,
    ("large-heavy", "extended", "cauchy"): 3.47,
    ("small-heavy", "core", "homo"): 1.1,
    ("small-heavy", "core", "cauchy"): 1.1,
    ("small-heavy", "extended", "homo"): 2.34,
    ("small-heavy", "extended", "cauchy"): 1.64,
}


def main() -> None:
    options = arguments(__doc__).parse_args()
    figures = []
    show(f"{'imbalance':<13}{'setup':<9}  {'planner':<26}{'USD/h':>10}{'/ coral':>9}{'paper':>7}{'demand':>8}{'s':>7}")
    for setup in options.setups:
        scenario = load_scenario(setup)
        sizes = {phase.model.name: float(phase.model.total_params) for phase in scenario.model_phases}
        for imbalance in ("large-heavy", "small-heavy"):
            shares = request_shares(sizes, imbalance)
            factors = {name: share * len(sizes) for name, share in shares.items()}
            rows = run(with_rates(scenario, factors), options.planners, options.time_limit, options.seed)
            ours = next(row for row in rows if row.label == "coral")
            for row in rows:
                printed = PAPER.get((imbalance, setup, row.label.partition(":")[0]))
                ratio = cost_of(row) / cost_of(ours)
                show(
                    f"{imbalance:<13}{setup:<9}  {row.label:<26}{cost_of(row):>10.3f}{ratio:>9.3f}{printed or '-':>7}"
                    f"{row.demand_met:>8.0%}{row.seconds:>7.1f}"
                )
                figures.append(
                    {"imbalance": imbalance, "setup": setup, "planner": row.label, "cost_usd_h": cost_of(row)}
                    | {"ratio": ratio, "paper": printed, "demand_met": row.demand_met, "seconds": row.seconds}
                )
    save(options.output, figures)


if __name__ == "__main__":
    main()
