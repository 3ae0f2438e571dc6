"""End-to-end planners: scenario in, plan out, ours and those of others; and the walk through epochs."""

from coralopt.planners.adapt import Epoch, EpochSummary, adapt
from coralopt.planners.coral import PlanningReport, allocation_problem, plan_scenario, plan_with_report, prove_bound
from coralopt.planners.epochs import EpochInputs, epoch_inputs, epoch_scenario
from coralopt.planners.forecast import Forecast, LastValue, MovingAverage, Seasonal, forecast_named
from coralopt.planners.interface import Planner, PlanOutcome, PlanRequest, demand_met
from coralopt.planners.registry import get_planner, planner_names

__all__ = [
    "Epoch",
    "EpochInputs",
    "EpochSummary",
    "Forecast",
    "LastValue",
    "MovingAverage",
    "PlanOutcome",
    "PlanRequest",
    "Planner",
    "PlanningReport",
    "Seasonal",
    "adapt",
    "allocation_problem",
    "demand_met",
    "epoch_inputs",
    "epoch_scenario",
    "forecast_named",
    "get_planner",
    "plan_scenario",
    "plan_with_report",
    "planner_names",
    "prove_bound",
]
