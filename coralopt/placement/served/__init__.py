"""What the nodes of a fixed pool serve: pipelines for most decode tokens/s, by formula and simulation."""

from coralopt.placement.served.estimate import ServedEstimate, estimate_served
from coralopt.placement.served.helix_files import helix_files, write_helix_files
from coralopt.placement.served.network import PoolNetwork, pool_network
from coralopt.placement.served.search import ServedSearch, ServedSolution, place_served
from coralopt.placement.served.simulation import PoolSimulation, simulate_pool

__all__ = [
    "PoolNetwork",
    "PoolSimulation",
    "ServedEstimate",
    "ServedSearch",
    "ServedSolution",
    "estimate_served",
    "helix_files",
    "place_served",
    "pool_network",
    "simulate_pool",
    "write_helix_files",
]
