"""The portable plan document: schema, load and save, independent verification, drawing data."""

from coralopt.plan.document import Plan, PlannedDemand, PlannedInstance, PlannedNode, PlannedStage, plan_schema

__all__ = ["Plan", "PlannedDemand", "PlannedInstance", "PlannedNode", "PlannedStage", "plan_schema"]
