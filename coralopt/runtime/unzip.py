"""Data-parallel stages taken apart into separate pipelines, where that loses nothing.

A planned stage may hold several nodes that share its traffic. An engine whose pipelines have one node a stage can still
run it as r pipelines side by side, if every stage has r nodes and the nodes can be matched so that the pipelines'
throughputs add up to that of the instance.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from fractions import Fraction

from coralopt.plan import PlannedInstance, PlannedNode


def unzip(
    instance: PlannedInstance, key: Callable[[PlannedNode], Hashable] = lambda node: None
) -> tuple[tuple[PlannedNode, ...], ...] | None:
    """Match the nodes of all stages into pipelines without loss of throughput.

    Let s* be the stage with the least sum. The pipelines' throughputs sum to at most that of s*, with equality exactly
    when in every pipeline the node of s* is the slowest. So a lossless matching exists if and only if in every stage the
    nodes, fastest first, are pairwise no slower than those of s*, fastest first; and that is the matching returned.
    With ``key`` all nodes of a pipeline must have equal keys, and the same holds key by key.

    Args:
        instance: Of a plan.
        key: What must be equal along a pipeline, for example the number of GPUs.

    Returns:
        Pipelines, fastest first, each with one node a stage; ``None`` when there is no lossless matching.
    """
    stages = [[node for node in stage.nodes for _ in range(node.count)] for stage in instance.stages]
    slowest = min(stages, key=lambda nodes: sum(Fraction(node.tokens_s) for node in nodes))
    pipelines: list[tuple[PlannedNode, ...]] = []
    keys = list(dict.fromkeys(key(node) for node in slowest))
    for value in keys:
        columns = [
            sorted((node for node in nodes if key(node) == value), key=lambda node: -node.tokens_s) for nodes in stages
        ]
        reference = sorted((node for node in slowest if key(node) == value), key=lambda node: -node.tokens_s)
        if any(len(column) != len(reference) for column in columns):
            return None
        if any(a.tokens_s < b.tokens_s for column in columns for a, b in zip(column, reference, strict=True)):
            return None
        pipelines += zip(*columns, strict=True)
    if any(len(nodes) != len(pipelines) for nodes in stages):
        return None
    return tuple(sorted(pipelines, key=lambda nodes: -min(node.tokens_s for node in nodes)))
