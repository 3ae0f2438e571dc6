"""End-to-end planners: scenario in, plan out."""

from coralopt.planners.coral import PlanningReport, allocation_problem, plan_scenario, plan_with_report, prove_bound

__all__ = ["PlanningReport", "allocation_problem", "plan_scenario", "plan_with_report", "prove_bound"]
