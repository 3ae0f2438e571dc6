"""End-to-end planners: scenario in, plan out; and the walk through epochs."""

from coralopt.planners.adapt import Epoch, EpochSummary, adapt
from coralopt.planners.coral import PlanningReport, allocation_problem, plan_scenario, plan_with_report, prove_bound
from coralopt.planners.epochs import EpochInputs, epoch_inputs, epoch_scenario
from coralopt.planners.forecast import Forecast, LastValue, MovingAverage, Seasonal, forecast_named
from coralopt.planners.headroom import queueing_headroom
from coralopt.planners.verified import Round, VerifiedPlanning, plan_verified, play_again

__all__ = [
    "Epoch",
    "EpochInputs",
    "EpochSummary",
    "Forecast",
    "LastValue",
    "MovingAverage",
    "PlanningReport",
    "Round",
    "Seasonal",
    "VerifiedPlanning",
    "adapt",
    "allocation_problem",
    "epoch_inputs",
    "epoch_scenario",
    "forecast_named",
    "plan_scenario",
    "plan_verified",
    "plan_with_report",
    "play_again",
    "prove_bound",
    "queueing_headroom",
]
