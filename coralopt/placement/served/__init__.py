"""What the nodes of a fixed pool serve: pipelines for most decode tokens/s, by formula and play."""

from coralopt.placement.served.estimate import ServedEstimate, estimate_served
from coralopt.placement.served.helix_files import helix_files, write_helix_files
from coralopt.placement.served.network import PoolNetwork, pool_network
from coralopt.placement.served.play import Played, play_served
from coralopt.placement.served.search import ServedSearch, ServedSolution, place_served

__all__ = [
    "Played",
    "PoolNetwork",
    "ServedEstimate",
    "ServedSearch",
    "ServedSolution",
    "estimate_served",
    "helix_files",
    "place_served",
    "play_served",
    "pool_network",
    "write_helix_files",
]
