"""One replica: the placement problem, its formulations and its independent checker (paper section 4.2)."""

from coralopt.placement.best import best_placement
from coralopt.placement.check import check_placement, max_flow_throughput, throughput_of
from coralopt.placement.coupled import Budgets, CoupledPlacementProblem, Links, coupled_throughput, problem_of
from coralopt.placement.limits import ENGINES, EngineLimits, engine_limits
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_file import BUILTIN_POOLS, load_pool
from coralopt.placement.pool_search import PoolSolution, place_pool
from coralopt.placement.problem import Placement, PlacementProblem, Stage

__all__ = [
    "BUILTIN_POOLS",
    "ENGINES",
    "Budgets",
    "CoupledPlacementProblem",
    "EngineLimits",
    "Links",
    "Placement",
    "PlacementPool",
    "PlacementProblem",
    "PoolSolution",
    "Stage",
    "best_placement",
    "check_placement",
    "coupled_throughput",
    "engine_limits",
    "load_pool",
    "max_flow_throughput",
    "place_pool",
    "problem_of",
    "throughput_of",
]
