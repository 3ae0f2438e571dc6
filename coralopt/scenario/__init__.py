"""The user's input: a scenario file or mapping, checked in full, then every name replaced by facts."""

from coralopt.scenario.load import builtin_scenarios, load_scenario, scenario_from_mapping, scenario_schema
from coralopt.scenario.mistakes import LocatedMistake
from coralopt.scenario.resolved import (
    ModelPhase,
    Operations,
    Phase,
    PlacementRules,
    ResolvedScenario,
    RunningInstances,
    Serving,
)

__all__ = [
    "LocatedMistake",
    "ModelPhase",
    "Operations",
    "Phase",
    "PlacementRules",
    "ResolvedScenario",
    "RunningInstances",
    "Serving",
    "builtin_scenarios",
    "load_scenario",
    "scenario_from_mapping",
    "scenario_schema",
]
