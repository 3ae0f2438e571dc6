"""End-to-end planners: scenario in, plan out; and the walk through epochs."""

from coralopt.planners.adapt import Epoch, EpochSummary, adapt
from coralopt.planners.coral import PlanningReport, allocation_problem, plan_scenario, plan_with_report, prove_bound
from coralopt.planners.epochs import EpochInputs, epoch_inputs, epoch_scenario
from coralopt.planners.forecast import Forecast, LastValue, MovingAverage, Seasonal, forecast_named
from coralopt.planners.operators import operator_terms, parse_forbidden, unmet_prices

__all__ = [
    "Epoch",
    "EpochInputs",
    "EpochSummary",
    "Forecast",
    "LastValue",
    "MovingAverage",
    "PlanningReport",
    "Seasonal",
    "adapt",
    "allocation_problem",
    "epoch_inputs",
    "epoch_scenario",
    "forecast_named",
    "operator_terms",
    "parse_forbidden",
    "plan_scenario",
    "plan_with_report",
    "prove_bound",
    "unmet_prices",
]
