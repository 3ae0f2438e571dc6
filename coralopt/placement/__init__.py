"""One replica: the placement problem, its formulations and its independent checker (paper section 4.2)."""

from coralopt.placement.best import best_placement
from coralopt.placement.cells import Budgets, Coupling, Links, best_cells, max_flow_throughput, throughput_of
from coralopt.placement.check import check_placement
from coralopt.placement.formulations import FORMULATIONS
from coralopt.placement.limits import ENGINES, EngineLimits, engine_limits
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_file import BUILTIN_POOLS, load_pool
from coralopt.placement.pool_search import PoolSolution, place_pool
from coralopt.placement.pool_serving import PoolLinks, PoolServing, RequestKind
from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.solving import attach

attach(PlacementProblem, check_placement, FORMULATIONS)

__all__ = [
    "BUILTIN_POOLS",
    "ENGINES",
    "Budgets",
    "Coupling",
    "EngineLimits",
    "Links",
    "Placement",
    "PlacementPool",
    "PlacementProblem",
    "PoolLinks",
    "PoolServing",
    "PoolSolution",
    "RequestKind",
    "Stage",
    "best_cells",
    "best_placement",
    "engine_limits",
    "load_pool",
    "max_flow_throughput",
    "place_pool",
    "throughput_of",
]
