"""All public Hypothesis strategies in one place, and problems of every trait by seed.

``placement_problems`` and ``allocation_problems`` draw tiny problems that shrink well; ``seeded_placements`` and
``seeded_allocations`` draw those of ``coralopt.testing.instances``: degenerate, scarce, infeasible, without demand, with one
node, equal nodes, holes, too little memory, huge figures.
"""

from __future__ import annotations

from hypothesis import strategies as st

from coralopt.allocation import AllocationProblem
from coralopt.placement import PlacementProblem
from coralopt.testing.allocation_strategies import allocation_problems, synthetic_problem
from coralopt.testing.instances import ALLOCATION_TRAITS, PLACEMENT_TRAITS, allocation_instance, placement_instance
from coralopt.testing.placement_strategies import placement_problems, throughput_values


def seeded_placements(
    max_nodes: int = 4, max_stages: int = 3, max_layers: int = 6
) -> st.SearchStrategy[PlacementProblem]:
    """Placement problems of every trait in ``PLACEMENT_TRAITS``."""
    return st.integers(0, 2**31 - 1).map(lambda seed: placement_instance(seed, max_nodes, max_stages, max_layers))


def seeded_allocations(max_templates: int = 12) -> st.SearchStrategy[AllocationProblem]:
    """Allocation problems of every trait in ``ALLOCATION_TRAITS``."""
    return st.integers(0, 2**31 - 1).map(lambda seed: allocation_instance(seed, max_templates))


__all__ = [
    "ALLOCATION_TRAITS",
    "PLACEMENT_TRAITS",
    "allocation_problems",
    "placement_problems",
    "seeded_allocations",
    "seeded_placements",
    "synthetic_problem",
    "throughput_values",
]
