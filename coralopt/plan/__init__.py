"""The portable plan document: schema, load and save, independent verification, drawing data."""

from coralopt.plan.certificate import Certificate, CertifiedPhase
from coralopt.plan.difference import InstanceChange, PlanDifference, difference
from coralopt.plan.document import Plan, plan_schema
from coralopt.plan.parts import (
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
