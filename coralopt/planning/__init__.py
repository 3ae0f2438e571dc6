"""End-to-end planners: scenario in, plan out, ours and those of others; and the walk through epochs."""

from coralopt.planning.coral import PlanningReport, allocation_problem, plan_scenario, plan_with_report, prove_bound
from coralopt.planning.headroom import queueing_headroom
from coralopt.planning.operators import operator_terms, parse_forbidden, unmet_prices
from coralopt.planning.registry import get_planner, planner_names
from coralopt.planning.request import Planner, PlanOutcome, PlanRequest, demand_met
from coralopt.planning.rolling.adapt import Epoch, EpochSummary, adapt
from coralopt.planning.rolling.demand_file import TraceDemand, demand_of_trace, is_demand_table, read_demand_or_trace
from coralopt.planning.rolling.epochs import EpochInputs, epoch_inputs, epoch_scenario
from coralopt.planning.rolling.forecast import Forecast, LastValue, MovingAverage, Seasonal, forecast_named
from coralopt.planning.verified import Round, VerifiedPlanning, plan_verified, play_again

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
    "Round",
    "Seasonal",
    "TraceDemand",
    "VerifiedPlanning",
    "adapt",
    "allocation_problem",
    "demand_met",
    "demand_of_trace",
    "epoch_inputs",
    "epoch_scenario",
    "forecast_named",
    "get_planner",
    "is_demand_table",
    "operator_terms",
    "parse_forbidden",
    "plan_scenario",
    "plan_verified",
    "plan_with_report",
    "planner_names",
    "play_again",
    "prove_bound",
    "queueing_headroom",
    "read_demand_or_trace",
    "unmet_prices",
]
