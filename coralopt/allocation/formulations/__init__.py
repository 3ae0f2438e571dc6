"""Formulations of the allocation problem, by name."""

from coralopt.allocation.formulations.paper import PaperFormulation
from coralopt.allocation.formulations.split import SplitFormulation

FORMULATIONS = {"paper": PaperFormulation(), "split": SplitFormulation()}

__all__ = ["FORMULATIONS", "PaperFormulation", "SplitFormulation"]
