"""Section 5.3: hourly cost of the baselines over coral's with ample supply, core and extended.

    python -m benchmarks.paper.cost_ratio --quick

Demand is the paper's rate for every model, constant; the full run adds multiples of it, which shows how much of a ratio is
the last replica of each model phase. Supply is that of the built-in scenarios, ample for every method.
"""

from __future__ import annotations

from benchmarks.paper.experiment import all_models, arguments, cost_of, run, save, show, with_rates
from coralopt import load_scenario

#: Cost over coral's as printed: all models, and the model with the largest part of the cost.
PAPER = {
    ("core", "homo", "all"): 1.62,
    ("core", "cauchy", "all"): 1.60,
    ("core", "homo", "qwen3-32b"): 2.02,
    ("core", "cauchy", "qwen3-32b"): 1.88,
    ("extended", "homo", "all"): 3.14,
    ("extended", "cauchy", "all"): 2.66,
    ("extended", "homo", "qwen3-235b"): 4.93,
    ("extended", "cauchy", "qwen3-235b"): 4.08,
}
LARGEST = {"core": "qwen3-32b", "extended": "qwen3-235b"}


def main() -> None:
    parser = arguments(__doc__)
    options = parser.parse_args()
    factors = [1.0] if options.quick else [0.5, 1.0, 2.0, 4.0]
    figures = []
    heads = f"{'setup':<9}{'rate':>5}  {'planner':<26}{'USD/h':>10}{'/ coral':>9}{'paper':>7}"
    show(f"{heads}{'largest / coral':>17}{'paper':>7}{'s':>7}")
    for setup in options.setups:
        scenario = load_scenario(setup)
        for factor in factors:
            rows = run(
                with_rates(scenario, all_models(scenario, factor)), options.planners, options.time_limit, options.seed
            )
            ours = next(row for row in rows if row.label == "coral")
            for row in rows:
                name, largest = row.label.partition(":")[0], LARGEST[setup]
                ratio = cost_of(row) / cost_of(ours)
                mine = cost_of(row, largest) / cost_of(ours, largest)
                printed = [PAPER.get((setup, name, part)) if factor == 1.0 else None for part in ("all", largest)]
                show(
                    f"{setup:<9}{factor:>5g}  {row.label:<26}{cost_of(row):>10.3f}{ratio:>9.3f}{printed[0] or '-':>7}"
                    f"{mine:>17.3f}{printed[1] or '-':>7}{row.seconds:>7.1f}"
                )
                figures.append(
                    {"setup": setup, "rate": factor, "planner": row.label, "cost_usd_h": cost_of(row), "ratio": ratio}
                    | {"largest": largest, "ratio_largest": mine, "demand_met": row.demand_met, "seconds": row.seconds}
                    | {"coral_bound_usd_h": row.bound_usd_h, "paper": printed[0], "paper_largest": printed[1]}
                )
    save(options.output, figures)


if __name__ == "__main__":
    main()
