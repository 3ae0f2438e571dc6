"""End-to-end planners: scenario in, plan out, ours and those of others; and the rolling horizon."""

from coralopt.planning.alternative import USUAL_SHARE, Alternative, cheapest_that_holds
from coralopt.planning.coral import CoralPlanner, allocation_problem, plan_scenario, prove_bound
from coralopt.planning.headroom import queueing_headroom
from coralopt.planning.one_gpu import cheapest_of_one_gpu
from coralopt.planning.operators import operator_terms, parse_forbidden, unmet_prices
from coralopt.planning.promise.certificate import certify, certify_again, expected_shares
from coralopt.planning.promise.search import asks_for_shares
from coralopt.planning.registry import get_planner, planner_names
from coralopt.planning.request import LibraryUse, Planner, PlanOutcome, PlanRequest, demand_met
from coralopt.planning.rolling.adapt import Epoch, EpochSummary, RollingSettings, adapt, planned_instances
from coralopt.planning.rolling.demand_file import TraceDemand, demand_of_trace, is_demand_table, read_demand_or_trace
from coralopt.planning.rolling.epochs import EpochInputs, epoch_inputs, epoch_scenario
from coralopt.planning.rolling.forecast import Forecast, LastValue, MovingAverage, Seasonal, forecast_named
from coralopt.planning.rolling.perfect import perfect_cost, windows_of
from coralopt.planning.simulated import simulate_again
from coralopt.planning.verified import Round, VerifiedPlanning, VerifiedSettings, plan_verified
from coralopt.planning.warm import WarmState

__all__ = [
    "USUAL_SHARE",
    "Alternative",
    "CoralPlanner",
    "Epoch",
    "EpochInputs",
    "EpochSummary",
    "Forecast",
    "LastValue",
    "LibraryUse",
    "MovingAverage",
    "PlanOutcome",
    "PlanRequest",
    "Planner",
    "RollingSettings",
    "Round",
    "Seasonal",
    "TraceDemand",
    "VerifiedPlanning",
    "VerifiedSettings",
    "WarmState",
    "adapt",
    "allocation_problem",
    "asks_for_shares",
    "certify",
    "certify_again",
    "cheapest_of_one_gpu",
    "cheapest_that_holds",
    "demand_met",
    "demand_of_trace",
    "epoch_inputs",
    "epoch_scenario",
    "expected_shares",
    "forecast_named",
    "get_planner",
    "is_demand_table",
    "operator_terms",
    "parse_forbidden",
    "perfect_cost",
    "plan_scenario",
    "plan_verified",
    "planned_instances",
    "planner_names",
    "prove_bound",
    "queueing_headroom",
    "read_demand_or_trace",
    "simulate_again",
    "unmet_prices",
    "windows_of",
]
