"""The online stage: how many of each serving template to deploy where, at least cost (paper section 4.3)."""

from coralopt.allocation.bounds.unmet import UnmetGroup, priced_groups
from coralopt.allocation.check import check_allocation, price_of_unmet, request_flows, time_shares, unmet_demand
from coralopt.allocation.explain import Explanation, MissedConstraint, Shortfall, explain
from coralopt.allocation.joint import Joint
from coralopt.allocation.largest_factor import FactorLimits, LargestFactor, largest_factor
from coralopt.allocation.model import FORMULATIONS, matrix_from_arrays
from coralopt.allocation.names import readable_names
from coralopt.allocation.on_infeasible import (
    OnInfeasible,
    Served,
    check_on_infeasible,
    check_shortfall,
    solve_or_serve_less,
)
from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.allocation.reductions import Reduced, Reduction, reduce_problem
from coralopt.allocation.routes import Flow, ModelRoutes, Route, RouteMean
from coralopt.allocation.search.fewest import fewest_gpus
from coralopt.allocation.search.options import AllocationSearchOptions, AllocationState, SearchLimits
from coralopt.allocation.search.result import AllocationResult, was_interrupted
from coralopt.allocation.search.session import AllocationSession
from coralopt.allocation.search.solve import solve_allocation
from coralopt.allocation.side_constraint_use import SideConstraintUse, side_constraint_uses
from coralopt.allocation.side_constraints import SideConstraint
from coralopt.allocation.supply import SupplyClass, pieces_of, taken
from coralopt.solving import attach

attach(AllocationProblem, check_allocation, FORMULATIONS)

__all__ = [
    "Allocation",
    "AllocationProblem",
    "AllocationResult",
    "AllocationSearchOptions",
    "AllocationSession",
    "AllocationState",
    "Explanation",
    "FactorLimits",
    "Flow",
    "Joint",
    "LargestFactor",
    "MissedConstraint",
    "ModelRoutes",
    "OnInfeasible",
    "Reduced",
    "Reduction",
    "Route",
    "RouteMean",
    "SearchLimits",
    "Served",
    "Shortfall",
    "SideConstraint",
    "SideConstraintUse",
    "SupplyClass",
    "UnmetGroup",
    "check_on_infeasible",
    "check_shortfall",
    "explain",
    "fewest_gpus",
    "largest_factor",
    "matrix_from_arrays",
    "pieces_of",
    "price_of_unmet",
    "priced_groups",
    "readable_names",
    "reduce_problem",
    "request_flows",
    "side_constraint_uses",
    "solve_allocation",
    "solve_or_serve_less",
    "taken",
    "time_shares",
    "unmet_demand",
    "was_interrupted",
]
