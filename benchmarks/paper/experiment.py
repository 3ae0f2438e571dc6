"""What the scripts of this folder share: scenarios of an experiment, planners on them, ratios to coral."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.plan.certificate import error_of_mean
from coralopt.planning import PlanRequest
from coralopt.planning.compare import Comparison, Contestant, Row, compare
from coralopt.planning.rolling.epochs import epoch_scenario
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.types import Ints

#: Ours, the paper's two baselines under each meaning of "homogeneous", and the best that homogeneous replicas can do.
PLANNERS = (
    "coral",
    "homo",
    "homo:homogeneous=node",
    "cauchy",
    "cauchy:homogeneous=node",
    "melange",
)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % confidence interval.

    Attributes:
        mean: The mean; NaN without any figure.
        half: Half the width of the interval (Student's t); NaN with fewer than two figures.
    """

    mean: float
    half: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Estimate:
        """From one figure a seed; seeds without one (NaN) are left out."""
        there = [figure for figure in figures if not math.isnan(figure)]
        if not there:
            return cls(math.nan, math.nan)
        mean = float(np.mean(there))
        if len(there) < 2 or math.isinf(mean):
            return cls(mean, math.nan)
        # Both sides may be missed, each with half of 5 %.
        return cls(mean, error_of_mean(there, 0.95, 2))

    def __format__(self, spec: str) -> str:
        """``12.3 ± 0.4``; ``spec`` is an alignment and width, then the precision and type of both figures."""
        width, _, precision = spec.partition(".")
        figures = [f"{figure:.{precision}}" for figure in (self.mean, self.half) if not math.isnan(figure)]
        return format(" ± ".join(figures) or "-", width)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="minutes instead of tens of minutes")
    parser.add_argument("--setups", nargs="+", default=["core", "extended"], choices=["core", "extended"])
    parser.add_argument("--planners", nargs="+", default=list(PLANNERS))
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each plan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the figures as JSON here")
    return parser


def with_rates(
    scenario: ResolvedScenario, factors: Mapping[str, float], availability: Ints | None = None
) -> ResolvedScenario:
    """The scenario with each model's requests/s times a factor, in the steady state: nothing is charged for starting.

    The paper amortizes initialization over epochs and finds it below 1 % of the cost for all methods (section 5.3).
    """
    demand = np.array([phase.demand_tokens_s * factors[phase.model.name] for phase in scenario.model_phases])
    there = scenario.availability if availability is None else availability
    return epoch_scenario(scenario, demand, there, scenario.price_usd_h, (), penalty=0.0, name=scenario.name)


def all_models(scenario: ResolvedScenario, factor: float) -> dict[str, float]:
    """One factor for every model."""
    return {phase.model.name: factor for phase in scenario.model_phases}


def run(scenario: ResolvedScenario, planners: Sequence[str], time_limit: float, seed: int) -> Comparison:
    """Plans of the planners; progress on standard error."""
    return compare(
        PlanRequest(scenario, options={"time_limit": time_limit}, seed=seed),
        [Contestant.parse(text) for text in planners],
        on_start=lambda label: print(f"  {label} ...", end="", flush=True, file=sys.stderr),
        on_row=_told,
    )


def _told(row: Row) -> Row:
    print(f" {row.seconds:.1f} s", file=sys.stderr)
    return row


def cost_of(row: Row, model: str | None = None) -> float:
    """USD/h of a plan, or of one model in it; NaN without a plan."""
    if row.plan is None:
        return math.nan
    return sum(d.cost_usd_h for d in row.plan.demands if model is None or d.model == model)


def show(text: str) -> None:
    print(text, flush=True)


def save(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the figures, first beside the file, then renamed."""
    if path is None:
        return
    temporary = path.with_suffix(path.suffix + ".part")
    plain = [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]
    temporary.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
