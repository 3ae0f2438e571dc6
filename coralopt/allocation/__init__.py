"""The online stage: how many of each serving template to deploy where, at least cost (paper section 4.3)."""

from coralopt.allocation.check import unmet_demand
from coralopt.allocation.explain import Explanation, MissedRow, Shortfall, explain
from coralopt.allocation.formulations import matrix_from_arrays
from coralopt.allocation.names import readable_names
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import Reduced, Reduction, reduce_problem
from coralopt.allocation.row_use import RowUse, row_uses
from coralopt.allocation.scaling import LargestFactor, largest_factor
from coralopt.allocation.session import AllocationSession
from coralopt.allocation.side_rows import SideRow
from coralopt.allocation.solve import AllocationResult, AllocationState, solve_allocation
from coralopt.allocation.supply import SupplyClass, pieces_of, taken
from coralopt.allocation.unmet import OnInfeasible, Served, solve_or_serve_less

__all__ = [
    "Allocation",
    "AllocationProblem",
    "AllocationResult",
    "AllocationSession",
    "AllocationState",
    "Explanation",
    "LargestFactor",
    "MissedRow",
    "OnInfeasible",
    "Reduced",
    "Reduction",
    "RowUse",
    "Served",
    "Shortfall",
    "SideRow",
    "SupplyClass",
    "explain",
    "largest_factor",
    "matrix_from_arrays",
    "pieces_of",
    "readable_names",
    "reduce_problem",
    "row_uses",
    "solve_allocation",
    "solve_or_serve_less",
    "taken",
    "unmet_demand",
]
