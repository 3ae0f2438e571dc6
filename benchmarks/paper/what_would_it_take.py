"""Section 5.3, inverse: which assumptions make the paper's ratios of 3.14 (homo) and 2.66 (cauchy) true?

    python -m benchmarks.paper.what_would_it_take --quick
    python -m benchmarks.paper.what_would_it_take --times 1 2 3 4 6 8 --prices 1 1.5 2 --output map.json

Our ratios are smaller (``cost_ratio``). Three assumptions could differ, and this script maps the ratio over them:

* ``--times F``: a layer on a node with 8 GPUs takes F times as long as in our tables (both sources, every model), as with
  tensor parallelism that a profile shows to scale badly;
* ``--prices F``: such a node costs F times our price;
* what replica a baseline may choose: pipelines of equal nodes (``any``), one node (``one node``), and, as the paper prints
  of its baselines, one node of 8 GPUs for Qwen3-235B and one node for other models (``paper``).

coral always plans with everything, under the same times and prices. The last lines say at which factor on the times, by
linear interpolation between those tried, each baseline's ratio reaches the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.paper.experiment import all_models, arguments, cost_of, run, save, show, with_rates
from coralopt import load_scenario
from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.scenario import scenario_from_mapping
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.throughput import LayerTimes
from coralopt.throughput.layer_times import SlowerTimes
from coralopt.throughput.sources import SOURCES, AutoSource

PAPER = {"homo": 3.14, "cauchy": 2.66}
LARGEST, LARGE_NODE = "qwen3-235b", 8


@dataclass(frozen=True)
class LargeNodesSlower(SlowerTimes):
    """Times of a node with 8 GPUs under an assumption."""

    @property
    def provenance(self) -> str:
        return f"{self.plain.provenance}; assumed {self.factor:g} times as long"


class Assumed(AutoSource):
    """The usual source, slower on nodes with 8 GPUs."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def times(self, model: ModelArchitecture, configuration: NodeConfiguration) -> LayerTimes:
        plain = super().times(model, configuration)
        if configuration.count < LARGE_NODE or self.factor == 1.0:
            return plain
        return LargeNodesSlower(plain, self.factor)


def steady(scenario: ResolvedScenario, price_factor: float) -> ResolvedScenario:
    """The scenario without charges for starting, its nodes of 8 GPUs at another price."""
    large = [configuration.count >= LARGE_NODE for configuration in scenario.configurations]
    price = scenario.price_usd_h.copy()
    price[..., large] *= price_factor
    priced = scenario.with_supply(scenario.availability, price)
    return with_rates(priced, all_models(priced, 1.0))


def parts(setup: str, price_factor: float) -> tuple[ResolvedScenario, ResolvedScenario]:
    """The largest model on nodes with 8 GPUs only, and all other models; supply is ample, so they do not compete."""
    document = load_scenario(setup).document
    models = document["models"]
    alone, others = (
        scenario_from_mapping({**document, "models": {name: models[name] for name in names}})
        for names in ([LARGEST], [name for name in models if name != LARGEST])
    )
    small = [configuration.count < LARGE_NODE for configuration in alone.configurations]
    availability = alone.availability.copy()
    availability[..., small] = 0
    alone = alone.with_supply(availability, alone.price_usd_h)
    return steady(alone, price_factor), steady(others, price_factor)


def ratios(setup: str, price_factor: float, time_limit: float, seed: int) -> Mapping[str, float]:
    """Cost over coral's by baseline and by what it may choose; NaN where it has no plan for all demand."""
    scenario = load_scenario(setup)
    free = steady(scenario, price_factor)
    rows = {
        row.label: row
        for row in run(
            free,
            ["coral", "homo", "homo:homogeneous=node", "cauchy", "cauchy:homogeneous=node"],
            time_limit,
            seed,
        )
    }
    tied: dict[str, float] = dict.fromkeys(PAPER, 0.0)
    for part in parts(setup, price_factor):
        for row in run(part, ["homo:homogeneous=node", "cauchy:homogeneous=node"], time_limit, seed):
            tied[row.label.partition(":")[0]] += cost_of(row) if row.share == 1.0 else math.nan
    ours = cost_of(rows["coral"])
    figures = {"coral": ours, "qwen3-235b coral": cost_of(rows["coral"], LARGEST)}
    for name in PAPER:
        for choice, label in (("any", name), ("one node", f"{name}:homogeneous=node")):
            row = rows[label]
            figures[f"{name}, {choice}"] = cost_of(row) / ours if row.share == 1.0 else math.nan
        figures[f"{name}, paper"] = tied[name] / ours
    return figures


def crossing(points: list[tuple[float, float]], level: float) -> float:
    """The factor at which a ratio first reaches a level, linear between the points; NaN where it never does."""
    last: tuple[float, float] | None = None
    for factor, ratio in sorted(points):
        if ratio >= level:
            if last is None or ratio == last[1]:
                return factor
            return last[0] + (level - last[1]) / (ratio - last[1]) * (factor - last[0])
        if not math.isnan(ratio):
            last = (factor, ratio)
    return math.nan


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--times", nargs="+", type=float, help="factors on layer times of nodes with 8 GPUs")
    parser.add_argument("--prices", nargs="+", type=float, help="factors on their prices")
    options = parser.parse_args()
    times = options.times or ([1.0, 2.0, 4.0] if options.quick else [1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    prices = options.prices or ([1.0] if options.quick else [1.0, 1.5, 2.0])
    heads = [f"{name}, {choice}" for name in PAPER for choice in ("any", "one node", "paper")]
    show(f"{'setup':<9}{'price x':>8}{'time x':>7}{'coral':>9}" + "".join(f"{head:>18}" for head in heads))
    figures: list[dict[str, object]] = []
    usual = SOURCES["auto"]
    try:
        for setup in [setup for setup in options.setups if setup == "extended"] or options.setups:
            for price in prices:
                points: dict[str, list[tuple[float, float]]] = {head: [] for head in heads}
                for factor in times:
                    SOURCES["auto"] = lambda factor=factor: Assumed(factor)  # type: ignore[misc]
                    row = ratios(setup, price, options.time_limit, options.seed)
                    show(
                        f"{setup:<9}{price:>8g}{factor:>7g}{row['coral']:>9.2f}"
                        + "".join(f"{row[head]:>18.2f}" for head in heads)
                    )
                    figures.append({"setup": setup, "price": price, "times": factor, **row})
                    for head in heads:
                        points[head].append((factor, row[head]))
                for head in heads:
                    level = PAPER[head.partition(",")[0]]
                    at = crossing(points[head], level)
                    reached = f"times x {at:.2f}" if not math.isnan(at) else f"none of times x {times}"
                    show(f"  {head}: {level} reached at {reached}, prices x {price:g}")
    finally:
        SOURCES["auto"] = usual
    save(options.output, figures)


if __name__ == "__main__":
    main()
