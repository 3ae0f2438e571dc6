"""One replica: the placement problem, its formulations and its independent checker (paper section 4.2)."""

from coralopt.placement.best import best_placement
from coralopt.placement.check import check_placement, max_flow_throughput, throughput_of
from coralopt.placement.problem import Placement, PlacementProblem, Stage

__all__ = [
    "Placement",
    "PlacementProblem",
    "Stage",
    "best_placement",
    "check_placement",
    "max_flow_throughput",
    "throughput_of",
]
