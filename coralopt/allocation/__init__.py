"""The online stage: how many of each serving template to deploy where, at least cost (paper section 4.3)."""

from coralopt.allocation.explain import Explanation, Shortfall, explain
from coralopt.allocation.formulations import matrix_from_arrays
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import Reduced, Reduction, reduce_problem
from coralopt.allocation.solve import AllocationResult, AllocationState, solve_allocation

__all__ = [
    "Allocation",
    "AllocationProblem",
    "AllocationResult",
    "AllocationState",
    "Explanation",
    "Reduced",
    "Reduction",
    "Shortfall",
    "explain",
    "matrix_from_arrays",
    "reduce_problem",
    "solve_allocation",
]
