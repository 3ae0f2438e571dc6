"""The user's input: a scenario file or mapping, checked in full, then every name replaced by facts.

The names are loaded on first use: most floors need only :mod:`coralopt.scenario.resolved`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coralopt.scenario.load import builtin_scenarios, load_scenario, scenario_from_mapping, scenario_schema
    from coralopt.scenario.mistakes import LocatedMistake
    from coralopt.scenario.resolved import (
        ModelPhase,
        Operations,
        Phase,
        PlacementRules,
        ResolvedScenario,
        RunningInstances,
    )

_HOME = {
    "LocatedMistake": "mistakes",
    "ModelPhase": "resolved",
    "Operations": "resolved",
    "Phase": "resolved",
    "PlacementRules": "resolved",
    "ResolvedScenario": "resolved",
    "RunningInstances": "resolved",
    "builtin_scenarios": "load",
    "load_scenario": "load",
    "scenario_from_mapping": "load",
    "scenario_schema": "load",
}

__all__ = [
    "LocatedMistake",
    "ModelPhase",
    "Operations",
    "Phase",
    "PlacementRules",
    "ResolvedScenario",
    "RunningInstances",
    "builtin_scenarios",
    "load_scenario",
    "scenario_from_mapping",
    "scenario_schema",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"coralopt.scenario.{_HOME[name]}"), name)
    raise AttributeError(f"module 'coralopt.scenario' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
