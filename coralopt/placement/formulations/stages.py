"""What every formulation of the placement problem asks of a problem with a fixed stage count."""

from __future__ import annotations

from coralopt.errors import SolverError
from coralopt.placement.problem import PlacementProblem


def fixed_stages(problem: PlacementProblem) -> int:
    """The problem's stage count.

    Raises:
        SolverError: There is none, or it leaves a stage without a node or a layer.
    """
    if problem.stages is None:
        raise SolverError(
            "a formulation is made for a fixed number of stages; set PlacementProblem.stages, "
            "or call coralopt.placement.best_placement, which tries them all"
        )
    if not problem.stage_counts:
        raise SolverError(
            f"{problem.stages} stages need as many nodes and layers, and nodes that the engine takes together; the problem "
            f"has {problem.nodes} nodes and {problem.layers} layers"
        )
    return problem.stages


def nodes_in_order(problem: PlacementProblem) -> tuple[int, ...]:
    """Configuration of every single node, the paper's g_1..g_K."""
    return tuple(c for c, count in enumerate(problem.node_set) for _ in range(count))
