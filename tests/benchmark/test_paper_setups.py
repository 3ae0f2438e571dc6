"""What the scripts of the paper's experiments plan for is a scenario, whatever the catalog has by now."""

from __future__ import annotations

import sys
from pathlib import Path

from coralopt.placement import load_pool

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.paper.helix_cluster import cluster


def test_nodes_of_helix_cluster_are_those_of_its_pool() -> None:
    pool, scenario = load_pool("helix-42"), cluster(load_pool("helix-42"))
    assert int(scenario.availability.sum()) == sum(pool.counts)
