"""The portable plan document: schema, load and save, independent verification, drawing data."""

from coralopt.plan.certificate import Certificate, CertifiedPhase
from coralopt.plan.difference import InstanceChange, PlanDifference, difference
from coralopt.plan.document import (
    Plan,
    PlannedCase,
    PlannedClass,
    PlannedDemand,
    PlannedInstance,
    PlannedNode,
    PlannedNodeClass,
    PlannedOption,
    PlannedShare,
    PlannedStage,
    Simulated,
    SimulatedPhase,
    plan_schema,
)

__all__ = [
    "Certificate",
    "CertifiedPhase",
    "InstanceChange",
    "Plan",
    "PlanDifference",
    "PlannedCase",
    "PlannedClass",
    "PlannedDemand",
    "PlannedInstance",
    "PlannedNode",
    "PlannedNodeClass",
    "PlannedOption",
    "PlannedShare",
    "PlannedStage",
    "Simulated",
    "SimulatedPhase",
    "difference",
    "plan_schema",
]
