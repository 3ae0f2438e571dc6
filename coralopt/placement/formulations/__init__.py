"""Pyomo formulations of the placement problem for a fixed stage count, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coralopt.placement.formulations.paper import PaperPlacement
from coralopt.placement.formulations.tight import TightFormulation
from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement
from coralopt.solving.problem import Formulation

#: Every formulation of the placement problem by its name.
FORMULATIONS: Mapping[str, Formulation[PlacementProblem, Placement]] = MappingProxyType(
    {formulation.name: formulation for formulation in (PaperPlacement(), TightFormulation())}
)

__all__ = ["FORMULATIONS", "PaperPlacement", "TightFormulation"]
