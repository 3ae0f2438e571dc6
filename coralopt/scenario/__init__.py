"""The user's input: a scenario file or mapping, checked in full, then every name replaced by facts."""

from coralopt.scenario.facts.facts import PlacementRules, RunningInstances
from coralopt.scenario.facts.operations import Operations
from coralopt.scenario.facts.phases import ModelPhase, Phase
from coralopt.scenario.facts.serving import Serving
from coralopt.scenario.load import builtin_scenarios, load_scenario, scenario_from_mapping, scenario_schema
from coralopt.scenario.mistakes import LocatedMistake
from coralopt.scenario.resolved import ResolvedScenario

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
