"""The portable plan document: schema, load and save, independent verification, drawing data."""

from coralopt.plan.difference import InstanceChange, PlanDifference, difference
from coralopt.plan.document import (
    Plan,
    PlannedDemand,
    PlannedInstance,
    PlannedNode,
    PlannedNodeClass,
    PlannedOption,
    PlannedStage,
    Simulated,
    SimulatedPhase,
    plan_schema,
)

__all__ = [
    "InstanceChange",
    "Plan",
    "PlanDifference",
    "PlannedDemand",
    "PlannedInstance",
    "PlannedNode",
    "PlannedNodeClass",
    "PlannedOption",
    "PlannedStage",
    "Simulated",
    "SimulatedPhase",
    "difference",
    "plan_schema",
]
