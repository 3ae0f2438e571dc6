"""End-to-end planners: scenario in, plan out; and the walk through epochs."""

from coralopt.planners.adapt import Epoch, EpochSummary, adapt
from coralopt.planners.coral import PlanningReport, allocation_problem, plan_scenario, plan_with_report, prove_bound
from coralopt.planners.demand_file import TraceDemand, demand_of_trace, is_demand_table, read_demand_or_trace
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
    "TraceDemand",
    "adapt",
    "allocation_problem",
    "demand_of_trace",
    "epoch_inputs",
    "epoch_scenario",
    "forecast_named",
    "is_demand_table",
    "operator_terms",
    "parse_forbidden",
    "plan_scenario",
    "plan_with_report",
    "prove_bound",
    "read_demand_or_trace",
    "unmet_prices",
]
